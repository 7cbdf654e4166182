package netlink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/verbena-cloud/verbena/internal/nlmsg"
	"github.com/verbena-cloud/verbena/internal/rdma"
	"github.com/verbena-cloud/verbena/internal/sysfs"
)

// Devices is the host's RDMA core. The zero Devices is ready to use.
type Devices struct {
	// Proc is the host's /proc, where names of processes are looked up; nil = they are not.
	Proc  fs.FS
	guard sysfs.Guard
}

var (
	_ rdma.Devices = (*Devices)(nil)
	_ rdma.System  = (*Devices)(nil)
)

// List returns all devices, by name.
func (s *Devices) List(ctx context.Context) ([]rdma.Device, error) {
	return call(ctx, s, "list RDMA devices", "", func() ([]rdma.Device, error) { return list(ask) })
}

// Ports returns the ports of a device, by number.
func (s *Devices) Ports(ctx context.Context, d rdma.ID) ([]rdma.Port, error) {
	return call(ctx, s, "read ports of", d.Name, func() ([]rdma.Port, error) { return ports(ask, d) })
}

// Resources counts what is allocated on a device.
func (s *Devices) Resources(ctx context.Context, d rdma.ID) (rdma.Resources, error) {
	return call(ctx, s, "count resources of", d.Name, func() (rdma.Resources, error) {
		return one(ask, cmdResGet, d, 0, decodeSummary)
	})
}

// QueuePairs returns at most so many queue pairs of a device, by number.
func (s *Devices) QueuePairs(ctx context.Context, d rdma.ID, most int) (list []rdma.QP, more bool, err error) {
	most = max(most, 0)
	list, err = call(ctx, s, "list queue pairs of", d.Name, func() ([]rdma.QP, error) { return pairs(upTo(most), d) })
	if more = len(list) > most; more {
		list = slices.Clone(list[:most])
	}
	s.programs(list)
	return list, more, err
}

// Counters returns the driver's hardware counters of a port.
func (s *Devices) Counters(ctx context.Context, d rdma.ID, port int) (map[string]uint64, error) {
	return call(ctx, s, "read counters of", d.Name+"/"+strconv.Itoa(port), func() (map[string]uint64, error) { return counters(ask, d, port) })
}

// Sharing returns how network namespaces share devices.
func (s *Devices) Sharing(ctx context.Context) (rdma.Sharing, error) {
	return call(ctx, s, "read the RDMA namespace mode", "", func() (rdma.Sharing, error) { return sharing(ask) })
}

// Stuck returns the devices with a call that has outlived its caller.
func (s *Devices) Stuck() []string { return s.guard.Stuck() }

// programs looks up the names of processes that made queue pairs. One that ended meanwhile has none.
func (s *Devices) programs(list []rdma.QP) {
	if s.Proc == nil {
		return
	}
	names := map[int]string{}
	for i, q := range list {
		if q.PID == 0 {
			continue
		}
		name, known := names[q.PID]
		if !known {
			text, err := fs.ReadFile(s.Proc, strconv.Itoa(q.PID)+"/comm")
			if err == nil {
				name = strings.TrimSuffix(string(text), "\n")
			}
			names[q.PID] = name
		}
		list[i].Program = name
	}
}

// asker sends a command with its attributes.
type asker func(cmd uint16, dump bool, attrs []byte) ([][]byte, error)

// ask is the kernel's asker.
func ask(cmd uint16, dump bool, attrs []byte) ([][]byte, error) {
	return query(nlmsg.Request{Kind: kind(cmd), Dump: dump, Body: attrs})
}

// upTo is an asker that reads no further than above so many queue pairs: a device may have a million.
func upTo(most int) asker {
	return func(cmd uint16, dump bool, attrs []byte) ([][]byte, error) {
		return query(nlmsg.Request{Kind: kind(cmd), Dump: dump, Body: attrs, Count: countQueuePairs, Most: most})
	}
}

func query(r nlmsg.Request) ([][]byte, error) {
	r.Protocol = unix.NETLINK_RDMA
	out, err := nlmsg.Ask(r)
	if errors.Is(err, syscall.EPROTONOSUPPORT) || errors.Is(err, syscall.EAFNOSUPPORT) {
		err = fmt.Errorf("%w; modprobe ib_core, or use a kernel with CONFIG_INFINIBAND: %w", rdma.ErrAbsent, err)
	}
	return out, err
}

func list(ask asker) ([]rdma.Device, error) {
	bodies, err := ask(cmdGet, true, nil)
	if err != nil {
		return nil, err
	}
	out := make([]rdma.Device, 0, len(bodies))
	for _, b := range bodies {
		d, err := decodeDevice(b)
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b rdma.Device) int {
		return cmp.Or(sysfs.Numeric(a.Name, b.Name), cmp.Compare(a.Index, b.Index))
	})
	return slices.CompactFunc(out, func(a, b rdma.Device) bool { return a.ID == b.ID }), nil
}

