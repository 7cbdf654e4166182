package sysfstest_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/rtnl"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
)

// The mlx5 host of these tests: two ports with room for 16 VFs each.
const (
	mlx0, mlx1 = "0000:18:00.0", "0000:18:00.1"
	dev0, dev1 = "bus/pci/devices/" + mlx0, "bus/pci/devices/" + mlx1
	link0      = "ens24f0np0"
)

func mlx5(t *testing.T) host {
	t.Helper()
	return boot(t, sysfstest.Host(1, 1, 16))
}

func (h host) tune(pci string, f func(*sysfstest.Quirks)) {
	h.t.Helper()
	if err := h.Tune(pci, f); err != nil {
		h.t.Fatal(err)
	}
}

func (h host) vf(pci string, i int) sysfstest.State {
	h.t.Helper()
	s, err := h.VF(pci, i)
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

// make creates n unbound VFs of the first port.
func (h host) make(n int) {
	h.t.Helper()
	h.write(dev0+"/sriov_drivers_autoprobe", "0")
	h.write(dev0+"/sriov_numvfs", fmt.Sprint(n))
}

// park binds VF i of the first port to vfio-pci.
func (h host) park(i int) sysfstest.State {
	h.t.Helper()
	if err := h.Modprobe(h.t.Context(), "vfio-pci"); err != nil {
		h.t.Fatal(err)
	}
	s := h.vf(mlx0, i)
	h.write("bus/pci/devices/"+s.PCI+"/driver_override", "vfio-pci")
	h.write("bus/pci/drivers_probe", s.PCI)
	return h.vf(mlx0, i)
}

func TestT01_LinksComeLate(t *testing.T) {
	h := mlx5(t)
	h.tune(mlx0, func(q *sysfstest.Quirks) { q.LateLinks = 4 })
	h.write(dev0+"/sriov_numvfs", "16")
	h.reads(dev0+"/sriov_numvfs", "16")
	h.linked(dev0+"/virtfn15", "")
	h.linked("bus/pci/devices/0000:18:00.2/physfn", "")
	h.linked(dev0+"/virtfn15", "0000:18:02.1")
	h.linked(dev0+"/virtfn15/physfn", mlx0)
	h.linked(dev0+"/virtfn15/driver", "mlx5_core")

	h.tune(mlx1, func(q *sysfstest.Quirks) { q.LateLinks = sysfstest.Never })
	h.write(dev1+"/sriov_numvfs", "1")
	h.linked(dev1+"/virtfn0", "")
	h.Settle()
	h.linked(dev1+"/virtfn0", "0000:18:02.2")
}

// TestT02_HangingWrite: the write costs its caller the deadline, the PF is stuck, the other one is not, and
// what hung happens in the end.
func TestT02_HangingWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := mlx5(t)
		h.Hang(dev0 + "/sriov_numvfs")
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		begin := time.Now()
		err := h.Write(ctx, dev0+"/sriov_numvfs", "4")
		if !fault.Is(err, fault.Deadline) || !strings.Contains(err.Error(), dev0+"/sriov_numvfs") || time.Since(begin) != 2*time.Minute {
			t.Fatalf("after %s: %v", time.Since(begin), err)
		}
		if err := h.Write(t.Context(), dev0+"/sriov_numvfs", "8"); !fault.Is(err, fault.Deadline) || time.Since(begin) != 2*time.Minute {
			t.Fatalf("a second writer, after %s: %v", time.Since(begin), err)
		}
		h.write(dev1+"/sriov_numvfs", "2")
		if s := h.Stuck(); !slices.Equal(s, []string{dev0 + "/sriov_numvfs"}) {
			t.Fatalf("stuck %v", s)
		}
		h.Release(dev0 + "/sriov_numvfs")
		synctest.Wait()
		if s := h.Stuck(); len(s) != 0 {
			t.Fatalf("still stuck %v", s)
		}
		h.reads(dev0+"/sriov_numvfs", "4")
	})
}

