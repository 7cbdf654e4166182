package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store/mem"
	"github.com/verbena-cloud/verbena/internal/store/replica"
)

// listener is a client's end of a stream. It must be used inside a synctest bubble: wait returns when the
// server has nothing more to send until time passes or something changes.
type listener struct {
	header http.Header
	mu     sync.Mutex
	status int
	text   strings.Builder
	stuck  bool // writes fail, as they do after a deadline
	cancel context.CancelFunc
	ended  chan struct{}
}

func (l *listener) Header() http.Header { return l.header }

func (l *listener) WriteHeader(status int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.status == 0 {
		l.status = status
	}
}

func (l *listener) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stuck {
		return 0, errors.New("i/o timeout")
	}
	return l.text.Write(b)
}

func (l *listener) Flush() {}

// take returns what has arrived since the last take, one event per line: "put a@7 id=7".
func (l *listener) take() []string {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for block := range strings.SplitSeq(l.text.String(), "\n\n") {
		if block == "" {
			continue
		}
		out = append(out, block)
	}
	l.text.Reset()
	return out
}

// watch opens a stream.
func (f *fixture) watch(who, path string, header ...string) *listener {
	f.Helper()
	ctx, cancel := context.WithCancel(f.Context())
	l := &listener{header: http.Header{}, cancel: cancel, ended: make(chan struct{})}
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	r.Header.Set(as, who)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	go func() {
		defer close(l.ended)
		f.s.ServeHTTP(l, r)
	}()
	f.Cleanup(cancel)
	return l
}

// brief turns events into "put small 12", "delete small", "bookmark 12 synced", ": alive"; the number is the id.
func brief(t *testing.T, events []string) []string {
	t.Helper()
	var out []string
	for _, e := range events {
		if strings.HasPrefix(e, ":") {
			out = append(out, e)
			continue
		}
		name, id, what := "", "", ""
		for line := range strings.SplitSeq(e, "\n") {
			switch key, value, _ := strings.Cut(line, ": "); key {
			case "event":
				name = value
			case "id":
				id = " " + value
			case "data":
				switch name {
				case "put", "delete":
					what = " " + decode[api.Flavor](t, answered{body: value}).Name
				case "bookmark":
					if decode[bookmark](t, answered{body: value}).Synced {
						what = " synced"
					}
				}
			}
		}
		out = append(out, name+what+id)
	}
	return out
}

func (l *listener) expect(t *testing.T, want ...string) {
	t.Helper()
	if got := brief(t, l.take()); strings.Join(got, "|") != strings.Join(want, "|") {
		t.Fatalf("stream has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func (f *fixture) makeFlavor(name, labels string) int64 {
	f.Helper()
	return decode[api.Flavor](f.T, f.want(http.StatusCreated, f.do("op", http.MethodPost, "/v1/flavors", flavorJSON(name, labels)))).Revision
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.makeFlavor("small", "")
		start := f.revision()
		l := f.watch("bob", "/v1/flavors?watch=true")
		l.expect(t, "put small", fmt.Sprintf("bookmark synced %d", start))
		if l.status != 200 || l.header.Get("Content-Type") != "text/event-stream" || l.header.Get("X-Accel-Buffering") != "no" {
			t.Fatalf("%d %v", l.status, l.header)
		}

		made := f.makeFlavor("big", "")
		l.expect(t, fmt.Sprintf("put big %d", made))
		f.want(http.StatusNoContent, f.do("op", http.MethodDelete, "/v1/flavors/small", nil))
		gone := f.revision()
		l.expect(t, fmt.Sprintf("delete small %d", gone))

		<-time.After(keepAlive)
		l.expect(t, ": alive")
		// What is not of its kind moves a watcher on, too: the bookmark says so.
		f.want(http.StatusCreated, f.do("op", http.MethodPost, "/v1/fabrics", `{"kind":"Fabric","name":"roce","spec":{"speed":"25Gbps","vlanPool":["100"]}}`))
		now := f.revision()
		<-time.After(keepAlive)
		l.expect(t, fmt.Sprintf("bookmark %d", now))

		// A client that comes back misses nothing and gets nothing twice.
		l.cancel()
		<-l.ended
		next := f.makeFlavor("later", "")
		l = f.watch("bob", "/v1/flavors?watch=true&from=1", "Last-Event-ID", strconv.FormatInt(now, 10))
		l.expect(t, fmt.Sprintf("put later %d", next))
		l.cancel()
		l = f.watch("bob", fmt.Sprintf("/v1/flavors?watch=true&from=%d", made))
		l.expect(t, fmt.Sprintf("delete small %d", gone), fmt.Sprintf("put later %d", next))
		l.cancel()
		<-l.ended
	})
}

