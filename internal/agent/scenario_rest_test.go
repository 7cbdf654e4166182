package agent

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/rtnl"
	"github.com/verbena-cloud/verbena/internal/sysfs"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// TestA17_ExclusivityCases: whoever has a VF, a VM gets it neither at its first start nor by a rebuild, and
// nothing is written to it.
func TestA17_ExclusivityCases(t *testing.T) {
	foreign := func(run bool) func(*testing.T, *world) {
		return func(t *testing.T, w *world) {
			addr, err := roce.ParsePCI(w.vf(pf0, 1).PCI)
			if err != nil {
				t.Fatal(err)
			}
			dom := hyper.Domain{UUID: uidOf("x"), Name: "other", VFs: []hyper.VF{{Alias: "x", Host: addr, Guest: roce.PCIAddr{Bus: 2}}}}
			if err := w.hv.AddForeign(dom, run); err != nil {
				t.Fatal(err)
			}
		}
	}
	holders := []struct {
		name string
		take func(*testing.T, *world)
		says string
	}{
		{"another VM", func(_ *testing.T, w *world) { w.add("b", vf(pf0, 1, mac2, 102)); w.now("b") }, "VM hr/b"},
		{"a foreign domain that runs", foreign(true), "domain other"},
		{"a foreign domain that is off", foreign(false), "domain other"},
		{"a process", func(t *testing.T, w *world) {
			if err := w.k.OpenVFIO(w.vf(pf0, 1).PCI, 77); err != nil {
				t.Fatal(err)
			}
			w.unknown()
		}, "process 77"},
	}
	for _, h := range holders {
		for _, rebuild := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/rebuild=%t", h.name, rebuild), func(t *testing.T) {
				scene(t, host(4), func(t *testing.T, w *world) {
					w.now("commission")
					if rebuild {
						w.add("a", vf(pf0, 0, mac1, 101))
						w.now("create")
					}
					h.take(t, w)
					w.a.hv.changed()
					if rebuild {
						w.vm("a").Generation, w.vm("a").VFs[0].Index = 2, 1
					} else {
						w.add("a", vf(pf0, 1, mac1, 101))
					}
					before := w.kernelVF(dev0, 1)
					if err := w.rounds(4); err == nil {
						t.Error("no error")
					}
					if st := w.status(uidOf("a")); st.Phase == api.PhaseReady && st.Generation == w.vm("a").Generation || !strings.Contains(st.Message, h.says) {
						t.Errorf("VM a is %s (%s), want a word of %q", st.Phase, st.Message, h.says)
					}
					after := w.kernelVF(dev0, 1)
					if after.Attr.MAC != before.Attr.MAC || after.Attr.VLAN != before.Attr.VLAN || after.Driver != before.Driver || after.Resets != before.Resets || after.Holder != before.Holder {
						t.Errorf("the VF was touched: %+v, was %+v", after, before)
					}
				})
			})
		}
	}
}

// twoPorts is a card that shows both ports under one function, and its VFs too.
const twoPorts = `bus/pci/devices/0000:03:00.0 -> ../../../devices/pci0000:00/0000:03:00.0
bus/pci/drivers/mlx4_core/0000:03:00.0 -> ../../../../devices/pci0000:00/0000:03:00.0
class/net/alpha -> ../../devices/pci0000:00/0000:03:00.0/net/alpha
class/net/beta -> ../../devices/pci0000:00/0000:03:00.0/net/beta
devices/pci0000:00/0000:03:00.0/driver -> ../../../bus/pci/drivers/mlx4_core
devices/pci0000:00/0000:03:00.0/class = 0x020000
devices/pci0000:00/0000:03:00.0/vendor = 0x15b3
devices/pci0000:00/0000:03:00.0/device = 0x1003
devices/pci0000:00/0000:03:00.0/numa_node = 0
devices/pci0000:00/0000:03:00.0/sriov_totalvfs = 8
devices/pci0000:00/0000:03:00.0/sriov_numvfs = 0
devices/pci0000:00/0000:03:00.0/sriov_drivers_autoprobe = 1
devices/pci0000:00/0000:03:00.0/net/alpha/dev_port = 1
devices/pci0000:00/0000:03:00.0/net/alpha/address = 00:02:c9:00:00:02
devices/pci0000:00/0000:03:00.0/net/alpha/addr_assign_type = 0
devices/pci0000:00/0000:03:00.0/net/alpha/flags = 0x1003
devices/pci0000:00/0000:03:00.0/net/alpha/mtu = 1500
devices/pci0000:00/0000:03:00.0/net/alpha/carrier = 1
devices/pci0000:00/0000:03:00.0/net/alpha/speed = 10000
devices/pci0000:00/0000:03:00.0/net/beta/dev_port = 0
devices/pci0000:00/0000:03:00.0/net/beta/address = 00:02:c9:00:00:01
devices/pci0000:00/0000:03:00.0/net/beta/addr_assign_type = 0
devices/pci0000:00/0000:03:00.0/net/beta/flags = 0x1003
devices/pci0000:00/0000:03:00.0/net/beta/mtu = 1500
devices/pci0000:00/0000:03:00.0/net/beta/carrier = 1
devices/pci0000:00/0000:03:00.0/net/beta/speed = 40000
`

