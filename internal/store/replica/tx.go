package replica

import (
	"iter"
	"strconv"
	"strings"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
)

// Reserved is the key that engines keep for themselves; no transaction may put it.
const Reserved = "/commit"

// maxKey bounds a key: the longest that the layout of objects makes is below 300 bytes.
const maxKey = 1024

// Tx is a store.Tx over a state or a draft. The zero Tx is of no use.
type Tx struct {
	begun    *tree // what the transaction found
	tree     *tree // the same with its own puts
	rev      int64
	limits   Limits
	writable bool
	owned    bool // tree is this transaction's own fork
	puts     map[string]*store.Entry
	size     int
	err      error
	pivot    store.Entry // saves an allocation per Get
}

var _ store.Tx = (*Tx)(nil)

// Get returns the entry, or nil.
func (t *Tx) Get(key string) *store.Entry {
	t.pivot.Key = key
	e, _ := t.tree.Get(&t.pivot)
	return e
}

// Scan yields the entries as they are when the loop starts: what the loop's body puts is not seen by it.
func (t *Tx) Scan(prefix, after string) iter.Seq[*store.Entry] {
	return func(yield func(*store.Entry) bool) {
		now := t.tree
		if t.owned { // a tree must not be changed under an iteration
			t.tree = now.Clone()
		}
		scan(now, prefix, after)(yield)
	}
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
	t.own()
	if was, ok := t.puts[e.Key]; ok {
		t.size -= t.weight(e.Key, was)
	}
	t.puts[e.Key] = e
	t.size += t.weight(e.Key, e)
	t.tree.ReplaceOrInsert(e)
	t.checkSize()
}

// Delete removes the key, if it is there.
func (t *Tx) Delete(key string) {
	if !t.may(key) {
		return
	}
	was := t.Get(key)
	if was == nil {
		return
	}
	t.own()
	t.tree.Delete(was)
	if put, ok := t.puts[key]; ok {
		t.size -= t.weight(key, put)
	}
	if !t.begun.Has(was) {
		delete(t.puts, key)
		return
	}
	t.puts[key] = nil
	t.size += t.weight(key, nil)
	t.checkSize()
}

// Err is what was wrong with the puts so far.
func (t *Tx) Err() error { return t.err }

// Changed reports whether there is anything to commit.
func (t *Tx) Changed() bool { return len(t.puts) > 0 }

func (t *Tx) may(key string) bool {
	switch {
	case !t.writable:
		t.fail(fault.New(fault.Internal, "a view put %s; only an update may", clip(key)))
	case len(key) < 2 || key[0] != '/' || len(key) > maxKey:
		t.fail(fault.New(fault.Internal, "%s is no key: one starts with / and has 2 to %d bytes", clip(key), maxKey))
	case key == Reserved:
		t.fail(fault.New(fault.Internal, "%s is the engine's own key", key))
	default:
		return true
	}
	return false
}

func (t *Tx) own() {
	if t.owned {
		return
	}
	t.owned = true
	t.puts = map[string]*store.Entry{}
	t.tree = t.tree.Clone()
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
