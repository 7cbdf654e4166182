package vm_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/host"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/sched"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/vm"
)

// TestHistories: whatever the order of creates, deletes, releases, rebuilds, reports, lost transactions and
// failed discoveries, no VF is held twice, no sum exceeds capacity or quota, addresses, MACs and VLANs are
// unique, and when all is deleted nothing is left.
func TestHistories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := newHistory(t)
		rt.Repeat(map[string]func(*rapid.T){
			"create":  h.create,
			"delete":  h.remove,
			"release": h.release,
			"stale":   h.stale,
			"rebuild": h.rebuild,
			"report":  h.report,
			"audit":   h.audit,
			"":        h.check,
		})
		h.end(rt)
	})
}

type history struct {
	*world
	vms   map[string]*api.VM // by TENANT/NAME, as last known
	gone  []*api.VM
	empty map[string]string
	next  int
}

func newHistory(t *testing.T) *history {
	t.Helper()
	w := newWorld(t)
	w.tenant("tight", api.Quota{VMs: 5, VCPUs: 40, Memory: "60GiB", VFs: 6, VFsPerFabric: map[string]int{"b": 2}, GuaranteedBandwidth: "6Gbps"})
	w.network("tight", "net-a", "a", "10.3.0.0/28")
	w.network("tight", "net-b", "b", "10.4.0.0/28")
	w.host(twoCards("h1", 3))
	m := twoCards("h2", 2)
	m.cards[0].fabric[1], m.cards[1].fabric[1] = "b", "b"
	w.host(m)
	w.host(machine{name: "h3", cells: 2, vcpus: 8, memory: 32 * gib})
	w.flavor("plain", api.FlavorSpec{VCPUs: 4, Memory: "4GiB"})
	w.flavor("one", small(1))
	w.flavor("two", api.FlavorSpec{VCPUs: 4, Memory: "8GiB", RDMA: &api.RDMA{HA: "dual-vf", MinRate: "1Gbps", MaxRate: "5Gbps"}})
	w.flavor("wide", api.FlavorSpec{VCPUs: 8, Memory: "8GiB", Cells: 2, Hugepages: "1GiB", RDMA: &api.RDMA{VFs: 4, NUMA: "preferred"}})
	w.flavor("fast", api.FlavorSpec{VCPUs: 1, Memory: "1GiB", RDMA: &api.RDMA{MinRate: "12Gbps", NUMA: "preferred"}})
	return &history{world: w, vms: map[string]*api.VM{}, empty: w.dump()}
}

func (h *history) create(t *rapid.T) {
	h.next++
	v := manifest(fmt.Sprintf("v%d", h.next), rapid.SampledFrom([]string{"plain", "one", "two", "wide", "fast"}).Draw(t, "flavor"))
	v.Tenant = rapid.SampledFrom([]string{"research", "tight"}).Draw(t, "tenant")
	for _, n := range rapid.SampledFrom([][]string{{"net-a"}, {"net-b"}, {"net-a", "net-b"}}).Draw(t, "networks") {
		v.Spec.Networks = append(v.Spec.Networks, api.VMNetwork{Network: n})
	}
	before := h.dump()
	if _, err := h.world.create(v); err != nil {
		if k := fault.KindOf(err); k != fault.NoCapacity && k != fault.Quota && k != fault.Conflict && k != fault.Invalid {
			t.Fatalf("create: %v", err)
		}
		h.unchanged(before)
		return
	}
	h.vms[v.Tenant+"/"+v.Name] = v
}

// some picks a living VM.
func (h *history) some(t *rapid.T) *api.VM {
	if len(h.vms) == 0 {
		t.Skip("no VM")
	}
	var keys []string
	for i := range h.next + 1 {
		for _, ten := range []string{"research", "tight"} {
			if key := fmt.Sprintf("%s/v%d", ten, i); h.vms[key] != nil {
				keys = append(keys, key)
			}
		}
	}
	return h.vms[rapid.SampledFrom(keys).Draw(t, "vm")]
}

