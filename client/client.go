// Package client is the Go client of Verbena's API v1. It speaks JSON over HTTPS, gives every object its
// type by generics, turns problem documents into *Error, and follows changes over dropped connections.
//
// It imports the standard library and package api only, so that other programs can use it alone.
package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-cloud/verbena/api"
)

const (
	dialTimeout    = 10 * time.Second
	defaultTimeout = 30 * time.Second
	// maxAnswer bounds what is read of an answer, in bytes: a page of 5 000 VMs is some 10 MiB.
	maxAnswer = 256 << 20
	attempts  = 4
	problem   = "application/problem+json"
)

// Config says where the server is and how to prove each other.
type Config struct {
	Server string // https://HOST:PORT
	Token  string // secret; empty = anonymous
	// CA is the PEM of the only authorities to trust; empty = the system's.
	CA []byte
	// Pin is the SHA-256 of the server's CA certificate in hex: trust exactly the chain that ends in it.
	// It goes before CA.
	Pin       string
	UserAgent string
	// Timeout bounds one request but for watches; 0 = 30 s.
	Timeout time.Duration
	// Transport replaces the network, for tests.
	Transport http.RoundTripper
}

// Client is a connection to one server. It is safe for concurrent use.
type Client struct {
	base    *url.URL
	token   string
	agent   string
	timeout time.Duration
	http    *http.Client
}

// New checks the configuration; it does not connect.
func New(cfg Config) (*Client, error) {
	base, err := url.Parse(cfg.Server)
	if err != nil || base.Host == "" || (base.Scheme != "https" && base.Scheme != "http") {
		return nil, fmt.Errorf("server %q is no address like https://verbena.example:7443", cfg.Server)
	}
	base.Path, base.RawQuery = strings.TrimRight(base.Path, "/"), ""
	c := &Client{base: base, token: cfg.Token, agent: cfg.UserAgent, timeout: cfg.Timeout, http: &http.Client{Transport: cfg.Transport}}
	if c.timeout <= 0 {
		c.timeout = defaultTimeout
	}
	if c.agent == "" {
		c.agent = "verbena-client"
	}
	// A redirect would carry the token to whoever is named in it.
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if cfg.Transport != nil {
		return c, nil
	}
	trust, err := trustOf(cfg, base.Hostname())
	if err != nil {
		return nil, err
	}
	t, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, errors.New("the default HTTP transport was replaced; set Config.Transport")
	}
	t = t.Clone()
	t.TLSClientConfig, t.TLSHandshakeTimeout = trust, dialTimeout
	t.ForceAttemptHTTP2 = false // a watch each on its own connection: no head-of-line blocking
	c.http.Transport = t
	return c, nil
}

// trustOf is the TLS configuration that accepts the configured server and no other.
func trustOf(cfg Config, host string) (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS13}
	if cfg.Pin != "" {
		pin, err := ParsePin(cfg.Pin)
		if err != nil {
			return nil, err
		}
		t.InsecureSkipVerify = true // verified below, more strictly: only the CA's hash is known
		t.VerifyConnection = func(s tls.ConnectionState) error {
			_, err := pinned(s.PeerCertificates, host, pin)
			return err
		}
		return t, nil
	}
	if len(cfg.CA) > 0 {
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(cfg.CA) {
			return nil, errors.New("the CA holds no certificate in PEM form")
		}
	}
	return t, nil
}

// ParsePin reads a SHA-256 in hex, with or without colons.
func ParsePin(text string) ([sha256.Size]byte, error) {
	var pin [sha256.Size]byte
	b, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(text), ":", ""))
	if err != nil || len(b) != len(pin) {
		return pin, fmt.Errorf("%q is no SHA-256 in hex (64 digits)", clip(text))
	}
	copy(pin[:], b)
	return pin, nil
}

// pinned returns the certificate of the chain that has the hash, after checking that the chain proves host.
func pinned(chain []*x509.Certificate, host string, pin [sha256.Size]byte) (*x509.Certificate, error) {
	for _, cert := range chain {
		if sha256.Sum256(cert.Raw) != pin {
			continue
		}
		roots := x509.NewCertPool()
		roots.AddCert(cert)
		_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: host})
		if err != nil {
			return nil, fmt.Errorf("verify the certificate of %s: %w", host, err)
		}
		return cert, nil
	}
	return nil, fmt.Errorf("the server at %s is not the one expected: no certificate of its chain has the pinned SHA-256", host)
}

