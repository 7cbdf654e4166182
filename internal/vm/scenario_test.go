package vm_test

// Scenarios: failures of other platforms that are public, each as one test. The letter and number are the
// scenario's id in the survey of VM platforms.

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/flavor"
	"github.com/verbena-cloud/verbena/internal/host"
	"github.com/verbena-cloud/verbena/internal/network"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/vm"
	"github.com/verbena-cloud/verbena/internal/wire"
)

func TestA01_OneFreeVFNeverServesTwo(t *testing.T) {
	w := newWorld(t)
	m := standard("h1", 1)
	m.cards[0].fabric[1] = "b" // one VF on each fabric
	w.host(m)
	w.flavor("two", small(2))
	why, _ := w.refused(manifest("x", "two", "net-a"), fault.NoCapacity)
	if v := why.Hosts[0]; v.Rule != "vf-ready" || v.Need != 2 || v.Have != 1 {
		t.Errorf("verdict = %+v", v)
	}
}

func TestA02_TwoCreatesForTheLastVF(t *testing.T) {
	w := newWorld(t)
	m := standard("h1", 1)
	m.cards[0].fabric[1] = "b"
	w.host(m)
	w.flavor("one", small(1))
	if won := parallel(t, w, 2, "one"); won != 1 {
		t.Errorf("%d VMs got the last VF", won)
	}
}

// parallel creates n VMs at once and returns how many were placed; all others must be refused for capacity.
func parallel(t *testing.T, w *world, n int, fl string) int {
	t.Helper()
	errs := make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		v, by := manifest(fmt.Sprintf("vm-%d", i), fl, "net-a"), w.by()
		group.Go(func() {
			_, errs[i] = w.db.Update(t.Context(), func(tx store.Tx) error {
				_, err := vm.Create(tx, v, by, w.alive)
				return err
			})
		})
	}
	group.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if !fault.Is(err, fault.NoCapacity) {
			t.Errorf("err = %v", err)
		}
	}
	return won
}

func TestA03_ExactlyAsManyVFsAsAsked(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 8))
	w.flavor("three", small(3))
	before := w.dump()
	for i := range 100 {
		by := w.by()
		w.must(func(tx store.Tx) error {
			old, err := object.Load[api.Host](tx, api.KindHost, "", "h1")
			if err != nil {
				return err
			}
			next := *old
			next.Labels = map[string]string{"round": fmt.Sprint(i)}
			return host.Update(tx, old, &next, by)
		})
		v := w.vm("x", "three", "net-a")
		if n := len(v.Status.VFs); n != 3 {
			t.Fatalf("round %d: %d VFs", i, n)
		}
		if got := w.hostStatus("h1").Used[1].VFs; got != 3 {
			t.Fatalf("round %d: ledger has %d VFs", i, got)
		}
		w.destroy(v)
	}
	after := w.dump()
	for _, d := range []map[string]string{before, after} { // labels and the pool's next address differ by design
		delete(d, object.Key(api.KindHost, "", "h1"))
		delete(d, object.LedgerKey("h1"))
		delete(d, "/ip/research/net-a")
		delete(d, object.UsageKey("research"))
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("left over:\n%s", diff)
	}
	if u := w.usage("research"); u["vfs"] != 0 || u["vms"] != 0 {
		t.Errorf("usage = %v", u)
	}
}

func TestA05_NoVFClaimWhenMemoryIsShort(t *testing.T) {
	w := newWorld(t)
	m := standard("h1", 8)
	m.memory = 2 * gib
	w.host(m)
	w.flavor("one", small(1))
	why, err := w.refused(manifest("x", "one", "net-a"), fault.NoCapacity)
	if v := why.Hosts[0]; v.Rule != "numa-memory" || v.Need != 4*gib || v.Have != 2*gib {
		t.Errorf("verdict = %+v", v)
	}
	if !strings.Contains(err.Error(), "numa-memory") {
		t.Errorf("err = %v", err)
	}
}

