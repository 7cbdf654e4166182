package sysfstest_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/verbena-cloud/verbena/internal/rtnl"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
)

// TestStatistics: each VF counts for itself, drivers that do not count show zeros, and counters go with their VFs.
func TestStatistics(t *testing.T) {
	for driver, counts := range map[string]bool{"mlx5_core": true, "ice": true, "bnxt_en": false, "igb": false} {
		cfg := sysfstest.Host(1, 1, 4)
		cfg.Cards[0].Driver = driver
		h := boot(t, cfg)
		h.make(2)
		if s, err := h.VFStats(t.Context(), link0); err != nil || len(s) != 2 || s[1].Index != 1 || s[1].RxBytes != 0 || s[1].RxDropped == nil {
			t.Fatalf("%s: %+v, %v", driver, s, err)
		}
		state := h.park(1)
		if err := h.OpenVFIO(state.PCI, 77); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := h.Count(mlx0, 1, rtnl.VFStats{Index: 7, RxPackets: 10, RxBytes: 40960, TxPackets: 3, TxBytes: 192, Multicast: 1, TxDropped: new(uint64(5))}); err != nil {
				t.Fatal(err)
			}
		}
		want := []rtnl.VFStats{{RxDropped: new(uint64), TxDropped: new(uint64)}, {Index: 1, RxDropped: new(uint64), TxDropped: new(uint64)}}
		if counts {
			want[1] = rtnl.VFStats{Index: 1, RxPackets: 21, RxBytes: 81984, TxPackets: 6, TxBytes: 384, Multicast: 2, RxDropped: new(uint64), TxDropped: new(uint64(10))}
		}
		h.CloseVFIO(77)
		got, err := h.VFStats(t.Context(), link0)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", driver, err, diff)
		}
		if counts { // what was told does not change later
			*got[1].TxDropped = 0
			if s, _ := h.VFStats(t.Context(), link0); *s[1].TxDropped != 10 {
				t.Errorf("%s: %+v", driver, s[1])
			}
		}
		h.write(dev0+"/sriov_numvfs", "0")
		h.make(2)
		if s, err := h.VFStats(t.Context(), link0); err != nil || s[1].RxPackets != 0 {
			t.Errorf("%s: %+v, %v", driver, s, err)
		}
	}
}

// TestNoStatistics: of links that have no VFs, or are none.
func TestNoStatistics(t *testing.T) {
	h := mlx5(t)
	if s, err := h.VFStats(t.Context(), link0); err != nil || len(s) != 0 {
		t.Errorf("%v, %v", s, err)
	}
	if _, err := h.VFStats(t.Context(), "none"); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("%v", err)
	}
	h.Break("rtnl/"+link0, syscall.EMSGSIZE)
	if _, err := h.VFStats(t.Context(), link0); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("%v", err)
	}
	for _, i := range []int{-1, 0} {
		if err := h.Count(mlx0, i, rtnl.VFStats{}); !errors.Is(err, syscall.ENODEV) {
			t.Errorf("VF %d: %v", i, err)
		}
	}
	if err := h.Count("0000:ff:00.0", 0, rtnl.VFStats{}); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("%v", err)
	}
}
