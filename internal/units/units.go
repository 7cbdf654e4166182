// Package units has quantities as types, so that bytes, bits per second and percent can't mix.
// Each parses and prints with its unit; a bare number is refused where the unit would be a guess.
package units

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is an amount of memory or storage.
type Bytes int64

// The binary steps.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40
)

// Rate is a bandwidth in bits per second.
type Rate int64

// The decimal steps of bandwidth.
const (
	Kbps Rate = 1_000
	Mbps Rate = 1_000_000
	Gbps Rate = 1_000_000_000
)

type step struct {
	name string
	size int64
}

// byteSteps returns the accepted units of Bytes, longest value last so that printing picks the largest exact one.
func byteSteps() []step {
	return []step{{"B", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
		{"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}}
}

func rateSteps() []step {
	return []step{{"bps", 1}, {"Kbps", 1e3}, {"Mbps", 1e6}, {"Gbps", 1e9}, {"Tbps", 1e12}}
}

// ParseBytes reads "16GiB", "1.5 TiB", "512MB". Decimal and binary units differ; a bare number is refused.
func ParseBytes(s string) (Bytes, error) {
	v, err := parse(s, byteSteps(), "16GiB, 512MiB or 1.5TiB")
	return Bytes(v), err
}

// ParseRate reads "10Gbps", "25 Gbps", "100Mbps" (bits per second). A bare number is refused.
func ParseRate(s string) (Rate, error) {
	v, err := parse(s, rateSteps(), "10Gbps or 500Mbps")
	return Rate(v), err
}

func parse(s string, steps []step, example string) (int64, error) {
	t := strings.TrimSpace(s)
	i := strings.IndexFunc(t, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if t == "" || i == 0 {
		return 0, fmt.Errorf("%q is no quantity; write for example %s", clip(s), example)
	}
	if i < 0 {
		return 0, fmt.Errorf("%q has no unit; write for example %s", clip(s), example)
	}
	unit := strings.TrimSpace(t[i:])
	for _, st := range steps {
		if st.name == unit {
			return scale(s, t[:i], st.size, example)
		}
	}
	return 0, fmt.Errorf("%q has the unknown unit %q; write for example %s", clip(s), clip(unit), example)
}

func scale(s, number string, size int64, example string) (int64, error) {
	if whole, err := strconv.ParseInt(number, 10, 64); err == nil {
		if whole > math.MaxInt64/size {
			return 0, fmt.Errorf("%q is too large", clip(s))
		}
		return whole * size, nil
	}
	f, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is no quantity; write for example %s", clip(s), example)
	}
	f *= float64(size)
	if f >= math.MaxInt64 {
		return 0, fmt.Errorf("%q is too large", clip(s))
	}
	if f != math.Trunc(f) {
		return 0, fmt.Errorf("%q is not a whole number of the base unit", clip(s))
	}
	return int64(f), nil
}

// String prints in the largest binary unit that is exact.
func (b Bytes) String() string { return format(int64(b), byteSteps()[:5]) }

// String prints in the largest decimal unit that is exact.
func (r Rate) String() string { return format(int64(r), rateSteps()) }

// Mbps returns the rate in whole megabits per second, rounded up: what IFLA_VF_RATE takes.
func (r Rate) Mbps() uint32 {
	if r <= 0 {
		return 0
	}
	return uint32(min((int64(r)+int64(Mbps)-1)/int64(Mbps), math.MaxUint32))
}

func format(v int64, steps []step) string {
	if v == 0 {
		return "0" + steps[0].name
	}
	best := steps[0]
	for _, st := range steps {
		if v%st.size == 0 {
			best = st
		}
	}
	return strconv.FormatInt(v/best.size, 10) + best.name
}

func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}
