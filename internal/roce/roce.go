// Package roce has the words of RoCE v2 and PCI: the UDP port, MACs, GUIDs, PCI addresses,
// DSCP and priorities, each as a type that can't be confused with another.
package roce

import (
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Port is the UDP destination port of RoCE v2 (IANA "roce", InfiniBand Annex A17).
const Port = 4791

// Limits of 802.1Q and DiffServ fields.
const (
	MaxPriority = 7    // PCP, 3 bits (IEEE 802.1Q)
	MaxDSCP     = 63   // 6 bits (RFC 2474)
	MinVLAN     = 1    // 0 means "untagged" in IFLA_VF_VLAN
	MaxVLAN     = 4094 // 4095 is reserved (IEEE 802.1Q)
)

// MAC is an EUI-48 address. The zero MAC means "none set".
type MAC [6]byte

// ParseMAC reads xx:xx:xx:xx:xx:xx (also with '-'), any case.
func ParseMAC(s string) (MAC, error) {
	var m MAC
	if len(s) != 17 {
		return m, fmt.Errorf("MAC %q: want the form 02:5a:10:00:00:07", clip(s))
	}
	for i := range m {
		if i > 0 && s[3*i-1] != ':' && s[3*i-1] != '-' {
			return MAC{}, fmt.Errorf("MAC %q: want the form 02:5a:10:00:00:07", clip(s))
		}
		b, err := hex.DecodeString(s[3*i : 3*i+2])
		if err != nil {
			return MAC{}, fmt.Errorf("MAC %q: want the form 02:5a:10:00:00:07", clip(s))
		}
		m[i] = b[0]
	}
	return m, nil
}

// String returns the lower-case colon form.
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// IsZero reports whether no address is set.
func (m MAC) IsZero() bool { return m == MAC{} }

// Unicast reports whether the address is a usable source: not zero and not a group address.
func (m MAC) Unicast() bool { return !m.IsZero() && m[0]&1 == 0 }

// Local reports whether the address is locally administered (IEEE 802c).
func (m MAC) Local() bool { return m[0]&2 != 0 }

// MarshalText gives the colon form; the zero MAC gives "".
func (m MAC) MarshalText() ([]byte, error) {
	if m.IsZero() {
		return nil, nil
	}
	return []byte(m.String()), nil
}

// UnmarshalText reads the colon form; "" is the zero MAC.
func (m *MAC) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*m = MAC{}
		return nil
	}
	v, err := ParseMAC(string(b))
	*m = v
	return err
}

// GUID is an EUI-64 as InfiniBand uses it; zero means broken or not set.
type GUID uint64

// String returns the sysfs form xxxx:xxxx:xxxx:xxxx.
func (g GUID) String() string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", uint16(g>>48), uint16(g>>32), uint16(g>>16), uint16(g))
}

// ParseGUID reads the sysfs form of /sys/class/infiniband/*/node_guid.
func ParseGUID(s string) (GUID, error) {
	v, err := strconv.ParseUint(strings.ReplaceAll(s, ":", ""), 16, 64)
	if err != nil || len(s) != 19 {
		return 0, fmt.Errorf("GUID %q: want the form 0002:c903:00ab:cdef", clip(s))
	}
	return GUID(v), nil
}

// PCIAddr is a PCI function: domain (16 to 32 bits, VMD uses more than four digits), bus, slot, function.
type PCIAddr struct {
	Domain   uint32
	Bus      uint8
	Slot     uint8 // 0–31
	Function uint8 // 0–7
}

var pciForm = regexp.MustCompile(`^([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])$`)

// ParsePCI reads dddd:bb:ss.f with a domain of four to eight hex digits.
func ParsePCI(s string) (PCIAddr, error) {
	m := pciForm.FindStringSubmatch(s)
	if m == nil {
		return PCIAddr{}, fmt.Errorf("PCI address %q: want the form 0000:3b:02.1", clip(s))
	}
	d, _ := strconv.ParseUint(m[1], 16, 32)
	b, _ := strconv.ParseUint(m[2], 16, 8)
	sl, _ := strconv.ParseUint(m[3], 16, 8)
	if sl > 31 {
		return PCIAddr{}, fmt.Errorf("PCI address %q: slot %#x is over 0x1f", s, sl)
	}
	return PCIAddr{Domain: uint32(d), Bus: uint8(b), Slot: uint8(sl), Function: m[4][0] - '0'}, nil
}

// String returns the sysfs form.
func (a PCIAddr) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%d", a.Domain, a.Bus, a.Slot, a.Function)
}

// MarshalText gives the sysfs form.
func (a PCIAddr) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads the sysfs form.
func (a *PCIAddr) UnmarshalText(b []byte) error {
	v, err := ParsePCI(string(b))
	*a = v
	return err
}

// clip keeps foreign text short and printable in an error.
func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}