// TestHeldVF: removing or unbinding a VF that a process holds hangs until it lets go, as measured; resetting
// it does not, and nothing protects the holder.
func TestHeldVF(t *testing.T) {
	for _, what := range []string{"numvfs", "unbind"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := mlx5(t)
				h.make(4)
				s := h.park(1)
				if err := h.OpenVFIO(s.PCI, 77); err != nil {
					t.Fatal(err)
				}
				if holders, err := h.Holders(t.Context()); err != nil || !slices.Equal(holders[fmt.Sprint(s.Group)], []int{77}) {
					t.Fatalf("holders %v, %v", holders, err)
				}
				h.write("bus/pci/devices/"+s.PCI+"/reset", "1")
				path, value := "bus/pci/drivers/vfio-pci/unbind", s.PCI
				if what == "numvfs" {
					path, value = dev0+"/sriov_numvfs", "0"
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := h.Write(ctx, path, value); !fault.Is(err, fault.Deadline) {
					t.Fatalf("err = %v", err)
				}
				if s := h.vf(mlx0, 1); s.Holder != 77 || !s.Dirty || s.Driver != "vfio-pci" {
					t.Fatalf("meanwhile the VF is %+v", s)
				}
				h.CloseVFIO(77)
				synctest.Wait()
				if what == "numvfs" {
					h.reads(dev0+"/sriov_numvfs", "0")
					h.linked(dev0+"/virtfn1", "")
				} else if s := h.vf(mlx0, 1); s.Driver != "" || s.Dirty || s.Resets != 2 {
					t.Fatalf("afterwards the VF is %+v", s)
				}
			})
		})
	}
}

func TestT03_NoSRIOVFiles(t *testing.T) {
	cfg := sysfstest.Host(1, 1, 16)
	cfg.Cards[0].PFs[0].Quirks.NoSRIOV = true
	h := boot(t, cfg)
	for _, f := range []string{"sriov_totalvfs", "sriov_numvfs"} {
		h.fails(dev0+"/"+f, fs.ErrNotExist)
	}
	h.refused(dev0+"/sriov_numvfs", "4", fs.ErrNotExist)
	h.reads(dev1+"/sriov_totalvfs", "16")
	h.tune(mlx0, func(q *sysfstest.Quirks) { q.NoSRIOV = false })
	h.write(dev0+"/sriov_numvfs", "4")
}

func TestT05_FewerVFsThanAsked(t *testing.T) {
	h := mlx5(t)
	h.tune(mlx0, func(q *sysfstest.Quirks) { q.GiveAtMost = 8 })
	h.write(dev0+"/sriov_numvfs", "16")
	h.reads(dev0+"/sriov_numvfs", "8")
	h.linked(dev0+"/virtfn7", "0000:18:01.1")
	h.linked(dev0+"/virtfn8", "")
	h.refused(dev0+"/sriov_numvfs", "16", syscall.EBUSY)
}

func TestT06_DriverLinkGoneForAMoment(t *testing.T) {
	h := mlx5(t)
	h.write(dev0+"/sriov_numvfs", "1")
	h.Hide("bus/pci/devices/0000:18:00.2/driver", 3)
	for range 2 {
		h.linked(dev0+"/virtfn0/driver", "")
		if slices.Contains(h.list("bus/pci/devices/0000:18:00.2"), "driver") {
			break
		}
	}
	h.linked(dev0+"/virtfn0/driver", "mlx5_core")
}

