package etcd_test

import (
	"context"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/etcd"
)

// TestForeignWrites: what an operator does with etcdctl below the prefix is seen like any commit.
func TestForeignWrites(t *testing.T) {
	db := openAt(t, etcd.Config{Dir: t.TempDir()})
	put(t, db, "/a", "1")
	next, stop := iter.Pull2(db.Watch(t.Context(), "/", 0))
	defer stop()
	ctl := db.Client()
	_, err := ctl.Put(t.Context(), "/verbena/b", "2")
	check(t, err)
	c, err, _ := next()
	check(t, err)
	if len(c.Changes) != 1 || c.Changes[0].Key != "/b" || string(c.Changes[0].Entry.Value) != "2" || c.Changes[0].Entry.Rev != c.Rev {
		t.Errorf("the watch brought %+v", c)
	}
	for i, key := range []string{"/verbena/b", "/other/x", "/verbena/commit"} {
		_, err = ctl.Delete(t.Context(), key)
		check(t, err)
		_, err = ctl.Put(t.Context(), "/other/x", "not ours")
		check(t, err)
		put(t, db, "/a", fmt.Sprint(i))
		if got := value(t, db, "/a"); got != fmt.Sprint(i) {
			t.Errorf("after the delete of %s: /a = %s", key, got)
		}
	}
	check(t, db.View(t.Context(), func(tx store.Tx) error {
		for e := range tx.Scan("", "") {
			if e.Key != "/a" {
				t.Errorf("there is %s", e.Key)
			}
		}
		return nil
	}))
}

// apart is an etcd process that can be stopped and started again at its address.
type apart struct {
	*cluster
	dir, at string
}

func startOutage(t *testing.T) *apart {
	t.Helper()
	a := &apart{dir: t.TempDir(), at: freePort(t)}
	a.cluster = startApart(t, a.dir, a.at)
	return a
}

func (a *apart) kill(t *testing.T) {
	t.Helper()
	check(t, a.cmd.Process.Kill())
	_ = a.cmd.Wait()
}

func (a *apart) restart(t *testing.T) {
	t.Helper()
	a.cmd = startApart(t, a.dir, a.at).cmd
}

// TestOutage: etcd dies under two servers. Views go on, Updates say that the store is away, both recover by
// themselves, and a watch goes on without a gap.
func TestOutage(t *testing.T) {
	a := startOutage(t)
	conf := a.config()
	conf.Timeout = 300 * time.Millisecond
	db, other := openAt(t, conf), openAt(t, conf)
	first := put(t, db, "/a", "1")
	next, stop := iter.Pull2(other.Watch(t.Context(), "/", first))
	defer stop()
	a.kill(t)
	_, err := db.Update(t.Context(), func(tx store.Tx) error { tx.Put(entry("/a", "2")); return nil })
	if !fault.Is(err, fault.Unavailable) {
		t.Fatalf("without etcd an Update got %v", err)
	}
	if got := value(t, db, "/a"); got != "1" {
		t.Errorf("without etcd a View reads %s", got)
	}
	if h, err := db.Health(t.Context()); !fault.Is(err, fault.Unavailable) || h.Revision < first {
		t.Errorf("without etcd Health is %+v, %v", h, err)
	}
	a.restart(t)
	eventually(t, func() bool { return mayPut(t, db) && mayPut(t, other) })
	want := put(t, db, "/a", "3")
	for rev := int64(0); rev < want; {
		c, err, ok := next()
		if err != nil || !ok || c.Rev <= rev {
			t.Fatalf("the watch brought %+v, %v", c, err)
		}
		rev = c.Rev
	}
	eventually(t, func() bool { return value(t, other, "/a") == "3" })
}

// TestHang: etcd hangs, as it does when its disk does.
func TestHang(t *testing.T) {
	a := startOutage(t)
	conf := a.config()
	conf.Timeout = 200 * time.Millisecond
	db := openAt(t, conf)
	put(t, db, "/a", "1")
	check(t, a.cmd.Process.Signal(syscall.SIGSTOP))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := addTo(ctx, db, "/a", 1)
	if k := fault.KindOf(err); k != fault.Deadline && k != fault.Unavailable {
		t.Errorf("while etcd hangs an Update got %v", err)
	}
	check(t, a.cmd.Process.Signal(syscall.SIGCONT))
	eventually(t, func() bool { return mayPut(t, db) })
	if got := value(t, db, "/a"); got != "1" && got != "2" {
		t.Errorf("/a = %s, want 1 or 2", got)
	}
}

