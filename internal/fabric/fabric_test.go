package fabric_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fabric"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/sched"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/mem"
)

func by() object.Who {
	return object.Who{Operator: true, Now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), UID: "u"}
}

func ptr(n int) *int { return &n }

func good() *api.Fabric {
	return &api.Fabric{Meta: api.Meta{Name: "a"}, Spec: api.FabricSpec{Speed: "100Gbps", VLANPool: []string{"100-199", "300"}}}
}

func TestPool(t *testing.T) {
	for in, want := range map[string]string{
		"100": "100", "100-199": "100-199", "5,3,4": "3-5", "10-20,15-30": "10-30", "1-4094": "1-4094", "7-7": "7", "1-2,4-5": "1-2,4-5", "10-30,12-13": "10-30",
	} {
		p, err := fabric.ParsePool(strings.Split(in, ","))
		if err != nil || p.String() != want {
			t.Errorf("%s: %s, %v; want %s", in, p, err, want)
		}
	}
	for _, bad := range []string{"", "0", "4095", "1-4095", "-5", "5-", "a", "1-2-3", "20-10", "+5", "05", "1 - 2", "１", "99999999999999999999", "0x10", "5-0x"} {
		if p, err := fabric.ParsePool([]string{bad}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q gave %s, %v", bad, p, err)
		}
	}
}

func FuzzPool(f *testing.F) {
	for _, s := range []string{"100-199", "1,2,3", "4094", "5-1", "", "-", "1-1,1-4094"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := fabric.ParsePool(strings.Split(s, ","))
		if err != nil {
			if len(err.Error()) > 300 {
				t.Errorf("text is %q", err)
			}
			return
		}
		again, err := fabric.ParsePool(strings.Split(p.String(), ","))
		if err != nil || again.String() != p.String() || again.Size() != p.Size() {
			t.Errorf("%q: %s, then %s (%v)", s, p, again, err)
		}
		n := 0
		for id := range 5000 {
			if p.Has(id) {
				n++
			}
		}
		if n != p.Size() || p.Has(0) || p.Has(4095) {
			t.Errorf("%q: size %d, has %d", s, p.Size(), n)
		}
	})
}

