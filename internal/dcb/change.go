package dcb

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Change is one thing to set on a port.
type Change interface {
	// Command prints the change as dcb(8) would make it on the link.
	Command(link string) string
	// Told reports whether the state says anything about what the change sets.
	Told(s State) bool
	// Holds reports whether the state is already as the change makes it.
	Holds(s State) bool
	change()
}

// The changes.
type (
	// SetMode makes the host or the firmware the owner of the port's DCB (DCB_CMD_SDCBX).
	SetMode Mode
	// SetPFC turns flow control on for these priorities and off for all others. On mlx5 and ice a change
	// takes the link down for a moment. A delay of 0 leaves it as it is.
	SetPFC struct {
		Enabled Set
		Delay   uint16
	}
	// SetETS sets the share, algorithm and priorities of each traffic class; what the port recommends its
	// peer becomes the same, and it stops to be willing.
	SetETS struct {
		TxBW   [Priorities]uint8
		TSA    [Priorities]TSA
		PrioTC [Priorities]uint8
	}
	// AddApp adds an entry to the APP table. mlx5 trusts DSCP as soon as one DSCP entry is there.
	AddApp App
	// DelApp removes an entry of the APP table (DCB_CMD_IEEE_DEL).
	DelApp App
	// SetTrust says which kinds of APP entry count, the first most.
	SetTrust []Selector
	// SetMaxRate bounds each traffic class, in kbit/s, 0 = no limit. Drivers round it.
	SetMaxRate [Priorities]uint64
	// SetBuffer assigns priorities to receive buffers and sizes them in bytes. Drivers round sizes up to
	// their cells.
	SetBuffer struct {
		Prio [Priorities]uint8
		Size [Priorities]uint32
	}
)

func (SetMode) change()    {}
func (SetPFC) change()     {}
func (SetETS) change()     {}
func (AddApp) change()     {}
func (DelApp) change()     {}
func (SetTrust) change()   {}
func (SetMaxRate) change() {}
func (SetBuffer) change()  {}

// each prints eight values as dcb(8) takes them, "0:V 1:V …".
func each[T any](v [Priorities]T, show func(T) string) string {
	out := make([]string, 0, len(v))
	for i, x := range v {
		out = append(out, fmt.Sprintf("%d:%s", i, show(x)))
	}
	return strings.Join(out, " ")
}

func plain[T any](v T) string { return fmt.Sprint(v) }

// Command prints the change as dcb(8) would make it.
func (c SetMode) Command(link string) string {
	return fmt.Sprintf("dcb dcbx set dev %s %s", link, Mode(c))
}

// Command prints the change as dcb(8) would make it.
func (c SetPFC) Command(link string) string {
	words := []string{"dcb pfc set dev", link, "prio-pfc all:off"}
	for p := range Priorities {
		if c.Enabled.Has(p) {
			words = append(words, strconv.Itoa(p)+":on")
		}
	}
	if c.Delay > 0 {
		words = append(words, fmt.Sprintf("delay %d", c.Delay))
	}
	return strings.Join(words, " ")
}

// Command prints the change as dcb(8) would make it.
func (c SetETS) Command(link string) string {
	return fmt.Sprintf("dcb ets set dev %s willing off tc-tsa %s tc-bw %s prio-tc %s", link, each(c.TSA, plain[TSA]), each(c.TxBW, plain[uint8]), each(c.PrioTC, plain[uint8]))
}

// Command prints the change as dcb(8) would make it.
func (c AddApp) Command(link string) string {
	return fmt.Sprintf("dcb app add dev %s %s", link, App(c))
}

// Command prints the change as dcb(8) would make it.
func (c DelApp) Command(link string) string {
	return fmt.Sprintf("dcb app del dev %s %s", link, App(c))
}

// Command prints the change as dcb(8) would make it.
func (c SetTrust) Command(link string) string {
	out := make([]string, 0, len(c))
	for _, s := range c {
		out = append(out, s.String())
	}
	return fmt.Sprintf("dcb apptrust set dev %s order %s", link, strings.Join(out, " "))
}

// Command prints the change as dcb(8) would make it.
func (c SetMaxRate) Command(link string) string {
	return fmt.Sprintf("dcb maxrate set dev %s tc-maxrate %s", link, each(c, func(v uint64) string { return fmt.Sprintf("%dkbit", v) }))
}

// Command prints the change as dcb(8) would make it.
func (c SetBuffer) Command(link string) string {
	return fmt.Sprintf("dcb buffer set dev %s prio-buffer %s buffer-size %s", link, each(c.Prio, plain[uint8]), each(c.Size, plain[uint32]))
}

// Told reports whether the driver tells its DCBX mode.
func (SetMode) Told(s State) bool { return s.Mode != nil }

// Told reports whether the driver tells its PFC.
func (SetPFC) Told(s State) bool { return s.PFC != nil }

// Told reports whether the driver tells its ETS.
func (SetETS) Told(s State) bool { return s.ETS != nil }

// Told is always true where there is a state: the kernel itself keeps the table.
func (AddApp) Told(s State) bool { return s.Apps != nil }

// Told is always true where there is a state: the kernel itself keeps the table.
func (DelApp) Told(s State) bool { return s.Apps != nil }

// Told reports whether the driver tells what it trusts.
func (SetTrust) Told(s State) bool { return s.Trust != nil }

// Told reports whether the driver tells the rates of its traffic classes.
func (SetMaxRate) Told(s State) bool { return s.MaxRate != nil }

// Told reports whether the driver tells its buffers.
func (SetBuffer) Told(s State) bool { return s.Buffer != nil }

// Holds reports whether the port is in this mode.
func (c SetMode) Holds(s State) bool { return s.Mode != nil && *s.Mode == Mode(c) }

// Holds reports whether exactly these priorities have flow control.
func (c SetPFC) Holds(s State) bool {
	return s.PFC != nil && s.PFC.Enabled == c.Enabled && (c.Delay == 0 || s.PFC.Delay == c.Delay)
}

// Holds compares what the port does, not what it recommends its peer.
func (c SetETS) Holds(s State) bool {
	return s.ETS != nil && s.ETS.TxBW == c.TxBW && s.ETS.TSA == c.TSA && s.ETS.PrioTC == c.PrioTC
}

// Holds reports whether the entry is in the table.
func (c AddApp) Holds(s State) bool { return slices.Contains(s.Apps, App(c)) }

// Holds reports whether the entry is not in the table.
func (c DelApp) Holds(s State) bool { return s.Apps != nil && !slices.Contains(s.Apps, App(c)) }

// Holds reports whether exactly these selectors count, in this order.
func (c SetTrust) Holds(s State) bool { return s.Trust != nil && slices.Equal(s.Trust, c) }

// Holds lets pass what a driver makes of a rate: a multiple of 100 Mbit/s or of 1 Gbit/s, at least 100 Mbit/s.
func (c SetMaxRate) Holds(s State) bool {
	if s.MaxRate == nil {
		return false
	}
	for i, want := range c {
		got := s.MaxRate[i]
		const step = 1_000_000 // kbit/s, the coarser of the two
		if (want == 0) != (got == 0) || max(want, got)-min(want, got) >= step {
			return false
		}
	}
	return true
}

// Holds lets pass a size that was rounded up by less than 1 %, or by less than 1 KiB.
func (c SetBuffer) Holds(s State) bool {
	if s.Buffer == nil || s.Buffer.Prio != c.Prio {
		return false
	}
	for i, want := range c.Size {
		if got := s.Buffer.Size[i]; got < want || got-want >= max(1024, want/100) {
			return false
		}
	}
	return true
}
