package backup_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/backup"
	"github.com/verbena-cloud/verbena/internal/store/mem"
)

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func stamp() backup.Stamp {
	return backup.Stamp{Made: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC), By: "test"}
}

// filled returns a store with n entries, some of them large and some with bytes that are no text.
func filled(tb testing.TB, n int) store.DB {
	tb.Helper()
	db := mem.New()
	for i := range n {
		v := []byte(fmt.Sprintf(`{"n":%d}`, i))
		if i%50 == 7 {
			v = bytes.Repeat([]byte{0xff, 0, '\n'}, 30_000)
		}
		_, err := db.Update(tb.Context(), func(tx store.Tx) error {
			tx.Put(store.NewEntry(fmt.Sprintf("/o/VM/ai/%05d", i), v, nil))
			return nil
		})
		check(tb, err)
	}
	return db
}

func dump(tb testing.TB, db store.DB) map[string]string {
	tb.Helper()
	out := map[string]string{}
	check(tb, db.View(tb.Context(), func(tx store.Tx) error {
		for e := range tx.Scan("", "") {
			out[e.Key] = string(e.Value)
		}
		return nil
	}))
	return out
}

func same(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || w != v {
			return false
		}
	}
	return true
}

func wantKind(t *testing.T, err error, k fault.Kind) {
	t.Helper()
	if !fault.Is(err, k) {
		t.Fatalf("error is %v (%s), want kind %s", err, fault.KindOf(err), k)
	}
}

func TestRoundTrip(t *testing.T) {
	for _, n := range []int{0, 1, 99, 100, 101, 350} {
		db := filled(t, n)
		path := filepath.Join(t.TempDir(), "a.backup")
		wrote, err := backup.WriteFile(t.Context(), db, path, stamp())
		check(t, err)
		info, err := os.Stat(path)
		check(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("mode is %v", info.Mode())
		}
		into := mem.New()
		read, err := backup.RestoreFile(t.Context(), path, into)
		check(t, err)
		if wrote != read || read.Count != n {
			t.Errorf("wrote %+v, read %+v, want %d entries", wrote, read, n)
		}
		if !same(dump(t, db), dump(t, into)) {
			t.Errorf("%d entries came back otherwise", n)
		}
		check(t, backup.Check(t.Context(), into))
	}
}

func TestOneRevision(t *testing.T) {
	db := mem.New()
	for i := range 20 {
		put(t, db, fmt.Sprintf("/a/%02d", i), "old")
	}
	w := &meddler{after: 300, do: func() {
		for i := range 20 {
			put(t, db, fmt.Sprintf("/a/%02d", i), "new")
		}
	}}
	s, err := backup.Write(t.Context(), db, w, stamp())
	check(t, err)
	h, err := backup.Read(&w.Buffer, func(e backup.Entry) error {
		if string(e.Value) != "old" {
			return fmt.Errorf("%s is %q, which was written after the backup began", e.Key, e.Value)
		}
		return nil
	})
	check(t, err)
	if h.Revision != s.Revision || h.Count != 20 || w.do != nil {
		t.Errorf("header %+v, summary %+v", h, s)
	}
}

// meddler changes the store while its backup is being written.
type meddler struct {
	bytes.Buffer
	after int
	do    func()
}

func (m *meddler) Write(b []byte) (int, error) {
	if m.do != nil && m.Len()+len(b) > m.after {
		m.do()
		m.do = nil
	}
	return m.Buffer.Write(b)
}

func put(tb testing.TB, db store.DB, key, value string) {
	tb.Helper()
	_, err := db.Update(tb.Context(), func(tx store.Tx) error {
		tx.Put(store.NewEntry(key, []byte(value), nil))
		return nil
	})
	check(tb, err)
}

func TestNeverReplaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.backup")
	check(t, os.WriteFile(path, []byte("precious"), 0o600))
	_, err := backup.WriteFile(t.Context(), filled(t, 3), path, stamp())
	wantKind(t, err, fault.Conflict)
	if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
		t.Errorf("the file is %q, %v", b, err)
	}
	into := mem.New()
	put(t, into, "/a", "precious")
	good := filepath.Join(t.TempDir(), "b.backup")
	_, err = backup.WriteFile(t.Context(), filled(t, 3), good, stamp())
	check(t, err)
	_, err = backup.RestoreFile(t.Context(), good, into)
	wantKind(t, err, fault.Conflict)
	if got := dump(t, into); !same(got, map[string]string{"/a": "precious"}) {
		t.Errorf("the store is %v", got)
	}
}

