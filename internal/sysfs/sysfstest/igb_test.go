package sysfstest_test

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/rtnl"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
)

const (
	igb = "bus/pci/devices/0000:81:00.0"
	vf0 = "bus/pci/devices/0000:81:10.0"
)

// host is a kernel with the calls that tests make, failing the test where they fail.
type host struct {
	*sysfstest.Kernel
	t *testing.T
}

func boot(t *testing.T, cfg sysfstest.Config) host {
	t.Helper()
	k, err := sysfstest.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return host{k, t}
}

func (h host) write(path, value string) {
	h.t.Helper()
	if err := h.Write(h.t.Context(), path, value); err != nil {
		h.t.Fatal(err)
	}
}

func (h host) refused(path, value string, want error) {
	h.t.Helper()
	err := h.Write(h.t.Context(), path, value)
	if _, ok := errors.AsType[*fs.PathError](err); !errors.Is(err, want) || !ok {
		h.t.Fatalf("echo %s > %s: %v, want a path error with %v", value, path, err, want)
	}
}

func (h host) reads(path, want string) {
	h.t.Helper()
	if got, err := h.Read(h.t.Context(), path); err != nil || got != want {
		h.t.Fatalf("cat %s = %q, %v, want %q", path, got, err, want)
	}
}

func (h host) fails(path string, want error) {
	h.t.Helper()
	if got, err := h.Read(h.t.Context(), path); !errors.Is(err, want) {
		h.t.Fatalf("cat %s = %q, %v, want %v", path, got, err, want)
	}
}

// linked checks a link's target; "" wants it missing.
func (h host) linked(path, want string) {
	h.t.Helper()
	got, err := h.Link(h.t.Context(), path)
	if want == "" && errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil || got != want {
		h.t.Fatalf("readlink %s = %q, %v, want %q", path, got, err, want)
	}
}

func (h host) list(path string) []string {
	h.t.Helper()
	names, err := h.List(h.t.Context(), path)
	if err != nil {
		h.t.Fatal(err)
	}
	return names
}

func (h host) set(link string, vf int, a rtnl.Attr) {
	h.t.Helper()
	if err := h.SetVF(h.t.Context(), link, vf, a); err != nil {
		h.t.Fatal(err)
	}
}

func (h host) denied(link string, vf int, a rtnl.Attr, want error) {
	h.t.Helper()
	if err := h.SetVF(h.t.Context(), link, vf, a); !errors.Is(err, want) || !strings.Contains(err.Error(), link) {
		h.t.Fatalf("%s on VF %d: %v, want %v and the link's name", a, vf, err, want)
	}
}

func (h host) attr(link string, vf int) rtnl.VF {
	h.t.Helper()
	list, err := h.VFs(h.t.Context(), link)
	if err != nil {
		h.t.Fatal(err)
	}
	return list[vf]
}

// TestIGB walks the simulated igb through what a real kernel answered in the lab.
func TestIGB(t *testing.T) {
	h := boot(t, sysfstest.IGB())
	h.reads(igb+"/sriov_totalvfs", "7")
	h.reads(igb+"/sriov_offset", "128")
	h.reads(igb+"/sriov_stride", "2")
	h.reads(igb+"/sriov_vf_device", "10ca")
	h.reads(igb+"/numa_node", "1")
	h.fails(igb+"/vpd", fs.ErrNotExist)
	h.fails("class/net/ens1/phys_port_id", syscall.EOPNOTSUPP)
	h.refused(igb+"/sriov_numvfs", "9", syscall.ERANGE)
	h.write(igb+"/sriov_numvfs", "0")
	h.write(igb+"/sriov_drivers_autoprobe", "0")
	h.write(igb+"/sriov_numvfs", "4")
	h.write(igb+"/sriov_numvfs", "4")
	h.refused(igb+"/sriov_numvfs", "2", syscall.EBUSY)
	for i, bdf := range []string{"0000:81:10.0", "0000:81:10.2", "0000:81:10.4", "0000:81:10.6"} {
		h.linked(igb+"/virtfn"+string(rune('0'+i)), bdf)
		h.linked(igb+"/virtfn"+string(rune('0'+i))+"/physfn", "0000:81:00.0")
		h.linked("bus/pci/devices/"+bdf+"/driver", "")
		h.linked("bus/pci/devices/"+bdf+"/iommu_group", []string{"8", "9", "10", "11"}[i])
	}
	h.reads(vf0+"/driver_override", "(null)")
	h.fails(vf0+"/sriov_vf_msix_count", syscall.EACCES)
	h.reads(vf0+"/reset_method", "flr")
	h.reads(vf0+"/numa_node", "1")

	h.write("bus/pci/drivers_probe", "0000:81:10.0") // succeeds and does nothing
	h.linked(vf0+"/driver", "")
	h.refused("bus/pci/drivers/igbvf/bind", "0000:81:10.0", syscall.ENODEV)
	if err := h.Modprobe(t.Context(), "vfio-pci"); err != nil {
		t.Fatal(err)
	}
	h.write(vf0+"/driver_override", "vfio-pci")
	h.write("bus/pci/drivers_probe", "0000:81:10.0")
	h.linked(vf0+"/driver", "vfio-pci")
	if names := h.list("class/vfio"); !slices.Equal(names, []string{"8"}) {
		t.Fatalf("vfio nodes %v", names)
	}
	if names := h.list(vf0 + "/vfio-dev"); !slices.Equal(names, []string{"vfio0"}) {
		t.Fatalf("vfio devices %v", names)
	}
	h.refused("bus/pci/drivers/vfio-pci/bind", "0000:81:10.0", syscall.EBUSY)
	h.write(vf0+"/driver_override", "\n")
	h.reads(vf0+"/driver_override", "(null)")
	h.linked(vf0+"/driver", "vfio-pci")
}

