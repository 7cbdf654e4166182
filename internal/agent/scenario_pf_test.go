package agent

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/rtnl"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
)

const (
	errIO   = syscall.EIO
	errFull = syscall.ENOSPC
)

// quirky is a host whose first PF has quirks.
func quirky(q sysfstest.Quirks) sysfstest.Config {
	cfg := host(4)
	cfg.Cards[0].PFs[0].Quirks = q
	return cfg
}

func TestT1VFsAppearLate(t *testing.T) {
	scene(t, quirky(sysfstest.Quirks{LateLinks: 60}), func(t *testing.T, w *world) {
		w.now("commission")
		free(8)(t, w)
	})
}

func TestT1TimeoutNamesTheMissingIndexes(t *testing.T) { // also D46
	scene(t, quirky(sysfstest.Quirks{LateLinks: sysfstest.Never}), func(t *testing.T, w *world) {
		if err := w.rounds(2); err == nil || !strings.Contains(err.Error(), "VF 0, 1, 2, 3 still can't be seen") {
			t.Errorf("err = %v", err)
		}
		if p := w.pf(pf0); p.Ready {
			t.Error("ready without its VFs")
		}
		if p := w.pf(pf1); !p.Ready {
			t.Errorf("the other PF waits for it: %s", p.Reason)
		}
		w.k.Settle()
		w.now("they are there")
		free(8)(t, w)
	})
}

func TestT2HangingWriteStopsOnlyItsPF(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		path := "bus/pci/devices/" + dev0 + "/sriov_numvfs"
		w.want.PFs[0].VFs = 0
		w.now("the other PF first")
		w.want.PFs[0].VFs = 4
		w.k.Hang(path)
		w.rounds(1)
		if p := w.pf(pf1); !p.Ready {
			t.Errorf("the other PF: %s", p.Reason)
		}
		w.k.Release(path)
		<-time.After(time.Minute)
		w.now("released")
		free(8)(t, w)
	})
}

func TestT3SRIOVOff(t *testing.T) {
	scene(t, quirky(sysfstest.Quirks{NoSRIOV: true}), func(t *testing.T, w *world) {
		if err := w.rounds(2); err == nil || !strings.Contains(err.Error(), "SR-IOV is off in BIOS or firmware") {
			t.Errorf("err = %v", err)
		}
		if p := w.pf(pf0); p.Ready || !strings.Contains(p.Reason, "SR-IOV is off") {
			t.Errorf("ready %v: %s", p.Ready, p.Reason)
		}
		w.want.PFs[0].VFs = 0
		w.now("none are wanted")
	})
}

func TestT5FewerVFsThanAsked(t *testing.T) {
	scene(t, quirky(sysfstest.Quirks{GiveAtMost: 2}), func(t *testing.T, w *world) {
		if err := w.rounds(4); err == nil {
			t.Error("a shortfall was taken for success")
		}
		p := w.pf(pf0)
		if p.Ready || p.NumVFs != 2 || p.WantVFs != 4 || p.Reason == "" {
			t.Errorf("ready %v, %d of %d: %s", p.Ready, p.NumVFs, p.WantVFs, p.Reason)
		}
		free(6)(t, w)
	})
}

func TestT6DriverLinkMissingForAMoment(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		pid := w.hv.PID(uidOf("a"))
		w.k.Hide("bus/pci/devices/"+w.vf(pf0, 0).PCI+"/driver", 3)
		w.k.Hide("bus/pci/drivers/vfio-pci/"+w.vf(pf0, 0).PCI, 3)
		w.now("back again")
		ready("a")(t, w)
		if w.hv.PID(uidOf("a")) != pid {
			t.Error("the VM was disturbed")
		}
	})
}

func TestT13MTUIsNeverTouched(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.now("commission")
		if p := w.pf(pf0); p.MTU != 9000 {
			t.Errorf("MTU %d", p.MTU)
		}
	})
}

