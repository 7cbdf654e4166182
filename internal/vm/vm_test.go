package vm_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/host"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/secgroup"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/tenant"
	"github.com/verbena-cloud/verbena/internal/vm"
	"github.com/verbena-cloud/verbena/internal/wire"
)

func paths(t *testing.T, err error) []string {
	t.Helper()
	e, ok := errors.AsType[*fault.Error](err)
	if !ok {
		t.Fatalf("err = %v", err)
	}
	var out []string
	for _, f := range e.Fields {
		out = append(out, f.Path)
	}
	return out
}

func TestEveryFaultInOneAnswer(t *testing.T) {
	w := newWorld(t)
	w.flavor("one", small(1))
	const secret = "hunter2-hunter2"
	v := &api.VM{Meta: api.Meta{Name: strings.Repeat("x", 300), Tenant: "research", Labels: map[string]string{"-": ""}}, Spec: api.VMSpec{
		Flavor: "nope", Image: "NOPE", Power: "standby", UserData: strings.Repeat(secret, 5000) + "\xff", SSHKeys: []string{secret}, Host: "h9", HostLabels: map[string]string{"": ""},
		Networks:       []api.VMNetwork{{Network: "net-a", IP: "10.1.0.0", MAC: "01:00:00:00:00:00"}, {Network: "nope"}, {Network: "net-a", IP: "10.2.0.5", MAC: "zz"}},
		SecurityGroups: []string{"nope"},
	}}
	_, err := w.refused(v, fault.Invalid)
	want := []string{
		"name", "labels", "spec.userData", "spec.userData", "spec.sshKeys[0]", "spec.power", "spec.hostLabels", "spec.image", "spec.flavor",
		"spec.networks[0].mac", "spec.networks[0].ip", "spec.networks[1].network", "spec.networks[2].mac", "spec.networks[2].ip", "spec.securityGroups[0]", "spec.host",
	}
	if diff := cmp.Diff(want, paths(t, err)); diff != "" {
		t.Error(diff)
	}
	e, _ := errors.AsType[*fault.Error](err)
	if strings.Contains(fmt.Sprintf("%v %+v", err, e.Fields), "hunter2") {
		t.Error("a secret is in the answer")
	}
}

func TestRefusedRequests(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 4))
	w.flavor("one", small(1))
	w.flavor("plain", small(0))
	w.network("research", "other", "a", "10.8.0.0/24")
	w.must(func(tx store.Tx) error {
		return secgroup.Create(tx, &api.SecurityGroup{Meta: api.Meta{Tenant: "research", Name: "web"}, Spec: api.SecurityGroupSpec{Network: "other"}}, w.by())
	})
	w.vm("taken", "one", "net-a")
	first := w.get("taken").Status.VFs[0]
	for name, tt := range map[string]struct {
		edit func(*api.VM)
		kind fault.Kind
		text string
	}{
		"no networks":     {func(v *api.VM) { v.Spec.Networks = nil }, fault.Invalid, "1 to 8"},
		"nine networks":   {func(v *api.VM) { v.Spec.Networks = make([]api.VMNetwork, 9) }, fault.Invalid, "1 to 8"},
		"more than VFs":   {func(v *api.VM) { v.Spec.Networks = append(v.Spec.Networks, api.VMNetwork{Network: "other"}) }, fault.Invalid, "each network needs a VF"},
		"group elsewhere": {func(v *api.VM) { v.Spec.SecurityGroups = []string{"web"} }, fault.Invalid, "which the VM is not on"},
		"twice the same IP": {func(v *api.VM) {
			v.Spec.Networks = []api.VMNetwork{{Network: "net-a", IP: "10.1.0.9"}, {Network: "net-a", IP: "10.1.0.9"}}
		}, fault.Invalid, "given twice"},
		"twice the same MAC": {func(v *api.VM) {
			v.Spec.Networks = []api.VMNetwork{{Network: "net-a", MAC: "02:00:00:00:00:01"}, {Network: "net-a", MAC: "02-00-00-00-00-01"}}
		}, fault.Invalid, "given twice"},
		"gateway":       {func(v *api.VM) { v.Spec.Networks[0].IP = "10.1.0.1" }, fault.Invalid, "gateway"},
		"address taken": {func(v *api.VM) { v.Spec.Networks[0].IP = first.IP }, fault.Conflict, "research/taken"},
		"MAC taken":     {func(v *api.VM) { v.Spec.Networks[0].MAC = first.MAC }, fault.Conflict, "in use"},
		"name taken":    {func(v *api.VM) { v.Name = "taken" }, fault.Conflict, "exists already"},
		"no tenant":     {func(v *api.VM) { v.Tenant = "nobody" }, fault.NotFound, "nobody"},
		"label":         {func(v *api.VM) { v.Spec.HostLabels = map[string]string{"gpu": "yes"} }, fault.NoCapacity, "label it gpu=yes"},
	} {
		v := manifest("x", "one", "net-a")
		if strings.HasPrefix(name, "twice") {
			v.Spec.Flavor = "plain"
		}
		tt.edit(v)
		if _, err := w.refused(v, tt.kind); !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOnlyOperatorsPin(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 4))
	w.flavor("one", small(1))
	v, by := manifest("x", "one", "net-a"), w.by()
	v.Spec.Host, by.Operator = "h1", false
	err := w.do(func(tx store.Tx) error { _, err := vm.Create(tx, v, by, w.alive); return err })
	if !fault.Is(err, fault.Forbidden) {
		t.Errorf("err = %v", err)
	}
}

