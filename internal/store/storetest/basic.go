package storetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
)

func keys(tx store.Tx, prefix, after string) string {
	var out []string
	for e := range tx.Scan(prefix, after) {
		out = append(out, strings.TrimPrefix(e.Key, prefix)+"="+string(e.Value))
	}
	return strings.Join(out, " ")
}

func testNothing(t *testing.T, db store.DB, at string) {
	view(t, db, func(tx store.Tx) {
		if e := tx.Get(at + "a"); e != nil {
			t.Errorf("Get = %v", e)
		}
		if got := keys(tx, at, ""); got != "" {
			t.Errorf("Scan = %q", got)
		}
	})
}

func testPutGet(t *testing.T, db store.DB, at string) {
	first := put(t, db, at+"a", "1")
	second := put(t, db, at+"a", "2")
	if second <= first {
		t.Errorf("revisions %d, %d do not grow", first, second)
	}
	view(t, db, func(tx store.Tx) {
		e := tx.Get(at + "a")
		if e == nil || string(e.Value) != "2" || e.Created != first || e.Rev != second {
			t.Errorf("entry = %+v, want value 2, created %d, rev %d", e, first, second)
		}
		if tx.Rev() < second {
			t.Errorf("the view is at %d, the commit was %d", tx.Rev(), second)
		}
	})
}

type thing struct{ Name string }

func testTyped(t *testing.T, db store.DB, at string) {
	update(t, db, func(tx store.Tx) {
		if err := store.Put(tx, at+"a", &thing{Name: "one"}); err != nil {
			t.Error(err)
		}
	})
	view(t, db, func(tx store.Tx) {
		mine, err := store.Get[thing](tx, at+"a")
		if err != nil || mine.Name != "one" {
			t.Fatalf("Get = %v, %v", mine, err)
		}
		mine.Name = "changed"
		shared, err := store.Peek[thing](tx.Get(at + "a"))
		if err != nil || shared.Name != "one" {
			t.Errorf("Peek = %v, %v", shared, err)
		}
		_, err = store.Get[thing](tx, at+"b")
		wantKind(t, err, fault.NotFound)
	})
}

func testScan(t *testing.T, db store.DB, at string) {
	update(t, db, func(tx store.Tx) {
		for _, k := range []string{"b/2", "a", "b/10", "b/1", "c", "b"} {
			tx.Put(entry(at+k, k))
		}
	})
	view(t, db, func(tx store.Tx) {
		for _, tt := range []struct{ prefix, after, want string }{
			{"", "", "a=a b=b b/1=b/1 b/10=b/10 b/2=b/2 c=c"},
			{"b/", "", "1=b/1 10=b/10 2=b/2"},
			{"b/", "b/1", "10=b/10 2=b/2"},
			{"b/", "b/11", "2=b/2"},
			{"b/", "b/2", ""},
			{"b/", "a", "1=b/1 10=b/10 2=b/2"},
			{"d", "", ""},
		} {
			after := tt.after
			if after != "" {
				after = at + after
			}
			if got := keys(tx, at+tt.prefix, after); got != tt.want {
				t.Errorf("Scan(%q, %q) = %q, want %q", tt.prefix, tt.after, got, tt.want)
			}
		}
		for range tx.Scan(at, "") {
			break // stopping early is allowed
		}
	})
}

func testDelete(t *testing.T, db store.DB, at string) {
	put(t, db, at+"a", "1")
	put(t, db, at+"b", "1")
	if rev := update(t, db, func(tx store.Tx) { tx.Delete(at + "a") }); rev == 0 {
		t.Error("a delete returned revision 0")
	}
	wantValue(t, db, at+"a", "<none>")
	view(t, db, func(tx store.Tx) {
		if got := keys(tx, at, ""); got != "b=1" {
			t.Errorf("Scan = %q", got)
		}
	})
}

func testNoChange(t *testing.T, db store.DB, at string) {
	for name, f := range map[string]func(tx store.Tx){
		"nothing":              func(store.Tx) {},
		"delete of nothing":    func(tx store.Tx) { tx.Delete(at + "x") },
		"put and delete again": func(tx store.Tx) { tx.Put(entry(at+"x", "1")); tx.Delete(at + "x") },
	} {
		if rev := update(t, db, f); rev != 0 {
			t.Errorf("%s: revision %d, want 0", name, rev)
		}
	}
}