func TestDefaults(t *testing.T) {
	r, err := fabric.Resolve(good())
	if err != nil || r.MTU != 4200 || r.Priority != 3 || r.DSCP != 26 || r.CNPDSCP != 48 || r.Speed != 100e9 || r.Pool.Size() != 101 {
		t.Errorf("%+v, %v", r, err)
	}
	set := good()
	if set.Spec.NICQoS = "apply"; r.SetNICs {
		t.Error("NICs are set without being asked to")
	}
	if r, err := fabric.Resolve(set); err != nil || !r.SetNICs {
		t.Errorf("%+v, %v", r, err)
	}
	zero := good()
	zero.Spec.Priority, zero.Spec.DSCP = ptr(0), ptr(0)
	if r, err := fabric.Resolve(zero); err != nil || r.Priority != 0 || r.DSCP != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestEveryFaultInOneAnswer(t *testing.T) {
	db := mem.New()
	o := &api.Fabric{Meta: api.Meta{Name: "Bad Name"}, Spec: api.FabricSpec{Speed: "100", MTU: 100, Priority: ptr(8), DSCP: ptr(64), CNPDSCP: ptr(-1), NICQoS: "maybe", VLANPool: []string{"0"}}}
	_, err := db.Update(t.Context(), func(tx store.Tx) error { return fabric.Create(tx, o, by()) })
	e, ok := errors.AsType[*fault.Error](err)
	if !ok || e.Kind != fault.Invalid {
		t.Fatalf("err = %v", err)
	}
	var got []string
	for _, f := range e.Fields {
		got = append(got, f.Path)
	}
	if diff := cmp.Diff([]string{"name", "spec.speed", "spec.mtu", "spec.priority", "spec.dscp", "spec.cnpDSCP", "spec.nicQoS", "spec.vlanPool"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestPoolKeepsWhatNetworksHold(t *testing.T) {
	db := mem.New()
	do := func(f func(store.Tx) error) error { _, err := db.Update(t.Context(), f); return err }
	if err := do(func(tx store.Tx) error {
		type holder struct{}
		tx.Put(store.NewEntry(object.VLANKey("a", 150), []byte(`{}`), &holder{}))
		return fabric.Create(tx, good(), by())
	}); err != nil {
		t.Fatal(err)
	}
	change := func(edit func(*api.FabricSpec)) error {
		return do(func(tx store.Tx) error {
			old, err := object.Load[api.Fabric](tx, api.KindFabric, "", "a")
			if err != nil {
				return err
			}
			next := *old
			edit(&next.Spec)
			return fabric.Update(tx, old, &next, by())
		})
	}
	if err := change(func(s *api.FabricSpec) { s.VLANPool = []string{"100-149"} }); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "150") {
		t.Errorf("err = %v", err)
	}
	if err := change(func(s *api.FabricSpec) { s.VLANPool = []string{"150"} }); err != nil {
		t.Error(err)
	}
	o, err := func() (o *api.Fabric, err error) {
		err = db.View(t.Context(), func(tx store.Tx) error {
			if o, err = object.Load[api.Fabric](tx, api.KindFabric, "", "a"); err != nil {
				return err
			}
			return fabric.Fill(tx, o)
		})
		return o, err
	}()
	if err != nil || o.Status.VLANsFree != 0 {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestDeleteNamesTheUsers(t *testing.T) {
	db := mem.New()
	do := func(f func(store.Tx) error) error { _, err := db.Update(t.Context(), f); return err }
	if err := do(func(tx store.Tx) error {
		if err := fabric.Create(tx, good(), by()); err != nil {
			return err
		}
		if err := object.Save(tx, &api.Network{Meta: api.Meta{Kind: api.KindNetwork, Tenant: "t", Name: "n"}, Spec: api.NetworkSpec{Fabric: "a", MTU: 4000}}); err != nil {
			return err
		}
		if err := object.Save(tx, &api.Flavor{Meta: api.Meta{Kind: api.KindFlavor, Name: "f"}, Spec: api.FlavorSpec{RDMA: &api.RDMA{Fabric: "a", MaxRate: "50Gbps"}}}); err != nil {
			return err
		}
		return object.Save(tx, &api.Host{Meta: api.Meta{Kind: api.KindHost, Name: "h"}, Spec: api.HostSpec{PFs: []api.HostPF{{Fabric: "a"}}}})
	}); err != nil {
		t.Fatal(err)
	}
	err := do(func(tx store.Tx) error { return fabric.Delete(tx, good(), by()) })
	for _, want := range []string{"flavor f", "host h", "network t/n"} {
		if !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), want) {
			t.Errorf("err = %v, want it to name %s", err, want)
		}
	}
	for what, edit := range map[string]func(*api.FabricSpec){
		"network n": func(s *api.FabricSpec) { s.MTU = 1500 },
		"flavor f":  func(s *api.FabricSpec) { s.Speed = "25Gbps" },
	} {
		err := do(func(tx store.Tx) error {
			next := good()
			edit(&next.Spec)
			return fabric.Update(tx, good(), next, by())
		})
		if !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), what) {
			t.Errorf("err = %v, want it to name %s", err, what)
		}
	}
	if err := do(func(tx store.Tx) error {
		object.Remove(tx, api.KindNetwork, "t", "n")
		object.Remove(tx, api.KindFlavor, "", "f")
		object.Remove(tx, api.KindHost, "", "h")
		return fabric.Delete(tx, good(), by())
	}); err != nil {
		t.Error(err)
	}
}

func TestFillCountsVFs(t *testing.T) {
	db := mem.New()
	h := &sched.Host{Name: "h", PFs: []sched.PF{
		{Key: "p0", Fabric: "a", Ready: true, VFs: 4, Parked: sched.Bits{0b1111}, Claimed: sched.Bits{0b0001}},
		{Key: "p1", Fabric: "b", Ready: true, VFs: 4, Parked: sched.Bits{0b1111}},
		{Key: "p2", Fabric: "a", VFs: 2, Parked: sched.Bits{0b11}},
	}}
	o := good()
	if _, err := db.Update(t.Context(), func(tx store.Tx) error {
		if err := store.Put(tx, object.LedgerKey("h"), h); err != nil {
			return err
		}
		return fabric.Fill(tx, o)
	}); err != nil {
		t.Fatal(err)
	}
	if o.Status.VFs != 6 || o.Status.VFsFree != 3 || o.Status.VLANsFree != 101 {
		t.Errorf("%+v", o.Status)
	}
}
