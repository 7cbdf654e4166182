package host_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fabric"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/host"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/sched"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/mem"
	"github.com/verbena-cloud/verbena/internal/wire"
)

func now() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

func by() object.Who { return object.Who{Operator: true, Now: now(), UID: "u"} }

type bench struct {
	t  testing.TB
	db store.DB
}

func open(t testing.TB) bench {
	t.Helper()
	b := bench{t, mem.New()}
	b.must(func(tx store.Tx) error {
		return fabric.Create(tx, &api.Fabric{Meta: api.Meta{Name: "a"}, Spec: api.FabricSpec{Speed: "25Gbps", VLANPool: []string{"100-103"}}}, by())
	})
	return b
}

func (b bench) do(f func(store.Tx) error) error {
	_, err := b.db.Update(b.t.Context(), f)
	return err
}

func (b bench) must(f func(store.Tx) error) {
	b.t.Helper()
	if err := b.do(f); err != nil {
		b.t.Fatal(err)
	}
}

func (b bench) create(s api.HostSpec) {
	b.t.Helper()
	b.must(func(tx store.Tx) error {
		return host.Create(tx, &api.Host{Meta: api.Meta{Name: "h"}, Spec: s}, by())
	})
}

func (b bench) observe(inv *api.Inventory) (changed bool) {
	b.t.Helper()
	b.must(func(tx store.Tx) (err error) {
		changed, err = host.Observed(tx, "h", inv, now())
		return err
	})
	return changed
}

func (b bench) get() *api.Host {
	b.t.Helper()
	var o *api.Host
	if err := b.db.View(b.t.Context(), func(tx store.Tx) (err error) {
		if o, err = object.Load[api.Host](tx, api.KindHost, "", "h"); err != nil {
			return err
		}
		return host.Fill(tx, o)
	}); err != nil {
		b.t.Fatal(err)
	}
	return o
}

func (b bench) ledger() sched.Host {
	b.t.Helper()
	var h sched.Host
	if err := b.db.View(b.t.Context(), func(tx store.Tx) error {
		p, err := store.Peek[sched.Host](tx.Get(object.LedgerKey("h")))
		if err == nil {
			h = *p
		}
		return err
	}); err != nil {
		b.t.Fatal(err)
	}
	return h
}

// hold makes a VM hold VFs of a PF and a quarter of node 0.
func (b bench) hold(uid, pf string, vfs ...int) {
	b.t.Helper()
	b.must(func(tx store.Tx) error {
		p, err := store.Peek[sched.Host](tx.Get(object.LedgerKey("h")))
		if err != nil {
			return err
		}
		c := &sched.Claim{UID: uid, Tenant: "red", Name: uid, Generation: 1, Cells: []sched.CellClaim{{Node: 0, VCPUs: 4, Memory: 16 << 30}}}
		for _, i := range vfs {
			c.VFs = append(c.VFs, sched.VFClaim{PF: pf, Index: i})
		}
		next := p.Clone()
		if err := next.Take(c); err != nil {
			return err
		}
		if err := store.Put(tx, object.ClaimKey("h", uid), c); err != nil {
			return err
		}
		return store.Put(tx, object.LedgerKey("h"), next)
	})
}

func inventory(vfs int, keys ...string) *api.Inventory {
	inv := &api.Inventory{Agent: "test", Cells: []api.Cell{{ID: 0, VCPUs: 16, Memory: 64 << 30, Hugepages: []api.Hugepages{{Size: "2MiB", Total: 512}, {Size: "1GiB", Total: 4}}}}}
	for i, k := range keys {
		p := api.PF{Key: k, PCI: fmt.Sprintf("0000:3b:00.%d", i), Netdev: fmt.Sprintf("ens%d", i), NumVFs: vfs, Speed: 25e9, Ready: true, Mode: "switchdev", Bond: "bond0", Caps: api.PFCaps{QoS: true, MinRate: true, MaxRate: true}}
		for x := range vfs {
			p.VFs = append(p.VFs, api.VF{Index: x, State: api.VFParked})
		}
		inv.PFs = append(inv.PFs, p)
	}
	return inv
}

