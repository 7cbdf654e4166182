package replica

import (
	"slices"
	"strings"

	"github.com/google/btree"

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

// Draft collects the transactions of one commit. Each sees what the ones before it put. What was put is
// kept apart from the tree of the state below until the draft is sealed: most of it is looked up by key,
// and one walk through a large tree for each key and commit is enough.
type Draft struct {
	base    *State
	index   map[string]*store.Entry // of the replica's newest state; nil: look into the base
	below   *Draft                  // sealed but not published: lies between the index and this draft
	next    *State                  // once sealed
	rev     int64                   // that the commit gets if nothing else commits before it
	limits  Limits
	puts    map[string]*store.Entry // nil: deleted
	overlay *btree.BTreeG[put]      // the same in order
	size    int
}

// put is what became of a key: nil, if it was deleted.
type put struct {
	key   string
	entry *store.Entry
}

// overlayDegree suits the few hundred keys of a commit.
const overlayDegree = 8

func newDraft(base *State, l Limits) *Draft {
	return &Draft{
		base: base, rev: base.rev + 1, limits: l, puts: map[string]*store.Entry{},
		overlay: btree.NewG(overlayDegree, func(a, b put) bool { return a.key < b.key }),
	}
}

// Base is the state that the draft was forked from.
func (d *Draft) Base() *State { return d.base }

// Rev is the revision that the commit will have if no other comes before it.
func (d *Draft) Rev() int64 { return d.rev }

// Empty reports whether nothing was put.
func (d *Draft) Empty() bool { return len(d.puts) == 0 }

// get returns the entry as the draft has it.
func (d *Draft) get(key string) *store.Entry {
	if e, ok := d.puts[key]; ok {
		return e
	}
	return d.before(key)
}

// before returns the entry as it is in the base.
func (d *Draft) before(key string) *store.Entry {
	switch {
	case d.below != nil:
		return d.below.get(key)
	case d.index != nil:
		return d.index[key]
	default:
		return d.base.Get(key)
	}
}

// Begin returns a transaction on the draft. It leaves the draft as it is until Add.
func (d *Draft) Begin() *Tx {
	t := &Tx{draft: d, tree: d.base.tree, rev: d.base.rev, limits: d.limits}
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
	d.size += t.size
	for key, e := range t.puts {
		if e != nil {
			created := d.rev
			if was := d.before(key); was != nil {
				created = was.Created
			}
			e = e.At(created, d.rev)
		}
		d.puts[key] = e
		d.overlay.ReplaceOrInsert(put{key, e})
	}
}

// Seal ends the draft and returns the state that it makes and the commit that leads there. A key that was
// made and deleted within the draft is no change. The base must be the newest state.
func (d *Draft) Seal() (*State, store.Commit) {
	d.below = nil // published meanwhile
	c := store.Commit{Rev: d.rev, Changes: make([]store.Change, 0, len(d.puts))}
	tree := d.base.tree.Clone()
	d.overlay.Ascend(func(p put) bool {
		was := d.before(p.key)
		switch {
		case p.entry != nil:
			tree.ReplaceOrInsert(p.entry)
		case was != nil:
			tree.Delete(was)
		default:
			return true
		}
		c.Changes = append(c.Changes, store.Change{Key: p.key, Entry: p.entry, Prev: was})
		return true
	})
	d.next = &State{tree: tree, rev: d.rev}
	return d.next, c
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
