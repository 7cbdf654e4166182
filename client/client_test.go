package client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/client"
)

// wire answers requests in order; it notes what was asked.
type wire struct {
	answers []func(*http.Request) (*http.Response, error)
	asked   []*http.Request
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.asked = append(w.asked, r)
	if len(w.answers) == 0 {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	f := w.answers[0]
	w.answers = w.answers[1:]
	return f(r)
}

func reply(status int, media, body string) func(*http.Request) (*http.Response, error) {
	return func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status, Status: http.StatusText(status), Header: http.Header{"Content-Type": {media}}, Body: io.NopCloser(strings.NewReader(body))}, nil
	}
}

func broken(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }

const (
	plain   = "application/json"
	stream  = "text/event-stream"
	problem = "application/problem+json"
)

func open(t *testing.T, w *wire) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{Server: "https://verbena.test:7443", Token: "secret", Transport: w})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// told is a change in short.
func told(c client.Change[api.VM]) string {
	return strings.Trim(c.What+" "+c.Object.Name, " ")
}

// TestWatchResumes: a watch goes on over a broken connection where it was, and from the beginning when its
// position is gone.
func TestWatchResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{answers: []func(*http.Request) (*http.Response, error){
			reply(200, stream, "event: put\ndata: {\"name\":\"a\"}\n\nevent: bookmark\nid: 7\ndata: {\"revision\":7,\"synced\":true}\n\n: alive\n\nevent: put\nid: 9\ndata: {\"name\":\"b\"}\n\n"),
			broken,
			reply(200, stream, "event: delete\nid: 12\ndata: {\"name\":\"a\"}\n\nevent: gone\ndata: {\"code\":\"gone\",\"status\":410}\n\n"),
			reply(200, stream, "event: put\ndata: {\"name\":\"c\"}\n\nevent: bookmark\nid: 20\ndata: {\"revision\":20,\"synced\":true}\n\n"),
			reply(410, problem, `{"code":"gone","status":410,"title":"x"}`),
			reply(403, problem, `{"code":"forbidden","status":403,"title":"x","detail":"no more"}`),
		}}
		c := open(t, w)
		var got []string
		var last error
		for change, err := range c.VMs().Watch(t.Context(), "red", client.Selection{Labels: "a=b"}) {
			if err != nil {
				last = err
				break
			}
			got = append(got, told(change))
		}
		want := []string{"put a", "synced", "put b", "delete a", "reset", "put c", "synced", "reset"}
		if !slices.Equal(got, want) {
			t.Errorf("got %q\nwant %q", got, want)
		}
		if !client.Is(last, "forbidden") {
			t.Errorf("it ended with %v", last)
		}
		var from []string
		for _, r := range w.asked {
			from = append(from, r.URL.Query().Get("from"))
			if r.URL.Path != "/v1/tenants/red/vms" || r.URL.Query().Get("labels") != "a=b" || r.Header.Get("Authorization") != "Bearer secret" {
				t.Errorf("asked %s", r.URL)
			}
		}
		if want := []string{"", "9", "9", "", "20", ""}; !slices.Equal(from, want) {
			t.Errorf("resumed from %q, want %q", from, want)
		}
	})
}

// TestWatchNoticesSilence: a stream that says nothing, not even that it lives, is made anew.
func TestWatchNoticesSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := func(r *http.Request) (*http.Response, error) {
			pr, pw := io.Pipe()
			context.AfterFunc(r.Context(), func() { pw.CloseWithError(r.Context().Err()) })
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {stream}}, Body: pr}, nil
		}
		w := &wire{answers: []func(*http.Request) (*http.Response, error){silent, reply(401, problem, `{"code":"unauthenticated","status":401}`)}}
		start := time.Now()
		for _, err := range open(t, w).VMs().Watch(t.Context(), "", client.Selection{From: 5}) {
			if !client.Is(err, "unauthenticated") {
				t.Errorf("got %v", err)
			}
		}
		if d := time.Since(start); d < 30*time.Second || d > time.Minute {
			t.Errorf("silence was noticed after %s", d)
		}
	})
}

