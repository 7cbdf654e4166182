package uevent_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/verbena-cloud/verbena/internal/uevent"
)

// message is a kernel's: its fields, each ended by a zero.
func message(fields ...string) []byte { return []byte(strings.Join(fields, "\x00") + "\x00") }

// vf is what a VF that gets vfio-pci makes (drivers/base/dd.c, drivers/pci/pci-driver.c).
func vf() []string {
	return []string{
		"bind@/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.2", "ACTION=bind", "DEVPATH=/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.2", "SUBSYSTEM=pci",
		"DRIVER=vfio-pci", "PCI_CLASS=20000", "PCI_ID=15B3:101E", "PCI_SUBSYS_ID=15B3:0123", "PCI_SLOT_NAME=0000:3b:00.2",
		"MODALIAS=pci:v000015B3d0000101Esv000015B3sd00000123bc02sc00i00", "SEQNUM=4711",
	}
}

func TestDecode(t *testing.T) {
	got, err := uevent.Decode(message(vf()...))
	want := uevent.Event{
		Action: uevent.Bind, Path: "/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.2", Subsystem: "pci", Seq: 4711,
		Values: map[string]string{
			"ACTION": "bind", "DEVPATH": "/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.2", "SUBSYSTEM": "pci", "DRIVER": "vfio-pci", "PCI_CLASS": "20000",
			"PCI_ID": "15B3:101E", "PCI_SUBSYS_ID": "15B3:0123", "PCI_SLOT_NAME": "0000:3b:00.2",
			"MODALIAS": "pci:v000015B3d0000101Esv000015B3sd00000123bc02sc00i00", "SEQNUM": "4711",
		},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// TestDecodeOdd: forms that are the kernel's all the same.
func TestDecodeOdd(t *testing.T) {
	for what, fields := range map[string][]string{
		"a path with an at sign": {"add@/devices/platform/soc@0/x", "ACTION=add", "DEVPATH=/devices/platform/soc@0/x", "SUBSYSTEM=net", "SEQNUM=1"},
		"an equals sign":         {"change@/devices/x", "ACTION=change", "DEVPATH=/devices/x", "SUBSYSTEM=drm", "X=a=b", "SEQNUM=18446744073709551615"},
		"an empty value":         {"change@/devices/x", "ACTION=change", "DEVPATH=/devices/x", "SUBSYSTEM=net", "SYNTH_UUID=", "SEQNUM=2"},
		"an unknown action":      {"later@/devices/x", "ACTION=later", "DEVPATH=/devices/x", "SUBSYSTEM=net", "SEQNUM=3"},
	} {
		if e, err := uevent.Decode(message(fields...)); err != nil {
			t.Errorf("%s: %+v, %v", what, e, err)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	without := func(prefix string) []byte {
		return message(slices.DeleteFunc(vf(), func(f string) bool { return strings.HasPrefix(f, prefix) })...)
	}
	with := func(field string) []byte { return message(append(vf(), field)...) }
	for what, b := range map[string][]byte{
		"nothing":            nil,
		"no end":             []byte("add@/x"),
		"no at sign":         message("add", "ACTION=add"),
		"no action":          message("@/x"),
		"a relative path":    message("add@x"),
		"a field of no key":  with("=x"),
		"a field of no sign": with("x"),
		"an empty field":     with(""),
		"a key twice":        with("DRIVER=x"),
		"another action":     message("add@/x", "ACTION=remove", "DEVPATH=/x", "SUBSYSTEM=net", "SEQNUM=1"),
		"another path":       message("add@/x", "ACTION=add", "DEVPATH=/y", "SUBSYSTEM=net", "SEQNUM=1"),
		"no subsystem":       without("SUBSYSTEM"),
		"no number":          without("SEQNUM"),
		"a strange number":   message("add@/x", "ACTION=add", "DEVPATH=/x", "SUBSYSTEM=net", "SEQNUM=-1"),
		"cut short":          message(vf()...)[:60],
	} {
		if e, err := uevent.Decode(b); !errors.Is(err, uevent.ErrMalformed) || len(err.Error()) > 300 {
			t.Errorf("%s: %+v, %v", what, e, err)
		}
	}
	if _, err := uevent.Decode([]byte("libudev\x00\xfe\xed\xca\xfe\x28\x00\x00\x00")); !errors.Is(err, uevent.ErrForeign) {
		t.Errorf("udev's own form: %v", err)
	}
}

// FuzzDecode: what is read has the kernel's form, and says what its bytes say.
func FuzzDecode(f *testing.F) {
	f.Add(message(vf()...))
	f.Add([]byte("libudev\x00\xfe\xed\xca\xfe"))
	f.Add(message("add@/devices/virtual/net/v0", "ACTION=add", "DEVPATH=/devices/virtual/net/v0", "SUBSYSTEM=net", "INTERFACE=v0", "IFINDEX=2", "SEQNUM=9"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := uevent.Decode(b)
		if err != nil {
			if !errors.Is(err, uevent.ErrMalformed) && !errors.Is(err, uevent.ErrForeign) {
				t.Fatal(err)
			}
			return
		}
		fields := []string{string(e.Action) + "@" + e.Path}
		for _, k := range slices.Sorted(maps.Keys(e.Values)) {
			fields = append(fields, k+"="+e.Values[k])
		}
		if n := len(message(fields...)); n != len(b) {
			t.Fatalf("%d bytes are read of %d", n, len(b))
		}
		back, err := uevent.Decode(message(fields...))
		if diff := cmp.Diff(e, back); diff != "" || err != nil {
			t.Fatalf("%v: %s", err, diff)
		}
	})
}
