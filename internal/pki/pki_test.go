package pki_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/pki"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

func newCA(t testing.TB, now time.Time) *pki.CA {
	t.Helper()
	m, err := pki.NewMaterial(now)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := pki.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func parse(t testing.TB, b []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(b)
	if block == nil {
		t.Fatalf("no PEM in %q", b)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestOpenMakesACAOnceAndKeepsItPrivate(t *testing.T) {
	dir := t.TempDir()
	first, err := pki.Open(dir, start)
	if err != nil {
		t.Fatal(err)
	}
	second, err := pki.Open(dir, start.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if first.Hash() != second.Hash() {
		t.Fatal("the second start made another CA")
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 2 {
		t.Fatalf("left in the directory: %v", files)
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %s", f.Name(), info.Mode())
		}
	}
	if want := start.Add(pki.CALife); !first.Expires().Equal(want) {
		t.Errorf("the CA ends %s, want %s", first.Expires(), want)
	}
}

func TestOpenRefusesHalfACA(t *testing.T) {
	for _, lost := range []string{"ca.crt", "ca.key"} {
		dir := t.TempDir()
		if _, err := pki.Open(dir, start); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, lost)); err != nil {
			t.Fatal(err)
		}
		if _, err := pki.Open(dir, start); !fault.Is(err, fault.Unready) {
			t.Errorf("without %s: err = %v", lost, err)
		}
	}
}

func TestNewRefusesAForeignKey(t *testing.T) {
	a, _ := pki.NewMaterial(start)
	b, _ := pki.NewMaterial(start)
	if _, err := pki.New(pki.Material{Cert: a.Cert, Key: b.Key}); err == nil {
		t.Fatal("a key that is not the certificate's was taken")
	}
}

func TestAgentCertificateNamesTheHostOnly(t *testing.T) {
	ca := newCA(t, start)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	// A request that asks for everything: another name, names to serve, to be a CA.
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: "root", Organization: []string{"platform-admin"}},
		DNSNames: []string{"api.example"}, IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)},
		ExtraExtensions: []pkix.Extension{{Id: []int{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 3, 1, 1, 0xff}}},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := ca.SignAgent(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), "hv-1", start)
	if err != nil {
		t.Fatal(err)
	}
	cert := parse(t, signed.PEM)
	if cert.Subject.String() != "CN=hv-1" || len(cert.DNSNames)+len(cert.IPAddresses) != 0 || cert.IsCA {
		t.Errorf("certificate took over the request: %s %v %v CA=%t", cert.Subject, cert.DNSNames, cert.IPAddresses, cert.IsCA)
	}
	if len(cert.ExtKeyUsage) != 1 || cert.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth {
		t.Errorf("usages %v", cert.ExtKeyUsage)
	}
	if !cert.NotAfter.Equal(start.Add(pki.AgentLife)) || !signed.Expires.Equal(cert.NotAfter) || signed.Serial != pki.SerialOf(cert) {
		t.Errorf("signed %+v, certificate ends %s", signed, cert.NotAfter)
	}
	if due := pki.Due(start, start.Add(pki.AgentLife)); !due.Equal(start.Add(20 * 24 * time.Hour)) {
		t.Errorf("due %s", due)
	}
}

func TestSignAgentRefusesBadRequests(t *testing.T) {
	ca := newCA(t, start)
	_, good, err := pki.NewCSR("hv-1")
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(good)
	forged := bytes.Clone(block.Bytes)
	forged[len(forged)-1] ^= 1
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	rsaRequest, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, weak)
	if err != nil {
		t.Fatal(err)
	}
	armour := func(der []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	}
	for name, tt := range map[string]struct {
		csr  []byte
		kind fault.Kind
	}{
		"empty":     {nil, fault.Invalid},
		"no csr":    {[]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), fault.Invalid},
		"two":       {append(bytes.Clone(good), good...), fault.Invalid},
		"forged":    {armour(forged), fault.Invalid},
		"RSA":       {armour(rsaRequest), fault.Invalid},
		"garbage":   {armour([]byte("garbage")), fault.Invalid},
		"very long": {bytes.Repeat([]byte("A"), 1<<20), fault.TooLarge},
	} {
		if _, err := ca.SignAgent(tt.csr, "hv-1", start); !fault.Is(err, tt.kind) {
			t.Errorf("%s: err = %v, want %s", name, err, tt.kind)
		}
	}
}

// handshake connects client and server over a pipe and returns the client's error, or the server's.
func handshake(t *testing.T, server, client *tls.Config) error {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	result := make(chan error, 1)
	go func() {
		conn := tls.Server(a, server)
		err := conn.HandshakeContext(t.Context())
		if err == nil {
			_, err = conn.Write([]byte("x")) // with TLS 1.3 the client learns of a refusal by reading
		}
		result <- err
		a.Close()
	}()
	conn := tls.Client(b, client)
	err := conn.HandshakeContext(t.Context())
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
	}
	b.Close()
	if e := <-result; err == nil {
		err = e
	}
	return err
}

