package replica_test

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/replica"
)

func at(key, value string, created, rev int64) *store.Entry {
	return store.NewEntry(key, []byte(value), nil).At(created, rev)
}

func state(rev int64, entries ...*store.Entry) *replica.State {
	return replica.NewState(rev, slices.Values(entries))
}

func line(s *replica.State) string {
	var out []string
	for e := range s.Scan("", "") {
		out = append(out, fmt.Sprintf("%s=%s@%d", e.Key, e.Value, e.Rev))
	}
	return strings.Join(out, " ")
}

func pull(t *testing.T, r *replica.Replica, after int64) func() (store.Commit, error, bool) {
	t.Helper()
	next, stop := iter.Pull2(r.Watch(t.Context(), "/", after))
	t.Cleanup(stop)
	return next
}

// TestResetTellsTheDifference: after missed commits a watch gets one commit per revision found, in order,
// and the deletions last; views have all of it at once.
func TestResetTellsTheDifference(t *testing.T) {
	r := replica.New(state(10, at("/a", "1", 1, 1), at("/b", "1", 2, 2), at("/c", "1", 3, 3)), replica.Config{})
	next := pull(t, r, 10)
	r.Reset(state(20, at("/a", "1", 1, 1), at("/b", "2", 2, 15), at("/d", "1", 12, 12)))
	if got, want := line(r.Now()), "/a=1@1 /b=2@15 /d=1@12"; got != want {
		t.Errorf("state %q, want %q", got, want)
	}
	for _, want := range []string{"12 /d", "15 /b", "20 /c"} {
		c, err, _ := next()
		if err != nil || len(c.Changes) != 1 {
			t.Fatalf("the watch brought %+v, %v", c, err)
		}
		if got := fmt.Sprint(c.Rev, " ", c.Changes[0].Key); got != want {
			t.Errorf("the watch brought %s, want %s", got, want)
		}
		if (c.Changes[0].Prev == nil) != (want == "12 /d") || (c.Changes[0].Entry == nil) != (want == "20 /c") {
			t.Errorf("%s: change %+v", want, c.Changes[0])
		}
	}
}

// TestResetToThePast: a state that contradicts what was told ends all watches, also one with the same
// revision but other content.
func TestResetToThePast(t *testing.T) {
	for name, s := range map[string]*replica.State{
		"older":             state(5, at("/a", "1", 1, 1)),
		"other content":     state(30, at("/a", "other", 1, 1)),
		"same rev, key off": state(10),
		"same rev, changed": state(10, at("/a", "1", 1, 9)),
	} {
		r := replica.New(state(9, at("/a", "1", 1, 1), at("/b", "1", 1, 1)), replica.Config{})
		next := pull(t, r, 9)
		r.Apply(10, []store.Change{{Key: "/b"}})
		if _, err, _ := next(); err != nil { // the watch runs now
			t.Fatal(err)
		}
		r.Apply(10, nil) // has it already
		r.Reset(s)
		if _, err, _ := next(); !fault.Is(err, fault.Gone) {
			t.Errorf("%s: the watch got %v", name, err)
		}
		if _, err, _ := pull(t, r, r.Now().Rev()+1)(); !fault.Is(err, fault.Gone) {
			t.Errorf("%s: a position from before got %v", name, err)
		}
		if r.Horizon() != s.Rev() || r.Now() != s {
			t.Errorf("%s: horizon %d", name, r.Horizon())
		}
	}
}

func TestPublishNeedsItsBase(t *testing.T) {
	base := state(1)
	r := replica.New(base, replica.Config{})
	d := base.Draft(replica.DefaultLimits())
	tx := d.Begin()
	tx.Put(store.NewEntry("/a", []byte("1"), nil))
	d.Add(tx)
	s, c := d.Seal()
	r.Apply(2, []store.Change{{Key: "/b", Entry: at("/b", "1", 2, 2)}})
	if r.Publish(s, base, c) {
		t.Error("a draft of an older state was published")
	}
	if got := line(r.Now()); got != "/b=1@2" {
		t.Errorf("state %q", got)
	}
}

func TestWait(t *testing.T) {
	r := replica.New(state(1), replica.Config{})
	done := make(chan error, 1)
	go func() { done <- r.Wait(t.Context(), 3) }()
	r.Apply(2, nil)
	r.Apply(3, nil)
	if err := <-done; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Wait(ctx, 4); err == nil {
		t.Error("Wait returned without the revision")
	}
	closed := fault.New(fault.Unavailable, "closed")
	r.Close(closed)
	if err := r.Wait(t.Context(), 4); !fault.Is(err, fault.Unavailable) {
		t.Errorf("Wait on a closed replica = %v", err)
	}
}

