package nlmsg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// eventRoom is what the kernel keeps of events for a reader that is behind.
	eventRoom = 1 << 20
	// datagramMax is the longest event that is taken whole.
	datagramMax = 64 << 10
)

// Subscription hears multicast groups of the kernel from its making on.
type Subscription struct{ socket *os.File }

// Subscribe begins to hear groups (a bit each) of a protocol, in the caller's network namespace.
func Subscribe(protocol int, groups uint32) (*Subscription, error) {
	return subscribe(protocol, groups, eventRoom)
}

func subscribe(protocol int, groups uint32, room int) (*Subscription, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket of protocol %d: %w", protocol, err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room); err != nil { // needs CAP_NET_ADMIN
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, room)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("size the netlink buffer: %w", err), unix.Close(fd))
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		return nil, errors.Join(fmt.Errorf("subscribe to netlink protocol %d: %w", protocol, err), unix.Close(fd))
	}
	return &Subscription{os.NewFile(uintptr(fd), "netlink")}, nil
}

// Close ends the subscription.
func (s *Subscription) Close() error { return s.socket.Close() }

// Follow calls f for each datagram of the kernel, which f must not keep, and lost where the kernel had to drop
// some or one is too long, until ctx ends; then it returns nil.
func (s *Subscription) Follow(ctx context.Context, f func(datagram []byte), lost func()) error {
	stop := context.AfterFunc(ctx, func() { _ = s.socket.SetReadDeadline(time.Unix(1, 0)) }) // a read that waits ends with its deadline
	defer stop()
	conn, err := s.socket.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch netlink: %w", err)
	}
	buf := make([]byte, datagramMax)
	for ctx.Err() == nil {
		var n int
		var from unix.Sockaddr
		var failed error
		err := conn.Read(func(fd uintptr) bool {
			failed = again(func() (err error) {
				n, from, err = unix.Recvfrom(int(fd), buf, unix.MSG_TRUNC)
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
		case errors.Is(failed, unix.ENOBUFS):
			lost()
		case failed != nil:
			return fmt.Errorf("watch netlink: %w", failed)
		case !kernel(from):
		case n > len(buf):
			lost()
		default:
			f(buf[:n])
		}
	}
	return nil
}

// kernel says whether the kernel sent it; any process may send to a group's members.
func kernel(from unix.Sockaddr) bool {
	k, ok := from.(*unix.SockaddrNetlink)
	return ok && k.Pid == 0
}
