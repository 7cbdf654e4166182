package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"sync"
	"time"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/pki"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// identityFile has key, certificate and CA in one file, so that no crash leaves a key that does not fit.
const identityFile = "identity"

// papers is what an agent proves itself with, all PEM but the pin.
type papers struct {
	Host string `json:"host"`
	Key  string `json:"key"`
	Cert string `json:"cert"`
	CA   string `json:"ca"`
	Pin  string `json:"pin"` // SHA-256 of the CA, hex
}

// identity keeps the agent's papers.
type identity struct {
	files Files
	mu    sync.Mutex
	p     papers
}

// openIdentity reads the stored papers; an agent that has not joined has none.
func openIdentity(files Files) (*identity, error) {
	i := &identity{files: files}
	data, err := files.Read(identityFile)
	if errors.Is(err, fs.ErrNotExist) {
		return i, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the agent's certificate: %w", err)
	}
	if err := unseal(data, &i.p); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "the agent's certificate in its state directory is damaged; remove the file %s and join again with a new token", identityFile)
	}
	return i, nil
}

func (i *identity) joined() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.p.Cert != ""
}

// name returns the name of this host: that of the certificate, or before joining that of the token.
func (i *identity) name(token string) (string, error) {
	if i.joined() {
		i.mu.Lock()
		defer i.mu.Unlock()
		return i.p.Host, nil
	}
	if token == "" {
		return "", fault.New(fault.Unauthenticated, "this host has not joined yet; make a token with `verbena host join-token NAME` and start the agent with --join-token")
	}
	t, err := pki.ParseJoinToken(token)
	return t.Host, err
}

func (i *identity) keep(p papers) error {
	data, err := seal(p)
	if err != nil {
		return err
	}
	if err := i.files.Write(identityFile, data); err != nil {
		return fmt.Errorf("store the agent's certificate: %w", err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.p = p
	return nil
}

// tls returns the client configuration, and what tells one certificate from the next.
func (i *identity) tls() (*tls.Config, string, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.p.Cert == "" {
		return nil, "", fault.New(fault.Unauthenticated, "this host has not joined; make a token with `verbena host join-token` and start the agent with it")
	}
	conf, err := pki.AgentTLS([]byte(i.p.Cert), []byte(i.p.Key), []byte(i.p.CA))
	return conf, i.p.Cert, err
}

// join exchanges a one-time token for a certificate. The server is known by the hash of its CA that is
// in the token; nothing else of it is believed.
func (i *identity) join(ctx context.Context, server, token string, now func() time.Time) error {
	t, err := pki.ParseJoinToken(token)
	if err != nil {
		return err
	}
	base, err := serverURL(server)
	if err != nil {
		return err
	}
	key, csr, err := pki.NewCSR(t.Host)
	if err != nil {
		return err
	}
	body, err := json.Marshal(wire.Join{Secret: token, CSR: string(csr)}) //nolint:gosec // the token is what the server asks for; it goes to nobody else
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base.JoinPath(wire.PathJoin).String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{TLSClientConfig: pki.ServerTLS(base.Hostname(), t.CA, now), DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if fault.Is(err, fault.Unauthenticated) {
		return fault.Wrap(err, fault.Unauthenticated, "the server at %s is not the one that made the join token", base.Host)
	}
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "the server at %s can't be reached", base.Host)
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return errors.Join(problem(resp), resp.Body.Close())
	}
	var g wire.Grant
	if err := answer(resp, &g); err != nil {
		return err
	}
	return i.accept(g, papers{Host: t.Host, Key: string(key), Pin: hex.EncodeToString(t.CA[:])}, now())
}

// accept checks a grant against the pinned CA before it replaces what is there.
func (i *identity) accept(g wire.Grant, p papers, now time.Time) error {
	var pin [sha256.Size]byte
	raw, err := hex.DecodeString(p.Pin)
	if err != nil || copy(pin[:], raw) != len(pin) {
		return fault.New(fault.Invalid, "the stored hash of the CA is damaged; join again with a new token")
	}
	p.Cert, p.CA = g.Certificate, g.CA
	if err := (pki.Granted{Host: p.Host, Cert: []byte(p.Cert), Key: []byte(p.Key), CA: []byte(p.CA)}).Check(pin, now); err != nil {
		return err
	}
	return i.keep(p)
}

// admitted joins until it succeeds. Only a server that can't be reached is waited for: a token that was
// used or has expired stays so.
func (a *Agent) admitted(ctx context.Context) error {
	var b backoff
	for !a.link.ident.joined() {
		err := a.link.ident.join(ctx, a.cfg.Server, a.cfg.JoinToken, a.d.Now)
		if err == nil {
			break
		}
		if !fault.Is(err, fault.Unavailable) {
			return fmt.Errorf("join: %w", err)
		}
		a.log.Warn("join", "err", err)
		if err := b.wait(ctx, a.d.Jitter); err != nil {
			return err
		}
	}
	return nil
}

// due returns when the certificate is to be renewed: at two thirds of its life.
func (i *identity) due() (time.Time, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	from, to, err := pki.Life([]byte(i.p.Cert))
	if err != nil {
		return time.Time{}, err
	}
	return pki.Due(from, to), nil
}

// renew keeps the certificate fresh until ctx ends.
func (a *Agent) renew(ctx context.Context, l *link) {
	var b backoff
	for {
		due, err := l.ident.due()
		if err != nil {
			a.log.Error("the agent's certificate can't be read", "err", err)
			return
		}
		if pause(ctx, max(due.Sub(a.d.Now()), 0)) != nil {
			return
		}
		if err := l.renew(ctx, a.d.Now()); err != nil {
			a.log.Warn("renew the certificate", "err", err)
			a.events.add(a.hostRef(), warning, "CertificateNotRenewed", "the agent's certificate could not be renewed: "+text(err))
			if b.wait(ctx, a.d.Jitter) != nil {
				return
			}
			continue
		}
		b.next = 0
	}
}

func (l *link) renew(ctx context.Context, now time.Time) error {
	l.ident.mu.Lock()
	p := l.ident.p
	l.ident.mu.Unlock()
	key, csr, err := pki.NewCSR(p.Host)
	if err != nil {
		return err
	}
	var g wire.Grant
	if err := l.send(ctx, wire.PathRenew, wire.Renew{CSR: string(csr)}, &g); err != nil {
		return err
	}
	p.Key = string(key)
	return l.ident.accept(g, p, now)
}