// TestC37_TwoPortsUnderOneFunction: ConnectX-3 shows each VF under both ports. It is counted once, by the
// port whose dev_port is 0, whatever the netdevs are called.
func TestC37_TwoPortsUnderOneFunction(t *testing.T) {
	tree, err := sysfstest.Captured(twoPorts)
	if err != nil {
		t.Fatal(err)
	}
	prob := &problems{}
	k := newKernel(tree, nil)
	pfs, err := k.functions(t.Context(), prob)
	if err != nil || len(pfs) != 1 {
		t.Fatalf("PFs %q, %v", pfs, err)
	}
	f := k.fn(t.Context(), pfs[0], prob)
	if f.Netdev != "beta" || f.Key != "00:02:c9:00:00:01-p0" || f.Speed != 40e9 {
		t.Errorf("PF %+v", f)
	}
}

// TestC34_WhatIsNoPCIAddressIsSkipped: a name that can't be an address is left out and said, and the function
// in a wide domain beside it is served.
func TestC34_WhatIsNoPCIAddressIsSkipped(t *testing.T) {
	wide := strings.ReplaceAll(twoPorts, "0000:03:00.0", "10000:03:00.0")
	odd := "devices/pci0000:00/0001:d6:0x.0/class = 0x020000\nbus/pci/devices/0001:d6:0x.0 -> ../../../devices/pci0000:00/0001:d6:0x.0\n"
	tree, err := sysfstest.Captured(wide + odd)
	if err != nil {
		t.Fatal(err)
	}
	prob := &problems{}
	pfs, err := newKernel(tree, nil).functions(t.Context(), prob)
	if err != nil || !slices.Equal(pfs, []string{"10000:03:00.0"}) {
		t.Errorf("PFs %q, %v", pfs, err)
	}
	if got := prob.lines(); len(got) != 1 || !strings.Contains(got[0], "0001:d6:0x.0") {
		t.Errorf("problems %q", got)
	}
}

var plainName = regexp.MustCompile(`^[a-z0-9.-]+$`)

// TestC41_LongNames: names of the greatest length give names of domain and files that every layer below
// takes: a file name has at most 255 bytes, and libvirt adds an ending to the domain's.
func TestC41_LongNames(t *testing.T) {
	for _, n := range []int{1, 2, 62, 63} {
		scene(t, host(4), func(t *testing.T, w *world) {
			v := w.add("a", vf(pf0, 0, mac1, 101))
			v.Tenant, v.Name = "t"+strings.Repeat("-", n-1), "v"+strings.Repeat("9", n-1)
			v.Seed.Hostname = v.Name
			w.now("create")
			d := w.domains()[uidOf("a")]
			if d.Name != v.Tenant+"."+v.Name || len(d.Name) > 200 || !plainName.MatchString(d.Name) {
				t.Errorf("domain %q", d.Name)
			}
			for path := range w.disk.files {
				if base := path[strings.LastIndex(path, "/")+1:]; len(base) > 64 || !plainName.MatchString(base) {
					t.Errorf("file %q", path)
				}
			}
			if st := w.status(uidOf("a")); st.Phase != api.PhaseReady {
				t.Errorf("status %+v", st)
			}
		})
	}
}

// watched notes which paths are read.
type watched struct {
	sysfs.Tree
	mu    sync.Mutex
	paths map[string]bool
}

func (c *watched) note(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paths[path] = true
}

func (c *watched) Read(ctx context.Context, path string) (string, error) {
	c.note(path)
	return c.Tree.Read(ctx, path)
}

func (c *watched) List(ctx context.Context, path string) ([]string, error) {
	c.note(path)
	return c.Tree.List(ctx, path)
}

