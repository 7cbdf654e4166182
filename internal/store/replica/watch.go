package replica

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
)

// topic is everybody who watches one prefix: what a commit means to them is worked out once.
type topic struct {
	prefix   string
	watchers map[*watcher]struct{}
	touched  []store.Change // of the commit that is being handed out
}

// topics finds those that a key belongs to by trying only the prefix lengths that somebody watches, so
// that a commit costs nothing for watchers of other keys.
type topics struct {
	byPrefix map[string]*topic
	lengths  []int       // sorted
	count    map[int]int // topics per length
}

func (ts *topics) add(w *watcher) {
	t := ts.byPrefix[w.prefix]
	if t == nil {
		t = &topic{prefix: w.prefix, watchers: map[*watcher]struct{}{}}
		ts.byPrefix[w.prefix] = t
		n := len(w.prefix)
		if ts.count[n]++; ts.count[n] == 1 {
			i, _ := slices.BinarySearch(ts.lengths, n)
			ts.lengths = slices.Insert(ts.lengths, i, n)
		}
	}
	t.watchers[w] = struct{}{}
}

func (ts *topics) remove(w *watcher) {
	t := ts.byPrefix[w.prefix]
	if t == nil {
		return
	}
	delete(t.watchers, w)
	if len(t.watchers) > 0 {
		return
	}
	delete(ts.byPrefix, w.prefix)
	n := len(w.prefix)
	if ts.count[n]--; ts.count[n] == 0 {
		i, _ := slices.BinarySearch(ts.lengths, n)
		ts.lengths = slices.Delete(ts.lengths, i, i+1)
		delete(ts.count, n)
	}
}

// hand gives the commit to everybody whose prefix it touches and drops those who have fallen behind.
func (ts *topics) hand(c store.Commit) {
	var touched []*topic
	for _, ch := range c.Changes {
		for _, n := range ts.lengths {
			if n > len(ch.Key) {
				break
			}
			t := ts.byPrefix[ch.Key[:n]]
			if t == nil {
				continue
			}
			if t.touched == nil {
				touched = append(touched, t)
			}
			t.touched = append(t.touched, ch)
		}
	}
	for _, t := range touched {
		part := store.Commit{Rev: c.Rev, Changes: t.touched}
		t.touched = nil
		for w := range t.watchers {
			if !w.push(part) {
				ts.remove(w)
			}
		}
	}
}

// all yields every watcher.
func (ts *topics) all() iter.Seq[*watcher] {
	return func(yield func(*watcher) bool) {
		for _, t := range ts.byPrefix {
			for w := range t.watchers {
				if !yield(w) {
					return
				}
			}
		}
	}
}

// watcher is one running Watch.
type watcher struct {
	prefix string
	limit  int
	wake   chan struct{} // holds a token when there is something to take

	mu    sync.Mutex
	queue []store.Commit
	err   error // ends the watch
}

// push queues a commit; false if the watcher is full and over.
func (w *watcher) push(c store.Commit) bool {
	w.mu.Lock()
	ok := w.err == nil
	switch {
	case !ok:
	case len(w.queue) >= w.limit:
		ok = false
		w.err = fault.New(fault.Gone, "this watch of %s was too slow: more than %d commits waited for it; list again and watch from there", shown(w.prefix), w.limit)
		w.queue = nil
	default:
		w.queue = append(w.queue, c)
	}
	w.mu.Unlock()
	w.notify()
	return ok
}

// end makes the watch end with err after what is queued already.
func (w *watcher) end(err error) {
	w.mu.Lock()
	if w.err == nil {
		w.err = err
	}
	w.mu.Unlock()
	w.notify()
}

func (w *watcher) notify() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take waits for commits or the end. Both results are empty when ctx ended.
func (w *watcher) take(ctx context.Context) ([]store.Commit, error) {
	for {
		select {
		case <-ctx.Done():
			return nil, nil
		case <-w.wake:
		}
		w.mu.Lock()
		queue, err := w.queue, w.err
		w.queue = nil
		w.mu.Unlock()
		if len(queue) > 0 || err != nil {
			return queue, err
		}
	}
}

// filter returns the part of a commit that a prefix covers.
func filter(c store.Commit, prefix string) (store.Commit, bool) {
	out := store.Commit{Rev: c.Rev}
	for _, ch := range c.Changes {
		if strings.HasPrefix(ch.Key, prefix) {
			out.Changes = append(out.Changes, ch)
		}
	}
	return out, len(out.Changes) > 0
}

func shown(prefix string) string {
	if prefix == "" {
		return "all keys"
	}
	return prefix
}