func TestT07_BoundWithoutNetdev(t *testing.T) {
	h := mlx5(t)
	h.tune(mlx0, func(q *sysfstest.Quirks) { q.NoNetdev = 1 })
	h.write(dev0+"/sriov_numvfs", "2")
	if names := h.list("bus/pci/devices/0000:18:00.2/net"); len(names) != 0 {
		t.Fatalf("netdevs %v", names)
	}
	h.linked("bus/pci/devices/0000:18:00.2/driver", "mlx5_core")
	if names := h.list("bus/pci/devices/0000:18:00.3/net"); len(names) != 1 {
		t.Fatalf("the sibling has netdevs %v", names)
	}
	h.write("bus/pci/drivers/mlx5_core/unbind", "0000:18:00.2")
	h.write("bus/pci/drivers/mlx5_core/bind", "0000:18:00.2")
	if names := h.list("bus/pci/devices/0000:18:00.2/net"); len(names) != 1 {
		t.Fatalf("after a rebind, netdevs %v", names)
	}
}

// TestT09_GUIDFromAdminMAC: the node GUID of a VF is made at bind, from the administrator's MAC of then.
func TestT09_GUIDFromAdminMAC(t *testing.T) {
	h := mlx5(t)
	h.write(dev0+"/sriov_numvfs", "2")
	dev := "bus/pci/devices/0000:18:00.2"
	guid := func() string { return dev + "/infiniband/" + h.list(dev + "/infiniband")[0] + "/node_guid" }
	h.reads(guid(), "0000:0000:0000:0000")
	h.set(link0, 0, rtnl.MAC{2, 0, 0, 0, 0, 9})
	h.reads(guid(), "0000:0000:0000:0000")
	h.write("bus/pci/drivers/mlx5_core/unbind", "0000:18:00.2")
	h.fails(dev+"/infiniband", fs.ErrNotExist)
	h.write("bus/pci/drivers/mlx5_core/bind", "0000:18:00.2")
	h.reads(guid(), "0000:00ff:fe00:0009")
	h.reads(dev0+"/infiniband/mlx5_0/node_guid", "bace:f6ff:fe00:1000")
	h.reads(dev1+"/infiniband/mlx5_1/sys_image_guid", "bace:f6ff:fe00:1000")
}

func TestT14_ManyVFs(t *testing.T) {
	h := boot(t, sysfstest.Host(1, 1, 100))
	h.write(dev0+"/sriov_drivers_autoprobe", "0")
	h.write(dev0+"/sriov_numvfs", "100")
	list, err := h.VFs(t.Context(), link0)
	if err != nil || len(list) != 100 || list[99].Index != 99 {
		t.Fatalf("%d VFs, %v", len(list), err)
	}
	h.linked(dev0+"/virtfn99", "0000:18:0c.5")
	if n := len(h.list("kernel/iommu_groups")); n != 103 {
		t.Fatalf("%d groups, want one for each VF, PF and the bridge", n)
	}
}

// TestT15_T29_Reboot: no VFs, no vfio, other group numbers, whoever held a VF is dead.
func TestT15_T29_Reboot(t *testing.T) {
	h := mlx5(t)
	h.make(4)
	before := h.park(0)
	if err := h.OpenVFIO(before.PCI, 77); err != nil {
		t.Fatal(err)
	}
	id := h.BootID()
	if err := h.Reboot(); err != nil {
		t.Fatal(err)
	}
	h.reads(dev0+"/sriov_numvfs", "0")
	h.reads(dev0+"/sriov_drivers_autoprobe", "1")
	h.fails("class/vfio", fs.ErrNotExist)
	h.fails("bus/pci/drivers/vfio-pci", fs.ErrNotExist)
	h.fails("module/vfio_pci", fs.ErrNotExist)
	if boot, err := h.Proc("sys/kernel/random/boot_id"); err != nil || strings.TrimSpace(string(boot)) == id {
		t.Fatalf("boot id %s, %v", boot, err)
	}
	h.make(4)
	if after := h.park(0); after.Group == before.Group || after.Holder != 0 || after.PCI != before.PCI {
		t.Fatalf("VF 0 was %+v and is %+v", before, after)
	}
}

