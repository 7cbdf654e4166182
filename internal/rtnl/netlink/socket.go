package netlink

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// answerTime bounds the wait for an answer that the kernel has queued before the request's send returned;
// only a lost message makes it pass.
const answerTime = 10 * time.Second

// ask sends one request and gives each message of the answer to f, until the acknowledgement.
func ask(req []byte, f func(message) error) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open rtnetlink socket: %w", err)
	}
	defer unix.Close(fd)
	tv := unix.NsecToTimeval(answerTime.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return fmt.Errorf("set rtnetlink timeout: %w", err)
	}
	for _, o := range []int{unix.NETLINK_EXT_ACK, unix.NETLINK_CAP_ACK} { // texts for refusals; kernels before 4.12 have none
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, o, 1); err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
			return fmt.Errorf("set rtnetlink option %d: %w", o, err)
		}
	}
	if err := again(func() error { return unix.Sendto(fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) }); err != nil {
		return fmt.Errorf("send rtnetlink request: %w", err)
	}
	for {
		b, err := receive(fd)
		if err != nil {
			return fmt.Errorf("receive rtnetlink answer: %w", err)
		}
		done, err := take(b, f)
		if done || err != nil {
			return err
		}
	}
}

// take goes through the messages of one receive; done is the acknowledgement or a refusal.
func take(b []byte, f func(message) error) (done bool, err error) {
	for m, err := range messages(b) {
		switch {
		case err != nil:
			return false, err
		case m.seq != sequence: // not an answer
		case m.kind == unix.NLMSG_ERROR:
			return true, verdict(m.data)
		case m.kind == unix.NLMSG_DONE:
			return true, nil
		default:
			if err := f(m); err != nil {
				return false, err
			}
		}
	}
	return false, nil
}

// receive returns the next datagram from the kernel, whatever its size is.
func receive(fd int) ([]byte, error) {
	for {
		var n int
		err := again(func() (err error) {
			n, _, err = unix.Recvfrom(fd, nil, unix.MSG_PEEK|unix.MSG_TRUNC)
			return err
		})
		if err != nil {
			return nil, err
		}
		b := make([]byte, max(n, unix.SizeofNlMsghdr))
		var from unix.Sockaddr
		err = again(func() (err error) {
			n, from, err = unix.Recvfrom(fd, b, unix.MSG_TRUNC)
			return err
		})
		if err != nil {
			return nil, err
		}
		if n > len(b) {
			return nil, fmt.Errorf("%w: %d bytes where %d were announced", errMalformed, n, len(b))
		}
		if k, ok := from.(*unix.SockaddrNetlink); ok && k.Pid == 0 { // only the kernel has port 0
			return b[:n], nil
		}
	}
}

func again(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
