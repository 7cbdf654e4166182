package sched

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// MaxVFs is how many VFs of a PF are told apart: the VF count is one byte in every NIC seen so far.
const MaxVFs = 256

// Bits is a set of VF indexes.
type Bits [MaxVFs / 64]uint64

// Has reports whether index i is in the set.
func (b *Bits) Has(i int) bool {
	return i >= 0 && i < MaxVFs && b[i/64]&(1<<(i%64)) != 0
}

// Set puts index i into the set. Indexes out of range are left out.
func (b *Bits) Set(i int) {
	if i >= 0 && i < MaxVFs {
		b[i/64] |= 1 << (i % 64)
	}
}

// Clear takes index i out of the set.
func (b *Bits) Clear(i int) {
	if i >= 0 && i < MaxVFs {
		b[i/64] &^= 1 << (i % 64)
	}
}

// Count returns the size of the set.
func (b *Bits) Count() int {
	return bits.OnesCount64(b[0]) + bits.OnesCount64(b[1]) + bits.OnesCount64(b[2]) + bits.OnesCount64(b[3])
}

// without returns the set of indexes that are in b and not in c.
func (b *Bits) without(c *Bits) Bits {
	return Bits{b[0] &^ c[0], b[1] &^ c[1], b[2] &^ c[2], b[3] &^ c[3]}
}

// with returns the union.
func (b *Bits) with(c *Bits) Bits {
	return Bits{b[0] | c[0], b[1] | c[1], b[2] | c[2], b[3] | c[3]}
}

// first returns the lowest index of the set, or -1.
func (b *Bits) first() int {
	for w, v := range b {
		if v != 0 {
			return w*64 + bits.TrailingZeros64(v)
		}
	}
	return -1
}

// All yields the indexes in order.
func (b *Bits) All(yield func(int) bool) {
	for i := range MaxVFs {
		if b.Has(i) && !yield(i) {
			return
		}
	}
}

// MarshalText gives the words in hexadecimal, lowest first, without empty ones at the end.
func (b Bits) MarshalText() ([]byte, error) {
	n := len(b)
	for n > 0 && b[n-1] == 0 {
		n--
	}
	var out []byte
	for i, w := range b[:n] {
		if i > 0 {
			out = append(out, '.')
		}
		out = strconv.AppendUint(out, w, 16)
	}
	return out, nil
}

// UnmarshalText reads that form.
func (b *Bits) UnmarshalText(text []byte) error {
	*b = Bits{}
	if len(text) == 0 {
		return nil
	}
	words := strings.Split(string(text), ".")
	if len(words) > len(b) {
		return fmt.Errorf("set of VF indexes has %d words, at most %d may be", len(words), len(b))
	}
	for i, w := range words {
		v, err := strconv.ParseUint(w, 16, 64)
		if err != nil {
			return fmt.Errorf("set of VF indexes: %w", err)
		}
		b[i] = v
	}
	return nil
}