func (c *watched) Link(ctx context.Context, path string) (string, error) {
	c.note(path)
	return c.Tree.Link(ctx, path)
}

// rest lets the time pass after which a VF in quarantine is tried again.
func rest(t *testing.T) {
	t.Helper()
	for range int(recheck/waitRound) + 2 {
		pauseFor(t)
	}
}

// life is a VM's from a bare host to a host where nothing is left of it.
func life(w *world) {
	w.add("a", vf(pf0, 0, mac1, 101))
	w.now("create")
	w.vm("a").Absent = true
	w.now("delete")
}

// TestH94_EveryUnreadablePath breaks each path that a VM's life reads, from the beginning and while the VM
// runs. Nothing may panic, be given away or be called absent because of it, and once it is readable again
// everything must come right.
func TestH94_EveryUnreadablePath(t *testing.T) {
	seen := &watched{paths: map[string]bool{}}
	scene(t, host(2), func(_ *testing.T, w *world) {
		seen.Tree = w.k
		w.a.kernel.tree, w.a.d.Tree = seen, seen
		life(w)
	})
	var paths []string
	for p := range seen.paths {
		if !strings.Contains(p, dev1) && !strings.Contains(p, "ens24f1") { // the other port's are read the same way
			paths = append(paths, p)
		}
	}
	slices.Sort(paths)
	if len(paths) < 40 {
		t.Fatalf("only %d paths were read: %q", len(paths), paths)
	}
	for _, path := range paths {
		scene(t, host(2), func(t *testing.T, w *world) {
			w.k.Break(path, errIO)
			w.add("a", vf(pf0, 0, mac1, 101))
			w.rounds(3)
			w.k.Break(path, nil)
			rest(t)
			w.unknown()
			w.now(path + ": readable again")
			ready("a")(t, w)
			pid := w.hv.PID(uidOf("a"))
			w.k.Break(path, errIO)
			w.unknown()
			w.rounds(3)
			if st := w.status(uidOf("a")); st.Absent || w.hv.PID(uidOf("a")) != pid {
				t.Errorf("%s: the VM was disturbed: %+v", path, st)
			}
			w.k.Break(path, nil)
			rest(t)
			w.unknown()
			w.now(path + ": readable at last")
			ready("a")(t, w)
			w.vm("a").Absent = true
			w.now(path + ": delete")
			absentVM("a")(t, w)
			free(4)(t, w)
		})
	}
}

// unknown makes the next reading a complete one.
func (w *world) unknown() {
	w.a.mu.Lock()
	defer w.a.mu.Unlock()
	w.a.snap = nil
}

// TestT11_NothingIsReboundWithoutNeed: a VF stays on vfio-pci from its commissioning on; a VM's coming and
// going writes to no driver.
func TestT11_NothingIsReboundWithoutNeed(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.now("commission")
		w.faults.ForgetLog()
		w.add("a", vf(pf0, 0, mac1, 101))
		w.tellOnly()
		if err := w.settle(); err != nil {
			t.Fatal(err)
		}
		w.vm("a").Absent = true
		w.tellOnly()
		if err := w.settle(); err != nil {
			t.Fatal(err)
		}
		log := w.faults.Log()
		if len(log) < 5 {
			t.Fatalf("the log shows nothing: %q", log)
		}
		for _, line := range log {
			for _, word := range []string{"bind", "probe", "override"} {
				if strings.Contains(line, word) {
					t.Errorf("written: %s", line)
				}
			}
		}
	})
}

// TestT15_NoVFsAfterAReboot: the VFs are made anew, and nothing starts before they are there.
func TestT15_NoVFsAfterAReboot(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		w.reboot()
		if _, err := w.k.VF(dev0, 0); err == nil || w.hv.PID(uidOf("a")) != 0 {
			t.Fatal("VF or VM outlived the reboot: the test shows nothing")
		}
		w.faults.ForgetLog()
		w.tellOnly()
		if err := w.settle(); err != nil {
			t.Fatal(err)
		}
		at := func(word string) int {
			return slices.IndexFunc(w.faults.Log(), func(line string) bool { return strings.Contains(line, word) })
		}
		if made, began := at("sriov_numvfs"), at("virsh start"); made < 0 || began < made {
			t.Errorf("VFs are made in step %d, the VM starts in step %d: %q", made, began, w.faults.Log())
		}
		ready("a")(t, w)
	})
}

