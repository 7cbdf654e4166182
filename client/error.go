package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/verbena-cloud/verbena/api"
)

// Error is the server's refusal, as it was sent.
type Error struct{ api.Problem }

// Error returns the detail, with every wrong place of the input.
func (e *Error) Error() string {
	text := e.Detail
	if text == "" {
		text = e.Title
	}
	if len(e.Errors) < 2 {
		return text
	}
	var b strings.Builder
	b.WriteString(text)
	for _, f := range e.Errors {
		fmt.Fprintf(&b, "\n  %s: %s", f.Location, f.Message)
	}
	return b.String()
}

// Is reports whether err is the server's refusal with this code (see docs/errors.md).
func Is(err error, code string) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == code
}

// ConnError says that there was no answer: nobody knows whether the request was done, unless Broken is
// false, when it was never sent.
type ConnError struct {
	Server string
	// Broken: a connection was there and ended without an answer.
	Broken bool
	// Slow: the deadline passed.
	Slow bool
	// Trust: the server could not prove who it is.
	Trust bool
	Err   error
}

// Error names the server and what happened.
func (e *ConnError) Error() string {
	switch {
	case e.Trust:
		return fmt.Sprintf("%s can't prove that it is the server we trust: %v", e.Server, e.Err)
	case e.Slow:
		return e.Server + " did not answer in time"
	case e.Broken:
		return fmt.Sprintf("the connection to %s broke before its answer: %v", e.Server, e.Err)
	}
	return fmt.Sprintf("%s can't be reached: %v", e.Server, e.Err)
}

// Unwrap returns the cause.
func (e *ConnError) Unwrap() error { return e.Err }

// connError classifies what the HTTP client says.
func connError(server string, err error) error {
	e := &ConnError{Server: server, Err: bare(err)}
	var timeout net.Error
	switch {
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case untrusted(err):
		e.Trust = true
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		e.Slow = true
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		e.Broken = true
	default:
		op, ok := errors.AsType[*net.OpError](err)
		e.Broken = ok && op.Op != "dial"
	}
	return e
}

func untrusted(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	_, name := errors.AsType[x509.HostnameError](err)
	return unknown || name || strings.Contains(err.Error(), "pinned SHA-256")
}

// bare drops the method and URL that net/http puts before each error.
func bare(err error) error {
	type wrapper interface{ Unwrap() error }
	if u, ok := err.(wrapper); ok && strings.Contains(err.Error(), "://") { // the outermost layer only
		if in := u.Unwrap(); in != nil {
			return in
		}
	}
	return err
}
