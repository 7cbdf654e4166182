package sysfstest_test

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/verbena-cloud/verbena/internal/rtnl"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
)

// TestInvariants: whatever is written, in whatever order, the tree never contradicts itself.
func TestInvariants(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		k, err := sysfstest.New(sysfstest.Host(1, 1, 3))
		if err != nil {
			rt.Fatal(err)
		}
		pid := 0
		vf := func() string {
			return fmt.Sprintf("0000:18:0%d.%d", rapid.IntRange(0, 1).Draw(rt, "slot"), rapid.IntRange(0, 7).Draw(rt, "fn"))
		}
		pf := func() string { return rapid.SampledFrom([]string{mlx0, mlx1}).Draw(rt, "pf") }
		rt.Repeat(map[string]func(*rapid.T){
			"numvfs": func(rt *rapid.T) {
				p := "bus/pci/devices/" + pf() + "/sriov_numvfs"
				if held(t, k) { // would hang
					return
				}
				allowed(rt, k.Write(t.Context(), p, strconv.Itoa(rapid.IntRange(0, 4).Draw(rt, "n"))), syscall.EBUSY, syscall.ERANGE, syscall.ENOENT)
			},
			"autoprobe": func(rt *rapid.T) {
				allowed(rt, k.Write(t.Context(), "bus/pci/devices/"+pf()+"/sriov_drivers_autoprobe", rapid.SampledFrom([]string{"0", "1"}).Draw(rt, "on")))
			},
			"override": func(rt *rapid.T) {
				allowed(rt, k.Write(t.Context(), "bus/pci/devices/"+vf()+"/driver_override", rapid.SampledFrom([]string{"vfio-pci", "mlx5_core", "none", "\n"}).Draw(rt, "driver")), syscall.ENOENT)
			},
			"probe": func(rt *rapid.T) {
				allowed(rt, k.Write(t.Context(), "bus/pci/drivers_probe", vf()), syscall.ENODEV)
			},
			"bind": func(rt *rapid.T) {
				d := rapid.SampledFrom([]string{"vfio-pci", "mlx5_core"}).Draw(rt, "driver")
				allowed(rt, k.Write(t.Context(), "bus/pci/drivers/"+d+"/bind", vf()), syscall.ENODEV, syscall.EBUSY, syscall.ENOENT)
			},
			"unbind": func(rt *rapid.T) {
				if held(t, k) {
					return
				}
				d := rapid.SampledFrom([]string{"vfio-pci", "mlx5_core"}).Draw(rt, "driver")
				allowed(rt, k.Write(t.Context(), "bus/pci/drivers/"+d+"/unbind", vf()), syscall.ENODEV, syscall.ENOENT)
			},
			"modprobe": func(rt *rapid.T) { allowed(rt, k.Modprobe(t.Context(), "vfio-pci")) },
			"open": func(rt *rapid.T) {
				pid++
				allowed(rt, k.OpenVFIO(vf(), pid), syscall.ENODEV, syscall.ENOENT, syscall.EBUSY)
			},
			"close":  func(*rapid.T) { k.CloseVFIO(pid) },
			"reboot": func(rt *rapid.T) { allowed(rt, k.Reboot()) },
			"set": func(rt *rapid.T) {
				allowed(rt, k.SetVF(t.Context(), link0, rapid.IntRange(0, 3).Draw(rt, "vf"), rtnl.VLAN{ID: rapid.IntRange(0, 4096).Draw(rt, "vlan")}), syscall.EINVAL, syscall.ENODEV)
			},
			"": func(rt *rapid.T) { consistent(t, rt, k) },
		})
	})
}

func held(t *testing.T, k *sysfstest.Kernel) bool {
	h, err := k.Holders(t.Context())
	return err != nil || len(h) > 0
}

func allowed(rt *rapid.T, err error, errnos ...syscall.Errno) {
	rt.Helper()
	if err != nil && !slices.ContainsFunc(errnos, func(e syscall.Errno) bool { return errors.Is(err, e) }) {
		rt.Fatalf("unexpected: %v", err)
	}
}