func (h *history) remove(t *rapid.T) {
	v := h.some(t)
	h.world.remove(v)
}

func (h *history) release(t *rapid.T) {
	v := h.some(t)
	st := proof(v)
	if rapid.IntRange(0, 3).Draw(t, "quarantine") == 0 && len(st.VFs) > 0 {
		st.VFs[0].State = api.VFQuarantined
	}
	h.world.release(v.Status.Host, st)
	if _, err := load[api.VM](h.world, api.KindVM, v.Tenant, v.Name); fault.Is(err, fault.NotFound) {
		h.gone = append(h.gone, v)
		delete(h.vms, v.Tenant+"/"+v.Name)
	}
}

// stale sends what an agent says late, twice or of the wrong generation.
func (h *history) stale(t *rapid.T) {
	before := h.dump()
	if len(h.gone) > 0 {
		v := rapid.SampledFrom(h.gone).Draw(t, "gone")
		h.world.release(v.Status.Host, proof(v))
		h.world.report(v.Status.Host, readBack(v, api.PhaseReady))
	}
	if len(h.vms) > 0 {
		v := h.some(t)
		st := proof(v)
		st.Generation--
		h.world.release(v.Status.Host, st)
		h.world.release("h9", proof(v))
	}
	h.unchanged(before)
}

func (h *history) rebuild(t *rapid.T) {
	v := h.some(t)
	by := h.by()
	err := h.do(func(tx store.Tx) error {
		next, err := vm.Rebuild(tx, v.Tenant, v.Name, by)
		if err == nil {
			*v = *next
		}
		return err
	})
	if err != nil && !fault.Is(err, fault.Conflict) {
		t.Fatalf("rebuild: %v", err)
	}
	if err == nil { // the lost transaction has run it once more
		stored, err := load[api.VM](h.world, api.KindVM, v.Tenant, v.Name)
		if err != nil {
			t.Fatal(err)
		}
		*v = *stored
	}
}

func (h *history) report(t *rapid.T) {
	v := h.some(t)
	phase := rapid.SampledFrom([]string{api.PhasePreparing, api.PhaseReady, api.PhaseStopped, api.PhaseFailed}).Draw(t, "phase")
	h.world.report(v.Status.Host, readBack(v, phase))
}

// audit reads hosts anew: completely, in part, or not at all.
func (h *history) audit(t *rapid.T) {
	for _, m := range []machine{twoCards("h1", 3), h2()} {
		inv := m.inventory()
		switch rapid.SampledFrom([]string{"whole", "part", "none", "duplicate"}).Draw(t, "discovery") {
		case "part":
			inv.PFs = inv.PFs[1:]
			inv.Cells = inv.Cells[:1]
		case "none":
			inv = &api.Inventory{Problems: []string{"no sysfs"}}
		case "duplicate":
			inv.PFs[1].Key = inv.PFs[0].Key
		}
		h.observe(m.name, inv)
	}
}

func h2() machine {
	m := twoCards("h2", 2)
	m.cards[0].fabric[1], m.cards[1].fabric[1] = "b", "b"
	return m
}

