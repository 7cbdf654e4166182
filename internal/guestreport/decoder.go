package guestreport

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
)

// counters keeps the first MaxCounters names in the order of bytes, so that the same ones stay from line to line.
func counters(all map[string]uint64, was *bool) map[string]uint64 {
	if all == nil {
		return nil
	}
	out := map[string]uint64{}
	for _, name := range cut(slices.Sorted(maps.Keys(all)), MaxCounters, was) {
		out[text(name)] = all[name]
	}
	return out
}

// Decoder reads a guest's stream. It holds one line at most, whatever the guest sends.
type Decoder struct {
	r *bufio.Reader
}

// NewDecoder returns the decoder of a stream.
func NewDecoder(r io.Reader) *Decoder {
	return &Decoder{r: bufio.NewReaderSize(r, 4<<10)}
}

// BadLineError is a line that says nothing; the stream goes on after it.
type BadLineError struct{ Err error }

// Error tells what is wrong with the line.
func (e *BadLineError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *BadLineError) Unwrap() error { return e.Err }

// Next returns the next report. A *BadLineError concerns one line, and the caller may go on; any other error
// is of the stream itself, io.EOF at its end. Empty lines are skipped, and a last line without an end is not
// taken: the guest may have died within it.
func (d *Decoder) Next() (Report, error) {
	for {
		line, err := d.line()
		if err != nil {
			return Report{}, err
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		r, err := Decode(line)
		if err != nil {
			return Report{}, &BadLineError{err}
		}
		return r, nil
	}
}

// line reads up to the end of a line. The rest of one that is too long is read and forgotten.
func (d *Decoder) line() ([]byte, error) {
	var line []byte
	long := false
	for {
		part, err := d.r.ReadSlice('\n')
		switch {
		case long:
		case len(line)+len(bytes.TrimSuffix(part, []byte("\n"))) > MaxLine:
			line, long = nil, true
		default:
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return nil, err
		case long:
			return nil, &BadLineError{fmt.Errorf("read a guest's report: a line is over the limit of %d bytes; it is dropped", MaxLine)}
		}
		return bytes.TrimSuffix(line, []byte("\n")), nil
	}
}
