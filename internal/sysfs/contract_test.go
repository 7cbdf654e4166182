package sysfs_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/sysfs"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
)

const pf = "bus/pci/devices/0000:81:00.0"

// trees returns one igb host as every kind of Tree has it: simulated, as files in a directory, captured.
func trees(t *testing.T) map[string]sysfs.Tree {
	t.Helper()
	k, err := sysfstest.New(sysfstest.IGB())
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Hand(pf+"/sriov_numvfs", "4"); err != nil {
		t.Fatal(err)
	}
	k.Settle()
	text := k.Capture()
	c, err := sysfstest.Captured(text)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := sysfstest.Extract(text, root); err != nil {
		t.Fatal(err)
	}
	d, err := sysfs.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	old, err := sysfs.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	old.Plain()
	t.Cleanup(func() { d.Close(); old.Close() })
	return map[string]sysfs.Tree{"simulated": k, "captured": c, "directory": d, "directory on an old kernel": old}
}

// TestContract: the reading half of Tree is the same whatever is behind it.
func TestContract(t *testing.T) {
	for name, tree := range trees(t) {
		t.Run(name, func(t *testing.T) { contract(t, tree) })
	}
}

func contract(t *testing.T, tree sysfs.Tree) {
	ctx := t.Context()
	for path, want := range map[string]string{
		pf + "/vendor":                              "0x8086",
		pf + "/sriov_numvfs":                        "4",
		pf + "/virtfn1/physfn/sriov_totalvfs":       "7",
		"class/net/ens1/device/numa_node":           "1",
		"class/net/ens1/device/virtfn3/device":      "0x10ca",
		"devices/system/node/node1/cpulist":         "1",
		pf + "/../0000:81:00.0/net/ens1/address":    "52:54:00:00:01:01",
		"bus/pci/drivers/igb/0000:81:00.0/revision": "0x00",
	} {
		if got, err := tree.Read(ctx, path); err != nil || got != want {
			t.Errorf("read %s = %q, %v, want %q", path, got, err, want)
		}
	}
	for path, want := range map[string]string{
		pf + "/driver":              "igb",
		pf + "/virtfn2":             "0000:81:10.4",
		pf + "/virtfn2/physfn":      "0000:81:00.0",
		pf + "/virtfn2/iommu_group": "10",
		"class/net/ens1":            "ens1",
	} {
		if got, err := tree.Link(ctx, path); err != nil || got != want {
			t.Errorf("link %s = %q, %v, want %q", path, got, err, want)
		}
	}
	for path, want := range map[string]string{
		"class/net": "ens1 ens1v0 ens1v1 ens1v2 ens1v3 lo", "kernel/iommu_groups/8/devices": "0000:81:10.0", pf + "/net": "ens1",
		"bus/pci/drivers": "igb igbvf", "bus/pci/devices": "0000:80:00.0 0000:81:00.0 0000:81:10.0 0000:81:10.2 0000:81:10.4 0000:81:10.6",
	} {
		if got, err := tree.List(ctx, path); err != nil || strings.Join(got, " ") != want {
			t.Errorf("list %s = %v, %v, want %s", path, got, err, want)
		}
	}
	refusals(t, tree)
}