func TestT18UnreadableOptionalFile(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		for _, f := range []string{"mtu", "speed", "carrier"} {
			w.k.Break("class/net/ens24f0np0/"+f, errIO)
		}
		w.now("commission")
		if p := w.pf(pf0); !p.Ready || p.Speed != 0 {
			t.Errorf("ready %v: %s", p.Ready, p.Reason)
		}
		if got := w.a.inventory().Problems; len(got) != 2 { // speed is not asked for without carrier
			t.Errorf("problems %q", got)
		}
	})
}

func TestT19HandsOnFreeVFs(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.now("commission")
		pci := w.vf(pf0, 1).PCI
		if err := w.k.Hand("bus/pci/drivers/vfio-pci/unbind", pci); err != nil {
			t.Fatal(err)
		}
		w.hand("ens24f0np0", 2, rtnl.VLAN{ID: 9})
		w.wantVF(pf0, 1, api.VFScrubbing, "not on vfio-pci")
		w.wantVF(pf0, 2, api.VFScrubbing, "VLAN 9")
		resets := w.kernelVF(dev0, 2).Resets
		w.now("repaired")
		free(8)(t, w)
		if w.kernelVF(dev0, 2).Resets == resets {
			t.Error("a VF with an unknown past was not reset")
		}
		if !w.told("VFRepaired", "VLAN 9") {
			t.Error("nobody was told")
		}
	})
}

func TestT25MinRateRefused(t *testing.T) { // also D54
	cfg := host(4)
	cfg.Cards[0].Caps = &sysfstest.Caps{MinRate: syscall.EINVAL, LinkState: syscall.EOPNOTSUPP}
	scene(t, cfg, func(t *testing.T, w *world) {
		w.now("commission")
		p := w.pf(pf0)
		if p.Caps.MinRate || p.Caps.LinkState || !p.Caps.MaxRate || !p.Caps.SpoofCheck || !p.Ready {
			t.Errorf("ready %v, %+v", p.Ready, p.Caps)
		}
		v := vf(pf0, 0, mac1, 101)
		v.MinRate = 100
		w.add("a", v)
		if err := w.rounds(2); err == nil {
			t.Error("no error")
		}
		w.wantVM("a", api.PhasePreparing, "can't guarantee a rate")
	})
}

func TestD54MandatoryAttributeMissing(t *testing.T) {
	cfg := host(4)
	cfg.Cards[0].Caps = &sysfstest.Caps{SpoofCheck: syscall.EOPNOTSUPP, SilentSpoofCheck: true}
	scene(t, cfg, func(t *testing.T, w *world) {
		w.rounds(5)
		p := w.pf(pf0)
		if p.Ready || p.Caps.SpoofCheck || !p.Caps.MAC || !strings.Contains(p.Reason, "spoof check") {
			t.Errorf("ready %v (%s), %+v", p.Ready, p.Reason, p.Caps)
		}
	})
}

func TestT27PFWithoutDriver(t *testing.T) {
	cfg := host(4)
	cfg.Cards[0].PFs[0].NoDriver = true
	scene(t, cfg, func(t *testing.T, w *world) {
		if err := w.rounds(2); err == nil && w.a.inventory() != nil {
			t.Log("no error: the PF has no key without netdev but its serial")
		}
		found := false
		for _, p := range w.a.inventory().PFs {
			if p.PCI == dev0 {
				found = true
				if p.Ready || p.Reason == "" {
					t.Errorf("PF %+v", p)
				}
			}
		}
		if !found {
			t.Error("not listed")
		}
		if p := w.pf(pf1); !p.Ready {
			t.Errorf("the other port: %s", p.Reason)
		}
	})
}

func TestT29GroupNumbersChangeOverBoots(t *testing.T) { // also D47, T15
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		was := w.vf(pf0, 0).Group
		w.reboot()
		if p := w.pf(pf0); p.Ready || p.NumVFs != 0 {
			t.Errorf("ready %v with %d VFs right after boot", p.Ready, p.NumVFs)
		}
		w.now("rebooted")
		ready("a")(t, w)
		if now := w.vf(pf0, 0).Group; now == was {
			t.Errorf("the simulated reboot kept group %s: the test shows nothing", now)
		}
	})
}

