package ioctl

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/verbena-cloud/verbena/internal/ethtool"
	"github.com/verbena-cloud/verbena/internal/sysfs"
)

// Links is the host's ethtool. The zero Links is ready to use.
type Links struct {
	guard sysfs.Guard
}

var (
	_ ethtool.Links   = (*Links)(nil)
	_ ethtool.Modules = (*Links)(nil)
)

// Commands that golang.org/x/sys does not name for all it has, and sets of strings (linux/ethtool.h).
const (
	getDriver    = 0x03
	getStrings   = 0x1b
	getCounters  = 0x1d
	getFlags     = 0x27
	getSetInfo   = 0x37
	getChannels  = 0x3c
	getModule    = 0x42
	getModuleMem = 0x43
	getSettings  = 0x4c

	setCounters = 1
	setFlags    = 2

	stringRoom = 32      // ETH_GSTRING_LEN
	most       = 1 << 20 // more strings than any driver has
	tries      = 4
)

// caller makes one call to a link's driver; arg is the command's struct and takes the answer.
type caller func(cmd uint32, arg []byte) error

// Driver returns who drives a link.
func (l *Links) Driver(ctx context.Context, link string) (ethtool.Driver, error) {
	return ask(ctx, l, "read the driver of", link, driver)
}

// Settings returns how a link runs.
func (l *Links) Settings(ctx context.Context, link string) (ethtool.Settings, error) {
	return ask(ctx, l, "read the settings of", link, settings)
}

// Counters returns a driver's statistics.
func (l *Links) Counters(ctx context.Context, link string) ([]ethtool.Counter, error) {
	return ask(ctx, l, "read the counters of", link, counters)
}

// Flags returns a driver's private flags.
func (l *Links) Flags(ctx context.Context, link string) ([]ethtool.Flag, error) {
	return ask(ctx, l, "read the private flags of", link, flags)
}

// Channels returns how many queues a link has.
func (l *Links) Channels(ctx context.Context, link string) (ethtool.Channels, error) {
	return ask(ctx, l, "read the channels of", link, channels)
}

// Stuck returns the links with a call that has outlived its caller.
func (l *Links) Stuck() []string { return l.guard.Stuck() }

// ask runs f with calls to one link.
func ask[T any](ctx context.Context, l *Links, op, link string, f func(caller) (T, error)) (T, error) {
	if link == "" || len(link) >= unix.IFNAMSIZ || strings.ContainsAny(link, "/\x00") {
		var none T
		return none, fmt.Errorf("%s %s: %w", op, link, syscall.ENODEV)
	}
	v, err := sysfs.Guarded(ctx, &l.guard, op, "link "+link, func() (T, error) { return calling(link, f) })
	switch {
	case ethtool.Unsupported(err):
		err = fmt.Errorf("%s %s: its driver has no function for it: %w", op, link, err)
	case err != nil:
		err = fmt.Errorf("%s %s: %w", op, link, err)
	}
	return v, err
}

func driver(call caller) (ethtool.Driver, error) {
	b := make([]byte, 196) // struct ethtool_drvinfo
	if err := call(getDriver, b); err != nil {
		return ethtool.Driver{}, err
	}
	return ethtool.Driver{Name: text(b[4:36]), Version: text(b[36:68]), Firmware: text(b[68:100]), Bus: text(b[100:132]), Counters: int(number(b[180:]))}, nil
}

// settings asks twice: the first answer says how long the lists of modes are.
func settings(call caller) (ethtool.Settings, error) {
	const head, words = 48, 15 // of struct ethtool_link_settings
	b := make([]byte, head)
	if err := call(getSettings, b); err != nil {
		return ethtool.Settings{}, err
	}
	if n := -int(int8(b[words])); n > 0 {
		b = make([]byte, head+3*4*n)
		b[words] = byte(n)
		if err := call(getSettings, b); err != nil {
			return ethtool.Settings{}, err
		}
	}
	if int8(b[words]) <= 0 {
		return ethtool.Settings{}, fmt.Errorf("the kernel does not agree on the length of its lists of modes: %w", unix.EPROTO)
	}
	s := ethtool.Settings{Speed: int64(number(b[4:])), Duplex: ethtool.Duplex(b[8]), Port: ethtool.Port(b[9]), AutoNeg: b[11] == 1}
	if int32(s.Speed) == -1 { // SPEED_UNKNOWN
		s.Speed = 0
	}
	return s, nil
}

