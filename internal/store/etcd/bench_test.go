package etcd_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/etcd"
)

const benchClients = 64

// spread runs f n times from 64 goroutines and returns the rate per second.
func spread(b *testing.B, n int, f func(ctx context.Context, i int) error) float64 {
	b.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for range benchClients {
		wg.Go(func() {
			for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
				if err := f(b.Context(), i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(n) / time.Since(start).Seconds()
}

// vmJSON is about the size of a VM object.
func vmJSON() string { return fmt.Sprintf(`{"name":"a","pad":%q}`, fmt.Sprintf("%01000d", 1)) }

// BenchmarkUpdate is an Update of two new keys from 64 goroutines; its baseline, measured in the same run on
// the same member, is the bare etcd transaction that creates the same two keys, from 64 clients.
// With large values the disk sets both rates; with small ones the transaction does.
func BenchmarkUpdate(b *testing.B) {
	b.Run("1KiB", func(b *testing.B) { updates(b, vmJSON()) })
	b.Run("64B", func(b *testing.B) { updates(b, vmJSON()[:64]) })
}

func updates(b *testing.B, v string) {
	b.Helper()
	db := openAt(b, etcd.Config{Dir: b.TempDir()})
	bare := func(ctx context.Context, i int) error {
		k1, k2 := fmt.Sprintf("/bare/a/%d", i), fmt.Sprintf("/bare/b/%d", i)
		_, err := db.Client().Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(k1), "=", 0)).
			Then(clientv3.OpPut(k1, v), clientv3.OpPut(k2, "1")).Commit()
		return err
	}
	ours := func(ctx context.Context, i int) error {
		k1, k2 := fmt.Sprintf("/o/VM/t/%d", i), fmt.Sprintf("/mac/%d", i)
		_, err := db.Update(ctx, func(tx store.Tx) error {
			if tx.Get(k1) != nil {
				return nil
			}
			tx.Put(entry(k1, v))
			tx.Put(entry(k2, "1"))
			return nil
		})
		return err
	}
	n := max(b.N, 4000) // a shorter run measures the start of etcd
	base := spread(b, n, bare)
	b.ResetTimer()
	rate := spread(b, n, ours)
	b.StopTimer()
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/op")
	b.ReportMetric(rate, "updates/s")
	b.ReportMetric(base, "bare-txns/s")
	b.ReportMetric(rate/base, "x-bare")
}

// BenchmarkUpdateSerial is one client alone: what a commit costs when there is nobody to share it with.
func BenchmarkUpdateSerial(b *testing.B) {
	db := openAt(b, etcd.Config{Dir: b.TempDir()})
	v := vmJSON()
	i := 0
	for b.Loop() {
		i++
		_, err := db.Update(b.Context(), func(tx store.Tx) error {
			tx.Put(entry(fmt.Sprintf("/o/VM/t/%d", i), v))
			tx.Put(entry(fmt.Sprintf("/mac/%d", i), "1"))
			return nil
		})
		check(b, err)
	}
}

func fill(b *testing.B, db store.DB, keys int) {
	b.Helper()
	v := vmJSON()
	for at := 0; at < keys; at += 1000 {
		_, err := db.Update(b.Context(), func(tx store.Tx) error {
			for i := at; i < at+1000 && i < keys; i++ {
				tx.Put(entry(fmt.Sprintf("/o/VM/t/%06d", i), v))
			}
			return nil
		})
		check(b, err)
	}
}

// BenchmarkRead has its baselines in the engine beneath: a get and a list of etcd itself.
func BenchmarkRead(b *testing.B) {
	db := openAt(b, etcd.Config{Dir: b.TempDir()})
	fill(b, db, 10_000)
	for i := range 10_000 { // for etcd's own reads
		_, err := db.Client().Put(b.Context(), fmt.Sprintf("/bare/o/VM/t/%06d", i), vmJSON())
		check(b, err)
	}
	b.Run("get", func(b *testing.B) {
		for b.Loop() {
			check(b, db.View(b.Context(), func(tx store.Tx) error {
				if tx.Get("/o/VM/t/005000") == nil {
					b.Error("it is not there")
				}
				return nil
			}))
		}
	})
	b.Run("get-etcd", func(b *testing.B) {
		for b.Loop() {
			_, err := db.Client().Get(b.Context(), "/bare/o/VM/t/005000", clientv3.WithSerializable())
			check(b, err)
		}
	})
	b.Run("scan-10k", func(b *testing.B) {
		for b.Loop() {
			n := 0
			check(b, db.View(b.Context(), func(tx store.Tx) error {
				for range tx.Scan("/o/VM/", "") {
					n++
				}
				return nil
			}))
			if n != 10_000 {
				b.Errorf("%d entries", n)
			}
		}
	})
	b.Run("scan-10k-etcd", func(b *testing.B) {
		for b.Loop() {
			_, err := db.Client().Get(b.Context(), "/bare/o/VM/", clientv3.WithPrefix(), clientv3.WithSerializable())
			check(b, err)
		}
	})
}

// BenchmarkOpen restarts a server on 100 000 keys of 1 KiB.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	db := openAt(b, etcd.Config{Dir: dir})
	fill(b, db, 100_000)
	check(b, db.Close())
	for b.Loop() {
		again, err := etcd.Open(b.Context(), etcd.Config{Dir: dir})
		check(b, err)
		b.StopTimer()
		check(b, again.Close())
		b.StartTimer()
	}
}

// BenchmarkWatchers is an Update while 1000 watch other keys and one watches all.
func BenchmarkWatchers(b *testing.B) {
	db := openAt(b, etcd.Config{Dir: b.TempDir()})
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i := range 1001 {
		prefix := fmt.Sprintf("/ledger/h%04d", i)
		if i == 1000 {
			prefix = ""
		}
		seq := db.Watch(ctx, prefix, 0)
		wg.Go(func() {
			for _, err := range seq {
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	for b.Loop() {
		put(b, db, "/ledger/h0500", "1")
	}
}