// TestT22_LateReleaseOfAnOldOwner: the VF has been given on when the old owner's removal is asked for again.
func TestT22_LateReleaseOfAnOldOwner(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		life(w)
		w.add("b", vf(pf0, 0, mac2, 102))
		w.now("given on")
		w.vm("a").Generation = 7 // absent, and of a generation that nobody knows here
		w.faults.ForgetLog()
		w.tellOnly()
		if err := w.settle(); err != nil {
			t.Fatal(err)
		}
		for _, line := range w.faults.Log() {
			if strings.Contains(line, "vf 0") || strings.Contains(line, "virsh") {
				t.Errorf("done: %s", line)
			}
		}
		ready("b")(t, w)
		if v := w.kernelVF(dev0, 0).Attr; v.MAC.String() != mac2 || v.VLAN != 102 {
			t.Errorf("VF %+v", v)
		}
	})
}

// TestT23_MACIsFreeAfterTheRelease: a released VF keeps no VM's MAC, so another port may have it; and no two
// VFs of any PF have the same one.
func TestT23_MACIsFreeAfterTheRelease(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		life(w)
		w.drop("a")
		w.add("b", vf(pf1, 3, mac1, 102))
		w.now("the same MAC on the other port")
		ready("b")(t, w)
		seen := map[roce.MAC]string{}
		for _, dev := range []string{dev0, dev1} {
			for i := range 4 {
				v := w.kernelVF(dev, i)
				if by, ok := seen[v.Attr.MAC]; ok || v.Attr.MAC.IsZero() {
					t.Errorf("VF %s has MAC %s, so has %s", v.PCI, v.Attr.MAC, by)
				}
				seen[v.Attr.MAC] = v.PCI
			}
		}
	})
}

// TestT33_ModuleMissing: what keeps VFs from guests is named, and gets right once the module is there.
func TestT33_ModuleMissing(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.k.Break("module/vfio_pci", errors.New("modprobe: FATAL: Module vfio-pci not found"))
		if err := w.rounds(2); err == nil || !strings.Contains(err.Error(), "vfio-pci not found") {
			t.Errorf("err = %v", err)
		}
		if p := w.pf(pf0); !strings.Contains(p.Reason, "vfio-pci not found") {
			t.Errorf("reason: %s", p.Reason)
		}
		for i := range 4 {
			if v := w.vf(pf0, i); v.State == api.VFParked {
				t.Errorf("VF %d may be given away: %+v", i, v)
			}
		}
		w.k.Break("module/vfio_pci", nil)
		rest(t)
		w.now("installed")
		free(8)(t, w)
	})
}

// TestT43_NoZeroMAC: neither a parked VF nor one of a VM ever has the zero MAC that the kernel gives new VFs,
// and each has the same one after every boot.
func TestT43_NoZeroMAC(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		macs := func() (out []string) {
			for _, dev := range []string{dev0, dev1} {
				for i := range 4 {
					out = append(out, w.kernelVF(dev, i).Attr.MAC.String())
				}
			}
			return out
		}
		before := macs()
		if slices.Contains(before, (roce.MAC{}).String()) {
			t.Errorf("MACs %q", before)
		}
		w.reboot()
		w.now("reboot")
		if after := macs(); !slices.Equal(after, before) {
			t.Errorf("MACs %q, were %q", after, before)
		}
		w.hand("ens24f0np0", 0, rtnl.MAC{})
		if st := w.vf(pf0, 0); st.State == api.VFAttached {
			t.Errorf("a VF with the zero MAC is shown as attached: %+v", st)
		}
		w.now("set back")
		ready("a")(t, w)
	})
}

// TestT45_AnotherCardAtTheOldAddress: after a reboot the card sits on another bus, and one that nobody
// commissioned on its old one. The VM gets its VF of the card that it had, and nothing is written to the other.
func TestT45_AnotherCardAtTheOldAddress(t *testing.T) {
	cfg := sysfstest.Host(1, 2, 4)
	scene(t, cfg, func(t *testing.T, w *world) {
		w.want.PFs = []wire.PF{{Match: pf0, Fabric: "roce", VFs: 4}} // by key, as the server should
		w.add("a", vf(pf0, 1, mac1, 101))
		w.now("create")
		other := cfg.Cards[1].PFs[0].PCI
		if err := w.k.Reboot(sysfstest.Move{From: dev0, To: "0000:99:00.0"}, sysfstest.Move{From: other, To: dev0}); err != nil {
			t.Fatal(err)
		}
		w.boot()
		w.faults.ForgetLog()
		w.tellOnly()
		if err := w.settle(); err != nil {
			t.Fatal(err)
		}
		for _, line := range w.faults.Log() {
			if strings.Contains(line, "0000:18:") {
				t.Errorf("written to the wrong card: %s", line)
			}
		}
		ready("a")(t, w)
		if p := w.pf(pf0); p.PCI != "0000:99:00.0" || p.NumVFs != 4 {
			t.Errorf("PF %+v", p)
		}
		if got := w.domains()[uidOf("a")].VFs[0].Host.String(); !strings.HasPrefix(got, "0000:99:") {
			t.Errorf("the VM has %s", got)
		}
	})
}

