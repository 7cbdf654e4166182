package tenant_test

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/mem"
	"github.com/verbena-cloud/verbena/internal/tenant"
	"github.com/verbena-cloud/verbena/internal/units"
)

func by() object.Who {
	return object.Who{Operator: true, Now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), UID: "u"}
}

type bench struct {
	t  testing.TB
	db store.DB
}

func open(t testing.TB, q api.Quota) bench {
	t.Helper()
	b := bench{t, mem.New()}
	if err := b.do(func(tx store.Tx) error {
		return tenant.Create(tx, &api.Tenant{Meta: api.Meta{Name: "research"}, Spec: api.TenantSpec{Quota: q}}, by())
	}); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b bench) do(f func(store.Tx) error) error {
	_, err := b.db.Update(b.t.Context(), f)
	return err
}

func (b bench) charge(uid string, a tenant.Ask) error {
	return b.do(func(tx store.Tx) error { return tenant.Charge(tx, "research", uid, a) })
}

func (b bench) sheet() map[string]int64 {
	out := map[string]int64{}
	o := b.get()
	for _, l := range o.Status.Usage {
		out[l.Resource] = l.Used
	}
	return out
}

func (b bench) get() *api.Tenant {
	b.t.Helper()
	var o *api.Tenant
	if err := b.db.View(b.t.Context(), func(tx store.Tx) error {
		var err error
		if o, err = object.Load[api.Tenant](tx, api.KindTenant, "", "research"); err != nil {
			return err
		}
		return tenant.Fill(tx, o)
	}); err != nil {
		b.t.Fatal(err)
	}
	return o
}

func wide() api.Quota {
	return api.Quota{VMs: 2, VCPUs: 16, Memory: "64GiB", VFs: 4, VFsPerFabric: map[string]int{"a": 3}, GuaranteedBandwidth: "10Gbps"}
}

func one() tenant.Ask {
	return tenant.Ask{VMs: 1, VCPUs: 8, Memory: 32 * units.GiB, VFs: map[string]int{"a": 2}, Bandwidth: 2 * units.Gbps}
}

func TestChargeCountsOncePerVM(t *testing.T) {
	b := open(t, wide())
	for range 3 {
		if err := b.charge("x", one()); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]int64{"vms": 1, "vcpus": 8, "memory": 32 << 30, "vfs": 2, "vfs/a": 2, "guaranteedBandwidth": 2e9}
	if diff := cmp.Diff(want, b.sheet()); diff != "" {
		t.Error(diff)
	}
	more := one()
	more.VFs = map[string]int{"a": 1, "b": 2}
	if err := b.charge("x", more); err != nil {
		t.Fatal(err)
	}
	want["vfs"], want["vfs/a"] = 3, 1
	if diff := cmp.Diff(want, b.sheet()); diff != "" {
		t.Error(diff)
	}
	for range 3 {
		if err := b.do(func(tx store.Tx) error { return tenant.Refund(tx, "research", "x") }); err != nil {
			t.Fatal(err)
		}
	}
	for k := range want {
		want[k] = 0
	}
	if diff := cmp.Diff(want, b.sheet()); diff != "" {
		t.Error(diff)
	}
}

func TestRefusalTellsTheNumbers(t *testing.T) {
	b := open(t, wide())
	if err := b.charge("x", one()); err != nil {
		t.Fatal(err)
	}
	ask := one()
	ask.VCPUs, ask.Bandwidth = 9, 9*units.Gbps
	err := b.charge("y", ask)
	e, ok := errors.AsType[*fault.Error](err)
	if !ok || e.Kind != fault.Quota {
		t.Fatalf("err = %v", err)
	}
	for _, want := range []string{"tenant research", "vcpus: 8 in use + 9 asked > 16 allowed", "vfs/a: 2 in use + 2 asked > 3 allowed", "guaranteedBandwidth: 2Gbps in use + 9Gbps asked > 10Gbps allowed"} {
		if !strings.Contains(e.Text, want) {
			t.Errorf("%q lacks %q", e.Text, want)
		}
	}
	sheet, ok := e.Detail.([]api.QuotaLine)
	if !ok {
		t.Fatalf("detail is %T", e.Detail)
	}
	over := map[string]bool{}
	for _, l := range sheet {
		if l.Exceeded {
			over[l.Resource] = true
		}
	}
	if diff := cmp.Diff(map[string]bool{"vcpus": true, "vfs/a": true, "guaranteedBandwidth": true}, over); diff != "" {
		t.Error(diff)
	}
	if got := b.sheet()["vms"]; got != 1 {
		t.Errorf("%d VMs are charged", got)
	}
}

func TestLoweredQuota(t *testing.T) {
	b := open(t, wide())
	if err := b.charge("x", one()); err != nil {
		t.Fatal(err)
	}
	if err := b.do(func(tx store.Tx) error {
		old, err := object.Load[api.Tenant](tx, api.KindTenant, "", "research")
		if err != nil {
			return err
		}
		next := *old
		next.Spec.Quota.VFs, next.Spec.Quota.VFsPerFabric = 1, nil
		return tenant.Update(tx, old, &next, by())
	}); err != nil {
		t.Fatal(err)
	}
	if c := object.Condition(b.get().Status.Conditions, "WithinQuota"); c.Status != "False" || !strings.Contains(c.Message, "vfs 2 of 1") {
		t.Errorf("%+v", c)
	}
	if err := b.charge("y", tenant.Ask{VMs: 1, VFs: map[string]int{"b": 1}}); !fault.Is(err, fault.Quota) {
		t.Errorf("err = %v", err)
	}
	if err := b.charge("y", tenant.Ask{VMs: 1}); err != nil { // none of what is exceeded
		t.Error(err)
	}
}

