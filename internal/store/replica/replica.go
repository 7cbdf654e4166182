package replica

import (
	"bytes"
	"context"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
)

// Config bounds what a replica keeps. Zero fields get the default.
type Config struct {
	History int // changes that a watch can be resumed from; default 65 536
	Queue   int // commits that may wait for one watcher; default 4 096
}

// Replica is the newest State, the commits that led there and those who watch them.
type Replica struct {
	conf Config
	now  atomic.Pointer[State]
	size atomic.Int64
	// index finds the entries of the newest state. It changes in place, so it is only for those whom the
	// engine serialises with Publish, Apply and Reset: drafts.
	index map[string]*store.Entry

	mu      sync.Mutex
	past    history
	topics  topics
	moved   chan struct{} // closed at the next publication; nil when nobody waits
	closing error         // why no more is served
}

// New returns a replica at s, where its history begins.
func New(s *State, c Config) *Replica {
	if c.History == 0 {
		c.History = 1 << 16
	}
	if c.Queue == 0 {
		c.Queue = 1 << 12
	}
	r := &Replica{
		conf:   c,
		past:   history{limit: c.History, horizon: s.rev},
		topics: topics{byPrefix: map[string]*topic{}, count: map[int]int{}},
	}
	r.now.Store(s)
	r.take(s)
	return r
}

// take counts and indexes a whole state.
func (r *Replica) take(s *State) {
	var n int64
	r.index = make(map[string]*store.Entry, s.Len())
	for e := range s.Scan("", "") {
		n += entrySize(e)
		r.index[e.Key] = e
	}
	r.size.Store(n)
}

// Draft forks the newest state, or, if there is one on its way, the state that the sealed draft after will
// make. Only one goroutine at a time may fork, use drafts, Publish, Apply or Reset. A draft is of no use
// any more when another state than that which it was forked from is published.
func (r *Replica) Draft(after *Draft, l Limits) *Draft {
	base := r.now.Load()
	if after != nil {
		base = after.next
	}
	d := newDraft(base, l)
	d.index, d.below = r.index, after
	return d
}

func entrySize(e *store.Entry) int64 {
	if e == nil {
		return 0
	}
	return int64(len(e.Key) + len(e.Value))
}

// Now is the newest state.
func (r *Replica) Now() *State { return r.now.Load() }

// Size is the sum of the lengths of all keys and values.
func (r *Replica) Size() int64 { return r.size.Load() }

// Horizon is the oldest revision that a watch can start after.
func (r *Replica) Horizon() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.past.horizon
}

// View runs f on the newest state.
func (r *Replica) View(ctx context.Context, f func(store.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return fault.Wrap(err, fault.Deadline, "the request ended before it was read from the store")
	}
	if err := r.Closed(); err != nil {
		return err
	}
	s := r.Now()
	t := &Tx{tree: s.tree, rev: s.rev}
	if err := f(t); err != nil {
		return err
	}
	return t.err
}

// Publish makes a sealed draft the newest state. Its base must be the newest state, or it is not published
// and Publish returns false.
func (r *Replica) Publish(s *State, base *State, c store.Commit) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now.Load() != base {
		return false
	}
	r.publish(s, c)
	return true
}

func (r *Replica) publish(s *State, c store.Commit) {
	r.now.Store(s)
	var grown int64
	for _, ch := range c.Changes {
		grown += entrySize(ch.Entry) - entrySize(ch.Prev)
		if ch.Entry != nil {
			r.index[ch.Key] = ch.Entry
		} else {
			delete(r.index, ch.Key)
		}
	}
	r.size.Add(grown)
	r.past.add(c)
	r.topics.hand(c)
	r.tell()
}

// tell wakes everybody who waits for a revision.
func (r *Replica) tell() {
	if r.moved != nil {
		close(r.moved)
		r.moved = nil
	}
}

// Apply makes the changes of a commit that was made elsewhere. Entries carry their revisions, Prev is
// filled in. A revision that the replica has is applied already and does nothing. Like drafts it must be
// serialised by the engine.
func (r *Replica) Apply(rev int64, changes []store.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now.Load()
	if rev <= now.rev {
		return
	}
	s, c := now.next(rev, changes)
	r.publish(s, c)
}