// consistent checks that every view of the functions says the same.
func consistent(t *testing.T, rt *rapid.T, k *sysfstest.Kernel) {
	ctx := t.Context()
	must := func(s []string, err error) []string {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			rt.Fatal(err)
		}
		return s
	}
	bound := map[string]string{}
	for _, d := range must(k.List(ctx, "bus/pci/drivers")) {
		for _, n := range must(k.List(ctx, "bus/pci/drivers/"+d)) {
			if strings.HasPrefix(n, "0000:") {
				if other := bound[n]; other != "" {
					rt.Fatalf("%s is bound to %s and %s", n, other, d)
				}
				bound[n] = d
			}
		}
	}
	groups := map[string]bool{}
	devices := must(k.List(ctx, "bus/pci/devices"))
	for _, bdf := range devices {
		d, err := k.Link(ctx, "bus/pci/devices/"+bdf+"/driver")
		if err == nil && bound[bdf] != d || err != nil && bound[bdf] != "" {
			rt.Fatalf("%s has driver %q, the drivers say %q", bdf, d, bound[bdf])
		}
		delete(bound, bdf)
		g, err := k.Link(ctx, "bus/pci/devices/"+bdf+"/iommu_group")
		if err != nil || groups[g] {
			rt.Fatalf("%s has group %q, %v", bdf, g, err)
		}
		groups[g] = true
		if _, err := k.Read(ctx, "class/vfio/"+g+"/dev"); (err == nil) != (d == "vfio-pci") {
			rt.Fatalf("%s is on %q, its node: %v", bdf, d, err)
		}
	}
	if len(bound) > 0 || len(groups) != len(must(k.List(ctx, "kernel/iommu_groups"))) {
		rt.Fatalf("left over: %v, groups %v", bound, groups)
	}
	for _, n := range must(k.List(ctx, "class/net")) {
		if _, err := k.Read(ctx, "class/net/"+n+"/address"); err != nil {
			rt.Fatal(err)
		}
	}
	for _, pci := range []string{mlx0, mlx1} {
		n, err := k.Read(ctx, "bus/pci/devices/"+pci+"/sriov_numvfs")
		if err != nil {
			rt.Fatal(err)
		}
		links := slices.DeleteFunc(must(k.List(ctx, "bus/pci/devices/"+pci)), func(s string) bool { return !strings.HasPrefix(s, "virtfn") })
		if strconv.Itoa(len(links)) != n {
			rt.Fatalf("%s has %s VFs and links %v", pci, n, links)
		}
		for _, l := range links {
			if to, err := k.Link(ctx, "bus/pci/devices/"+pci+"/"+l+"/physfn"); err != nil || to != pci {
				rt.Fatalf("%s of %s leads back to %q, %v", l, pci, to, err)
			}
		}
	}
}

// TestConcurrent: the race detector watches many processes at once.
func TestConcurrent(t *testing.T) {
	k, err := sysfstest.New(sysfstest.Host(1, 2, 16))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			dev := fmt.Sprintf("bus/pci/devices/0000:%02x:00.%d", 0x18+0x10*(i/2%2), i%2)
			for n := range 50 {
				k.Write(t.Context(), dev+"/sriov_numvfs", strconv.Itoa(n%2*4))
				k.List(t.Context(), dev)
				k.Read(t.Context(), dev+"/virtfn0/vendor")
				k.SetVF(t.Context(), link0, n%4, rtnl.VLAN{ID: n})
				k.VFs(t.Context(), link0)
				k.Settle()
			}
		})
	}
	wg.Wait()
}

// BenchmarkLarge makes and removes all VFs of a large host.
func BenchmarkLarge(b *testing.B) {
	k, err := sysfstest.New(sysfstest.Large())
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		for i := range 8 {
			dev := fmt.Sprintf("bus/pci/devices/0000:%02x:00.%d", 0x18+0x10*(i/2), i%2)
			for _, n := range []string{"64", "0"} {
				if err := k.Write(b.Context(), dev+"/sriov_numvfs", n); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
}
