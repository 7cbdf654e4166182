package nlmsg

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// answerTime bounds the wait for an answer that the kernel has queued before the request's send
	// returned; only a lost message makes it pass.
	answerTime = 10 * time.Second
	// dumpTries is how often a dump is begun again because what it lists changed meanwhile.
	dumpTries = 4
)

// Request is one question to the kernel.
type Request struct {
	Protocol int    // NETLINK_ROUTE, NETLINK_GENERIC, NETLINK_RDMA
	Kind     uint16 // nlmsg_type
	Dump     bool   // ask for all objects instead of one
	Body     []byte // the protocol's header and the attributes
	// Count is how many objects a message of a dump tells of; nil = read all of them. Otherwise the reading ends
	// with the message that brings them above Most.
	Count func(body []byte) int
	Most  int
}

// Ask sends a request and returns the bodies of the messages that answer it. An error holds the kernel's
// syscall.Errno, with the kernel's own words where it has any; a kernel without the protocol answers
// EPROTONOSUPPORT. The socket is of the caller's network namespace.
func Ask(r Request) ([][]byte, error) {
	for range dumpTries - 1 {
		out, changed, err := exchange(r)
		if err != nil || !changed {
			return out, err
		}
	}
	out, changed, err := exchange(r)
	if err == nil && changed {
		err = fmt.Errorf("what is listed changes faster than it can be read: %w", unix.EAGAIN)
	}
	return out, err
}

// exchange makes one socket, one request and reads the answer, whole or as far as it is wanted; changed says that a
// dump is not of one moment.
func exchange(r Request) (out [][]byte, changed bool, err error) {
	s, err := nl.Subscribe(r.Protocol)
	if err != nil {
		return nil, false, fmt.Errorf("open netlink socket of protocol %d: %w", r.Protocol, err)
	}
	defer s.Close()
	tv := unix.NsecToTimeval(answerTime.Nanoseconds())
	if err := errors.Join(s.SetSendTimeout(&tv), s.SetReceiveTimeout(&tv)); err != nil {
		return nil, false, fmt.Errorf("set netlink timeout: %w", err)
	}
	if err := s.SetExtAck(true); err != nil && !errors.Is(err, unix.ENOPROTOOPT) { // kernels before 4.12 have no texts
		return nil, false, fmt.Errorf("ask netlink for texts: %w", err)
	}
	flags := unix.NLM_F_ACK
	if r.Dump {
		flags |= unix.NLM_F_DUMP
	}
	req := nl.NewNetlinkRequest(int(r.Kind), flags)
	req.AddRawData(r.Body)
	if err := again(func() error { return s.Send(req) }); err != nil {
		return nil, false, fmt.Errorf("send netlink request: %w", err)
	}
	a := answer{count: r.Count, most: r.Most, seq: req.Seq}
	for {
		var msgs []syscall.NetlinkMessage
		var from *unix.SockaddrNetlink
		err := again(func() (err error) {
			msgs, from, err = s.Receive()
			return err
		})
		if err != nil {
			return nil, false, fmt.Errorf("receive netlink answer: %w", err)
		}
		if from.Pid != nl.PidKernel { // only the kernel has port 0
			continue
		}
		done, err := a.take(msgs)
		if done || err != nil {
			return a.bodies, a.changed, err
		}
	}
}

// answer is what was read so far.
type answer struct {
	count   func([]byte) int
	most    int
	seq     uint32
	bodies  [][]byte
	objects int
	changed bool
}

// take sorts the messages of one receive; done is the acknowledgement, a refusal, or that there is enough.
func (r *answer) take(msgs []syscall.NetlinkMessage) (done bool, err error) {
	for _, m := range msgs {
		if m.Header.Seq != r.seq {
			continue
		}
		r.changed = r.changed || m.Header.Flags&unix.NLM_F_DUMP_INTR != 0
		switch m.Header.Type {
		case unix.NLMSG_ERROR:
			return true, verdict(m.Header.Flags, m.Data)
		case unix.NLMSG_DONE:
			if len(m.Data) < 4 {
				return true, nil
			}
			return true, number(m.Data)
		case unix.NLMSG_NOOP:
		default:
			r.bodies = append(r.bodies, m.Data)
			if r.count == nil {
				continue
			}
			if r.objects += r.count(m.Data); r.objects > r.most {
				return true, nil
			}
		}
	}
	return false, nil
}

// verdict reads an NLMSG_ERROR message: nil for an acknowledgement, else the errno with what the kernel
// says about it (NLMSGERR_ATTR_MSG), if anything.
func verdict(flags uint16, data []byte) error {
	if len(data) < 4 {
		return fmt.Errorf("%w: an error of %d bytes", ErrMalformed, len(data))
	}
	err := number(data)
	if err == nil || flags&unix.NLM_F_ACK_TLVS == 0 || len(data) < 4+unix.SizeofNlMsghdr {
		return err
	}
	echo := unix.SizeofNlMsghdr // the request comes back, whole or only its header
	if flags&unix.NLM_F_CAPPED == 0 {
		echo = int(min(binary.NativeEndian.Uint32(data[4:]), uint32(len(data))))
	}
	rest := data[min(4+align(echo), len(data)):]
	for a, bad := range Attributes(rest) {
		if bad != nil {
			break
		}
		if a.Kind == unix.NLMSGERR_ATTR_MSG && len(a.Data) > 0 {
			return fmt.Errorf("%s: %w", a.Text(), err)
		}
	}
	return err
}

// number reads a negative errno.
func number(data []byte) error {
	no := int64(int32(binary.NativeEndian.Uint32(data)))
	switch {
	case no == 0:
		return nil
	case no > 0 || no < -4095: // MAX_ERRNO
		return fmt.Errorf("%w: error number %d", ErrMalformed, no)
	}
	return unix.Errno(-no)
}

func again(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