func TestT30SharedGroup(t *testing.T) {
	cfg := host(4)
	cfg.Cards[0].SharedGroup = true
	scene(t, cfg, func(t *testing.T, w *world) {
		w.rounds(5)
		w.wantVF(pf0, 0, api.VFQuarantined, "ACS")
		w.add("a", vf(pf0, 0, mac1, 101))
		w.rounds(2)
		w.wantVM("a", api.PhasePreparing, "quarantined")
	})
}

func TestT31NoIOMMU(t *testing.T) {
	cfg := host(4)
	cfg.NoIOMMU = true
	scene(t, cfg, func(t *testing.T, w *world) {
		w.rounds(5)
		if w.a.inventory().IOMMU {
			t.Error("IOMMU reported")
		}
		for _, p := range w.a.inventory().PFs {
			if p.Ready || !strings.Contains(p.Reason+p.VFs[0].Reason, "IOMMU") {
				t.Errorf("ready %v: %s, %+v", p.Ready, p.Reason, p.VFs)
			}
		}
	})
}

func TestT42ManagementPF(t *testing.T) {
	cfg := host(4)
	cfg.Route = "ens24f0np0"
	scene(t, cfg, func(t *testing.T, w *world) {
		w.faults.ForgetLog()
		if err := w.rounds(2); err == nil || !strings.Contains(err.Error(), "default route") {
			t.Errorf("err = %v", err)
		}
		for _, line := range w.faults.Log() {
			if strings.Contains(line, dev0) {
				t.Errorf("touched: %s", line)
			}
		}
		if p := w.pf(pf0); !p.Management || p.Ready {
			t.Errorf("management %v, ready %v", p.Management, p.Ready)
		}
		w.want.PFs[0].AllowManagement = true
		w.now("allowed")
		free(8)(t, w)
	})
}

func TestT46OverrideOnly(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.now("commission")
		w.add("a", vf(pf0, 0, mac1, 101))
		w.tellOnly()
		w.faults.ForgetLog()
		if err := w.settle(); err != nil {
			t.Fatal(err)
		}
		for _, line := range w.faults.Log() {
			if strings.Contains(line, "new_id") || strings.Contains(line, "/bind") {
				t.Errorf("written: %s", line)
			}
		}
		for i := range 4 {
			if v := w.kernelVF(dev0, i); v.Override != "vfio-pci" {
				t.Errorf("VF %d: override %q is not kept", i, v.Override)
			}
		}
	})
}

func TestT47EachNetworkOnItsOwnVF(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 2, mac1, 101), vf(pf1, 0, mac2, 102), vf(pf0, 1, mac3, 103))
		w.now("create")
		want := map[string]string{"0000:02:00.0": w.vf(pf0, 2).PCI, "0000:03:00.0": w.vf(pf1, 0).PCI, "0000:04:00.0": w.vf(pf0, 1).PCI}
		for _, v := range w.domains()[uidOf("a")].VFs {
			if want[v.Guest.String()] != v.Host.String() {
				t.Errorf("guest %s is %s, want %s", v.Guest, v.Host, want[v.Guest.String()])
			}
		}
	})
}

func TestT54OverrideWrittenButStillBound(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		// Somebody made VFs with the native driver before, and wrote overrides without an unbind.
		for _, f := range []struct{ path, value string }{
			{"bus/pci/devices/" + dev0 + "/sriov_drivers_autoprobe", "1"},
			{"bus/pci/devices/" + dev0 + "/sriov_numvfs", "4"},
		} {
			if err := w.k.Hand(f.path, f.value); err != nil {
				t.Fatal(err)
			}
		}
		pci := w.kernelVF(dev0, 0).PCI
		if err := w.k.Hand("bus/pci/devices/"+pci+"/driver_override", "vfio-pci"); err != nil {
			t.Fatal(err)
		}
		if d := w.kernelVF(dev0, 0).Driver; d != "mlx5_core" {
			t.Fatalf("driver %q: the test shows nothing", d)
		}
		w.now("taken over")
		free(8)(t, w)
	})
}

