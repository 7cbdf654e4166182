package client

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"

	"github.com/verbena-cloud/verbena/api"
)

// Login exchanges a password for a token.
func (c *Client) Login(ctx context.Context, r api.LoginRequest) (api.TokenGrant, error) {
	var out api.TokenGrant
	err := c.post(ctx, "/v1/login", r, &out)
	return out, err
}

// WhoAmI returns the caller's own identity.
func (c *Client) WhoAmI(ctx context.Context) (api.WhoAmI, error) {
	var out api.WhoAmI
	err := c.get(ctx, "/v1/whoami", nil, &out)
	return out, err
}

// ChangePassword replaces the caller's own password and ends all other sessions.
func (c *Client) ChangePassword(ctx context.Context, r api.PasswordChange) error {
	return c.post(ctx, "/v1/password", r, nil)
}

// CreateToken makes a token; the answer is the only one that holds its secret.
func (c *Client) CreateToken(ctx context.Context, r api.TokenRequest) (api.TokenGrant, error) {
	var out api.TokenGrant
	err := c.post(ctx, "/v1/tokens", r, &out)
	return out, err
}

// Tokens lists a user's tokens; an empty user is the caller.
func (c *Client) Tokens(ctx context.Context, user string) (api.List[api.Token], error) {
	query := url.Values{}
	if user != "" {
		query.Set("user", user)
	}
	var out api.List[api.Token]
	err := c.get(ctx, "/v1/tokens", query, &out)
	return out, err
}

// DeleteToken ends a token, by its id or one of one's own by name.
func (c *Client) DeleteToken(ctx context.Context, name string) error {
	return c.call(ctx, request{method: http.MethodDelete, path: "/v1/tokens/" + escape(name)}, nil)
}

// CreateJoinToken makes the one-time token by which a host's agent joins.
func (c *Client) CreateJoinToken(ctx context.Context, r api.JoinTokenRequest) (api.JoinTokenGrant, error) {
	var out api.JoinTokenGrant
	err := c.post(ctx, "/v1/join-tokens", r, &out)
	return out, err
}

// Authority is a certificate authority as a server shows it, not yet trusted.
type Authority struct {
	PEM    []byte
	SHA256 string // of the certificate, hex
	Name   string
}

// FetchAuthority asks a server for the end of its certificate chain, so that a person can compare its hash
// with what the operator says, once. With a pin the comparison is made here.
func FetchAuthority(ctx context.Context, server, pin string) (Authority, error) {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return Authority{}, fmt.Errorf("server %q is no address like https://verbena.example:7443", clip(server))
	}
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), "443")
	}
	d := &tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout}, Config: &tls.Config{
		MinVersion:         tls.VersionTLS13,
		ServerName:         u.Hostname(),
		InsecureSkipVerify: true, //nolint:gosec // nothing is sent: only the chain is looked at
	}}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return Authority{}, connError(server, err)
	}
	defer conn.Close()
	secure, ok := conn.(*tls.Conn)
	if !ok {
		return Authority{}, errors.New("no TLS connection")
	}
	return authorityOf(secure.ConnectionState().PeerCertificates, u.Hostname(), pin)
}

func authorityOf(chain []*x509.Certificate, host, pin string) (Authority, error) {
	if len(chain) == 0 {
		return Authority{}, errors.New("the server shows no certificate")
	}
	last := chain[len(chain)-1]
	hash := sha256.Sum256(last.Raw)
	want := hash
	if pin != "" {
		var err error
		if want, err = ParsePin(pin); err != nil {
			return Authority{}, err
		}
	}
	cert, err := pinned(chain, host, want)
	if err != nil {
		return Authority{}, err
	}
	return Authority{
		PEM:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}),
		SHA256: hex.EncodeToString(want[:]), Name: cert.Subject.CommonName,
	}, nil
}
