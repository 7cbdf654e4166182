package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/etcd"
)

var errLost = errors.New("simulated: the connection is lost")

// fate is what happens to a transaction on its way to etcd and back.
type fate int

const (
	arrives    fate = iota
	lostBefore      // never reaches etcd
	lostAfter       // is made, but the answer is lost
	late            // reaches etcd only together with a later one, when its sender has given up
	stuck           // gets no answer at all
)

// lossyKV stands between the engine and etcd and loses requests and answers.
type lossyKV struct {
	clientv3.KV
	fate func() fate
	seen atomic.Int64

	mu   sync.Mutex
	late []func()
}

func (l *lossyKV) Txn(ctx context.Context) clientv3.Txn {
	return &lossyTxn{Txn: l.KV.Txn(context.WithoutCancel(ctx)), kv: l, ctx: ctx}
}

// deliver lets what was late reach etcd.
func (l *lossyKV) deliver() {
	l.mu.Lock()
	late := l.late
	l.late = nil
	l.mu.Unlock()
	for _, f := range late {
		f()
	}
}

type lossyTxn struct {
	clientv3.Txn
	kv  *lossyKV
	ctx context.Context
}

func (t *lossyTxn) If(c ...clientv3.Cmp) clientv3.Txn  { t.Txn = t.Txn.If(c...); return t }
func (t *lossyTxn) Then(o ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Then(o...); return t }
func (t *lossyTxn) Else(o ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Else(o...); return t }

func (t *lossyTxn) Commit() (*clientv3.TxnResponse, error) {
	t.kv.seen.Add(1)
	f := t.kv.fate()
	if f != late && rand.IntN(2) == 0 {
		t.kv.deliver()
	}
	switch f {
	case lostBefore:
		return nil, errLost
	case lostAfter:
		_, _ = t.Txn.Commit()
		return nil, errLost
	case late:
		t.kv.mu.Lock()
		t.kv.late = append(t.kv.late, func() { _, _ = t.Txn.Commit() })
		t.kv.mu.Unlock()
		return nil, errLost
	case stuck:
		<-t.ctx.Done()
		return nil, t.ctx.Err()
	default:
		return t.Txn.Commit()
	}
}

func openLossy(t *testing.T, c etcd.Config, next func() fate) (*etcd.DB, *lossyKV) {
	t.Helper()
	l := &lossyKV{fate: func() fate { return arrives }}
	db, err := etcd.OpenWith(t.Context(), etcd.Eager(c), func(kv clientv3.KV) clientv3.KV { l.KV = kv; return l })
	check(t, err)
	t.Cleanup(func() { check(t, db.Close()) })
	l.fate = next
	return db, l
}

// TestLostAnswers counts from many goroutines while requests and answers are lost at random, on one server
// and on two. Every Update is acknowledged in the end, and each counts once.
func TestLostAnswers(t *testing.T) {
	random := func() fate { return fate(rand.IntN(int(late)+3)) % stuck } // arrives and lostBefore twice as often
	c := startApart(t, t.TempDir(), freePort(t))
	for name, open := range map[string]func(t *testing.T) []store.DB{
		"one server": func(t *testing.T) []store.DB {
			db, _ := openLossy(t, etcd.Config{Dir: t.TempDir(), Timeout: time.Minute}, random) // a busy machine is no outage
			return []store.DB{db}
		},
		"two servers": func(t *testing.T) []store.DB {
			conf := c.config()
			conf.Timeout = time.Minute
			a, _ := openLossy(t, conf, random)
			b, _ := openLossy(t, conf, random)
			return []store.DB{a, b}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dbs := open(t)
			const writers, rounds = 8, 10
			errs := make(chan error, writers)
			for w := range writers {
				go func() { errs <- countUp(t.Context(), dbs[w%len(dbs)], w, rounds) }()
			}
			for range writers {
				check(t, <-errs)
			}
			_, err := dbs[0].Update(t.Context(), func(tx store.Tx) error {
				if got := number(tx, "/n"); got != writers*rounds {
					return fmt.Errorf("the sum is %d, want %d", got, writers*rounds)
				}
				return nil
			})
			check(t, err)
		})
	}
}

