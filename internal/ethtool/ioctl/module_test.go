package ioctl

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-cloud/verbena/internal/ethtool"
	"github.com/verbena-cloud/verbena/internal/nlmsg"
)

// cable is a passive QSFP28 cable as SFF-8636 has it: identifier, flat memory, copper, vendor.
func cable() []byte {
	b := make([]byte, 256)
	b[0], b[2], b[128], b[130], b[147] = 0x11, 4, 0x11, 0x23, 0xa0
	copy(b[148:], "VENDOR          ")
	return b
}

// pages answers netlink requests for a module's memory.
func pages(t *testing.T, mem []byte) asker {
	t.Helper()
	return func(r nlmsg.Request) ([][]byte, error) {
		if r.Kind == unix.GENL_ID_CTRL {
			return [][]byte{generic(1, nlmsg.Append(nlmsg.AppendString(nil, 2, "ethtool"), 1, binary.NativeEndian.AppendUint16(nil, 21)))}, nil
		}
		if r.Kind != 21 || r.Body[0] != 31 {
			t.Errorf("request %d of family %d", r.Body[0], r.Kind)
		}
		if mem == nil {
			return nil, unix.EOPNOTSUPP
		}
		offset := 0
		for a, err := range nlmsg.Attributes(r.Body[4:]) {
			if err != nil {
				t.Error(err)
			}
			if a.Kind == attrOffset {
				n, _ := a.Uint32()
				offset = int(n)
			}
		}
		return [][]byte{generic(32, nlmsg.Append(nil, attrData, mem[offset:offset+128]))}, nil
	}
}

// linear answers the ioctls for a module's memory.
func linear(kind uint32, mem []byte) caller {
	return func(cmd uint32, b []byte) error {
		switch cmd {
		case getModule:
			binary.NativeEndian.PutUint32(b[4:], kind)
			binary.NativeEndian.PutUint32(b[8:], uint32(len(mem)))
		case getModuleMem:
			from := number(b[8:])
			if int(from+number(b[12:])) > len(mem) {
				return unix.EINVAL
			}
			copy(b[16:], mem[from:from+number(b[12:])])
		}
		return nil
	}
}

func refused(uint32, []byte) error { return unix.EOPNOTSUPP }

func TestModule(t *testing.T) {
	none := func(nlmsg.Request) ([][]byte, error) { return nil, unix.ENOENT }
	for what, read := range map[string]func() (ethtool.Module, error){
		"by pages":             func() (ethtool.Module, error) { return module(pages(t, cable()), refused, "ens1") },
		"no netlink":           func() (ethtool.Module, error) { return module(none, linear(3, cable()), "ens1") },
		"netlink can't do it":  func() (ethtool.Module, error) { return module(pages(t, nil), linear(3, cable()), "ens1") },
		"as an older standard": func() (ethtool.Module, error) { return module(none, linear(4, cable()), "ens1") },
	} {
		m, err := read()
		if err != nil || m.Form != "QSFP28" || m.Vendor != "VENDOR" || !m.Copper {
			t.Errorf("%s: %+v, %v", what, m, err)
		}
	}
	if _, err := module(none, refused, "ens1"); !ethtool.Unsupported(err) {
		t.Errorf("nothing reads it: %v", err)
	}
	broken := func(nlmsg.Request) ([][]byte, error) { return nil, unix.EIO }
	if _, err := module(broken, linear(3, cable()), "ens1"); !errors.Is(err, syscall.EIO) {
		t.Errorf("an empty port: %v", err)
	}
	short := func(nlmsg.Request) ([][]byte, error) { return [][]byte{{1}}, nil }
	if _, err := module(short, refused, "ens1"); !errors.Is(err, nlmsg.ErrMalformed) {
		t.Errorf("a short answer: %v", err)
	}
}

// TestPageRequest: bytes written out by hand from linux/ethtool_netlink.h, little endian.
func TestPageRequest(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the bytes are those of a little-endian machine")
	}
	var got string
	_, err := page(func(r nlmsg.Request) ([][]byte, error) {
		got = hex.EncodeToString(r.Body)
		return [][]byte{generic(32, nil)}, nil
	}, 21, "ens1", ethtool.At{I2C: 0x50, Bank: 1, Page: 0x11, Offset: 128, Length: 128})
	want := "1f010000 10000180 09000200656e733100000000 08000200 80000000 08000300 80000000 0500040011000000 0500050001000000 0500060050000000"
	if got != strings.ReplaceAll(want, " ", "") {
		t.Errorf("request\n%s\nwant\n%s", got, strings.ReplaceAll(want, " ", ""))
	}
	if !errors.Is(err, nlmsg.ErrMalformed) {
		t.Errorf("an answer without data: %v", err)
	}
}

func TestPlace(t *testing.T) {
	for _, c := range []struct {
		kind uint32
		at   ethtool.At
		want int
	}{
		{2, ethtool.At{I2C: 0x50}, 0},
		{2, ethtool.At{I2C: 0x51}, 256},
		{3, ethtool.At{I2C: 0x50, Offset: 128}, 128},
		{3, ethtool.At{I2C: 0x50, Page: 3, Offset: 128}, 512},
		{4, ethtool.At{I2C: 0x50, Page: 1, Offset: 128}, 256},
		{3, ethtool.At{I2C: 0x50, Bank: 1, Offset: 128}, -1},
		{9, ethtool.At{I2C: 0x50}, -1},
	} {
		got, ok := place(c.kind, c.at)
		if ok != (c.want >= 0) || ok && got != c.want {
			t.Errorf("kind %d, %+v: %d, %v", c.kind, c.at, got, ok)
		}
	}
}
