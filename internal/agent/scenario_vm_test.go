package agent

import (
	"slices"
	"strings"
	"testing"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/rtnl"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// The names of these tests are those of public failures of other platforms, by letter and number.

func TestA11SecondStartSaysWhoUsesTheDevice(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.now("commission")
		addr, err := roce.ParsePCI(w.vf(pf0, 0).PCI)
		if err != nil {
			t.Fatal(err)
		}
		dom := hyper.Domain{UUID: uidOf("x"), Name: "other", VFs: []hyper.VF{{Alias: "x", Host: addr, Guest: roce.PCIAddr{Bus: 2}}}}
		if err := w.hv.AddForeign(dom, true); err != nil {
			t.Fatal(err)
		}
		w.a.hv.changed()
		w.wantVF(pf0, 0, api.VFForeign, "domain other")
		w.add("a", vf(pf0, 0, mac1, 101))
		w.faults.ForgetLog()
		if err := w.rounds(3); err == nil {
			t.Error("no error")
		}
		w.wantVM("a", api.PhasePreparing, "in use: domain other")
		for _, line := range w.faults.Log() {
			if strings.Contains(line, "vf 0") || strings.Contains(line, "journal") {
				t.Errorf("touched: %s", line)
			}
		}
	})
}

func TestA14GuestShutdownKeepsTheAllocation(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		if err := w.hv.Kill(uidOf("a")); err != nil {
			t.Fatal(err)
		}
		w.a.hv.changed()
		if v := w.vf(pf0, 0); v.State != api.VFVerified || v.VM != "hr/a" {
			t.Errorf("VF is %s, held by %q", v.State, v.VM)
		}
		w.add("b", vf(pf0, 0, mac2, 102)) // a server that thinks it free
		if err := w.rounds(4); err == nil {
			t.Error("VF 0 was given to a second VM")
		}
		w.wantVM("b", api.PhasePreparing, "held by VM hr/a")
		w.wantVM("a", api.PhaseReady, "") // power is on: started again
		if !w.told("GuestStopped", "started again") {
			t.Error("nobody was told")
		}
	})
}

func TestA15ForeignBusyVFIsNotAllocatable(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.now("commission")
		if err := w.k.OpenVFIO(w.vf(pf0, 1).PCI, 77); err != nil {
			t.Fatal(err)
		}
		w.a.mu.Lock()
		w.a.snap = nil // as after the slow period
		w.a.mu.Unlock()
		w.wantVF(pf0, 1, api.VFForeign, "process 77")
		w.add("a", vf(pf0, 1, mac1, 101))
		if err := w.rounds(2); err == nil {
			t.Error("no error")
		}
		w.wantVM("a", api.PhasePreparing, "process 77")
		w.k.CloseVFIO(77)
		w.now("let go")
		w.wantVM("a", api.PhaseReady, "")
	})
}

func TestB19SpecRemovedWhileVMRuns(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		w.want.PFs = nil
		w.now("no PF is commissioned any more")
		ready("a")(t, w)
		if v := w.vf(pf0, 0); v.State != api.VFAttached || v.VM != "hr/a" {
			t.Errorf("VF is %s, held by %q", v.State, v.VM)
		}
		if p := w.pf(pf0); p.Ready || p.NumVFs != 4 {
			t.Errorf("PF ready %v, %d VFs", p.Ready, p.NumVFs)
		}
	})
}

func TestB21HostReinstalledWithOldServer(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		w.files.data = map[string][]byte{} // the state directory is gone, domains and VFs too
		w.hv = newWorld(t, host(4)).hv
		fresh := newWorld(t, host(4))
		w.k, w.faults, w.hv, w.disk, w.files = fresh.k, fresh.faults, fresh.hv, fresh.disk, fresh.files
		w.boot()
		w.now("reinstalled")
		ready("a")(t, w)
	})
}