// Server returns the address that the client talks to.
func (c *Client) Server() string { return c.base.String() }

// request is one call of the API.
type request struct {
	method string
	path   string // escaped, from /v1 on
	query  url.Values
	body   any // encoded as JSON unless nil
	header http.Header
	// repeat says that sending twice does no harm.
	repeat bool
}

// call sends r and decodes the answer into out unless it is nil. It repeats what may be repeated.
func (c *Client) call(ctx context.Context, r request, out any) error {
	var body []byte
	if r.body != nil {
		var err error
		if body, err = json.Marshal(r.body); err != nil {
			return fmt.Errorf("encode the request: %w", err)
		}
	}
	wait := 200 * time.Millisecond
	for n := 1; ; n++ {
		header, err := c.once(ctx, r, body, out)
		if err == nil || n == attempts || !again(r, err) {
			return err
		}
		if after := retryAfter(header); after > 0 {
			wait = after
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return err
		case <-t.C:
		}
		wait *= 2
	}
}

// again reports whether the same request may be sent once more: the server said so, or the connection
// broke after it had been made. One that could not be made at all is for people to look at.
func again(r request, err error) bool {
	if !r.repeat {
		return false
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Status == http.StatusServiceUnavailable || e.Status == http.StatusTooManyRequests
	}
	e, ok := errors.AsType[*ConnError](err)
	return ok && e.Broken
}

func retryAfter(h http.Header) time.Duration {
	s, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || s <= 0 {
		return 0
	}
	return time.Duration(min(s, 30)) * time.Second
}

// once sends a request a single time.
func (c *Client) once(ctx context.Context, r request, body []byte, out any) (http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	res, err := c.send(ctx, r, body)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err != nil {
		return nil, &ConnError{Server: c.Server(), Broken: true, Err: err}
	}
	if len(data) > maxAnswer {
		return nil, fmt.Errorf("the answer of %s is larger than %d MiB", c.Server(), maxAnswer>>20)
	}
	if res.StatusCode >= 300 {
		return res.Header, c.failure(res, data)
	}
	if out == nil || len(data) == 0 {
		return res.Header, nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", c.Server(), err)
	}
	return res.Header, nil
}

func (c *Client) send(ctx context.Context, r request, body []byte) (*http.Response, error) {
	u := *c.base
	u.RawQuery = r.query.Encode()
	raw := u.EscapedPath() + r.path
	var err error
	if u.Path, err = url.PathUnescape(raw); err != nil {
		return nil, fmt.Errorf("make the path of a request: %w", err)
	}
	u.RawPath = raw
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make a request: %w", err)
	}
	for k, v := range r.header {
		req.Header[k] = v
	}
	req.Header.Set("User-Agent", c.agent)
	if req.Header.Get("Accept") == "" {
		req.Header.Set("Accept", "application/json, "+problem)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, connError(c.Server(), err)
	}
	return res, nil
}

// failure is the error of an answer that is none of success.
func (c *Client) failure(res *http.Response, data []byte) error {
	e := &Error{}
	if strings.HasPrefix(res.Header.Get("Content-Type"), problem) && json.Unmarshal(data, &e.Problem) == nil && e.Code != "" {
		e.Status = res.StatusCode
		return e
	}
	return fmt.Errorf("%s answered %s and not as a Verbena server does; check the address", c.Server(), res.Status)
}

// newKey makes an Idempotency-Key.
func newKey() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand
	return hex.EncodeToString(b[:])
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

// get, post are the calls of singular endpoints.
func (c *Client) get(ctx context.Context, path string, query url.Values, out any) error {
	return c.call(ctx, request{method: http.MethodGet, path: path, query: query, repeat: true}, out)
}

func (c *Client) post(ctx context.Context, path string, in, out any) error {
	return c.call(ctx, request{method: http.MethodPost, path: path, body: in}, out)
}

// Status asks what an operator must know of the server.
func (c *Client) Status(ctx context.Context) (api.ServerStatus, error) {
	var out api.ServerStatus
	err := c.get(ctx, "/v1/status", nil, &out)
	return out, err
}

// Healthy returns nil when a server answers at the address.
func (c *Client) Healthy(ctx context.Context) error { return c.get(ctx, "/readyz", nil, nil) }
