package collect

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/verbena-cloud/verbena/internal/devlink"
	"github.com/verbena-cloud/verbena/internal/pci"
	"github.com/verbena-cloud/verbena/internal/preflight"
	"github.com/verbena-cloud/verbena/internal/rdma"
	"github.com/verbena-cloud/verbena/internal/sysfs"
)

const (
	rootPort   = 4
	downstream = 6
	pciBridge  = 7 // to conventional PCI
	endpoint   = 0
)

// space is a configuration space by pci_regs.h: PCI Express at 0x40 with its type and an 8 GT/s ×8 link that could be
// 16 GT/s ×16, then the extended capabilities that are given, each of them one that internal/pci decodes.
func space(vendor uint16, kind byte, ext ...[]byte) []byte {
	b := make([]byte, 4096)
	le := binary.LittleEndian
	le.PutUint16(b[0x00:], vendor)
	b[0x06], b[0x34] = 0x10, 0x40
	b[0x40], b[0x42] = 0x10, kind<<4|2
	le.PutUint32(b[0x4c:], 0x00400104)
	le.PutUint16(b[0x52:], 0x1083)
	at := 0x100
	for i, e := range ext {
		copy(b[at:], e)
		next := at + 0x40
		if i == len(ext)-1 {
			next = 0
		}
		le.PutUint32(b[at:], uint32(e[0])|1<<16|uint32(next)<<20)
		at = next
	}
	return b
}

func acs(can, on uint16) []byte {
	b := make([]byte, 8)
	b[0] = 0x0d
	binary.LittleEndian.PutUint16(b[4:], can)
	binary.LittleEndian.PutUint16(b[6:], on)
	return b
}

func listed(vfs uint16) []byte {
	b := make([]byte, 0x1c)
	b[0] = 0x10
	binary.LittleEndian.PutUint16(b[0x0e:], vfs)
	return b
}

func serial() []byte { return append([]byte{3}, make([]byte, 11)...) }

const (
	nic = "0000:3b:00.0"
	vf  = "0000:3b:00.2"
)

// host is a directory like /sys of a host with one card below these ports, from the CPU on.
type host struct {
	t     *testing.T
	root  string
	ports []string
}

// newHost makes the tree; the spaces are those of the ports, then the card's.
func newHost(t *testing.T, spaces ...[]byte) host {
	t.Helper()
	h := host{t: t, root: t.TempDir()}
	dir := "devices/pci0000:00"
	for i, b := range spaces {
		name, class := fmt.Sprintf("0000:00:%02x.0", i), "0x060400"
		if i == len(spaces)-1 {
			name, class = nic, "0x020000"
		}
		dir += "/" + name
		h.write(dir+"/config", string(b))
		h.write(dir+"/class", class)
		h.write(dir+"/vendor", fmt.Sprintf("%#04x", binary.LittleEndian.Uint16(b)))
		h.write(dir+"/uevent", "DRIVER=x\nPCI_SLOT_NAME="+name+"\nMODALIAS=y\n")
		h.link(dir, "bus/pci/devices/"+name)
	}
	h.write(dir+"/numa_node", "0")
	h.write(dir+"/net/ens1f0/ifindex", "7")
	h.write("bus/pci/drivers/mlx5_core/uevent", "")
	h.link("bus/pci/drivers/mlx5_core", dir+"/driver")
	h.write("kernel/iommu_groups/1/type", "DMA")
	h.ports = strings.Split(dir, "/")
	return h
}

func (h host) card() string { return strings.Join(h.ports, "/") }

// sriov gives the card VFs, one of them with its group.
func (h host) sriov(total string) host {
	h.write(h.card()+"/sriov_totalvfs", total)
	h.write(h.card()+"/sriov_numvfs", "0")
	return h
}

func (h host) vf() host {
	h.write(h.card()+"/sriov_numvfs", "1")
	dir := filepath.Dir(h.card()) + "/" + vf
	h.write(dir+"/class", "0x020000")
	h.link(dir, "bus/pci/devices/"+vf)
	h.link(dir, h.card()+"/virtfn0")
	h.link(dir, "kernel/iommu_groups/77/devices/"+vf)
	h.link("kernel/iommu_groups/77", dir+"/iommu_group")
	return h
}