// Reset makes s the newest state after commits were missed. Watchers get what differs, as one commit per
// revision found in s and the deletions last. If s contradicts what was published (the store behind was
// restored from a backup) history ends and every watch is Gone.
func (r *Replica) Reset(s *State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now.Load()
	commits, ok := missed(now, s)
	r.now.Store(s)
	r.take(s)
	if !ok {
		r.past.forget(now.rev)
		r.past.horizon = s.rev
		for w := range r.topics.all() {
			w.end(fault.New(fault.Gone, "the store was replaced by another state; list again and watch from there"))
		}
	}
	for _, c := range commits {
		r.past.add(c)
		r.topics.hand(c)
	}
	r.tell()
}

// missed returns the commits that lead from a to b as far as they can be told, or false if b is not a
// later state of a.
func missed(a, b *State) ([]store.Commit, bool) {
	if b.rev < a.rev {
		return nil, false
	}
	byRev := map[int64][]store.Change{}
	for e := range b.Scan("", "") {
		was := a.Get(e.Key)
		if was != nil && was.Rev == e.Rev && bytes.Equal(was.Value, e.Value) {
			continue
		}
		if e.Rev <= a.rev {
			return nil, false
		}
		byRev[e.Rev] = append(byRev[e.Rev], store.Change{Key: e.Key, Entry: e, Prev: was})
	}
	for was := range a.Scan("", "") {
		if b.Get(was.Key) != nil {
			continue
		}
		if b.rev == a.rev {
			return nil, false
		}
		byRev[b.rev] = append(byRev[b.rev], store.Change{Key: was.Key, Prev: was})
	}
	var out []store.Commit
	for _, rev := range slices.Sorted(maps.Keys(byRev)) {
		changes := byRev[rev]
		slices.SortFunc(changes, func(x, y store.Change) int { return compare(x.Key, y.Key) })
		out = append(out, store.Commit{Rev: rev, Changes: changes})
	}
	return out, true
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Wait returns when the replica has reached rev, ctx ended or the replica was closed.
func (r *Replica) Wait(ctx context.Context, rev int64) error {
	for {
		r.mu.Lock()
		if r.now.Load().rev >= rev {
			r.mu.Unlock()
			return nil
		}
		if err := r.closing; err != nil {
			r.mu.Unlock()
			return err
		}
		if r.moved == nil {
			r.moved = make(chan struct{})
		}
		moved := r.moved
		r.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Watch yields every commit after a revision that touches keys with prefix, as store.DB's Watch does.
func (r *Replica) Watch(ctx context.Context, prefix string, after int64) iter.Seq2[store.Commit, error] {
	if after == 0 {
		after = r.Now().rev
	}
	return func(yield func(store.Commit, error) bool) {
		w, backlog, err := r.join(prefix, after)
		if err != nil {
			yield(store.Commit{}, err)
			return
		}
		defer r.leave(w)
		for _, c := range backlog {
			if part, ok := filter(c, prefix); ok && (ctx.Err() != nil || !yield(part, nil)) {
				return
			}
		}
		for {
			queue, err := w.take(ctx)
			for _, c := range queue {
				if ctx.Err() != nil || !yield(c, nil) {
					return
				}
			}
			if err != nil {
				yield(store.Commit{}, err)
				return
			}
			if len(queue) == 0 {
				return
			}
		}
	}
}

func (r *Replica) join(prefix string, after int64) (*watcher, []store.Commit, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now.Load().rev
	switch {
	case r.closing != nil:
		return nil, nil, r.closing
	case after < r.past.horizon:
		return nil, nil, fault.New(fault.Gone, "the changes after revision %d are not kept any more, only those after %d; list again and watch from there", after, r.past.horizon)
	case after > now:
		return nil, nil, fault.New(fault.Gone, "revision %d lies ahead of the store's, %d: the store was restored from a backup; list again and watch from there", after, now)
	}
	w := &watcher{prefix: prefix, limit: r.conf.Queue, wake: make(chan struct{}, 1)}
	r.topics.add(w)
	return w, r.past.after(after), nil
}

func (r *Replica) leave(w *watcher) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.topics.remove(w)
}

// Closed returns the fault that the replica was closed with, or nil.
func (r *Replica) Closed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closing
}

// Close ends all watches and waits with err. Only the first call counts.
func (r *Replica) Close(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing != nil {
		return
	}
	r.closing = err
	for w := range r.topics.all() {
		w.end(err)
	}
	r.tell()
}
