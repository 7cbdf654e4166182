package netlink

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/verbena-cloud/verbena/internal/dcb"
	"github.com/verbena-cloud/verbena/internal/nlmsg"
)

// The bytes of each struct as a C compiler lays it out from linux/dcbnl.h on x86-64.
const (
	goldenPFC     = "08080100341200000001000000000000010100000000000002010000000000000301000000000000040100000000000005010000000000000601000000000000070100000000000000000000020000000100000002000000020000000200000003000000020000000400000002000000050000000200000006000000020000000700000002000000"
	goldenETS     = "0108010a0b0c0d0e0f10111415161718191a1b000102000102000107060504030201001e1f202122232425ffffffffffffffff0001020304050607"
	goldenDSCP    = "05031a00"
	goldenUDP     = "0303b712"
	goldenMaxRate = "000000000000000040420f000000000080841e0000000000c0c62d000000000000093d0000000000404b4c0000000000808d5b0000000000c0cf6a0000000000"
	goldenBuffer  = "0000000100000000000000000010000000200000003000000040000000500000006000000070000045230100"
)

func littleEndian(t *testing.T) {
	t.Helper()
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the bytes are those of a little-endian machine")
	}
}

func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

// golden is the state that the structs above hold.
func golden() dcb.State {
	mode := dcb.HostIEEE
	s := dcb.State{
		Mode: &mode,
		PFC:  &dcb.PFC{Cap: 8, Enabled: dcb.Of(3), MBC: true, Delay: 0x1234},
		ETS:  &dcb.ETS{Willing: true, Cap: 8, CBS: true},
		Apps: []dcb.App{{Selector: dcb.Datagram, Protocol: 4791, Priority: 3}, {Selector: dcb.DSCP, Protocol: 26, Priority: 3}},
		// One of each other kind.
		Trust:   []dcb.Selector{dcb.DSCP, dcb.PCP},
		MaxRate: new([8]uint64),
		Buffer:  &dcb.Buffer{Prio: [8]uint8{3: 1}, Total: 0x12345},
	}
	for i := range 8 {
		s.PFC.Requests[i], s.PFC.Indications[i] = uint64(0x100+i), uint64(0x200000000+i)
		s.ETS.TxBW[i], s.ETS.RxBW[i], s.ETS.TSA[i], s.ETS.PrioTC[i] = uint8(10+i), uint8(20+i), dcb.TSA(i%3), uint8(7-i)
		s.ETS.RecoBW[i], s.ETS.RecoTSA[i], s.ETS.RecoPrioTC[i] = uint8(30+i), dcb.Vendor, uint8(i)
		s.MaxRate[i], s.Buffer.Size[i] = uint64(1000000*i), uint32(0x1000*i)
	}
	return s
}

// answer is what a kernel tells of this state, from the golden structs.
func answer() []byte {
	apps := nlmsg.Append(nlmsg.Append(nil, 1, unhex(goldenDSCP)), 1, unhex(goldenUDP))
	ieee := nlmsg.Append(nil, 1, unhex(goldenETS))
	ieee = nlmsg.Append(ieee, 7, unhex(goldenMaxRate))
	ieee = nlmsg.Append(ieee, 2, unhex(goldenPFC))
	ieee = nlmsg.Append(ieee, 10, unhex(goldenBuffer))
	ieee = nlmsg.Append(ieee, 3, apps)
	ieee = nlmsg.Append(ieee, 11, nlmsg.Append(nlmsg.Append(nil, 1, []byte{5}), 2, []byte{255}))
	ieee = nlmsg.Append(ieee, 99, []byte("of a newer kernel"))
	b := nlmsg.AppendString([]byte{0, 21, 0, 0}, 1, "ens1")
	b = nlmsg.Append(b, 13, ieee)
	return nlmsg.Append(b, 14, []byte{9})
}

func TestDecodeGolden(t *testing.T) {
	littleEndian(t)
	got, err := decodeState(answer())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(golden(), got); diff != "" {
		t.Error(diff)
	}
}

