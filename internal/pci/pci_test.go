package pci_test

import (
	"encoding/binary"
	"errors"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/verbena-cloud/verbena/internal/pci"
)

// space is a PF with the layout of pci_regs.h: PCI Express at 0x60 behind power management at 0x40, and the
// extended capabilities DSN, ACS, ARI, ATS and SR-IOV.
func space() []byte {
	b := make([]byte, 4096)
	put16 := func(at int, v uint16) { binary.LittleEndian.PutUint16(b[at:], v) }
	put32 := func(at int, v uint32) { binary.LittleEndian.PutUint32(b[at:], v) }
	put16(0x00, 0x15b3)
	put16(0x02, 0x101d)
	put16(0x06, 0x0010)
	b[0x34] = 0x40
	b[0x40], b[0x41] = 0x01, 0x60
	b[0x60], b[0x61] = 0x10, 0x00
	put32(0x6c, 0x00400104) // 16 GT/s, 16 lanes
	put16(0x72, 0x1083)     // 8 GT/s, 8 lanes
	put32(0x100, 0x1401_0003)
	put32(0x104, 0x00112233)
	put32(0x108, 0x0c42a103)
	put32(0x140, 0x1501_000d)
	put32(0x144, 0x001d_005f)
	put32(0x150, 0x1601_000e)
	b[0x155] = 1
	put32(0x160, 0x1801_000f)
	put32(0x164, 0x8000_0020)
	put32(0x180, 0x0001_0010)
	put16(0x188, 0x0019)
	put16(0x18c, 16)
	put16(0x18e, 16)
	put16(0x190, 4)
	put16(0x194, 2)
	put16(0x196, 1)
	put16(0x19a, 0x101e)
	return b
}

func TestDecode(t *testing.T) {
	serial := uint64(0x0c42a10300112233)
	want := pci.Config{
		Vendor: 0x15b3, Device: 0x101d,
		Caps: []pci.Capability{{ID: 1, Offset: 0x40}, {ID: 0x10, Offset: 0x60}}, CapsKnown: true,
		Ext: []pci.Capability{
			{ID: 3, Version: 1, Offset: 0x100}, {ID: 0xd, Version: 1, Offset: 0x140}, {ID: 0xe, Version: 1, Offset: 0x150},
			{ID: 0xf, Version: 1, Offset: 0x160}, {ID: 0x10, Version: 1, Offset: 0x180},
		}, ExtKnown: true,
		Link:   &pci.Link{MaxSpeed: 16000, Speed: 8000, MaxWidth: 16, Width: 8},
		ACS:    &pci.ACS{Can: 0x5f, On: pci.Isolating},
		ARI:    &pci.ARI{NextFunction: 1},
		ATS:    &pci.ATS{Enabled: true, QueueDepth: 32},
		SRIOV:  &pci.SRIOV{Enabled: true, ARI: true, InitialVFs: 16, TotalVFs: 16, NumVFs: 4, Offset: 2, Stride: 1, VFDevice: 0x101e},
		Serial: &serial,
	}
	got, err := pci.Decode(space())
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Fatalf("%v\n%s", err, diff)
	}
	if !got.ACS.On.Has(pci.Isolating) || got.ACS.On.Has(pci.TranslationBlock) {
		t.Errorf("ACS %+v", got.ACS)
	}
}

// TestShort: what a reader without privilege sees is no error, and no claim that something is absent.
func TestShort(t *testing.T) {
	for n := range 4097 {
		c, err := pci.Decode(space()[:n])
		if (err == nil) != (n >= 64) {
			t.Fatalf("%d bytes: %v", n, err)
		}
		if c.CapsKnown != (n >= 0x74) || c.ExtKnown != (n >= 0x19c) {
			t.Fatalf("%d bytes: caps %v, extended %v", n, c.CapsKnown, c.ExtKnown)
		}
		if c.CapsKnown && c.Link == nil || c.ExtKnown && (c.Serial == nil || c.ACS == nil || c.ARI == nil || c.ATS == nil || c.SRIOV == nil) {
			t.Fatalf("%d bytes: what is there counts as absent: %+v", n, c)
		}
	}
}

func TestContradictions(t *testing.T) {
	for what, change := range map[string]func(b []byte){
		"a loop":                   func(b []byte) { b[0x61] = 0x40 },
		"a list in the header":     func(b []byte) { b[0x41] = 0x20 },
		"an extended loop":         func(b []byte) { b[0x183] = 0x14 },
		"an extended list too low": func(b []byte) { b[0x183] = 0x08 },
		"all ones":                 func(b []byte) { b[0x60] = 0xff },
	} {
		b := space()
		change(b)
		c, err := pci.Decode(b)
		if !errors.Is(err, pci.ErrMalformed) || c.CapsKnown && c.ExtKnown {
			t.Errorf("%s: %v, %+v", what, err, c)
		}
	}
	gone := make([]byte, 256)
	for i := range gone {
		gone[i] = 0xff
	}
	if _, err := pci.Decode(gone); !errors.Is(err, pci.ErrGone) {
		t.Errorf("all ones: %v", err)
	}
	none := make([]byte, 4096)
	if c, err := pci.Decode(none); err != nil || !c.CapsKnown || !c.ExtKnown || c.Ext != nil {
		t.Errorf("no lists: %v, %+v", err, c)
	}
}

func TestParseSpeed(t *testing.T) {
	for text, want := range map[string]pci.Speed{
		"8.0 GT/s PCIe\n": 8000, "8 GT/s": 8000, "2.5 GT/s": 2500, "2.5 GT/s PCIe": 2500, "64.0 GT/s PCIe": 64000, "Unknown": 0, "Unknown speed": 0,
	} {
		if got, err := pci.ParseSpeed(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "8.0", "GT/s", "-8 GT/s", "8.00 GT/s", "8. GT/s", "0 GT/s", "99999 GT/s"} {
		if got, err := pci.ParseSpeed(text); !errors.Is(err, pci.ErrMalformed) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(space())
	f.Add(space()[:64])
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := pci.Decode(b)
		if err != nil && !errors.Is(err, pci.ErrMalformed) && !errors.Is(err, pci.ErrGone) {
			t.Fatal(err)
		}
		if len(c.Caps) > 48 || len(c.Ext) > 960 {
			t.Fatalf("%d and %d capabilities", len(c.Caps), len(c.Ext))
		}
	})
}

func FuzzText(f *testing.F) {
	for _, s := range []string{"0000:01:00.0", "10000:e1:00.7", "123:00:00.0", "0000:01:00.8", "0000:0G:00.0", "8.0 GT/s PCIe", "2.5 GT/s", "Unknown"} {
		f.Add(s)
	}
	address := regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	f.Fuzz(func(t *testing.T, s string) {
		if got := pci.IsAddress(s); got != address.MatchString(s) {
			t.Fatalf("%q: %v", s, got)
		}
		speed, err := pci.ParseSpeed(s)
		if err != nil {
			return
		}
		if back, err := pci.ParseSpeed(speed.String()); err != nil || back != speed {
			t.Fatalf("%q: %v does not survive: %v, %v", s, speed, back, err)
		}
	})
}