func refusals(t *testing.T, tree sysfs.Tree) {
	ctx := t.Context()
	read := func(path string) error { _, err := tree.Read(ctx, path); return err }
	list := func(path string) error { _, err := tree.List(ctx, path); return err }
	link := func(path string) error { _, err := tree.Link(ctx, path); return err }
	for _, c := range []struct {
		what string
		err  error
		want error
	}{
		{"read a missing attribute", read(pf + "/vpd"), syscall.ENOENT},
		{"read below a missing device", read("bus/pci/devices/0000:99:00.0/vendor"), syscall.ENOENT},
		{"read a directory", read("class/net"), syscall.EISDIR},
		{"read below an attribute", read(pf + "/vendor/x"), syscall.ENOTDIR},
		{"read outside", read("../etc/passwd"), syscall.EXDEV},
		{"read an absolute path", read("/etc/passwd"), syscall.EXDEV},
		{"list a missing directory", list("class/nvme"), syscall.ENOENT},
		{"list an attribute", list(pf + "/vendor"), syscall.ENOTDIR},
		{"link that is none", link(pf + "/vendor"), syscall.EINVAL},
		{"link that is missing", link(pf + "/virtfn4"), syscall.ENOENT},
		{"write a missing attribute", tree.Write(ctx, pf+"/sriov_numvf", "0"), syscall.ENOENT},
	} {
		if _, ok := errors.AsType[*fs.PathError](c.err); !errors.Is(c.err, c.want) || !ok {
			t.Errorf("%s: %v, want a path error with %v", c.what, c.err, c.want)
		}
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := tree.Read(ended, pf+"/vendor"); !fault.Is(err, fault.Deadline) || !strings.Contains(err.Error(), pf+"/vendor") {
		t.Errorf("read without time: %v, want a deadline that names the path", err)
	}
	if err := tree.Write(ended, pf+"/sriov_numvfs", "0"); !fault.Is(err, fault.Deadline) {
		t.Errorf("write without time: %v, want a deadline", err)
	}
}

// open returns a Dir on a new directory with the given files, and its path.
func open(t *testing.T, files map[string]string) (*sysfs.Dir, string) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "sys")
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d, err := sysfs.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d, root
}

// TestDirEscape: neither a path nor a link in the tree leads out of it.
func TestDirEscape(t *testing.T) {
	for _, old := range []bool{false, true} {
		escape(t, old)
	}
}

func escape(t *testing.T, old bool) {
	d, root := open(t, map[string]string{"a/mtu": "1500\n"})
	if old {
		d.Plain()
	}
	secret := filepath.Join(filepath.Dir(root), "secret")
	if err := os.WriteFile(secret, []byte("s"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"abs": secret, "up": "../secret", "deep": "a/../../secret", "dir": ".."} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"abs", "up", "deep", "dir/secret", "../secret", "a/../../secret"} {
		if s, err := d.Read(t.Context(), path); !errors.Is(err, syscall.EXDEV) {
			t.Errorf("read %s = %q, %v, want EXDEV", path, s, err)
		}
		if err := d.Write(t.Context(), path, "x"); !errors.Is(err, syscall.EXDEV) {
			t.Errorf("write %s: %v, want EXDEV", path, err)
		}
	}
	if got, err := d.Link(t.Context(), "up"); err != nil || got != "secret" {
		t.Errorf("link up = %q, %v: a link may be looked at", got, err)
	}
	if b, _ := os.ReadFile(secret); string(b) != "s" {
		t.Errorf("the file outside is now %q", b)
	}
}

// TestDirWrite: a write changes an attribute and never makes or truncates a file.
func TestDirWrite(t *testing.T) {
	d, root := open(t, map[string]string{"numvfs": "0123456789"})
	if err := d.Write(t.Context(), "numvfs", "7"); err != nil {
		t.Fatal(err)
	}
	if got, err := d.Read(t.Context(), "numvfs"); err != nil || got != "7123456789" {
		t.Fatalf("read %q, %v", got, err)
	}
	if err := d.Write(t.Context(), "other", "7"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("write of a missing file: %v", err)
	}
	if names, _ := os.ReadDir(root); len(names) != 1 {
		t.Fatalf("the directory now has %v", names)
	}
}

// TestDirPage: a page is read whole, more than a page is an error and not half an answer.
func TestDirPage(t *testing.T) {
	d, _ := open(t, map[string]string{"page": strings.Repeat("x", 4096), "more": strings.Repeat("x", 4097), "empty": ""})
	if s, err := d.Read(t.Context(), "page"); err != nil || len(s) != 4096 {
		t.Fatalf("%d bytes, %v", len(s), err)
	}
	if s, err := d.Read(t.Context(), "more"); !errors.Is(err, syscall.EFBIG) {
		t.Fatalf("%d bytes, %v, want EFBIG", len(s), err)
	}
	if s, err := d.Read(t.Context(), "empty"); err != nil || s != "" {
		t.Fatalf("%q, %v", s, err)
	}
}

