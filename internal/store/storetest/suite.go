package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
)

// Options ask for a store with small bounds. Zero means the engine's default.
type Options struct {
	History int // changes kept for watches
	Queue   int // commits that may wait for one watcher
}

// Engine is what the suite tests.
type Engine struct {
	// Open returns an empty store. The test closes it.
	Open func(t *testing.T, o Options) store.DB
	// Pair returns two handles on one empty store, as two servers have. Nil if the engine has one handle only.
	Pair func(t *testing.T) (a, b store.DB)
	// Leaks are goroutines that the engine's libraries leave behind for good.
	Leaks []goleak.Option
}

// limit is how long any single wait of the suite may take. Only a broken engine gets there.
const limit = time.Minute

// Run runs the suite.
func Run(t *testing.T, e Engine) {
	t.Helper()
	leaks := append([]goleak.Option{goleak.IgnoreCurrent()}, e.Leaks...)
	run(t, "shared", func(t *testing.T) {
		db := open(t, e, Options{})
		for _, c := range shared() {
			run(t, c.name, func(t *testing.T) { c.test(t, db, "/t/"+c.name+"/") })
		}
	})
	for _, c := range alone() {
		run(t, c.name, func(t *testing.T) { c.test(t, e) })
	}
	if e.Pair != nil {
		for _, c := range paired() {
			run(t, c.name, func(t *testing.T) {
				a, b := e.Pair(t)
				t.Cleanup(func() { closeDB(t, a); closeDB(t, b) })
				c.test(t, a, b)
			})
		}
	}
	if err := goleak.Find(leaks...); err != nil {
		t.Errorf("after Close: %v", err)
	}
}

func run(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, f)
}

// sharedCase runs on one store together with the others, below its own prefix.
type sharedCase struct {
	name string
	test func(t *testing.T, db store.DB, at string)
}

func shared() []sharedCase {
	return []sharedCase{
		{"get-of-nothing", testNothing},
		{"put-get", testPutGet},
		{"typed-values", testTyped},
		{"scan", testScan},
		{"delete", testDelete},
		{"no-change-no-commit", testNoChange},
		{"read-own-writes", testOwnWrites},
		{"scan-while-putting", testScanWhilePutting},
		{"error-aborts", testErrorAborts},
		{"panic-aborts", testPanicAborts},
		{"view-may-not-put", testViewMayNotPut},
		{"bad-keys", testBadKeys},
		{"too-large", testTooLarge},
		{"large-values", testLargeValues},
		{"snapshot-isolation", testSnapshot},
		{"view-never-blocks-writers", testViewNeverBlocks},
		{"canceled", testCanceled},
		{"concurrent-counter", testCounter},
		{"object-states-have-own-revisions", testObjectRevisions},
		{"no-phantom", testPhantom},
		{"no-write-skew", testWriteSkew},
		{"created-of-recreated-key", testRecreated},
		{"watch-order", testWatchOrder},
		{"watch-resumes", testWatchResumes},
		{"watch-from-now", testWatchFromNow},
		{"watch-prefix", testWatchPrefix},
		{"watch-ends-with-context", testWatchEnds},
		{"watch-never-splits-a-commit", testWatchWhole},
		{"watch-of-the-future-is-gone", testWatchFuture},
		{"thousand-watchers", testThousandWatchers},
		{"health", testHealth},
		{"model", testModel},
	}
}

// aloneCase opens stores of its own.
type aloneCase struct {
	name string
	test func(t *testing.T, e Engine)
}

func alone() []aloneCase {
	return []aloneCase{
		{"compacted-watch-is-gone", testCompacted},
		{"slow-watch-is-gone", testSlow},
		{"close-twice", testCloseTwice},
	}
}

// pairedCase runs on two handles of one store.
type pairedCase struct {
	name string
	test func(t *testing.T, a, b store.DB)
}

