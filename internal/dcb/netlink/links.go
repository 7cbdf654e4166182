package netlink

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/verbena-cloud/verbena/internal/dcb"
	"github.com/verbena-cloud/verbena/internal/nlmsg"
	"github.com/verbena-cloud/verbena/internal/sysfs"
)

// Links is the host's dcbnl. The zero Links is ready to use.
type Links struct {
	guard sysfs.Guard
}

var _ dcb.Links = (*Links)(nil)

// Get returns all that the driver of a link tells.
func (l *Links) Get(ctx context.Context, link string) (dcb.State, error) {
	s, err := call(ctx, l, "read DCB of", link, func() (dcb.State, error) { return get(ask, link) })
	if err != nil {
		return dcb.State{}, fmt.Errorf("read DCB of %s: %w", link, explain(err))
	}
	return s, nil
}

// Set makes one change and reads it back.
func (l *Links) Set(ctx context.Context, link string, c dcb.Change) error {
	_, err := call(ctx, l, "set DCB of", link, func() (struct{}, error) { return struct{}{}, set(ask, link, c) })
	if err != nil {
		return fmt.Errorf("%s: %w", c.Command(link), explain(err))
	}
	return nil
}

// explain puts words to the refusal that has a meaning of its own here.
func explain(err error) error {
	if dcb.Unsupported(err) {
		return fmt.Errorf("the driver or this kernel has no function for it: %w", err)
	}
	return err
}

// asker sends one dcbnl request and returns the body of its answer.
type asker func(kind uint16, cmd uint8, link string, attrs []byte) ([]byte, error)

func get(ask asker, link string) (dcb.State, error) {
	body, err := ask(unix.RTM_GETDCB, cmdIEEEGet, link, nil)
	if err != nil {
		return dcb.State{}, err
	}
	s, err := decodeState(body)
	if err != nil || s.Mode != nil {
		return s, err
	}
	// A kernel that leaves the mode out of the great answer may still tell it when asked.
	body, err = ask(unix.RTM_GETDCB, cmdGetDCBX, link, nil)
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	m, err := decodeState(body)
	s.Mode = m.Mode
	return s, err
}

func set(ask asker, link string, c dcb.Change) error {
	before, err := get(ask, link)
	switch {
	case err != nil:
		return err
	case !c.Told(before):
		return syscall.EOPNOTSUPP
	case c.Holds(before): // ice refuses the mode that it is in
		return nil
	}
	cmd, attrs, err := encode(c, before)
	if err != nil {
		return err
	}
	body, err := ask(unix.RTM_SETDCB, cmd, link, attrs)
	if err == nil {
		err = result(cmd, body)
	}
	if err != nil {
		return owned(err, before)
	}
	after, err := get(ask, link)
	if err != nil {
		return fmt.Errorf("read it back: %w", err)
	}
	if !c.Holds(after) {
		return owned(dcb.ErrNotTaken, after)
	}
	return nil
}

// owned adds to a refusal that somebody else owns the port, where the mode says so.
func owned(err error, s dcb.State) error {
	if s.Mode != nil && !s.Mode.Writable() {
		return fmt.Errorf("%w, its mode is %q: %w", dcb.ErrOwned, s.Mode.String(), err)
	}
	return err
}

// ask is the kernel's asker.
func ask(kind uint16, cmd uint8, link string, attrs []byte) ([]byte, error) {
	out, err := nlmsg.Ask(nlmsg.Request{Protocol: unix.NETLINK_ROUTE, Kind: kind, Body: request(cmd, link, attrs)})
	switch {
	case err != nil:
		return nil, err
	case len(out) != 1:
		return nil, fmt.Errorf("%w: %d answers to one request", nlmsg.ErrMalformed, len(out))
	}
	return out[0], nil
}

// call makes one guarded call on a link.
func call[T any](ctx context.Context, l *Links, op, link string, f func() (T, error)) (T, error) {
	if link == "" || len(link) >= unix.IFNAMSIZ || strings.ContainsAny(link, "/\x00") {
		var none T
		return none, syscall.ENODEV
	}
	return sysfs.Guarded(ctx, &l.guard, op, "link "+link, f)
}

// Stuck returns the links with a call that has outlived its caller.
func (l *Links) Stuck() []string { return l.guard.Stuck() }
