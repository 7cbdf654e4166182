package collect

import (
	"context"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/verbena-cloud/verbena/internal/devlink"
	"github.com/verbena-cloud/verbena/internal/preflight"
	"github.com/verbena-cloud/verbena/internal/rdma"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
)

// Ports and links of the simulated host, which has one mlx5 card.
const (
	mlx0  = "0000:18:00.0"
	link0 = "ens24f0np0"
)

// simulated is a simulated host, seen as preflight sees one.
type simulated struct {
	*sysfstest.Kernel
	t *testing.T
}

func simulate(t *testing.T, edit func(*sysfstest.Config)) simulated {
	t.Helper()
	cfg := sysfstest.Host(1, 1, 16)
	cfg.Modules = []string{"vfio-pci"}
	if edit != nil {
		edit(&cfg)
	}
	k, err := sysfstest.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return simulated{k, t}
}

func (s simulated) write(path, value string) {
	s.t.Helper()
	if err := s.Write(s.t.Context(), path, value); err != nil {
		s.t.Fatal(err)
	}
}

// vfs makes VFs and returns the address of the first.
func (s simulated) vfs(n string) string {
	s.t.Helper()
	s.write(pciDevices+"/"+mlx0+"/sriov_numvfs", n)
	s.Settle()
	addr, err := s.Link(s.t.Context(), pciDevices+"/"+mlx0+"/virtfn0")
	if err != nil {
		s.t.Fatal(err)
	}
	return addr
}

// look sees the host: /proc is the simulated kernel's, /dev has a node for each that udev would make.
func (s simulated) look(more Host) preflight.Facts {
	s.t.Helper()
	files := fstest.MapFS{"dev/vfio/vfio": {}, "dev/infiniband/rdma_cm": {}}
	for _, name := range []string{"sys/kernel/osrelease", "cmdline", "modules", "net/route"} {
		b, err := s.Proc(name)
		if err != nil {
			s.t.Fatal(err)
		}
		files["proc/"+name] = &fstest.MapFile{Data: b}
	}
	for dir, at := range map[string]string{"class/vfio": "dev/vfio/", "class/infiniband_verbs": "dev/infiniband/"} {
		names, _ := s.List(s.t.Context(), dir) // none without the module
		for _, n := range names {
			files[at+n] = &fstest.MapFile{}
		}
	}
	for name, f := range more.rootFiles() {
		files[name] = f
	}
	more.Sys, more.Root, more.DCB, more.Priority, more.AsRoot = s.Kernel, files, s.Ports(), 3, true
	return more.Facts(s.t.Context())
}

// rootFiles are files that a test adds.
func (h Host) rootFiles() fstest.MapFS {
	m, _ := h.Root.(fstest.MapFS)
	return m
}

// found is the finding of a check about an object, the zero one where there is none.
func (s simulated) found(f preflight.Facts, check, object string) preflight.Finding {
	s.t.Helper()
	for _, u := range f.Unseen {
		s.t.Errorf("unseen: %s", u)
	}
	list := preflight.Check(f, preflight.Default())
	i := slices.IndexFunc(list, func(x preflight.Finding) bool { return x.Check == check && x.Object == object })
	if i < 0 {
		return preflight.Finding{}
	}
	return list[i]
}

// want wants a finding of a level whose text has the words.
func (s simulated) want(f preflight.Facts, check, object string, level preflight.Level, words string) {
	s.t.Helper()
	if x := s.found(f, check, object); x.Level != level || !strings.Contains(x.Seen, words) {
		s.t.Errorf("%s of %q is %+v, want %s with %q", check, object, x, level, words)
	}
}

// TestT03_NoSRIOVFiles: the port is found by its RDMA device, and its configuration space tells whether the card or
// the kernel is to blame.
func TestT03_NoSRIOVFiles(t *testing.T) {
	s := simulate(t, func(c *sysfstest.Config) { c.Cards[0].PFs[0].Quirks.NoSRIOV, c.Cards[0].PFs[1].TotalVFs = true, 0 })
	f := s.look(Host{})
	s.want(f, "sriov.capable", link0, preflight.Failed, "no SR-IOV")
	s.want(f, "sriov.capable", "ens24f1np1", preflight.Failed, "no SR-IOV")
	s.want(f, "nic.present", "", preflight.Failed, "none with SR-IOV")
}