func serve(match ...string) api.HostSpec {
	var s api.HostSpec
	for _, m := range match {
		s.PFs = append(s.PFs, api.HostPF{Match: m, Fabric: "a", VFs: 4})
	}
	return s
}

func TestLedgerFollowsDeclarationAndInventory(t *testing.T) {
	b := open(t)
	s := serve("k0", "0000:3b:00.1", "ens2")
	s.Reserved = api.Reserved{VCPUs: 2, Memory: "4GiB"}
	b.create(s)
	if h := b.ledger(); len(h.Cells) != 0 || b.get().Status.State != api.HostJoining {
		t.Errorf("a host that never reported has %+v", h)
	}
	inv := inventory(4, "k0", "k1", "k2", "k3")
	inv.PFs[1].VFs[2].State = api.VFQuarantined
	inv.PFs[2].Ready, inv.PFs[2].Reason = false, "no MAC"
	inv.Simulated = true
	if !b.observe(inv) {
		t.Error("the first inventory is no change")
	}
	h := b.ledger()
	c := h.Cells[0]
	if c.VCPUs != 14 || c.Memory[sched.Normal].Total != 60<<30 || c.Memory[sched.Page2M].Total != 1<<30 || c.Memory[sched.Page1G].Total != 4<<30 || !h.Simulated {
		t.Errorf("%+v", c)
	}
	if len(h.PFs) != 3 { // k3 is not declared
		t.Fatalf("PFs = %+v", h.PFs)
	}
	if p := h.PFs[1]; p.Key != "k1" || p.Free() != 3 || !p.Lag || p.Caps != 7 || p.Fabric != "a" {
		t.Errorf("%+v", p)
	}
	if h.PFs[2].Ready || h.PFs[2].Reason != "no MAC" {
		t.Errorf("%+v", h.PFs[2])
	}
	if c := object.Condition(b.get().Status.Conditions, host.CondCommissioned); c.Status != "False" || !strings.Contains(c.Message, "k2 is not ready: no MAC") {
		t.Errorf("%+v", c)
	}
	again := inventory(4, "k0", "k1", "k2", "k3")
	again.PFs[1].VFs[2].State, again.PFs[2].Ready, again.PFs[2].Reason, again.Simulated = api.VFQuarantined, false, "no MAC", true
	if b.observe(again) {
		t.Error("the same inventory was stored twice")
	}
}

func TestLatePFsAndShortfall(t *testing.T) {
	b := open(t)
	b.create(serve("k0", "k1"))
	b.observe(inventory(4, "k0"))
	if c := object.Condition(b.get().Status.Conditions, host.CondCommissioned); !strings.Contains(c.Message, `no PF is "k1"`) {
		t.Errorf("%+v", c)
	}
	b.observe(inventory(2, "k0", "k1")) // fewer VFs than asked, with success
	if c := object.Condition(b.get().Status.Conditions, host.CondCommissioned); !strings.Contains(c.Message, "k1 has 2 of 4 VFs") {
		t.Errorf("%+v", c)
	}
	b.observe(inventory(4, "k0", "k1"))
	if c := object.Condition(b.get().Status.Conditions, host.CondCommissioned); c.Status != "True" {
		t.Errorf("%+v", c)
	}
}

func TestDuplicateKeysAreNotUsed(t *testing.T) {
	b := open(t)
	b.create(serve("k0"))
	b.observe(inventory(4, "k0", "k0"))
	if p := b.ledger().PFs; len(p) != 1 || p[0].Ready || !strings.Contains(p[0].Reason, "same key") {
		t.Errorf("%+v", p)
	}
	if c := object.Condition(b.get().Status.Conditions, host.CondInventory); c.Status != "False" || !strings.Contains(c.Message, "k0") {
		t.Errorf("%+v", c)
	}
}

