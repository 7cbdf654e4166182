package host_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fabric"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/host"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
)

// fresh is an inventory of ports without VFs, as an agent tells it before anybody commissions.
func fresh(keys ...string) *api.Inventory {
	inv := inventory(0, keys...)
	for i := range inv.PFs {
		p := &inv.PFs[i]
		p.Driver, p.TotalVFs, p.LinkUp, p.Ready, p.Bond, p.Caps = "mlx5_core", 8, true, false, "", api.PFCaps{}
		p.QoS = &api.NICQoS{DCBX: "host ieee", PFC: "none", Apps: []string{}}
	}
	return inv
}

func (b bench) plan(ask api.CommissionRequest) (p *api.CommissionPlan, err error) {
	err = b.do(func(tx store.Tx) (err error) { p, err = host.Commission(tx, "h", ask); return err })
	return p, err
}

func (b bench) setNICs() {
	b.must(func(tx store.Tx) error {
		o, err := object.Load[api.Fabric](tx, api.KindFabric, "", "a")
		if err != nil {
			return err
		}
		next := *o
		next.Spec.NICQoS = "apply"
		return fabric.Update(tx, o, &next, by())
	})
}

func TestPlanOfAFreshHost(t *testing.T) {
	b := open(t)
	b.create(api.HostSpec{})
	if _, err := b.plan(api.CommissionRequest{}); !fault.Is(err, fault.Unready) {
		t.Errorf("before the agent reported: %v", err)
	}
	b.observe(fresh("k0", "k1"))
	b.setNICs()
	plan, err := b.plan(api.CommissionRequest{PFs: []api.HostPF{{Match: "ens0", Fabric: "a", VFs: 4}}})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"echo 0 > /sys/bus/pci/devices/0000:3b:00.0/sriov_drivers_autoprobe",
		"echo 4 > /sys/bus/pci/devices/0000:3b:00.0/sriov_numvfs",
		"wait for 4 VFs of /sys/bus/pci/devices/0000:3b:00.0",
		"park VFs 0–3, each alike: its parking MAC first",
		"find out on a free VF what driver mlx5_core can set",
		"dcb pfc set dev ens0 prio-pfc all:off 3:on",
		"dcb app add dev ens0 dgram-port-prio 4791:3",
		"dcb app add dev ens0 dscp-prio 48:6",
		"dcb app add dev ens0 dscp-prio 26:3",
	}
	got := plan.PFs[0].Steps
	if !slices.EqualFunc(got, want, strings.HasPrefix) || plan.Refusals() > 0 {
		t.Errorf("%s", strings.Join(got, "\n"))
	}
	if !plan.Changed || !slices.Equal(plan.Spec, []api.HostPF{{Match: "k0", Fabric: "a", VFs: 4}}) {
		t.Errorf("spec %+v", plan.Spec)
	}
	if len(b.get().Spec.PFs) != 0 {
		t.Error("planning changed the host")
	}
}