// TestT05_FewerVFs: the kernel shows as many as the driver gave, so no number is believed but that.
func TestT05_FewerVFs(t *testing.T) {
	s := simulate(t, func(c *sysfstest.Config) { c.Cards[0].PFs[0].Quirks.GiveAtMost = 8 })
	s.vfs("16")
	s.want(s.look(Host{}), "sriov.vfs", link0, preflight.OK, "8 of 16")
	late := simulate(t, func(c *sysfstest.Config) { c.Cards[0].PFs[0].Quirks.LateLinks = sysfstest.Never })
	late.write(pciDevices+"/"+mlx0+"/sriov_numvfs", "16")
	late.want(late.look(Host{}), "sriov.vfs", link0, preflight.Failed, "sriov_numvfs is 16, but 0 VFs are there")
}

// TestT09_VFBoundWithoutMAC: a VF that its driver took before it had an administrator's address has no GUID.
func TestT09_VFBoundWithoutMAC(t *testing.T) {
	s := simulate(t, nil)
	s.vfs("2")
	s.want(s.look(Host{}), "vf.guid", link0+" vf 1", preflight.Failed, "GUID 0")
}

// TestT17_CommandLine: the arguments are read as the kernel got them.
func TestT17_CommandLine(t *testing.T) {
	s := simulate(t, func(c *sysfstest.Config) { c.NoIOMMU = true })
	cmdline := func(text string) Host {
		return Host{Root: fstest.MapFS{"proc/cmdline": {Data: []byte(text)}}}
	}
	s.want(s.look(cmdline("root=/dev/vda intel_iommu=on,sm_on\n")), "iommu.on", "", preflight.Failed, "though the kernel's arguments ask for it")
	if x := s.found(s.look(cmdline("root=/dev/vda\n")), "iommu.on", ""); x.Seen != "no IOMMU groups" {
		t.Errorf("%+v", x)
	}
}

// TestT21_DPU: the eswitch of a DPU is not the host's to ask; what firmware waits there is told all the same.
func TestT21_DPU(t *testing.T) {
	s := simulate(t, nil)
	f := s.look(Host{Devlink: &instances{
		info:  devlink.Info{Running: map[string]string{"fw": "22.31.1014"}, Stored: map[string]string{"fw": "22.35.1012"}},
		esErr: syscall.EPERM,
	}})
	if len(f.Unseen) != 2 || !strings.Contains(f.Unseen[0], "eswitch of pci/"+mlx0) { // one for each port
		t.Errorf("unseen %q", f.Unseen)
	}
	f.Unseen = nil
	s.want(f, "nic.pending", link0, preflight.Warning, "fw 22.31.1014 → 22.35.1012")
}

// TestT26_LibibverbsComplains: its complaint is about one device; without the program nothing is said.
func TestT26_LibibverbsComplains(t *testing.T) {
	s := simulate(t, nil)
	said := "libibverbs: Warning: Driver mlx5 does not support the kernel ABI of 2 (supports 1 to 1) for device /sys/class/infiniband/mlx5_1\n"
	run := func(ibv string, err error) Host {
		return Host{Run: func(_ context.Context, program string, _ ...string) (string, error) {
			if program == "ibv_devices" {
				return ibv, err
			}
			return "", fs.ErrNotExist
		}}
	}
	f := s.look(run(said, nil))
	s.want(f, "rdma.provider", "mlx5_0", "", "")
	s.want(f, "rdma.provider", "mlx5_1", preflight.Warning, "kernel's driver has 2")
	s.want(s.look(run("", fs.ErrNotExist)), "rdma.provider", "mlx5_1", "", "")
	if f := s.look(run("", syscall.EPERM)); len(f.Unseen) != 1 {
		t.Errorf("%q", f.Unseen)
	}
}