func TestA15UpNetdevIsForeign(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		if err := w.k.Hand("bus/pci/devices/"+dev0+"/sriov_drivers_autoprobe", "1"); err != nil {
			t.Fatal(err)
		}
		if err := w.k.Hand("bus/pci/devices/"+dev0+"/sriov_numvfs", "4"); err != nil {
			t.Fatal(err)
		}
		names, err := w.k.List(t.Context(), "bus/pci/devices/"+w.kernelVF(dev0, 1).PCI+"/net")
		if err != nil || len(names) != 1 {
			t.Fatalf("netdevs %v, %v", names, err)
		}
		if err := w.k.SetUp(t.Context(), names[0]); err != nil {
			t.Fatal(err)
		}
		w.now("commission")
		w.wantVF(pf0, 1, api.VFForeign, "its netdev "+names[0]+" is up")
		w.wantVF(pf0, 0, api.VFParked, "")
		w.want.PFs[0].VFs = 2
		if err := w.rounds(2); err == nil || !strings.Contains(err.Error(), "VF 1 is not parked") {
			t.Errorf("err = %v", err)
		}
	})
}

func TestD53TransientRefusalIsTriedAgain(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.faults.FailWrite(9, syscall.EBUSY, false)
		w.tellOnly()
		if err := w.settle(); err != nil {
			t.Fatal(err)
		}
		free(8)(t, w)
	})
}

func TestOneBadVFDoesNotStopItsSiblings(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.tellOnly()
		w.want.PFs[1].VFs = 0
		bad := ""
		for i := range 3 {
			if err := w.rounds(1); err != nil && i == 2 {
				t.Log(err)
			}
			if bad == "" {
				bad = w.kernelVF(dev0, 1).PCI
				if err := w.k.Hand("bus/pci/drivers/vfio-pci/unbind", bad); err != nil {
					t.Fatal(err)
				}
				w.k.Break("bus/pci/devices/"+bad+"/driver_override", errIO)
				if err := w.k.Hand("bus/pci/devices/"+w.kernelVF(dev0, 2).PCI+"/driver_override", "none"); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got := w.vf(pf0, 1).State; got != api.VFScrubbing && got != api.VFQuarantined {
			t.Errorf("VF 1 is %s", got)
		}
		for _, i := range []int{0, 2, 3} {
			w.wantVF(pf0, i, api.VFParked, "")
		}
		w.k.Break("bus/pci/devices/"+bad+"/driver_override", nil)
		for range 22 {
			pauseFor(t)
		}
		w.now("repaired")
		w.wantVF(pf0, 1, api.VFParked, "")
	})
}

func TestResetThatLosesAttributes(t *testing.T) {
	scene(t, quirky(sysfstest.Quirks{ResetLoses: true}), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		w.vm("a").Absent = true
		w.now("delete")
		free(8)(t, w)
	})
}

func TestIGB(t *testing.T) {
	scene(t, sysfstest.IGB(), func(t *testing.T, w *world) {
		w.want.PFs[0].VFs = 4
		const pf = "52:54:00:00:01:01-p0"
		w.add("a", vf(pf, 0, mac1, 101)).Cells[0].Host = 1
		w.now("create")
		ready("a")(t, w)
		p := w.pf(pf)
		if !p.Ready || p.Caps.MinRate || p.Caps.LinkState || p.TotalVFs != 7 || p.Cell != 1 {
			t.Errorf("PF %+v", p)
		}
		w.vm("a").Absent = true
		w.now("delete")
		absentVM("a")(t, w)
	})
}

func TestTooManyVFs(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.want.PFs[0].VFs = 5
		if err := w.rounds(2); err == nil || !strings.Contains(err.Error(), "has room for 4 VFs, 5 are wanted") {
			t.Errorf("err = %v", err)
		}
	})
}

func TestPFPulled(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		if err := w.k.Unplug(dev0); err != nil {
			t.Fatal(err)
		}
		w.rounds(2)
		if st := w.status(uidOf("a")); st.Phase != api.PhaseFailed || st.VFs[0].Reason == "" {
			t.Errorf("status %+v", st)
		}
		w.vm("a").Absent = true
		w.now("delete") // what is not there can't be held
		absentVM("a")(t, w)
	})
}