func TestB25RebuildFreesWhatItLeaves(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		vm := w.vm("a")
		vm.Generation, vm.VFs[0].Index = 2, 3 // rebuilt with another VF
		w.now("rebuild")
		ready("a")(t, w)
		w.wantVF(pf0, 0, api.VFParked, "")
		w.wantVF(pf0, 3, api.VFAttached, "")
	})
}

func TestB30FailedDiscoveryNeverFrees(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		w.vm("a").Absent = true
		w.k.Break("bus/pci/devices/"+dev0+"/sriov_numvfs", errIO)
		if err := w.rounds(4); err == nil {
			t.Error("no error")
		}
		if st := w.status(uidOf("a")); st.Absent {
			t.Error("called absent though its PF can't be read")
		}
		w.k.Break("bus/pci/devices/"+dev0+"/sriov_numvfs", nil)
		w.now("readable again")
		absentVM("a")(t, w)
	})
}

func TestB31CardAddedShiftsBusNumbers(t *testing.T) { // also T45
	scene(t, host(4), func(t *testing.T, w *world) {
		for i := range w.want.PFs { // commissioned by key, as the server should
			w.want.PFs[i].Match = []string{pf0, pf1}[i]
		}
		w.add("a", vf(pf1, 1, mac1, 101))
		w.now("create")
		if err := w.k.Reboot(sysfstest.Move{From: dev0, To: "0000:19:00.0"}, sysfstest.Move{From: dev1, To: "0000:19:00.1"}); err != nil {
			t.Fatal(err)
		}
		w.boot()
		w.now("after the reboot")
		ready("a")(t, w)
		if v := w.vf(pf1, 1); !strings.HasPrefix(v.PCI, "0000:19:") || w.domains()[uidOf("a")].VFs[0].Host.String() != v.PCI {
			t.Errorf("VF at %s, domain has %s", v.PCI, w.domains()[uidOf("a")].VFs[0].Host)
		}
	})
}

func TestC33RenamedNetdevsChangeNothing(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		if err := w.k.Rename("ens24f0np0", "roce0"); err != nil {
			t.Fatal(err)
		}
		w.mustSettle("renamed")
		ready("a")(t, w)
		if p := w.pf(pf0); p.Netdev != "roce0" || !p.Ready {
			t.Errorf("PF %+v", p)
		}
		w.hand("roce0", 0, rtnl.VLAN{ID: 7})
		w.now("repaired through the new name")
		if v := w.kernelVF(dev0, 0); v.Attr.VLAN != 101 {
			t.Errorf("VLAN %d", v.Attr.VLAN)
		}
	})
}

func TestC38SameMACTwice(t *testing.T) { // also E59, T23
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		w.add("b", vf(pf1, 1, mac1, 102))
		if err := w.rounds(3); err == nil {
			t.Error("no error")
		}
		w.wantVM("b", api.PhasePreparing, "also has the MAC "+mac1)
		w.drop("b")
		w.add("c", vf(pf1, 1, mac2, 102), vf(pf1, 2, mac2, 102))
		if err := w.rounds(2); err != nil {
			t.Fatal(err)
		}
		w.wantVM("c", api.PhaseFailed, "twice")
	})
}

func TestD43CountStaysWhileAVFIsHeld(t *testing.T) { // also D45
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		w.want.PFs[0].VFs = 2
		w.faults.ForgetLog()
		if err := w.rounds(5); err == nil {
			t.Error("no error")
		}
		for _, line := range w.faults.Log() {
			if strings.Contains(line, "numvfs") {
				t.Errorf("written: %s", line)
			}
		}
		if p := w.pf(pf0); p.Ready || !strings.Contains(p.Reason, "can't change while VF 0 is not parked") {
			t.Errorf("ready %v: %s", p.Ready, p.Reason)
		}
		ready("a")(t, w)
		w.vm("a").Absent = true
		w.now("deleted")
		if p := w.pf(pf0); p.NumVFs != 2 || !p.Ready {
			t.Errorf("%d VFs, ready %v: %s", p.NumVFs, p.Ready, p.Reason)
		}
	})
}