func TestA06_PinnedToAFullHost(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 1))
	w.host(standard("h2", 8))
	w.flavor("two", small(2))
	pinned := manifest("x", "two", "net-a")
	pinned.Spec.Host = "h1"
	if _, err := w.create(pinned); err != nil {
		t.Fatal(err)
	}
	second := manifest("y", "two", "net-a")
	second.Spec.Host = "h1"
	why, _ := w.refused(second, fault.NoCapacity)
	if why.Hosts[0].Rule != "vf-free" || why.Hosts[1].Rule != "pinned" {
		t.Errorf("verdicts = %+v", why.Hosts)
	}
}

func TestA07_ConcurrentCreatesNeverExceedANode(t *testing.T) {
	w := newWorld(t)
	for i := range 4 {
		w.host(standard(fmt.Sprintf("h%d", i), 16))
	}
	w.flavor("one", api.FlavorSpec{VCPUs: 4, Memory: "4GiB", RDMA: api.RDMAShort(true)})
	// Only node 1 of each host has VFs, and 16 vCPUs hold four VMs.
	if won := parallel(t, w, 50, "one"); won != 16 {
		t.Errorf("%d VMs were placed, want 16", won)
	}
	for i := range 4 {
		for _, u := range w.hostStatus(fmt.Sprintf("h%d", i)).Used {
			if u.VCPUs > 16 || u.VFs > 32 || u.Memory > 64*gib || u.Cell == 0 && u.VCPUs != 0 {
				t.Errorf("h%d: %+v", i, u)
			}
		}
	}
}

func TestA09_PlainVMsKeepAwayFromVFs(t *testing.T) {
	w := newWorld(t)
	w.host(standard("a-rich", 16))
	w.host(machine{name: "z-plain", cells: 2, vcpus: 16, memory: 64 * gib})
	w.flavor("plain", api.FlavorSpec{VCPUs: 8, Memory: "8GiB"})
	var got []string
	for i := range 8 {
		v := w.vm(fmt.Sprintf("p%d", i), "plain", "net-a")
		got = append(got, fmt.Sprintf("%s/%d", v.Status.Host, v.Status.Cells[0].Host))
	}
	slices.Sort(got[:4])
	want := []string{"z-plain/0", "z-plain/0", "z-plain/1", "z-plain/1", "a-rich/0", "a-rich/0", "a-rich/1", "a-rich/1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("first hosts without VFs, then nodes without VFs, then the rest:\n%s", diff)
	}
}

func TestA13_PlanReservesNothing(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 4))
	w.flavor("one", small(1))
	before := w.dump()
	v, by := manifest("x", "one", "net-a"), w.by()
	_, err := w.db.Update(t.Context(), func(tx store.Tx) error {
		if _, err := vm.Create(tx, v, by, w.alive); err != nil {
			return err
		}
		return errCrash // how the server ends a dry run
	})
	if err == nil {
		t.Fatal("the transaction did not end")
	}
	if len(vm.Steps(v)) < 6 {
		t.Errorf("steps = %q", vm.Steps(v))
	}
	if err := w.db.View(t.Context(), func(tx store.Tx) error {
		_, err := vm.Explain(tx, *manifest("x", "one", "net-a"), w.alive)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	w.unchanged(before)
}

func TestA14_ShutdownKeepsTheVF(t *testing.T) {
	w := newWorld(t)
	m := standard("h1", 1)
	m.cards[0].fabric[1] = "b"
	w.host(m)
	w.flavor("one", small(1))
	v := w.vm("x", "one", "net-a")
	w.report("h1", readBack(v, api.PhaseReady))
	w.report("h1", readBack(v, api.PhaseStopped)) // the guest shut itself down
	w.refused(manifest("y", "one", "net-a"), fault.NoCapacity)
	// Even the claim that it is gone frees nothing while the record stays.
	w.release("h1", proof(v))
	w.refused(manifest("y", "one", "net-a"), fault.NoCapacity)
	if got := w.get("x").Status.VFs; len(got) != 1 {
		t.Errorf("VFs = %+v", got)
	}
}

func TestA18_ExhaustedPFNextPF(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 2))
	w.flavor("one", small(1))
	seen := map[string]int{}
	for i := range 4 {
		v := w.vm(fmt.Sprintf("x%d", i), "one", "net-a")
		seen[v.Status.VFs[0].PF]++
	}
	if diff := cmp.Diff(map[string]int{"h1-c-p0": 2, "h1-c-p1": 2}, seen); diff != "" {
		t.Error(diff)
	}
}