// TestCreateIsRepeatedWithItsKey: a create whose answer got lost is sent again under the same key, so that
// it happens once; what was refused is not.
func TestCreateIsRepeatedWithItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{answers: []func(*http.Request) (*http.Response, error){
			broken,
			reply(503, problem, `{"code":"unavailable","status":503,"retryable":true}`),
			reply(201, plain, `{"kind":"VM","name":"a","revision":3}`),
		}}
		vm, err := open(t, w).VMs().Create(t.Context(), "red", &api.VM{Meta: api.Meta{Name: "a"}}, client.Write{})
		if err != nil || vm.Revision != 3 {
			t.Fatalf("%+v %v", vm, err)
		}
		keys := map[string]bool{}
		for _, r := range w.asked {
			keys[r.Header.Get("Idempotency-Key")] = true
		}
		if len(w.asked) != 3 || len(keys) != 1 || keys[""] {
			t.Errorf("%d requests with the keys %v", len(w.asked), keys)
		}
		w = &wire{answers: []func(*http.Request) (*http.Response, error){reply(409, problem, `{"code":"quota","status":409,"retryable":true,"detail":"too much","quota":[{"resource":"vfs","limit":3}]}`)}}
		_, err = open(t, w).VMs().Create(t.Context(), "red", &api.VM{}, client.Write{})
		e, ok := errors.AsType[*client.Error](err)
		if !ok || e.Code != "quota" || len(e.Quota) != 1 || len(w.asked) != 1 {
			t.Errorf("%v after %d requests", err, len(w.asked))
		}
	})
}

// TestConditionalReplaceIsSentOnce: the second try would meet the change of the first.
func TestConditionalReplaceIsSentOnce(t *testing.T) {
	w := &wire{answers: []func(*http.Request) (*http.Response, error){broken}}
	_, err := open(t, w).Hosts().Replace(t.Context(), "", "h1", &api.Host{}, client.Write{Revision: 7})
	e, ok := errors.AsType[*client.ConnError](err)
	if !ok || !e.Broken || len(w.asked) != 1 || w.asked[0].Header.Get("If-Match") != `"7"` {
		t.Errorf("%v after %d requests", err, len(w.asked))
	}
}

func TestListFollowsPages(t *testing.T) {
	w := &wire{answers: []func(*http.Request) (*http.Response, error){
		reply(200, plain, `{"items":[{"name":"a"},{"name":"b"}],"continue":"next","revision":5}`),
		reply(200, plain, `{"items":[{"name":"c"}],"revision":9}`),
	}}
	list, err := open(t, w).Flavors().List(t.Context(), "", client.Selection{})
	if err != nil || len(list.Items) != 3 || list.Revision != 5 || w.asked[1].URL.Query().Get("continue") != "next" {
		t.Errorf("%+v %v", list, err)
	}
}

// TestNamesStayInTheirPlace: whatever a name holds, it can't reach another path.
func TestNamesStayInTheirPlace(t *testing.T) {
	for _, name := range []string{"..", ".", "a/b", "a?b", "a%2fb", "ü"} {
		w := &wire{answers: []func(*http.Request) (*http.Response, error){reply(404, problem, `{"code":"not-found","status":404}`)}}
		_, err := open(t, w).Flavors().Get(t.Context(), "", name)
		if !client.Is(err, "not-found") {
			t.Errorf("%q: %v", name, err)
		}
		if p := w.asked[0].URL.EscapedPath(); strings.Count(p, "/") != 3 || !strings.HasPrefix(p, "/v1/flavors/") || strings.HasSuffix(p, ".") {
			t.Errorf("%q was asked for as %s", name, p)
		}
	}
}

