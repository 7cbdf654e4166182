package netlink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// eventRoom is what the kernel keeps of events for a reader that is behind.
const eventRoom = 1 << 20

// Changes calls f for each link change (RTMGRP_LINK) and each device change (NETLINK_KOBJECT_UEVENT), never
// two at a time, and returns nil when ctx ends. Events that the kernel had to drop are a call too.
func (l *Links) Changes(ctx context.Context, f func()) error {
	route, err := subscribe(unix.NETLINK_ROUTE, unix.RTMGRP_LINK)
	if err != nil {
		return err
	}
	defer route.Close()
	device, err := subscribe(unix.NETLINK_KOBJECT_UEVENT, 1)
	if err != nil {
		return err
	}
	defer device.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { // a read that waits ends with its deadline
		_ = route.SetReadDeadline(time.Unix(1, 0))
		_ = device.SetReadDeadline(time.Unix(1, 0))
	})
	defer stop()

	var one sync.Mutex
	tell := func() {
		one.Lock()
		defer one.Unlock()
		f()
	}
	errs := make(chan error, 2)
	go func() { errs <- follow(ctx, route, func([]byte) bool { return true }, tell) }()
	go func() { errs <- follow(ctx, device, relevant, tell) }()
	first := <-errs
	cancel()
	return errors.Join(first, <-errs)
}

// subscribe opens a socket that hears a multicast group of the kernel.
func subscribe(protocol int, groups uint32) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket of protocol %d: %w", protocol, err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, eventRoom); err != nil { // needs CAP_NET_ADMIN
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, eventRoom)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("size the netlink buffer: %w", err), unix.Close(fd))
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		return nil, errors.Join(fmt.Errorf("subscribe to netlink protocol %d: %w", protocol, err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// follow calls tell for each datagram of the kernel that matters, until ctx ends.
func follow(ctx context.Context, s *os.File, matters func([]byte) bool, tell func()) error {
	conn, err := s.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch netlink: %w", err)
	}
	buf := make([]byte, 64<<10) // one event; a longer one is cut, which does no harm
	for ctx.Err() == nil {
		var n int
		var from unix.Sockaddr
		var failed error
		err := conn.Read(func(fd uintptr) bool {
			failed = again(func() (err error) {
				n, from, err = unix.Recvfrom(int(fd), buf, 0)
				return err
			})
			return !errors.Is(failed, unix.EAGAIN)
		})
		if ctx.Err() != nil {
			break
		}
		switch {
		case err != nil:
			return fmt.Errorf("watch netlink: %w", err)
		case errors.Is(failed, unix.ENOBUFS): // events were lost
			tell()
		case failed != nil:
			return fmt.Errorf("watch netlink: %w", failed)
		default:
			if k, ok := from.(*unix.SockaddrNetlink); ok && k.Pid == 0 && matters(buf[:n]) {
				tell()
			}
		}
	}
	return nil //nolint:nilerr // the end of ctx is what made the last read fail
}

// relevant says whether a uevent is about something that an inventory has: "ACTION@DEVPATH", then
// "KEY=VALUE" texts, all ended by zeros (lib/kobject_uevent.c).
func relevant(event []byte) bool {
	for field := range bytes.SplitSeq(event, []byte{0}) {
		if sub, ok := bytes.CutPrefix(field, []byte("SUBSYSTEM=")); ok {
			switch string(sub) {
			case "pci", "net", "infiniband", "infiniband_verbs", "vfio", "vfio-dev", "iommu", "drivers":
				return true
			}
			return false
		}
	}
	return true // not of the form that is known: rather look once too often
}