func countUp(ctx context.Context, db store.DB, w, rounds int) error {
	for i := range rounds {
		rev, err := db.Update(ctx, func(tx store.Tx) error {
			tx.Put(entry("/n", fmt.Sprint(number(tx, "/n")+1)))
			tx.Put(entry(fmt.Sprintf("/w/%d/%d", w, i), "x"))
			return nil
		})
		if err != nil {
			return err
		}
		if rev == 0 {
			return errors.New("revision 0")
		}
	}
	return nil
}

// TestSilence: etcd takes requests and never answers, then does again.
func TestSilence(t *testing.T) {
	var now atomic.Int64
	db, l := openLossy(t, etcd.Config{Dir: t.TempDir(), Timeout: 100 * time.Millisecond}, func() fate { return fate(now.Load()) })
	put(t, db, "/a", "before")
	now.Store(int64(stuck))
	_, err := db.Update(t.Context(), func(tx store.Tx) error { tx.Put(entry("/a", "during")); return nil })
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "may still be applied") {
		t.Errorf("the Update on its way got %v", err)
	}
	asked := l.seen.Load()
	_, err = db.Update(t.Context(), func(tx store.Tx) error { tx.Put(entry("/b", "during")); return nil })
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("an Update after it got %v", err)
	}
	if got := value(t, db, "/a"); got != "before" {
		t.Errorf("a view reads %q", got)
	}
	now.Store(int64(arrives))
	eventually(t, func() bool { return l.seen.Load() > asked && mayPut(t, db) })
	put(t, db, "/a", "after")
	if a, b := value(t, db, "/a"), value(t, db, "/b"); a != "after" || b != none {
		t.Errorf("a = %q, b = %q", a, b)
	}
}

func mayPut(t *testing.T, db store.DB) bool {
	t.Helper()
	_, err := db.Update(t.Context(), func(tx store.Tx) error { tx.Put(entry("/probe", "1")); return nil })
	return err == nil
}

// TestWithdrawn: a request that ends while it waits for the batch before it changes nothing, and those who
// ran after it in the same batch run again without it.
func TestWithdrawn(t *testing.T) {
	gate := make(chan struct{})
	var held atomic.Bool
	db, l := openLossy(t, etcd.Config{Dir: t.TempDir()}, func() fate {
		if held.CompareAndSwap(false, true) {
			<-gate
		}
		return arrives
	})
	first := make(chan error, 1)
	go func() { first <- addTo(t.Context(), db, "/n", 1) }()
	eventually(t, func() bool { return l.seen.Load() > 0 })
	ctx, cancel := context.WithCancel(t.Context())
	ran, left := make(chan struct{}, 10), make(chan error, 1)
	go func() {
		_, err := db.Update(ctx, func(tx store.Tx) error {
			tx.Put(entry("/n", fmt.Sprint(number(tx, "/n")+100)))
			ran <- struct{}{}
			return nil
		})
		left <- err
	}()
	<-ran
	last := make(chan error, 1)
	go func() { last <- addTo(t.Context(), db, "/n", 10) }()
	cancel()
	if err := <-left; !fault.Is(err, fault.Deadline) || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("the request that ended got %v", err)
	}
	close(gate)
	check(t, <-first)
	check(t, <-last)
	if got := value(t, db, "/n"); got != "11" {
		t.Errorf("/n = %s, want 11", got)
	}
}

func addTo(ctx context.Context, db store.DB, key string, n int) error {
	_, err := db.Update(ctx, func(tx store.Tx) error {
		tx.Put(entry(key, fmt.Sprint(number(tx, key)+n)))
		return nil
	})
	return err
}