func TestT18_OptionalReadsFail(t *testing.T) {
	h := mlx5(t)
	for path, want := range map[string]error{
		"class/net/" + link0 + "/phys_port_id": syscall.EOPNOTSUPP, "class/infiniband/mlx5_0/ports/1/gid_attrs/types/2": syscall.EINVAL,
		"class/net/lo/speed": syscall.EINVAL, dev0 + "/reset": syscall.EACCES,
	} {
		h.fails(path, want)
	}
	h.Break("class/net/"+link0+"/dev_port", syscall.EIO)
	h.fails(dev0+"/net/"+link0+"/dev_port", syscall.EIO)
	h.reads("class/net/"+link0+"/mtu", "9000")
	h.Break(dev0+"/net/"+link0+"/dev_port", nil)
	h.reads("class/net/"+link0+"/dev_port", "0")
}

func TestT25_AttributesRefused(t *testing.T) {
	cfg := sysfstest.Host(1, 1, 16)
	cfg.Cards[0].Caps = &sysfstest.Caps{QoS: syscall.EOPNOTSUPP, SpoofCheck: syscall.EOPNOTSUPP, MinRate: syscall.EINVAL, SilentSpoofCheck: true, SilentTrust: true}
	h := boot(t, cfg)
	h.make(1)
	h.denied(link0, 0, rtnl.Rate{Min: 10, Max: 100}, syscall.EINVAL)
	h.denied(link0, 0, rtnl.VLAN{ID: 5, QoS: 3}, syscall.EOPNOTSUPP)
	h.denied(link0, 0, rtnl.SpoofCheck(true), syscall.EOPNOTSUPP)
	h.denied(link0, 0, rtnl.VLAN{ID: 4096}, syscall.EINVAL)
	h.denied(link0, 0, rtnl.State(9), syscall.EINVAL)
	h.set(link0, 0, rtnl.VLAN{ID: 5})
	h.set(link0, 0, rtnl.Rate{Max: 100})
	h.set(link0, 0, rtnl.Trust(true))
	h.set(link0, 0, rtnl.State(rtnl.LinkDisable))
	v := h.attr(link0, 0)
	if v.SpoofCheck != nil || v.Trust != nil || v.VLAN != 5 || v.MaxRate != 100 || *v.LinkState != rtnl.LinkDisable {
		t.Fatalf("VF %+v", v)
	}
}

func TestT27_PFWithoutDriver(t *testing.T) {
	cfg := sysfstest.Host(1, 1, 16)
	cfg.Cards[0].PFs[0].NoDriver = true
	h := boot(t, cfg)
	h.linked(dev0+"/driver", "")
	h.fails(dev0+"/net", fs.ErrNotExist)
	h.refused(dev0+"/sriov_numvfs", "4", syscall.ENOENT)
	h.reads(dev0+"/sriov_numvfs", "0")
	h.tune(mlx1, func(q *sysfstest.Quirks) { q.NoConfigure = true })
	h.refused(dev1+"/sriov_numvfs", "4", syscall.ENOENT)
}

func TestT30_SharedGroup(t *testing.T) {
	cfg := sysfstest.Host(1, 1, 16)
	cfg.Cards[0].SharedGroup = true
	h := boot(t, cfg)
	h.make(2)
	s := h.park(0)
	if members := h.list(fmt.Sprintf("kernel/iommu_groups/%d/devices", s.Group)); len(members) != 4 {
		t.Fatalf("members %v", members)
	}
	if err := h.OpenVFIO(s.PCI, 77); !errors.Is(err, syscall.EPERM) || !strings.Contains(err.Error(), mlx0) {
		t.Fatalf("open: %v, want it not viable, naming the PF", err)
	}
}

func TestT31_NoIOMMU(t *testing.T) {
	cfg := sysfstest.Host(1, 1, 16)
	cfg.NoIOMMU = true
	h := boot(t, cfg)
	h.make(1)
	s := h.park(0)
	if s.Driver != "" || s.Group != -1 {
		t.Fatalf("VF %+v", s)
	}
	h.linked("bus/pci/devices/"+s.PCI+"/iommu_group", "")
	h.refused("bus/pci/drivers/vfio-pci/bind", s.PCI, syscall.EINVAL)
	if names := h.list("kernel/iommu_groups"); len(names) != 0 {
		t.Fatalf("groups %v", names)
	}
	if cmd, err := h.Proc("cmdline"); err != nil || strings.Contains(string(cmd), "iommu=on") {
		t.Fatalf("cmdline %s, %v", cmd, err)
	}
}