// check looks at the whole state from the outside: at the VMs as a tenant sees them, not at the ledgers.
func (h *history) check(t *rapid.T) {
	vfs, ips, macs := map[string]string{}, map[string]string{}, map[string]string{}
	type sum struct {
		vcpus  int
		memory [3]int64
	}
	used := map[string]*sum{}
	per := map[string]map[string]int64{}
	take := func(set map[string]string, what, by string) {
		if other, ok := set[what]; ok {
			t.Fatalf("%s is held by %s and %s", what, other, by)
		}
		set[what] = by
	}
	minRate := map[string]int64{}
	h.each(t, func(v *api.VM) {
		me := v.Tenant + "/" + v.Name
		q := per[v.Tenant]
		if q == nil {
			q = map[string]int64{}
			per[v.Tenant] = q
		}
		q["vms"]++
		for _, c := range v.Status.Cells {
			key := fmt.Sprintf("%s/%d", v.Status.Host, c.Host)
			if used[key] == nil {
				used[key] = &sum{}
			}
			used[key].vcpus += c.VCPUs
			used[key].memory[map[string]int{"": 0, "2MiB": 1, "1GiB": 2}[c.Hugepages]] += c.Memory
			q["vcpus"] += int64(c.VCPUs)
			q["memory"] += c.Memory
		}
		for _, f := range v.Status.VFs {
			take(vfs, fmt.Sprintf("%s %s/%d", v.Status.Host, f.PF, f.Index), me)
			take(ips, v.Tenant+"/"+f.Network+"/"+f.IP, me)
			take(macs, f.MAC, me)
			q["vfs"]++
			q["vfs/"+f.Fabric]++
			if f.MinRate != "" {
				n := map[string]int64{"1Gbps": 1e9, "12Gbps": 12e9}[f.MinRate]
				minRate[f.PF] += n
				q["guaranteedBandwidth"] += n
			}
		}
		for _, n := range v.Status.NICs {
			take(ips, v.Tenant+"/"+n.Network+"/"+n.IP, me)
			take(macs, n.MAC, me)
		}
	})
	for pf, n := range minRate {
		if n > 25e9 {
			t.Fatalf("PF %s guarantees %d of 25e9", pf, n)
		}
	}
	for key, s := range used {
		limit := sum{16, [3]int64{64 * gib, 0, 32 * gib}}
		if strings.HasPrefix(key, "h3/") {
			limit = sum{8, [3]int64{32 * gib, 0, 0}}
		}
		if s.vcpus > limit.vcpus || s.memory[0] > limit.memory[0] || s.memory[1] > limit.memory[1] || s.memory[2] > limit.memory[2] {
			t.Fatalf("node %s: %+v over %+v", key, *s, limit)
		}
	}
	h.checkQuota(t, per)
	h.checkLedgers(t, len(vfs))
}