func TestD51GroupStillOpenAfterTheDomainIsGone(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		pci := w.vf(pf0, 0).PCI
		if err := w.hv.Kill(uidOf("a")); err != nil {
			t.Fatal(err)
		}
		if err := w.k.OpenVFIO(pci, 99); err != nil { // QEMU has not let go
			t.Fatal(err)
		}
		w.vm("a").Absent = true
		w.a.hv.changed()
		if err := w.rounds(5); err != nil {
			t.Fatal(err)
		}
		w.wantVM("a", api.PhaseDeleting, "process 99 still has its vfio group")
		if v := w.kernelVF(dev0, 0); v.Attr.VLAN != 101 {
			t.Errorf("scrubbed while it was open: %+v", v)
		}
		w.k.CloseVFIO(99)
		w.now("let go")
		absentVM("a")(t, w)
	})
}

func TestE57StaleGenerationIsANoOp(t *testing.T) { // also T22
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.vm("a").Generation = 5
		w.now("create")
		w.vm("a").Generation, w.vm("a").Absent = 4, true // a late message about an earlier life
		w.now("stale removal")
		if st := w.status(uidOf("a")); st.Absent || st.Generation != 5 || st.Phase != api.PhaseReady {
			t.Errorf("status %+v", st)
		}
		w.wantVF(pf0, 0, api.VFAttached, "")
	})
}

func TestE57LateRemovalSparesTheNextOwner(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		w.vm("a").Absent = true
		w.now("delete")
		w.add("b", vf(pf0, 0, mac2, 102)) // a is still listed as to be removed
		w.now("given on")
		w.boot() // and an agent that knows nothing of a
		w.now("restarted")
		ready("b")(t, w)
		absentVM("a")(t, w)
	})
}

func TestE61NextTenantInheritsNothing(t *testing.T) { // also E62, E63
	scene(t, host(4), func(t *testing.T, w *world) {
		v := vf(pf0, 0, mac1, 101)
		v.MinRate, v.MaxRate = 1000, 5000
		w.add("a", v)
		w.now("create")
		if k := w.kernelVF(dev0, 0).Attr; k.MinRate != 1000 || k.MaxRate != 5000 {
			t.Fatalf("rates %d, %d", k.MinRate, k.MaxRate)
		}
		w.hand("ens24f0np0", 0, rtnl.Trust(true))
		w.vm("a").Absent = true
		w.now("delete")
		before := w.kernelVF(dev0, 0)
		if before.Attr.VLAN != 0 || before.Attr.QoS != 0 || before.Attr.MaxRate != 0 || before.Attr.MinRate != 0 || *before.Attr.Trust || !*before.Attr.SpoofCheck || before.Dirty {
			t.Errorf("left behind: %+v", before)
		}
		w.add("b", vf(pf0, 0, mac2, 202))
		w.now("next tenant")
		after := w.kernelVF(dev0, 0).Attr
		if after.VLAN != 202 || after.MAC.String() != mac2 || after.MaxRate != 0 || after.MinRate != 0 || *after.Trust {
			t.Errorf("inherited: %+v", after)
		}
	})
}

func TestE65MACStaysOverRebootAndRebuild(t *testing.T) { // also T43
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		parked := w.vf(pf0, 1).MAC
		w.reboot()
		w.now("reboot")
		w.vm("a").Generation++
		w.now("rebuild")
		if m := w.kernelVF(dev0, 0).Attr.MAC.String(); m != mac1 {
			t.Errorf("MAC %s", m)
		}
		if m := w.vf(pf0, 1).MAC; m != parked {
			t.Errorf("parking MAC %s, was %s", m, parked)
		}
	})
}