func testOwnWrites(t *testing.T, db store.DB, at string) {
	update(t, db, func(tx store.Tx) {
		for _, k := range []string{"a", "c", "e"} {
			tx.Put(entry(at+k, "old"))
		}
	})
	update(t, db, func(tx store.Tx) {
		tx.Put(entry(at+"b", "new"))
		tx.Put(entry(at+"c", "new"))
		tx.Delete(at + "e")
		tx.Put(entry(at+"f", "new"))
		if got, want := keys(tx, at, ""), "a=old b=new c=new f=new"; got != want {
			t.Errorf("Scan = %q, want %q", got, want)
		}
		if e := tx.Get(at + "c"); e == nil || e.Rev != 0 || string(e.Value) != "new" {
			t.Errorf("own put = %+v, want revision 0", e)
		}
		if tx.Get(at+"e") != nil {
			t.Error("own delete is not seen")
		}
		tx.Delete(at + "f")
		tx.Put(entry(at+"e", "again"))
	})
	view(t, db, func(tx store.Tx) {
		if got, want := keys(tx, at, ""), "a=old b=new c=new e=again"; got != want {
			t.Errorf("after the commit: %q, want %q", got, want)
		}
	})
}

func testScanWhilePutting(t *testing.T, db store.DB, at string) {
	update(t, db, func(tx store.Tx) {
		for _, k := range []string{"a", "b", "c"} {
			tx.Put(entry(at+k, "1"))
		}
	})
	update(t, db, func(tx store.Tx) {
		for e := range tx.Scan(at, "") {
			tx.Put(entry(e.Key+"x", "2"))
			tx.Delete(e.Key)
		}
		if got, want := keys(tx, at, ""), "ax=2 bx=2 cx=2"; got != want {
			t.Errorf("Scan = %q, want %q", got, want)
		}
	})
}

func testErrorAborts(t *testing.T, db store.DB, at string) {
	put(t, db, at+"a", "1")
	mine := errors.New("no")
	rev, err := db.Update(deadline(t), func(tx store.Tx) error {
		tx.Put(entry(at+"a", "2"))
		tx.Put(entry(at+"b", "2"))
		return mine
	})
	if rev != 0 || !errors.Is(err, mine) {
		t.Errorf("Update = %d, %v; want 0 and the function's own error", rev, err)
	}
	wantValue(t, db, at+"a", "1")
	wantValue(t, db, at+"b", "<none>")
}

func testPanicAborts(t *testing.T, db store.DB, at string) {
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic did not reach the caller")
			}
		}()
		_, _ = db.Update(deadline(t), func(tx store.Tx) error {
			tx.Put(entry(at+"a", "1"))
			beyond := len(at)
			tx.Put(entry([]string{at}[beyond], "1"))
			return nil
		})
	}()
	put(t, db, at+"b", "1")
	wantValue(t, db, at+"a", "<none>")
}

func testViewMayNotPut(t *testing.T, db store.DB, at string) {
	for _, f := range []func(tx store.Tx){
		func(tx store.Tx) { tx.Put(entry(at+"a", "1")) },
		func(tx store.Tx) { tx.Delete(at + "a") },
	} {
		err := db.View(deadline(t), func(tx store.Tx) error { f(tx); return nil })
		wantKind(t, err, fault.Internal)
	}
	wantValue(t, db, at+"a", "<none>")
}

func testBadKeys(t *testing.T, db store.DB, at string) {
	for _, key := range []string{"", "a", "/", "/commit", "/" + strings.Repeat("k", 2000)} {
		_, err := db.Update(deadline(t), func(tx store.Tx) error {
			tx.Put(entry(at+"a", "1"))
			tx.Put(entry(key, "1"))
			return nil
		})
		wantKind(t, err, fault.Internal)
	}
	wantValue(t, db, at+"a", "<none>")
}

func testTooLarge(t *testing.T, db store.DB, at string) {
	_, err := db.Update(deadline(t), func(tx store.Tx) error {
		tx.Put(entry(at+"a", strings.Repeat("x", 2<<20)))
		return nil
	})
	wantKind(t, err, fault.TooLarge)
	_, err = db.Update(deadline(t), func(tx store.Tx) error {
		for _, k := range []string{"a", "b", "c"} {
			tx.Put(entry(at+k, strings.Repeat("x", 1<<19)))
		}
		return nil
	})
	wantKind(t, err, fault.TooLarge)
	wantValue(t, db, at+"a", "<none>")
}

