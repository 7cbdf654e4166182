package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store/replica"
)

// Config says which etcd to use. Exactly one of Dir and Endpoints is set.
type Config struct {
	Dir       string   // data directory of an embedded member, made with mode 0700 if it is not there
	Endpoints []string // URLs of an external cluster
	TLS       TLS      // for https endpoints

	Prefix  string        // of all keys, default "/verbena"; one per cloud that shares the cluster
	Timeout time.Duration // until an Update is answered Unavailable when etcd does not answer, default 5 s
	Quota   int64         // bytes that an embedded member may store, default 8 GiB, which is also etcd's suggested maximum
	History int           // changes that a watch can be resumed from, default 65 536
	Queue   int           // commits that may wait for one slow watcher, default 4 096
	Log     *slog.Logger  // default: none

	// Die ends the program when an embedded member can't go on, such as with a full disk: etcd itself knows
	// no other way, and nothing that was acknowledged is lost. It must not return. nil: a panic.
	Die func(error)

	garbage garbage // tests want less of it
}

// TLS names the files for https endpoints. Empty fields: the system's roots, no client certificate, the
// name in the URL.
type TLS struct {
	CA, Cert, Key string
	ServerName    string
}

const (
	maxRequest = 1400 << 10 // bytes of a batch's records; etcd takes 1.5 MiB with its own framing
)

// normal returns the config with its defaults, or what is wrong with it.
func (c Config) normal() (Config, error) {
	if (c.Dir == "") == (len(c.Endpoints) == 0) {
		return c, fault.New(fault.Invalid, "the store needs either a data directory or the URLs of an etcd cluster")
	}
	if c.Prefix == "" {
		c.Prefix = "/verbena"
	}
	if !strings.HasPrefix(c.Prefix, "/") || strings.HasSuffix(c.Prefix, "/") || len(c.Prefix) > 200 {
		return c, fault.New(fault.Invalid, "etcd prefix %q: it starts with / and does not end with it", c.Prefix)
	}
	for _, e := range c.Endpoints {
		u, err := url.Parse(e)
		if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			return c, fault.New(fault.Invalid, "etcd URL %q: write https://HOST:2379 or http://HOST:2379", e)
		}
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		return c, fault.New(fault.Invalid, "a client certificate for etcd needs both its certificate and its key file")
	}
	if c.garbage == (garbage{}) {
		c.garbage = garbage{slack: slack, records: manyRecords}
	}
	if c.Timeout <= 0 {
		c.Timeout = 5 * time.Second
	}
	if c.Quota <= 0 {
		c.Quota = 8 << 30
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

func (c Config) limits() replica.Limits {
	l := replica.DefaultLimits()
	l.Overhead = perVersion
	return l
}

// load reads the files and returns the TLS configuration for the endpoints, nil for plain http.
func (t TLS) load(endpoints []string) (*tls.Config, error) {
	secure := false
	for _, e := range endpoints {
		secure = secure || strings.HasPrefix(e, "https://")
	}
	if !secure {
		return nil, nil //nolint:nilnil // no TLS is what http endpoints ask for
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fault.Wrap(err, fault.Invalid, "the CA file for etcd, %s, can't be read", t.CA)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fault.New(fault.Invalid, "the CA file for etcd, %s, has no PEM certificate", t.CA)
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fault.Wrap(err, fault.Invalid, "the client certificate for etcd, %s and %s, can't be used", t.Cert, t.Key)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	if t.ServerName != "" {
		verifyAs(out, t.ServerName)
	}
	return out, nil
}

// verifyAs has the server's certificate checked against name. ServerName alone would not do: gRPC puts the
// host of the URL in its place.
func verifyAs(c *tls.Config, name string) {
	roots := c.RootCAs
	c.InsecureSkipVerify = true // VerifyConnection checks chain and name instead
	c.VerifyConnection = func(s tls.ConnectionState) error {
		opts := x509.VerifyOptions{Roots: roots, DNSName: name, Intermediates: x509.NewCertPool()}
		for _, cert := range s.PeerCertificates[1:] {
			opts.Intermediates.AddCert(cert)
		}
		if _, err := s.PeerCertificates[0].Verify(opts); err != nil {
			return fmt.Errorf("verify the certificate of etcd: %w", err)
		}
		return nil
	}
}

// String names the store in messages.
func (c Config) String() string {
	if c.Dir != "" {
		return c.Dir
	}
	return strings.Join(c.Endpoints, ",") + c.Prefix
}