func TestT45_CardMoved(t *testing.T) {
	h := mlx5(t)
	if err := h.Reboot(sysfstest.Move{From: mlx0, To: "0000:19:00.0"}, sysfstest.Move{From: mlx1, To: "0000:19:00.1"}); err != nil {
		t.Fatal(err)
	}
	h.fails(dev0+"/vendor", fs.ErrNotExist)
	h.reads("bus/pci/devices/0000:19:00.0/net/"+link0+"/address", "b8:ce:f6:00:10:00")
	if vpd, err := h.Read(t.Context(), "bus/pci/devices/0000:19:00.1/vpd"); err != nil || !strings.Contains(vpd, "MT2301X00016") {
		t.Fatalf("vpd %q, %v", vpd, err)
	}
}

// TestT46_NewID: it grabs every function of the id, and the second write is EEXIST.
func TestT46_NewID(t *testing.T) {
	h := mlx5(t)
	h.write(dev0+"/sriov_drivers_autoprobe", "0")
	h.write(dev0+"/sriov_numvfs", "3")
	h.write(dev0+"/sriov_drivers_autoprobe", "1")
	if err := h.Modprobe(t.Context(), "vfio_pci"); err != nil {
		t.Fatal(err)
	}
	h.write("bus/pci/drivers/vfio-pci/new_id", "15b3 101e")
	for i := range 3 {
		if s := h.vf(mlx0, i); s.Driver != "vfio-pci" {
			t.Errorf("VF %d %+v", i, s)
		}
	}
	h.refused("bus/pci/drivers/vfio-pci/new_id", "15b3 101e", syscall.EEXIST)
	h.refused("bus/pci/drivers/vfio-pci/new_id", "15b3", syscall.EINVAL)
}

// TestT50_BindWithoutOverride: with autoprobe off it is ENODEV, before 5.3 it "succeeds" and nothing works.
func TestT50_BindWithoutOverride(t *testing.T) {
	h := mlx5(t)
	h.make(1)
	h.refused("bus/pci/drivers/mlx5_core/bind", "0000:18:00.2", syscall.ENODEV)
	h.write("bus/pci/drivers_probe", "0000:18:00.2")
	h.linked("bus/pci/devices/0000:18:00.2/driver", "")
	h.write("bus/pci/devices/0000:18:00.2/driver_override", "mlx5_core")
	h.write("bus/pci/drivers/mlx5_core/bind", "0000:18:00.2")
	h.linked("bus/pci/devices/0000:18:00.2/driver", "mlx5_core")

	cfg := sysfstest.Host(1, 1, 16)
	cfg.OldBind = true
	h = boot(t, cfg)
	h.make(1)
	h.write("bus/pci/drivers/mlx5_core/bind", "0000:18:00.2")
	h.linked("bus/pci/devices/0000:18:00.2/driver", "mlx5_core")
	h.fails("bus/pci/devices/0000:18:00.2/net", fs.ErrNotExist)
	h.write("bus/pci/drivers/mlx5_core/unbind", "0000:18:00.2")
	h.linked("bus/pci/devices/0000:18:00.2/driver", "")
}

