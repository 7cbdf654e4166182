package sysfstest

import (
	"encoding/binary"
	"hash/fnv"
	"strconv"
)

// vpd encodes vital product data as a card has them: identifier string, read-only keywords PN, SN and the
// checksum RV, end tag (PCI Local Bus Specification 3.0, appendix I).
func vpd(board, serial string) []byte {
	out := item(nil, 0x82, []byte("Simulated "+board))
	var ro []byte
	for _, kw := range [][2]string{{"PN", board}, {"SN", serial}} {
		ro = append(ro, kw[0]...)
		ro = append(ro, byte(len(kw[1])))
		ro = append(ro, kw[1]...)
	}
	ro = append(ro, "RV\x01\x00"...)
	out = item(out, 0x90, ro)
	var sum byte // all bytes up to and with the checksum add up to 0
	for _, b := range out {
		sum += b
	}
	out[len(out)-1] = -sum
	return append(out, 0x78)
}

func item(out []byte, tag byte, data []byte) []byte {
	out = append(out, tag)
	out = binary.LittleEndian.AppendUint16(out, uint16(len(data)))
	return append(out, data...)
}

// configSpace encodes a PF's configuration space: ids, and the extended capabilities Device Serial Number
// (0x0003), ARI (0x000e), SR-IOV (0x0010) and ACS (0x000d) (PCI Express Base Specification 5.0, 7.6 on).
func configSpace(f *function, serial string, totalVFs int) []byte {
	b := make([]byte, 4096)
	le := binary.LittleEndian
	le.PutUint16(b[0:], hex16(f.vendor))
	le.PutUint16(b[2:], hex16(f.device))
	b[0x0b] = 0x02 // base class: network
	h := fnv.New64a()
	_, _ = h.Write([]byte(serial)) // a hash takes everything
	le.PutUint32(b[0x100:], 0x0003|1<<16|0x110<<20)
	le.PutUint64(b[0x104:], h.Sum64())
	le.PutUint32(b[0x110:], 0x000e|1<<16|0x120<<20)
	le.PutUint32(b[0x120:], 0x0010|1<<16|0x160<<20)
	le.PutUint16(b[0x12c:], uint16(totalVFs)) // InitialVFs
	le.PutUint16(b[0x12e:], uint16(totalVFs))
	le.PutUint16(b[0x13a:], hex16(f.port.card.prof.vfDevice))
	le.PutUint32(b[0x160:], 0x000d|1<<16)
	return b
}

func hex16(s string) uint16 {
	v, err := strconv.ParseUint(s, 0, 16)
	if err != nil {
		return 0
	}
	return uint16(v)
}
