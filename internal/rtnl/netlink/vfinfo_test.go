package netlink

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/rtnl"
)

func ptr[T any](v T) *T { return &v }

// oracle encodes a VF attribute with the structs of another implementation of if_link.h.
func oracle(vf int, a rtnl.Attr) []byte {
	list := nl.NewRtAttr(unix.IFLA_VFINFO_LIST, nil)
	info := list.AddRtAttr(nl.IFLA_VF_INFO, nil)
	switch a := a.(type) {
	case rtnl.MAC:
		m := nl.VfMac{Vf: uint32(vf)}
		copy(m.Mac[:], a[:])
		info.AddRtAttr(nl.IFLA_VF_MAC, m.Serialize())
	case rtnl.VLAN:
		info.AddRtAttr(nl.IFLA_VF_VLAN, (&nl.VfVlan{Vf: uint32(vf), Vlan: uint32(a.ID), Qos: uint32(a.QoS)}).Serialize())
	case rtnl.SpoofCheck:
		info.AddRtAttr(nl.IFLA_VF_SPOOFCHK, (&nl.VfSpoofchk{Vf: uint32(vf), Setting: number(bool(a))}).Serialize())
	case rtnl.Trust:
		info.AddRtAttr(nl.IFLA_VF_TRUST, (&nl.VfTrust{Vf: uint32(vf), Setting: number(bool(a))}).Serialize())
	case rtnl.State:
		info.AddRtAttr(nl.IFLA_VF_LINK_STATE, (&nl.VfLinkState{Vf: uint32(vf), LinkState: uint32(a)}).Serialize())
	case rtnl.Rate:
		info.AddRtAttr(nl.IFLA_VF_RATE, (&nl.VfRate{Vf: uint32(vf), MinTxRate: a.Min, MaxTxRate: a.Max}).Serialize())
	}
	return list.Serialize()
}

func anyAttr(t *rapid.T) rtnl.Attr {
	switch rapid.IntRange(0, 5).Draw(t, "kind") {
	case 0:
		return rtnl.MAC(rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, "mac"))
	case 1:
		return rtnl.VLAN{ID: rapid.IntRange(0, 4095).Draw(t, "vlan"), QoS: rapid.IntRange(0, 7).Draw(t, "qos")}
	case 2:
		return rtnl.SpoofCheck(rapid.Bool().Draw(t, "spoof"))
	case 3:
		return rtnl.Trust(rapid.Bool().Draw(t, "trust"))
	case 4:
		return rtnl.State(rapid.Uint32Range(0, 2).Draw(t, "state"))
	}
	return rtnl.Rate{Min: rapid.Uint32().Draw(t, "min"), Max: rapid.Uint32().Draw(t, "max")}
}

// TestEncode: every attribute has the bytes that another implementation gives it.
func TestEncode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vf, a := rapid.IntRange(0, 255).Draw(t, "vf"), anyAttr(t)
		got, err := encodeVF(vf, a)
		if err != nil {
			t.Fatal(err)
		}
		if want := oracle(vf, a); !bytes.Equal(got, want) {
			t.Fatalf("%s on VF %d:\ngot  %x\nwant %x", a, vf, got, want)
		}
	})
}

// TestEncodeGolden: bytes written out by hand from if_link.h, little endian.
func TestEncodeGolden(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the bytes are those of a little-endian machine")
	}
	for _, c := range []struct {
		a    rtnl.Attr
		want string
	}{
		{rtnl.VLAN{ID: 101, QoS: 3}, "1800 1600 1400 0100 1000 0200 03000000 65000000 03000000"},
		{rtnl.Trust(true), "1400 1600 1000 0100 0c00 0900 03000000 01000000"},
		{rtnl.Rate{Min: 0, Max: 500}, "1800 1600 1400 0100 1000 0600 03000000 00000000 f4010000"},
		{rtnl.NodeGUID(0x0002c90300abcdef), "1c00 1600 1800 0100 1400 0a00 03000000 00000000 efcdab0003c90200"},
		{rtnl.PortGUID(0x0002c90300abcdf0), "1c00 1600 1800 0100 1400 0b00 03000000 00000000 f0cdab0003c90200"},
		{rtnl.MAC{2, 0, 0, 0, 0, 9}, "3000 1600 2c00 0100 2800 0100 03000000 020000000009" + strings.Repeat("00", 26)},
	} {
		got, err := encodeVF(3, c.a)
		if want := strings.ReplaceAll(c.want, " ", ""); err != nil || hex.EncodeToString(got) != want {
			t.Errorf("%s: %x, %v\nwant %s", c.a, got, err, want)
		}
	}
	req := request(unix.RTM_SETLINK, unix.NLM_F_ACK, "ens1", linkFlags{unix.IFF_UP, unix.IFF_UP}, nil)
	want := strings.ReplaceAll("2c000000 1300 0500 01000000 00000000 00 00 0000 00000000 01000000 01000000 0900 0300 656e733100 000000", " ", "")
	if hex.EncodeToString(req) != want {
		t.Errorf("set up: %x\nwant    %s", req, want)
	}
}

