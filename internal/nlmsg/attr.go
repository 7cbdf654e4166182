// Package nlmsg has what the kernel's netlink protocols share: attributes (struct nlattr in
// include/uapi/linux/netlink.h), one request with its answer, the reading of refusals, and the following of
// what the kernel tells unasked.
//
// Sockets of requests are those of github.com/vishvananda/netlink. Attributes are read here, since that module
// takes for granted that each is as long as it should be.
package nlmsg

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"golang.org/x/sys/unix"
)

// ErrMalformed is in the error of every message that does not hold what its lengths say.
var ErrMalformed = errors.New("malformed netlink message")

// flagBits are NLA_F_NESTED and NLA_F_NET_BYTEORDER; newer kernels set them, older ones do not.
const flagBits = 0xc000

// Append adds one attribute with its padding to b.
func Append(b []byte, kind uint16, data []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofNlAttr+len(data)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, data...)
	for len(b)%unix.NLA_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

// AppendString adds a string with the zero that the kernel wants at its end.
func AppendString(b []byte, kind uint16, s string) []byte {
	return Append(b, kind, append([]byte(s), 0))
}

// AppendUint32 adds a number of 32 bits.
func AppendUint32(b []byte, kind uint16, v uint32) []byte {
	return Append(b, kind, binary.NativeEndian.AppendUint32(nil, v))
}

// Attribute is one attribute of a message; Kind is without its flag bits.
type Attribute struct {
	Kind uint16
	Data []byte
}

// Attributes walks a list of attributes. It ends with an ErrMalformed where a length is wrong.
func Attributes(b []byte) iter.Seq2[Attribute, error] {
	return func(yield func(Attribute, error) bool) {
		for len(b) >= unix.SizeofNlAttr {
			n := int(binary.NativeEndian.Uint16(b))
			if n < unix.SizeofNlAttr || n > len(b) {
				yield(Attribute{}, fmt.Errorf("%w: an attribute of %d bytes in %d", ErrMalformed, n, len(b)))
				return
			}
			a := Attribute{binary.NativeEndian.Uint16(b[2:]) &^ flagBits, b[unix.SizeofNlAttr:n]}
			if !yield(a, nil) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

func align(n int) int { return (n + unix.NLA_ALIGNTO - 1) &^ (unix.NLA_ALIGNTO - 1) }

// Text is a string without the zero at its end.
func (a Attribute) Text() string {
	b := a.Data
	if n := len(b); n > 0 && b[n-1] == 0 {
		b = b[:n-1]
	}
	return string(b)
}

// Uint8 is the number in an attribute of one byte.
func (a Attribute) Uint8() (uint8, error) {
	if len(a.Data) < 1 {
		return 0, a.short(1)
	}
	return a.Data[0], nil
}

// Uint16 is the number in an attribute of 16 bits.
func (a Attribute) Uint16() (uint16, error) {
	if len(a.Data) < 2 {
		return 0, a.short(2)
	}
	return binary.NativeEndian.Uint16(a.Data), nil
}

// Uint32 is the number in an attribute of 32 bits.
func (a Attribute) Uint32() (uint32, error) {
	if len(a.Data) < 4 {
		return 0, a.short(4)
	}
	return binary.NativeEndian.Uint32(a.Data), nil
}

// Uint64 is the number in an attribute of 64 bits, or of 32 where a kernel sends the shorter form.
func (a Attribute) Uint64() (uint64, error) {
	switch {
	case len(a.Data) >= 8:
		return binary.NativeEndian.Uint64(a.Data), nil
	case len(a.Data) >= 4:
		return uint64(binary.NativeEndian.Uint32(a.Data)), nil
	}
	return 0, a.short(8)
}

func (a Attribute) short(want int) error {
	return fmt.Errorf("%w: attribute %d has %d bytes, not %d", ErrMalformed, a.Kind, len(a.Data), want)
}
