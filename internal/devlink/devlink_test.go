package devlink_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/verbena-cloud/verbena/internal/devlink"
)

func TestInfo(t *testing.T) {
	mlx5 := devlink.Info{
		Fixed:   map[string]string{"fw.psid": "MT_0000000359"},
		Running: map[string]string{"fw.version": "22.31.1014", "fw": "22.31.1014"},
		Stored:  map[string]string{"fw.version": "22.35.1012", "fw": "22.35.1012", "other": "1"},
	}
	if mlx5.Firmware() != "22.31.1014" || mlx5.Board() != "MT_0000000359" {
		t.Errorf("%q %q", mlx5.Firmware(), mlx5.Board())
	}
	want := []devlink.Change{{Name: "fw", Running: "22.31.1014", Stored: "22.35.1012"}, {Name: "fw.version", Running: "22.31.1014", Stored: "22.35.1012"}}
	if diff := cmp.Diff(want, mlx5.Pending()); diff != "" {
		t.Error(diff)
	}
	if got := want[0].String(); got != "fw 22.31.1014 → 22.35.1012" {
		t.Error(got)
	}
	for want, running := range map[string]map[string]string{"": nil, "7.2": {"fw.mgmt": "7.2"}, "231.0.153.0": {"fw": "231.0.153.0", "fw.mgmt": "231.0.1"}} {
		if got := (devlink.Info{Running: running}).Firmware(); got != want {
			t.Errorf("%v: %q", running, got)
		}
	}
	if got := (devlink.Info{}).Pending(); got != nil {
		t.Errorf("%v", got)
	}
}

// TestT21_StoredFirmware: what runs after the next reset is told for each part that both sides name, whatever else is
// there; a part that is the same, or that one side does not know, waits for nothing.
func TestT21_StoredFirmware(t *testing.T) {
	i := devlink.Info{
		Fixed:   map[string]string{"board.id": "x"},
		Running: map[string]string{"fw": "1", "fw.mgmt": "7", "fw.undi": ""},
		Stored:  map[string]string{"fw": "2", "fw.mgmt": "7", "fw.bundle_id": "0x1"},
	}
	if got := i.Pending(); len(got) != 1 || got[0].String() != "fw 1 → 2" {
		t.Errorf("%v", got)
	}
}

func TestWords(t *testing.T) {
	for want, got := range map[string]fmt.Stringer{
		"pci/0000:3b:00.0": devlink.PCI("0000:3b:00.0"), "legacy": devlink.Legacy, "switchdev": devlink.Switchdev, "mode-7": devlink.Mode(7),
		"none": devlink.InlineNone, "link": devlink.InlineLink, "network": devlink.InlineNetwork, "transport": devlink.InlineTransport, "inline-9": devlink.Inline(9),
	} {
		if got.String() != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestAbsent(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{fmt.Errorf("x: %w", devlink.ErrAbsent), true}, {fmt.Errorf("x: %w", syscall.EOPNOTSUPP), true}, {syscall.ENODEV, true},
		{syscall.ENOENT, false}, {syscall.EPERM, false}, {syscall.EINVAL, false}, {errors.New("x"), false}, {nil, false},
	} {
		if got := devlink.Absent(c.err); got != c.want {
			t.Errorf("%v: %v", c.err, got)
		}
	}
}
