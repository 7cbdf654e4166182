package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
)

// watchQueue is how many commits wait for one client here. Behind it the store has a bounded queue of its
// own; a client that lets both fill up is told that it has fallen behind.
const watchQueue = 64

// maxWatches is how many watches a user may have open. Each costs some 60 KiB, and every commit wakes all of
// them: with thousands, one tenant would slow down the writes of everybody.
const maxWatches = 100

// seats counts the open watches of each user.
type seats struct {
	mu   sync.Mutex
	open map[string]int
}

// enter takes a place for a watch of the caller; leave gives it back.
func (s *seats) enter(c *call) (leave func(), err error) {
	who := c.Host + "/" + c.Name
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[who] >= maxWatches {
		return nil, limited(fmt.Sprintf("%d watches of yours are open, more may not be", maxWatches), keepAlive)
	}
	if s.open == nil {
		s.open = map[string]int{}
	}
	s.open[who]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.open[who]--; s.open[who] == 0 {
			delete(s.open, who)
		}
	}, nil
}

// bookmark is the data of a bookmark event: everything up to the revision has been sent.
type bookmark struct {
	Revision int64 `json:"revision"`
	Synced   bool  `json:"synced,omitempty"` // the initial objects are complete
}

// watch answers a list request with a stream of changes.
func (k *kind[T, P]) watch(ctx context.Context, in *listInput, sel selector) (*answer, error) {
	c := callFrom(ctx)
	from, err := watchFrom(in)
	if err != nil {
		return nil, err
	}
	w := &watcher[T, P]{k: k, c: c, sel: sel, see: newSight(c, k.self()), prefix: object.Prefix(k.name, k.listTenant(c)), seen: from}
	err = k.s.db.View(ctx, func(tx store.Tx) error {
		if err := k.tenantThere(tx, c); err != nil {
			return err
		}
		if from != 0 {
			return nil
		}
		w.seen = tx.Rev()
		return w.collect(tx)
	})
	if err == nil && from != 0 {
		err = k.s.reachable(ctx, from)
	}
	if err != nil {
		return nil, err
	}
	return &answer{func(hc huma.Context) {
		r, rw := humago.Unwrap(hc)
		leave, err := k.s.seats.enter(c)
		if err != nil {
			c.writeProblem(rw, err)
			return
		}
		defer leave()
		w.run(r, rw)
	}}, nil
}

func watchFrom(in *listInput) (int64, error) {
	if in.LastID == "" {
		return in.From, nil
	}
	rev, err := strconv.ParseInt(in.LastID, 10, 64)
	if err != nil || rev < 0 {
		return 0, &fault.Error{Kind: fault.Invalid, Text: "Last-Event-ID takes the id of an event of this stream",
			Fields: []fault.Field{{Path: "header.Last-Event-ID", Text: "expected a revision"}}}
	}
	return rev, nil
}

// reachable refuses a position whose changes the store no longer knows, or does not know yet: one from
// before a restore.
func (s *Server) reachable(ctx context.Context, from int64) error {
	h, err := s.db.Health(ctx)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "the store does not answer")
	}
	if from < h.Compacted || from > h.Revision {
		return fault.New(fault.Gone, "changes after revision %d are not known here (%d to %d are); list again and watch from there", from, h.Compacted, h.Revision)
	}
	return nil
}

// watcher is one client's stream.
type watcher[T any, P metaPtr[T]] struct {
	k      *kind[T, P]
	c      *call
	sel    selector
	see    *sight
	prefix string
	seen   int64    // everything up to this revision was sent
	first  [][]byte // the objects at the start; nil when the client resumes
	resync bool     // the client began without a position
	out    *stream
	// credentials are the keys after whose change the caller's right is asked for again.
	credentials []string
}

// collect takes the objects as they are now.
func (w *watcher[T, P]) collect(tx store.Tx) error {
	w.resync = true
	for e, err := range w.k.visible(tx, w.c, w.sel, "") {
		if err != nil {
			return err
		}
		data, err := w.k.show(tx, w.c, e)
		if err != nil {
			return err
		}
		w.first = append(w.first, data)
	}
	return nil
}

// change is a commit of the store, or the reason why there are no more.
type change struct {
	commit store.Commit
	err    error
}

