// Package libvirt is the hypervisor engine for real hosts: it speaks libvirt's RPC protocol to the local
// daemon (no cgo, no virsh). Domains are made by hyper/domxml.
//
// The protocol has no deadlines: a call that outlives its context costs the connection, which is made anew
// by the next call. Event subscriptions die with their connection, so Events starts over with an "anything
// may have changed" event after each reconnect.
package libvirt

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/hyper/domxml"
)

// Defaults of Config.
const (
	DefaultURI    = "qemu:///system"
	DefaultSocket = "/var/run/libvirt/libvirt-sock"
	retryFirst    = 500 * time.Millisecond
	retryLast     = 15 * time.Second
)

// Config says where the daemon is.
type Config struct {
	URI    string // connection URI inside the daemon; default qemu:///system
	Socket string // path of the daemon's socket; default /var/run/libvirt/libvirt-sock
	Log    *slog.Logger
}

// Driver is a connection to libvirt that renews itself.
type Driver struct {
	cfg  Config
	turn chan struct{} // holds one token: whoever has it may look at and change cur
	cur  *session
}

// session is one connection. Closing raw ends every call that waits on it.
type session struct {
	l   *golibvirt.Libvirt
	raw net.Conn
}

var _ hyper.Driver = (*Driver)(nil)

// New returns a driver. It connects with the first call.
func New(cfg Config) *Driver {
	if cfg.URI == "" {
		cfg.URI = DefaultURI
	}
	if cfg.Socket == "" {
		cfg.Socket = DefaultSocket
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Driver{cfg: cfg, turn: make(chan struct{}, 1)}
}

// Close drops the connection, if there is one.
func (d *Driver) Close() error {
	d.turn <- struct{}{}
	defer func() { <-d.turn }()
	if d.cur == nil {
		return nil
	}
	s := d.cur
	d.cur = nil
	return s.raw.Close()
}

// session returns a live connection, making one if needed. It ends with ctx even if the daemon accepts and
// never answers.
func (d *Driver) session(ctx context.Context) (*session, error) {
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if d.cur != nil && d.cur.l.IsConnected() {
		return d.cur, nil
	}
	raw, err := (&net.Dialer{}).DialContext(ctx, "unix", d.cfg.Socket)
	if err != nil {
		return nil, d.unreachable(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	l := golibvirt.NewWithDialer(dialers.NewAlreadyConnected(raw))
	err = l.ConnectToURI(golibvirt.ConnectURI(d.cfg.URI))
	if !stop() {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, errors.Join(d.unreachable(err), ignoreClosed(raw.Close()))
	}
	d.cur = &session{l: l, raw: raw}
	return d.cur, nil
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (d *Driver) unreachable(err error) error {
	return fault.Wrap(err, fault.Unavailable, "libvirt at %s (%s) can't be reached; is libvirtd running? (systemctl status libvirtd)", d.cfg.Socket, d.cfg.URI)
}

// call runs f on a live connection and gives up when ctx ends: then the connection is closed, since nothing
// else can interrupt a call, and what f asked for may still happen.
func (d *Driver) call(ctx context.Context, what string, f func(*golibvirt.Libvirt) error) error {
	if ctx.Err() != nil { // nothing is begun for a caller who has left
		return classify(ctx, what, ctx.Err())
	}
	s, err := d.session(ctx)
	if err != nil {
		return classify(ctx, what, err)
	}
	done := make(chan error, 1)
	go func() { done <- f(s.l) }()
	select {
	case err = <-done:
		if err != nil && transport(err) {
			err = fault.Wrap(err, fault.Unavailable, "%s: the connection to libvirt broke; it is tried again", what)
		}
	case <-ctx.Done():
		if cerr := s.raw.Close(); cerr != nil {
			d.cfg.Log.Debug("close libvirt connection", "err", cerr)
		}
		err = ctx.Err()
	}
	return classify(ctx, what, err)
}

// transport reports an error that is no answer of the daemon: the connection itself failed.
func transport(err error) bool {
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return false
	}
	_, answered := errors.AsType[golibvirt.Error](err)
	return !answered
}

// classify gives errors that have no kind yet the operation's name, and those of an ended context theirs.
func classify(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return fault.Wrap(err, fault.Deadline, "%s: libvirt did not answer in time; it may still happen", what)
	}
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}

func parseUUID(s string) (golibvirt.UUID, error) {
	var u golibvirt.UUID
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(b) != len(u) {
		return u, fault.New(fault.Invalid, "%q is no UUID", s)
	}
	copy(u[:], b)
	return u, nil
}

func formatUUID(u golibvirt.UUID) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// Define makes or updates the persistent definition. A domain of that UUID that is not ours is a Conflict.
func (d *Driver) Define(ctx context.Context, dom hyper.Domain) error {
	text, err := domxml.Render(dom)
	if err != nil {
		return err
	}
	id, err := parseUUID(dom.UUID)
	if err != nil {
		return err
	}
	return d.call(ctx, "define domain "+dom.Name, func(l *golibvirt.Libvirt) error {
		if err := mustBeOurs(l, id, dom.Name); err != nil {
			return err
		}
		if _, err := l.DomainDefineXMLFlags(text, golibvirt.DomainDefineValidate); err != nil {
			return refine(err, "define domain "+dom.Name)
		}
		return nil
	})
}

// mustBeOurs refuses to touch a domain that Verbena did not make.
func mustBeOurs(l *golibvirt.Libvirt, id golibvirt.UUID, name string) error {
	have, err := l.DomainLookupByUUID(id)
	if golibvirt.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	text, err := l.DomainGetXMLDesc(have, 0)
	if golibvirt.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	seen, err := domxml.Parse(text)
	if err != nil {
		return err
	}
	if seen.Owner == (hyper.Owner{}) {
		return fault.New(fault.Conflict, "domain %s (%s) exists and was not made by Verbena; it is left alone", name, formatUUID(id))
	}
	return nil
}

// refine gives libvirt's answers the kind that the caller acts on.
func refine(err error, what string) error {
	var e golibvirt.Error
	if !errors.As(err, &e) {
		return err
	}
	switch golibvirt.ErrorNumber(e.Code) {
	case golibvirt.ErrDomExist, golibvirt.ErrOperationFailed:
		if strings.Contains(e.Message, "already exists") {
			return fault.Wrap(err, fault.Conflict, "%s: a domain of that name or UUID exists already: %s", what, e.Message)
		}
	case golibvirt.ErrConfigUnsupported, golibvirt.ErrXMLError, golibvirt.ErrXMLDetail, golibvirt.ErrXMLInvalidSchema, golibvirt.ErrNoSupport:
		return fault.Wrap(err, fault.Invalid, "%s: this libvirt can't do it: %s", what, e.Message)
	}
	return fault.Wrap(err, fault.Unready, "%s: %s", what, e.Message)
}