func TestT27_PortWithoutDriver(t *testing.T) {
	s := simulate(t, func(c *sysfstest.Config) { c.Cards[0].PFs[0].NoDriver = true })
	s.want(s.look(Host{}), "nic.driver", mlx0, preflight.Failed, "no driver")
}

func TestT30_GroupOfTheCard(t *testing.T) {
	s := simulate(t, func(c *sysfstest.Config) { c.Cards[0].SharedGroup = true })
	s.vfs("2")
	s.want(s.look(Host{}), "vf.group", link0+" vf 0", preflight.Failed, "also holds 0000:18:00.0, 0000:18:00.1")
}

func TestT31_NoIOMMUGroups(t *testing.T) {
	s := simulate(t, func(c *sysfstest.Config) { c.NoIOMMU = true })
	s.vfs("1")
	f := s.look(Host{})
	s.want(f, "iommu.on", "", preflight.Failed, "no IOMMU groups")
	s.want(f, "vf.group", link0+" vf 0", "", "") // said once
}

func TestT33_ModuleComes(t *testing.T) {
	s := simulate(t, func(c *sysfstest.Config) { c.Modules = nil })
	f := s.look(Host{})
	s.want(f, "kernel.modules", "", preflight.Failed, "vfio_pci, vfio_iommu_type1")
	for _, fix := range preflight.Fixes(f) {
		if err := s.Modprobe(t.Context(), fix.Module); err != nil {
			t.Fatal(err)
		}
	}
	s.want(s.look(Host{}), "kernel.modules", "", preflight.OK, "vfio_pci")
}

func TestT34_NamespaceMode(t *testing.T) {
	s := simulate(t, nil)
	s.want(s.look(Host{RDMA: namespaces{mode: rdma.Exclusive}}), "kernel.netns", "", preflight.Info, "exclusive")
	s.want(s.look(Host{RDMA: namespaces{mode: rdma.Shared}}), "kernel.netns", "", "", "")
}

// TestT37_FilesThatAnswerNonsense: a file that can't be read, or holds no number, costs that value and nothing else;
// a host without RDMA has no such directories at all.
func TestT37_FilesThatAnswerNonsense(t *testing.T) {
	s := simulate(t, nil)
	before := s.look(Host{})
	port := "class/infiniband/mlx5_0/ports/1"
	for path, err := range map[string]syscall.Errno{
		"class/net/" + link0 + "/speed": syscall.EINVAL, port + "/rate": syscall.EINVAL, port + "/gid_attrs/types/0": syscall.EINVAL,
		pciDevices + "/" + mlx0 + "/current_link_speed": syscall.EOPNOTSUPP,
	} {
		s.Break(path, err)
		f := s.look(Host{})
		if len(f.PFs) != len(before.PFs) || len(f.RDMA) != len(before.RDMA) || len(f.Unseen) != 0 || f.RDMA[0].Ports[0].State != "ACTIVE" {
			t.Errorf("%s: %+v", path, f)
		}
		s.Break(path, nil)
	}
	s.Break(port+"/state", syscall.EIO)
	if f := s.look(Host{}); len(f.Unseen) != 1 || !strings.Contains(f.Unseen[0], port+"/state") || len(f.RDMA) != len(before.RDMA) || len(f.RDMA[0].Ports[0].GIDs) == 0 {
		t.Errorf("%+v", f)
	}
	none := simulate(t, func(c *sysfstest.Config) { *c = sysfstest.IGB() })
	if f := none.look(Host{}); len(f.Unseen) != 0 || len(f.RDMA) != 0 || len(f.PFs) != 1 {
		t.Errorf("%+v", f)
	}
}

// TestT39_NoIPv4: the simulated port has entries of its link-local address alone.
func TestT39_NoIPv4(t *testing.T) {
	s := simulate(t, nil)
	s.want(s.look(Host{Addresses: func(string) ([]netip.Addr, error) { return nil, nil }}), "rdma.gid", "mlx5_0/1", preflight.Info, "only IPv6")
	v4 := netip.MustParseAddr("10.0.0.7")
	s.want(s.look(Host{Addresses: func(string) ([]netip.Addr, error) { return []netip.Addr{v4}, nil }}), "rdma.gid", "mlx5_0/1", preflight.Failed, "10.0.0.7")
}