func ports(ask asker, d rdma.ID) ([]rdma.Port, error) {
	bodies, err := about(ask, cmdPortGet, true, d, 0)
	if err != nil {
		return nil, err
	}
	out := make([]rdma.Port, 0, len(bodies))
	for _, b := range bodies {
		who, p, err := decodePort(b)
		if err == nil {
			err = same(d, who)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b rdma.Port) int { return cmp.Compare(a.Number, b.Number) })
	return out, nil
}

func pairs(ask asker, d rdma.ID) ([]rdma.QP, error) {
	bodies, err := about(ask, cmdQPGet, true, d, 0)
	if err != nil {
		return nil, err
	}
	out := []rdma.QP{}
	for _, b := range bodies {
		who, part, err := decodeQueuePairs(b)
		if err == nil {
			err = same(d, who)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, part...)
	}
	slices.SortFunc(out, func(a, b rdma.QP) int { return cmp.Or(cmp.Compare(a.Local, b.Local), cmp.Compare(a.Port, b.Port)) })
	return out, nil
}

// counters asks for a port's. EINVAL of a device and a port that are there means a driver without any.
func counters(ask asker, d rdma.ID, port int) (map[string]uint64, error) {
	out, err := one(ask, cmdCounters, d, port, decodeCounters)
	if !errors.Is(err, syscall.EINVAL) {
		return out, err
	}
	now, bad := one(ask, cmdGet, d, 0, func(b []byte) (rdma.ID, rdma.Device, error) {
		dev, err := decodeDevice(b)
		return dev.ID, dev, err
	})
	switch {
	case bad != nil:
		return nil, bad
	case port < 1 || port > now.Ports:
		return nil, fmt.Errorf("it has ports 1 to %d: %w", now.Ports, err)
	}
	return nil, fmt.Errorf("the driver keeps no counters of its ports (%w): %w", err, syscall.EOPNOTSUPP)
}

func sharing(ask asker) (rdma.Sharing, error) {
	bodies, err := ask(cmdSysGet, false, nil)
	switch {
	case errors.Is(err, syscall.EINVAL):
		return 0, fmt.Errorf("this kernel does not tell (%w): %w", err, syscall.EOPNOTSUPP)
	case err != nil:
		return 0, err
	case len(bodies) != 1:
		return 0, fmt.Errorf("%w: %d answers to one request", nlmsg.ErrMalformed, len(bodies))
	}
	s, told, err := decodeSharing(bodies[0])
	if err == nil && !told {
		err = fmt.Errorf("this kernel does not tell: %w", syscall.EOPNOTSUPP)
	}
	return s, err
}

// about asks about a device, and about a port where it is not 0.
func about(ask asker, cmd uint16, dump bool, d rdma.ID, port int) ([][]byte, error) {
	attrs := nlmsg.AppendUint32(nil, attrIndex, d.Index)
	if port != 0 {
		attrs = nlmsg.AppendUint32(attrs, attrPort, uint32(port))
	}
	out, err := ask(cmd, dump, attrs)
	if errors.Is(err, syscall.EINVAL) { // so it says that there is no such device, and much else
		if _, gone := ask(cmdGet, false, nlmsg.AppendUint32(nil, attrIndex, d.Index)); errors.Is(gone, syscall.EINVAL) {
			err = rdma.Gone(d)
		}
	}
	return out, err
}

// one asks for a single answer and holds it against the device.
func one[T any](ask asker, cmd uint16, d rdma.ID, port int, decode func([]byte) (rdma.ID, T, error)) (T, error) {
	var none T
	bodies, err := about(ask, cmd, false, d, port)
	switch {
	case err != nil:
		return none, err
	case len(bodies) != 1:
		return none, fmt.Errorf("%w: %d answers to one request", nlmsg.ErrMalformed, len(bodies))
	}
	who, out, err := decode(bodies[0])
	if err == nil {
		err = same(d, who)
	}
	if err != nil {
		return none, err
	}
	return out, nil
}

// same tells a device whose index was given to another from the one that was meant.
func same(want, got rdma.ID) error {
	if want != got {
		return rdma.Gone(want)
	}
	return nil
}

// call makes one guarded call.
func call[T any](ctx context.Context, s *Devices, op, device string, f func() (T, error)) (T, error) {
	out, err := sysfs.Guarded(ctx, &s.guard, op, cmp.Or(device, "rdma"), f)
	if err != nil {
		var none T
		return none, fmt.Errorf("%s: %w", strings.TrimSpace(op+" "+device), err)
	}
	return out, nil
}