func TestNothingObservedFreesAClaim(t *testing.T) {
	b := open(t)
	b.create(serve("k0"))
	b.observe(inventory(4, "k0"))
	b.hold("vm", "k0", 1, 3)
	want := sched.Bits{0b1010}
	for name, inv := range map[string]*api.Inventory{
		"empty":         {},
		"problems":      {Problems: []string{"sysfs"}},
		"no PF":         inventory(4),
		"another":       inventory(4, "k9"),
		"fewer VFs":     inventory(1, "k0"),
		"duplicate":     inventory(4, "k0", "k0"),
		"cells are new": {Cells: []api.Cell{{ID: 7, VCPUs: 1}}},
	} {
		b.observe(inv)
		h := b.ledger()
		i := slices.IndexFunc(h.PFs, func(p sched.PF) bool { return p.Key == "k0" })
		if i < 0 || h.PFs[i].Claimed != want {
			t.Errorf("%s: PFs = %+v", name, h.PFs)
		}
		used := b.get().Status.Used
		k := slices.IndexFunc(used, func(u api.CellUse) bool { return u.Cell == 0 })
		if k < 0 || used[k].VCPUs != 4 || used[k].Memory != 16<<30 {
			t.Errorf("%s: used = %+v", name, used)
		}
		alarm := object.Condition(b.get().Status.Conditions, host.CondClaims).Status == "False"
		if want := name != "duplicate"; alarm != want {
			t.Errorf("%s: alarm is %t", name, alarm)
		}
	}
	b.observe(inventory(4, "k0"))
	if p := b.ledger().PFs[0]; p.Claimed != want || p.Free() != 2 {
		t.Errorf("%+v", p)
	}
	if c := object.Condition(b.get().Status.Conditions, host.CondClaims); c.Status != "True" {
		t.Errorf("%+v", c)
	}
}

func TestUpdateKeepsWhatVMsHold(t *testing.T) {
	b := open(t)
	b.create(serve("k0", "k1"))
	b.observe(inventory(4, "k0", "k1"))
	b.hold("vm", "k0", 0)
	update := func(edit func(*api.HostSpec)) error {
		return b.do(func(tx store.Tx) error {
			old, err := object.Load[api.Host](tx, api.KindHost, "", "h")
			if err != nil {
				return err
			}
			next := *old
			next.Spec.PFs = slices.Clone(old.Spec.PFs)
			edit(&next.Spec)
			return host.Update(tx, old, &next, by())
		})
	}
	b.must(func(tx store.Tx) error {
		return fabric.Create(tx, &api.Fabric{Meta: api.Meta{Name: "b"}, Spec: api.FabricSpec{Speed: "25Gbps", VLANPool: []string{"1"}}}, by())
	})
	for name, edit := range map[string]func(*api.HostSpec){
		"away":   func(s *api.HostSpec) { s.PFs = s.PFs[1:] },
		"fabric": func(s *api.HostSpec) { s.PFs[0].Fabric = "b" },
		"count":  func(s *api.HostSpec) { s.PFs[0].VFs = 8 },
	} {
		if err := update(edit); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "VM red/vm") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := update(func(s *api.HostSpec) { s.PFs[1].Match = "ens0" }); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "the same PF") {
		t.Errorf("err = %v", err)
	}
	if err := update(func(s *api.HostSpec) {
		s.PFs[0].Match, s.Maintenance = "0000:3b:00.0", "cordon"
		s.PFs = s.PFs[:1]
	}); err != nil {
		t.Error(err)
	}
	if h := b.ledger(); !h.Cordoned || len(h.PFs) != 1 || h.PFs[0].Claimed.Count() != 1 || h.VMs != 1 {
		t.Errorf("%+v", h)
	}
	if err := b.do(func(tx store.Tx) error { return host.Delete(tx, b.get(), by()) }); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "VM red/vm") {
		t.Errorf("err = %v", err)
	}
	b.must(func(tx store.Tx) error { tx.Delete(object.ClaimKey("h", "vm")); return host.Delete(tx, b.get(), by()) })
	b.must(func(tx store.Tx) error {
		if tx.Get(object.LedgerKey("h")) != nil {
			t.Error("the ledger is left")
		}
		return nil
	})
}

