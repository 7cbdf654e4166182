package server

import (
	"bytes"
	"errors"
	"net/http"
	"strconv"
	"time"
)

const (
	eventTimeout = 10 * time.Second // for one flush; a client slower than that is dropped
	keepAlive    = 15 * time.Second // between comments, so that no proxy closes a quiet stream
	idleBuffer   = 4 << 10          // what a quiet stream may keep allocated
)

// stream writes server-sent events. Events are collected until flush, so that those of one commit leave in
// one write. It belongs to one goroutine.
type stream struct {
	w   http.ResponseWriter
	rc  *http.ResponseController
	buf bytes.Buffer
}

// newStream starts the answer: from here on it is 200.
func newStream(w http.ResponseWriter) *stream {
	s := &stream{w: w, rc: http.NewResponseController(w)}
	h := w.Header()
	h["Content-Type"] = []string{"text/event-stream"}
	h["Cache-Control"] = []string{"no-store"}
	h["X-Accel-Buffering"] = []string{"no"} // nginx would hold events back
	w.WriteHeader(http.StatusOK)
	// The server watches the connection by reading it: the limit on reading the request would end the stream.
	_ = s.rc.SetReadDeadline(time.Time{}) // a writer without deadlines has none to lift
	return s
}

// event adds an event. id 0 leaves the client's position where it is. data is JSON on one line.
func (s *stream) event(name string, id int64, data []byte) {
	s.buf.WriteString("event: ")
	s.buf.WriteString(name)
	if id != 0 {
		s.buf.WriteString("\nid: ")
		s.buf.Write(strconv.AppendInt(s.buf.AvailableBuffer(), id, 10))
	}
	s.buf.WriteString("\ndata: ")
	s.buf.Write(bytes.TrimRight(data, "\n"))
	s.buf.WriteString("\n\n")
}

// comment adds a line that clients ignore.
func (s *stream) comment(text string) {
	s.buf.WriteString(": ")
	s.buf.WriteString(text)
	s.buf.WriteString("\n\n")
}

// flush sends what was added. An error means that the client is gone or too slow.
func (s *stream) flush() error {
	if err := s.rc.SetWriteDeadline(time.Now().Add(eventTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	_, err := s.w.Write(s.buf.Bytes())
	if s.buf.Cap() > idleBuffer {
		s.buf = bytes.Buffer{}
	}
	s.buf.Reset()
	if err != nil {
		return err
	}
	if err := s.rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}
