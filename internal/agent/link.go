package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/wire"
)

const (
	requestTime = 30 * time.Second
	// silence is how long a stream may say nothing, not even a comment, before it counts as dead: the
	// server comments every 15 s.
	silence = 45 * time.Second
)

// link is the mTLS client of the server.
type link struct {
	base  *url.URL
	ident *identity
	mu    sync.Mutex
	http  *http.Client
	cert  string // what http was made with
	after string // last event id

	addr  sync.Mutex // not mu: closing connections, which forgets addresses, happens under that
	local map[string]int
}

func newLink(server string, ident *identity) (*link, error) {
	u, err := serverURL(server)
	if err != nil {
		return nil, err
	}
	return &link{base: u, ident: ident, local: map[string]int{}}, nil
}

func serverURL(server string) (*url.URL, error) {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, fault.New(fault.Invalid, "the server's address is %.100q; it must be https://HOST:PORT", server)
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host}, nil
}

// client returns a client with the certificate of now: after a renewal connections are made anew.
func (l *link) client() (*http.Client, error) {
	conf, id, err := l.ident.tls()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.http != nil && l.cert == id {
		return l.http, nil
	}
	if l.http != nil {
		l.http.CloseIdleConnections()
	}
	l.http, l.cert = &http.Client{Transport: l.transport(conf)}, id
	return l.http, nil
}

func (l *link) transport(conf *tls.Config) *http.Transport {
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}
	return &http.Transport{TLSClientConfig: conf, TLSHandshakeTimeout: 10 * time.Second, MaxIdleConnsPerHost: 2,
		IdleConnTimeout: time.Minute, ResponseHeaderTimeout: requestTime,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return l.note(c), nil
		}}
}

// noted is a connection whose local address is known while it is open.
type noted struct {
	net.Conn
	once sync.Once
	gone func()
}

// Close forgets the connection's address.
func (c *noted) Close() error {
	c.once.Do(c.gone)
	return c.Conn.Close()
}

// note remembers the local address, so that the device of the session is kept out of the pool.
func (l *link) note(c net.Conn) net.Conn {
	ip := hostOf(c.LocalAddr())
	l.addr.Lock()
	defer l.addr.Unlock()
	l.local[ip]++
	return &noted{Conn: c, gone: func() {
		l.addr.Lock()
		defer l.addr.Unlock()
		if l.local[ip]--; l.local[ip] <= 0 {
			delete(l.local, ip)
		}
	}}
}

func hostOf(a net.Addr) string {
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return host
}

// devices returns the netdevs whose addresses the session uses.
func (l *link) devices() []string {
	ifs, err := net.Interfaces()
	if err != nil {
		return nil
	}
	l.addr.Lock()
	defer l.addr.Unlock()
	var out []string
	for _, i := range ifs {
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			ip, _, err := net.ParseCIDR(a.String())
			if err == nil && l.local[ip.String()] > 0 && !slices.Contains(out, i.Name) {
				out = append(out, i.Name)
			}
		}
	}
	return out
}

// Desired reads the stream of desired states.
func (l *link) Desired(ctx context.Context, f func(*wire.Desired)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.base.JoinPath(wire.PathDesired).String(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/event-stream")
	l.mu.Lock()
	if l.after != "" {
		req.Header.Set("Last-Event-ID", l.after)
	}
	l.mu.Unlock()
	resp, err := l.do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if !eventStream(resp.Header.Get("Content-Type")) {
		return fault.New(fault.Unavailable, "the server answered %s with %.60q instead of an event stream", wire.PathDesired, resp.Header.Get("Content-Type"))
	}
	dead := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer dead.Stop()
	err = readEvents(resp.Body, func() { dead.Reset(silence) }, func(m message) error { return l.deliver(m, f) })
	if cause := context.Cause(ctx); errors.Is(cause, errSilent) {
		return cause
	}
	return err
}

var errSilent = errors.New("the server has said nothing for too long; connect again")

func (l *link) deliver(m message, f func(*wire.Desired)) error {
	if m.name != "desired" {
		return nil
	}
	var d wire.Desired
	if err := json.Unmarshal(m.data, &d); err != nil {
		return fault.New(fault.Invalid, "the server sent a desired state that is no JSON of this version")
	}
	l.mu.Lock()
	l.after = m.id
	l.mu.Unlock()
	f(&d)
	return nil
}

// Post sends the status.
func (l *link) Post(ctx context.Context, s wire.Status) (wire.Ack, error) {
	var ack wire.Ack
	err := l.send(ctx, wire.PathStatus, s, &ack)
	return ack, err
}

// Beat says that the agent lives, and how long ago it looked the host over.
func (l *link) Beat(ctx context.Context, looked time.Duration) error {
	if looked < 0 {
		return l.send(ctx, wire.PathBeat, nil, nil)
	}
	return l.sendWith(ctx, wire.PathBeat, http.Header{wire.HeaderChecked: {strconv.FormatInt(int64(looked/time.Second), 10)}}, nil, nil)
}

// send posts a body and reads the answer into out, both JSON and both optional.
func (l *link) send(ctx context.Context, path string, in, out any) error {
	return l.sendWith(ctx, path, http.Header{}, in, out)
}

func (l *link) sendWith(ctx context.Context, path string, header http.Header, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.base.JoinPath(path).String(), body)
	if err != nil {
		return err
	}
	req.Header = header
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := l.do(req)
	if err != nil {
		return err
	}
	return answer(resp, out)
}

func (l *link) do(req *http.Request) (*http.Response, error) {
	client, err := l.client()
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "the server can't be reached")
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return nil, errors.Join(problem(resp), resp.Body.Close())
	}
	return resp, nil
}

func answer(resp *http.Response, out any) error {
	defer resp.Body.Close()
	limited := io.LimitReader(resp.Body, 1<<20)
	if out == nil {
		_, err := io.Copy(io.Discard, limited) // so that the connection can be used again
		return err
	}
	if err := json.NewDecoder(limited).Decode(out); err != nil {
		return fmt.Errorf("read the server's answer: %w", err)
	}
	return nil
}

// problem reads an RFC 9457 answer.
func problem(resp *http.Response) error {
	var p api.Problem
	err := json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&p)
	if err != nil || p.Code == "" {
		return fault.New(fault.Unavailable, "the server answers %s", resp.Status)
	}
	return fault.New(fault.Kind(p.Code), "%s", strings.TrimSpace(p.Title+": "+p.Detail))
}

// Close ends idle connections.
func (l *link) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.http != nil {
		l.http.CloseIdleConnections()
	}
	return nil
}
