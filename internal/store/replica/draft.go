package replica

import (
	"slices"
	"strings"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
)

// Limits bound one commit, so that the engine behind never refuses what a function was told is fine.
type Limits struct {
	Value    int // bytes of one value
	Bytes    int // bytes of one commit: keys, values and Overhead per key
	Ops      int // keys that one commit changes
	Overhead int // bytes that the engine adds per key
}

// DefaultLimits are those of an embedded engine: etcd takes requests of 1.5 MiB, and what Bytes leaves of
// that is headroom for its own framing.
func DefaultLimits() Limits {
	return Limits{Value: 1 << 20, Bytes: 5 << 18, Ops: 8000, Overhead: 64}
}

// Draft collects the transactions of one commit. Each sees what the ones before it put.
type Draft struct {
	base   *State
	tree   *tree
	rev    int64 // that the commit gets if nothing else commits before it
	limits Limits
	puts   map[string]*store.Entry // nil: deleted
	size   int
}

// Base is the state that the draft was forked from.
func (d *Draft) Base() *State { return d.base }

// Rev is the revision that the commit will have if no other comes before it.
func (d *Draft) Rev() int64 { return d.rev }

// Empty reports whether nothing was put.
func (d *Draft) Empty() bool { return len(d.puts) == 0 }

// Begin returns a transaction on the draft. It leaves the draft as it is until Add.
func (d *Draft) Begin() *Tx {
	t := &Tx{begun: d.tree, tree: d.tree, rev: d.base.rev, limits: d.limits, writable: true}
	if len(d.puts) > 0 {
		t.rev = d.rev
	}
	return t
}

// Fits reports whether the transaction may share the draft's commit. It may not if the commit would grow
// over its limits; if it changes an object (store.Objects) that the commit changes already, because two
// states of an object must not have one revision; or if it makes a key anew that the commit deletes,
// because the key would keep the revision of its first creation.
func (d *Draft) Fits(t *Tx) bool {
	if d.Empty() {
		return true
	}
	if len(d.puts)+len(t.puts) > d.limits.Ops || d.size+t.size > d.limits.Bytes {
		return false
	}
	for key, e := range t.puts {
		was, ok := d.puts[key]
		if !ok {
			continue
		}
		if was == nil && e != nil || strings.HasPrefix(key, store.Objects) {
			return false
		}
	}
	return true
}

// Add takes the transaction's changes into the draft. The transaction must have begun on the draft as it
// is now.
func (d *Draft) Add(t *Tx) {
	if len(t.puts) == 0 {
		return
	}
	d.tree = t.tree
	d.size += t.size
	for key, e := range t.puts {
		if e == nil {
			d.puts[key] = nil
			continue
		}
		created := d.rev
		if was := d.base.Get(key); was != nil {
			created = was.Created
		}
		e = e.At(created, d.rev)
		d.puts[key] = e
		d.tree.ReplaceOrInsert(e)
	}
}

// Seal ends the draft and returns the state that it makes and the commit that leads there. A key that was
// made and deleted within the draft is no change.
func (d *Draft) Seal() (*State, store.Commit) {
	keys := make([]string, 0, len(d.puts))
	for key := range d.puts {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	c := store.Commit{Rev: d.rev, Changes: make([]store.Change, 0, len(keys))}
	for _, key := range keys {
		e, was := d.puts[key], d.base.Get(key)
		if e != nil || was != nil {
			c.Changes = append(c.Changes, store.Change{Key: key, Entry: e, Prev: was})
		}
	}
	return &State{tree: d.tree, rev: d.rev}, c
}

// next returns the state after the changes, whose entries carry their revisions, and the commit with Prev
// filled in.
func (s *State) next(rev int64, changes []store.Change) (*State, store.Commit) {
	t := s.tree.Clone()
	out := make([]store.Change, 0, len(changes))
	for _, ch := range changes {
		if ch.Entry != nil {
			ch.Prev, _ = t.ReplaceOrInsert(ch.Entry)
		} else if ch.Prev, _ = t.Delete(&store.Entry{Key: ch.Key}); ch.Prev == nil {
			continue
		}
		out = append(out, ch)
	}
	slices.SortFunc(out, func(a, b store.Change) int { return strings.Compare(a.Key, b.Key) })
	return &State{tree: t, rev: rev}, store.Commit{Rev: rev, Changes: out}
}

func tooLarge(what string, n, limit int) error {
	return fault.New(fault.TooLarge, "%s is %d; at most %d can be stored at once", what, n, limit)
}