// told is how a kernel tells of a VF: every attribute in a struct that begins with the index.
func told(v rtnl.VF) []byte {
	vf := uint32(v.Index)
	b := attr(nil, iflaVFMAC, append(append(words(vf), v.MAC[:]...), make([]byte, macRoom-6)...))
	b = attr(b, 13, append(words(vf), make([]byte, macRoom)...)) // IFLA_VF_BROADCAST
	b = attr(b, iflaVFVLAN, words(vf, uint32(v.VLAN), uint32(v.QoS)))
	if v.Proto != 0 {
		b = attr(b, iflaVFVLANList, attr(nil, iflaVFVLANInfo, append(words(vf, uint32(v.VLAN), uint32(v.QoS)), byte(v.Proto>>8), byte(v.Proto), 0, 0)))
	}
	b = attr(b, iflaVFTxRate, words(vf, v.MaxRate))
	b = attr(b, iflaVFRate, words(vf, v.MinRate, v.MaxRate))
	for _, s := range []struct {
		kind uint16
		on   *bool
	}{{iflaVFSpoofChk, v.SpoofCheck}, {7, nil}, {iflaVFTrust, v.Trust}} { // 7 is IFLA_VF_RSS_QUERY_EN
		n := uint32(unreported)
		if s.on != nil {
			n = number(*s.on)
		}
		b = attr(b, s.kind, words(vf, n))
	}
	if v.LinkState != nil {
		b = attr(b, iflaVFLinkState, words(vf, uint32(*v.LinkState)))
	}
	if v.NodeGUID != nil {
		b = attr(b, iflaVFNodeGUID, guid(vf, *v.NodeGUID))
	}
	if v.PortGUID != nil {
		b = attr(b, iflaVFPortGUID, guid(vf, *v.PortGUID))
	}
	return b
}

// link is the body of an RTM_NEWLINK with these VFs.
func link(vfs ...rtnl.VF) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	b = attr(b, unix.IFLA_IFNAME, []byte("ens1\x00"))
	b = attr(b, unix.IFLA_NUM_VF, words(uint32(len(vfs))))
	b = attr(b, unix.IFLA_PERM_ADDRESS, []byte{0x52, 0x54, 0, 0, 1, 1})
	var list []byte
	for _, v := range vfs {
		list = attr(list, iflaVFInfo|unix.NLA_F_NESTED, told(v))
	}
	return attr(b, unix.IFLA_VFINFO_LIST|unix.NLA_F_NESTED, list)
}

func TestDecode(t *testing.T) {
	vfs := []rtnl.VF{
		{Index: 0, SpoofCheck: ptr(true), Trust: ptr(false), LinkState: ptr(rtnl.LinkAuto)},
		{Index: 1, MAC: roce.MAC{2, 0, 0, 0, 0, 9}, VLAN: 101, QoS: 3, Proto: 0x8100, SpoofCheck: ptr(false), Trust: ptr(true), MinRate: 100, MaxRate: 500, LinkState: ptr(rtnl.LinkDisable)},
		{Index: 2}, // a driver that reports none of the settings
	}
	info, err := decodeLink(link(vfs...))
	if err != nil {
		t.Fatal(err)
	}
	same(t, info.vfs, vfs)
	if info.count != 3 || !info.hasMAC || info.permanent.String() != "52:54:00:00:01:01" {
		t.Errorf("info %+v", info)
	}
}