func TestQuotaRefusalHasTheSheet(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 4))
	w.flavor("two", small(2))
	w.tenant("poor", api.Quota{VMs: 9, VCPUs: 99, Memory: "1TiB", VFs: 3})
	w.network("poor", "n", "a", "10.5.0.0/24")
	first := manifest("x", "two", "n")
	first.Tenant = "poor"
	if _, err := w.create(first); err != nil {
		t.Fatal(err)
	}
	second := manifest("y", "two", "n")
	second.Tenant = "poor"
	why, err := w.refused(second, fault.Quota)
	if !strings.Contains(err.Error(), "vfs: 2 in use + 2 asked > 3 allowed") || why.Fits || len(why.Quota) == 0 {
		t.Errorf("%v\n%+v", err, why)
	}
	var told api.Explanation
	if err := w.db.View(t.Context(), func(tx store.Tx) error { told, err = vm.Explain(tx, *second, w.alive); return err }); err != nil {
		t.Fatal(err)
	}
	if told.Fits || !strings.Contains(told.Summary, "quota") || !told.Hosts[0].Fits {
		t.Errorf("%+v", told)
	}
}

func TestExplainLooksAtAVMAsIfItWereFree(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 1))
	w.flavor("two", small(2))
	v := w.vm("x", "two", "net-a")
	explain := func(o api.VM) (why api.Explanation) {
		t.Helper()
		if err := w.db.View(t.Context(), func(tx store.Tx) (err error) { why, err = vm.Explain(tx, o, w.alive); return err }); err != nil {
			t.Fatal(err)
		}
		return why
	}
	if why := explain(*w.get("x")); !why.Fits || why.Host != "h1" {
		t.Errorf("%+v", why)
	}
	if why := explain(*manifest("y", "two", "net-a")); why.Fits || why.Hosts[0].Rule != "vf-free" {
		t.Errorf("%+v", why)
	}
	w.dead["h1"] = true
	if why := explain(*v); why.Fits || why.Hosts[0].Rule != "unknown" || why.Nearest != "host h1: bring its agent back" {
		t.Errorf("%+v", why)
	}
}

func TestFixedAddressesGoToTheFirstVF(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 4))
	w.flavor("two", small(2))
	v := manifest("x", "two", "net-a")
	v.Spec.Networks[0].IP, v.Spec.Networks[0].MAC = "10.1.0.77", "02-5A-10-00-00-07"
	if _, err := w.create(v); err != nil {
		t.Fatal(err)
	}
	a, b := v.Status.VFs[0], v.Status.VFs[1]
	if a.IP != "10.1.0.77" || a.MAC != "02:5a:10:00:00:07" || b.IP != "10.1.0.2" || b.MAC == a.MAC || a.QoS != 3 || a.VLAN != 100 || !a.SpoofCheck {
		t.Errorf("%+v\n%+v", a, b)
	}
}

