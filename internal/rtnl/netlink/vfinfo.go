package netlink

import (
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/rtnl"
)

// Attributes of a VF (enum in include/uapi/linux/if_link.h), and of a link those that golang.org/x/sys does
// not name.
const (
	iflaVFInfo      = 1
	iflaVFMAC       = 1
	iflaVFVLAN      = 2
	iflaVFTxRate    = 3
	iflaVFSpoofChk  = 4
	iflaVFLinkState = 5
	iflaVFRate      = 6
	iflaVFStats     = 8
	iflaVFTrust     = 9
	iflaVFNodeGUID  = 10
	iflaVFPortGUID  = 11
	iflaVFVLANList  = 12
	iflaVFVLANInfo  = 1

	macRoom    = 32         // of struct ifla_vf_mac, MAX_ADDR_LEN
	unreported = 0xffffffff // a setting that the driver did not fill in
	maxVF      = 1 << 16    // NumVFs has 16 bits (PCI Express Base Specification)

	filterVF        = 1 << 0 // RTEXT_FILTER_VF
	filterSkipStats = 1 << 3 // RTEXT_FILTER_SKIP_STATS
)

// encodeVF encodes one attribute of one VF as IFLA_VFINFO_LIST.
func encodeVF(vf int, a rtnl.Attr) ([]byte, error) {
	n := uint32(vf)
	switch a := a.(type) {
	case rtnl.MAC:
		b := append(words(n), a[:]...)
		return vfinfo(iflaVFMAC, append(b, make([]byte, macRoom-len(a))...)), nil
	case rtnl.VLAN:
		return vfinfo(iflaVFVLAN, words(n, uint32(a.ID), uint32(a.QoS))), nil
	case rtnl.SpoofCheck:
		return vfinfo(iflaVFSpoofChk, words(n, number(bool(a)))), nil
	case rtnl.Trust:
		return vfinfo(iflaVFTrust, words(n, number(bool(a)))), nil
	case rtnl.State:
		return vfinfo(iflaVFLinkState, words(n, uint32(a))), nil
	case rtnl.Rate:
		return vfinfo(iflaVFRate, words(n, a.Min, a.Max)), nil
	case rtnl.NodeGUID:
		return vfinfo(iflaVFNodeGUID, guid(n, roce.GUID(a))), nil
	case rtnl.PortGUID:
		return vfinfo(iflaVFPortGUID, guid(n, roce.GUID(a))), nil
	}
	return nil, fmt.Errorf("no encoding of VF attribute %s", a)
}

// encodeTxRate is the older form of a rate without a minimum.
func encodeTxRate(vf int, limit uint32) []byte {
	return vfinfo(iflaVFTxRate, words(uint32(vf), limit))
}

func vfinfo(kind uint16, data []byte) []byte {
	return attr(nil, unix.IFLA_VFINFO_LIST, attr(nil, iflaVFInfo, attr(nil, kind, data)))
}

// guid is struct ifla_vf_guid: an index, a gap, and the GUID as a number.
func guid(vf uint32, g roce.GUID) []byte {
	return binary.NativeEndian.AppendUint64(words(vf, 0), uint64(g))
}