func TestG81OneBadRecordDoesNotStopTheAgent(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"truncated": func(b []byte) []byte { return b[:len(b)/2] },
		"empty":     func([]byte) []byte { return nil },
		"flipped":   func(b []byte) []byte { b[len(b)-9] ^= 1; return b },
	} {
		t.Run(name, func(t *testing.T) {
			scene(t, host(4), func(t *testing.T, w *world) {
				w.add("a", vf(pf0, 0, mac1, 101))
				w.add("b", vf(pf0, 1, mac2, 101))
				w.now("create")
				file := "journal/" + vmFile(uidOf("a"))
				w.files.data[file] = damage(slices.Clone(w.files.data[file]))
				pid := w.hv.PID(uidOf("a"))
				w.boot()
				if !w.told("JournalCorrupt", "vm-") {
					t.Error("nobody was told")
				}
				w.wantVF(pf0, 0, api.VFForeign, "no journal entry covers it") // running: not touched
				w.now("taken over from the server's word")
				ready("a", "b")(t, w)
				if now := w.hv.PID(uidOf("a")); now != pid {
					t.Errorf("VM a was restarted: process %d, was %d", now, pid)
				}
				w.vm("a").Absent = true
				w.now("delete")
				absentVM("a")(t, w)
			})
		})
	}
}

func TestG81DamagedRecordOfARemovalIsFinished(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		w.files.data["journal/"+vmFile(uidOf("a"))] = []byte("x")
		w.vm("a").Absent = true
		w.boot()
		w.now("delete")
		absentVM("a")(t, w)
		w.wantVF(pf0, 0, api.VFParked, "")
	})
}

func TestH95FailedResetQuarantines(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		if err := w.k.Tune(dev0, func(q *sysfstest.Quirks) { q.ResetErr = errIO }); err != nil {
			t.Fatal(err)
		}
		w.vm("a").Absent = true
		w.now("delete")
		absentVM("a")(t, w) // the VM is gone all the same
		w.wantVF(pf0, 0, api.VFQuarantined, "reset")
		if v := w.kernelVF(dev0, 0).Attr; v.MAC.String() == mac1 || v.VLAN != 0 {
			t.Errorf("it keeps the VM's MAC or VLAN: %+v", v)
		}
		w.boot() // the next agent does not believe it either
		w.now("restart")
		w.wantVF(pf0, 0, api.VFQuarantined, "reset")
		w.wantVF(pf0, 1, api.VFParked, "")
		if err := w.k.Tune(dev0, func(q *sysfstest.Quirks) { q.ResetErr = 0 }); err != nil {
			t.Fatal(err)
		}
		for range 22 { // it rests for a while before it is tried again
			pauseFor(t)
		}
		w.now("repaired")
		w.wantVF(pf0, 0, api.VFParked, "")
	})
}

func TestUnlistedVM(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		vms := w.want.VMs
		w.want.VMs = nil
		w.now("a server that lists nothing")
		if w.hv.PID(uidOf("a")) == 0 {
			t.Fatal("an empty list stopped a running VM")
		}
		if !w.told("OrphanVM", "left alone") {
			t.Error("nobody was told")
		}
		w.want.VMs = vms
		w.now("listed again")
		ready("a")(t, w)
	})
}

func TestAfterARebootNothingStartsBeforeTheServerIsHeard(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		w.reboot()
		for range 3 {
			if _, err := w.round(t.Context()); err != nil {
				t.Fatal(err)
			}
			pauseFor(t)
		}
		if w.hv.PID(uidOf("a")) != 0 {
			t.Error("started, though it may live elsewhere by now")
		}
		w.now("heard")
		ready("a")(t, w)
	})
}

func TestRestartDuringAnOutageTakesNothingAway(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.add("b", vf(pf0, 1, mac2, 101))
		w.now("create")
		w.boot() // the server is away
		w.mustSettle("alone")
		if w.hv.PID(uidOf("a")) == 0 || w.status(uidOf("a")).Phase != api.PhaseReady {
			t.Errorf("status %+v", w.status(uidOf("a")))
		}
		if err := w.hv.Kill(uidOf("b")); err != nil { // same boot: it may start what stopped
			t.Fatal(err)
		}
		w.a.hv.changed()
		w.mustSettle("alone")
		if w.hv.PID(uidOf("b")) == 0 {
			t.Error("not started again in the same boot")
		}
	})
}