func testLargeValues(t *testing.T, db store.DB, at string) {
	big := strings.Repeat("0123456789abcdef", 1<<16)
	together(t, 4, func(i int) error { // together they are far over one request
		_, err := db.Update(deadline(t), func(tx store.Tx) error {
			tx.Put(entry(at+string(rune('a'+i)), big))
			return nil
		})
		return err
	})
	for _, k := range []string{"a", "b", "c", "d"} {
		view(t, db, func(tx store.Tx) {
			if got := read(tx, at+k); got != big {
				t.Errorf("%s has %d bytes, want %d", k, len(got), len(big))
			}
		})
	}
	update(t, db, func(tx store.Tx) {
		for e := range tx.Scan(at, "") {
			tx.Delete(e.Key)
		}
	})
}

func testSnapshot(t *testing.T, db store.DB, at string) {
	put(t, db, at+"a", "1")
	view(t, db, func(tx store.Tx) {
		rev := tx.Rev()
		put(t, db, at+"a", "2")
		put(t, db, at+"b", "2")
		if got := keys(tx, at, ""); got != "a=1" || read(tx, at+"a") != "1" || tx.Rev() != rev {
			t.Errorf("the snapshot moved: %q at %d", got, tx.Rev())
		}
		view(t, db, func(tx store.Tx) {
			if got := keys(tx, at, ""); got != "a=2 b=2" {
				t.Errorf("a new view = %q", got)
			}
		})
	})
}

func testViewNeverBlocks(t *testing.T, db store.DB, at string) {
	inside, leave := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- db.View(context.WithoutCancel(t.Context()), func(tx store.Tx) error {
			for range tx.Scan("", "") {
				break
			}
			close(inside)
			<-leave
			return nil
		})
	}()
	<-inside
	for range 10 {
		put(t, db, at+"a", "1")
	}
	close(leave)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func testCanceled(t *testing.T, db store.DB, at string) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := db.Update(ctx, func(tx store.Tx) error { tx.Put(entry(at+"a", "1")); return nil })
	wantKind(t, err, fault.Deadline)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v does not wrap the context's error", err)
	}
	wantKind(t, db.View(ctx, func(store.Tx) error { return nil }), fault.Deadline)
	wantValue(t, db, at+"a", "<none>")
}

func testRecreated(t *testing.T, db store.DB, at string) {
	put(t, db, at+"a", "1")
	together(t, 2, func(int) error { // both orders must give a new life to the key or leave it gone
		_, err := db.Update(deadline(t), func(tx store.Tx) error {
			if tx.Get(at+"a") != nil {
				tx.Delete(at + "a")
			} else {
				tx.Put(entry(at+"a", "2"))
			}
			return nil
		})
		return err
	})
	view(t, db, func(tx store.Tx) {
		if e := tx.Get(at + "a"); e == nil || e.Created != e.Rev || string(e.Value) != "2" {
			t.Errorf("the new key is %+v, want it created by its own commit", e)
		}
	})
}

func testHealth(t *testing.T, db store.DB, at string) {
	rev := put(t, db, at+"a", "1")
	h, err := db.Health(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	if h.Engine == "" || h.Revision < rev || h.Size <= 0 || h.NoSpace || h.Members < 1 || h.Compacted > h.Revision {
		t.Errorf("health = %+v after revision %d", h, rev)
	}
}

func testCloseTwice(t *testing.T, e Engine) {
	db := e.Open(t, Options{})
	rev := put(t, db, "/a", "1")
	s := watch(t, db, "", rev-1)
	s.commit()
	for range 2 {
		if err := db.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
	}
	wantKind(t, s.end(), fault.Unavailable)
	_, err := db.Update(deadline(t), func(tx store.Tx) error { tx.Put(entry("/a", "2")); return nil })
	wantKind(t, err, fault.Unavailable)
	wantKind(t, db.View(deadline(t), func(store.Tx) error { return nil }), fault.Unavailable)
	wantKind(t, watch(t, db, "", 0).end(), fault.Unavailable)
}

func sorted(c store.Commit) bool {
	return slices.IsSortedFunc(c.Changes, func(a, b store.Change) int { return strings.Compare(a.Key, b.Key) })
}