func TestStrangersAreNoServers(t *testing.T) {
	w := &wire{answers: []func(*http.Request) (*http.Response, error){reply(502, "text/html", "<html>proxy</html>")}}
	if _, err := open(t, w).WhoAmI(t.Context()); err == nil || !strings.Contains(err.Error(), "not as a Verbena server") {
		t.Errorf("got %v", err)
	}
	for _, bad := range []string{"", "verbena", "ftp://x", "://"} {
		if _, err := client.New(client.Config{Server: bad}); err == nil {
			t.Errorf("%q is taken for an address", bad)
		}
	}
}

// TestTrust: only the server that the CA or its pin proves is talked to; the token never leaves before.
func TestTrust(t *testing.T) {
	reached := 0
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reached++
		fmt.Fprint(w, `{"name":"ada"}`)
	}))
	defer s.Close()
	s.Config.ErrorLog = nil
	cert := s.Certificate()
	hash := sha256.Sum256(cert.Raw)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
	for name, c := range map[string]struct {
		cfg client.Config
		ok  bool
	}{
		"unknown":   {client.Config{}, false},
		"ca":        {client.Config{CA: ca}, true},
		"pin":       {client.Config{Pin: hex.EncodeToString(hash[:])}, true},
		"wrong pin": {client.Config{Pin: strings.Repeat("00", 32)}, false},
	} {
		c.cfg.Server, c.cfg.Token = s.URL, "secret"
		cl, err := client.New(c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		before := reached
		_, err = cl.WhoAmI(t.Context())
		if (err == nil) != c.ok || (reached > before) != c.ok {
			t.Errorf("%s: %v, reached %t", name, err, reached > before)
		}
		if e, is := errors.AsType[*client.ConnError](err); !c.ok && (!is || !e.Trust) {
			t.Errorf("%s: %v is no matter of trust", name, err)
		}
	}
	got, err := client.FetchAuthority(t.Context(), s.URL, "")
	if err != nil || got.SHA256 != hex.EncodeToString(hash[:]) || !bytes.Equal(got.PEM, ca) {
		t.Errorf("%+v %v", got, err)
	}
	if _, err := client.FetchAuthority(t.Context(), s.URL, strings.Repeat("11", 32)); err == nil {
		t.Error("another CA passed for the pinned one")
	}
}

func TestBackupMustBeWhole(t *testing.T) {
	body := "{\"format\":\"verbena-backup\"}\n{\"key\":\"a\"}\n"
	sum := sha256.Sum256([]byte(body))
	whole := body + fmt.Sprintf("{\"sha256\":%q,\"count\":1}\n", hex.EncodeToString(sum[:]))
	for text, ok := range map[string]bool{whole: true, body: false, "": false, whole[:len(whole)-9]: false, strings.Replace(whole, `"a"`, `"b"`, 1): false} {
		w := &wire{answers: []func(*http.Request) (*http.Response, error){reply(200, "application/jsonl", text)}}
		var out bytes.Buffer
		if err := open(t, w).Backup(t.Context(), &out); (err == nil) != ok || out.String() != text {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		start := time.Now()
		_, err := open(t, w).Status(t.Context())
		e, ok := errors.AsType[*client.ConnError](err)
		if !ok || !e.Slow || time.Since(start) != 30*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}

func FuzzWatch(f *testing.F) {
	f.Add("event: put\nid: 5\ndata: {\"name\":\"a\"}\n\n")
	f.Add("data: 1\r\ndata: 2\r\n\r\n: c\n\nevent: gone\ndata: {}\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		w := &wire{answers: []func(*http.Request) (*http.Response, error){reply(200, stream, text)}}
		c, err := client.New(client.Config{Server: "https://x", Transport: w})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		for change, err := range c.Raw(client.Types()[0]).Watch(ctx, "", client.Selection{}) {
			if err == nil && change.What == client.Put && !json.Valid(change.Object) {
				t.Fatalf("an object that is no JSON: %q", change.Object)
			}
		}
	})
}