// TestPlanRefusals: each guard is told of, and what is not guarded is not.
func TestPlanRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*api.PF)
		ask   api.HostPF
		words string
	}{
		"management":         {func(p *api.PF) { p.Management = true }, api.HostPF{VFs: 4}, "default route"},
		"management allowed": {func(p *api.PF) { p.Management = true }, api.HostPF{VFs: 4, AllowManagement: true}, ""},
		"bond":               {func(p *api.PF) { p.Bond = "bond0" }, api.HostPF{VFs: 4}, "port of bond0"},
		"bond allowed":       {func(p *api.PF) { p.Bond = "bond0" }, api.HostPF{VFs: 4, AllowBond: true}, ""},
		"too many":           {func(*api.PF) {}, api.HostPF{VFs: 9}, "room for 8 VFs"},
		"no driver":          {func(p *api.PF) { p.Driver = "" }, api.HostPF{VFs: 4}, "no driver"},
		"SR-IOV off":         {func(p *api.PF) { p.TotalVFs = 0 }, api.HostPF{VFs: 4}, "SR-IOV is off"},
		"open vfio group": {func(p *api.PF) {
			p.NumVFs = 1
			p.VFs = []api.VF{{State: api.VFForeign, Reason: "process 7 has its vfio group 40 open"}}
		}, api.HostPF{VFs: 4}, "process 7 has its vfio group 40 open"},
		"held": {func(p *api.PF) {
			p.NumVFs = 1
			p.VFs = []api.VF{{State: api.VFAttached, VM: "red/a"}}
		}, api.HostPF{VFs: 4}, "held by VM red/a"},
		"as it is, though held": {func(p *api.PF) {
			p.NumVFs = 1
			p.VFs = []api.VF{{State: api.VFAttached, VM: "red/a"}}
		}, api.HostPF{VFs: 1}, ""},
		"too poor a driver": {func(p *api.PF) { p.Caps = api.PFCaps{MAC: true} }, api.HostPF{VFs: 4}, "can't set: VLAN, spoof check"},
		"no such PF":        {func(*api.PF) {}, api.HostPF{Match: "k9", VFs: 4}, `no PF is "k9"; the host has k0`},
	} {
		t.Run(name, func(t *testing.T) {
			b := open(t)
			b.create(api.HostSpec{})
			inv := fresh("k0")
			c.spoil(&inv.PFs[0])
			b.observe(inv)
			c.ask.Match, c.ask.Fabric = firstOf(c.ask.Match, "k0"), "a"
			plan, err := b.plan(api.CommissionRequest{PFs: []api.HostPF{c.ask}})
			if err != nil {
				t.Fatal(err)
			}
			refused := strings.Join(plan.PFs[0].Refused, "\n")
			if (c.words == "") != (refused == "") || !strings.Contains(refused, c.words) {
				t.Errorf("refused %q", refused)
			}
		})
	}
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func TestPlanOfAllPFs(t *testing.T) {
	b := open(t)
	b.create(serve("k0"))
	inv := fresh("k0", "k1", "k2", "k3", "k4")
	inv.PFs[1].Management, inv.PFs[2].Bond, inv.PFs[3].TotalVFs = true, "bond0", 0
	b.observe(inv)
	plan, err := b.plan(api.CommissionRequest{All: true, Fabric: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if want := []api.HostPF{{Match: "k0", Fabric: "a", VFs: 4}, {Match: "k4", Fabric: "a", VFs: 8}}; !slices.Equal(plan.Spec, want) {
		t.Errorf("%+v", plan.Spec)
	}
	if _, err := b.plan(api.CommissionRequest{All: true}); !fault.Is(err, fault.Invalid) {
		t.Errorf("without a fabric: %v", err)
	}
}

func TestPlanTellsWhatStays(t *testing.T) {
	b := open(t)
	b.create(serve("k0"))
	inv := inventory(4, "k0")
	p := &inv.PFs[0]
	p.Driver, p.TotalVFs, p.LinkUp, p.Bond = "igb", 8, true, ""
	p.Caps = api.PFCaps{MAC: true, VLAN: true, SpoofCheck: true}
	p.VFs[1] = api.VF{Index: 1, State: api.VFQuarantined, Reason: "reset: EIO"}
	p.VFs[2] = api.VF{Index: 2, State: api.VFScrubbing, Reason: "it is not on vfio-pci"}
	p.QoS = &api.NICQoS{State: "absent"}
	b.observe(inv)
	plan, err := b.plan(api.CommissionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	notes, steps := strings.Join(plan.PFs[0].Notes, "\n"), strings.Join(plan.PFs[0].Steps, "\n")
	if plan.Changed || plan.Refusals() > 0 || !strings.Contains(notes, "VF 1 stays out of the pool, quarantined: reset: EIO") ||
		!strings.Contains(notes, "NIC QoS is absent: driver igb") || !strings.HasPrefix(steps, "park VF 2 (it is not on vfio-pci)") || len(plan.PFs[0].Steps) != 1 {
		t.Errorf("%+v", plan)
	}
	b.hold("vm", "k0", 0)
	plan, err = b.plan(api.CommissionRequest{PFs: []api.HostPF{{Match: "ens0", VFs: 8}}})
	if err != nil || len(plan.Refused) != 1 || !strings.Contains(plan.Refused[0], "VM red/vm") {
		t.Errorf("%+v, %v", plan, err)
	}
	q := &api.NICQoS{DCBX: "host ieee", PFC: "none", InUse: 1}
	next := inventory(4, "k0")
	next.PFs[0].QoS, next.PFs[0].Driver, next.PFs[0].TotalVFs, next.PFs[0].Bond, next.PFs[0].Caps = q, "mlx5_core", 8, "", p.Caps
	b.observe(next)
	if plan, err = b.plan(api.CommissionRequest{}); err != nil || !strings.Contains(strings.Join(plan.PFs[0].Notes, "\n"), "nicQoS of fabric a is not apply") {
		t.Errorf("%+v, %v", plan, err)
	}
	b.setNICs()
	if plan, err = b.plan(api.CommissionRequest{}); err != nil || len(plan.PFs[0].Waits) != 1 || !strings.Contains(plan.PFs[0].Waits[0], "prio-pfc") {
		t.Errorf("%+v, %v", plan, err)
	}
}