func TestNothingHalfDoneStays(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	db := brokenDB{DB: filled(t, 120), scans: func() { cancel() }}
	_, err := backup.WriteFile(ctx, db, filepath.Join(dir, "a.backup"), stamp())
	wantKind(t, err, fault.Deadline)
	left, err := os.ReadDir(dir)
	check(t, err)
	if len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	_, err = backup.WriteFile(t.Context(), filled(t, 1), filepath.Join(dir, "none", "a.backup"), stamp())
	wantKind(t, err, fault.Unavailable)
}

// brokenDB fails its nth Update, and calls scans when a view begins.
type brokenDB struct {
	store.DB
	left  *int
	scans func()
}

var errBroken = errors.New("simulated: the store broke")

func (b brokenDB) View(ctx context.Context, f func(store.Tx) error) error {
	return b.DB.View(ctx, func(tx store.Tx) error {
		if b.scans != nil {
			b.scans()
		}
		return f(tx)
	})
}

func (b brokenDB) Update(ctx context.Context, f func(store.Tx) error) (int64, error) {
	if *b.left--; *b.left < 0 {
		return 0, errBroken
	}
	return b.DB.Update(ctx, f)
}

// TestBrokenOffAnywhere breaks every commit of a restore in turn: the store is marked until a second run
// has put everything.
func TestBrokenOffAnywhere(t *testing.T) {
	db := filled(t, 350)
	path := filepath.Join(t.TempDir(), "a.backup")
	_, err := backup.WriteFile(t.Context(), db, path, stamp())
	check(t, err)
	want := dump(t, db)
	for fail := 0; ; fail++ {
		into, left := mem.New(), fail
		_, err := backup.RestoreFile(t.Context(), path, brokenDB{DB: into, left: &left})
		if err == nil {
			if fail < 4 {
				t.Fatalf("the restore took %d commits only", fail)
			}
			break
		}
		if !errors.Is(err, errBroken) {
			t.Fatal(err)
		}
		if fail > 0 {
			wantKind(t, backup.Check(t.Context(), into), fault.Unready)
			_, err = backup.Write(t.Context(), into, &bytes.Buffer{}, stamp())
			wantKind(t, err, fault.Unready)
		}
		_, err = backup.RestoreFile(t.Context(), path, into)
		check(t, err)
		check(t, backup.Check(t.Context(), into))
		if !same(dump(t, into), want) {
			t.Fatalf("commit %d broken: the second run restored something else", fail)
		}
	}
}

func TestFullDisk(t *testing.T) {
	db := filled(t, 60)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no /dev/full here")
	}
	defer full.Close()
	if _, err := backup.Write(t.Context(), db, full, stamp()); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("on a full disk Write = %v", err)
	}
	var whole bytes.Buffer
	_, err = backup.Write(t.Context(), db, &whole, stamp())
	check(t, err)
	for room := 0; room < whole.Len(); room += 1 + whole.Len()/97 {
		if _, err := backup.Write(t.Context(), db, &disk{room: room}, stamp()); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("with room for %d of %d bytes Write = %v", room, whole.Len(), err)
		}
	}
}

type disk struct{ room int }

func (d *disk) Write(b []byte) (int, error) {
	if len(b) > d.room {
		return d.room, syscall.ENOSPC
	}
	d.room -= len(b)
	return len(b), nil
}

func sample(tb testing.TB, n int) []byte {
	tb.Helper()
	db := mem.New()
	for i := range n {
		put(tb, db, fmt.Sprintf("/k/%d", i), fmt.Sprint(i))
	}
	var b bytes.Buffer
	_, err := backup.Write(tb.Context(), db, &b, stamp())
	check(tb, err)
	return b.Bytes()
}

func nothing(backup.Entry) error { return nil }

