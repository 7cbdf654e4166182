// Package guestreport has the words that a program inside a VM says to its host over a virtio-serial channel:
// one JSON object per line. The guest is hostile until proven otherwise, so that the reader is bounded in
// bytes, items and text, and never fails the host for what a line says.
//
// Versions: fields are only ever added. A reader ignores fields that it does not know, on either side, and
// takes a line of a newer version for as much as it understands.
package guestreport

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Version is the one that this package writes.
const Version = 1

// Channel is the path of the virtio-serial port in the guest.
const Channel = "/dev/virtio-ports/org.verbena.guest.0"

// Bounds of what is written and accepted.
const (
	MaxLine     = 64 << 10 // bytes of one line without its end
	MaxDevices  = 64
	MaxPorts    = 8
	MaxCounters = 256
	MaxText     = 128 // bytes of one text
)

// Report is what a guest says of itself at one time.
type Report struct {
	V       int      `json:"v"`
	Seq     uint64   `json:"seq"`            // counts up; starts anew with the guest's program
	Time    int64    `json:"time,omitempty"` // Unix seconds by the guest's clock, which may be wrong
	Kernel  string   `json:"kernel,omitempty"`
	Agent   string   `json:"agent,omitempty"` // version of the program
	Devices []Device `json:"devices,omitempty"`
	// Cut says that the guest left something out to keep the bounds.
	Cut bool `json:"cut,omitempty"`
}

// Device is one RDMA device of the guest.
type Device struct {
	Name     string `json:"name"`
	PCI      string `json:"pci,omitempty"`
	MAC      string `json:"mac,omitempty"`
	Netdev   string `json:"netdev,omitempty"`
	Driver   string `json:"driver,omitempty"`
	Firmware string `json:"firmware,omitempty"`
	NUMA     int    `json:"numa"`             // -1 = the guest does not know
	Queues   int    `json:"queues,omitempty"` // combined queues of the netdev
	QPCount  *int64 `json:"qps,omitempty"`
	Ports    []Port `json:"ports,omitempty"`
}

// Port is one port of a device.
type Port struct {
	Port      int               `json:"port"`
	State     string            `json:"state,omitempty"`
	GID       string            `json:"gid,omitempty"` // the one to use, chosen by value
	GIDIndex  int               `json:"gidIndex"`      // where it is now; -1 = there is none
	ActiveMTU int               `json:"activeMTU,omitempty"`
	Counters  map[string]uint64 `json:"counters,omitempty"`
	Unread    int               `json:"unread,omitempty"` // counter files that gave no number
}

// Encode returns the report as one line with its end, of version Version. What is over a bound is left out
// and Cut says so; if the line is still too long, counters go first, then ports.
func Encode(r Report) ([]byte, error) {
	r.V = Version
	r.bound()
	for _, shrink := range []func(*Port){func(*Port) {}, func(p *Port) { p.Counters = nil }} {
		for i := range r.Devices {
			for j := range r.Devices[i].Ports {
				shrink(&r.Devices[i].Ports[j])
			}
		}
		b, err := json.Marshal(r)
		if err != nil {
			return nil, fmt.Errorf("encode the report: %w", err)
		}
		if len(b) <= MaxLine {
			return append(b, '\n'), nil
		}
		r.Cut = true
	}
	for i := range r.Devices {
		r.Devices[i].Ports = nil
	}
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode the report: %w", err)
	}
	if len(b) > MaxLine {
		return nil, fmt.Errorf("encode the report: %d bytes are over the limit of %d", len(b), MaxLine)
	}
	return append(b, '\n'), nil
}

// Decode reads one line. Errors tell what is wrong with it; the next line is not concerned.
func Decode(line []byte) (Report, error) {
	if len(line) > MaxLine {
		return Report{}, fmt.Errorf("decode a guest's report: the line is over the limit of %d bytes; it is dropped", MaxLine)
	}
	var r Report
	if err := json.Unmarshal(line, &r); err != nil {
		return Report{}, fmt.Errorf("decode a guest's report: %w; the line is dropped", err)
	}
	if r.V < 1 {
		return Report{}, fmt.Errorf("decode a guest's report: version %d is none; the line is dropped", r.V)
	}
	r.bound()
	return r, nil
}

// bound cuts everything to its limit. It copies what it changes.
func (r *Report) bound() {
	r.Kernel, r.Agent = text(r.Kernel), text(r.Agent)
	devices := cut(r.Devices, MaxDevices, &r.Cut)
	r.Devices = nil
	for _, d := range devices {
		d.Name, d.PCI, d.MAC, d.Netdev = text(d.Name), text(d.PCI), text(d.MAC), text(d.Netdev)
		d.Driver, d.Firmware = text(d.Driver), text(d.Firmware)
		ports := cut(d.Ports, MaxPorts, &r.Cut)
		d.Ports = nil
		for _, p := range ports {
			p.State, p.GID = text(p.State), text(p.GID)
			p.Counters = counters(p.Counters, &r.Cut)
			d.Ports = append(d.Ports, p)
		}
		r.Devices = append(r.Devices, d)
	}
}

func cut[T any](list []T, limit int, was *bool) []T {
	if len(list) > limit {
		*was = true
		return list[:limit]
	}
	return list
}

// text keeps what a terminal and a log may see: valid, printable, short.
func text(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	for len(s) > MaxText {
		_, n := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-n]
	}
	return s
}
