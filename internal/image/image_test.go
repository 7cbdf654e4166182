package image_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/image"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/mem"
)

func by() object.Who {
	return object.Who{Operator: true, Now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), UID: "u"}
}

func named(s api.ImageSpec) *api.Image { return &api.Image{Meta: api.Meta{Name: "i"}, Spec: s} }

func create(t *testing.T, s api.ImageSpec) error {
	t.Helper()
	_, err := mem.New().Update(t.Context(), func(tx store.Tx) error { return image.Create(tx, named(s), by()) })
	return err
}

func TestAccepted(t *testing.T) {
	sum := strings.Repeat("0f", 32)
	for _, s := range []api.ImageSpec{
		{Source: "/var/lib/images/debian.qcow2"},
		{Source: "https://images.example.org/debian.qcow2", SHA256: sum, Format: "raw", GuestDrivers: map[string]string{"mlx5_core": "6.12"}},
	} {
		if err := create(t, s); err != nil {
			t.Error(err)
		}
	}
}

func TestRefused(t *testing.T) {
	sum := strings.Repeat("0f", 32)
	for _, tt := range []struct {
		spec api.ImageSpec
		path []string
	}{
		{api.ImageSpec{}, []string{"spec.source"}},
		{api.ImageSpec{Source: "http://a/b", SHA256: sum}, []string{"spec.source"}},
		{api.ImageSpec{Source: "https://user:secret@a/b", SHA256: sum}, []string{"spec.source"}},
		{api.ImageSpec{Source: "file:///etc/passwd", SHA256: sum}, []string{"spec.source"}},
		{api.ImageSpec{Source: "/images/../../etc/shadow"}, []string{"spec.source"}},
		{api.ImageSpec{Source: "/a\nb"}, []string{"spec.source"}},
		{api.ImageSpec{Source: "https://a/b"}, []string{"spec.sha256"}},
		{api.ImageSpec{Source: "/a", SHA256: "0F" + sum[2:], Format: "vmdk", OS: strings.Repeat("x", 65), GuestDrivers: map[string]string{"": "1"}}, []string{"spec.sha256", "spec.format", "spec.os", "spec.guestDrivers"}},
	} {
		e, ok := errors.AsType[*fault.Error](create(t, tt.spec))
		if !ok || e.Kind != fault.Invalid {
			t.Errorf("%+v: %v", tt.spec, e)
			continue
		}
		if strings.Contains(e.Error(), "secret") {
			t.Errorf("a password is repeated: %v", e)
		}
		var got []string
		for _, f := range e.Fields {
			got = append(got, f.Path)
		}
		if diff := cmp.Diff(tt.path, got); diff != "" {
			t.Error(diff)
		}
	}
}

func TestInUse(t *testing.T) {
	db := mem.New()
	do := func(f func(store.Tx) error) error { _, err := db.Update(t.Context(), f); return err }
	o := named(api.ImageSpec{Source: "/a"})
	if err := do(func(tx store.Tx) error {
		if err := image.Create(tx, o, by()); err != nil {
			return err
		}
		return object.Save(tx, &api.VM{Meta: api.Meta{Kind: api.KindVM, Tenant: "t", Name: "v"}, Spec: api.VMSpec{Image: "i"}})
	}); err != nil {
		t.Fatal(err)
	}
	if err := do(func(tx store.Tx) error { return image.Update(tx, o, named(api.ImageSpec{Source: "/b"}), by()) }); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "t/v") {
		t.Errorf("err = %v", err)
	}
	if err := do(func(tx store.Tx) error {
		return image.Update(tx, o, named(api.ImageSpec{Source: "/a", Format: "qcow2", RDMAReady: true}), by())
	}); err != nil {
		t.Error(err)
	}
	if err := do(func(tx store.Tx) error { return image.Delete(tx, o, by()) }); !fault.Is(err, fault.Conflict) {
		t.Errorf("err = %v", err)
	}
	if err := do(func(tx store.Tx) error { return image.Create(tx, named(api.ImageSpec{Source: "/a"}), by()) }); !fault.Is(err, fault.Conflict) {
		t.Errorf("err = %v", err)
	}
	if err := do(func(tx store.Tx) error {
		object.Remove(tx, api.KindVM, "t", "v")
		if err := image.Update(tx, o, named(api.ImageSpec{Source: "/b"}), by()); err != nil {
			return err
		}
		return image.Delete(tx, o, by())
	}); err != nil {
		t.Error(err)
	}
}
