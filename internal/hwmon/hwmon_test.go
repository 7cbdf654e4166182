package hwmon_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/verbena-cloud/verbena/internal/hwmon"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/sysfs"
)

func ptr(v int) *int { return &v }

// broken is a tree of which some files answer with an errno.
type broken struct {
	sysfs.Tree
	files map[string]syscall.Errno
	meet  func()
}

func (b broken) Read(ctx context.Context, path string) (string, error) {
	if errno, ok := b.files[filepath.Base(path)]; ok {
		return "", &fs.PathError{Op: "read", Path: path, Err: errno}
	}
	if b.meet != nil {
		b.meet()
	}
	return b.Tree.Read(ctx, path)
}

// tree has files below the device 0000:3b:00.0, made as a host has them: the device is a link.
func tree(t *testing.T, files map[string]string) sysfs.Tree {
	t.Helper()
	root := t.TempDir()
	dev := filepath.Join(root, "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0")
	if err := os.MkdirAll(dev, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dev, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dev, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	bus := filepath.Join(root, "bus/pci/devices")
	if err := os.MkdirAll(bus, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0", filepath.Join(bus, "0000:3b:00.0")); err != nil {
		t.Fatal(err)
	}
	d, err := sysfs.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func nic(t *testing.T) roce.PCIAddr {
	t.Helper()
	a, err := roce.ParsePCI("0000:3b:00.0")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// mlx5 has the files that drivers/net/ethernet/mellanox/mlx5/core/hwmon.c makes.
func mlx5() map[string]string {
	return map[string]string{
		"hwmon/hwmon4/name":                "mlx5\n",
		"hwmon/hwmon4/temp1_input":         "56000\n",
		"hwmon/hwmon4/temp1_highest":       "61000\n",
		"hwmon/hwmon4/temp1_crit":          "105000\n",
		"hwmon/hwmon4/temp1_label":         "asic\n",
		"hwmon/hwmon4/temp1_reset_history": "",
		"hwmon/hwmon4/temp10_input":        "-1500\n",
		"hwmon/hwmon4/temp10_label":        "Module0\n",
		"hwmon/hwmon4/temp2_input":         "48000\n",
		"hwmon/hwmon4/in1_input":           "12000\n",
		"hwmon/hwmon4/temp_input":          "1\n",
		"hwmon/hwmon4/temp03_input":        "1\n",
		"hwmon/hwmon4/uevent":              "",
	}
}

func TestTemperatures(t *testing.T) {
	got, problems, err := hwmon.Temperatures(t.Context(), tree(t, mlx5()), nic(t))
	if err != nil || len(problems) != 0 {
		t.Fatal(problems, err)
	}
	want := []hwmon.Sensor{
		{Chip: "mlx5", Index: 1, Label: "asic", Now: 56000, Critical: ptr(105000), Highest: ptr(61000)},
		{Chip: "mlx5", Index: 2, Now: 48000},
		{Chip: "mlx5", Index: 10, Label: "Module0", Now: -1500},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sensors (-want +got):\n%s", diff)
	}
}

// TestSeveralChips: they come in the order of their numbers, with every threshold.
func TestSeveralChips(t *testing.T) {
	got, problems, err := hwmon.Temperatures(t.Context(), tree(t, map[string]string{
		"hwmon/hwmon10/name": "ice", "hwmon/hwmon10/temp1_input": "50000",
		"hwmon/hwmon9/name": "bnxt_en", "hwmon/hwmon9/temp1_input": "60000", "hwmon/hwmon9/temp1_max": "85000", "hwmon/hwmon9/temp1_crit": "95000", "hwmon/hwmon9/temp1_emergency": "105000",
		"hwmon/hwmon11/name": "fan",
	}), nic(t))
	if err != nil || len(problems) != 0 {
		t.Fatal(problems, err)
	}
	want := []hwmon.Sensor{
		{Chip: "bnxt_en", Index: 1, Now: 60000, Max: ptr(85000), Critical: ptr(95000), Emergency: ptr(105000)},
		{Chip: "ice", Index: 1, Now: 50000},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sensors (-want +got):\n%s", diff)
	}
}

// TestAbsent: what is not there is no problem.
func TestAbsent(t *testing.T) {
	got, problems, err := hwmon.Temperatures(t.Context(), tree(t, map[string]string{"vendor": "0x15b3"}), nic(t))
	if len(got) != 0 || len(problems) != 0 || err != nil {
		t.Errorf("a device without sensors: %v, %v, %v", got, problems, err)
	}
	other, _ := roce.ParsePCI("0000:3b:00.7")
	if got, problems, err = hwmon.Temperatures(t.Context(), tree(t, nil), other); len(got) != 0 || len(problems) != 0 || err != nil {
		t.Errorf("no device: %v, %v, %v", got, problems, err)
	}
	for _, errno := range []syscall.Errno{syscall.EOPNOTSUPP, syscall.EINVAL, syscall.ENODEV} {
		b := broken{Tree: tree(t, mlx5()), files: map[string]syscall.Errno{"temp2_input": errno, "temp1_crit": errno}}
		got, problems, err = hwmon.Temperatures(t.Context(), b, nic(t))
		if len(got) != 2 || len(problems) != 0 || err != nil || got[0].Critical != nil || got[0].Now != 56000 {
			t.Errorf("%v: %v, %v, %v", errno, got, problems, err)
		}
	}
}

// TestT37_SensorsThatAnswerNonsense: a file that fails, or holds no temperature, costs itself, and is told.
func TestT37_SensorsThatAnswerNonsense(t *testing.T) {
	for file, lost := range map[string]int{"temp1_input": 1, "temp1_crit": 0, "temp1_label": 0, "name": 0} {
		b := broken{Tree: tree(t, mlx5()), files: map[string]syscall.Errno{file: syscall.EIO}}
		got, problems, err := hwmon.Temperatures(t.Context(), b, nic(t))
		if len(got) != 3-lost || err != nil || len(problems) != 1 || !errors.Is(problems[0], syscall.EIO) || !strings.Contains(problems[0].Error(), file) {
			t.Errorf("%s: %v, %v, %v", file, got, problems, err)
		}
	}
	for text, want := range map[string]string{"N/A": "invalid syntax", "": "invalid syntax", "99999999999999999999": "out of range", "2147483647": "not the temperature", "-300000": "not the temperature"} {
		for _, file := range []string{"temp1_input", "temp1_crit"} {
			f := mlx5()
			f["hwmon/hwmon4/"+file] = text
			got, problems, err := hwmon.Temperatures(t.Context(), tree(t, f), nic(t))
			if err != nil || len(problems) != 1 || !strings.Contains(problems[0].Error(), want) || !strings.Contains(problems[0].Error(), file) {
				t.Errorf("%s of %q: %v, %v, %v", file, text, got, problems, err)
			}
		}
	}
}

// TestFault: a sensor that is broken is there, and says so.
func TestFault(t *testing.T) {
	f := map[string]string{"hwmon/hwmon0/name": "x", "hwmon/hwmon0/temp1_input": "2147483647", "hwmon/hwmon0/temp1_fault": "1", "hwmon/hwmon0/temp2_input": "1000", "hwmon/hwmon0/temp2_fault": "0"}
	got, problems, err := hwmon.Temperatures(t.Context(), tree(t, f), nic(t))
	if len(got) != 2 || !got[0].Fault || got[1].Fault || len(problems) != 0 || err != nil {
		t.Errorf("%v, %v, %v", got, problems, err)
	}
	b := broken{Tree: tree(t, f), files: map[string]syscall.Errno{"temp1_input": syscall.EINVAL}}
	if got, _, _ = hwmon.Temperatures(t.Context(), b, nic(t)); len(got) != 2 || !got[0].Fault {
		t.Errorf("without a value: %v", got)
	}
}

// TestBounds: a tree that goes on for ever is not read for ever.
func TestBounds(t *testing.T) {
	f := map[string]string{}
	for i := range 300 {
		f[fmt.Sprintf("hwmon/hwmon0/temp%d_input", i+1)] = "1000"
	}
	got, problems, err := hwmon.Temperatures(t.Context(), tree(t, f), nic(t))
	if len(got) != 256 || got[255].Index != 256 || err != nil || len(problems) != 1 || !errors.Is(problems[0], syscall.E2BIG) {
		t.Errorf("%d sensors, %v, %v", len(got), problems, err)
	}
}

// TestEnds: the end of the context is an error, not a device without sensors.
func TestEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	b := broken{Tree: tree(t, mlx5()), meet: cancel}
	if got, _, err := hwmon.Temperatures(ctx, b, nic(t)); got != nil || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "0000:3b:00.0") {
		t.Errorf("in the middle: %v, %v", got, err)
	}
	if got, _, err := hwmon.Temperatures(ctx, b, nic(t)); got != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("before: %v, %v", got, err)
	}
}

// FuzzTemperatures: whatever a driver writes is read or told.
func FuzzTemperatures(f *testing.F) {
	f.Add("56000", "105000", "asic")
	f.Add("-1", "N/A (no sensor)", "\x00\xff")
	f.Add("9223372036854775807", " 5\n", "")
	f.Fuzz(func(t *testing.T, input, crit, label string) {
		if len(input)+len(crit)+len(label) > 4096 {
			t.Skip("a file of more than a page is no attribute")
		}
		got, problems, err := hwmon.Temperatures(t.Context(), tree(t, map[string]string{"hwmon/hwmon0/temp1_input": input, "hwmon/hwmon0/temp1_crit": crit, "hwmon/hwmon0/temp1_label": label}), nic(t))
		if err != nil || len(got) > 1 || len(got) == 0 && len(problems) == 0 {
			t.Fatalf("%v, %v, %v", got, problems, err)
		}
		for _, s := range got {
			if s.Now < -273150 || s.Now > 1000000 {
				t.Fatalf("%d m°C", s.Now)
			}
		}
	})
}