func channels(call caller) (ethtool.Channels, error) {
	b := make([]byte, 36) // struct ethtool_channels
	if err := call(getChannels, b); err != nil {
		return ethtool.Channels{}, err
	}
	queues := func(b []byte) ethtool.Queues {
		return ethtool.Queues{Rx: int(number(b)), Tx: int(number(b[4:])), Other: int(number(b[8:])), Combined: int(number(b[12:]))}
	}
	return ethtool.Channels{Max: queues(b[4:]), Now: queues(b[20:])}, nil
}

func flags(call caller) ([]ethtool.Flag, error) {
	return settled(func() (out []ethtool.Flag, err error) {
		names, err := names(call, setFlags)
		if err != nil {
			return nil, err
		}
		b := make([]byte, 8) // struct ethtool_value
		if err := call(getFlags, b); err != nil {
			return nil, err
		}
		for i, n := range names {
			out = append(out, ethtool.Flag{Name: n, On: i < 32 && number(b[4:])>>i&1 != 0})
		}
		return out, nil
	})
}

func counters(call caller) ([]ethtool.Counter, error) {
	return settled(func() (out []ethtool.Counter, err error) {
		names, err := names(call, setCounters)
		if err != nil {
			return nil, err
		}
		err = fenced(8+8*len(names), func(b []byte) error { // struct ethtool_stats
			if err := exactly(call, getCounters, b, len(names)); err != nil {
				return err
			}
			for i, n := range names {
				out = append(out, ethtool.Counter{Name: n, Value: binary.NativeEndian.Uint64(b[8+8*i:])})
			}
			return nil
		})
		return out, err
	})
}

// errChanged says that a number of strings or counters is not what it was in the call before.
var errChanged = errors.New("the driver's counters change faster than they can be read")

// settled repeats what needs several calls until nothing has changed between them.
func settled[T any](f func() (T, error)) (T, error) {
	for range tries - 1 {
		v, err := f()
		if !errors.Is(err, errChanged) {
			return v, err
		}
	}
	v, err := f()
	if errors.Is(err, errChanged) {
		err = fmt.Errorf("%w: %w", err, unix.EAGAIN)
	}
	return v, err
}

// names returns one of a driver's sets of strings; it is EOPNOTSUPP for one that it does not have.
func names(call caller, set uint32) (out []string, err error) {
	b := make([]byte, 20) // struct ethtool_sset_info with one number
	binary.NativeEndian.PutUint64(b[8:], 1<<set)
	if err := call(getSetInfo, b); err != nil {
		return nil, err
	}
	n := int(number(b[16:]))
	switch {
	case binary.NativeEndian.Uint64(b[8:])&(1<<set) == 0:
		return nil, unix.EOPNOTSUPP
	case n > most:
		return nil, fmt.Errorf("%d strings: %w", n, unix.EOVERFLOW)
	}
	err = fenced(12+stringRoom*n, func(b []byte) error { // struct ethtool_gstrings
		binary.NativeEndian.PutUint32(b[4:], set)
		if err := exactly(call, getStrings, b, n); err != nil {
			return err
		}
		for s := range slices.Chunk(b[12:], stringRoom) {
			out = append(out, text(s))
		}
		return nil
	})
	return out, err
}

// exactly calls for n strings or counters; where there are more or fewer by now, it is errChanged.
func exactly(call caller, cmd uint32, b []byte, n int) error {
	at := b[4:] // the number's place
	if cmd == getStrings {
		at = b[8:]
	}
	binary.NativeEndian.PutUint32(at, uint32(n))
	err := call(cmd, b)
	switch {
	case errors.Is(err, unix.EFAULT): // the kernel came to the end of b
		return errChanged
	case err != nil:
		return err
	case int(number(at)) != n:
		return errChanged
	}
	return nil
}

func number(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }

// text is a string in a field, up to its first zero.
func text(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return strings.TrimSpace(strings.ToValidUTF8(string(b), "?"))
}