// TestAnyDamageIsSeen cuts and changes a backup at every byte.
func TestAnyDamageIsSeen(t *testing.T) {
	good := sample(t, 4)
	_, err := backup.Read(bytes.NewReader(good), nothing)
	check(t, err)
	for i := range good {
		if _, err := backup.Read(bytes.NewReader(good[:i]), nothing); err == nil {
			t.Fatalf("a backup cut after %d bytes is taken for whole", i)
		}
		bad := bytes.Clone(good)
		bad[i] ^= 1
		if _, err := backup.Read(bytes.NewReader(bad), nothing); err == nil && !harmless(good, i) {
			t.Fatalf("a change of byte %d, %q, is not seen", i, good[i])
		}
	}
	if _, err := backup.Read(bytes.NewReader(append(good, '\n')), nothing); err == nil {
		t.Error("a line after the end is not seen")
	}
}

// harmless: field names of the last line may change case, and its text may be spaced otherwise; it says the
// same then.
func harmless(good []byte, i int) bool {
	return i > bytes.LastIndex(good[:len(good)-1], []byte("\n")) && good[i] != '"'
}

func TestBadFiles(t *testing.T) {
	head := `{"format":"verbena-backup","version":1,"revision":1,"count":1,"made":"2026-05-01T12:00:00Z"}` + "\n"
	for name, text := range map[string]string{
		"empty":         "",
		"not ours":      "PK\x03\x04\n",
		"newer":         strings.Replace(head, `"version":1`, `"version":2`, 1),
		"negative":      strings.Replace(head, `"count":1`, `"count":-1`, 1),
		"unknown field": strings.Replace(head, `"count"`, `"extra":1,"count"`, 1),
		"huge count":    strings.Replace(head, `"count":1`, `"count":1000000000000`, 1),
		"no entries":    head,
		"bad key":       head + `{"key":"a","value":"","created":1,"rev":1}` + "\n",
		"two documents": head + `{"key":"/a","value":"","created":1,"rev":1}{}` + "\n",
		"long line":     head + `{"key":"/a","value":"` + strings.Repeat("A", 5<<20) + `"}` + "\n",
	} {
		_, err := backup.Read(strings.NewReader(text), nothing)
		if !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	path := filepath.Join(t.TempDir(), "bad")
	check(t, os.WriteFile(path, sample(t, 4)[:100], 0o600))
	into := mem.New()
	_, err := backup.RestoreFile(t.Context(), path, into)
	wantKind(t, err, fault.Invalid)
	if got := dump(t, into); len(got) != 0 {
		t.Errorf("a bad backup put %v", got)
	}
	_, err = backup.RestoreFile(t.Context(), filepath.Join(t.TempDir(), "none"), into)
	wantKind(t, err, fault.Invalid)
}

func TestAnyValues(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		want := rapid.MapOf(rapid.StringMatching(`/[a-c\x00-\xff]{1,8}`), rapid.SliceOf(rapid.Byte())).Draw(rt, "state")
		db := mem.New()
		_, err := db.Update(t.Context(), func(tx store.Tx) error {
			for k, v := range want {
				if k != "/restoring" && k != "/commit" {
					tx.Put(store.NewEntry(k, v, nil))
				}
			}
			return nil
		})
		check(t, err)
		var b bytes.Buffer
		_, err = backup.Write(t.Context(), db, &b, stamp())
		check(t, err)
		got := map[string]string{}
		_, err = backup.Read(&b, func(e backup.Entry) error { got[e.Key] = string(e.Value); return nil })
		check(t, err)
		if !same(got, dump(t, db)) {
			rt.Fatalf("got %v, want %v", got, want)
		}
	})
}

func FuzzRead(f *testing.F) {
	good := sample(f, 3)
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add(bytes.Replace(good, []byte("\n"), []byte("\r\n"), 2))
	f.Add([]byte(`{"format":"verbena-backup","version":1,"count":0}` + "\n" + `{"sha256":"","count":0}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, last := 0, ""
		h, err := backup.Read(bytes.NewReader(b), func(e backup.Entry) error {
			if n++; e.Key <= last {
				t.Fatalf("%q after %q", e.Key, last)
			}
			last = e.Key
			return nil
		})
		if err == nil && n != h.Count {
			t.Fatalf("%d entries, the header says %d", n, h.Count)
		}
	})
}