// TestMissedCompaction: while a server is cut off, others write and history is compacted. It reads all anew,
// and its watchers get the difference.
func TestMissedCompaction(t *testing.T) {
	a := startOutage(t)
	conf := a.config()
	db := openAt(t, conf)
	put(t, db, "/stays", "1")
	put(t, db, "/goes", "1")
	last := put(t, db, "/changes", "1")
	a.kill(t)

	elsewhere := startApart(t, a.dir, freePort(t))
	away := conf
	away.Endpoints = []string{elsewhere.url}
	writer := openAt(t, away)
	for i := range 5 {
		put(t, writer, "/changes", fmt.Sprint(i))
	}
	rev, err := writer.Update(t.Context(), func(tx store.Tx) error {
		tx.Delete("/goes")
		tx.Put(entry("/comes", "1"))
		return nil
	})
	check(t, err)
	check(t, writer.Reclaim(t.Context()))
	check(t, elsewhere.cmd.Process.Kill())
	_ = elsewhere.cmd.Wait()

	next, stop := iter.Pull2(db.Watch(t.Context(), "/", last))
	defer stop()
	a.restart(t)
	got := map[string]string{}
	for at := last; at < rev; {
		c, err, ok := next()
		if err != nil || !ok || c.Rev <= at {
			t.Fatalf("the watch brought %+v, %v", c, err)
		}
		at = c.Rev
		for _, ch := range c.Changes {
			if got[ch.Key] = "deleted"; ch.Entry != nil {
				got[ch.Key] = string(ch.Entry.Value)
			}
		}
	}
	if want := "map[/changes:4 /comes:1 /goes:deleted]"; fmt.Sprint(got) != want {
		t.Errorf("the watch told %v, want %s", got, want)
	}
	put(t, db, "/stays", "2")
}

// TestReplacedCluster: the cluster comes back with an older state, as after a restore. The replica takes it
// over, and watches are told to list again.
func TestReplacedCluster(t *testing.T) {
	a := startOutage(t)
	conf := a.config()
	conf.Timeout = time.Second
	db := openAt(t, conf)
	for i := range 5 {
		put(t, db, "/a", fmt.Sprint(i))
	}
	ended := make(chan error, 1)
	go func() {
		for _, err := range db.Watch(t.Context(), "/", 0) {
			if err != nil {
				ended <- err
			}
		}
	}()
	a.kill(t)
	check(t, os.RemoveAll(filepath.Join(a.dir, "data")))
	a.restart(t)
	eventually(t, func() bool { return mayPut(t, db) })
	if got := value(t, db, "/a"); got != none {
		t.Errorf("/a = %s after the cluster was emptied", got)
	}
	if err := <-ended; !fault.Is(err, fault.Gone) {
		t.Errorf("the watch ended with %v", err)
	}
}

// TestFull: the quota is reached. Health says so, Updates say what to do, Views go on, Reclaim helps.
func TestFull(t *testing.T) {
	db := openAt(t, etcd.Config{Dir: t.TempDir(), Quota: 6 << 20})
	big := strings.Repeat("x", 1<<19)
	var err error
	for i := 0; err == nil; i++ {
		if i > 100 {
			t.Fatal("the quota is never reached")
		}
		_, err = db.Update(t.Context(), func(tx store.Tx) error { tx.Put(entry(fmt.Sprintf("/big/%d", i), big)); return nil })
	}
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "reclaim") {
		t.Fatalf("the full store says %v", err)
	}
	h, err := db.Health(t.Context())
	check(t, err)
	if !h.NoSpace || h.Limit != 6<<20 || h.Size < h.Limit/2 {
		t.Errorf("health of the full store = %+v", h)
	}
	if got := value(t, db, "/big/0"); len(got) < len(big) {
		t.Errorf("a view reads %d bytes", len(got))
	}
	check(t, db.Reclaim(t.Context()))
	put(t, db, "/a", "1")
	if h, err = db.Health(t.Context()); err != nil || h.NoSpace {
		t.Errorf("after Reclaim: %+v, %v", h, err)
	}
	check(t, db.Reclaim(t.Context())) // nothing to do is fine
}

