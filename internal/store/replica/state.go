package replica

import (
	"iter"
	"strings"

	"github.com/google/btree"

	"github.com/verbena-cloud/verbena/internal/store"
)

// degree of the tree: wide enough for few levels at a million keys, narrow enough that the copy of one
// path per changed key after a fork stays near 1 KiB.
const degree = 16

type tree = btree.BTreeG[*store.Entry]

func less(a, b *store.Entry) bool { return a.Key < b.Key }

// State is an immutable snapshot at a revision.
type State struct {
	tree *tree
	rev  int64
}

// NewState returns the state at rev that holds the entries, whose revisions must be set.
func NewState(rev int64, entries iter.Seq[*store.Entry]) *State {
	t := btree.NewG(degree, less)
	for e := range entries {
		t.ReplaceOrInsert(e)
	}
	return &State{tree: t, rev: rev}
}

// Empty returns the state without keys at rev.
func Empty(rev int64) *State { return NewState(rev, func(func(*store.Entry) bool) {}) }

// Rev is the revision of the state.
func (s *State) Rev() int64 { return s.rev }

// Len is the number of keys.
func (s *State) Len() int { return s.tree.Len() }

// Get returns the entry, or nil.
func (s *State) Get(key string) *store.Entry {
	e, _ := s.tree.Get(&store.Entry{Key: key})
	return e
}

// Scan yields the entries whose key has prefix and is greater than after, in key order.
func (s *State) Scan(prefix, after string) iter.Seq[*store.Entry] { return scan(s.tree, prefix, after) }

func scan(t *tree, prefix, after string) iter.Seq[*store.Entry] {
	return func(yield func(*store.Entry) bool) {
		t.AscendGreaterOrEqual(&store.Entry{Key: max(prefix, after)}, func(e *store.Entry) bool {
			if !strings.HasPrefix(e.Key, prefix) {
				return false
			}
			if e.Key == after {
				return true
			}
			return yield(e)
		})
	}
}

// Draft forks the state. Only one goroutine at a time may fork states of one replica or use its drafts.
func (s *State) Draft(l Limits) *Draft { return newDraft(s, l) }
