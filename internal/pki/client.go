package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-cloud/verbena/internal/fault"
)

// NewCSR makes a key and a certificate request for the host's agent, both PEM. The key never leaves the
// host.
func NewCSR(host string) (key, request []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make the agent's key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: host}}, private)
	if err != nil {
		return nil, nil, fmt.Errorf("make the certificate request of %s: %w", host, err)
	}
	if key, err = encodeKey(private); err != nil {
		return nil, nil, err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

// ServerTLS is the client configuration for the server at host (a name or an IP address, no port) of
// which only the CA's hash is known, from a join token. The server must send a chain to exactly that CA
// and prove that it is host; the system's roots count for nothing. now is the clock.
func ServerTLS(host string, pin [sha256.Size]byte, now func() time.Time) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: host,
		//nolint:gosec // verification is complete and stricter below: the CA itself is not known yet, only its hash
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			// state.ServerName is empty for an IP address, so host comes from outside.
			return verifyPinned(state.PeerCertificates, host, pin, now())
		},
	}
}

func verifyPinned(chain []*x509.Certificate, host string, pin [sha256.Size]byte, now time.Time) error {
	if host == "" {
		return errors.New("the name of the server is not known, so it can't be verified")
	}
	for _, cert := range chain {
		if sha256.Sum256(cert.Raw) != pin {
			continue
		}
		roots := x509.NewCertPool()
		roots.AddCert(cert)
		_, err := chain[0].Verify(x509.VerifyOptions{
			Roots: roots, DNSName: host, CurrentTime: now,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		})
		if err != nil {
			return fault.Wrap(err, fault.Unauthenticated, "the server's certificate is not valid for %s", host)
		}
		return nil
	}
	return fault.New(fault.Unauthenticated,
		"the server is not the one that made the join token: its certificate is from another CA; make a new token on the right server")
}

// AgentTLS is the client configuration of an agent that has joined: its own certificate and key, and
// Verbena's CA as the only root, all PEM.
func AgentTLS(cert, key, ca []byte) (*tls.Config, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("read the agent's certificate and key: %w", err)
	}
	root, err := decodeCert(ca)
	if err != nil {
		return nil, fmt.Errorf("read the CA's certificate: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(root)
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool, Certificates: []tls.Certificate{pair}}, nil
}

// Granted is what a join or a renewal gave the agent of Host, with the key that it was asked for; PEM.
type Granted struct {
	Host          string
	Cert, Key, CA []byte
}

// Check checks a grant before the agent stores it: the CA must be the pinned one, the certificate must
// chain to it, belong to the agent's key and name the host.
func (g Granted) Check(pin [sha256.Size]byte, now time.Time) error {
	root, err := decodeCert(g.CA)
	if err != nil {
		return fmt.Errorf("read the granted CA: %w", err)
	}
	if sha256.Sum256(root.Raw) != pin {
		return fault.New(fault.Unauthenticated, "the granted CA is not the one of the join token")
	}
	pair, err := tls.X509KeyPair(g.Cert, g.Key)
	if err != nil {
		return fmt.Errorf("read the granted certificate: %w", err)
	}
	if pair.Leaf.Subject.CommonName != g.Host {
		return fault.New(fault.Unauthenticated, "the granted certificate is for %q, not for %s", pair.Leaf.Subject.CommonName, g.Host)
	}
	roots := x509.NewCertPool()
	roots.AddCert(root)
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return fmt.Errorf("verify the granted certificate of %s: %w", g.Host, err)
	}
	return nil
}

// Life returns from when to when a PEM certificate is valid.
func Life(cert []byte) (notBefore, notAfter time.Time, err error) {
	c, err := decodeCert(cert)
	if err != nil {
		return time.Time{}, time.Time{}, fmt.Errorf("read a certificate's life: %w", err)
	}
	return c.NotBefore, c.NotAfter, nil
}
