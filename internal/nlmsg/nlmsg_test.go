package nlmsg

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// TestRoundTrip: what is appended is walked again, as another implementation writes it.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds := rapid.SliceOfN(rapid.Uint16Range(1, 0x3fff), 0, 8).Draw(t, "kinds")
		var b, oracle []byte
		var datas [][]byte
		for _, k := range kinds {
			d := rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(t, "data")
			datas = append(datas, d)
			b = Append(b, k, d)
			oracle = append(oracle, nl.NewRtAttr(int(k), d).Serialize()...)
		}
		if !bytes.Equal(b, oracle) {
			t.Fatalf("got  %x\nwant %x", b, oracle)
		}
		i := 0
		for a, err := range Attributes(b) {
			if err != nil || a.Kind != kinds[i] || !bytes.Equal(a.Data, datas[i]) {
				t.Fatalf("attribute %d: %+v, %v", i, a, err)
			}
			i++
		}
		if i != len(kinds) {
			t.Fatalf("%d of %d attributes", i, len(kinds))
		}
	})
}

func TestNumbers(t *testing.T) {
	a := Attribute{Kind: 7, Data: binary.NativeEndian.AppendUint64(nil, 1<<40+5)}
	u8, _ := a.Uint8()
	u64, _ := a.Uint64()
	if u64 != 1<<40+5 || u8 != a.Data[0] {
		t.Errorf("numbers: %d %d", u8, u64)
	}
	short, err := Attribute{Data: binary.NativeEndian.AppendUint32(nil, 9)}.Uint64()
	if short != 9 || err != nil {
		t.Errorf("a 64-bit number in its short form: %d, %v", short, err)
	}
	for name, f := range map[string]func() error{
		"u8":  func() error { _, err := Attribute{}.Uint8(); return err },
		"u16": func() error { _, err := Attribute{Data: []byte{1}}.Uint16(); return err },
		"u32": func() error { _, err := Attribute{Data: []byte{1, 2, 3}}.Uint32(); return err },
		"u64": func() error { _, err := Attribute{Data: []byte{1, 2, 3}}.Uint64(); return err },
	} {
		if err := f(); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s of too few bytes: %v", name, err)
		}
	}
	if got := (Attribute{Data: []byte("ens1\x00")}).Text(); got != "ens1" {
		t.Errorf("text %q", got)
	}
}

// refusal is an NLMSG_ERROR body.
func refusal(errno int32, capped bool, text string) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(-errno))
	echo := []byte("an attribute of the request ")
	h := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(echo)))
	b = append(b, append(h, make([]byte, unix.SizeofNlMsghdr-4)...)...)
	if !capped {
		b = append(b, echo...)
	}
	if text != "" {
		b = AppendString(b, unix.NLMSGERR_ATTR_MSG, text)
	}
	return b
}

func TestVerdict(t *testing.T) {
	if err := verdict(0, refusal(0, true, "")); err != nil {
		t.Errorf("an acknowledgement: %v", err)
	}
	for _, capped := range []bool{false, true} {
		flags := uint16(unix.NLM_F_ACK_TLVS)
		if capped {
			flags |= unix.NLM_F_CAPPED
		}
		err := verdict(flags, refusal(int32(syscall.EBUSY), capped, "VFs are in use"))
		if !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "VFs are in use") {
			t.Errorf("capped %v: %v", capped, err)
		}
	}
	for _, bad := range [][]byte{{1}, binary.NativeEndian.AppendUint32(nil, 5), binary.NativeEndian.AppendUint32(nil, 1<<31)} {
		if err := verdict(0, bad); !errors.Is(err, ErrMalformed) {
			t.Errorf("verdict %x: %v", bad, err)
		}
	}
}

// TestTake: messages of another request are not taken for an answer, an interrupted dump is told.
func TestTake(t *testing.T) {
	msg := func(kind, flags uint16, seq uint32, data []byte) syscall.NetlinkMessage {
		return syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: kind, Flags: flags, Seq: seq}, Data: data}
	}
	a := answer{seq: 9}
	done, err := a.take([]syscall.NetlinkMessage{
		msg(80, 0, 8, []byte("other")),
		msg(80, unix.NLM_F_DUMP_INTR, 9, []byte("ours")),
		msg(unix.NLMSG_DONE, 0, 9, binary.NativeEndian.AppendUint32(nil, 0)),
	})
	if !done || err != nil || !a.changed || len(a.bodies) != 1 || string(a.bodies[0]) != "ours" {
		t.Errorf("done %v, err %v, %+v", done, err, a)
	}
	eno := -int32(syscall.ENODEV)
	if _, err := a.take([]syscall.NetlinkMessage{msg(unix.NLMSG_DONE, 0, 9, binary.NativeEndian.AppendUint32(nil, uint32(eno)))}); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("a dump that failed: %v", err)
	}
	// Three messages of two objects each: the second brings them above three, over two receives.
	a = answer{seq: 9, count: func(body []byte) int { return len(body) }, most: 3}
	two := msg(80, 0, 9, []byte("ab"))
	if done, err := a.take([]syscall.NetlinkMessage{two}); done || err != nil {
		t.Errorf("done %v, err %v, %+v", done, err, a)
	}
	if done, err := a.take([]syscall.NetlinkMessage{two, two}); !done || err != nil || len(a.bodies) != 2 {
		t.Errorf("done %v, err %v, %+v", done, err, a)
	}
}

// TestLive: the running kernel answers a dump and refuses what it does not know.
func TestLive(t *testing.T) {
	out, err := Ask(Request{Protocol: unix.NETLINK_ROUTE, Kind: unix.RTM_GETLINK, Dump: true, Body: make([]byte, unix.SizeofIfInfomsg)})
	if err != nil || len(out) == 0 {
		t.Fatalf("links of this machine: %d, %v", len(out), err)
	}
	one := Request{Protocol: unix.NETLINK_ROUTE, Kind: unix.RTM_GETLINK, Dump: true, Body: make([]byte, unix.SizeofIfInfomsg), Count: func([]byte) int { return 1 }}
	if out, err := Ask(one); err != nil || len(out) != 1 {
		t.Errorf("more links than none: %d, %v", len(out), err)
	}
	if _, err := Ask(Request{Protocol: unix.NETLINK_ROUTE, Kind: unix.RTM_GETLINK, Body: AppendString(make([]byte, unix.SizeofIfInfomsg), unix.IFLA_IFNAME, "none0")}); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("a link that is not there: %v", err)
	}
	if _, err := Ask(Request{Protocol: 31}); !errors.Is(err, syscall.EPROTONOSUPPORT) {
		t.Errorf("a protocol that no kernel has: %v", err)
	}
}

func FuzzAttributes(f *testing.F) {
	f.Add(Append(nil, 1, []byte("ens1\x00")), uint16(unix.NLM_F_ACK_TLVS))
	f.Add(refusal(22, false, "text"), uint16(unix.NLM_F_ACK_TLVS))
	f.Add([]byte{3, 0, 0, 0}, uint16(0))
	f.Fuzz(func(t *testing.T, b []byte, flags uint16) {
		n := 0
		for a, err := range Attributes(b) {
			if err != nil && !errors.Is(err, ErrMalformed) {
				t.Fatal(err)
			}
			n += unix.SizeofNlAttr + len(a.Data)
		}
		if n > len(b)+unix.SizeofNlAttr {
			t.Fatalf("%d bytes of attributes in %d", n, len(b))
		}
		_ = verdict(flags, b)
	})
}