func TestDiskFullStopsBeforeTheFirstSideEffect(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.now("commission")
		w.files.full = errFull
		w.add("a", vf(pf0, 0, mac1, 101))
		w.faults.ForgetLog()
		if err := w.tell(); err == nil {
			t.Error("the state can't be stored and nobody says so")
		}
		_, err := w.round(t.Context())
		if !fault.Is(err, fault.Unavailable) && err == nil {
			t.Errorf("err = %v", err)
		}
		w.wantVM("a", api.PhasePreparing, "no space left")
		if log := w.faults.Log(); len(log) != 0 {
			t.Errorf("done without a journal: %q", log)
		}
		w.files.full = nil
		w.now("space again")
		ready("a")(t, w)
	})
}

func TestHandChangesOfAHeldVFAreSetBack(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		pid := w.hv.PID(uidOf("a"))
		w.hand("ens24f0np0", 0, rtnl.VLAN{ID: 666})
		w.hand("ens24f0np0", 0, rtnl.SpoofCheck(false))
		w.now("set back")
		if v := w.kernelVF(dev0, 0).Attr; v.VLAN != 101 || v.QoS != 3 || !*v.SpoofCheck {
			t.Errorf("%+v", v)
		}
		if w.hv.PID(uidOf("a")) != pid || !w.told("VFChangedByHand", "VLAN 666") {
			t.Error("the guest was disturbed, or nobody was told")
		}
	})
}

func TestDeafGuestLosesItsPowerAfterTheGrace(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		if err := w.hv.Deafen(uidOf("a"), true); err != nil {
			t.Fatal(err)
		}
		w.vm("a").Power = "off"
		w.faults.ForgetLog()
		w.tellOnly()
		if err := w.settle(); err != nil {
			t.Fatal(err)
		}
		log := strings.Join(w.faults.Log(), "\n")
		if strings.Count(log, "virsh shutdown") != 1 || strings.Count(log, "virsh destroy") != 1 {
			t.Errorf("asked and forced: %s", log)
		}
		w.wantVM("a", api.PhaseStopped, "")
		if v := w.vf(pf0, 0); v.State != api.VFVerified || v.VM != "hr/a" {
			t.Errorf("VF is %s, held by %q: power does not release", v.State, v.VM)
		}
	})
}

func (w *world) tellOnly() {
	w.t.Helper()
	if err := w.tell(); err != nil {
		w.t.Fatal(err)
	}
}

func TestHypervisorAway(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		w.hv.StopDaemon()
		w.a.hv.changed()
		w.vm("a").Absent = true
		if err := w.rounds(3); err == nil {
			t.Error("no error")
		}
		if st := w.status(uidOf("a")); st.Absent || st.Phase != api.PhaseUnknown {
			t.Errorf("no news taken for evidence: %+v", st)
		}
		w.hv.StartDaemon()
		w.now("back")
		absentVM("a")(t, w)
	})
}

func TestPinning(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101)).Cells = []wire.Cell{{Host: 0, VCPUs: 2, Memory: 1 << 30}, {Guest: 1, Host: 1, VCPUs: 1, Memory: 1 << 30}}
		w.add("b", vf(pf0, 1, mac2, 101)).Cells = []wire.Cell{{Host: 0, VCPUs: 29, Memory: 1 << 30}}
		w.now("create")
		a, b := w.a.j.get(uidOf("a")).Pins, w.a.j.get(uidOf("b")).Pins
		if !slices.Equal(a[0], []string{"0", "1"}) || !slices.Equal(a[1], []string{"16"}) {
			t.Errorf("a: %v", a)
		}
		if b[0][0] != "2" || b[0][28] != "46" {
			t.Errorf("b takes CPUs that are free: %v", b)
		}
		w.add("c", vf(pf0, 2, mac3, 101)).Cells = []wire.Cell{{Host: 0, VCPUs: 4, Memory: 1 << 30}}
		w.now("more than are free")
		if c := w.a.j.get(uidOf("c")).Pins; c[0][0] != "0-15,32-47" || c[0][3] != "0-15,32-47" {
			t.Errorf("c floats on its cell: %v", c)
		}
	})
}
