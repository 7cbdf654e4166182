package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// What a change is.
const (
	Put     = "put"    // created or changed
	Deleted = "delete" // gone
	Synced  = "synced" // all objects as they were at the beginning have been told
	Reset   = "reset"  // the position was lost: all objects follow anew; those not told again until Synced are gone
)

// quiet is how long a stream may say nothing: the server sends a sign of life every 15 s.
const quiet = 45 * time.Second

const maxEvent = 4 << 20 // bytes of one event

// Change is one event of a watch.
type Change[T any] struct {
	What     string
	Object   T     // of Put and Deleted
	Revision int64 // where a later watch may resume; 0 = not at this event
}

// Watch follows the objects of a tenant, or all that one may see, until ctx ends or the server refuses. It
// begins with the objects as they are unless s.From says where to resume; over a broken connection it
// resumes by itself.
func (o Objects[T]) Watch(ctx context.Context, tenant string, s Selection) iter.Seq2[Change[T], error] {
	return func(yield func(Change[T], error) bool) {
		w := &watch[T]{o: o, tenant: tenant, labels: s.Labels, seen: s.From, yield: yield}
		wait := 250 * time.Millisecond
		for ctx.Err() == nil && !w.stopped {
			began := time.Now()
			err := w.stream(ctx)
			switch {
			case w.stopped || ctx.Err() != nil:
				return
			case Is(err, "gone"):
				w.seen, w.told = 0, true // so the next connection begins with a reset
				continue
			case fatal(err):
				w.yield(Change[T]{}, err)
				return
			}
			if time.Since(began) > quiet {
				wait = 250 * time.Millisecond
			}
			t := time.NewTimer(wait)
			select {
			case <-ctx.Done():
				t.Stop()
			case <-t.C:
			}
			wait = min(2*wait, 10*time.Second)
		}
	}
}

// fatal reports whether trying again is of no use.
func fatal(err error) bool {
	if e, ok := errors.AsType[*Error](err); ok {
		return !e.Retryable
	}
	e, ok := errors.AsType[*ConnError](err)
	return err != nil && (!ok || e.Trust)
}

type watch[T any] struct {
	o       Objects[T]
	tenant  string
	labels  string
	seen    int64
	told    bool // objects were told since the last reset
	stopped bool
	yield   func(Change[T], error) bool
}

func (w *watch[T]) emit(c Change[T]) bool {
	w.told = true
	w.stopped = !w.yield(c, nil)
	return !w.stopped
}

// stream is one connection.
func (w *watch[T]) stream(ctx context.Context) error {
	if w.seen == 0 && w.told {
		// The first snapshot was cut off before it was complete: it is told anew.
		w.told = false
		if !w.emit(Change[T]{What: Reset}) {
			return nil
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	idle := time.AfterFunc(quiet, cancel)
	defer idle.Stop()
	query := url.Values{"watch": {"true"}}
	if w.labels != "" {
		query.Set("labels", w.labels)
	}
	if w.seen != 0 {
		query.Set("from", strconv.FormatInt(w.seen, 10))
	}
	res, err := w.o.c.send(ctx, request{method: http.MethodGet, path: w.o.path(w.tenant, ""), query: query,
		header: http.Header{"Accept": {"text/event-stream, " + problem}}}, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		data, err := io.ReadAll(io.LimitReader(res.Body, maxEvent))
		if err != nil {
			return &ConnError{Server: w.o.c.Server(), Broken: true, Err: err}
		}
		return w.o.c.failure(res, data)
	}
	events := newEvents(res.Body)
	for {
		e, err := events.next()
		if err != nil {
			return &ConnError{Server: w.o.c.Server(), Broken: true, Err: err}
		}
		idle.Reset(quiet)
		if err := w.take(e); err != nil || w.stopped {
			return err
		}
	}
}

// take hands on one event.
func (w *watch[T]) take(e event) error {
	c := Change[T]{What: e.name, Revision: e.id}
	switch e.name {
	case Put, Deleted:
		if err := json.Unmarshal(e.data, &c.Object); err != nil {
			return fmt.Errorf("read an object of the watch: %w", err)
		}
		if !w.emit(c) {
			return nil
		}
	case "bookmark":
		var b struct {
			Revision int64 `json:"revision"`
			Synced   bool  `json:"synced"`
		}
		if err := json.Unmarshal(e.data, &b); err != nil {
			return fmt.Errorf("read a bookmark of the watch: %w", err)
		}
		if b.Synced && !w.emit(Change[T]{What: Synced, Revision: b.Revision}) {
			return nil
		}
		e.id = b.Revision
	case "gone":
		p := &Error{}
		if err := json.Unmarshal(e.data, &p.Problem); err != nil {
			return fmt.Errorf("read why the watch ended: %w", err)
		}
		return p
	default: // comments, and what a newer server may say
	}
	if e.id != 0 {
		w.seen = e.id
	}
	return nil
}

// event is one server-sent event; a comment has no name.
type event struct {
	name string
	id   int64
	data []byte
}

// events reads text/event-stream (WHATWG HTML, section 9.2).
type events struct{ lines *bufio.Scanner }

func newEvents(r io.Reader) *events {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 16<<10), maxEvent)
	return &events{s}
}

func (s *events) next() (event, error) {
	var e event
	for s.lines.Scan() {
		line := bytes.TrimSuffix(s.lines.Bytes(), []byte("\r"))
		if len(line) == 0 {
			return e, nil // also after a comment: a sign of life
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			e.name = string(value)
		case "id":
			id, err := strconv.ParseInt(string(value), 10, 64)
			if err == nil {
				e.id = id
			}
		case "data":
			if len(e.data) > 0 {
				e.data = append(e.data, '\n')
			}
			e.data = append(e.data, value...)
		default: // comments and retry
		}
	}
	if err := s.lines.Err(); err != nil {
		return e, fmt.Errorf("read the stream: %w", err)
	}
	return e, io.ErrUnexpectedEOF
}