func number(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// linkInfo is what an RTM_NEWLINK tells that is wanted here.
type linkInfo struct {
	vfs       []rtnl.VF
	stats     []rtnl.VFStats
	count     int // IFLA_NUM_VF, 0 if not told
	permanent roce.MAC
	hasMAC    bool
}

// decodeLink reads the body of an RTM_NEWLINK.
func decodeLink(data []byte) (linkInfo, error) {
	var out linkInfo
	if len(data) < unix.SizeofIfInfomsg {
		return out, fmt.Errorf("%w: a link of %d bytes", errMalformed, len(data))
	}
	for b := data[unix.SizeofIfInfomsg:]; len(b) >= unix.SizeofRtAttr; {
		a, n, err := first(b, size(b, out.count))
		if err != nil {
			return out, err
		}
		b = b[n:]
		switch a.kind {
		case unix.IFLA_NUM_VF:
			if len(a.data) >= 4 {
				out.count = int(binary.NativeEndian.Uint32(a.data))
			}
		case unix.IFLA_PERM_ADDRESS:
			if len(a.data) == len(out.permanent) {
				out.permanent, out.hasMAC = roce.MAC(a.data), true
			}
		case unix.IFLA_VFINFO_LIST:
			if out.vfs, out.stats, err = decodeVFs(a.data); err != nil {
				return out, err
			}
		}
	}
	return out, nil
}

// size is the length of the attribute that b begins with. Kernels write the length of a list of VFs into 16
// bits also where it has more, while all of the list is there. It ends with the last VF of at most count, and
// that end is believed if it agrees with the 16 bits.
func size(b []byte, count int) int {
	told := int(binary.NativeEndian.Uint16(b))
	if kindOf(b) != unix.IFLA_VFINFO_LIST || count > maxVF {
		return told
	}
	end := unix.SizeofRtAttr
	for range count {
		if len(b)-end < unix.SizeofRtAttr || kindOf(b[end:]) != iflaVFInfo {
			break
		}
		_, n, err := first(b[end:], int(binary.NativeEndian.Uint16(b[end:])))
		if err != nil {
			return told
		}
		end += n
	}
	if end > told && end&0xffff == told {
		return end
	}
	return told
}

// decodeVFs reads the content of IFLA_VFINFO_LIST.
func decodeVFs(data []byte) ([]rtnl.VF, []rtnl.VFStats, error) {
	var vfs []rtnl.VF
	var stats []rtnl.VFStats
	for a, err := range attributes(data) {
		if err != nil {
			return nil, nil, err
		}
		if a.kind != iflaVFInfo {
			continue
		}
		d, err := decodeVF(a.data)
		if err != nil {
			return nil, nil, err
		}
		vfs = append(vfs, d.vf)
		if d.counted {
			d.stats.Index = d.vf.Index
			stats = append(stats, d.stats)
		}
	}
	slices.SortFunc(vfs, func(a, b rtnl.VF) int { return a.Index - b.Index })
	slices.SortFunc(stats, func(a, b rtnl.VFStats) int { return a.Index - b.Index })
	for i := range vfs {
		if i > 0 && vfs[i].Index == vfs[i-1].Index {
			return nil, nil, fmt.Errorf("%w: VF %d is told of twice", errMalformed, vfs[i].Index)
		}
	}
	return vfs, stats, nil
}

// decodeVF reads one IFLA_VF_INFO. Each struct in it begins with the VF's index, and all must agree.
func decodeVF(data []byte) (vfDecoder, error) {
	d := vfDecoder{vf: rtnl.VF{Index: -1}}
	for a, err := range attributes(data) {
		if err != nil {
			return d, err
		}
		if err := d.attribute(a); err != nil {
			return d, err
		}
	}
	if d.vf.Index < 0 {
		return d, fmt.Errorf("%w: a VF without an index", errMalformed)
	}
	return d, nil
}

// vfDecoder gathers a VF; rated and listed say that the newer of two forms was there, counted that there
// were statistics.
type vfDecoder struct {
	vf            rtnl.VF
	stats         rtnl.VFStats
	rated, listed bool
	counted       bool
}

func (d *vfDecoder) attribute(a attribute) error {
	switch a.kind {
	case iflaVFMAC:
		mac, err := d.field(a, len(d.vf.MAC))
		if err == nil {
			d.vf.MAC = roce.MAC(mac)
		}
		return err
	case iflaVFVLAN:
		f, err := d.fields(a, 2)
		if err == nil && !d.listed {
			d.vf.VLAN, d.vf.QoS = int(f[0]), int(f[1])
		}
		return err
	case iflaVFVLANList:
		return d.vlans(a.data)
	case iflaVFSpoofChk:
		f, err := d.fields(a, 1)
		d.vf.SpoofCheck = setting(f, err)
		return err
	case iflaVFTrust:
		f, err := d.fields(a, 1)
		d.vf.Trust = setting(f, err)
		return err
	case iflaVFLinkState:
		f, err := d.fields(a, 1)
		if err == nil && f[0] <= uint32(rtnl.LinkDisable) {
			s := rtnl.LinkState(f[0])
			d.vf.LinkState = &s
		}
		return err
	case iflaVFTxRate:
		f, err := d.fields(a, 1)
		if err == nil && !d.rated {
			d.vf.MaxRate = f[0]
		}
		return err
	case iflaVFRate:
		f, err := d.fields(a, 2)
		if err == nil {
			d.vf.MinRate, d.vf.MaxRate, d.rated = f[0], f[1], true
		}
		return err
	case iflaVFNodeGUID:
		return d.guid(a, &d.vf.NodeGUID)
	case iflaVFPortGUID:
		return d.guid(a, &d.vf.PortGUID)
	case iflaVFStats:
		return d.count(a.data)
	}
	return nil
}

func (d *vfDecoder) guid(a attribute, to **roce.GUID) error {
	b, err := d.field(a, 12)
	if err != nil {
		return err
	}
	g := roce.GUID(binary.NativeEndian.Uint64(b[4:]))
	*to = &g
	return nil
}

// field returns n bytes behind the index of a struct, and takes note of the index.
func (d *vfDecoder) field(a attribute, n int) ([]byte, error) {
	if len(a.data) < 4+n {
		return nil, fmt.Errorf("%w: VF attribute %d of %d bytes", errMalformed, a.kind, len(a.data))
	}
	vf := binary.NativeEndian.Uint32(a.data)
	switch {
	case vf >= maxVF:
		return nil, fmt.Errorf("%w: VF number %d", errMalformed, vf)
	case d.vf.Index >= 0 && d.vf.Index != int(vf):
		return nil, fmt.Errorf("%w: attributes of VF %d and %d in one", errMalformed, d.vf.Index, vf)
	}
	d.vf.Index = int(vf)
	return a.data[4 : 4+n], nil
}

// fields returns n u32 behind the index of a struct.
func (d *vfDecoder) fields(a attribute, n int) ([]uint32, error) {
	b, err := d.field(a, 4*n)
	if err != nil {
		return nil, err
	}
	out := make([]uint32, n)
	for i := range out {
		out[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return out, nil
}

// vlans reads IFLA_VF_VLAN_LIST, of which the kernel accepts one entry. Its protocol is in network order.
func (d *vfDecoder) vlans(data []byte) error {
	for a, err := range attributes(data) {
		if err != nil {
			return err
		}
		if a.kind != iflaVFVLANInfo {
			continue
		}
		b, err := d.field(a, 10)
		if err != nil {
			return err
		}
		d.vf.VLAN = int(binary.NativeEndian.Uint32(b))
		d.vf.QoS = int(binary.NativeEndian.Uint32(b[4:]))
		d.vf.Proto = binary.BigEndian.Uint16(b[8:])
		d.listed = true
		return nil
	}
	return nil
}

func setting(f []uint32, err error) *bool {
	if err != nil || f[0] == unreported {
		return nil
	}
	on := f[0] != 0
	return &on
}
