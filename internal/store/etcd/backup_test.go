package etcd_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/backup"
	"github.com/verbena-cloud/verbena/internal/store/etcd"
)

// TestBackupMoves takes a state from an embedded member to an external cluster and on into a new directory.
func TestBackupMoves(t *testing.T) {
	dir := t.TempDir()
	stamp := backup.Stamp{Made: time.Now(), By: "test"}
	first := openAt(t, etcd.Config{Dir: filepath.Join(dir, "a")})
	for at := range 3 {
		_, err := first.Update(t.Context(), func(tx store.Tx) error {
			for i := range 150 {
				tx.Put(entry(fmt.Sprintf("/o/VM/t%d/%d", at, i), fmt.Sprint(i)))
			}
			return nil
		})
		check(t, err)
	}
	second := openAt(t, startApart(t, dir, freePort(t)).config())
	third := openAt(t, etcd.Config{Dir: filepath.Join(dir, "b")})
	from := first
	for i, to := range []*etcd.DB{second, third} {
		path := filepath.Join(dir, fmt.Sprint(i, ".backup"))
		wrote, err := backup.WriteFile(t.Context(), from, path, stamp)
		check(t, err)
		read, err := backup.RestoreFile(t.Context(), path, to)
		check(t, err)
		if wrote.Count != 450 || read != wrote {
			t.Errorf("wrote %+v, restored %+v", wrote, read)
		}
		if got := value(t, to, "/o/VM/t2/149"); got != "149" {
			t.Errorf("/o/VM/t2/149 = %s", got)
		}
		_, err = backup.RestoreFile(t.Context(), path, to)
		if !fault.Is(err, fault.Conflict) {
			t.Errorf("a restore over data got %v", err)
		}
		from = to
	}
}
