package storetest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
)

const (
	writers = 16
	rounds  = 25
)

// counting lets every writer add to one number on its handle; a lost update or one applied twice shows in
// the sum.
func counting(t *testing.T, dbs []store.DB, key string) []int64 {
	t.Helper()
	var mu sync.Mutex
	var revs []int64
	together(t, writers, func(i int) error {
		for range rounds {
			rev, err := dbs[i%len(dbs)].Update(deadline(t), func(tx store.Tx) error { count(tx, key); return nil })
			if err != nil {
				return err
			}
			mu.Lock()
			revs = append(revs, rev)
			mu.Unlock()
		}
		return nil
	})
	return revs
}

// wantSum checks that every count of every writer is there.
func wantSum(t *testing.T, db store.DB, key string) {
	t.Helper()
	// An empty update that commits sees everything that was committed anywhere before it.
	_, err := db.Update(deadline(t), func(tx store.Tx) error {
		if got, want := number(tx, key), writers*rounds; got != want {
			return fmt.Errorf("%s = %d, want %d", key, got, want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func testCounter(t *testing.T, db store.DB, at string) {
	counting(t, []store.DB{db}, at+"n")
	wantSum(t, db, at+"n")
}

func testObjectRevisions(t *testing.T, db store.DB, at string) {
	key := store.Objects + "T" + at + "n"
	seen := map[int64]bool{}
	for _, rev := range counting(t, []store.DB{db}, key) {
		if seen[rev] {
			t.Fatalf("two states of one object have revision %d", rev)
		}
		seen[rev] = true
	}
	wantSum(t, db, key)
}

// seats lets many claim one of few places; each counts those taken by a scan.
func seats(t *testing.T, dbs []store.DB, at string) {
	t.Helper()
	const free = 10
	var mu sync.Mutex
	won := 0
	together(t, 4*free, func(i int) error {
		_, err := dbs[i%len(dbs)].Update(deadline(t), func(tx store.Tx) error {
			n := 0
			for range tx.Scan(at, "") {
				n++
			}
			if n >= free {
				return fault.New(fault.Quota, "all %d are taken", free)
			}
			tx.Put(entry(fmt.Sprintf("%s%03d", at, i), "taken"))
			return nil
		})
		if fault.Is(err, fault.Quota) {
			return nil
		}
		mu.Lock()
		won++
		mu.Unlock()
		return err
	})
	if won != free {
		t.Errorf("%d won, there were %d places", won, free)
	}
}

func testPhantom(t *testing.T, db store.DB, at string) { seats(t, []store.DB{db}, at) }

// testWriteSkew: two who may each leave only while the other stays; snapshot isolation alone lets both go.
func testWriteSkew(t *testing.T, db store.DB, at string) {
	for i := range 20 {
		pair := []string{fmt.Sprintf("%s%d/a", at, i), fmt.Sprintf("%s%d/b", at, i)}
		update(t, db, func(tx store.Tx) { tx.Put(entry(pair[0], "on")); tx.Put(entry(pair[1], "on")) })
		together(t, 2, func(me int) error {
			_, err := db.Update(deadline(t), func(tx store.Tx) error {
				if read(tx, pair[1-me]) == "on" {
					tx.Put(entry(pair[me], "off"))
				}
				return nil
			})
			return err
		})
		view(t, db, func(tx store.Tx) {
			if a, b := read(tx, pair[0]), read(tx, pair[1]); a == b {
				t.Errorf("round %d: both are %s", i, a)
			}
		})
	}
}

func testPairCounter(t *testing.T, a, b store.DB) {
	counting(t, []store.DB{a, b}, "/n")
	wantSum(t, a, "/n")
	wantSum(t, b, "/n")
}

func testPairPhantom(t *testing.T, a, b store.DB) { seats(t, []store.DB{a, b}, "/seat/") }

func testPairVisible(t *testing.T, a, b store.DB) {
	rev := put(t, a, "/a", "1")
	// b decides on what a committed, even if b's copy has not heard of it yet.
	wantErr := fault.New(fault.Conflict, "taken")
	_, err := b.Update(deadline(t), func(tx store.Tx) error {
		if tx.Get("/a") != nil {
			return wantErr
		}
		return nil
	})
	wantKind(t, err, fault.Conflict)
	view(t, b, func(tx store.Tx) {
		if e := tx.Get("/a"); e == nil || e.Rev != rev || e.Created != rev {
			t.Errorf("b sees %+v, a committed at %d", e, rev)
		}
	})
	second := put(t, b, "/a", "2")
	if second <= rev {
		t.Errorf("b's revision %d is not after a's %d", second, rev)
	}
	rev = put(t, a, "/b", "1")
	if rev <= second {
		t.Errorf("a's revision %d is not after b's %d", rev, second)
	}
	wantValue(t, a, "/a", "2")
}

func testPairWatch(t *testing.T, a, b store.DB) {
	first := put(t, a, "/w/0", "0")
	sa, sb := watch(t, a, "/w/", first), watch(t, b, "/w/", first)
	together(t, 8, func(i int) error {
		db := a
		if i%2 == 1 {
			db = b
		}
		for j := range 10 {
			if _, err := db.Update(deadline(t), func(tx store.Tx) error {
				tx.Put(entry(fmt.Sprintf("/w/%d-%d", i, j), "x"))
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	})
	for n := 0; n < 80; {
		ca, cb := sa.commit(), sb.commit()
		if ca.Rev != cb.Rev || len(ca.Changes) != len(cb.Changes) {
			t.Fatalf("a sees %d changes at %d, b %d at %d", len(ca.Changes), ca.Rev, len(cb.Changes), cb.Rev)
		}
		for i := range ca.Changes {
			if ca.Changes[i].Key != cb.Changes[i].Key || ca.Changes[i].Entry.Created != cb.Changes[i].Entry.Created {
				t.Fatalf("at %d a sees %s, b %s", ca.Rev, ca.Changes[i].Key, cb.Changes[i].Key)
			}
		}
		n += len(ca.Changes)
	}
}
