package etcd_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/etcd"
	"github.com/verbena-cloud/verbena/internal/store/storetest"
)

func TestConformanceEmbedded(t *testing.T) {
	storetest.Run(t, storetest.Engine{Open: func(t *testing.T, o storetest.Options) store.DB {
		conf := etcd.Eager(etcd.Config{Dir: t.TempDir(), History: o.History, Queue: o.Queue})
		db, err := etcd.Open(t.Context(), conf)
		check(t, err)
		reread(t, db, conf)
		return db
	}})
}

// reread compares, when the test is over, what the server had in memory with what another finds in etcd.
func reread(t *testing.T, db *etcd.DB, conf etcd.Config) {
	t.Helper()
	t.Cleanup(func() {
		check(t, db.Close())
		again, err := etcd.Open(context.Background(), conf)
		check(t, err)
		defer again.Close()
		if diff := db.Differs(again); diff != "" {
			t.Errorf("read again: %s", diff)
		}
	})
}

func external(c *cluster) storetest.Engine {
	open := func(t *testing.T, conf etcd.Config) store.DB {
		t.Helper()
		db, err := etcd.Open(t.Context(), etcd.Eager(conf))
		check(t, err)
		return db
	}
	return storetest.Engine{
		Open: func(t *testing.T, o storetest.Options) store.DB {
			conf := c.config()
			conf.History, conf.Queue = o.History, o.Queue
			return open(t, conf)
		},
		Pair: func(t *testing.T) (store.DB, store.DB) {
			conf := c.config()
			return open(t, conf), open(t, conf)
		},
	}
}

func TestConformanceExternalTLS(t *testing.T) {
	storetest.Run(t, external(startApart(t, t.TempDir(), freePort(t))))
}

func TestConformanceDebianEtcd(t *testing.T) {
	storetest.Run(t, external(startDebian(t)))
}

// TestCleaning makes, changes and deletes keys at random, from now and then two servers, and restarts: nothing is
// lost, nothing deleted comes back, and what lies in etcd stays in proportion to what is needed.
func TestCleaning(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	conf := etcd.Eager(startApart(t, t.TempDir(), freePort(t)).config())
	want := map[string]string{}
	for range 8 {
		dbs := []*etcd.DB{openAt(t, conf), openAt(t, conf)}
		for range 60 {
			next := map[string]string{}
			_, err := dbs[rnd.IntN(2)].Update(t.Context(), func(tx store.Tx) error {
				clear(next)
				for range 1 + rnd.IntN(20) {
					key := fmt.Sprintf("/k/%d", rnd.IntN(200))
					if rnd.IntN(3) == 0 {
						tx.Delete(key)
						next[key] = none
						continue
					}
					next[key] = strings.Repeat("v", 1+rnd.IntN(2000))
					tx.Put(entry(key, next[key]))
				}
				return nil
			})
			check(t, err)
			for k, v := range next {
				want[k] = v
			}
		}
		put(t, dbs[0], "/last", "0")
		put(t, dbs[1], "/last", "1")
		put(t, dbs[0], "/last", "2") // both have seen everything but this
		again := openAt(t, conf)
		if diff := dbs[0].Differs(again); diff != "" {
			t.Fatalf("read again: %s", diff)
		}
		for k, v := range want {
			if got := value(t, again, k); got != v {
				t.Fatalf("%s = %.20q (%d bytes), want %.20q (%d bytes)", k, got, len(got), v, len(v))
			}
		}
		if unneeded, all, records := again.Garbage(); unneeded > all*2/3+1<<16 || records > 40 {
			t.Errorf("%d of %d bytes in %d records are not needed", unneeded, all, records)
		}
		for _, db := range append(dbs, again) {
			check(t, db.Close())
		}
	}
}

// TestPlainKeys: what an earlier version had stored, a key in etcd for each key, is read, changed and deleted.
func TestPlainKeys(t *testing.T) {
	conf := etcd.Config{Dir: t.TempDir()}
	db := openAt(t, conf)
	for i := range 3 {
		_, err := db.Client().Put(t.Context(), fmt.Sprintf("/verbena/old/%d", i), "1")
		check(t, err)
	}
	check(t, db.Close())
	db = openAt(t, conf)
	put(t, db, "/old/0", "2")
	_, err := db.Update(t.Context(), func(tx store.Tx) error { tx.Delete("/old/1"); return nil })
	check(t, err)
	check(t, db.Close())
	again := openAt(t, conf)
	for key, want := range map[string]string{"/old/0": "2", "/old/1": none, "/old/2": "1"} {
		if got := value(t, again, key); got != want {
			t.Errorf("%s = %q, want %q", key, got, want)
		}
	}
}

// TestForeignRecords: a record that can't be read is refused at the start, and one that comes later stops
// nothing; records that foreign hands delete stay deleted.
func TestForeignRecords(t *testing.T) {
	conf := etcd.Config{Dir: t.TempDir()}
	db := openAt(t, conf)
	put(t, db, "/a", "1")
	put(t, db, "/a", "2")
	res, err := db.Client().Get(t.Context(), "/verbena/record/", clientv3.WithPrefix())
	check(t, err)
	newest := res.Kvs[0]
	for _, kv := range res.Kvs {
		if kv.GetModRevision() > newest.GetModRevision() {
			newest = kv
		}
	}
	_, err = db.Client().Delete(t.Context(), string(newest.GetKey()))
	check(t, err)
	for value(t, db, "/a") != none {
		put(t, db, "/b", "1")
	}
	put(t, db, "/b", "2")
	check(t, db.Close())
	db = openAt(t, conf)
	if got := value(t, db, "/a"); got != none {
		t.Errorf("/a = %q came back", got)
	}
	_, err = db.Client().Put(t.Context(), "/verbena/record/x", "verbena 2 commit\n")
	check(t, err)
	update := func() error {
		_, err := db.Update(t.Context(), func(tx store.Tx) error { tx.Put(entry("/c", "1")); return nil })
		return err
	}
	eventually(t, func() bool { return fault.Is(update(), fault.Unavailable) })
	_, err = db.Client().Delete(t.Context(), "/verbena/record/x")
	check(t, err)
	eventually(t, func() bool { return update() == nil })
	_, err = db.Client().Put(t.Context(), "/verbena/record/x", "verbena 2 commit\n")
	check(t, err)
	check(t, db.Close())
	_, err = etcd.Open(t.Context(), conf)
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "/verbena/record/x") {
		t.Errorf("a record of a newer version: %v", err)
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte("verbena 1 commit\nput 2 0 0 3\n/a\nabc\ndel 2 0\n/b\n"))
	f.Add([]byte("verbena 1 moved\nput 2 5 6 0\n/a\n\n"))
	f.Add([]byte("verbena 2 commit\n"))
	f.Add([]byte("verbena 1 commit\nput 9223372036854775807 0 0 1\n/a\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if same, err := etcd.DecodeRecord(b); !same {
			t.Errorf("%q is not the same again: %v", b, err)
		}
	})
}