func TestB19_UndeclaringAPFKeepsClaims(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 2))
	w.flavor("one", small(1))
	v := w.vm("x", "one", "net-a")
	before, by := w.dump(), w.by()
	err := w.do(func(tx store.Tx) error {
		old, err := object.Load[api.Host](tx, api.KindHost, "", "h1")
		if err != nil {
			return err
		}
		next := *old
		next.Spec.PFs = nil
		return host.Update(tx, old, &next, by)
	})
	if !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "research/x") {
		t.Errorf("err = %v, want a conflict that names the VM", err)
	}
	w.unchanged(before)
	// The declaration stops to match because the netdev was renamed: the claim stays, and an alarm is raised.
	inv := standard("h1", 2).inventory()
	i := slices.IndexFunc(inv.PFs, func(p api.PF) bool { return p.Key == v.Status.VFs[0].PF })
	inv.PFs[i].Key = "another"
	w.observe("h1", inv)
	st := w.hostStatus("h1")
	if c := object.Condition(st.Conditions, host.CondClaims); c.Status != "False" || !strings.Contains(c.Message, v.Status.VFs[0].PF) {
		t.Errorf("condition = %+v", c)
	}
	if st.Used[1].VFs != 1 {
		t.Errorf("used = %+v", st.Used)
	}
}

func TestB22_LastVFFreedMakesThePFAllocatable(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 1))
	w.flavor("two", small(2))
	v := w.vm("x", "two", "net-a")
	w.refused(manifest("y", "two", "net-a"), fault.NoCapacity)
	w.destroy(v)
	w.vm("y", "two", "net-a")
}

func TestB23_RecordStaysUntilTheHostConfirms(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 1))
	w.flavor("two", small(2))
	v := w.vm("x", "two", "net-a")
	w.remove(v)
	w.observe("h1", standard("h1", 1).inventory()) // an audit in the delete window, which shows all VFs parked
	w.report("h1", readBack(v, api.PhaseStopping))
	if got := w.get("x"); got.Status.Phase != api.PhaseDeleting || got.Deleting == nil {
		t.Errorf("phase = %s", got.Status.Phase)
	}
	w.refused(manifest("y", "two", "net-a"), fault.NoCapacity)
	w.refused(manifest("x", "two", "net-a"), fault.Conflict) // the name is taken too
	w.release("h1", proof(v))
	w.vm("x", "two", "net-a")
}

func TestB26_AuditDuringRebuildFreesNothing(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 1))
	w.flavor("two", small(2))
	v := w.vm("x", "two", "net-a")
	w.report("h1", readBack(v, api.PhaseReady))
	old := proof(v)
	by := w.by()
	var next *api.VM
	w.must(func(tx store.Tx) error {
		var err error
		next, err = vm.Rebuild(tx, "research", "x", by)
		return err
	})
	audits := []func(){
		func() { w.observe("h1", standard("h1", 1).inventory()) },
		func() { w.observe("h1", &api.Inventory{Problems: []string{"sysfs could not be read"}}) },
		func() { w.release("h1", old) },                           // evidence of the generation before
		func() { w.report("h1", readBack(v, api.PhaseStopped)) },  // a report of the generation before
		func() { w.report("h1", readBack(next, api.PhaseReady)) }, // the new one
		func() { w.release("h1", proof(next)) },                   // not to be deleted
	}
	for i, audit := range audits {
		audit()
		if got := w.get("x"); got.Status.Generation != 2 || len(got.Status.VFs) != 2 {
			t.Errorf("audit %d: %+v", i, got.Status)
		}
		if got := w.hostStatus("h1").VMs; got != 1 {
			t.Errorf("audit %d: %d VMs", i, got)
		}
	}
	if got := w.get("x").Status.Phase; got != api.PhaseReady {
		t.Errorf("phase = %s", got)
	}
}