func TestT54_OverrideOfABoundVF(t *testing.T) {
	h := mlx5(t)
	h.write(dev0+"/sriov_numvfs", "1")
	if err := h.Modprobe(t.Context(), "vfio-pci"); err != nil {
		t.Fatal(err)
	}
	h.write(dev0+"/virtfn0/driver_override", "vfio-pci")
	h.linked(dev0+"/virtfn0/driver", "mlx5_core")
	h.refused("bus/pci/drivers/vfio-pci/bind", "0000:18:00.2", syscall.EBUSY)
	h.write("bus/pci/drivers_probe", "0000:18:00.2")
	h.linked(dev0+"/virtfn0/driver", "mlx5_core")
	h.refused("bus/pci/drivers/vfio-pci/unbind", "0000:18:00.2", syscall.ENODEV)
	h.write("bus/pci/drivers/mlx5_core/unbind", "0000:18:00.2")
	h.write("bus/pci/drivers_probe", "0000:18:00.2")
	h.linked(dev0+"/virtfn0/driver", "vfio-pci")
	h.write(dev0+"/virtfn0/driver_override", "none")
	h.reads(dev0+"/virtfn0/driver_override", "none")
	h.refused("bus/pci/drivers_probe", "0000:99:00.0", syscall.ENODEV)
}

func TestNoRoomForVFs(t *testing.T) {
	h := mlx5(t)
	h.tune(mlx0, func(q *sysfstest.Quirks) { q.EnableErr = syscall.ENOMEM })
	h.refused(dev0+"/sriov_numvfs", "4", syscall.ENOMEM)
	h.reads(dev0+"/sriov_numvfs", "0")
	h.refused(dev0+"/sriov_numvfs", "four", syscall.EINVAL)
}

func TestResets(t *testing.T) {
	h := mlx5(t)
	h.make(2)
	s := h.park(0)
	dev := "bus/pci/devices/" + s.PCI
	h.set(link0, 0, rtnl.VLAN{ID: 7})
	h.tune(mlx0, func(q *sysfstest.Quirks) { q.ResetErr = syscall.ENOTTY })
	h.refused(dev+"/reset", "1", syscall.ENOTTY)
	if err := h.OpenVFIO(s.PCI, 77); err != nil {
		t.Fatal(err)
	}
	h.CloseVFIO(77)
	if s := h.vf(mlx0, 0); !s.Dirty || s.Resets != 0 {
		t.Fatalf("without a reset the VF is %+v", s)
	}
	h.tune(mlx0, func(q *sysfstest.Quirks) { q.ResetErr, q.ResetLoses = 0, true })
	h.refused(dev+"/reset", "2", syscall.EINVAL)
	h.write(dev+"/reset", "1")
	if s := h.vf(mlx0, 0); s.Dirty || s.Attr.VLAN != 0 {
		t.Fatalf("after it the VF is %+v", s)
	}
}

// TestC33_Renamed: netdevs change their names, everything else stays.
func TestC33_Renamed(t *testing.T) {
	h := mlx5(t)
	h.make(2)
	h.set(link0, 1, rtnl.VLAN{ID: 7})
	if err := h.Rename(link0, "ens24f0"); err != nil {
		t.Fatal(err)
	}
	h.linked("class/net/ens24f0/device", mlx0)
	h.fails("class/net/"+link0+"/mtu", fs.ErrNotExist)
	if names := h.list(dev0 + "/net"); !slices.Equal(names, []string{"ens24f0"}) {
		t.Fatalf("netdevs %v", names)
	}
	h.denied(link0, 1, rtnl.Trust(true), syscall.ENODEV)
	if v := h.attr("ens24f0", 1); v.VLAN != 7 {
		t.Fatalf("VF %+v", v)
	}
	if err := h.Rename("ens24f0", "ens24f1np1"); !errors.Is(err, syscall.EEXIST) {
		t.Fatalf("rename to a taken name: %v", err)
	}
}

// TestUnplugged: a PF vanishes with its VFs, whoever waits for one of them is let go.
func TestUnplugged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := mlx5(t)
		h.make(2)
		s := h.park(0)
		if err := h.OpenVFIO(s.PCI, 77); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- h.Write(t.Context(), dev0+"/sriov_numvfs", "0") }()
		synctest.Wait()
		if err := h.Unplug(mlx0); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("the write that waited: %v", err)
		}
		h.fails(dev0+"/vendor", fs.ErrNotExist)
		h.fails("class/net/"+link0+"/mtu", fs.ErrNotExist)
		h.fails("class/infiniband/mlx5_0/fw_ver", fs.ErrNotExist)
		h.reads(dev1+"/sriov_numvfs", "0")
		if _, err := h.VFs(t.Context(), link0); !errors.Is(err, syscall.ENODEV) {
			t.Fatalf("its VFs: %v", err)
		}
	})
}