// TestT50_BoundWithoutEffect: a kernel before 5.3 shows a driver link although nothing was bound. The agent
// looks at what a bind must bring: such a VF is given to nobody, and once it is let go it is bound properly.
func TestT50_BoundWithoutEffect(t *testing.T) {
	cfg := host(4)
	cfg.OldBind = true
	scene(t, cfg, func(t *testing.T, w *world) {
		for _, f := range []struct{ path, value string }{
			{"bus/pci/devices/" + dev0 + "/sriov_drivers_autoprobe", "0"},
			{"bus/pci/devices/" + dev0 + "/sriov_numvfs", "4"},
		} {
			if err := w.k.Hand(f.path, f.value); err != nil {
				t.Fatal(err)
			}
		}
		pci := w.kernelVF(dev0, 0).PCI
		if err := w.k.Hand("bus/pci/drivers/mlx5_core/bind", pci); err != nil {
			t.Fatal(err)
		}
		if d := w.kernelVF(dev0, 0).Driver; d != "mlx5_core" {
			t.Fatalf("driver %q: the test shows nothing", d)
		}
		if names, err := w.k.List(t.Context(), "bus/pci/devices/"+pci+"/net"); err == nil {
			t.Fatalf("netdevs %q: the test shows nothing", names)
		}
		w.now("taken over")
		w.wantVF(pf0, 0, api.VFForeign, "driver mlx5_core has it and no netdev is visible") // or it is in another namespace
		free(7)(t, w)
		if err := w.k.Hand("bus/pci/drivers/mlx5_core/unbind", pci); err != nil {
			t.Fatal(err)
		}
		w.now("let go")
		free(8)(t, w)
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		ready("a")(t, w)
	})
}

// TestT51_SpeedOfTheNetdev: RDMA's rate file is wrong above 100G; the netdev's speed counts.
func TestT51_SpeedOfTheNetdev(t *testing.T) {
	cfg := host(4)
	cfg.Cards[0].PFs[0].Speed = 400_000
	synctest.Test(t, func(t *testing.T) {
		seen := &watched{paths: map[string]bool{}}
		w := newWorld(t, cfg)
		w.boot()
		seen.Tree = w.k
		w.a.kernel.tree, w.a.d.Tree = seen, seen
		w.now("commission")
		if p := w.pf(pf0); p.Speed != 400e9 || !p.Ready {
			t.Errorf("PF %+v", p)
		}
		if got := w.a.inventory().Problems; len(got) != 0 {
			t.Errorf("a false alarm: %q", got)
		}
		for p := range seen.paths {
			if strings.HasSuffix(p, "/rate") {
				t.Errorf("%s was read", p)
			}
		}
	})
}

// TestT55_BondInLegacyMode: VFs of a bond's ports in legacy mode are shown for what they are: the PF says
// mode and bond, and placement gives them to flavors without failover only.
func TestT55_BondInLegacyMode(t *testing.T) {
	cfg := host(4)
	cfg.Cards[0].PFs[0].Bond, cfg.Cards[0].PFs[1].Bond = "bond0", "bond0"
	scene(t, cfg, func(t *testing.T, w *world) {
		if err := w.rounds(2); err == nil || !strings.Contains(err.Error(), "is a port of bond0") {
			t.Errorf("err = %v", err)
		}
		if p := w.pf(pf0); p.Ready || p.NumVFs != 0 || !strings.Contains(p.Reason, "allowBond") {
			t.Errorf("%d VFs: %s", p.NumVFs, p.Reason)
		}
		w.want.PFs[0].AllowBond, w.want.PFs[1].AllowBond = true, true
		w.now("commission")
		free(8)(t, w)
		for _, key := range []string{pf0, pf1} {
			if p := w.pf(key); p.Bond != "bond0" || p.Mode == "switchdev" || !p.Ready {
				t.Errorf("PF %+v", p)
			}
		}
	})
}