func TestB27_SizeFollowsTheFlavorOfTheRecord(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 4))
	w.flavor("f", small(1))
	w.vm("x", "f", "net-a")
	by := w.by()
	err := w.do(func(tx store.Tx) error {
		old, err := object.Load[api.Flavor](tx, api.KindFlavor, "", "f")
		if err != nil {
			return err
		}
		next := *old
		next.Spec = small(2)
		return flavor.Update(tx, old, &next, by)
	})
	if !fault.Is(err, fault.Conflict) {
		t.Errorf("a flavor in use changed its size: %v", err)
	}
	err = w.do(func(tx store.Tx) error {
		old, err := object.Load[api.VM](tx, api.KindVM, "research", "x")
		if err != nil {
			return err
		}
		next := *old
		next.Spec.Flavor = "g"
		return vm.Update(tx, old, &next, by)
	})
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "create a new VM") {
		t.Errorf("err = %v", err)
	}
	w.flavor("g", small(2))
	if v := w.vm("y", "g", "net-a"); len(v.Status.VFs) != 2 {
		t.Errorf("VFs = %+v", v.Status.VFs)
	}
}

func TestB29_ThirdVFFailsNothingIsHeld(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 8))
	w.network("research", "tiny", "a", "10.9.0.0/29") // five addresses for VMs
	w.flavor("three", small(3))
	w.vm("x", "three", "tiny")
	_, err := w.refused(manifest("y", "three", "tiny"), fault.Conflict) // the third address is missing
	if !strings.Contains(err.Error(), "no free address") {
		t.Errorf("err = %v", err)
	}
}

func TestB30_FailedDiscoveryFreesNothing(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 2))
	w.flavor("one", small(1))
	v := w.vm("x", "one", "net-a")
	partial := standard("h1", 2).inventory()
	partial.PFs = partial.PFs[:1]
	partial.PFs[0].VFs = partial.PFs[0].VFs[1:]
	for name, inv := range map[string]*api.Inventory{
		"nothing": {Problems: []string{"the tool is missing"}},
		"partial": partial,
		"no VFs":  {Cells: partial.Cells, PFs: []api.PF{{Key: v.Status.VFs[0].PF, Cell: 1}}},
	} {
		w.observe("h1", inv)
		st := w.hostStatus("h1")
		vfs := 0
		for _, u := range st.Used {
			vfs += u.VFs
		}
		if vfs != 1 || st.VMs != 1 {
			t.Errorf("%s: used = %+v", name, st.Used)
		}
		if name != "partial" {
			w.refused(manifest("y", "one", "net-a"), fault.NoCapacity)
		}
	}
	w.observe("h1", standard("h1", 2).inventory())
	if c := object.Condition(w.hostStatus("h1").Conditions, host.CondClaims); c.Status != "True" {
		t.Errorf("condition = %+v", c)
	}
	if y := w.vm("y", "one", "net-a"); y.Status.VFs[0].PF == v.Status.VFs[0].PF && y.Status.VFs[0].Index == v.Status.VFs[0].Index {
		t.Errorf("y got the VF of x")
	}
}