func TestUpdate(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 4))
	w.flavor("one", small(1))
	w.vm("x", "one", "net-a")
	update := func(edit func(*api.VM)) error {
		by := w.by()
		return w.do(func(tx store.Tx) error {
			old, err := object.Load[api.VM](tx, api.KindVM, "research", "x")
			if err != nil {
				return err
			}
			next := *old
			edit(&next)
			return vm.Update(tx, old, &next, by)
		})
	}
	status := w.get("x").Status
	if err := update(func(v *api.VM) {
		v.Spec.Power, v.Labels, v.Spec.UserData, v.Status = "off", map[string]string{"a": "b"}, "#cloud-config", api.VMStatus{}
	}); err != nil {
		t.Fatal(err)
	}
	got := w.get("x")
	if diff := cmp.Diff(status, got.Status); diff != "" || got.Spec.Power != "off" {
		t.Errorf("%s %+v", diff, got.Spec)
	}
	if d := w.desired("h1").VMs[0]; d.Power != "off" || d.Seed.UserData != "#cloud-config" {
		t.Errorf("%+v", d)
	}
	err := update(func(v *api.VM) {
		v.Spec.Flavor, v.Spec.Host, v.Spec.HostLabels, v.Spec.Networks = "two", "h1", map[string]string{"a": "b"}, []api.VMNetwork{{Network: "net-b"}}
	})
	if diff := cmp.Diff([]string{"spec.flavor", "spec.networks", "spec.host", "spec.hostLabels"}, paths(t, err)); diff != "" {
		t.Error(diff)
	}
	if err := update(func(v *api.VM) { v.Spec.Power = "reset" }); !fault.Is(err, fault.Invalid) {
		t.Errorf("err = %v", err)
	}
	w.remove(got)
	if err := update(func(v *api.VM) { v.Spec.Power = "on" }); !fault.Is(err, fault.Conflict) {
		t.Errorf("err = %v", err)
	}
	if err := w.do(func(tx store.Tx) error { _, err := vm.Rebuild(tx, "research", "x", w.by()); return err }); !fault.Is(err, fault.Conflict) {
		t.Errorf("err = %v", err)
	}
}

func TestDesired(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 4))
	w.flavor("two", api.FlavorSpec{VCPUs: 2, Memory: "4GiB", Disk: "10GiB", RDMA: &api.RDMA{HA: "dual-vf", MinRate: "1Gbps", MaxRate: "2Gbps"}})
	w.flavor("plain", small(0))
	v := w.vm("x", "two", "net-a")
	p := w.vm("y", "plain", "net-a")
	d := w.desired("h1")
	if len(d.PFs) != 2 || len(d.VMs) != 2 || d.Revision == 0 {
		t.Fatalf("%+v", d)
	}
	if diff := cmp.Diff([]wire.Image{{Name: "debian", Source: "/img/debian.qcow2", Format: "qcow2"}}, d.Images); diff != "" {
		t.Error(diff)
	}
	for _, got := range d.VMs {
		switch got.UID {
		case v.UID:
			f := v.Status.VFs[0]
			want := wire.VF{PF: f.PF, Index: f.Index, GuestPCI: "0000:21:00.0", MAC: f.MAC, VLAN: 100, QoS: 3, SpoofCheck: true, MinRate: 1000, MaxRate: 2000, Network: "net-a"}
			if diff := cmp.Diff(want, got.VFs[0]); diff != "" {
				t.Error(diff)
			}
			link := wire.SeedLink{Name: "rdma0", MAC: f.MAC, Address: f.IP + "/16", Gateway: "10.1.0.1", MTU: 4200, RDMA: true}
			if diff := cmp.Diff(link, got.Seed.Interfaces[0]); diff != "" {
				t.Error(diff)
			}
			if second := got.Seed.Interfaces[1]; second.Gateway != "" || second.Name != "rdma1" {
				t.Errorf("%+v", second)
			}
			if got.Disk != 10<<30 || got.Power != "on" || got.Instance != v.UID+"-1" || got.Absent {
				t.Errorf("%+v", got)
			}
		case p.UID:
			n := p.Status.NICs[0]
			if diff := cmp.Diff([]wire.NIC{{MAC: n.MAC, VLAN: 100, MTU: 4200, Network: "net-a"}}, got.NICs); diff != "" {
				t.Error(diff)
			}
			if got.Cells[0].Strict || p.Status.NUMA != "none" {
				t.Errorf("%+v", got.Cells)
			}
		}
	}
	w.remove(v)
	for _, got := range w.desired("h1").VMs {
		if got.Absent != (got.UID == v.UID) {
			t.Errorf("%s: absent is %t", got.Name, got.Absent)
		}
	}
	w.release("h1", proof(v))
	if d := w.desired("h1"); len(d.VMs) != 1 || d.VMs[0].UID != p.UID {
		t.Errorf("%+v", d.VMs)
	}
}