func TestDecodePeer(t *testing.T) {
	littleEndian(t)
	ieee := nlmsg.Append(nil, 4, unhex(goldenETS))
	ieee = nlmsg.Append(ieee, 5, unhex(goldenPFC))
	ieee = nlmsg.Append(ieee, 6, nlmsg.Append(nil, 1, unhex(goldenUDP)))
	got, err := decodeState(nlmsg.Append([]byte{0, 21, 0, 0}, 13|unix.NLA_F_NESTED, ieee))
	if err != nil {
		t.Fatal(err)
	}
	want := dcb.State{PeerETS: golden().ETS, PeerPFC: golden().PFC, PeerApps: golden().Apps[:1]}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestEncodeGolden: whole requests, written out by hand around the structs.
func TestEncodeGolden(t *testing.T) {
	littleEndian(t)
	s := golden()
	pfc := "08080100 3412" + strings.Repeat("00", 130)
	for _, c := range []struct {
		change dcb.Change
		cmd    uint8
		want   string
	}{
		{dcb.SetMode(dcb.HostIEEE), 23, "0500 0e00 09 000000"},
		{dcb.SetPFC{Enabled: dcb.Of(3)}, 20, "9000 0d80 8c00 0200" + pfc},
		{dcb.AddApp(s.Apps[1]), 20, "1000 0d80 0c00 0380 0800 0100" + goldenDSCP},
		{dcb.DelApp(s.Apps[0]), 27, "1000 0d80 0c00 0380 0800 0100" + goldenUDP},
		{dcb.AddApp{Selector: dcb.PCP, Protocol: 10, Priority: 3}, 20, "1000 0d80 0c00 0380 0800 0200 ff030a00"},
		{dcb.SetTrust{dcb.DSCP, dcb.PCP}, 20, "1800 0d80 1400 0b80 0500 0100 05 000000 0500 0200 ff 000000"},
		{dcb.SetMaxRate(*s.MaxRate), 20, "4800 0d80 4400 0700" + goldenMaxRate},
		{dcb.SetBuffer{Prio: s.Buffer.Prio, Size: s.Buffer.Size}, 20, "3400 0d80 3000 0a00" + goldenBuffer[:80] + "00000000"},
	} {
		cmd, got, err := encode(c.change, s)
		if want := strings.ReplaceAll(c.want, " ", ""); err != nil || cmd != c.cmd || hex.EncodeToString(got) != want {
			t.Errorf("%s: command %d, %v\ngot  %x\nwant %s", c.change.Command("ens1"), cmd, err, got, want)
		}
	}
	if got := hex.EncodeToString(request(21, "ens1", nil)); got != "001500000900010065"+"6e733100000000" {
		t.Errorf("request: %s", got)
	}
}

// TestRoundTrip: what is encoded for the kernel decodes to what was meant, whatever was before.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		eight := func(name string) (out [8]uint8) {
			copy(out[:], rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(t, name))
			return out
		}
		before := dcb.State{PFC: &dcb.PFC{Cap: 8, Delay: 7}, ETS: &dcb.ETS{Cap: 8, Willing: true}}
		var change dcb.Change
		switch rapid.IntRange(0, 4).Draw(t, "kind") {
		case 0:
			change = dcb.SetPFC{Enabled: dcb.Set(rapid.Byte().Draw(t, "en")), Delay: rapid.Uint16().Draw(t, "delay")}
		case 1:
			ets := dcb.SetETS{TxBW: eight("bw"), PrioTC: eight("tc")}
			for i, a := range eight("tsa") {
				ets.TSA[i] = dcb.TSA(a)
			}
			change = ets
		case 2:
			change = dcb.AddApp{Selector: dcb.Selector(rapid.Byte().Draw(t, "sel")), Protocol: rapid.Uint16().Draw(t, "proto"), Priority: rapid.IntRange(0, 7).Draw(t, "prio")}
		case 3:
			change = dcb.SetTrust{dcb.Selector(rapid.Byte().Draw(t, "sel")), dcb.DSCP}
		case 4:
			var r dcb.SetMaxRate
			copy(r[:], rapid.SliceOfN(rapid.Uint64(), 8, 8).Draw(t, "rate"))
			change = r
		}
		_, attrs, err := encode(change, before)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeState(request(cmdIEEESet, "ens1", attrs))
		if err != nil || !change.Holds(got) {
			t.Fatalf("%s: %+v, %v", change.Command("ens1"), got, err)
		}
		if got.PFC != nil && (got.PFC.Cap != 8 || got.PFC.Delay == 0) || got.ETS != nil && (got.ETS.Cap != 8 || got.ETS.Willing) {
			t.Fatalf("what was before: %+v %+v", got.PFC, got.ETS)
		}
	})
}

func TestResult(t *testing.T) {
	told := func(kind uint16, v byte) []byte { return nlmsg.Append([]byte{0, 20, 0, 0}, kind, []byte{v}) }
	for _, c := range []struct {
		cmd  uint8
		body []byte
		want error
	}{
		{cmdIEEESet, told(13, 0), nil},
		{cmdIEEEDel, told(13, 0xfe), syscall.ENOENT},
		{cmdIEEESet, told(13, 0xea), syscall.EINVAL},
		{cmdIEEESet, told(13, 0xa1), syscall.EOPNOTSUPP},
		{cmdIEEESet, told(13, 0xf4), syscall.EOPNOTSUPP}, // ENOTSUPP, 524, in one byte
		{cmdIEEESet, told(13, 0xf4), syscall.ENOMEM},
		{cmdIEEESet, told(13, 1), syscall.EINVAL},
		{cmdSetDCBX, told(14, 0), nil},
		{cmdSetDCBX, told(14, 1), syscall.EINVAL},
		{cmdIEEESet, []byte{0, 20, 0, 0}, nlmsg.ErrMalformed},
		{cmdIEEESet, []byte{0}, nlmsg.ErrMalformed},
	} {
		if err := result(c.cmd, c.body); !errors.Is(err, c.want) {
			t.Errorf("%d %x: %v, want %v", c.cmd, c.body, err, c.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(answer())
	f.Add([]byte{0, 20, 0, 0})
	f.Add(nlmsg.Append([]byte{0, 20, 0, 0}, 13, []byte{0xea}))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, cmd := range []uint8{cmdIEEESet, cmdSetDCBX} {
			_ = result(cmd, b)
		}
		s, err := decodeState(b)
		if err != nil {
			if !errors.Is(err, nlmsg.ErrMalformed) {
				t.Fatal(err)
			}
			return
		}
		if 8*(len(s.Apps)+len(s.PeerApps)+len(s.Trust)) > len(b) {
			t.Fatalf("%d entries out of %d bytes", len(s.Apps)+len(s.PeerApps)+len(s.Trust), len(b))
		}
	})
}