func TestEveryFaultInOneAnswer(t *testing.T) {
	b := open(t)
	o := &api.Host{Meta: api.Meta{Name: "H", Labels: map[string]string{"a": "\x00"}}, Spec: api.HostSpec{
		Rack: strings.Repeat("r", 64), Maintenance: "drain", Bridge: "a-bridge-name-too-long", Reserved: api.Reserved{VCPUs: -1, Memory: "4"},
		PFs: []api.HostPF{{Match: "", Fabric: "nope", VFs: -1}, {Match: "a b", Fabric: "A", VFs: 257}, {Match: "x", Fabric: "a"}, {Match: "x", Fabric: "a"}},
	}}
	err := b.do(func(tx store.Tx) error { return host.Create(tx, o, by()) })
	e, ok := errors.AsType[*fault.Error](err)
	if !ok || e.Kind != fault.Invalid {
		t.Fatalf("err = %v", err)
	}
	var got []string
	for _, f := range e.Fields {
		got = append(got, f.Path)
	}
	want := []string{
		"name", "labels.a", "spec.rack", "spec.maintenance", "spec.bridge", "spec.reserved.vcpus", "spec.reserved.memory",
		"spec.pfs[0].match", "spec.pfs[0].vfs", "spec.pfs[0].fabric", "spec.pfs[1].match", "spec.pfs[1].vfs", "spec.pfs[1].fabric", "spec.pfs[3].match",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestAbsurdInventoriesAreRefused(t *testing.T) {
	b := open(t)
	b.create(serve("k0"))
	many := inventory(4, "k0")
	many.PFs[0].VFs = make([]api.VF, 257)
	for name, inv := range map[string]*api.Inventory{"VFs": many, "PFs": {PFs: make([]api.PF, 1000)}, "cells": {Cells: make([]api.Cell, 2000)}} {
		if err := b.do(func(tx store.Tx) error { _, err := host.Observed(tx, "h", inv, now()); return err }); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	odd := inventory(1, "k0")
	odd.PFs[0].VFs[0].Index = 100000
	b.observe(odd)
	if p := b.ledger().PFs[0]; p.Free() != 0 {
		t.Errorf("%+v", p)
	}
	if err := b.do(func(tx store.Tx) error { _, err := host.Observed(tx, "nobody", odd, now()); return err }); !fault.Is(err, fault.NotFound) {
		t.Errorf("err = %v", err)
	}
	if b.observe(nil) {
		t.Error("no inventory is a change")
	}
}

func TestPortsThatDifferFromTheirFabric(t *testing.T) {
	b := open(t)
	b.create(serve("k0", "k1", "k2"))
	inv := inventory(4, "k0", "k1", "k2")
	b.observe(inv)
	if c := object.Condition(b.get().Status.Conditions, host.CondQoS); c.Status != "" {
		t.Errorf("nothing was told, and %+v", c)
	}
	again := inventory(4, "k0", "k1", "k2")
	again.PFs[0].QoS, again.PFs[1].QoS, again.PFs[2].QoS = &api.NICQoS{State: "ok"}, &api.NICQoS{State: "absent", Reason: "igb"}, &api.NICQoS{State: "refused", Reason: "lldpad runs"}
	b.observe(again)
	if c := object.Condition(b.get().Status.Conditions, host.CondQoS); c.Status != "False" || !strings.HasPrefix(c.Message, "PF k2: lldpad runs; VMs run") {
		t.Errorf("%+v", c)
	}
	if c := object.Condition(b.get().Status.Conditions, host.CondCommissioned); c.Status != "True" {
		t.Errorf("%+v", c)
	}
}

func TestDesiredTellsWhatFabricsAskOfPorts(t *testing.T) {
	b := open(t)
	s := serve("k0")
	s.PFs[0].AllowBond = true
	b.create(s)
	desired := func() (d *wire.Desired) {
		b.must(func(tx store.Tx) (err error) { d, err = host.Desired(tx, "h"); return err })
		return d
	}
	if p := desired().PFs[0]; p.QoS == nil || *p.QoS != (wire.QoS{Priority: 3, DSCP: 26, CNPDSCP: 48}) || !p.AllowBond {
		t.Errorf("%+v", p)
	}
	b.must(func(tx store.Tx) error {
		o, err := object.Load[api.Fabric](tx, api.KindFabric, "", "a")
		if err != nil {
			return err
		}
		next := *o
		next.Spec.NICQoS, next.Spec.Priority = "apply", new(4)
		return fabric.Update(tx, o, &next, by())
	})
	if p := desired().PFs[0]; *p.QoS != (wire.QoS{Priority: 4, DSCP: 26, CNPDSCP: 48, Apply: true}) {
		t.Errorf("%+v", p.QoS)
	}
}
