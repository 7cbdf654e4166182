package vm_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fabric"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/flavor"
	"github.com/verbena-cloud/verbena/internal/host"
	"github.com/verbena-cloud/verbena/internal/image"
	"github.com/verbena-cloud/verbena/internal/network"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/mem"
	"github.com/verbena-cloud/verbena/internal/tenant"
	"github.com/verbena-cloud/verbena/internal/vm"
	"github.com/verbena-cloud/verbena/internal/wire"
)

const gib = int64(1) << 30

// errCrash ends a transaction as a crash would: nothing of it may be seen.
var errCrash = errors.New("crash")

// world is a store with the objects that a VM needs.
type world struct {
	tb   testing.TB
	db   store.DB
	now  time.Time
	uids int
	dead map[string]bool
}

func newWorld(tb testing.TB) *world {
	tb.Helper()
	w := &world{tb: tb, db: mem.New(), now: time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC), dead: map[string]bool{}}
	w.must(func(tx store.Tx) error {
		for _, f := range []string{"a", "b"} {
			fb := &api.Fabric{Meta: api.Meta{Name: f}, Spec: api.FabricSpec{Speed: "25Gbps", VLANPool: []string{"100-199"}}}
			if err := fabric.Create(tx, fb, w.by()); err != nil {
				return err
			}
		}
		if err := image.Create(tx, &api.Image{Meta: api.Meta{Name: "debian"}, Spec: api.ImageSpec{Source: "/img/debian.qcow2"}}, w.by()); err != nil {
			return err
		}
		return nil
	})
	w.tenant("research", api.Quota{VMs: 100000, VCPUs: 1000000, Memory: "100TiB", VFs: 100000})
	w.network("research", "net-a", "a", "10.1.0.0/16")
	w.network("research", "net-b", "b", "10.2.0.0/16")
	return w
}

func (w *world) by() object.Who {
	w.uids++
	w.now = w.now.Add(time.Second)
	return object.Who{Operator: true, Name: "user:op", Now: w.now, UID: fmt.Sprintf("uid-%d", w.uids)}
}

// do runs f as the server does, and once more than needed: first in a transaction that is lost.
func (w *world) do(f func(store.Tx) error) error {
	w.tb.Helper()
	_, err := w.db.Update(w.tb.Context(), func(tx store.Tx) error {
		if err := f(tx); err != nil {
			return err
		}
		return errCrash
	})
	if !errors.Is(err, errCrash) {
		return err
	}
	_, err = w.db.Update(w.tb.Context(), f)
	return err
}

func (w *world) must(f func(store.Tx) error) {
	w.tb.Helper()
	if err := w.do(f); err != nil {
		w.tb.Fatal(err)
	}
}

func (w *world) tenant(name string, q api.Quota) {
	w.tb.Helper()
	by := w.by()
	w.must(func(tx store.Tx) error {
		return tenant.Create(tx, &api.Tenant{Meta: api.Meta{Name: name}, Spec: api.TenantSpec{Quota: q}}, by)
	})
}

func (w *world) network(ten, name, fab, cidr string) {
	w.tb.Helper()
	by := w.by()
	w.must(func(tx store.Tx) error {
		return network.Create(tx, &api.Network{Meta: api.Meta{Name: name, Tenant: ten}, Spec: api.NetworkSpec{Fabric: fab, CIDR: cidr}}, by)
	})
}

func (w *world) flavor(name string, s api.FlavorSpec) {
	w.tb.Helper()
	by := w.by()
	w.must(func(tx store.Tx) error {
		return flavor.Create(tx, &api.Flavor{Meta: api.Meta{Name: name}, Spec: s}, by)
	})
}

// small is a flavor with n VFs.
func small(n int) api.FlavorSpec {
	s := api.FlavorSpec{VCPUs: 2, Memory: "4GiB"}
	if n > 0 {
		s.RDMA = &api.RDMA{VFs: n}
	}
	return s
}

// card is a dual-port NIC: PFs KEY-p0 and KEY-p1.
type card struct {
	key    string
	cell   int
	fabric [2]string
	vfs    int
}