func TestPinnedServer(t *testing.T) {
	c := &clock{start}
	ca, other := newCA(t, start), newCA(t, start)
	server, err := pki.NewServer(ca, []string{"localhost", "10.1.2.3"}, c.Now)
	if err != nil {
		t.Fatal(err)
	}
	// The attacker's server sends our CA's certificate along, but can't chain to it.
	impostor, err := pki.NewServer(other, []string{"localhost"}, c.Now)
	if err != nil {
		t.Fatal(err)
	}
	withOurCA := impostor.TLS()
	cert, err := withOurCA.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	appended := *cert
	appended.Certificate = append(append([][]byte{}, cert.Certificate...), parse(t, ca.PEM()).Raw)
	withOurCA = &tls.Config{Certificates: []tls.Certificate{appended}}

	for _, tt := range []struct {
		name   string
		server *tls.Config
		dial   string
		at     time.Time
		ok     bool
	}{
		{"right", server.TLS(), "localhost", start, true},
		{"right by address", server.TLS(), "10.1.2.3", start, true},
		{"another name", server.TLS(), "evil.example", start, false},
		{"another CA", impostor.TLS(), "localhost", start, false},
		{"another CA that shows ours", withOurCA, "localhost", start, false},
		{"client's clock after the end", server.TLS(), "localhost", start.Add(pki.ServerLife + time.Hour), false},
	} {
		client := pki.ServerTLS(tt.dial, ca.Hash(), func() time.Time { return tt.at })
		if err := handshake(t, tt.server, client); (err == nil) != tt.ok {
			t.Errorf("%s: err = %v", tt.name, err)
		}
	}
}

func TestPinnedAgentCertificateIsNoServer(t *testing.T) {
	// An agent that turns on its own CA-signed certificate must not pass as the server.
	ca := newCA(t, start)
	key, csr, err := pki.NewCSR("hv-1")
	if err != nil {
		t.Fatal(err)
	}
	signed, err := ca.SignAgent(csr, "hv-1", start)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(signed.PEM, key)
	if err != nil {
		t.Fatal(err)
	}
	pair.Certificate = append(pair.Certificate, parse(t, ca.PEM()).Raw)
	client := pki.ServerTLS("hv-1", ca.Hash(), func() time.Time { return start })
	if err := handshake(t, &tls.Config{Certificates: []tls.Certificate{pair}}, client); err == nil {
		t.Fatal("an agent's certificate was taken for the server's")
	}
}

func TestMutualTLS(t *testing.T) {
	c := &clock{start}
	ca, other := newCA(t, start), newCA(t, start)
	server, err := pki.NewServer(ca, []string{"localhost"}, c.Now)
	if err != nil {
		t.Fatal(err)
	}
	agent := func(by *pki.CA) *tls.Config {
		key, csr, err := pki.NewCSR("hv-1")
		if err != nil {
			t.Fatal(err)
		}
		signed, err := by.SignAgent(csr, "hv-1", start)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := pki.AgentTLS(signed.PEM, key, ca.PEM())
		if err != nil {
			t.Fatal(err)
		}
		cfg.ServerName, cfg.Time = "localhost", c.Now
		// Show the certificate even though the server's list of CAs does not hold its issuer.
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cfg.Certificates[0], nil }
		return cfg
	}
	good, bad := agent(ca), agent(other)
	if err := handshake(t, server.TLS(), good); err != nil {
		t.Errorf("good: %v", err)
	}
	if err := handshake(t, server.TLS(), bad); err == nil {
		t.Error("a certificate of another CA was taken")
	}
	c.now = start.Add(pki.AgentLife + time.Second)
	if err := handshake(t, server.TLS(), good); err == nil {
		t.Error("an expired certificate was taken")
	}
}

func TestServerRenewsWhileServing(t *testing.T) {
	c := &clock{start}
	server, err := pki.NewServer(newCA(t, start), []string{"localhost"}, c.Now)
	if err != nil {
		t.Fatal(err)
	}
	cfg := server.TLS()
	get := func() *tls.Certificate {
		cert, err := cfg.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	first := get()
	c.now = start.Add(pki.ServerLife/3*2 - time.Hour)
	if get() != first {
		t.Error("renewed before two thirds of its life")
	}
	c.now = start.Add(pki.ServerLife / 3 * 2)
	second := get()
	if second == first || !second.Leaf.NotAfter.Equal(c.now.Add(pki.ServerLife)) {
		t.Errorf("not renewed at two thirds: ends %s", second.Leaf.NotAfter)
	}
}

func TestGrantedCheck(t *testing.T) {
	ca, other := newCA(t, start), newCA(t, start)
	key, csr, err := pki.NewCSR("hv-1")
	if err != nil {
		t.Fatal(err)
	}
	otherKey, _, err := pki.NewCSR("hv-1")
	if err != nil {
		t.Fatal(err)
	}
	good, err := ca.SignAgent(csr, "hv-1", start)
	if err != nil {
		t.Fatal(err)
	}
	wrongHost, err := ca.SignAgent(csr, "hv-2", start)
	if err != nil {
		t.Fatal(err)
	}
	wrongCA, err := other.SignAgent(csr, "hv-1", start)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name          string
		cert, key, ca []byte
		now           time.Time
		ok            bool
	}{
		{"good", good.PEM, key, ca.PEM(), start, true},
		{"other key", good.PEM, otherKey, ca.PEM(), start, false},
		{"other host", wrongHost.PEM, key, ca.PEM(), start, false},
		{"signed by another CA", wrongCA.PEM, key, ca.PEM(), start, false},
		{"another CA", wrongCA.PEM, key, other.PEM(), start, false},
		{"expired", good.PEM, key, ca.PEM(), start.Add(pki.AgentLife + time.Hour), false},
		{"garbage", []byte("x"), key, ca.PEM(), start, false},
	} {
		err := pki.Granted{Host: "hv-1", Cert: tt.cert, Key: tt.key, CA: tt.ca}.Check(ca.Hash(), tt.now)
		if (err == nil) != tt.ok {
			t.Errorf("%s: err = %v", tt.name, err)
		}
	}
}