func TestMissingNumbersMeanNone(t *testing.T) {
	b := open(t, api.Quota{})
	for name, ask := range map[string]tenant.Ask{"vms": {VMs: 1}, "vcpus": {VCPUs: 1}, "memory": {Memory: 1}, "vfs": {VFs: map[string]int{"a": 1}}} {
		if err := b.charge("x", ask); !fault.Is(err, fault.Quota) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := b.charge("x", tenant.Ask{Bandwidth: 1 << 60}); err != nil { // empty = no bound
		t.Error(err)
	}
}

// TestSumsAreExact: after any history the sums are those of the claims that stand, and never over a limit.
func TestSumsAreExact(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := open(t, wide())
		claims := map[string]tenant.Ask{}
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			uid := rapid.SampledFrom([]string{"x", "y", "z"}).Draw(rt, "uid")
			if rapid.IntRange(0, 2).Draw(rt, "action") == 0 {
				if err := b.do(func(tx store.Tx) error { return tenant.Refund(tx, "research", uid) }); err != nil {
					rt.Fatal(err)
				}
				delete(claims, uid)
				continue
			}
			n := rapid.IntRange(0, 3)
			a := tenant.Ask{VMs: 1, VCPUs: 4 * n.Draw(rt, "vcpus"), Memory: units.Bytes(n.Draw(rt, "memory")) * 16 * units.GiB, VFs: map[string]int{"a": n.Draw(rt, "a"), "b": n.Draw(rt, "b")}, Bandwidth: units.Rate(n.Draw(rt, "rate")) * units.Gbps}
			switch err := b.charge(uid, a); {
			case err == nil:
				claims[uid] = a
			case !fault.Is(err, fault.Quota):
				rt.Fatal(err)
			}
			want := map[string]int64{"vms": 0, "vcpus": 0, "memory": 0, "vfs": 0, "vfs/a": 0, "guaranteedBandwidth": 0}
			for c := range maps.Values(claims) {
				want["vms"]++
				want["vcpus"] += int64(c.VCPUs)
				want["memory"] += int64(c.Memory)
				want["vfs"] += int64(c.VFs["a"] + c.VFs["b"])
				want["vfs/a"] += int64(c.VFs["a"])
				want["guaranteedBandwidth"] += int64(c.Bandwidth)
			}
			if diff := cmp.Diff(want, b.sheet()); diff != "" {
				rt.Fatal(diff)
			}
			for _, l := range b.get().Status.Usage {
				if l.Used > l.Limit {
					rt.Fatalf("%+v", l)
				}
			}
		}
	})
}

func TestDeleteRefusedWhileAnythingIsLeft(t *testing.T) {
	b := open(t, wide())
	remove := func() error { return b.do(func(tx store.Tx) error { return tenant.Delete(tx, b.get(), by()) }) }
	for _, k := range []api.Kind{api.KindVM, api.KindNetwork, api.KindSecurityGroup} {
		if err := b.do(func(tx store.Tx) error {
			tx.Put(store.NewEntry(object.Key(k, "research", "left"), []byte("{}"), nil))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := remove(); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), string(k)+" left") {
			t.Errorf("err = %v", err)
		}
		if err := b.do(func(tx store.Tx) error { object.Remove(tx, k, "research", "left"); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.charge("x", one()); err != nil {
		t.Fatal(err)
	}
	if err := remove(); !fault.Is(err, fault.Conflict) {
		t.Errorf("err = %v", err)
	}
	if err := b.do(func(tx store.Tx) error { return tenant.Refund(tx, "research", "x") }); err != nil {
		t.Fatal(err)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
}

func TestEveryFaultInOneAnswer(t *testing.T) {
	db := mem.New()
	o := &api.Tenant{Meta: api.Meta{Name: strings.Repeat("x", 300)}, Spec: api.TenantSpec{
		Quota:   api.Quota{VMs: -1, VCPUs: -1, VFs: -1, Memory: "64", GuaranteedBandwidth: "fast", VFsPerFabric: map[string]int{"A": -1}},
		Members: []api.Member{{User: "ann", Role: "king"}, {User: "ann", Role: "viewer"}, {User: "a\x00", Role: "viewer"}},
	}}
	_, err := db.Update(t.Context(), func(tx store.Tx) error { return tenant.Create(tx, o, by()) })
	e, ok := errors.AsType[*fault.Error](err)
	if !ok || e.Kind != fault.Invalid {
		t.Fatalf("err = %v", err)
	}
	var got []string
	for _, f := range e.Fields {
		got = append(got, f.Path)
	}
	want := []string{
		"name", "spec.quota.vms", "spec.quota.vcpus", "spec.quota.vfs", "spec.quota.memory", "spec.quota.guaranteedBandwidth", "spec.quota.vfsPerFabric", "spec.quota.vfsPerFabric.A",
		"spec.members[0].role", "spec.members[1].user", "spec.members[2].user",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestDuplicateAndMissing(t *testing.T) {
	b := open(t, wide())
	err := b.do(func(tx store.Tx) error {
		return tenant.Create(tx, &api.Tenant{Meta: api.Meta{Name: "research"}}, by())
	})
	if !fault.Is(err, fault.Conflict) {
		t.Errorf("err = %v", err)
	}
	err = b.do(func(tx store.Tx) error { return tenant.Charge(tx, "nobody", "x", one()) })
	if !fault.Is(err, fault.NotFound) {
		t.Errorf("err = %v", err)
	}
}
