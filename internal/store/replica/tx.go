package replica

import (
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
)

// Reserved is the key that engines keep for themselves; no transaction may put it.
const Reserved = "/commit"

// Records is the prefix of keys that engines keep for themselves.
const Records = "/record/"

// maxKey bounds a key: the longest that the layout of objects makes is below 300 bytes.
const maxKey = 1024

// Tx is a store.Tx over a state or a draft. The zero Tx is of no use.
type Tx struct {
	tree   *tree  // of the state below
	draft  *Draft // nil in a view
	rev    int64
	limits Limits
	puts   map[string]*store.Entry // nil: deleted
	size   int
	err    error
	pivot  store.Entry // saves an allocation per Get
}

var _ store.Tx = (*Tx)(nil)

// Get returns the entry, or nil.
func (t *Tx) Get(key string) *store.Entry {
	if t.draft == nil {
		t.pivot.Key = key
		e, _ := t.tree.Get(&t.pivot)
		return e
	}
	if e, ok := t.puts[key]; ok {
		return e
	}
	return t.draft.get(key)
}

// Scan yields the entries as they are when the loop starts: what the loop's body puts is not seen by it.
func (t *Tx) Scan(prefix, after string) iter.Seq[*store.Entry] {
	return func(yield func(*store.Entry) bool) {
		over := t.over(prefix, after)
		if len(over) == 0 {
			scan(t.tree, prefix, after)(yield)
			return
		}
		for e := range scan(t.tree, prefix, after) {
			for len(over) > 0 && over[0].key < e.Key {
				if p := over[0].entry; p != nil && !yield(p) {
					return
				}
				over = over[1:]
			}
			if len(over) > 0 && over[0].key == e.Key {
				e, over = over[0].entry, over[1:]
			}
			if e != nil && !yield(e) {
				return
			}
		}
		for _, p := range over {
			if p.entry != nil && !yield(p.entry) {
				return
			}
		}
	}
}

// over returns what lies over the tree in a range, in key order.
func (t *Tx) over(prefix, after string) []put {
	if t.draft == nil {
		return nil
	}
	var own []put
	for key, e := range t.puts {
		if strings.HasPrefix(key, prefix) && key > after {
			own = append(own, put{key, e})
		}
	}
	slices.SortFunc(own, func(a, b put) int { return strings.Compare(a.key, b.key) })
	var all []put
	t.draft.overlay.AscendGreaterOrEqual(put{key: max(prefix, after)}, func(p put) bool {
		if !strings.HasPrefix(p.key, prefix) {
			return false
		}
		for len(own) > 0 && own[0].key < p.key {
			all, own = append(all, own[0]), own[1:]
		}
		if len(own) > 0 && own[0].key == p.key {
			p, own = own[0], own[1:]
		}
		if p.key > after {
			all = append(all, p)
		}
		return true
	})
	return append(all, own...)
}

// Rev is the revision of the state that the transaction reads.
func (t *Tx) Rev() int64 { return t.rev }

// Put replaces the key's entry. What is wrong with it comes out of Err, and so of Update.
func (t *Tx) Put(e *store.Entry) {
	if !t.may(e.Key) {
		return
	}
	if len(e.Value) > t.limits.Value {
		t.fail(tooLarge("the value of "+clip(e.Key)+", in bytes,", len(e.Value), t.limits.Value))
		return
	}
	t.set(e.Key, e)
	t.checkSize()
}

// Delete removes the key, if it is there.
func (t *Tx) Delete(key string) {
	if !t.may(key) || t.Get(key) == nil {
		return
	}
	if t.draft.get(key) == nil { // made by this transaction
		t.size -= t.weight(key, t.puts[key])
		delete(t.puts, key)
		return
	}
	t.set(key, nil)
	t.checkSize()
}

// set notes what becomes of a key.
func (t *Tx) set(key string, e *store.Entry) {
	if was, ok := t.puts[key]; ok {
		t.size -= t.weight(key, was)
	}
	if t.puts == nil {
		t.puts = map[string]*store.Entry{}
	}
	t.puts[key] = e
	t.size += t.weight(key, e)
}

// Err is what was wrong with the puts so far.
func (t *Tx) Err() error { return t.err }

// Changed reports whether there is anything to commit.
func (t *Tx) Changed() bool { return len(t.puts) > 0 }

func (t *Tx) may(key string) bool {
	switch {
	case t.draft == nil:
		t.fail(fault.New(fault.Internal, "a view put %s; only an update may", clip(key)))
	case len(key) < 2 || key[0] != '/' || len(key) > maxKey:
		t.fail(fault.New(fault.Internal, "%s is no key: one starts with / and has 2 to %d bytes", clip(key), maxKey))
	case key == Reserved || strings.HasPrefix(key, Records):
		t.fail(fault.New(fault.Internal, "%s is the engine's own key", key))
	default:
		return true
	}
	return false
}

func (t *Tx) weight(key string, e *store.Entry) int {
	n := len(key) + t.limits.Overhead
	if e != nil {
		n += len(e.Value)
	}
	return n
}

func (t *Tx) checkSize() {
	switch {
	case t.size > t.limits.Bytes:
		t.fail(tooLarge("the size of this change, in bytes,", t.size, t.limits.Bytes))
	case len(t.puts) > t.limits.Ops:
		t.fail(tooLarge("the number of keys of this change", len(t.puts), t.limits.Ops))
	}
}

// fail keeps the first fault.
func (t *Tx) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}

// clip shortens a key for a message.
func clip(key string) string {
	if len(key) > 80 {
		key = strings.ToValidUTF8(key[:80], "") + "…"
	}
	return strconv.Quote(key)
}