func TestBond(t *testing.T) {
	cfg := sysfstest.Host(1, 1, 4)
	cfg.Cards[0].PFs[0].Bond, cfg.Cards[0].PFs[1].Bond = "bond0", "bond0"
	h := boot(t, cfg)
	h.linked("class/net/ens24f1np1/master", "bond0")
	h.reads("class/net/ens24f1np1/address", "b8:ce:f6:00:10:00")
	h.reads("class/net/ens24f1np1/bonding_slave/perm_hwaddr", "b8:ce:f6:00:10:01")
	if perm, err := h.PermanentMAC(t.Context(), "ens24f1np1"); err != nil || perm != "b8:ce:f6:00:10:01" {
		t.Fatalf("permanent %s, %v", perm, err)
	}
	if !slices.Contains(h.list("class/net/bond0"), "lower_"+link0) {
		t.Fatal("the bond does not show its ports")
	}
	h.reads("class/net/bond0/bonding/slaves", link0+" ens24f1np1")
}

// TestFailWrite: the n-th change fails, before it took effect or after; SetVF and sysfs count alike.
func TestFailWrite(t *testing.T) {
	h := mlx5(t)
	h.FailWrite(2, syscall.EIO, false)
	h.write(dev0+"/sriov_drivers_autoprobe", "0")
	h.refused(dev0+"/sriov_numvfs", "4", syscall.EIO)
	h.reads(dev0+"/sriov_numvfs", "0")
	h.FailWrite(1, syscall.EIO, true)
	h.refused(dev0+"/sriov_numvfs", "4", syscall.EIO)
	h.reads(dev0+"/sriov_numvfs", "4")
	h.FailWrite(2, syscall.EIO, true)
	h.set(link0, 0, rtnl.VLAN{ID: 1})
	h.denied(link0, 0, rtnl.VLAN{ID: 2}, syscall.EIO)
	if v := h.attr(link0, 0); v.VLAN != 2 {
		t.Fatalf("VLAN %d", v.VLAN)
	}
	h.set(link0, 0, rtnl.VLAN{ID: 3})
	want := []string{
		"echo 0 > /sys/" + dev0 + "/sriov_drivers_autoprobe", "echo 4 > /sys/" + dev0 + "/sriov_numvfs", "echo 4 > /sys/" + dev0 + "/sriov_numvfs",
		"ip link set " + link0 + " vf 0 vlan 1 qos 0", "ip link set " + link0 + " vf 0 vlan 2 qos 0", "ip link set " + link0 + " vf 0 vlan 3 qos 0",
	}
	if log := h.Log(); !slices.Equal(log, want) {
		t.Fatalf("log %q", log)
	}
	h.ForgetLog()
	if err := h.Hand(dev0+"/sriov_numvfs", "0"); err != nil || len(h.Log()) != 0 {
		t.Fatalf("by hand: %v, log %q", err, h.Log())
	}
}