func (h host) write(name, text string) {
	h.t.Helper()
	at := filepath.Join(h.root, name)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

func (h host) link(to, name string) {
	h.t.Helper()
	at := filepath.Join(h.root, name)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		h.t.Fatal(err)
	}
	rel, err := filepath.Rel(filepath.Dir(at), filepath.Join(h.root, to))
	if err != nil {
		h.t.Fatal(err)
	}
	if err := os.Symlink(rel, at); err != nil {
		h.t.Fatal(err)
	}
}

func (h host) facts(more Host) preflight.Facts {
	h.t.Helper()
	tree, err := sysfs.Open(h.root)
	if err != nil {
		h.t.Fatal(err)
	}
	defer tree.Close()
	if more.Root == nil {
		more.Root = root()
	}
	more.Sys, more.DCB = tree, ports{err: syscall.EOPNOTSUPP}
	return more.Facts(h.t.Context())
}

// TestPath: the ports above a card by what the kernel wants of each: an upstream port of a switch nothing, a bridge of
// conventional PCI what it can't have.
func TestPath(t *testing.T) {
	full := acs(0x5f, uint16(pci.Isolating))
	on := &pci.ACS{Can: 0x5f, On: pci.Isolating}
	card := space(0x15b3, endpoint, serial(), listed(16))
	for what, c := range map[string]struct {
		spaces [][]byte
		want   []preflight.Bridge
	}{
		"root port":  {[][]byte{space(0x8086, rootPort, full), card}, []preflight.Bridge{{Address: "0000:00:00.0", Known: true, ACS: on}}},
		"no ACS":     {[][]byte{space(0x8086, rootPort, serial()), card}, []preflight.Bridge{{Address: "0000:00:00.0", Known: true}}},
		"unreadable": {[][]byte{space(0x8086, rootPort, full)[:64], card}, []preflight.Bridge{{Address: "0000:00:00.0"}}},
		"torn":       {[][]byte{space(0x8086, rootPort, full)[:0x104], card}, []preflight.Bridge{{Address: "0000:00:00.0", Known: false}}},
		"switch": {[][]byte{space(0x8086, rootPort, full), space(0x10b5, byte(upstream)), space(0x10b5, downstream, acs(0x1d, 0)), card}, []preflight.Bridge{
			{Address: "0000:00:02.0", Known: true, ACS: &pci.ACS{Can: 0x1d}}, {Address: "0000:00:00.0", Known: true, ACS: on},
		}},
		"conventional bridge": {[][]byte{space(0x8086, pciBridge, serial()), card}, []preflight.Bridge{{Address: "0000:00:00.0", Known: true}}},
		"old bridge":          {[][]byte{func() []byte { b := space(0x8086, 0)[:256]; b[0x06] = 0; return b }(), card}, []preflight.Bridge{{Address: "0000:00:00.0", Known: true}}},
		"on the root bus":     {[][]byte{card}, nil},
	} {
		f := newHost(t, c.spaces...).sriov("16").facts(Host{})
		if len(f.PFs) != 1 {
			t.Fatalf("%s: %+v", what, f)
		}
		p := f.PFs[0]
		if diff := cmp.Diff(c.want, p.Path); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
		if p.SRIOV.Listed == nil || *p.SRIOV.Listed != 16 || p.PCIe.Speed != 8 || p.PCIe.MaxSpeed != 16 || p.PCIe.Width != 8 || p.PCIe.MaxWidth != 16 {
			t.Errorf("%s: %+v %+v", what, p.SRIOV, p.PCIe)
		}
	}
}