// TestHistory: changing the same things for long does not fill the store.
func TestHistory(t *testing.T) {
	db := openAt(t, etcd.Config{Dir: t.TempDir(), Quota: 48 << 20})
	for i := range 96 {
		put(t, db, "/big", fmt.Sprint(i)+strings.Repeat("x", 1<<20-8))
	}
	h, err := db.Health(t.Context())
	check(t, err)
	if h.NoSpace || h.Size > h.Limit*9/10 {
		t.Errorf("after 96 MiB: %+v", h)
	}
	if unneeded, all, _ := db.Garbage(); unneeded > 8<<20 {
		t.Errorf("%d of %d bytes are not needed", unneeded, all)
	}
}

func TestDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "data")
	db := openAt(t, etcd.Config{Dir: dir})
	put(t, db, "/a", "1")
	_, err := etcd.Open(t.Context(), etcd.Config{Dir: dir})
	if !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) {
		t.Errorf("a second server in the directory got %v", err)
	}
	check(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v: others may look into it", path, info.Mode())
		}
		return err
	}))
	check(t, db.Close())
	again := openAt(t, etcd.Config{Dir: dir})
	if got := value(t, again, "/a"); got != "1" {
		t.Errorf("after a restart /a = %s", got)
	}
}

func TestBadConfig(t *testing.T) {
	for name, c := range map[string]etcd.Config{
		"nothing":         {},
		"both":            {Dir: "x", Endpoints: []string{"http://localhost:1"}},
		"no scheme":       {Endpoints: []string{"localhost:2379"}},
		"prefix":          {Dir: "x", Prefix: "verbena"},
		"prefix's end":    {Dir: "x", Prefix: "/verbena/"},
		"key missing":     {Endpoints: []string{"https://localhost:1"}, TLS: etcd.TLS{Cert: "x"}},
		"CA missing":      {Endpoints: []string{"https://localhost:1"}, TLS: etcd.TLS{CA: filepath.Join(t.TempDir(), "none")}},
		"CA is no PEM":    {Endpoints: []string{"https://localhost:1"}, TLS: etcd.TLS{CA: os.DevNull}},
		"no such pair":    {Endpoints: []string{"https://localhost:1"}, TLS: etcd.TLS{Cert: os.DevNull, Key: os.DevNull}},
		"URL with spaces": {Endpoints: []string{"http://a b"}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := etcd.Open(t.Context(), c); !fault.Is(err, fault.Invalid) {
				t.Errorf("Open = %v, want an Invalid fault", err)
			}
		})
	}
}

func TestWrongServer(t *testing.T) {
	a := startOutage(t)
	conf := a.config()
	conf.Timeout = 500 * time.Millisecond
	conf.TLS.ServerName = "another.test"
	_, err := etcd.Open(t.Context(), conf)
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "not another.test") {
		t.Errorf("a certificate for another name: %v", err)
	}
	conf = a.config()
	db := openAt(t, conf)
	_, err = db.Update(t.Context(), func(tx store.Tx) error {
		for i := range 96 {
			tx.Put(entry(fmt.Sprintf("/k%d", i), "x"))
		}
		return nil
	})
	if err != nil {
		t.Errorf("more keys than etcd takes operations: %v", err)
	}
	put(t, db, "/a", "1")
}

// TestManyKeys: more than one page at the start, some of them large.
func TestManyKeys(t *testing.T) {
	dir := t.TempDir()
	db := openAt(t, etcd.Config{Dir: dir})
	const keys = 3000
	for at := 0; at < keys; at += 500 {
		_, err := db.Update(t.Context(), func(tx store.Tx) error {
			for i := at; i < at+500; i++ {
				tx.Put(entry(fmt.Sprintf("/k/%05d", i), fmt.Sprint(i)))
			}
			return nil
		})
		check(t, err)
	}
	for i := range 12 {
		put(t, db, fmt.Sprintf("/l/%d", i), strings.Repeat("x", 1<<20))
	}
	check(t, db.Close())
	again := openAt(t, etcd.Config{Dir: dir})
	n := 0
	check(t, again.View(t.Context(), func(tx store.Tx) error {
		for range tx.Scan("", "") {
			n++
		}
		if got := number(tx, "/k/02999"); got != 2999 {
			t.Errorf("/k/02999 = %d", got)
		}
		return nil
	}))
	if n != keys+12 {
		t.Errorf("%d keys, want %d", n, keys+12)
	}
	if _, err := again.Client().Get(t.Context(), "/verbena/", clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil {
		t.Error(err)
	}
}