// TestT02_DirHangingWrite: a kernel call that does not return (here: opening a FIFO that nobody reads) costs
// its caller the deadline; nobody else is let at the path until it returns, other paths go on.
func TestT02_DirHangingWrite(t *testing.T) {
	d, root := open(t, map[string]string{"pf1/sriov_numvfs": "0", "pf0/vendor": "0x8086"})
	fifo := filepath.Join(root, "pf0/sriov_numvfs")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- d.Write(ctx, "pf0/sriov_numvfs", "4") }()
	cancel()
	err := <-result
	if !fault.Is(err, fault.Deadline) || !strings.Contains(err.Error(), "pf0/sriov_numvfs") {
		t.Fatalf("err = %v, want a deadline that names the path", err)
	}
	stuck := d.Stuck()
	if len(stuck) == 0 { // the context had ended before the call began: begin one that hangs for sure
		stuck = hang(t, d, "pf0/sriov_numvfs")
	}
	if !slices.Equal(stuck, []string{"pf0/sriov_numvfs"}) {
		t.Fatalf("stuck %v", stuck)
	}
	if err := d.Write(t.Context(), "pf0/sriov_numvfs", "0"); !fault.Is(err, fault.Deadline) || !strings.Contains(err.Error(), "earlier call") {
		t.Fatalf("a second writer: %v", err)
	}
	if _, err := d.Read(t.Context(), "pf0/sriov_numvfs"); !fault.Is(err, fault.Deadline) {
		t.Fatalf("a reader: %v", err)
	}
	if err := d.Write(t.Context(), "pf1/sriov_numvfs", "4"); err != nil {
		t.Fatalf("another PF: %v", err)
	}
	f, err := os.OpenFile(fifo, os.O_RDONLY, 0) // the kernel answers at last
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 8)
	if n, err := f.Read(buf); err != nil || string(buf[:n]) != "4" {
		t.Fatalf("what hung wrote %q, %v", buf[:n], err)
	}
	for len(d.Stuck()) > 0 { // the call returns by itself now
		f.Read(buf)
	}
}

// hang begins a write at a FIFO and gives it up once it is in the kernel.
func hang(t *testing.T, d *sysfs.Dir, path string) []string {
	t.Helper()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 1e6)
		err := d.Write(ctx, path, "4")
		cancel()
		if !fault.Is(err, fault.Deadline) {
			t.Fatalf("err = %v", err)
		}
		if s := d.Stuck(); len(s) > 0 {
			return s
		}
	}
}

func TestDirMissingRoot(t *testing.T) {
	if _, err := sysfs.Open(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("err = %v", err)
	}
}

// TestDirHost reads the machine that the test runs on.
func TestDirHost(t *testing.T) {
	d, err := sysfs.Open("/sys")
	if err != nil {
		t.Skip("no /sys here")
	}
	defer d.Close()
	if _, err := os.Stat("/sys/class/net/lo"); err != nil {
		t.Skip("no netdev lo here")
	}
	if got, err := d.Read(t.Context(), "class/net/lo/mtu"); err != nil || got == "" {
		t.Fatalf("mtu %q, %v", got, err)
	}
	if got, err := d.Read(t.Context(), "class/net/lo/speed"); !sysfs.Absent(err) {
		t.Fatalf("speed %q, %v: lo has none", got, err)
	}
	if err := d.Write(t.Context(), "class/net/lo/speed", "1"); !errors.Is(err, syscall.EACCES) && !errors.Is(err, syscall.EROFS) {
		t.Fatalf("write of a read-only attribute: %v", err)
	}
}

// BenchmarkRead is one attribute through the links of a tree, on files and in the simulated kernel; the
// baseline opens the same file by its plain path.
func BenchmarkRead(b *testing.B) {
	k, err := sysfstest.New(sysfstest.IGB())
	if err != nil {
		b.Fatal(err)
	}
	root := b.TempDir()
	if err := sysfstest.Extract(k.Capture(), root); err != nil {
		b.Fatal(err)
	}
	d, err := sysfs.Open(root)
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	for name, tree := range map[string]sysfs.Tree{"directory": d, "simulated": k} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := tree.Read(b.Context(), pf+"/vendor"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("baseline", func(b *testing.B) {
		for b.Loop() {
			if _, err := os.ReadFile(filepath.Join(root, pf, "vendor")); err != nil {
				b.Fatal(err)
			}
		}
	})
}
