package units_test

import (
	"strings"
	"testing"

	"github.com/verbena-cloud/verbena/internal/units"
)

func TestParse(t *testing.T) {
	bytes := map[string]units.Bytes{"16GiB": 16 * units.GiB, "1.5TiB": 1536 * units.GiB, "512 MiB": 512 * units.MiB, "1GB": 1e9, "0B": 0, " 4KiB ": 4096}
	for in, want := range bytes {
		if got, err := units.ParseBytes(in); err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
	rates := map[string]units.Rate{"10Gbps": 10 * units.Gbps, "2.5Gbps": 2500 * units.Mbps, "100Mbps": 100 * units.Mbps}
	for in, want := range rates {
		if got, err := units.ParseRate(in); err != nil || got != want {
			t.Errorf("ParseRate(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
}

// TestRefuses: a quantity whose unit would be a guess is an error that shows how to write it.
func TestRefuses(t *testing.T) {
	for _, in := range []string{"", "16", "GiB", "-1GiB", "16Gi", "16gib", "1e3GiB", "9999999999TiB", "1.2.3GiB", "0.3B", "16 G iB", "10Gbps", "１６GiB", strings.Repeat("9", 400)} {
		v, err := units.ParseBytes(in)
		if err == nil {
			t.Errorf("ParseBytes(%q) = %d, want an error", in, v)
			continue
		}
		if len(err.Error()) > 200 {
			t.Errorf("the error for %d characters has %d", len(in), len(err.Error()))
		}
	}
}

func TestMbpsRoundsUp(t *testing.T) {
	for in, want := range map[units.Rate]uint32{0: 0, 1: 1, units.Mbps: 1, units.Mbps + 1: 2, -5: 0, 10 * units.Gbps: 10000} {
		if got := in.Mbps(); got != want {
			t.Errorf("%d.Mbps() = %d, want %d", int64(in), got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"16GiB", "1.5TiB", "10Gbps", "", "9223372036854775807B", "0.0000001TiB", "1..GiB"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if v, err := units.ParseBytes(s); err == nil {
			if back, err := units.ParseBytes(v.String()); err != nil || back != v || v < 0 {
				t.Fatalf("%q = %d prints as %s, which reads as %d, %v", s, int64(v), v, int64(back), err)
			}
		}
		if v, err := units.ParseRate(s); err == nil {
			if back, err := units.ParseRate(v.String()); err != nil || back != v || v < 0 {
				t.Fatalf("%q = %d prints as %s, which reads as %d, %v", s, int64(v), v, int64(back), err)
			}
		}
	})
}
