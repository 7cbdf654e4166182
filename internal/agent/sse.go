package agent

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/verbena-cloud/verbena/internal/fault"
)

// maxEvent bounds one server-sent event: the whole desired state of a dense host is some megabytes.
const maxEvent = 64 << 20

// message is one server-sent event (HTML Living Standard, "server-sent events").
type message struct {
	name, id string
	data     []byte
}

// readEvents calls f for each event of a stream until it ends, and alive for each line, so that comments
// count as a sign of life.
func readEvents(r io.Reader, alive func(), f func(message) error) error {
	lines := bufio.NewReaderSize(r, 64<<10)
	var m message
	for {
		line, err := readLine(lines, maxEvent-len(m.data))
		if err != nil {
			return err
		}
		alive()
		if len(line) == 0 {
			if m.data != nil {
				if err := f(message{m.name, m.id, bytes.TrimSuffix(m.data, []byte("\n"))}); err != nil {
					return err
				}
			}
			m = message{id: m.id}
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			m.name = string(value)
		case "id":
			if !bytes.ContainsRune(value, 0) {
				m.id = string(value)
			}
		case "data":
			m.data = append(append(m.data, value...), '\n')
		}
	}
}

// readLine reads a line of at most limit bytes, without its end.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var out []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(out)+len(part) > limit {
			return nil, fault.New(fault.TooLarge, "the server sent an event of more than %d bytes", maxEvent)
		}
		out = append(out, part...)
		switch {
		case err == nil:
			return bytes.TrimRight(out, "\r\n"), nil
		case err != bufio.ErrBufferFull: //nolint:errorlint // ReadSlice returns it as it is
			return nil, fmt.Errorf("read the stream: %w", err)
		}
	}
}

// eventStream reports whether the answer is what was asked for.
func eventStream(contentType string) bool { return strings.HasPrefix(contentType, "text/event-stream") }
