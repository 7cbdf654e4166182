package netlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"golang.org/x/sys/unix"
)

// errMalformed is what every message has that does not hold what its lengths say.
var errMalformed = errors.New("malformed netlink message")

// attr appends one attribute (struct rtattr) with its padding.
func attr(b []byte, kind uint16, data []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(data)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, data...)
	for len(b)%unix.RTA_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

// words encodes u32 fields of a struct.
func words(v ...uint32) []byte {
	var b []byte
	for _, w := range v {
		b = binary.NativeEndian.AppendUint32(b, w)
	}
	return b
}

// request encodes a link request: struct nlmsghdr, struct ifinfomsg and attributes. The link is found by
// its name, since its index is zero.
func request(kind, flags uint16, link string, set linkFlags, attrs []byte) []byte {
	body := words(0, 0, set.flags, set.change) // family, type and index are zero
	body = attr(body, unix.IFLA_IFNAME, append([]byte(link), 0))
	body = append(body, attrs...)
	var b []byte
	b = binary.NativeEndian.AppendUint32(b, uint32(unix.SizeofNlMsghdr+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = binary.NativeEndian.AppendUint32(b, sequence)
	b = binary.NativeEndian.AppendUint32(b, 0)
	return append(b, body...)
}

// linkFlags are ifi_flags and the mask of those to change.
type linkFlags struct{ flags, change uint32 }

// sequence numbers the only request of a socket.
const sequence = 1

// message is one netlink message.
type message struct {
	kind uint16
	seq  uint32
	data []byte
}

// messages splits what one receive gave.
func messages(b []byte) iter.Seq2[message, error] {
	return func(yield func(message, error) bool) {
		for len(b) > 0 {
			if len(b) < unix.SizeofNlMsghdr {
				yield(message{}, fmt.Errorf("%w: %d bytes left for a header", errMalformed, len(b)))
				return
			}
			n := int(binary.NativeEndian.Uint32(b))
			if n < unix.SizeofNlMsghdr || n > len(b) {
				yield(message{}, fmt.Errorf("%w: a message of %d bytes in %d", errMalformed, n, len(b)))
				return
			}
			m := message{binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint32(b[8:]), b[unix.SizeofNlMsghdr:n]}
			if !yield(m, nil) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

// attribute is one struct rtattr; kind is without its flag bits.
type attribute struct {
	kind uint16
	data []byte
}

// nestedFlags are NLA_F_NESTED and NLA_F_NET_BYTEORDER.
const nestedFlags = 0xc000

// attributes walks a list of attributes.
func attributes(b []byte) iter.Seq2[attribute, error] {
	return func(yield func(attribute, error) bool) {
		for len(b) >= unix.SizeofRtAttr {
			a, n, err := first(b, int(binary.NativeEndian.Uint16(b)))
			if !yield(a, err) || err != nil {
				return
			}
			b = b[n:]
		}
	}
}

// first is the attribute of n bytes that b begins with, and what it takes with its padding.
func first(b []byte, n int) (attribute, int, error) {
	if n < unix.SizeofRtAttr || n > len(b) {
		return attribute{}, 0, fmt.Errorf("%w: an attribute of %d bytes in %d", errMalformed, n, len(b))
	}
	return attribute{kindOf(b), b[unix.SizeofRtAttr:n]}, min(align(n), len(b)), nil
}

func kindOf(b []byte) uint16 { return binary.NativeEndian.Uint16(b[2:]) &^ nestedFlags }

func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// verdict reads an NLMSG_ERROR message: nil for an acknowledgement, else the errno with what the kernel
// says about it (NLMSGERR_ATTR_MSG), if anything.
func verdict(data []byte) error {
	if len(data) < 4 {
		return fmt.Errorf("%w: an error of %d bytes", errMalformed, len(data))
	}
	no := -int32(binary.NativeEndian.Uint32(data))
	if no == 0 {
		return nil
	}
	if no < 0 {
		return fmt.Errorf("%w: error number %d", errMalformed, -no)
	}
	err := unix.Errno(no)
	const head = 4 + unix.SizeofNlMsghdr // errno and the header of the request, which is capped
	if len(data) > head {
		for a, aerr := range attributes(data[head:]) {
			if aerr != nil {
				break
			}
			if a.kind == unix.NLMSGERR_ATTR_MSG {
				return fmt.Errorf("%s: %w", text(a.data), err)
			}
		}
	}
	return err
}

// text is a string without its terminating zero.
func text(b []byte) string {
	if n := len(b); n > 0 && b[n-1] == 0 {
		b = b[:n-1]
	}
	return string(b)
}