func paired() []pairedCase {
	return []pairedCase{
		{"two-servers-count", testPairCounter},
		{"two-servers-see-each-other", testPairVisible},
		{"two-servers-no-phantom", testPairPhantom},
		{"two-servers-watch-alike", testPairWatch},
	}
}

func open(t *testing.T, e Engine, o Options) store.DB {
	t.Helper()
	db := e.Open(t, o)
	t.Cleanup(func() { closeDB(t, db) })
	return db
}

func closeDB(t *testing.T, db store.DB) {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// update commits f and returns the revision.
func update(t *testing.T, db store.DB, f func(tx store.Tx)) int64 {
	t.Helper()
	rev, err := db.Update(deadline(t), func(tx store.Tx) error { f(tx); return nil })
	if err != nil {
		t.Fatalf("Update: %v", err)
	}
	return rev
}

func put(t *testing.T, db store.DB, key, value string) int64 {
	t.Helper()
	rev := update(t, db, func(tx store.Tx) { tx.Put(entry(key, value)) })
	if rev <= 0 {
		t.Fatalf("Update that put %s returned revision %d", key, rev)
	}
	return rev
}

func entry(key, value string) *store.Entry { return store.NewEntry(key, []byte(value), nil) }

func view(t *testing.T, db store.DB, f func(tx store.Tx)) {
	t.Helper()
	if err := db.View(deadline(t), func(tx store.Tx) error { f(tx); return nil }); err != nil {
		t.Fatalf("View: %v", err)
	}
}

func read(tx store.Tx, key string) string {
	e := tx.Get(key)
	if e == nil {
		return "<none>"
	}
	return string(e.Value)
}

func wantValue(t *testing.T, db store.DB, key, want string) {
	t.Helper()
	view(t, db, func(tx store.Tx) {
		if got := read(tx, key); got != want {
			t.Errorf("%s = %q, want %q", key, got, want)
		}
	})
}

func wantKind(t *testing.T, err error, kind fault.Kind) {
	t.Helper()
	if !fault.Is(err, kind) {
		t.Fatalf("error is %v (%s), want kind %s", err, fault.KindOf(err), kind)
	}
}

// count adds one to the number at key and returns it.
func count(tx store.Tx, key string) int {
	n := number(tx, key) + 1
	b, err := json.Marshal(n)
	if err != nil {
		return -1
	}
	tx.Put(store.NewEntry(key, b, nil))
	return n
}

func number(tx store.Tx, key string) int {
	e := tx.Get(key)
	if e == nil {
		return 0
	}
	var n int
	if err := json.Unmarshal(e.Value, &n); err != nil {
		return -1
	}
	return n
}

// stream pulls a Watch one by one.
type stream struct {
	t    *testing.T
	next func() (store.Commit, error, bool)
}

func watch(t *testing.T, db store.DB, prefix string, after int64) stream {
	t.Helper()
	next, stop := iter.Pull2(db.Watch(deadline(t), prefix, after))
	t.Cleanup(stop)
	return stream{t, next}
}

func (s stream) commit() store.Commit {
	s.t.Helper()
	c, err, ok := s.next()
	if err != nil || !ok {
		s.t.Fatalf("the watch ended early: %v, %v", err, ok)
	}
	return c
}

// end pulls until the watch ends and returns what it ended with.
func (s stream) end() error {
	s.t.Helper()
	for {
		_, err, ok := s.next()
		if !ok {
			s.t.Fatal("the watch ended without an error")
		}
		if err != nil {
			if _, _, more := s.next(); more {
				s.t.Error("the watch went on after its error")
			}
			return err
		}
	}
}

// together runs f in n goroutines and waits for them.
func together(t *testing.T, n int, f func(i int) error) {
	t.Helper()
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- f(i) }()
	}
	var all []error
	for range n {
		all = append(all, <-errs)
	}
	if err := errors.Join(all...); err != nil {
		t.Fatal(err)
	}
}
