// Package pci reads the configuration space of a PCI function, as /sys/bus/pci/devices/<bdf>/config gives
// it: 64 bytes to everybody, up to 4096 to root. Layouts are those of include/uapi/linux/pci_regs.h.
package pci

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrMalformed is in the error of a configuration space that contradicts itself.
var ErrMalformed = errors.New("malformed PCI configuration space")

// ErrGone is in the error of a function that answers all ones: it fell off the bus, is in reset, or is a
// VF that was taken away.
var ErrGone = errors.New("the PCI function does not answer")

// Places in the configuration space.
const (
	headerSize = 64
	baseSize   = 256  // of conventional PCI
	fullSize   = 4096 // of PCI Express

	regStatus     = 0x06
	regHeaderType = 0x0e
	regCapList    = 0x34
	regCardBus    = 0x14 // the list's start in a header of type 2

	statusCapList = 0x10

	capExpress = 0x10
)

// The extended capabilities that are decoded.
const (
	extDSN   = 0x0003
	extACS   = 0x000d
	extARI   = 0x000e
	extATS   = 0x000f
	extSRIOV = 0x0010
)

// Capability is one entry of either list.
type Capability struct {
	ID      uint16
	Version uint8 // of an extended one
	Offset  int
}

// Config is what a function's configuration space tells. A nil pointer means that the capability is absent
// where the list is known, and that nothing is known of it where the list is not.
type Config struct {
	Vendor, Device uint16
	Caps           []Capability // in the order of the list
	CapsKnown      bool         // Caps is the whole list, read to its end; false for a reader without privilege
	Ext            []Capability
	ExtKnown       bool // Ext is the whole list, read to its end; false also for conventional PCI, which has no such space
	Link           *Link
	ACS            *ACS
	ARI            *ARI
	ATS            *ATS
	SRIOV          *SRIOV
	Serial         *uint64 // device serial number, often an EUI-64
}

// Link is the function's PCI Express link. A VF shows zeros here: its PF has the truth.
type Link struct {
	MaxSpeed, Speed Speed
	MaxWidth, Width int // lanes; 0 = not told
}

// ACS is access control services: what the port or function can do, and what is switched on.
type ACS struct{ Can, On Access }

// Access is a set of access control services.
type Access uint16

// The services that decide about isolation.
const (
	SourceValidation   Access = 0x01
	TranslationBlock   Access = 0x02
	RequestRedirect    Access = 0x04
	CompletionRedirect Access = 0x08
	UpstreamForwarding Access = 0x10
)

// Isolating is what must be on for the functions behind a port not to reach each other past the IOMMU.
const Isolating = SourceValidation | RequestRedirect | CompletionRedirect | UpstreamForwarding

// Has reports whether all of these services are in the set.
func (a Access) Has(want Access) bool { return a&want == want }

// ARI is alternative routing-ID interpretation, which more than 8 functions on one bus need.
type ARI struct{ NextFunction uint8 }

// ATS is the address translation service.
type ATS struct {
	Enabled    bool
	QueueDepth int // invalidate requests that the function takes at a time
}

// SRIOV is single root I/O virtualization of a PF.
type SRIOV struct {
	Enabled    bool
	ARI        bool // the functions are numbered as ARI lets them
	InitialVFs int
	TotalVFs   int
	NumVFs     int
	Offset     int // routing ID of the first VF minus that of the PF
	Stride     int
	VFDevice   uint16
}

// Decode reads a configuration space. Reads that end early are no error: CapsKnown and ExtKnown say
// what was seen. With an ErrMalformed comes what could be read before the contradiction.
func Decode(b []byte) (Config, error) {
	var c Config
	if len(b) < headerSize {
		return c, fmt.Errorf("%w: %d bytes, a header has %d; read the function's config file again", ErrMalformed, len(b), headerSize)
	}
	b = b[:min(len(b), fullSize)]
	c.Vendor, c.Device = u16(b, 0), u16(b, 2)
	if c.Vendor == 0xffff {
		return c, fmt.Errorf("%w: its vendor ID reads as all ones; rescan the bus or look for the link's errors in dmesg", ErrGone)
	}
	if err := c.caps(b); err != nil {
		return c, err
	}
	return c, c.extended(b)
}