func TestB31_RenumberedBusesAreTheSameVFs(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 2))
	w.flavor("one", small(1))
	v := w.vm("x", "one", "net-a")
	inv := standard("h1", 2).inventory()
	for i := range inv.PFs {
		inv.PFs[i].PCI, inv.PFs[i].Netdev = fmt.Sprintf("0001:d6:00.%d", i), fmt.Sprintf("ens9f%dnp%d", i, i)
	}
	slices.Reverse(inv.PFs)
	w.observe("h1", inv)
	if c := object.Condition(w.hostStatus("h1").Conditions, host.CondClaims); c.Status != "True" {
		t.Errorf("condition = %+v", c)
	}
	st := readBack(v, api.PhaseReady)
	st.VFs[0].PCI = "0001:d6:02.0"
	w.report("h1", st)
	if got := w.get("x").Status; got.VFs[0].PCI != "0001:d6:02.0" || got.VFs[0].PF != v.Status.VFs[0].PF || got.Phase != api.PhaseReady {
		t.Errorf("status = %+v", got)
	}
}

func TestC42_ThreeVFsThreeGuestAddresses(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 8))
	w.flavor("three", small(3))
	v := w.vm("x", "three", "net-a")
	var got []string
	for _, f := range v.Status.VFs {
		got = append(got, f.GuestPCI)
	}
	if diff := cmp.Diff([]string{"0000:21:00.0", "0000:22:00.0", "0000:23:00.0"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestE57_StaleReleaseIsANoOp(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 1))
	w.flavor("two", small(2))
	first := w.vm("x", "two", "net-a")
	w.destroy(first)
	second := w.vm("x", "two", "net-a")
	w.remove(second)
	before := w.dump()
	w.release("h1", proof(first)) // late
	wrong := proof(second)
	wrong.Generation++
	w.release("h1", wrong)
	none := proof(second)
	none.Absent = false
	w.release("h1", none)
	w.unchanged(before)
}

func TestE65_MACsAndAddressesSurviveARebuild(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 2))
	w.flavor("two", small(2))
	v := w.vm("x", "two", "net-a")
	by := w.by()
	w.must(func(tx store.Tx) error {
		_, err := vm.Rebuild(tx, "research", "x", by)
		return err
	})
	got := w.get("x").Status
	for i, f := range got.VFs {
		was := v.Status.VFs[i]
		was.Generation, was.State = 2, ""
		if f != was {
			t.Errorf("VF %d: %+v, want %+v", i, f, was)
		}
	}
}

func TestF67_RDMAAlwaysHasAGuestCell(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 2))
	w.flavor("one", small(1)) // says nothing of cells
	if c := w.vm("x", "one", "net-a").Status.Cells; len(c) != 1 || c[0].Host != 1 || c[0].VCPUs != 2 {
		t.Errorf("cells = %+v", c)
	}
}

func TestF69_PolicyHoldsOnAUsedHost(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 16))
	w.flavor("one", small(1))
	for i := range 8 {
		if c := w.vm(fmt.Sprintf("x%d", i), "one", "net-a").Status.Cells; c[0].Host != 1 {
			t.Errorf("VM %d: cells = %+v", i, c)
		}
	}
	why, _ := w.refused(manifest("y", "one", "net-a"), fault.NoCapacity) // node 1 is full, node 0 is empty
	if why.Hosts[0].Rule != "numa-vf" || !strings.Contains(why.Hosts[0].Text, "node 1") {
		t.Errorf("verdict = %+v", why.Hosts[0])
	}
}

// twoCards has a card on each node.
func twoCards(name string, vfs int) machine {
	m := standard(name, vfs)
	m.cards = append(m.cards, card{key: name + "-d", cell: 0, fabric: [2]string{"a", "a"}, vfs: vfs})
	return m
}

func TestF70_VFsSitInTheGuestCellOfTheirHostNode(t *testing.T) {
	w := newWorld(t)
	w.host(twoCards("h1", 4))
	w.flavor("wide", api.FlavorSpec{VCPUs: 8, Memory: "8GiB", Cells: 2, RDMA: &api.RDMA{VFs: 4}})
	v := w.vm("x", "wide", "net-a")
	node := map[int]int{}
	for _, c := range v.Status.Cells {
		node[c.Guest] = c.Host
	}
	if len(node) != 2 || node[0] == node[1] {
		t.Fatalf("cells = %+v", v.Status.Cells)
	}
	for i, f := range v.Status.VFs {
		if f.HostCell != node[f.Cell] || f.Cell != i/2 {
			t.Errorf("VF %d: %+v", i, f)
		}
		if want := fmt.Sprintf("0000:%02x:00.0", 0x21+0x10*f.Cell+i%2); f.GuestPCI != want {
			t.Errorf("VF %d: guest address %s, want %s", i, f.GuestPCI, want)
		}
	}
}