// TestCrash: from the crash on the process does nothing, reads nothing and hears nothing.
func TestCrash(t *testing.T) {
	for _, after := range []bool{false, true} {
		h := mlx5(t)
		h.Crash(2, after)
		h.write(dev0+"/sriov_drivers_autoprobe", "0")
		if err := h.Write(t.Context(), dev0+"/sriov_numvfs", "4"); !errors.Is(err, sysfstest.ErrCrashed) {
			t.Fatalf("err = %v", err)
		}
		_, rerr := h.Read(t.Context(), dev0+"/sriov_numvfs")
		_, lerr := h.List(t.Context(), dev0)
		_, verr := h.VFs(t.Context(), link0)
		_, perr := h.Proc("cmdline")
		_, herr := h.Holders(t.Context())
		for i, err := range []error{rerr, lerr, verr, perr, herr, h.SetUp(t.Context(), link0), h.Modprobe(t.Context(), "vfio-pci"), h.Changes(t.Context(), func() {})} {
			if !errors.Is(err, sysfstest.ErrCrashed) {
				t.Errorf("call %d of a dead process: %v", i, err)
			}
		}
		if !h.Crashed() {
			t.Error("nobody knows of the crash")
		}
		h.Revive()
		h.reads(dev0+"/sriov_numvfs", map[bool]string{true: "4", false: "0"}[after])
	}
}

// TestChanges: what the agent hears, which includes its own changes of a link that is up.
func TestChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := mlx5(t)
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		ended := make(chan error, 1)
		go func() { ended <- h.Changes(ctx, func() { n++ }) }()
		synctest.Wait()
		heard := func(what string, want bool, f func() error) {
			t.Helper()
			before := n
			if err := f(); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if synctest.Wait(); (n > before) != want {
				t.Errorf("%s: heard %v, want %v", what, n > before, want)
			}
		}
		heard("VFs", true, func() error { return h.Hand(dev0+"/sriov_numvfs", "2") })
		heard("attribute of a link that is up", true, func() error { return h.SetVF(ctx, link0, 0, rtnl.VLAN{ID: 5}) })
		heard("down", true, func() error { return h.SetDown(link0) })
		heard("attribute of a link that is down", false, func() error { return h.SetVF(ctx, link0, 0, rtnl.VLAN{ID: 6}) })
		heard("up", true, func() error { return h.SetUp(ctx, link0) })
		heard("cable", true, func() error { return h.Cable(mlx0, false) })
		heard("nothing", false, func() error { return h.SetUp(ctx, link0) })
		h.reads("class/net/"+link0+"/carrier", "0")
		h.reads("class/net/"+link0+"/operstate", "down")
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the watch ended with %v", err)
		}
	})
}

func TestModprobe(t *testing.T) {
	h := mlx5(t)
	if err := h.Modprobe(t.Context(), "nvidia"); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Fatalf("err = %v", err)
	}
	h.Break("module/vfio_pci", syscall.EPERM) // lockdown, say
	if err := h.Modprobe(t.Context(), "vfio-pci"); !errors.Is(err, syscall.EPERM) || h.Loaded("vfio-pci") {
		t.Fatalf("err = %v", err)
	}
	h.Break("module/vfio_pci", nil)
	for range 2 {
		if err := h.Modprobe(t.Context(), "vfio-pci"); err != nil || !h.Loaded("vfio_pci") {
			t.Fatal(err)
		}
	}
	if log := h.Log(); len(log) != 2 {
		t.Fatalf("log %q: loading what is loaded changes nothing", log)
	}
	h.reads("module/vfio_pci/initstate", "live")
}

func TestBadConfig(t *testing.T) {
	for what, change := range map[string]func(*sysfstest.Config){
		"driver":    func(c *sysfstest.Config) { c.Cards[0].Driver = "e1000" },
		"address":   func(c *sysfstest.Config) { c.Cards[0].PFs[0].PCI = "18:00.0" },
		"one place": func(c *sysfstest.Config) { c.Cards[0].PFs[1].PCI = mlx0 },
	} {
		cfg := sysfstest.Host(1, 1, 4)
		change(&cfg)
		if _, err := sysfstest.New(cfg); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

func TestDriver(t *testing.T) {
	h := mlx5(t)
	if d, ok := h.Driver(roce.PCIAddr{Bus: 0x18}); d != "mlx5_core" || !ok {
		t.Errorf("driver %q, %v", d, ok)
	}
	if d, ok := h.Driver(roce.PCIAddr{Bus: 0x99}); d != "" || ok {
		t.Errorf("driver %q, %v", d, ok)
	}
}
