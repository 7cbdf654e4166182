package collect

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/verbena-cloud/verbena/internal/dcb"
	"github.com/verbena-cloud/verbena/internal/preflight"
	"github.com/verbena-cloud/verbena/internal/sysfs"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
)

// ports answers for every link alike.
type ports struct {
	state dcb.State
	err   error
}

func (p ports) Get(context.Context, string) (dcb.State, error) { return p.state, p.err }
func (p ports) Set(context.Context, string, dcb.Change) error  { return syscall.EPERM }

// root is /proc and /dev of a small host.
func root() fstest.MapFS {
	text := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	return fstest.MapFS{
		"proc/sys/kernel/osrelease":           text("6.12.57\n"),
		"proc/cmdline":                        text("root=/dev/vda intel_iommu=on,sm_on iommu=pt\n"),
		"proc/modules":                        text("vfio_pci 16384 0 - Live 0x0\nrdma_cm 90112 1 rdma_ucm, Loading 0x0\nib_core 1 0 - Live 0x0\n"),
		"proc/net/route":                      text("Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\nens1f0.7\t00000000\t0102030A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"),
		"proc/7/comm":                         text("lldpad\n"),
		"proc/8/comm":                         text("bash\n"),
		"lib/modules/6.12.57/modules.builtin": text("kernel/drivers/vfio/vfio_iommu_type1.ko\nkernel/drivers/infiniband/core/ib-uverbs.ko.xz\n"),
		"dev/vfio/vfio":                       text(""),
	}
}