func TestSealer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := pki.OpenSealer(path); !fault.Is(err, fault.Invalid) {
		t.Errorf("short key: %v", err)
	}
	if err := os.WriteFile(path, bytes.Repeat([]byte("k"), 32), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := pki.OpenSealer(path); !fault.Is(err, fault.Invalid) {
		t.Errorf("key that others may read: %v", err)
	}
	if err := os.Chmod(path, 0o400); err != nil {
		t.Fatal(err)
	}
	s, err := pki.OpenSealer(path)
	if err != nil {
		t.Fatal(err)
	}
	sealed := s.Seal("/auth/ca", []byte("the key"))
	if bytes.Contains(sealed, []byte("the key")) {
		t.Error("sealed text is readable")
	}
	if plain, err := s.Open("/auth/ca", sealed); err != nil || string(plain) != "the key" {
		t.Errorf("open: %q, %v", plain, err)
	}
	if _, err := s.Open("/auth/other", sealed); err == nil {
		t.Error("opened under another name")
	}
	other, err := pki.NewSealer(bytes.Repeat([]byte("j"), 32))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Open("/auth/ca", sealed); !fault.Is(err, fault.Unready) {
		t.Errorf("opened under another key: %v", err)
	}
}

func TestWriteFileLeavesTheOldFileWhenItCannot(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "sub", "file")
	if err := pki.WriteFile(path, []byte("x")); err == nil {
		t.Fatal("wrote into a missing directory")
	}
	path = filepath.Join(dir, "file")
	for _, content := range []string{"one", "two"} {
		if err := pki.WriteFile(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Fatalf("left over: %v, %v", files, err)
	}
}

func TestNames(t *testing.T) {
	names, err := pki.Names("10.9.8.7:8443", []string{"cloud.example"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"localhost", "127.0.0.1", "::1", "10.9.8.7", "cloud.example"} {
		if !strings.Contains(" "+strings.Join(names, " ")+" ", " "+want+" ") {
			t.Errorf("%s is not among %v", want, names)
		}
	}
	all, err := pki.Names(":8443", nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 3 {
		t.Errorf("listening on all addresses gives only %v", all)
	}
	if _, err := pki.Names("nonsense", nil); err == nil {
		t.Error("nonsense was taken")
	}
}

func TestJoinTokenRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		host := rapid.StringMatching(`[a-z][a-z0-9-]{0,62}`).Draw(t, "host")
		token := pki.NewJoinToken(host, sha256.Sum256([]byte(host)))
		got, err := pki.ParseJoinToken(" " + token.Text() + "\n")
		if err != nil || got != token {
			t.Fatalf("%s: %v", host, err)
		}
		if strings.Contains(token.String(), token.Text()[20:]) {
			t.Fatal("String shows the secret")
		}
		// One changed character never passes.
		text := []byte(token.Text())
		i := rapid.IntRange(0, len(text)-1).Draw(t, "at")
		c := rapid.SampledFrom([]byte("abcxyzABCXYZ0189-_!")).Draw(t, "to")
		if text[i] == c {
			return
		}
		text[i] = c
		if _, err := pki.ParseJoinToken(string(text)); err == nil {
			t.Fatalf("mistyped %s passed", text)
		} else if strings.Contains(err.Error(), string(text)) {
			t.Fatal("the error holds the token")
		}
	})
}

func FuzzParseJoinToken(f *testing.F) {
	f.Add("verbena_join_")
	f.Add(pki.NewJoinToken("hv-1", [32]byte{1}).Text())
	f.Add(pki.NewJoinToken("hv 1\n", [32]byte{1}).Text())
	f.Fuzz(func(t *testing.T, text string) {
		token, err := pki.ParseJoinToken(text)
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatalf("unclassified: %v", err)
			}
			return
		}
		if token.Text() != strings.TrimSpace(text) {
			t.Fatalf("two texts for one token: %q", text)
		}
	})
}
