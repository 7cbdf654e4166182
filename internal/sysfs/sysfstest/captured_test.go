package sysfstest_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-cloud/verbena/internal/sysfs"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
)

var update = flag.Bool("update", false, "write the golden files anew")

func example(t *testing.T, driver string) sysfs.Tree {
	t.Helper()
	text, err := sysfstest.Example(driver)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := sysfstest.Captured(text)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// TestExamples reads each example card through the paths that an inventory takes.
func TestExamples(t *testing.T) {
	for _, driver := range []string{"mlx5_core", "bnxt_en", "ice", "igb"} {
		t.Run(driver, func(t *testing.T) {
			got := inventory(t.Context(), example(t, driver))
			golden := filepath.Join("testdata", driver+".golden")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// inventory prints what a tree says of its PCI functions and RDMA devices.
func inventory(ctx context.Context, tree sysfs.Tree) string {
	var b strings.Builder
	read := func(path string) string {
		s, err := tree.Read(ctx, path)
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			return "(" + errno.Error() + ")"
		}
		return s
	}
	link := func(path string) string {
		s, err := tree.Link(ctx, path)
		if err != nil {
			return "-"
		}
		return s
	}
	names := func(path string) []string {
		s, err := tree.List(ctx, path)
		if err != nil {
			return nil
		}
		slices.SortFunc(s, sysfs.Numeric)
		return s
	}
	for _, bdf := range names("bus/pci/devices") {
		d := "bus/pci/devices/" + bdf
		fmt.Fprintf(&b, "%s %s:%s driver %s override %s group %s numa %s physfn %s numvfs %s\n", bdf, read(d+"/vendor"), read(d+"/device"),
			link(d+"/driver"), read(d+"/driver_override"), link(d+"/iommu_group"), read(d+"/numa_node"), link(d+"/physfn"), read(d+"/sriov_numvfs"))
		for _, n := range names(d) {
			if strings.HasPrefix(n, "virtfn") {
				fmt.Fprintf(&b, "  %s %s\n", n, link(d+"/"+n))
			}
		}
		for _, n := range names(d + "/net") {
			c := "class/net/" + n
			fmt.Fprintf(&b, "  net %s of %s: %s port %s %s speed %s carrier %s mtu %s\n", n, link(c+"/device"), read(c+"/address"), read(c+"/dev_port"), read(c+"/phys_port_name"), read(c+"/speed"), read(c+"/carrier"), read(c+"/mtu"))
		}
		for _, n := range names(d + "/infiniband") {
			c := "class/infiniband/" + n
			fmt.Fprintf(&b, "  rdma %s: guid %s image %s fw %s %s %q\n", n, read(c+"/node_guid"), read(c+"/sys_image_guid"), read(c+"/fw_ver"), read(c+"/ports/1/state"), read(c+"/ports/1/rate"))
			for _, g := range names(c + "/ports/1/gids") {
				fmt.Fprintf(&b, "    gid %s %s %s\n", g, read(c+"/ports/1/gids/"+g), read(c+"/ports/1/gid_attrs/types/"+g))
			}
			for _, g := range append(names(c+"/ports/1/counters"), names(c+"/ports/1/hw_counters")...) {
				fmt.Fprintf(&b, "    %q\n", g)
			}
		}
	}
	for _, u := range names("class/infiniband_verbs") {
		fmt.Fprintf(&b, "%s %s abi %s\n", u, read("class/infiniband_verbs/"+u+"/ibdev"), read("class/infiniband_verbs/"+u+"/abi_version"))
	}
	fmt.Fprintf(&b, "vfio %v\n", names("class/vfio"))
	return b.String()
}

// TestCapturedIsReadOnly: what was captured is past.
func TestCapturedIsReadOnly(t *testing.T) {
	tree := example(t, "igb")
	if err := tree.Write(t.Context(), igb+"/sriov_numvfs", "4"); !errors.Is(err, syscall.EROFS) {
		t.Errorf("err = %v", err)
	}
	if err := tree.Write(t.Context(), igb+"/none", "4"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("err = %v", err)
	}
	if _, err := tree.Read(t.Context(), igb+"/virtfn0/sriov_vf_msix_count"); !errors.Is(err, syscall.EACCES) {
		t.Errorf("err = %v", err)
	}
	if _, err := sysfstest.Example("qede"); err == nil {
		t.Error("an example of qede?")
	}
}

func TestBadCapture(t *testing.T) {
	for what, text := range map[string]string{
		"prose":                "a host",
		"dangling link":        "a -> b\n",
		"circle":               "a -> c\nd = 1\nc -> a\n",
		"path outside":         "../a = 1\n",
		"attribute below one":  "a = 1\na/b = 2\n",
		"directory as link":    "a/b = 1\nc = 1\na -> c\n",
		"attribute below link": "c/d = 1\na -> c\na/b -> c\n",
		"absolute":             "/a = 1\n",
		"file outside":         "-- ../x --\n1\n",
		"link leading outside": "a -> ../../etc\n",
	} {
		if _, err := sysfstest.Captured(text); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

// FuzzCaptured: whatever an archive says, it becomes a tree whose every listing can be read, or an error.
func FuzzCaptured(f *testing.F) {
	for _, d := range []string{"igb", "ice"} {
		text, err := sysfstest.Example(d)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add("a -> b\nb/c = 1\n-- d --\n!EINVAL\n")
	f.Fuzz(func(t *testing.T, text string) {
		tree, err := sysfstest.Captured(text)
		if err != nil {
			return
		}
		seen := 0
		var visit func(dir string)
		visit = func(dir string) {
			names, err := tree.List(t.Context(), dir)
			if err != nil {
				t.Fatalf("list %q: %v", dir, err)
			}
			for _, n := range names {
				if seen++; seen > 1000 {
					return
				}
				path := dir + "/" + n
				if _, err := tree.Link(t.Context(), path); err == nil {
					continue
				}
				if _, err := tree.Read(t.Context(), path); errors.Is(err, syscall.EISDIR) {
					visit(path)
				}
			}
		}
		visit(".")
	})
}