func TestF70_UnknownNodeFailsLoudly(t *testing.T) {
	w := newWorld(t)
	m := standard("h1", 4)
	m.cards[0].cell = -1
	w.host(m)
	w.flavor("one", small(1))
	why, _ := w.refused(manifest("x", "one", "net-a"), fault.NoCapacity)
	if v := why.Hosts[0]; v.Rule != "numa-vf" || !strings.Contains(v.Text, "unknown node (-1)") {
		t.Errorf("verdict = %+v", v)
	}
	w.flavor("loose", api.FlavorSpec{VCPUs: 2, Memory: "4GiB", RDMA: &api.RDMA{NUMA: "preferred"}})
	if v := w.vm("y", "loose", "net-a"); v.Status.NUMA != "preferred" {
		t.Errorf("NUMA = %s", v.Status.NUMA)
	}
}

func TestF71_HugepagesComeFromTheHostNode(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 4))
	w.flavor("huge", api.FlavorSpec{VCPUs: 2, Memory: "8GiB", Hugepages: "1GiB", RDMA: api.RDMAShort(true)})
	w.vm("x", "huge", "net-a")
	for _, u := range w.hostStatus("h1").Used {
		want := map[int]int64{0: 0, 1: 8 * gib}[u.Cell]
		if u.Hugepages["1GiB"] != want || u.Memory != 0 {
			t.Errorf("node %d: %+v", u.Cell, u)
		}
	}
	d := w.desired("h1")
	if c := d.VMs[0].Cells[0]; c.Guest != 0 || c.Host != 1 || c.Hugepage != gib || !c.Strict {
		t.Errorf("cell = %+v", c)
	}
}

func (w *world) desired(name string) *wire.Desired {
	w.tb.Helper()
	var d *wire.Desired
	if err := w.db.View(w.tb.Context(), func(tx store.Tx) error {
		var err error
		d, err = host.Desired(tx, name)
		return err
	}); err != nil {
		w.tb.Fatal(err)
	}
	return d
}

func TestF73_MemoryIsCountedByPageSize(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 8)) // 32 pages of 1 GiB and 64 GiB of normal memory per node
	w.flavor("huge", api.FlavorSpec{VCPUs: 1, Memory: "20GiB", Hugepages: "1GiB", RDMA: api.RDMAShort(true)})
	w.vm("x", "huge", "net-a")
	why, _ := w.refused(manifest("y", "huge", "net-a"), fault.NoCapacity)
	if v := why.Hosts[0]; v.Rule != "numa-vf" || v.Nearest != "free 8GiB in 1GiB pages on node 1, or use a flavor with numa preferred" {
		t.Errorf("verdict = %+v", v)
	}
	w.flavor("plain", api.FlavorSpec{VCPUs: 1, Memory: "32GiB", Hugepages: "1GiB"})
	w.vm("p", "plain", "net-a") // takes all pages of node 0
	why, _ = w.refused(manifest("y", "huge", "net-a"), fault.NoCapacity)
	if v := why.Hosts[0]; v.Rule != "numa-hugepages" || v.Have != 12*gib || v.Need != 20*gib {
		t.Errorf("verdict = %+v", v)
	}
	w.flavor("normal", api.FlavorSpec{VCPUs: 1, Memory: "20GiB", RDMA: api.RDMAShort(true)})
	w.vm("z", "normal", "net-a")
}

