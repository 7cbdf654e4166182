package storetest

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
)

func testWatchOrder(t *testing.T, db store.DB, at string) {
	start := put(t, db, at+"0", "0")
	s := watch(t, db, at, start)
	var revs []int64
	for i := range 20 {
		revs = append(revs, put(t, db, at+"a", strconv.Itoa(i)))
	}
	var prev *store.Entry
	for i, rev := range revs {
		c := s.commit()
		if c.Rev != rev || len(c.Changes) != 1 {
			t.Fatalf("commit %d is %+v, want revision %d", i, c, rev)
		}
		ch := c.Changes[0]
		if ch.Key != at+"a" || string(ch.Entry.Value) != strconv.Itoa(i) || ch.Entry.Rev != rev || ch.Entry.Created != revs[0] {
			t.Fatalf("change %d is %+v", i, ch.Entry)
		}
		if (prev == nil) != (ch.Prev == nil) || prev != nil && (prev.Rev != ch.Prev.Rev || string(prev.Value) != string(ch.Prev.Value)) {
			t.Fatalf("change %d came after %+v, its Prev is %+v", i, prev, ch.Prev)
		}
		prev = ch.Entry
	}
	update(t, db, func(tx store.Tx) { tx.Delete(at + "a") })
	if ch := s.commit().Changes[0]; ch.Entry != nil || ch.Prev == nil || ch.Prev.Rev != prev.Rev {
		t.Errorf("the delete is seen as %+v", ch)
	}
}

func testWatchResumes(t *testing.T, db store.DB, at string) {
	var revs []int64
	for i := range 10 {
		revs = append(revs, put(t, db, at+strconv.Itoa(i), "x"))
	}
	for i, from := range revs[:9] {
		s := watch(t, db, at, from)
		for _, want := range revs[i+1:] {
			if c := s.commit(); c.Rev != want {
				t.Fatalf("watch after %d yields %d, want %d", from, c.Rev, want)
			}
		}
	}
	s := watch(t, db, at, revs[9])
	last := put(t, db, at+"x", "x")
	if c := s.commit(); c.Rev != last {
		t.Errorf("watch after the newest yields %d, want %d", c.Rev, last)
	}
}

func testWatchFromNow(t *testing.T, db store.DB, at string) {
	put(t, db, at+"a", "before")
	s := watch(t, db, at, 0) // "now" is the call, not the first look
	want := put(t, db, at+"a", "after")
	if c := s.commit(); c.Rev != want {
		t.Errorf("yields %d, want %d", c.Rev, want)
	}
}

func testWatchPrefix(t *testing.T, db store.DB, at string) {
	all, one, exact := watch(t, db, at, 0), watch(t, db, at+"b/", 0), watch(t, db, at+"b/1", 0)
	put(t, db, at+"a", "1")
	rev := update(t, db, func(tx store.Tx) {
		for _, k := range []string{"b/2", "c", "b/1", "b"} {
			tx.Put(entry(at+k, "1"))
		}
	})
	if c := all.commit(); len(c.Changes) != 1 {
		t.Errorf("first commit: %+v", c)
	}
	if c := all.commit(); c.Rev != rev || len(c.Changes) != 4 || !sorted(c) {
		t.Errorf("all: %+v", c)
	}
	if c := one.commit(); c.Rev != rev || len(c.Changes) != 2 || c.Changes[0].Key != at+"b/1" || c.Changes[1].Key != at+"b/2" {
		t.Errorf("prefix b/: %+v", c)
	}
	if c := exact.commit(); c.Rev != rev || len(c.Changes) != 1 {
		t.Errorf("prefix b/1: %+v", c)
	}
}

func testWatchEnds(t *testing.T, db store.DB, at string) {
	rev := put(t, db, at+"a", "1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	for c, err := range db.Watch(ctx, at, rev-1) {
		if err != nil {
			t.Errorf("the watch ended with %v, want no error", err)
		}
		n += len(c.Changes)
		cancel()
	}
	if n != 1 {
		t.Errorf("%d changes, want 1", n)
	}
}

func testWatchWhole(t *testing.T, db store.DB, at string) {
	s := watch(t, db, at, 0)
	together(t, writers, func(i int) error {
		for j := range 10 {
			_, err := db.Update(deadline(t), func(tx store.Tx) error {
				v := strconv.Itoa(j)
				tx.Put(entry(fmt.Sprintf("%s%02d/a", at, i), v))
				tx.Put(entry(fmt.Sprintf("%s%02d/z", at, i), v))
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	last := put(t, db, at+"end", "")
	var rev int64
	for rev < last {
		c := s.commit()
		if c.Rev <= rev || !sorted(c) {
			t.Fatalf("commit %d after %d, sorted: %v", c.Rev, rev, sorted(c))
		}
		rev = c.Rev
		half := map[string]string{}
		for _, ch := range c.Changes {
			if ch.Key == at+"end" {
				continue
			}
			who := ch.Key[:len(ch.Key)-1]
			if v, ok := half[who]; ok && v == string(ch.Entry.Value) {
				delete(half, who)
			} else {
				half[who] = string(ch.Entry.Value)
			}
		}
		if len(half) > 0 {
			t.Fatalf("commit %d has only half of %v", rev, half)
		}
	}
}

func testWatchFuture(t *testing.T, db store.DB, at string) {
	rev := put(t, db, at+"a", "1")
	wantKind(t, watch(t, db, at, rev+1_000_000).end(), fault.Gone)
}

func testThousandWatchers(t *testing.T, db store.DB, at string) {
	const n = 1000
	var streams []stream
	rev := put(t, db, at+"start", "")
	for i := range n {
		s := watch(t, db, fmt.Sprintf("%s%04d/", at, i), rev-1)
		streams = append(streams, s)
	}
	everything := watch(t, db, at, rev)
	together(t, writers, func(w int) error {
		for i := w; i < n; i += writers {
			_, err := db.Update(deadline(t), func(tx store.Tx) error {
				tx.Put(entry(fmt.Sprintf("%s%04d/vm", at, i), strconv.Itoa(i)))
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	for i, s := range streams {
		c := s.commit()
		if len(c.Changes) != 1 || string(c.Changes[0].Entry.Value) != strconv.Itoa(i) {
			t.Fatalf("watcher %d got %+v", i, c)
		}
	}
	for got := 0; got < n; {
		got += len(everything.commit().Changes)
	}
}

func testCompacted(t *testing.T, e Engine) {
	db := open(t, e, Options{History: 10})
	first := put(t, db, "/a", "first")
	for i := range 30 {
		put(t, db, "/a", strconv.Itoa(i))
	}
	wantKind(t, watch(t, db, "/", first).end(), fault.Gone)
	h, err := db.Health(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	if h.Compacted <= first {
		t.Fatalf("a watch can start after %d, %d was to be forgotten", h.Compacted, first)
	}
	s := watch(t, db, "/", h.Compacted)
	for rev := int64(0); rev < h.Revision; {
		rev = s.commit().Rev
	}
}

func testSlow(t *testing.T, e Engine) {
	db := open(t, e, Options{Queue: 5})
	first := put(t, db, "/a", "0")
	slow := watch(t, db, "/", first-1)
	slow.commit() // it runs now
	other := watch(t, db, "/other/", first-1)
	for i := range 10 {
		put(t, db, "/a", strconv.Itoa(i))
	}
	wantKind(t, slow.end(), fault.Gone)
	put(t, db, "/other/a", "1")
	if c := other.commit(); len(c.Changes) != 1 {
		t.Errorf("a watch of other keys got %+v", c)
	}
}