// machine describes a host to make.
type machine struct {
	name   string
	cells  int
	vcpus  int
	memory int64
	huge1g int64 // pages per node
	cards  []card
	labels map[string]string
	bare   bool // without a bridge
}

// standard is a host of two nodes with a dual-port card on node 1, both ports on fabric a.
func standard(name string, vfs int) machine {
	return machine{name: name, cells: 2, vcpus: 16, memory: 64 * gib, huge1g: 32, cards: []card{{key: name + "-c", cell: 1, fabric: [2]string{"a", "a"}, vfs: vfs}}}
}

func (m machine) inventory() *api.Inventory {
	inv := &api.Inventory{Simulated: true, Agent: "test", IOMMU: true}
	for c := range m.cells {
		inv.Cells = append(inv.Cells, api.Cell{ID: c, VCPUs: m.vcpus, Memory: m.memory, Hugepages: []api.Hugepages{{Size: "1GiB", Total: m.huge1g, Free: m.huge1g}}})
	}
	for n, k := range m.cards {
		for port := range 2 {
			p := api.PF{
				Key: fmt.Sprintf("%s-p%d", k.key, port), PCI: fmt.Sprintf("0000:%02x:00.%d", 0x3b+n, port), Netdev: fmt.Sprintf("ens%df%d", n, port),
				Card: k.key, Port: port, Cell: k.cell, Speed: 25e9, LinkUp: true, TotalVFs: 64, NumVFs: k.vfs, Fabric: k.fabric[port], WantVFs: k.vfs,
				Caps: api.PFCaps{MAC: true, VLAN: true, QoS: true, SpoofCheck: true, MaxRate: true, MinRate: true}, Ready: true,
			}
			for i := range k.vfs {
				p.VFs = append(p.VFs, api.VF{Index: i, State: api.VFParked})
			}
			inv.PFs = append(inv.PFs, p)
		}
	}
	return inv
}

func (m machine) spec() api.HostSpec {
	s := api.HostSpec{Bridge: "br0"}
	if m.bare {
		s.Bridge = ""
	}
	for _, k := range m.cards {
		for port := range 2 {
			s.PFs = append(s.PFs, api.HostPF{Match: fmt.Sprintf("%s-p%d", k.key, port), Fabric: k.fabric[port], VFs: k.vfs})
		}
	}
	return s
}

func (w *world) host(m machine) {
	w.tb.Helper()
	by := w.by()
	w.must(func(tx store.Tx) error {
		if err := host.Create(tx, &api.Host{Meta: api.Meta{Name: m.name, Labels: m.labels}, Spec: m.spec()}, by); err != nil {
			return err
		}
		_, err := host.Observed(tx, m.name, m.inventory(), by.Now)
		return err
	})
}

func (w *world) observe(name string, inv *api.Inventory) {
	w.tb.Helper()
	by := w.by()
	w.must(func(tx store.Tx) error {
		_, err := host.Observed(tx, name, inv, by.Now)
		return err
	})
}

func (w *world) alive(name string) bool { return !w.dead[name] }

func manifest(name, fl string, nets ...string) *api.VM {
	v := &api.VM{Meta: api.Meta{Name: name, Tenant: "research"}, Spec: api.VMSpec{Flavor: fl, Image: "debian"}}
	for _, n := range nets {
		v.Spec.Networks = append(v.Spec.Networks, api.VMNetwork{Network: n})
	}
	return v
}

// create is what the server does with a manifest.
func (w *world) create(v *api.VM) (api.Explanation, error) {
	w.tb.Helper()
	by := w.by()
	var why api.Explanation
	err := w.do(func(tx store.Tx) error {
		var err error
		why, err = vm.Create(tx, v, by, w.alive)
		return err
	})
	return why, err
}

func (w *world) vm(name, fl string, nets ...string) *api.VM {
	w.tb.Helper()
	v := manifest(name, fl, nets...)
	if _, err := w.create(v); err != nil {
		w.tb.Fatal(err)
	}
	return v
}

// refused creates a VM that must be refused with a fault of kind k, and checks that nothing was changed.
func (w *world) refused(v *api.VM, k fault.Kind) (api.Explanation, error) {
	w.tb.Helper()
	before := w.dump()
	why, err := w.create(v)
	if !fault.Is(err, k) {
		w.tb.Fatalf("err = %v, want a fault of kind %s", err, k)
	}
	w.unchanged(before)
	return why, err
}

