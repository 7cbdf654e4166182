// Package store is the contract of Verbena's system of record: an ordered map of keys with
// serializable transactions and a watch that can be resumed by revision.
//
// Engines are store/mem (tests, demo without a disk) and store/etcd (embedded or external); both pass
// storetest. Rules take a Tx; only the server owns a DB, so quota, placement, addresses and VF claims
// commit together or not at all.
package store

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"sync/atomic"

	"github.com/verbena-cloud/verbena/internal/fault"
)

// Objects is the prefix of the keys whose every state people may hold the revision of (an ETag). Two Updates
// that change the same one are never committed at one revision. Other keys are ledgers: any number of
// Updates may change one in a commit, and only the last state gets the revision.
const Objects = "/o/"

// DB is an ordered map of keys with revisions that only grow.
type DB interface {
	// View runs f on one consistent snapshot. It never blocks writers.
	View(ctx context.Context, f func(Tx) error) error
	// Update runs f and commits what it put, or nothing, and returns the revision of the commit (0 if f
	// put nothing). f may run several times (another commit touched what it read): it must have no other
	// effect than on tx. When Update returns nil the commit is durable. A fault of kind Deadline or
	// Unavailable after the commit was sent means "unknown": the engine resolves it before it returns
	// wherever it can. f runs on the caller's goroutine while no other f does, so it must not block nor
	// call Update.
	Update(ctx context.Context, f func(Tx) error) (int64, error)
	// Watch yields every commit after revision `after` that touches keys with prefix, in order, until
	// ctx ends. It yields a Gone fault once and ends when `after` was compacted away or the consumer fell
	// too far behind. after = 0 starts at now.
	Watch(ctx context.Context, prefix string, after int64) iter.Seq2[Commit, error]
	// Health says what the operator must know: revision, size, alarms.
	Health(ctx context.Context) (Health, error)
	// Close stops the engine. It is safe to call twice.
	Close() error
}

// Health is the engine's state.
type Health struct {
	Engine    string // "memory", "etcd-embedded", "etcd"
	Revision  int64
	Size      int64 // bytes of the backend
	Limit     int64 // bytes at which the backend refuses writes; 0 = none
	NoSpace   bool  // the backend refuses writes until space is freed
	Members   int
	Compacted int64 // oldest revision that a watch can start after
}

// Commit is one transaction's changes, in key order.
type Commit struct {
	Rev     int64
	Changes []Change
}

// Change is one key of a commit. Entry is nil when the key was deleted; Prev is nil when it was new.
type Change struct {
	Key   string
	Entry *Entry
	Prev  *Entry
}

// Entry is a key as committed. It is immutable and shared by all readers.
type Entry struct {
	Key     string
	Value   []byte
	Created int64 // revision of the commit that made the key
	Rev     int64 // revision of the last commit that changed it; 0 inside the transaction that puts it

	decoded atomic.Pointer[any]
}

// Tx reads a consistent state, with the transaction's own puts on top, and collects puts.
// It must not be used after the function it was given to has returned.
type Tx interface {
	// Get returns the entry, or nil.
	Get(key string) *Entry
	// Scan yields the entries whose key has prefix and is greater than after, in key order, as they are
	// when the loop starts: the loop's body may put and delete.
	Scan(prefix, after string) iter.Seq[*Entry]
	// Put replaces the key's entry by one made with NewEntry. Keys start with '/'. It is an error of the
	// program to put in a View.
	Put(e *Entry)
	// Delete removes the key, if it is there.
	Delete(key string)
	// Rev is the revision of the state that the transaction reads.
	Rev() int64
}

// NewEntry returns an entry for Put. decoded, if not nil, must be a *T whose JSON is value; the caller
// hands it over and never changes it again.
func NewEntry(key string, value []byte, decoded any) *Entry {
	e := &Entry{Key: key, Value: value}
	if decoded != nil {
		e.decoded.Store(&decoded)
	}
	return e
}

// At returns a copy of the entry with its revisions set. For engines.
func (e *Entry) At(created, rev int64) *Entry {
	c := &Entry{Key: e.Key, Value: e.Value, Created: created, Rev: rev}
	c.decoded.Store(e.decoded.Load())
	return c
}

// Peek returns the decoded value of an entry, shared by all who peek: it must not be changed, nor
// anything it points at. It is what scans over many entries use; Get copies out.
func Peek[T any](e *Entry) (*T, error) {
	if p := e.decoded.Load(); p != nil {
		if v, ok := (*p).(*T); ok {
			return v, nil
		}
	}
	v := new(T)
	if err := json.Unmarshal(e.Value, v); err != nil {
		return nil, fmt.Errorf("decode %s: %w", e.Key, err)
	}
	var boxed any = v
	e.decoded.Store(&boxed)
	return v, nil
}

// Get returns a copy of the value at key that the caller may change, or a NotFound fault.
func Get[T any](tx Tx, key string) (*T, error) {
	e := tx.Get(key)
	if e == nil {
		return nil, fault.New(fault.NotFound, "%s does not exist", key)
	}
	v := new(T)
	if err := json.Unmarshal(e.Value, v); err != nil {
		return nil, fmt.Errorf("decode %s: %w", key, err)
	}
	return v, nil
}

// Put stores v at key. v is handed over: the caller must not change it, nor anything it points at, again.
func Put[T any](tx Tx, key string, v *T) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", key, err)
	}
	tx.Put(NewEntry(key, b, v))
	return nil
}