func TestSteps(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 4))
	w.flavor("one", api.FlavorSpec{VCPUs: 2, Memory: "4GiB", Hugepages: "1GiB", RDMA: &api.RDMA{MaxRate: "2Gbps"}})
	v := w.vm("x", "one", "net-a")
	want := []string{
		"server: charge tenant research: 1 VM, 2 vCPUs, 4GiB memory, 1 VFs",
		"server: claim node 1 of host h1 for guest cell 0: 2 vCPUs, 4GiB in pages of 1GiB",
		"server: claim VF 0 of PF h1-c-p0 on host h1 (node 1, fabric a)",
		"server: take address 10.1.0.2 and MAC M of network net-a",
		"agent on h1: program VF 0 of PF h1-c-p0: MAC M, VLAN 100 priority 3, spoof check on, at most 2Gbps; read it back",
		"agent on h1: make the disk from image debian and the cloud-init seed",
		"agent on h1: define domain research.x with 1 guest cells, VFs at 0000:21:00.0",
		"agent on h1: start the domain",
	}
	got := vm.Steps(v)
	for i := range got {
		got[i] = strings.ReplaceAll(got[i], v.Status.VFs[0].MAC, "M")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestUnknownPhaseIsRefused(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 4))
	w.flavor("one", small(1))
	v := w.vm("x", "one", "net-a")
	by := w.by()
	err := w.do(func(tx store.Tx) error {
		_, err := vm.Observed(tx, "h1", readBack(v, "Flying"), by.Now)
		return err
	})
	if !fault.Is(err, fault.Invalid) {
		t.Errorf("err = %v", err)
	}
	st := readBack(v, api.PhaseFailed)
	st.Message = strings.Repeat("é", 5000)
	w.report("h1", st)
	if n := len(w.get("x").Status.Message); n > 1100 {
		t.Errorf("an agent's message of %d bytes was stored", n)
	}
}

// TestGuestsWords: what a guest says is stored bounded, shown as long as its agent tells it, and gone with it.
func TestGuestsWords(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 4))
	w.flavor("one", small(1))
	st := readBack(w.vm("x", "one", "net-a"), api.PhaseReady)
	st.Guest = &api.GuestStatus{Tool: strings.Repeat("é", 5000), Ports: make([]api.GuestPort, 100)}
	st.Guest.Ports[0].Firmware = strings.Repeat("9", 5000)
	if !w.report("h1", st) || w.report("h1", st) {
		t.Error("the same words are stored each time, or never")
	}
	g := w.get("x").Status.Guest
	if g == nil || len(g.Tool) > 140 || len(g.Ports) > 16 || len(g.Ports[0].Firmware) > 140 || len(st.Guest.Ports[0].Firmware) != 5000 {
		t.Errorf("%+v", g)
	}
	if st.Guest = nil; !w.report("h1", st) || w.get("x").Status.Guest != nil {
		t.Error("a guest that is heard no more is still told of")
	}
}

func TestNothingIsLeftOfATenant(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 4))
	w.flavor("one", small(1))
	w.destroy(w.vm("x", "one", "net-a"))
	w.must(func(tx store.Tx) error {
		for _, n := range []string{"net-a", "net-b"} {
			object.Remove(tx, api.KindNetwork, "research", n)
		}
		o, err := object.Load[api.Tenant](tx, api.KindTenant, "", "research")
		if err != nil {
			return err
		}
		return tenant.Delete(tx, o, w.by())
	})
	for key := range w.dump() {
		if strings.HasPrefix(key, "/usage/") {
			t.Errorf("%s is left", key)
		}
	}
}

func TestVMWithoutRDMANeedsABridge(t *testing.T) {
	w := newWorld(t)
	m := standard("h1", 4)
	m.bare = true
	w.host(m)
	w.flavor("plain", small(0))
	w.flavor("one", small(1))
	w.vm("r", "one", "net-a") // its NICs are VFs
	why, err := w.refused(manifest("p", "plain", "net-a"), fault.NoCapacity)
	if v := why.Hosts[0]; v.Rule != "bridge" || !strings.Contains(v.Nearest, "spec.bridge") || !strings.Contains(err.Error(), "spec.bridge") {
		t.Errorf("verdict = %+v, err = %v", v, err)
	}
	declare := func(bridge string) error {
		by := w.by()
		return w.do(func(tx store.Tx) error {
			old, err := object.Load[api.Host](tx, api.KindHost, "", "h1")
			if err != nil {
				return err
			}
			next := *old
			next.Spec.Bridge = bridge
			return host.Update(tx, old, &next, by)
		})
	}
	if err := declare("br0"); err != nil {
		t.Fatal(err)
	}
	p := w.vm("p", "plain", "net-a")
	if err := declare("br1"); err != nil {
		t.Errorf("the bridge can't be renamed: %v", err)
	}
	if err := declare(""); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "VM research/p") {
		t.Errorf("the bridge was taken away from a VM: %v", err)
	}
	w.destroy(p)
	if err := declare(""); err != nil {
		t.Error(err)
	}
}
