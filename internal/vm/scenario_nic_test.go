package vm_test

import (
	"strings"
	"testing"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
)

// TestT25_MinRateIsRefusedAtPlacement: a driver that can't guarantee a rate is known before a VM is placed,
// not when it starts.
func TestT25_MinRateIsRefusedAtPlacement(t *testing.T) {
	w := newWorld(t)
	m := standard("h1", 4)
	w.host(m)
	inv := m.inventory()
	for i := range inv.PFs {
		inv.PFs[i].Caps.MinRate = false
	}
	w.observe("h1", inv)
	w.flavor("sure", api.FlavorSpec{VCPUs: 2, Memory: "4GiB", RDMA: &api.RDMA{MinRate: "1Gbps"}})
	w.flavor("one", small(1))
	why, _ := w.refused(manifest("x", "sure", "net-a"), fault.NoCapacity)
	if v := why.Hosts[0]; v.Rule != "vf-ready" || !strings.Contains(v.Text, "can't guarantee a minimum rate") {
		t.Errorf("verdict = %+v", v)
	}
	w.vm("y", "one", "net-a")
}

// TestT55_BondInLegacyModeIsNoFailover: VFs of a bond's ports in legacy mode have no failover of their own, so
// a flavor that asks for it gets none of them; in switchdev mode it does.
func TestT55_BondInLegacyModeIsNoFailover(t *testing.T) {
	w := newWorld(t)
	m := standard("h1", 4)
	w.host(m)
	inv := m.inventory()
	for i := range inv.PFs {
		inv.PFs[i].Bond, inv.PFs[i].Mode = "bond0", "legacy"
	}
	w.observe("h1", inv)
	w.flavor("lag", api.FlavorSpec{VCPUs: 2, Memory: "4GiB", RDMA: &api.RDMA{HA: "vf-lag"}})
	w.flavor("one", small(1))
	why, _ := w.refused(manifest("x", "lag", "net-a"), fault.NoCapacity)
	if v := why.Hosts[0]; v.Rule != "vf-free" && v.Rule != "ha" || !strings.Contains(v.Text+v.Nearest, "switchdev") {
		t.Errorf("verdict = %+v", v)
	}
	w.vm("y", "one", "net-a")
	next := m.inventory()
	for i := range next.PFs {
		next.PFs[i].Bond, next.PFs[i].Mode = "bond0", "switchdev"
	}
	w.observe("h1", next)
	w.vm("x", "lag", "net-a")
}