func (h *history) each(t *rapid.T, f func(*api.VM)) {
	if err := h.db.View(h.tb.Context(), func(tx store.Tx) error {
		for v, err := range object.All[api.VM](tx, api.KindVM, "") {
			if err != nil {
				return err
			}
			f(v)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func (h *history) checkQuota(t *rapid.T, per map[string]map[string]int64) {
	limits := map[string]int64{"vms": 5, "vcpus": 40, "memory": 60 * gib, "vfs": 6, "vfs/b": 2, "guaranteedBandwidth": 6e9}
	for _, ten := range []string{"research", "tight"} {
		for name, n := range h.usage(ten) {
			if n != per[ten][name] {
				t.Fatalf("%s: %s is charged %d, VMs hold %d", ten, name, n, per[ten][name])
			}
			if ten == "tight" && n > limits[name] {
				t.Fatalf("%s: %s is %d over the quota of %d", ten, name, n, limits[name])
			}
		}
	}
}

// checkLedgers compares the hosts' sums with the claims, and those with what VMs show.
func (h *history) checkLedgers(t *rapid.T, vfs int) {
	held, claimed := 0, 0
	if err := h.db.View(h.tb.Context(), func(tx store.Tx) error {
		for e := range tx.Scan(object.LedgerPrefix(), "") {
			l, err := store.Peek[sched.Host](e)
			if err != nil {
				return err
			}
			for i := range l.PFs {
				held += l.PFs[i].Claimed.Count()
			}
			for c := range tx.Scan(object.ClaimPrefix(l.Name), "") {
				p, err := store.Peek[sched.Claim](c)
				if err != nil {
					return err
				}
				claimed += len(p.VFs)
			}
			if d, err := host.Desired(tx, l.Name); err != nil || len(d.VMs) != l.VMs {
				return fmt.Errorf("host %s: %d VMs in the ledger, desired %v: %w", l.Name, l.VMs, d, err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if held != vfs || claimed != vfs {
		t.Fatalf("VMs hold %d VFs, ledgers say %d, claims say %d", vfs, held, claimed)
	}
}

// end deletes everything and compares with the beginning.
func (h *history) end(t *rapid.T) {
	h.each(t, func(v *api.VM) {
		copied := *v
		h.vms[v.Tenant+"/"+v.Name] = &copied
	})
	for _, v := range h.vms {
		h.world.remove(v)
		h.world.release(v.Status.Host, proof(v))
	}
	h.check(t)
	h.observe("h1", twoCards("h1", 3).inventory())
	h.observe("h2", h2().inventory())
	after := h.dump()
	for key, was := range h.empty {
		if strings.HasPrefix(key, "/o/Host/") || strings.HasPrefix(key, "/usage/") || strings.HasPrefix(key, "/ip/") {
			continue // times of conditions; sums and next addresses are checked by what VMs show
		}
		if after[key] != was {
			t.Fatalf("%s was %s and is %s", key, was, after[key])
		}
	}
	for key := range after {
		if _, ok := h.empty[key]; !ok && !pool(key) && !strings.HasPrefix(key, "/usage/") || strings.Count(key, "/") == 3 && strings.HasPrefix(key, "/usage/") {
			t.Fatalf("%s is left over: %s", key, after[key])
		}
	}
}

// pool reports whether the key is a network's pool of addresses, which remembers the next one.
func pool(key string) bool {
	parts := strings.Split(key, "/")
	_, err := netip.ParseAddr(parts[len(parts)-1])
	return len(parts) == 4 && parts[1] == "ip" && err != nil
}

// BenchmarkCreate is a whole create on the memory store: 256 hosts of two nodes with 128 VFs each. Every
// few thousand VMs the world is made anew, so that it never fills up.
func BenchmarkCreate(b *testing.B) {
	for _, hosts := range []int{4, 256} {
		b.Run(fmt.Sprintf("hosts=%d", hosts), func(b *testing.B) {
			w, left := full(b, hosts), hosts*8
			b.ReportAllocs()
			start := cpu(b)
			defer func() { b.ReportMetric(float64(cpu(b)-start)/float64(b.N), "cpu-ns/op") }()
			for b.Loop() {
				if left == 0 {
					b.StopTimer()
					before := cpu(b)
					w, left = full(b, hosts), hosts*8
					start += cpu(b) - before
					b.StartTimer()
				}
				left--
				v, by := manifest(fmt.Sprintf("v%d", w.uids), "one", "net-a"), w.by()
				if _, err := w.db.Update(b.Context(), func(tx store.Tx) error {
					_, err := vm.Create(tx, v, by, w.alive)
					return err
				}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// cpu returns the processor time of the process so far: on a machine that is shared, the wall clock says
// more of the others.
func cpu(b *testing.B) int64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

func full(b *testing.B, hosts int) *world {
	b.Helper()
	w := newWorld(b)
	for i := range hosts {
		w.host(twoCards(fmt.Sprintf("h%03d", i), 32))
	}
	w.flavor("one", small(1))
	return w
}

// BenchmarkRefuse is a create that no host of 256 fits, with every host's verdict in words.
func BenchmarkRefuse(b *testing.B) {
	w := full(b, 256)
	w.flavor("big", api.FlavorSpec{VCPUs: 64, Memory: "4GiB", RDMA: api.RDMAShort(true)})
	b.ReportAllocs()
	for b.Loop() {
		v, by := manifest("x", "big", "net-a"), w.by()
		if _, err := w.db.Update(b.Context(), func(tx store.Tx) error {
			_, err := vm.Create(tx, v, by, w.alive)
			return err
		}); !fault.Is(err, fault.NoCapacity) || errors.Is(err, errCrash) {
			b.Fatal(err)
		}
	}
}