func TestG83_RebuildOnAFullHost(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 1))
	w.flavor("two", api.FlavorSpec{VCPUs: 16, Memory: "64GiB", RDMA: &api.RDMA{VFs: 2}})
	v := w.vm("x", "two", "net-a")
	before, by := w.hostStatus("h1").Used, w.by()
	w.must(func(tx store.Tx) error {
		_, err := vm.Rebuild(tx, "research", "x", by)
		return err
	})
	got := w.get("x")
	if diff := cmp.Diff(v.Status.Cells, got.Status.Cells); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(before, w.hostStatus("h1").Used); diff != "" {
		t.Error(diff)
	}
	if a, b := w.desired("h1").VMs[0].Instance, v.UID+"-2"; a != b {
		t.Errorf("instance = %s, want %s", a, b)
	}
}

func TestH87_NotReadyUntilEveryVFIsReadBack(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 1))
	w.flavor("two", small(2))
	v := w.vm("x", "two", "net-a")
	for name, spoil := range map[string]func(*wire.VMStatus){
		"zero MAC":    func(st *wire.VMStatus) { st.VFs[1].MAC = "00:00:00:00:00:00" },
		"VLAN":        func(st *wire.VMStatus) { st.VFs[0].VLAN = 0 },
		"priority":    func(st *wire.VMStatus) { st.VFs[0].QoS = 0 },
		"spoof check": func(st *wire.VMStatus) { st.VFs[0].SpoofCheck = false },
		"generation":  func(st *wire.VMStatus) { st.VFs[0].Generation = 0 },
		"state":       func(st *wire.VMStatus) { st.VFs[0].State = api.VFProgrammed },
		"missing":     func(st *wire.VMStatus) { st.VFs = st.VFs[:1] },
	} {
		st := readBack(v, api.PhaseReady)
		spoil(&st)
		w.report("h1", st)
		got := w.get("x").Status
		if got.Phase == api.PhaseReady || object.Condition(got.Conditions, vm.CondReady).Status != "False" || object.Condition(got.Conditions, vm.CondVerified).Status != "False" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if !w.report("h1", readBack(v, api.PhaseReady)) {
		t.Error("a change was not seen")
	}
	if got := w.get("x").Status; got.Phase != api.PhaseReady || object.Condition(got.Conditions, vm.CondReady).Status != "True" {
		t.Errorf("status = %+v", got)
	}
	if w.report("h1", readBack(v, api.PhaseReady)) {
		t.Error("nothing changed, but something was stored")
	}
}

func TestH89_AgentsSpeakOfTheirOwnOnly(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 1))
	w.host(machine{name: "h2", cells: 1, vcpus: 1, memory: gib})
	w.flavor("two", small(2))
	v := w.vm("x", "two", "net-a")
	w.remove(v)
	before := w.dump()
	if w.report("h2", readBack(v, api.PhaseFailed)) {
		t.Error("another host's report was taken")
	}
	w.release("h2", proof(v))
	w.unchanged(before)
}

func TestH90_VFsComeFromTheFabricOfTheirNetwork(t *testing.T) {
	w := newWorld(t)
	m := standard("h1", 4)
	m.cards[0].fabric[1] = "b"
	w.host(m)
	w.flavor("two", small(2))
	v := w.vm("x", "two", "net-b", "net-a")
	if a, b := v.Status.VFs[0], v.Status.VFs[1]; a.Fabric != "b" || a.PF != "h1-c-p1" || b.Fabric != "a" || b.PF != "h1-c-p0" {
		t.Errorf("VFs = %+v", v.Status.VFs)
	}
	w.flavor("only-a", api.FlavorSpec{VCPUs: 2, Memory: "4GiB", RDMA: &api.RDMA{Fabric: "a"}})
	_, err := w.refused(manifest("y", "only-a", "net-b"), fault.Invalid)
	if !strings.Contains(err.Error(), "fabric b") {
		t.Errorf("err = %v", err)
	}
}

