package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/verbena-cloud/verbena/internal/store"
)

// testModel compares random transactions with a map, and the watch's commits with the history of that map.
func testModel(t *testing.T, db store.DB, at string) {
	var runs atomic.Int64
	ctx := deadline(t)
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{db: db, at: fmt.Sprintf("%s%d/", at, runs.Add(1)), want: map[string]string{}}
		s := watch(t, db, m.at, 0)
		for range rapid.IntRange(1, 6).Draw(rt, "transactions") {
			abort := rapid.IntRange(0, 4).Draw(rt, "abort") == 0
			steps := rapid.SliceOfN(rapid.Custom(drawStep), 0, 8).Draw(rt, "steps")
			next := maps.Clone(m.want)
			rev, err := db.Update(ctx, func(tx store.Tx) error {
				next = maps.Clone(m.want)
				return m.play(tx, steps, next, abort)
			})
			switch {
			case errors.Is(err, errAbort):
				next = m.want
			case err != nil:
				rt.Fatal(err)
			}
			m.check(ctx, rt, next)
			changed := !maps.Equal(next, m.want) || touched(steps, m.want, next)
			if abort || !changed {
				if rev != 0 {
					rt.Fatalf("nothing changed, but the revision is %d", rev)
				}
			} else {
				c := s.commit()
				if c.Rev != rev || !maps.Equal(replay(m.want, m.at, c), next) {
					rt.Fatalf("commit %+v does not lead from %v to %v", c, m.want, next)
				}
			}
			m.want = next
		}
	})
}

var errAbort = errors.New("abort")

type step struct {
	del   bool
	key   string
	value string
}

func drawStep(t *rapid.T) step {
	return step{
		del:   rapid.IntRange(0, 3).Draw(t, "del") == 0,
		key:   rapid.StringMatching(`[a-c]{1,2}`).Draw(t, "key"),
		value: rapid.StringMatching(`[0-9]{0,3}`).Draw(t, "value"),
	}
}

// touched reports whether some key that is there after the steps was put by them, be it with its old value.
func touched(steps []step, before, after map[string]string) bool {
	for _, s := range steps {
		_, was := before[s.key]
		_, is := after[s.key]
		if is && !s.del || was && !is {
			return true
		}
	}
	return false
}

type model struct {
	db   store.DB
	at   string
	want map[string]string
}

func (m *model) play(tx store.Tx, steps []step, next map[string]string, abort bool) error {
	for _, s := range steps {
		if s.del {
			tx.Delete(m.at + s.key)
			delete(next, s.key)
		} else {
			tx.Put(entry(m.at+s.key, s.value))
			next[s.key] = s.value
		}
		if got, want := keys(tx, m.at, ""), line(next); got != want {
			return fmt.Errorf("inside: %q, want %q", got, want)
		}
	}
	if abort {
		return errAbort
	}
	return nil
}

func (m *model) check(ctx context.Context, t *rapid.T, want map[string]string) {
	err := m.db.View(ctx, func(tx store.Tx) error {
		if got := keys(tx, m.at, ""); got != line(want) {
			return fmt.Errorf("view: %q, want %q", got, line(want))
		}
		for k, v := range want {
			if got := read(tx, m.at+k); got != v {
				return fmt.Errorf("%s = %q, want %q", k, got, v)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func line(m map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return strings.Join(out, " ")
}

func replay(from map[string]string, at string, c store.Commit) map[string]string {
	out := maps.Clone(from)
	for _, ch := range c.Changes {
		key := strings.TrimPrefix(ch.Key, at)
		if ch.Entry == nil {
			delete(out, key)
		} else {
			out[key] = string(ch.Entry.Value)
		}
	}
	return out
}