func example(t *testing.T, driver string) sysfs.Tree {
	t.Helper()
	archive, err := sysfstest.Example(driver)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := sysfstest.Captured(archive)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// TestCaptured: each driver's tree gives its port, its VFs and no complaint about what is normal there.
func TestCaptured(t *testing.T) {
	for _, driver := range []string{"mlx5_core", "bnxt_en", "ice", "igb"} {
		t.Run(driver, func(t *testing.T) {
			f := Host{Sys: example(t, driver), Root: root(), DCB: ports{err: syscall.EOPNOTSUPP}}.Facts(t.Context())
			if len(f.PFs) == 0 {
				t.Fatalf("no port: %+v", f)
			}
			p := f.PFs[0]
			if p.Driver != driver || p.Link == "" || !p.SRIOV.Present || p.MTU == 0 || p.DCB != nil || p.DCBUnknown {
				t.Errorf("%+v", p)
			}
			if len(p.VFs) != p.SRIOV.Num {
				t.Errorf("%d VFs of %d", len(p.VFs), p.SRIOV.Num)
			}
			if driver == "mlx5_core" && (len(f.RDMA) == 0 || f.RDMA[0].NodeGUID == 0 || len(f.RDMA[0].Ports) == 0) {
				t.Errorf("RDMA: %+v", f.RDMA)
			}
			if len(preflight.Check(f, preflight.Default())) == 0 {
				t.Error("nothing to say")
			}
			for _, u := range f.Unseen {
				t.Errorf("unseen: %s", u)
			}
		})
	}
}

func TestKernel(t *testing.T) {
	f := Host{Sys: example(t, "igb"), Root: root()}.Facts(t.Context())
	for m, want := range map[string]bool{"vfio_pci": true, "ib_core": true, "ib_uverbs": true, "vfio_iommu_type1": true, "rdma_cm": false} {
		if f.Modules[m] != want {
			t.Errorf("module %s: %v", m, f.Modules[m])
		}
	}
	if f.Kernel != "6.12.57" || !slices.Equal(f.LLDPAgents, []string{"lldpad"}) || !f.Nodes["/dev/vfio/vfio"] || f.Nodes["/dev/infiniband/rdma_cm"] {
		t.Errorf("%+v", f)
	}
}

// TestBroken: a tree in which every read fails costs facts, not the run.
func TestBroken(t *testing.T) {
	f := Host{Sys: broken{}, Root: fstest.MapFS{}, DCB: ports{err: syscall.EPERM}, Run: func(context.Context, string, ...string) (string, error) { return "", syscall.EPERM }}.Facts(t.Context())
	if len(f.Unseen) == 0 || f.Firewall.Known {
		t.Errorf("%+v", f)
	}
	if list := preflight.Check(f, preflight.Default()); !slices.ContainsFunc(list, func(x preflight.Finding) bool { return x.Check == "host.unseen" }) {
		t.Errorf("%+v", list)
	}
}

type broken struct{}

func (broken) Read(context.Context, string) (string, error)   { return "", syscall.EIO }
func (broken) Write(context.Context, string, string) error    { return syscall.EIO }
func (broken) List(context.Context, string) ([]string, error) { return nil, syscall.EIO }
func (broken) Link(context.Context, string) (string, error)   { return "", syscall.EIO }

func TestFirewall(t *testing.T) {
	answer := func(nft string, err error) preflight.Firewall {
		h := Host{Sys: example(t, "igb"), Root: root(), Run: func(_ context.Context, program string, _ ...string) (string, error) {
			if program == "nft" {
				return nft, err
			}
			return "", fs.ErrNotExist
		}}
		return h.Facts(t.Context()).Firewall
	}
	if f := answer("table inet f {\n\tudp dport { 53, 4791 } drop\n}", nil); !f.Known || len(f.Drops) != 1 {
		t.Errorf("%+v", f)
	}
	if f := answer("", nil); !f.Known || len(f.Drops) != 0 {
		t.Errorf("%+v", f)
	}
	if f := answer("", errors.New("Operation not permitted")); f.Known {
		t.Errorf("%+v", f)
	}
}

func TestDrops(t *testing.T) {
	for line, want := range map[string]int{
		"udp dport 4791 drop": 1, "udp dport 4791 accept": 0, "tcp dport 4791 drop": 0, "udp dport 4000-5000 reject": 1,
		"-A INPUT -p udp -m udp --dport 4791 -j DROP": 1, "udp dport 14791 drop": 0, "udp dport 53 drop": 0, "meta l4proto udp th dport { 4790-4792 } drop": 1,
	} {
		if got := drops(line); len(got) != want {
			t.Errorf("%q: %q", line, got)
		}
	}
}

func TestGID(t *testing.T) {
	for text, want := range map[string]string{
		"0000:0000:0000:0000:0000:ffff:0a00:0007": "10.0.0.7",
		"fe80:0000:0000:0000:ba3f:d2ff:fe9a:1ef0": "fe80::ba3f:d2ff:fe9a:1ef0",
		"0000:0000:0000:0000:0000:0000:0000:0000": "",
		"N/A (no PMA)": "", "": "", "10.0.0.7": "",
	} {
		a, ok := parseGID(text)
		if ok != (want != "") || ok && a != netip.MustParseAddr(want) {
			t.Errorf("%q: %v %v", text, a, ok)
		}
	}
}

func FuzzTexts(f *testing.F) {
	f.Add("udp dport { 53, 4000-5000 } drop", "0000:0000:0000:0000:0000:ffff:0a00:0007", "8.0 GT/s PCIe")
	f.Fuzz(func(t *testing.T, rules, gid, speed string) {
		if got := drops(rules); len(got) > strings.Count(rules, "\n")+1 {
			t.Errorf("%d rules in %q", len(got), rules)
		}
		if a, ok := parseGID(gid); ok != a.IsValid() {
			t.Errorf("%q: %v %v", gid, a, ok)
		}
		if v := gts(speed); v < 0 || v > 1024 || v != v {
			t.Errorf("%q: %v", speed, v)
		}
	})
}

// BenchmarkFacts is the whole look at a host of 8 ports with 64 VFs each, beside the reading of the same trees'
// minimum, one attribute for each function.
func BenchmarkFacts(b *testing.B) {
	k, err := sysfstest.New(sysfstest.Large())
	if err != nil {
		b.Fatal(err)
	}
	names, err := k.List(b.Context(), pciDevices)
	if err != nil {
		b.Fatal(err)
	}
	for _, n := range names {
		if err := k.Write(b.Context(), pciDevices+"/"+n+"/sriov_numvfs", "64"); err != nil && !sysfs.Absent(err) {
			b.Fatal(err)
		}
	}
	k.Settle()
	h := Host{Sys: k, Root: root(), DCB: ports{err: syscall.EOPNOTSUPP}}
	b.Run("preflight", func(b *testing.B) {
		for b.Loop() {
			preflight.Check(h.Facts(b.Context()), preflight.Default())
		}
	})
	b.Run("baseline", func(b *testing.B) {
		for b.Loop() {
			names, err := k.List(b.Context(), pciDevices)
			if err != nil {
				b.Fatal(err)
			}
			for _, n := range names {
				if _, err := k.Read(b.Context(), pciDevices+"/"+n+"/class"); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}