func TestH91_FabricsHaveOneSourceOfTruth(t *testing.T) {
	w := newWorld(t)
	by := w.by()
	before := w.dump()
	err := w.do(func(tx store.Tx) error {
		return host.Create(tx, &api.Host{Meta: api.Meta{Name: "h9"}, Spec: api.HostSpec{PFs: []api.HostPF{{Match: "ens1f0", Fabric: "nope", VFs: 4}}}}, by)
	})
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "spec.pfs[0].fabric") {
		t.Errorf("err = %v", err)
	}
	err = w.do(func(tx store.Tx) error {
		return network.Create(tx, &api.Network{Meta: api.Meta{Name: "n", Tenant: "research"}, Spec: api.NetworkSpec{Fabric: "nope", CIDR: "10.7.0.0/24"}}, by)
	})
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "spec.fabric") {
		t.Errorf("err = %v", err)
	}
	w.unchanged(before)
	// What the agent was last told and what the server says differ: not ready until they agree.
	inv := standard("h1", 4).inventory()
	w.host(standard("h1", 4))
	for i := range inv.PFs {
		inv.PFs[i].Fabric = "b"
	}
	w.observe("h1", inv)
	w.flavor("one", small(1))
	why, _ := w.refused(manifest("x", "one", "net-a"), fault.NoCapacity)
	if v := why.Hosts[0]; v.Rule != "vf-ready" || !strings.Contains(v.Text, "from fabric b") {
		t.Errorf("verdict = %+v", v)
	}
}

func TestH93_NewVFsAreSeen(t *testing.T) {
	w := newWorld(t)
	w.host(standard("h1", 1))
	w.flavor("four", small(4))
	w.refused(manifest("x", "four", "net-a"), fault.NoCapacity)
	by := w.by()
	w.must(func(tx store.Tx) error {
		old, err := object.Load[api.Host](tx, api.KindHost, "", "h1")
		if err != nil {
			return err
		}
		next := *old
		next.Spec = standard("h1", 2).spec()
		return host.Update(tx, old, &next, by)
	})
	w.observe("h1", standard("h1", 2).inventory())
	w.vm("x", "four", "net-a")
}

func TestA10_ParallelStartsAndStops(t *testing.T) {
	w := newWorld(t)
	m := standard("h1", 8) // 16 VFs
	m.vcpus = 64
	w.host(m)
	w.flavor("one", small(1))
	var group sync.WaitGroup
	var mu sync.Mutex
	held := map[string]string{}
	whos := make([]object.Who, 16)
	for i := range whos {
		whos[i] = w.by()
	}
	for i, by := range whos {
		group.Go(func() {
			for round := range 20 {
				by.UID = fmt.Sprintf("uid-%d-%d", i, round)
				v := manifest(fmt.Sprintf("vm-%d", i), "one", "net-a")
				if _, err := w.db.Update(t.Context(), func(tx store.Tx) error { _, err := vm.Create(tx, v, by, w.alive); return err }); err != nil {
					t.Errorf("VM %d, round %d: %v", i, round, err)
					return
				}
				key := fmt.Sprintf("%s/%d", v.Status.VFs[0].PF, v.Status.VFs[0].Index)
				mu.Lock()
				if other := held[key]; other != "" {
					t.Errorf("VF %s is held by %s and %s", key, other, v.Name)
				}
				held[key] = v.Name
				mu.Unlock()
				runtime.Gosched() // the others run while this VM holds its VF
				mu.Lock()
				delete(held, key)
				mu.Unlock()
				if _, err := w.db.Update(t.Context(), func(tx store.Tx) error {
					if err := vm.Delete(tx, v, by); err != nil {
						return err
					}
					return vm.Release(tx, "h1", proof(v), by)
				}); err != nil {
					t.Errorf("VM %d, round %d: %v", i, round, err)
					return
				}
			}
		})
	}
	group.Wait()
	if u := w.usage("research"); u["vfs"] != 0 || w.hostStatus("h1").VMs != 0 {
		t.Errorf("usage = %v", u)
	}
}
