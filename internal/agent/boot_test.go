package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/roce"
)

// TestT15_BootWithOtherNames: after a reboot nothing is left of VFs, and udev has given each PF the other's
// name. The VFs are made again on the same ports, before a VM starts, and get what was programmed.
func TestT15_BootWithOtherNames(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.want.PFs[0].Match, w.want.PFs[1].Match = pf0, pf1 // as `verbena host commission` writes them
		w.want.PFs[0].VFs, w.want.PFs[1].VFs = 4, 2
		lossless(w)
		w.add("a", vf(pf0, 3, mac1, 101))
		w.now("create")
		pci := w.vf(pf0, 3).PCI
		if err := w.k.Reboot(); err != nil {
			t.Fatal(err)
		}
		for _, r := range [][2]string{{net0, "swap"}, {net1, net0}, {"swap", net1}} {
			if err := w.k.Rename(r[0], r[1]); err != nil {
				t.Fatal(err)
			}
		}
		w.boot()
		w.faults.ForgetLog()
		w.tellOnly()
		if err := w.settle(); err != nil {
			t.Fatal(err)
		}
		log := w.faults.Log()
		at := func(word string) int {
			return slices.IndexFunc(log, func(line string) bool { return strings.Contains(line, word) })
		}
		made, mac := at("echo 4 > /sys/bus/pci/devices/"+dev0+"/sriov_numvfs"), at("vf 3 mac")
		bound, began := at("echo "+pci+" > /sys/bus/pci/drivers_probe"), at("virsh start")
		if made < 0 || mac < made || bound < mac || began < bound {
			t.Errorf("VFs in step %d, MAC in %d, bind in %d, start in %d: %q", made, mac, bound, began, log)
		}
		ready("a")(t, w)
		if st := w.kernelVF(dev0, 3); st.Attr.MAC != parse(t, mac1) || st.Attr.VLAN != 101 {
			t.Errorf("%+v", st.Attr)
		}
		if p, q := w.pf(pf0), w.pf(pf1); p.NumVFs != 4 || q.NumVFs != 2 || p.Netdev != net1 || q.Netdev != net0 {
			t.Errorf("%s has %d VFs, %s has %d", p.Netdev, p.NumVFs, q.Netdev, q.NumVFs)
		}
		isLossless(t, w, pf0, pf1)
	})
}

func parse(t *testing.T, mac string) roce.MAC {
	t.Helper()
	m, err := roce.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestHypervisorStartsNothingByItself: a flag that somebody set is turned off; if it was set just before a
// reboot, the hypervisor can't start a VM whose VFs are not there, and the agent starts it as ever.
func TestHypervisorStartsNothingByItself(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		if w.domains()[uidOf("a")].Autostart {
			t.Error("defined with autostart")
		}
		foreign := hyper.Domain{UUID: "00000000-0000-4000-8000-0000000000ff", Name: "somebody"}
		if err := w.hv.AddForeign(foreign, false); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{uidOf("a"), foreign.UUID} {
			if err := w.hv.Autostart(id); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(6 * time.Minute)
		w.now("found at the slow period")
		if d := w.domains(); d[uidOf("a")].Autostart || !d[foreign.UUID].Autostart {
			t.Errorf("ours %t, another's %t", d[uidOf("a")].Autostart, d[foreign.UUID].Autostart)
		}
		if !w.told("AutostartTurnedOff", "hr.a") {
			t.Error("not told of")
		}
		if err := w.hv.Autostart(uidOf("a")); err != nil {
			t.Fatal(err)
		}
		w.reboot()
		if w.hv.PID(uidOf("a")) != 0 {
			t.Fatal("it runs without its VFs: the test shows nothing")
		}
		w.now("after the reboot")
		ready("a")(t, w)
		if w.domains()[uidOf("a")].Autostart {
			t.Error("not turned off after the reboot")
		}
	})
}