func TestT41_AgentOfLLDP(t *testing.T) {
	s := simulate(t, nil)
	s.want(s.look(Host{Root: fstest.MapFS{"proc/812/comm": {Data: []byte("lldpad\n")}}}), "net.lldp", "", preflight.Warning, "lldpad")
	s.want(s.look(Host{Root: fstest.MapFS{"proc/812/comm": {Data: []byte("lldpadx\n")}}}), "net.lldp", "", "", "")
}

// TestT42_DefaultRoute: over the port itself, and over the bond that it is a member of.
func TestT42_DefaultRoute(t *testing.T) {
	s := simulate(t, func(c *sysfstest.Config) { c.Route = link0 })
	f := s.look(Host{})
	s.want(f, "nic.management", link0, preflight.Warning, "default route")
	s.want(f, "nic.management", "ens24f1np1", "", "")
	bonded := simulate(t, func(c *sysfstest.Config) {
		c.Cards[0].PFs[0].Bond, c.Cards[0].PFs[1].Bond, c.Route = "bond0", "bond0", "bond0"
	})
	f = bonded.look(Host{})
	bonded.want(f, "nic.management", link0, preflight.Warning, "default route")
	bonded.want(f, "nic.management", "ens24f1np1", preflight.Warning, "default route")
}

func TestT49_NodeGUID(t *testing.T) {
	s := simulate(t, nil)
	s.vfs("1")
	f := s.look(Host{})
	s.want(f, "rdma.guid", "mlx5_0", preflight.OK, "")
	s.want(f, "rdma.guid", "mlx5_2", preflight.Failed, "GUID 0")
}

// TestT50_BoundBeforeLinux53: a bind without an override makes the link and nothing else. The node tells them apart.
func TestT50_BoundBeforeLinux53(t *testing.T) {
	s := simulate(t, func(c *sysfstest.Config) { c.OldBind = true })
	s.write(pciDevices+"/"+mlx0+"/sriov_drivers_autoprobe", "0")
	addr := s.vfs("2")
	s.write("bus/pci/drivers/vfio-pci/new_id", "15b3 101e")
	s.write("bus/pci/drivers/vfio-pci/bind", addr)
	f := s.look(Host{})
	if v := f.PFs[0].VFs[0]; v.Driver != "vfio-pci" {
		t.Fatalf("%+v", v)
	}
	s.want(f, "vf.node", link0+" vf 0", preflight.Failed, "no /dev/vfio/")
	other, err := s.Link(t.Context(), pciDevices+"/"+mlx0+"/virtfn1")
	if err != nil {
		t.Fatal(err)
	}
	s.write(pciDevices+"/"+other+"/driver_override", "vfio-pci")
	s.write("bus/pci/drivers_probe", other)
	s.want(s.look(Host{}), "vf.node", link0+" vf 1", "", "")
}

func TestT51_RateSaysNothing(t *testing.T) {
	s := simulate(t, func(c *sysfstest.Config) { c.Cards[0].PFs[0].Speed = 400_000 })
	if rate, err := s.Read(t.Context(), "class/infiniband/mlx5_0/ports/1/rate"); err != nil || !strings.HasPrefix(rate, "100 Gb/sec") {
		t.Fatalf("%q, %v", rate, err)
	}
	s.want(s.look(Host{}), "link.speed", link0, preflight.OK, "400 Gb/s")
}

func TestT55_BondOfPorts(t *testing.T) {
	s := simulate(t, func(c *sysfstest.Config) { c.Cards[0].PFs[0].Bond, c.Cards[0].PFs[1].Bond = "bond0", "bond0" })
	s.want(s.look(Host{}), "sriov.bond", link0, "", "") // without VFs the bond does what it says
	s.vfs("1")
	s.want(s.look(Host{}), "sriov.bond", link0, preflight.Warning, "bond0")
}
