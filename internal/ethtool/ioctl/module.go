package ioctl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/verbena-cloud/verbena/internal/ethtool"
	"github.com/verbena-cloud/verbena/internal/nlmsg"
)

// Module returns what a port's module tells.
func (l *Links) Module(ctx context.Context, link string) (ethtool.Module, error) {
	return ask(ctx, l, "read the module of", link, func(call caller) (ethtool.Module, error) {
		return module(nlmsg.Ask, call, link)
	})
}

// asker is nlmsg.Ask.
type asker func(nlmsg.Request) ([][]byte, error)

// module reads a module by pages, or where the kernel can't do that, as far as the ioctl goes.
func module(ask asker, call caller, link string) (ethtool.Module, error) {
	family, err := familyID(ask)
	if err == nil {
		var m ethtool.Module
		m, err = ethtool.ReadModule(func(at ethtool.At) ([]byte, error) { return page(ask, family, link, at) })
		if err == nil {
			return m, nil
		}
	}
	if !ethtool.Unsupported(err) && !errors.Is(err, unix.ENOENT) {
		return ethtool.Module{}, err
	}
	old, err := memory(call)
	if err != nil {
		return ethtool.Module{}, err
	}
	return ethtool.ReadModule(old)
}

// Numbers of generic netlink and of ethtool's family (linux/genetlink.h, linux/ethtool_netlink.h) that
// golang.org/x/sys does not name.
const (
	attrFamilyID   = 1
	attrFamilyName = 2
	cmdGetFamily   = 3

	attrHeader = 1
	attrOffset = 2
	attrLength = 3
	attrPage   = 4
	attrBank   = 5
	attrI2C    = 6
	attrData   = 7
)

// generic is struct genlmsghdr with attributes.
func generic(cmd uint8, attrs []byte) []byte { return append([]byte{cmd, 1, 0, 0}, attrs...) }

// one asks and finds one attribute in the one answer.
func one(ask asker, kind uint16, body []byte, want uint16) (nlmsg.Attribute, error) {
	out, err := ask(nlmsg.Request{Protocol: unix.NETLINK_GENERIC, Kind: kind, Body: body})
	if err != nil {
		return nlmsg.Attribute{}, err
	}
	if len(out) != 1 || len(out[0]) < unix.GENL_HDRLEN {
		return nlmsg.Attribute{}, fmt.Errorf("%w: %d answers to one request", nlmsg.ErrMalformed, len(out))
	}
	for a, err := range nlmsg.Attributes(out[0][unix.GENL_HDRLEN:]) {
		if err != nil {
			return nlmsg.Attribute{}, err
		}
		if a.Kind == want {
			return a, nil
		}
	}
	return nlmsg.Attribute{}, fmt.Errorf("%w: an answer without attribute %d", nlmsg.ErrMalformed, want)
}

// familyID returns the number of ethtool's family, ENOENT where the kernel has none (before Linux 5.6).
func familyID(ask asker) (uint16, error) {
	a, err := one(ask, unix.GENL_ID_CTRL, generic(cmdGetFamily, nlmsg.AppendString(nil, attrFamilyName, "ethtool")), attrFamilyID)
	if err != nil {
		return 0, err
	}
	return a.Uint16()
}

// page reads a place in a module's memory.
func page(ask asker, family uint16, link string, at ethtool.At) ([]byte, error) {
	b := nlmsg.Append(nil, attrHeader|unix.NLA_F_NESTED, nlmsg.AppendString(nil, unix.ETHTOOL_A_HEADER_DEV_NAME, link))
	b = nlmsg.AppendUint32(b, attrOffset, uint32(at.Offset))
	b = nlmsg.AppendUint32(b, attrLength, uint32(at.Length))
	b = nlmsg.Append(b, attrPage, []byte{at.Page})
	b = nlmsg.Append(b, attrBank, []byte{at.Bank})
	b = nlmsg.Append(b, attrI2C, []byte{at.I2C})
	a, err := one(ask, family, generic(unix.ETHTOOL_MSG_MODULE_EEPROM_GET, b), attrData)
	return a.Data, err
}

// memory is a module's memory as the ioctl reads it, all pages behind each other.
func memory(call caller) (func(ethtool.At) ([]byte, error), error) {
	info := make([]byte, 44) // struct ethtool_modinfo
	if err := call(getModule, info); err != nil {
		return nil, err
	}
	kind, size := number(info[4:]), int(number(info[8:]))
	return func(at ethtool.At) ([]byte, error) {
		from, ok := place(kind, at)
		if !ok || from+int(at.Length) > size {
			return nil, unix.EOPNOTSUPP
		}
		b := make([]byte, 16+int(at.Length)) // struct ethtool_eeprom
		binary.NativeEndian.PutUint32(b[8:], uint32(from))
		binary.NativeEndian.PutUint32(b[12:], uint32(at.Length))
		err := call(getModuleMem, b)
		return b[16:], err
	}, nil
}

// place is where the ioctl has a place, by the kind of the module (ETH_MODULE_SFF_*).
func place(kind uint32, at ethtool.At) (int, bool) {
	switch kind {
	case 1, 2: // SFF-8079 and SFF-8472
		if at.I2C == ethtool.I2CDiagnostics {
			return 256 + int(at.Offset), at.Page == 0
		}
		return int(at.Offset), at.Page == 0
	case 3, 4: // SFF-8636 and SFF-8436
		return int(at.Offset) + 128*int(at.Page), at.Bank == 0 && at.I2C == ethtool.I2CID
	}
	return 0, false
}
