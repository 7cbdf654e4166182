package netlink

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/rtnl"
)

// tally is IFLA_VF_STATS as a kernel writes it. Where a counter would not be aligned to 8 bytes, some machines
// have an empty attribute of number 6 before it.
func tally(s rtnl.VFStats, padded bool) []byte {
	var b []byte
	put := func(kind uint16, v uint64) {
		if padded && (len(b)+unix.SizeofRtAttr)%8 != 0 {
			b = attr(b, 6, nil)
		}
		b = attr(b, kind, binary.NativeEndian.AppendUint64(nil, v))
	}
	for i, v := range []uint64{s.RxPackets, s.TxPackets, s.RxBytes, s.TxBytes, s.Broadcast, s.Multicast} {
		put(uint16(i), v)
	}
	if s.RxDropped != nil {
		put(7, *s.RxDropped)
	}
	if s.TxDropped != nil {
		put(8, *s.TxDropped)
	}
	return b
}

// counted is the body of an RTM_NEWLINK of VFs with statistics.
func counted(stats ...rtnl.VFStats) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	b = attr(b, unix.IFLA_NUM_VF, words(uint32(len(stats))))
	var list []byte
	for _, s := range stats {
		vf := attr(told(rtnl.VF{Index: s.Index, NodeGUID: ptr(roce.GUID(s.Index)), PortGUID: ptr(roce.GUID(0)), Proto: 0x8100}), iflaVFStats|unix.NLA_F_NESTED, tally(s, s.Index%2 == 1))
		list = attr(list, iflaVFInfo, vf)
	}
	b = attr(b, unix.IFLA_VFINFO_LIST, list) // its length is what 16 bits hold of it, as in a kernel
	return attr(b, unix.IFLA_PERM_ADDRESS, []byte{0x52, 0x54, 0, 0, 1, 1})
}

// TestT57_CountersByTheKernelsNumbers: padding has a number of its own among the counters, so that the drops
// stand one further than their place in a list. The bytes are written by hand from if_link.h, little endian.
func TestT57_CountersByTheKernelsNumbers(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the bytes are those of a little-endian machine")
	}
	var text strings.Builder
	text.WriteString("0c00 0900 03000000 01000000  6800 0880 ") // IFLA_VF_TRUST of VF 3, IFLA_VF_STATS
	for i, kind := range []int{0, 1, 2, 3, 4, 5, 6, 7, 8} {
		if kind == 6 {
			text.WriteString("0400 0600 ")
			continue
		}
		fmt.Fprintf(&text, "0c00 %02x00 %02x00000000000001 ", kind, 16+i)
	}
	b, err := hex.DecodeString(strings.ReplaceAll(text.String(), " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	vfs, stats, err := decodeVFs(attr(nil, iflaVFInfo, b))
	if err != nil || len(vfs) != 1 || vfs[0].Index != 3 || vfs[0].Trust == nil || !*vfs[0].Trust {
		t.Fatalf("VFs %+v, %v", vfs, err)
	}
	const high = 1 << 56
	want := []rtnl.VFStats{{
		Index: 3, RxPackets: high + 16, TxPackets: high + 17, RxBytes: high + 18, TxBytes: high + 19, Broadcast: high + 20, Multicast: high + 21,
		RxDropped: ptr(uint64(high + 23)), TxDropped: ptr(uint64(high + 24)),
	}}
	if diff := cmp.Diff(want, stats); diff != "" {
		t.Errorf("statistics (-want +got):\n%s", diff)
	}
}

// TestStatistics: any counters of any VFs come back, with padding and without, also from kernels that do not
// count drops.
func TestStatistics(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var want []rtnl.VFStats
		for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, 999), 0, 9, rapid.ID).Draw(t, "indexes") {
			n := rapid.SliceOfN(rapid.Uint64(), 8, 8).Draw(t, "counters")
			s := rtnl.VFStats{Index: i, RxPackets: n[0], TxPackets: n[1], RxBytes: n[2], TxBytes: n[3], Broadcast: n[4], Multicast: n[5]}
			if rapid.Bool().Draw(t, "drops") {
				s.RxDropped, s.TxDropped = &n[6], &n[7]
			}
			want = append(want, s)
		}
		info, err := decodeLink(counted(want...))
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(want, func(a, b rtnl.VFStats) int { return a.Index - b.Index })
		if diff := cmp.Diff(want, info.stats); diff != "" {
			t.Fatalf("statistics (-want +got):\n%s", diff)
		}
	})
}

