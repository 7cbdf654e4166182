package agent

import (
	"encoding/binary"
	"strings"
)

// Tags of PCI vital product data (PCI Local Bus Specification 3.0, appendix I).
const (
	vpdLarge    = 0x80
	vpdReadOnly = 0x90
	vpdEnd      = 0x78
)

// vpdSerial finds the SN keyword in a card's vital product data, "" if there is none or the data is
// damaged.
func vpdSerial(b []byte) string {
	for len(b) > 0 {
		tag := b[0]
		if tag&vpdLarge == 0 { // a small item: the length is in the tag
			n := int(tag & 7)
			if tag&^7 == vpdEnd || len(b) < 1+n {
				return ""
			}
			b = b[1+n:]
			continue
		}
		if len(b) < 3 {
			return ""
		}
		n := int(binary.LittleEndian.Uint16(b[1:]))
		if len(b) < 3+n {
			return ""
		}
		if tag == vpdReadOnly {
			return vpdKeyword(b[3:3+n], "SN")
		}
		b = b[3+n:]
	}
	return ""
}

func vpdKeyword(b []byte, name string) string {
	for len(b) >= 3 {
		n := int(b[2])
		if len(b) < 3+n {
			return ""
		}
		if string(b[:2]) == name {
			return strings.Trim(string(b[3:3+n]), " \x00")
		}
		b = b[3+n:]
	}
	return ""
}