// TestSpaces: what a card's configuration space says of SR-IOV, and what can't be trusted.
func TestSpaces(t *testing.T) {
	up := space(0x8086, rootPort, acs(0x5f, 0x1d))
	gone := make([]byte, 4096)
	for i := range gone {
		gone[i] = 0xff
	}
	other := space(0x15b3, endpoint, listed(8))
	for what, c := range map[string]struct {
		card   []byte
		want   *int
		unseen bool
	}{
		"offered": {space(0x15b3, endpoint, listed(8)), new(8), false},
		"none":    {space(0x15b3, endpoint, serial()), new(0), false},
		"nobody":  {space(0x15b3, endpoint, listed(8))[:64], nil, false},
		"gone":    {gone, nil, true},
		"loop":    {func() []byte { b := space(0x15b3, endpoint); b[0x41] = 0x40; return b }(), nil, true},
		"other":   {other, nil, true},
	} {
		h := newHost(t, up, c.card).sriov("8")
		if what == "other" {
			h.write(h.card()+"/vendor", "0x8086")
		}
		f := h.facts(Host{})
		got := f.PFs[0].SRIOV.Listed
		if diff := cmp.Diff(c.want, got); diff != "" || len(f.Unseen) > 0 != c.unseen {
			t.Errorf("%s: %s %q", what, diff, f.Unseen)
		}
	}
}

// TestIsolation goes from trees to findings.
func TestIsolation(t *testing.T) {
	card := space(0x15b3, endpoint, serial(), listed(16))
	good, off, none := space(0x8086, rootPort, acs(0x5f, 0x1d)), space(0x8086, rootPort, acs(0x5f, 0)), space(0x8086, rootPort, serial())
	cmdline := func(text string) fstest.MapFS {
		r := root()
		r["proc/cmdline"] = &fstest.MapFile{Data: []byte(text)}
		return r
	}
	for what, c := range map[string]struct {
		h     host
		root  fstest.MapFS
		level preflight.Level
		seen  string
	}{
		"on":          {newHost(t, good, card).sriov("16").vf(), nil, preflight.OK, "0000:00:00.0"},
		"off, no VFs": {newHost(t, off, card).sriov("16"), nil, preflight.Warning, "0000:00:00.0 has ACS off (0x0 of 0x1d)"},
		"quirk":       {newHost(t, none, card).sriov("16").vf(), nil, preflight.Info, "has no ACS"},
		"override":    {newHost(t, none, card).sriov("16").vf(), cmdline("pcie_acs_override=downstream"), preflight.Warning, "pcie_acs_override"},
		"unreadable":  {newHost(t, good[:64], card).sriov("16").vf(), nil, preflight.Unknown, "0000:00:00.0"},
	} {
		f := c.h.facts(Host{Root: c.root})
		list := preflight.Check(f, preflight.Default())
		i := slices.IndexFunc(list, func(x preflight.Finding) bool { return x.Check == "iommu.acs" })
		if i < 0 || list[i].Level != c.level || !strings.Contains(list[i].Seen, c.seen) {
			t.Errorf("%s: %+v", what, list)
		}
	}
	// A group with the card itself in it: both checks say so.
	h := newHost(t, off, card).sriov("16").vf()
	h.link(h.card(), "kernel/iommu_groups/77/devices/"+nic)
	list := preflight.Check(h.facts(Host{}), preflight.Default())
	for _, check := range []string{"iommu.acs", "vf.group"} {
		if !slices.ContainsFunc(list, func(x preflight.Finding) bool { return x.Check == check && x.Level == preflight.Failed }) {
			t.Errorf("no %s in %+v", check, list)
		}
	}
}

// instances answers for every device alike.
type instances struct {
	info       devlink.Info
	eswitch    devlink.Eswitch
	err, esErr error
	asked      []string
}

func (i *instances) List(context.Context) ([]devlink.Device, error) { return nil, i.err }
func (i *instances) Info(_ context.Context, d devlink.Device) (devlink.Info, error) {
	i.asked = append(i.asked, d.String())
	return i.info, i.err
}

func (i *instances) Eswitch(context.Context, devlink.Device) (devlink.Eswitch, error) {
	return i.eswitch, i.esErr
}