// caps walks the list of conventional capabilities.
func (c *Config) caps(b []byte) error {
	if u16(b, regStatus)&statusCapList == 0 {
		c.CapsKnown = true
		return nil
	}
	start := regCapList
	if b[regHeaderType]&0x7f == 2 {
		start = regCardBus
	}
	space := b[:min(len(b), baseSize)]
	var seen [baseSize]bool
	whole := true
	for at := int(b[start] &^ 3); at != 0; at = int(space[at+1] &^ 3) {
		switch {
		case at < headerSize:
			return fmt.Errorf("%w: a capability at %#x, inside the header", ErrMalformed, at)
		case seen[at]:
			return fmt.Errorf("%w: the capability at %#x is listed twice", ErrMalformed, at)
		case at+2 > len(space):
			return nil // the read ended before
		case space[at] == 0xff:
			return fmt.Errorf("%w: the capability at %#x reads as all ones", ErrMalformed, at)
		}
		seen[at] = true
		c.Caps = append(c.Caps, Capability{ID: uint16(space[at]), Offset: at})
		if space[at] == capExpress && c.Link == nil {
			c.Link = decodeLink(space[at:])
			whole = c.Link != nil
		}
	}
	c.CapsKnown = whole
	return nil
}

// decodeLink reads the link registers of the PCI Express capability; nil where the read ended before them.
func decodeLink(b []byte) *Link {
	const linkCap, linkStatus = 0x0c, 0x12
	if len(b) < linkStatus+2 {
		return nil
	}
	can, is := u16(b, linkCap), u16(b, linkStatus)
	return &Link{MaxSpeed: speedOf(can), Speed: speedOf(is), MaxWidth: int(can >> 4 & 0x3f), Width: int(is >> 4 & 0x3f)}
}

// extended walks the list of extended capabilities.
func (c *Config) extended(b []byte) error {
	if len(b) < baseSize+4 {
		return nil
	}
	var seen [fullSize]bool
	whole := true
	for at := baseSize; at != 0; {
		switch {
		case at < baseSize:
			return fmt.Errorf("%w: an extended capability at %#x, inside the conventional space", ErrMalformed, at)
		case seen[at]:
			return fmt.Errorf("%w: the extended capability at %#x is listed twice", ErrMalformed, at)
		case at+4 > len(b):
			return nil // the read ended before
		}
		seen[at] = true
		head := binary.LittleEndian.Uint32(b[at:])
		if at == baseSize && (head == 0 || head == 0xffffffff) {
			break // no list
		}
		if head == 0xffffffff {
			return fmt.Errorf("%w: the extended capability at %#x reads as all ones", ErrMalformed, at)
		}
		e := Capability{ID: uint16(head), Version: uint8(head >> 16 & 0xf), Offset: at}
		c.Ext = append(c.Ext, e)
		whole = c.decode(e.ID, b[at:]) && whole
		at = int(head >> 20 &^ 3)
	}
	c.ExtKnown = whole
	return nil
}

// decode reads one extended capability; false means that the read ended inside it.
func (c *Config) decode(id uint16, b []byte) bool {
	if len(b) < size(id) {
		return false
	}
	switch id {
	case extDSN:
		v := binary.LittleEndian.Uint64(b[4:])
		c.Serial = &v
	case extACS:
		c.ACS = &ACS{Can: Access(u16(b, 4)), On: Access(u16(b, 6))}
	case extARI:
		c.ARI = &ARI{NextFunction: b[5]}
	case extATS:
		depth := int(b[4] & 0x1f)
		if depth == 0 {
			depth = 32 // PCI Express Base Specification, 10.5.1.2
		}
		c.ATS = &ATS{Enabled: b[7]&0x80 != 0, QueueDepth: depth}
	case extSRIOV:
		control := u16(b, 0x08)
		c.SRIOV = &SRIOV{
			Enabled: control&0x01 != 0, ARI: control&0x10 != 0,
			InitialVFs: int(u16(b, 0x0c)), TotalVFs: int(u16(b, 0x0e)), NumVFs: int(u16(b, 0x10)),
			Offset: int(u16(b, 0x14)), Stride: int(u16(b, 0x16)), VFDevice: u16(b, 0x1a),
		}
	}
	return true
}

// size is how much of an extended capability is decoded; 4 bytes are its header.
func size(id uint16) int {
	switch id {
	case extDSN:
		return 12
	case extACS, extARI, extATS:
		return 8
	case extSRIOV:
		return 0x1c
	}
	return 4
}

func u16(b []byte, at int) uint16 { return binary.LittleEndian.Uint16(b[at:]) }