// follow hands on the store's commits until ctx ends. It watches everything, so that the watcher knows
// how far it is even if nothing of its own kind changes: that is what bookmarks promise.
func follow(ctx context.Context, db store.DB, after int64) <-chan change {
	ch := make(chan change, watchQueue)
	go func() {
		defer close(ch)
		for commit, err := range db.Watch(ctx, "", after) {
			select {
			case ch <- change{commit, err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ch
}

// run streams until the client goes, falls behind, loses its rights, or the server stops.
func (w *watcher[T, P]) run(r *http.Request, rw http.ResponseWriter) {
	s := w.k.s
	w.c.stream = true
	s.metrics.watchers.Inc()
	defer s.metrics.watchers.Dec()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	w.credentials = credentials(w.c)
	changes := follow(ctx, s.db, w.seen)
	w.out = newStream(rw)
	if err := w.begin(); err != nil {
		s.metrics.dropped.Inc()
		return
	}
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for beats := 1; ; {
		var more bool
		var err error
		select {
		case <-ctx.Done():
			return
		case <-s.stop:
			return
		case ch, ok := <-changes:
			if !ok {
				return
			}
			if touches(ch.commit, w.credentials) && !w.still(r) {
				return
			}
			more, err = w.send(ctx, ch)
		case <-tick.C:
			more, err = w.beat(r, beats)
			beats++
		}
		if err != nil {
			s.metrics.dropped.Inc()
		}
		if err != nil || !more {
			return
		}
	}
}

// begin sends the objects as they were and says that they are complete.
func (w *watcher[T, P]) begin() error {
	for i, data := range w.first {
		w.out.event("put", 0, data)
		if i%256 == 255 {
			if err := w.out.flush(); err != nil {
				return err
			}
		}
	}
	w.first = nil
	if w.resync {
		w.bookmark(true)
	}
	return w.out.flush()
}

func (w *watcher[T, P]) bookmark(synced bool) {
	data, err := json.Marshal(bookmark{w.seen, synced})
	if err != nil {
		return // two plain fields always encode
	}
	w.out.event("bookmark", w.seen, data)
}

// beat keeps a quiet stream open. Every second one is a bookmark, and asks again whether the caller may
// still watch: a stream must not outlive a revoked token.
func (w *watcher[T, P]) beat(r *http.Request, n int) (more bool, err error) {
	if n%2 != 0 {
		w.out.comment("alive")
		return true, w.out.flush()
	}
	if !w.still(r) {
		return false, nil // the client's next request is told why
	}
	w.bookmark(false)
	return true, w.out.flush()
}

// still takes over what the caller may see now, and reports whether that is anything.
func (w *watcher[T, P]) still(r *http.Request) bool {
	if !w.entitled(r) {
		return false
	}
	w.see = newSight(w.c, w.k.self())
	return true
}

// credentials are the keys that decide what the caller may do. A commit that changes one of them may take
// the right to what stands in that very commit.
func credentials(c *call) []string {
	return []string{tokenKeys + c.Token, roleKeys + c.Name, object.Key(api.KindUser, "", c.Name)}
}

func touches(commit store.Commit, keys []string) bool {
	for _, ch := range commit.Changes {
		if slices.Contains(keys, ch.Key) {
			return true
		}
	}
	return false
}

// entitled asks anew who the caller is and whether the route is theirs.
func (w *watcher[T, P]) entitled(r *http.Request) bool {
	caller, err := w.k.s.identify(r)
	if err == nil {
		w.c.Caller = caller
		err = w.k.s.authorise(r, w.c)
	}
	return err == nil
}

// send sends what a commit changed for this client; only the last event carries the revision, so that a
// client never resumes in the middle of a commit.
func (w *watcher[T, P]) send(ctx context.Context, ch change) (more bool, err error) {
	if ch.err != nil {
		data, err := json.Marshal(problemOf(w.c, fault.New(fault.Gone, "the stream has fallen behind; list again and watch from there")))
		if err != nil {
			return false, err
		}
		w.out.event("gone", 0, data)
		return false, w.out.flush()
	}
	var names []string
	var datas [][]byte
	for _, chg := range ch.commit.Changes {
		if !strings.HasPrefix(chg.Key, w.prefix) {
			continue
		}
		name, data, err := w.translate(ctx, chg, ch.commit.Rev)
		if err != nil {
			w.k.s.log.ErrorContext(ctx, "watch", "request", w.c.id, "err", err)
			return false, nil
		}
		if name != "" {
			names, datas = append(names, name), append(datas, data)
		}
	}
	w.seen = ch.commit.Rev
	if len(names) == 0 {
		return true, nil
	}
	for i, name := range names {
		id := int64(0)
		if i == len(names)-1 {
			id = ch.commit.Rev
		}
		w.out.event(name, id, datas[i])
	}
	return true, w.out.flush()
}

// translate is a change as this client sees it: an object whose labels no longer fit is deleted for it.
func (w *watcher[T, P]) translate(ctx context.Context, chg store.Change, rev int64) (name string, data []byte, err error) {
	_, tenant, own, _ := object.Split(chg.Key)
	if !w.see.sees(tenant, own) {
		return "", nil, nil
	}
	is, was := false, false
	if chg.Entry != nil {
		if is, err = w.k.picks(w.sel, chg.Entry); err != nil {
			return "", nil, err
		}
	}
	if !is && chg.Prev != nil {
		if was, err = w.k.picks(w.sel, chg.Prev); err != nil {
			return "", nil, err
		}
	}
	switch {
	case is:
		data, err = w.k.showNow(ctx, w.c, chg.Entry)
		return "put", data, err
	case was:
		data, err = w.k.bare(w.c, chg.Prev, rev)
		return "delete", data, err
	default:
		return "", nil, nil
	}
}

// showNow is show outside of a transaction.
func (k *kind[T, P]) showNow(ctx context.Context, c *call, e *store.Entry) (data []byte, err error) {
	if k.fill == nil {
		return k.bare(c, e, e.Rev)
	}
	err = k.s.db.View(ctx, func(tx store.Tx) error {
		data, err = k.show(tx, c, e)
		return err
	})
	return data, err
}
