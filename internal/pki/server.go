package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// Server holds the server's certificate and renews it while it is used: nobody needs to restart or
// remember anything. Its key lives in memory only; a new start makes a new one.
type Server struct {
	ca    *CA
	names []string
	now   func() time.Time

	mu   sync.Mutex
	cert *tls.Certificate
	due  time.Time
}

// NewServer makes a certificate for the server under the names (host names and IP addresses).
func NewServer(ca *CA, names []string, now func() time.Time) (*Server, error) {
	s := &Server{ca: ca, names: names, now: now}
	if _, err := s.current(); err != nil {
		return nil, err
	}
	return s, nil
}

// TLS is the configuration of the listener: TLS 1.3, our certificate, and client certificates of our CA
// verified when one is shown (agents show one, people don't).
func (s *Server) TLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return s.current()
		},
		ClientAuth: tls.VerifyClientCertIfGiven,
		ClientCAs:  s.ca.Pool(),
		Time:       s.now,
	}
}

// current returns a certificate that is not yet due, making the next one when it is.
func (s *Server) current() (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if s.cert != nil && now.Before(s.due) {
		return s.cert, nil
	}
	next, err := s.issue(now)
	if err != nil {
		if s.cert != nil && now.Before(s.cert.Leaf.NotAfter) {
			return s.cert, nil // a third of its life is left to make the next one
		}
		return nil, err
	}
	s.cert, s.due = next, Due(next.Leaf.NotBefore, next.Leaf.NotAfter)
	return next, nil
}

func (s *Server) issue(now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the server's key: %w", err)
	}
	signed, err := s.ca.signServer(s.names, key.Public(), now)
	if err != nil {
		return nil, err
	}
	leaf, err := decodeCert(signed.PEM)
	if err != nil {
		return nil, fmt.Errorf("read back the server's certificate: %w", err)
	}
	// The CA goes along: an agent that joins knows only its hash.
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw, s.ca.cert.Raw}, PrivateKey: key, Leaf: leaf}, nil
}

// Names returns what a server that listens on address can be reached by: the address's own host or,
// when it listens on all, every address of the machine; the machine's name; localhost; and extra.
func Names(address string, extra []string) ([]string, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("read the listen address: %w", err)
	}
	names := append([]string{"localhost", "127.0.0.1", "::1"}, extra...)
	if ip := net.ParseIP(host); host != "" && (ip == nil || !ip.IsUnspecified()) {
		names = append(names, host)
	} else {
		addresses, err := net.InterfaceAddrs()
		if err != nil {
			return nil, fmt.Errorf("list the machine's addresses: %w", err)
		}
		for _, a := range addresses {
			if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
				names = append(names, n.IP.String())
			}
		}
	}
	if name, err := os.Hostname(); err == nil && name != "" {
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