func same(t *testing.T, got, want []rtnl.VF) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("VFs (-want +got):\n%s", diff)
	}
}

// TestIndexNotPosition: the index of a VF is the vf field of its structs, also when the list leaves one
// out or has them in another order.
func TestIndexNotPosition(t *testing.T) {
	info, err := decodeLink(link(rtnl.VF{Index: 5, VLAN: 105}, rtnl.VF{Index: 2, VLAN: 102}, rtnl.VF{Index: 3, VLAN: 103}))
	if err != nil {
		t.Fatal(err)
	}
	same(t, info.vfs, []rtnl.VF{{Index: 2, VLAN: 102}, {Index: 3, VLAN: 103}, {Index: 5, VLAN: 105}})
}

// TestT14_ManyVFs: 256 VFs come in one message that is larger than usual buffers, and all are read.
func TestT14_ManyVFs(t *testing.T) {
	var vfs []rtnl.VF
	for i := range 256 {
		vfs = append(vfs, rtnl.VF{Index: i, VLAN: i + 1, SpoofCheck: ptr(true), LinkState: ptr(rtnl.LinkAuto)})
	}
	body := link(vfs...)
	if len(body) > 0xffff {
		t.Fatalf("the list of 256 VFs has %d bytes, over the 16-bit length of its attribute", len(body))
	}
	info, err := decodeLink(body)
	if err != nil {
		t.Fatal(err)
	}
	same(t, info.vfs, vfs)
}

// TestT53_VLANProtocol: the protocol of a VLAN is in network byte order, 802.1ad is told apart.
func TestT53_VLANProtocol(t *testing.T) {
	for _, proto := range []uint16{0x8100, 0x88a8} {
		info, err := decodeLink(link(rtnl.VF{Index: 1, VLAN: 101, QoS: 3, Proto: proto}))
		if err != nil || info.vfs[0].Proto != proto || info.vfs[0].VLAN != 101 || info.vfs[0].QoS != 3 {
			t.Errorf("%#x: %+v, %v", proto, info.vfs, err)
		}
	}
	empty := attr(nil, iflaVFMAC, append(words(1), make([]byte, macRoom)...))
	empty = attr(empty, iflaVFVLANList, nil) // a list without an entry
	vfs, _, err := decodeVFs(attr(nil, iflaVFInfo, empty))
	if err != nil || len(vfs) != 1 || vfs[0].Proto != 0 {
		t.Errorf("an empty VLAN list: %+v, %v", vfs, err)
	}
}

// TestTxRate: kernels and drivers with only the older form of a rate.
func TestTxRate(t *testing.T) {
	vfs, _, err := decodeVFs(attr(nil, iflaVFInfo, attr(nil, iflaVFTxRate, words(4, 900))))
	if err != nil || len(vfs) != 1 || vfs[0].MaxRate != 900 || vfs[0].Index != 4 {
		t.Fatalf("%+v, %v", vfs, err)
	}
}

func TestMalformed(t *testing.T) {
	one := func(attrs []byte) []byte { return attr(nil, iflaVFInfo, attrs) }
	for what, data := range map[string][]byte{
		"two indexes in one VF":    one(attr(attr(nil, iflaVFTrust, words(1, 0)), iflaVFSpoofChk, words(2, 0))),
		"one VF twice":             append(one(attr(nil, iflaVFTrust, words(1, 0))), one(attr(nil, iflaVFTrust, words(1, 1)))...),
		"no index":                 one(nil),
		"a short struct":           one(attr(nil, iflaVFVLAN, words(1, 101))),
		"an impossible index":      one(attr(nil, iflaVFTrust, words(0xffffffff, 0))),
		"a length over the end":    {0xff, 0, 1, 0, 0, 0, 0, 0},
		"a length under the least": {2, 0, 1, 0, 0, 0, 0, 0},
	} {
		if vfs, _, err := decodeVFs(data); !errors.Is(err, errMalformed) {
			t.Errorf("%s: %+v, %v", what, vfs, err)
		}
	}
	if _, err := decodeLink([]byte{1, 2, 3}); !errors.Is(err, errMalformed) {
		t.Errorf("a short link: %v", err)
	}
}

