package netlink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/verbena-cloud/verbena/internal/devlink"
	"github.com/verbena-cloud/verbena/internal/nlmsg"
	"github.com/verbena-cloud/verbena/internal/sysfs"
)

// Devices is the host's devlink. The zero Devices is ready to use.
type Devices struct {
	guard sysfs.Guard
}

var _ devlink.Devices = (*Devices)(nil)

// List returns all instances, sorted.
func (s *Devices) List(ctx context.Context) ([]devlink.Device, error) {
	out, err := sysfs.Guarded(ctx, &s.guard, "list", "devlink", func() ([]devlink.Device, error) { return list(nlmsg.Ask) })
	if err != nil {
		return nil, fmt.Errorf("list devlink devices: %w", explain(err))
	}
	return out, nil
}

// Info asks the driver about its device.
func (s *Devices) Info(ctx context.Context, d devlink.Device) (devlink.Info, error) {
	return call(ctx, s, "read devlink info of", d, func() (devlink.Info, error) { return one(nlmsg.Ask, cmdInfoGet, d, decodeInfo) })
}

// Eswitch asks the driver about the switch in its card.
func (s *Devices) Eswitch(ctx context.Context, d devlink.Device) (devlink.Eswitch, error) {
	return call(ctx, s, "read devlink eswitch of", d, func() (devlink.Eswitch, error) { return one(nlmsg.Ask, cmdEswitchGet, d, decodeEswitch) })
}

// Stuck returns the devices with a call that has outlived its caller.
func (s *Devices) Stuck() []string { return s.guard.Stuck() }

// asker sends a request to the kernel.
type asker func(nlmsg.Request) ([][]byte, error)

// family asks for the number that devlink has in this kernel. The controller's ENOENT is the only one that
// means a kernel without devlink.
func family(ask asker) (uint16, error) {
	name := nlmsg.AppendString(nil, ctrlName, familyName)
	out, err := ask(nlmsg.Request{Protocol: unix.NETLINK_GENERIC, Kind: controller, Body: request(cmdGetFamily, ctrlVersion, name)})
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.EPROTONOSUPPORT), errors.Is(err, syscall.EAFNOSUPPORT):
		return 0, fmt.Errorf("%w: %w", devlink.ErrAbsent, err)
	case err != nil:
		return 0, fmt.Errorf("ask generic netlink for devlink: %w", err)
	case len(out) != 1:
		return 0, fmt.Errorf("%w: %d families of one name", nlmsg.ErrMalformed, len(out))
	}
	return decodeFamily(out[0])
}

func list(ask asker) ([]devlink.Device, error) {
	kind, err := family(ask)
	if err != nil {
		return nil, err
	}
	bodies, err := ask(nlmsg.Request{Protocol: unix.NETLINK_GENERIC, Kind: kind, Dump: true, Body: request(cmdGet, familyVersion, nil)})
	if err != nil {
		return nil, err
	}
	out := make([]devlink.Device, 0, len(bodies))
	for _, b := range bodies {
		d, err := decodeDevice(b)
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b devlink.Device) int {
		return cmp.Or(strings.Compare(a.Bus, b.Bus), sysfs.Numeric(a.Name, b.Name))
	})
	return slices.Compact(out), nil
}

// one asks about a single instance and holds the answer against it.
func one[T any](ask asker, cmd uint8, d devlink.Device, decode func([]byte) (devlink.Device, T, error)) (T, error) {
	var none T
	kind, err := family(ask)
	if err != nil {
		return none, err
	}
	bodies, err := ask(nlmsg.Request{Protocol: unix.NETLINK_GENERIC, Kind: kind, Body: request(cmd, familyVersion, handle(d))})
	switch {
	case err != nil:
		return none, err
	case len(bodies) != 1:
		return none, fmt.Errorf("%w: %d answers to one request", nlmsg.ErrMalformed, len(bodies))
	}
	who, out, err := decode(bodies[0])
	switch {
	case err != nil:
		return none, err
	case who != d:
		return none, fmt.Errorf("%w: the answer is about %.80s", nlmsg.ErrMalformed, who)
	}
	return out, nil
}

// call makes one guarded call about an instance.
func call[T any](ctx context.Context, s *Devices, op string, d devlink.Device, f func() (T, error)) (T, error) {
	var none T
	for _, part := range []string{d.Bus, d.Name} {
		if part == "" || len(part) > longestDeviceParts || strings.ContainsAny(part, "/\x00") {
			return none, fmt.Errorf("%s %.80q: no handle like pci/0000:3b:00.0: %w", op, d.String(), syscall.ENODEV)
		}
	}
	out, err := sysfs.Guarded(ctx, &s.guard, op, d.String(), f)
	if err != nil {
		return none, fmt.Errorf("%s %s: %w", op, d, explain(err))
	}
	return out, nil
}

// explain puts words to the refusals that have a meaning of their own here.
func explain(err error) error {
	switch {
	case errors.Is(err, devlink.ErrAbsent):
		return fmt.Errorf("%w; build it in (CONFIG_NET_DEVLINK), or load the NIC's driver, which brings it", err)
	case errors.Is(err, syscall.ENODEV):
		return fmt.Errorf("its driver made no devlink instance, or the device is gone: %w", err)
	case errors.Is(err, syscall.EOPNOTSUPP):
		return fmt.Errorf("the driver has no function for it: %w", err)
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("run it as root; a function that does not manage its card's switch (DPU) is refused too: %w", err)
	}
	return err
}
