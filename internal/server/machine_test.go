package server

import (
	"fmt"
	"testing"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/host"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
)

// machine is a host with two NUMA nodes and a card of two ports on each, as its agent would report it.
func machine(name string, vfs int) (api.HostSpec, *api.Inventory) {
	spec := api.HostSpec{Bridge: "br0"} // for VMs without RDMA
	inv := &api.Inventory{Simulated: true, Agent: "test", IOMMU: true}
	for cell := range 2 {
		inv.Cells = append(inv.Cells, api.Cell{ID: cell, VCPUs: 4096, Memory: 64 << 40})
		for port := range 2 {
			p := api.PF{
				Key: fmt.Sprintf("%s-c%d-p%d", name, cell, port), PCI: fmt.Sprintf("0000:%02x:00.%d", 0x3b+cell, port),
				Card: fmt.Sprintf("%s-c%d", name, cell), Port: port, Cell: cell, Speed: 25e9, LinkUp: true,
				TotalVFs: vfs, NumVFs: vfs, Fabric: "roce", WantVFs: vfs, Ready: true,
				Caps: api.PFCaps{MAC: true, VLAN: true, QoS: true, SpoofCheck: true, MaxRate: true, MinRate: true},
			}
			for i := range vfs {
				p.VFs = append(p.VFs, api.VF{Index: i, State: api.VFParked})
			}
			inv.PFs = append(inv.PFs, p)
			spec.PFs = append(spec.PFs, api.HostPF{Match: p.Key, Fabric: "roce", VFs: vfs})
		}
	}
	return spec, inv
}

// addHost declares a host and lets it report, without an agent.
func addHost(tb testing.TB, s *Server, name string, vfs int) {
	tb.Helper()
	spec, inv := machine(name, vfs)
	_, err := s.db.Update(tb.Context(), func(tx store.Tx) error {
		by := object.Who{Operator: true, Name: "user:op", Now: s.now(), UID: "uid-" + name}
		if err := host.Create(tx, &api.Host{Meta: api.Meta{Name: name}, Spec: spec}, by); err != nil {
			return err
		}
		_, err := host.Observed(tx, name, inv, s.now())
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	s.ident.live.beat(name, true, s.now())
}

// keepAlive lets hosts show themselves as long as a benchmark runs.
func keepHostsAlive(tb testing.TB, s *Server, names []string) {
	tb.Helper()
	done := make(chan struct{})
	tb.Cleanup(func() { close(done) })
	go func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				for _, n := range names {
					s.ident.live.beat(n, true, s.now())
				}
			}
		}
	}()
}

func vmJSON(name, flavor string) string {
	return fmt.Sprintf(`{"kind":"VM","name":%q,"spec":{"flavor":%q,"image":"debian","networks":[{"network":"lab"}],"userData":"#cloud-config\npassword: canary-hush\n"}}`, name, flavor)
}