// TestIGBAttributes: what the igb driver was seen to accept and refuse.
func TestIGBAttributes(t *testing.T) {
	h := boot(t, sysfstest.IGB())
	if err := h.Tune("0000:81:00.0", func(q *sysfstest.Quirks) { q.LateCarrier = sysfstest.Never }); err != nil {
		t.Fatal(err)
	}
	h.write(igb+"/sriov_drivers_autoprobe", "0")
	h.write(igb+"/sriov_numvfs", "4")
	v := h.attr("ens1", 2)
	if !v.MAC.IsZero() || v.VLAN != 0 || !*v.SpoofCheck || *v.Trust || *v.LinkState != rtnl.LinkAuto || v.MaxRate != 0 {
		t.Fatalf("a fresh VF is %+v", v)
	}
	mac := roce.MAC{2, 0, 0, 0, 0, 9}
	h.set("ens1", 2, rtnl.MAC(mac))
	h.set("ens1", 1, rtnl.MAC(mac)) // nobody minds
	h.denied("ens1", 2, rtnl.MAC{1, 0, 0x5e, 0, 0, 1}, syscall.EINVAL)
	h.denied("ens1", 7, rtnl.MAC(mac), syscall.EINVAL)
	h.set("ens1", 2, rtnl.VLAN{ID: 101, QoS: 3})
	h.set("ens1", 2, rtnl.Trust(true))
	h.set("ens1", 2, rtnl.SpoofCheck(false))
	h.denied("ens1", 2, rtnl.State(rtnl.LinkAuto), syscall.EOPNOTSUPP)
	h.denied("ens1", 2, rtnl.Rate{Max: 500}, syscall.EINVAL) // making VFs took the carrier
	h.fails("class/net/ens1/speed", syscall.EINVAL)
	h.Settle()
	h.set("ens1", 2, rtnl.Rate{Max: 500})
	h.denied("ens1", 2, rtnl.Rate{Min: 100, Max: 500}, syscall.EINVAL)
	h.denied("ens1", 2, rtnl.Rate{Max: 5000}, syscall.EINVAL)
	h.denied("ens9", 2, rtnl.Rate{}, syscall.ENODEV)
	h.write("bus/pci/devices/0000:81:10.4/reset", "1")
	v = h.attr("ens1", 2)
	if v.MAC != mac || v.VLAN != 101 || v.QoS != 3 || *v.SpoofCheck || !*v.Trust || v.MaxRate != 500 {
		t.Fatalf("after a function reset the PF says %+v", v)
	}
	if v := h.attr("ens1", 0); !v.MAC.IsZero() || !*v.SpoofCheck {
		t.Fatalf("its sibling is %+v", v)
	}
	h.write(igb+"/sriov_numvfs", "0")
	h.write(igb+"/sriov_numvfs", "4")
	if v := h.attr("ens1", 2); !v.MAC.IsZero() || v.VLAN != 0 || *v.Trust {
		t.Fatalf("a VF made anew is %+v", v)
	}
}