// TestStatisticsAbsent: a VF that nothing is told of has no statistics, rather than zero.
func TestStatisticsAbsent(t *testing.T) {
	empty := attr(attr(nil, iflaVFTrust, words(1, 0)), iflaVFStats, nil)
	_, stats, err := decodeVFs(attr(attr(nil, iflaVFInfo, empty), iflaVFInfo, attr(nil, iflaVFTrust, words(2, 0))))
	if err != nil || len(stats) != 0 {
		t.Errorf("statistics %+v, %v", stats, err)
	}
	short := attr(attr(nil, iflaVFTrust, words(1, 0)), iflaVFStats, attr(nil, 7, words(5)))
	if _, _, err := decodeVFs(attr(nil, iflaVFInfo, short)); !errors.Is(err, errMalformed) {
		t.Errorf("a counter of 32 bits: %v", err)
	}
}

// TestT14_StatisticsOfManyVFs: the list of VFs with statistics is longer than its 16-bit length says, once,
// twice or just, and is read whole, with what stands behind it.
func TestT14_StatisticsOfManyVFs(t *testing.T) {
	for _, n := range []int{128, 180, 181, 192, 193, 200, 256, 400, 1000} {
		var want []rtnl.VFStats
		for i := range n {
			want = append(want, rtnl.VFStats{Index: i, RxBytes: uint64(i) << 40, RxDropped: ptr(uint64(7)), TxDropped: ptr(uint64(8))})
		}
		body := counted(want...)
		info, err := decodeLink(body)
		if err != nil {
			t.Fatalf("%d VFs: %v", n, err)
		}
		if diff := cmp.Diff(want, info.stats); diff != "" || len(info.vfs) != n || !info.hasMAC {
			t.Errorf("%d VFs in %d bytes: %d read, MAC behind them %v, statistics (-want +got):\n%s", n, len(body), len(info.vfs), info.hasMAC, diff)
		}
		if err := whole(info, len(body)); err != nil {
			t.Errorf("%d VFs: %v", n, err)
		}
	}
}

// TestCutList: what a kernel left out is an error that says so.
func TestCutList(t *testing.T) {
	body := counted(rtnl.VFStats{Index: 0}, rtnl.VFStats{Index: 1})
	info, err := decodeLink(body)
	if err != nil {
		t.Fatal(err)
	}
	info.count = 300
	if err := whole(info, 1<<17); !errors.Is(err, syscall.EMSGSIZE) || !strings.Contains(err.Error(), "300 VFs") {
		t.Errorf("err = %v", err)
	}
	if err := whole(info, len(body)); err != nil { // the driver can't describe the others
		t.Errorf("a short answer: %v", err)
	}
}

// TestT10_GUIDsOfAVF: that a VF has no GUID yet is told apart from a fabric that has none.
func TestT10_GUIDsOfAVF(t *testing.T) {
	want := []rtnl.VF{
		{Index: 0}, // Ethernet
		{Index: 1, NodeGUID: ptr(roce.GUID(0)), PortGUID: ptr(roce.GUID(0))},
		{Index: 2, NodeGUID: ptr(roce.GUID(0x0002c90300abcdef)), PortGUID: ptr(roce.GUID(0x0002c90300abcdf0))},
	}
	info, err := decodeLink(link(want...))
	if err != nil {
		t.Fatal(err)
	}
	same(t, info.vfs, want)
	for _, a := range []rtnl.Attr{rtnl.NodeGUID(0x0002c90300abcdef), rtnl.PortGUID(0x0002c90300abcdf0)} {
		b, err := encodeVF(1, a)
		if err != nil {
			t.Fatal(err)
		}
		vfs, _, err := decodeVFs(b[unix.SizeofRtAttr:])
		if err != nil || len(vfs) != 1 || vfs[0].Index != 1 {
			t.Fatalf("%s: %+v, %v", a, vfs, err)
		}
		if g, ok := a.(rtnl.NodeGUID); ok && *vfs[0].NodeGUID != roce.GUID(g) {
			t.Errorf("%s reads back as %s", a, *vfs[0].NodeGUID)
		}
		if g, ok := a.(rtnl.PortGUID); ok && *vfs[0].PortGUID != roce.GUID(g) {
			t.Errorf("%s reads back as %s", a, *vfs[0].PortGUID)
		}
	}
}