// TestVerdict: a refusal has its errno and the kernel's own words.
func TestVerdict(t *testing.T) {
	refusal := append(words(0xffffffff-uint32(syscall.EOPNOTSUPP)+1), make([]byte, unix.SizeofNlMsghdr)...)
	if err := verdict(refusal); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("refusal: %v", err)
	}
	if err := verdict(attr(refusal, unix.NLMSGERR_ATTR_MSG, []byte("VF is not ours\x00"))); !errors.Is(err, syscall.EOPNOTSUPP) || !strings.HasPrefix(err.Error(), "VF is not ours: ") {
		t.Errorf("refusal with a text: %v", err)
	}
	if err := verdict(make([]byte, 20)); err != nil {
		t.Errorf("acknowledgement: %v", err)
	}
	if err := verdict(words(7)); !errors.Is(err, errMalformed) {
		t.Errorf("positive errno: %v", err)
	}
	if err := verdict(nil); !errors.Is(err, errMalformed) {
		t.Errorf("empty: %v", err)
	}
}

func TestRelevant(t *testing.T) {
	event := func(sub string) []byte {
		return []byte("add@/devices/x\x00ACTION=add\x00DEVPATH=/devices/x\x00SUBSYSTEM=" + sub + "\x00SEQNUM=1\x00")
	}
	for sub, want := range map[string]bool{"pci": true, "net": true, "infiniband": true, "block": false, "pci_bus": false} {
		if got := relevant(event(sub)); got != want {
			t.Errorf("%s: %v", sub, got)
		}
	}
	if !relevant([]byte("libudev\x00\xfe\xed")) || !relevant(nil) {
		t.Error("what is not understood must be looked at")
	}
}

// TestT35_DeviceOfAContainer: the RDMA core tells that a device leaves a network namespace, and that it comes back when
// that one ends (rdma_dev_change_netns in drivers/infiniband/core/device.c). Both are looked at.
func TestT35_DeviceOfAContainer(t *testing.T) {
	const path = "/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/infiniband/mlx5_0"
	for _, action := range []string{"remove", "add", "move"} {
		if !relevant([]byte(action + "@" + path + "\x00ACTION=" + action + "\x00DEVPATH=" + path + "\x00SUBSYSTEM=infiniband\x00NAME=mlx5_0\x00SEQNUM=4711\x00")) {
			t.Errorf("%s is not looked at", action)
		}
	}
}

// FuzzAnswer: whatever comes from a socket is read or refused, never more.
func FuzzAnswer(f *testing.F) {
	f.Add(link(rtnl.VF{Index: 1, VLAN: 101, QoS: 3, Proto: 0x8100, SpoofCheck: ptr(true)}, rtnl.VF{Index: 0, LinkState: ptr(rtnl.LinkEnable)}))
	f.Add(request(unix.RTM_NEWLINK, 0, "ens1", linkFlags{}, attr(nil, unix.IFLA_VFINFO_LIST, attr(nil, iflaVFInfo, told(rtnl.VF{Index: 2})))))
	f.Add([]byte{16, 0, 0, 0, 2, 0})
	f.Add(counted(rtnl.VFStats{Index: 1, RxPackets: 1, TxDropped: ptr(uint64(8))}, rtnl.VFStats{Index: 4, Multicast: 6}))
	f.Fuzz(func(t *testing.T, b []byte) {
		seen := 0
		for m, err := range messages(b) {
			if err != nil {
				break
			}
			if seen++; seen > len(b) {
				t.Fatal("more messages than bytes")
			}
			_, _ = decodeLink(m.data)
			_ = verdict(m.data)
		}
		info, err := decodeLink(b)
		if err != nil {
			return
		}
		for i, v := range info.vfs {
			if v.Index < 0 || v.Index >= maxVF || (i > 0 && info.vfs[i-1].Index >= v.Index) {
				t.Fatalf("VFs out of order: %+v", info.vfs)
			}
			if back, _, err := decodeVFs(attr(nil, iflaVFInfo, told(v))); err != nil || len(back) != 1 || back[0].VLAN != v.VLAN || back[0].Index != v.Index {
				t.Fatalf("%+v does not survive: %+v, %v", v, back, err)
			}
		}
		for i, s := range info.stats {
			if i > 0 && info.stats[i-1].Index >= s.Index {
				t.Fatalf("statistics out of order: %+v", info.stats)
			}
		}
		_ = relevant(b)
	})
}