func (w *world) dump() map[string]string {
	w.tb.Helper()
	out := map[string]string{}
	if err := w.db.View(w.tb.Context(), func(tx store.Tx) error {
		for e := range tx.Scan("", "") {
			out[e.Key] = string(e.Value)
		}
		return nil
	}); err != nil {
		w.tb.Fatal(err)
	}
	return out
}

func (w *world) unchanged(before map[string]string) {
	w.tb.Helper()
	if diff := cmp.Diff(before, w.dump()); diff != "" {
		w.tb.Errorf("something changed:\n%s", diff)
	}
}

func (w *world) remove(v *api.VM) {
	w.tb.Helper()
	by := w.by()
	w.must(func(tx store.Tx) error { return vm.Delete(tx, v, by) })
}

// proof is what an agent says of a VM that it has got rid of.
func proof(v *api.VM) wire.VMStatus {
	st := wire.VMStatus{UID: v.UID, Generation: v.Status.Generation, Phase: api.PhaseDeleting, Absent: true}
	for _, f := range v.Status.VFs {
		st.VFs = append(st.VFs, wire.VFStatus{PF: f.PF, Index: f.Index, State: api.VFParked})
	}
	return st
}

func (w *world) release(hostName string, st wire.VMStatus) {
	w.tb.Helper()
	by := w.by()
	w.must(func(tx store.Tx) error { return vm.Release(tx, hostName, st, by) })
}

func (w *world) destroy(v *api.VM) {
	w.tb.Helper()
	w.remove(v)
	w.release(v.Status.Host, proof(v))
}

// readBack is what an agent says of a VM that runs as wanted.
func readBack(v *api.VM, phase string) wire.VMStatus {
	st := wire.VMStatus{UID: v.UID, Generation: v.Status.Generation, Phase: phase}
	for _, f := range v.Status.VFs {
		st.VFs = append(st.VFs, wire.VFStatus{
			PF: f.PF, Index: f.Index, State: api.VFAttached, PCI: "0000:3b:02.0", MAC: f.MAC, VLAN: f.VLAN, QoS: f.QoS, SpoofCheck: f.SpoofCheck, Generation: f.Generation,
		})
	}
	return st
}

func (w *world) report(hostName string, st wire.VMStatus) bool {
	w.tb.Helper()
	by := w.by()
	var changed bool
	w.must(func(tx store.Tx) error {
		var err error
		changed, err = vm.Observed(tx, hostName, st, by.Now)
		return err
	})
	return changed
}

func (w *world) get(name string) *api.VM {
	w.tb.Helper()
	v, err := load[api.VM](w, api.KindVM, "research", name)
	if err != nil {
		w.tb.Fatal(err)
	}
	return v
}

func load[T any](w *world, k api.Kind, ten, name string) (*T, error) {
	var v *T
	err := w.db.View(w.tb.Context(), func(tx store.Tx) error {
		var err error
		v, err = object.Load[T](tx, k, ten, name)
		return err
	})
	return v, err
}

func (w *world) hostStatus(name string) api.HostStatus {
	w.tb.Helper()
	var st api.HostStatus
	if err := w.db.View(w.tb.Context(), func(tx store.Tx) error {
		o, err := object.Load[api.Host](tx, api.KindHost, "", name)
		if err != nil {
			return err
		}
		err = host.Fill(tx, o)
		st = o.Status
		return err
	}); err != nil {
		w.tb.Fatal(err)
	}
	return st
}

func (w *world) usage(ten string) map[string]int64 {
	w.tb.Helper()
	out := map[string]int64{}
	if err := w.db.View(w.tb.Context(), func(tx store.Tx) error {
		o, err := object.Load[api.Tenant](tx, api.KindTenant, "", ten)
		if err != nil {
			return err
		}
		if err := tenant.Fill(tx, o); err != nil {
			return err
		}
		for _, l := range o.Status.Usage {
			out[l.Resource] = l.Used
		}
		return nil
	}); err != nil {
		w.tb.Fatal(err)
	}
	return out
}