func TestDevlink(t *testing.T) {
	card := space(0x15b3, endpoint, serial(), listed(16))
	tell := func(h host, i *instances, root bool) preflight.Facts {
		return h.facts(Host{Devlink: i, AsRoot: root})
	}
	i := &instances{
		info: devlink.Info{
			Running: map[string]string{"fw": "22.31.1014"}, Fixed: map[string]string{"fw.psid": "MT_0000000359"}, Stored: map[string]string{"fw": "22.35.1012"},
		},
		eswitch: devlink.Eswitch{Mode: new(devlink.Switchdev)},
	}
	f := tell(newHost(t, card).sriov("16"), i, true)
	p := f.PFs[0]
	if p.Firmware != "22.31.1014" || p.Board != "MT_0000000359" || p.Eswitch != "switchdev" || !slices.Equal(p.Pending, []string{"fw 22.31.1014 → 22.35.1012"}) || !slices.Equal(i.asked, []string{"pci/" + nic}) {
		t.Errorf("%+v, asked %q", p, i.asked)
	}
	h := newHost(t, card).sriov("16")
	h.write("class/infiniband/mlx5_0/fw_ver", "20.1.2\n")
	h.link("class/infiniband/mlx5_0", h.card()+"/infiniband/mlx5_0")
	if p := tell(h, i, true).PFs[0]; p.Firmware != "20.1.2" || p.Board != "MT_0000000359" {
		t.Errorf("sysfs tells the firmware: %+v", p)
	}
	for what, c := range map[string]struct {
		i      *instances
		root   bool
		unseen int
	}{
		"no devlink":    {&instances{err: devlink.ErrAbsent, esErr: devlink.ErrAbsent}, true, 0},
		"no instance":   {&instances{err: syscall.ENODEV, esErr: syscall.ENODEV}, true, 0},
		"no function":   {&instances{err: syscall.EOPNOTSUPP, esErr: syscall.EOPNOTSUPP}, true, 0},
		"no eswitch":    {&instances{}, true, 0},
		"not root":      {&instances{esErr: syscall.EPERM}, false, 1},
		"DPU":           {&instances{esErr: syscall.EPERM}, true, 1},
		"firmware hung": {&instances{err: syscall.EBUSY, esErr: errors.New("busy")}, true, 2},
	} {
		f := tell(newHost(t, card).sriov("16"), c.i, c.root)
		if p := f.PFs[0]; p.Eswitch != "" || p.Firmware != "" || len(f.Unseen) != c.unseen {
			t.Errorf("%s: %+v, unseen %q", what, p, f.Unseen)
		}
	}
}

// namespaces is what the RDMA core answers.
type namespaces struct {
	mode rdma.Sharing
	err  error
}

func (n namespaces) Sharing(context.Context) (rdma.Sharing, error) { return n.mode, n.err }

func TestSharing(t *testing.T) {
	for what, c := range map[string]struct {
		n      rdma.System
		param  string
		want   *bool
		unseen int
	}{
		"exclusive":             {namespaces{mode: rdma.Exclusive}, "Y", new(false), 0},
		"shared":                {namespaces{mode: rdma.Shared}, "", new(true), 0},
		"absent":                {namespaces{err: rdma.ErrAbsent}, "N", new(false), 0},
		"an older kernel":       {namespaces{err: syscall.EOPNOTSUPP}, "", nil, 0},
		"nobody to ask":         {nil, "Y", new(true), 0},
		"it could not be asked": {namespaces{err: syscall.EPERM}, "", nil, 1},
	} {
		h := newHost(t, space(0x15b3, endpoint))
		if c.param != "" {
			h.write("module/ib_core/parameters/netns_mode", c.param)
		}
		f := h.facts(Host{RDMA: c.n})
		if diff := cmp.Diff(c.want, f.NetnsShared); diff != "" || len(f.Unseen) != c.unseen {
			t.Errorf("%s: %s %q", what, diff, f.Unseen)
		}
	}
	r := root()
	r["proc/modules"] = &fstest.MapFile{}
	if f := newHost(t, space(0x15b3, endpoint)).facts(Host{RDMA: namespaces{mode: rdma.Shared}, Root: r}); f.NetnsShared != nil {
		t.Errorf("asked, though ib_core is not loaded: %v", *f.NetnsShared)
	}
}