func TestWatchSelects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.makeFlavor("a", `{"tier":"gold"}`)
		f.makeFlavor("b", `{"tier":"tin"}`)
		l := f.watch("bob", "/v1/flavors?watch=true&labels=tier%3Dgold")
		l.expect(t, "put a", fmt.Sprintf("bookmark synced %d", f.revision()))
		// An object that no longer fits is gone for this client; one that now fits is new.
		f.want(200, f.do("op", http.MethodPut, "/v1/flavors/a", flavorJSON("a", `{"tier":"tin"}`)))
		l.expect(t, fmt.Sprintf("delete a %d", f.revision()))
		f.want(200, f.do("op", http.MethodPut, "/v1/flavors/b", flavorJSON("b", `{"tier":"gold"}`)))
		l.expect(t, fmt.Sprintf("put b %d", f.revision()))
		f.want(200, f.do("op", http.MethodPut, "/v1/flavors/a", flavorJSON("a", `{"tier":"iron"}`)))
		l.expect(t)
		l.cancel()
		<-l.ended
	})
}

func TestWatchShowsOnlyOnesOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.seed()
		l := f.watch("eve", "/v1/networks?watch=true")
		l.expect(t, fmt.Sprintf("bookmark synced %d", f.revision()))
		f.want(201, f.do("ann", http.MethodPost, "/v1/tenants/physics/networks", `{"kind":"Network","name":"secret","spec":{"fabric":"roce","cidr":"10.7.0.0/24"}}`))
		l.expect(t)
		f.want(201, f.do("eve", http.MethodPost, "/v1/tenants/biology/networks", `{"kind":"Network","name":"cells","spec":{"fabric":"roce","cidr":"10.8.0.0/24"}}`))
		if got := l.take(); len(got) != 1 || !strings.Contains(got[0], `"cells"`) {
			t.Fatalf("eve sees %q", got)
		}
		l.cancel()
		<-l.ended
	})
}

// A stream does not outlive the right to it.
func TestWatchEndsWithItsRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		var mu sync.Mutex
		caller, revoked := people()["bob"], false
		f.s.identify = func(r *http.Request) (auth.Caller, error) {
			if r.Header.Get(as) != "bob" {
				return identifyForTest(r)
			}
			mu.Lock()
			defer mu.Unlock()
			if revoked {
				return auth.Caller{}, fault.New(fault.Unauthenticated, "revoked")
			}
			return caller, nil
		}
		l := f.watch("bob", "/v1/flavors?watch=true")
		<-time.After(3 * keepAlive)
		mu.Lock()
		revoked = true
		mu.Unlock()
		<-time.After(2 * keepAlive)
		synctest.Wait()
		select {
		case <-l.ended:
		default:
			t.Fatal("the stream goes on after its token was revoked")
		}
	})
}

func TestWatchTooFarBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := mem.With(replica.Config{History: 4})
		defer db.Close()
		f := newFixtureOn(t, db)
		first := f.makeFlavor("f0", "")
		for i := range 10 {
			f.makeFlavor(fmt.Sprintf("f%d", i+1), "")
		}
		f.problem(http.StatusGone, fault.Gone, f.do("bob", http.MethodGet, fmt.Sprintf("/v1/flavors?watch=true&from=%d", first), nil))
		f.problem(http.StatusGone, fault.Gone, f.do("bob", http.MethodGet, fmt.Sprintf("/v1/flavors?watch=true&from=%d", f.revision()+1000), nil))
		f.problem(422, fault.Invalid, f.do("bob", http.MethodGet, "/v1/flavors?watch=true", nil, "Last-Event-ID", "x"))
	})
}

// A client that reads too slowly is cut off and costs nobody else anything.
func TestWatchDropsASlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		l := f.watch("bob", "/v1/flavors?watch=true")
		l.take()
		l.mu.Lock()
		l.stuck = true
		l.mu.Unlock()
		f.makeFlavor("small", "")
		synctest.Wait()
		select {
		case <-l.ended:
		default:
			t.Fatal("the stream goes on though nothing can be written")
		}
		if n := f.s.openWatchers(); n != 0 {
			t.Errorf("%v watchers are still counted", n)
		}
	})
}

func TestStopEndsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		l := f.watch("bob", "/v1/flavors?watch=true")
		l.take()
		close(f.s.stop)
		<-l.ended
	})
}