// TestDraftsFit checks which transactions may share a commit.
func TestDraftsFit(t *testing.T) {
	l := replica.DefaultLimits()
	l.Ops, l.Bytes = 4, 1000
	put := func(key string, size int) func(tx *replica.Tx) {
		return func(tx *replica.Tx) { tx.Put(store.NewEntry(key, make([]byte, size), nil)) }
	}
	del := func(key string) func(tx *replica.Tx) { return func(tx *replica.Tx) { tx.Delete(key) } }
	for _, tt := range []struct {
		name          string
		first, second func(tx *replica.Tx)
		fits          bool
	}{
		{"two keys", put("/a", 1), put("/b", 1), true},
		{"one ledger", put("/a", 1), put("/a", 1), true},
		{"one object", put("/o/a", 1), put("/o/a", 1), false},
		{"object made and deleted", put("/o/a", 1), del("/o/a"), false},
		{"ledger deleted and made", del("/old"), put("/old", 1), false},
		{"ledger made and deleted", put("/a", 1), del("/a"), true},
		{"bytes", put("/a", 500), put("/b", 500), false},
		{"operations", func(tx *replica.Tx) { put("/a", 1)(tx); put("/b", 1)(tx); put("/c", 1)(tx) }, func(tx *replica.Tx) { put("/d", 1)(tx); put("/e", 1)(tx) }, false},
	} {
		d := state(5, at("/old", "1", 1, 1)).Draft(l)
		tx := d.Begin()
		tt.first(tx)
		if !d.Fits(tx) {
			t.Errorf("%s: the first does not fit", tt.name)
		}
		d.Add(tx)
		tx = d.Begin()
		tt.second(tx)
		if tx.Err() != nil || d.Fits(tx) != tt.fits {
			t.Errorf("%s: fits = %v, want %v (%v)", tt.name, d.Fits(tx), tt.fits, tx.Err())
		}
	}
}

// TestBatchesAreLikeOneAfterTheOther: transactions that share a draft give the state that they give one by
// one, and the commit leads from the old state to the new.
func TestBatchesAreLikeOneAfterTheOther(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		one := replica.New(state(1), replica.Config{})
		want := map[string]string{}
		for range rapid.IntRange(1, 5).Draw(rt, "batches") {
			base := one.Now()
			d := base.Draft(replica.DefaultLimits())
			for range rapid.IntRange(1, 5).Draw(rt, "transactions") {
				tx := d.Begin()
				next := maps.Clone(want)
				for range rapid.IntRange(0, 4).Draw(rt, "steps") {
					key := rapid.StringMatching(`/[a-d]`).Draw(rt, "key")
					if rapid.Bool().Draw(rt, "delete") {
						tx.Delete(key)
						delete(next, key)
					} else {
						v := rapid.StringMatching(`[0-9]`).Draw(rt, "value")
						tx.Put(store.NewEntry(key, []byte(v), nil))
						next[key] = v
					}
				}
				if !d.Fits(tx) {
					continue
				}
				d.Add(tx)
				want = next
			}
			if d.Empty() {
				continue
			}
			s, c := d.Seal()
			replayed := map[string]string{}
			for e := range base.Scan("", "") {
				replayed[e.Key] = string(e.Value)
			}
			for _, ch := range c.Changes {
				if base.Get(ch.Key) != ch.Prev || s.Get(ch.Key) != ch.Entry {
					rt.Fatalf("change %+v is not what happened", ch)
				}
				if delete(replayed, ch.Key); ch.Entry != nil {
					replayed[ch.Key] = string(ch.Entry.Value)
				}
			}
			one.Publish(s, base, c)
			if got := contents(one.Now()); !maps.Equal(got, want) || !maps.Equal(replayed, want) {
				rt.Fatalf("state %v, replayed %v, want %v", got, replayed, want)
			}
		}
	})
}

func contents(s *replica.State) map[string]string {
	out := map[string]string{}
	for e := range s.Scan("", "") {
		out[e.Key] = string(e.Value)
	}
	return out
}

// BenchmarkFanOut is a commit of one key while 10 000 watch other keys.
func BenchmarkFanOut(b *testing.B) {
	r := replica.New(state(1), replica.Config{})
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan struct{})
	const n = 10_000
	for i := range n {
		next, stop := iter.Pull2(r.Watch(ctx, fmt.Sprintf("/host/%05d/", i), 0))
		r.Apply(int64(i)+2, []store.Change{{Key: fmt.Sprintf("/host/%05d/x", i), Entry: at(fmt.Sprintf("/host/%05d/x", i), "", 1, int64(i)+2)}})
		if _, err, _ := next(); err != nil {
			b.Fatal(err)
		}
		go func() { <-ctx.Done(); stop(); done <- struct{}{} }()
	}
	rev := r.Now().Rev()
	for b.Loop() {
		rev++
		r.Apply(rev, []store.Change{{Key: "/other/a", Entry: at("/other/a", "1", rev, rev)}})
	}
	cancel()
	for range n {
		<-done
	}
}
