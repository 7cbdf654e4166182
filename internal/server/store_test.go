package server

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/backup"
	"github.com/verbena-cloud/verbena/internal/store/mem"
)

// TestBackupWhileServing: what the route sends restores into an empty store, object for object.
func TestBackupWhileServing(t *testing.T) {
	f := newFixture(t)
	if a := f.do("admin", http.MethodPost, "/v1/tenants", `{"kind":"Tenant","name":"physics","spec":{"quota":{"vms":1,"vcpus":1,"memory":"1GiB","vfs":0}}}`); a.StatusCode != http.StatusCreated {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	a := f.do("admin", http.MethodPost, "/v1/store/backup", nil)
	if a.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	file := filepath.Join(t.TempDir(), "b")
	if err := os.WriteFile(file, []byte(a.body), 0o600); err != nil {
		t.Fatal(err)
	}
	into := mem.New()
	defer into.Close()
	if _, err := backup.RestoreFile(t.Context(), file, into); err != nil {
		t.Fatal(err)
	}
	err := into.View(t.Context(), func(tx store.Tx) error {
		_, err := object.Load[api.Tenant](tx, api.KindTenant, "", "physics")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, who := range []string{"op", "auditor", "ann", "nobody", "h1"} {
		if a := f.do(who, http.MethodPost, "/v1/store/backup", nil); a.StatusCode == http.StatusOK || strings.Contains(a.body, "verbena-backup") {
			t.Errorf("%s got a backup: %d", who, a.StatusCode)
		}
	}
}

// filled is a store with an alarm that only Reclaim lifts.
type filled struct {
	store.DB
	full bool
}

func (f *filled) Health(ctx context.Context) (store.Health, error) {
	h, err := f.DB.Health(ctx)
	h.NoSpace = f.full
	return h, err
}

func (f *filled) Reclaim(context.Context) error {
	f.full = false
	return nil
}

// TestReclaim: an operator sees the alarm as a condition and lifts it by one call.
func TestReclaim(t *testing.T) {
	db := &filled{DB: mem.New(), full: true}
	t.Cleanup(func() { _ = db.Close() })
	f := newFixtureOn(t, db)
	if a := f.do("op", http.MethodGet, "/v1/status", nil); !strings.Contains(a.body, "NoSpace") {
		t.Fatalf("the alarm does not show: %s", a.body)
	}
	if a := f.do("ann", http.MethodPost, "/v1/store/reclaim", nil); a.StatusCode != http.StatusForbidden {
		t.Errorf("a tenant's owner may reclaim: %d", a.StatusCode)
	}
	a := f.do("op", http.MethodPost, "/v1/store/reclaim", nil)
	if a.StatusCode != http.StatusOK || strings.Contains(a.body, "NoSpace") || db.full {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	plain := newFixture(t)
	if a := plain.do("op", http.MethodPost, "/v1/store/reclaim", nil); a.StatusCode/100 == 2 || strings.Contains(a.body, "panic") {
		t.Errorf("a store without the means: %d %s", a.StatusCode, a.body)
	}
}
