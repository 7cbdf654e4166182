package etcd_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/etcd"
)

// role says what the test binary is when it runs itself as a child process.
const role = "VERBENA_STORE_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "etcd":
		must(serveEtcd())
	case "writer":
		must(writeForever())
	default:
		os.Exit(m.Run())
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// child runs the test binary in a role and returns its standard output and a way to end it.
func child(tb testing.TB, as string, env ...string) (*bufio.Reader, *exec.Cmd) {
	tb.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), role+"="+as), env...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	check(tb, err)
	out, err := cmd.StdoutPipe()
	check(tb, err)
	check(tb, cmd.Start())
	tb.Cleanup(func() {
		_ = in.Close() // the child ends with its standard input
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return bufio.NewReader(out), cmd
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// serveEtcd is the embedded etcd started apart: with a TLS listener, until standard input ends.
func serveEtcd() error {
	listen, err := url.Parse(os.Getenv("LISTEN"))
	if err != nil {
		return err
	}
	c := embed.NewConfig()
	c.Dir = os.Getenv("DIR")
	c.ListenPeerUrls = nil
	c.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "localhost:0"}}
	c.InitialCluster = c.Name + "=http://localhost:0"
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{*listen}, []url.URL{*listen}
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	if listen.Scheme == "https" {
		c.ClientTLSInfo = transport.TLSInfo{
			CertFile: os.Getenv("PKI") + "/server.pem", KeyFile: os.Getenv("PKI") + "/server.key",
			TrustedCAFile: os.Getenv("PKI") + "/ca.pem", ClientCertAuth: true,
		}
	}
	e, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	<-e.Server.ReadyNotify()
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	e.Close()
	return err
}

// cluster is an external etcd that a test may use.
type cluster struct {
	url   string
	tls   etcd.TLS
	cmd   *exec.Cmd
	opens atomic.Int64
}

// config asks for a store of its own in the cluster.
func (c *cluster) config() etcd.Config {
	return etcd.Config{Endpoints: []string{c.url}, TLS: c.tls, Prefix: fmt.Sprintf("/cloud%d", c.opens.Add(1))}
}

// startApart starts the embedded etcd as a process of its own, with TLS and client certificates.
func startApart(tb testing.TB, dir, at string) *cluster {
	tb.Helper()
	pki := filepath.Join(dir, "pki")
	if _, err := os.Stat(pki); err != nil {
		makePKI(tb, pki)
	}
	out, cmd := child(tb, "etcd", "DIR="+filepath.Join(dir, "data"), "LISTEN=https://"+at, "PKI="+pki)
	if line, err := out.ReadString('\n'); line != "ready\n" {
		tb.Fatalf("etcd said %q, %v", line, err)
	}
	return &cluster{url: "https://" + at, cmd: cmd, tls: etcd.TLS{
		CA: pki + "/ca.pem", Cert: pki + "/client.pem", Key: pki + "/client.key", ServerName: "etcd.test",
	}}
}

// startDebian starts the distribution's etcd, if it is installed.
func startDebian(tb testing.TB) *cluster {
	tb.Helper()
	path, err := exec.LookPath("etcd")
	if err != nil {
		tb.Skip("no etcd is installed; apt-get install etcd-server gets it")
	}
	at, peer := "http://"+freePort(tb), "http://"+freePort(tb)
	cmd := exec.Command(path, "--data-dir", tb.TempDir(), "--listen-client-urls", at, "--advertise-client-urls", at,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	log, err := os.Create(filepath.Join(tb.TempDir(), "etcd.log"))
	check(tb, err)
	cmd.Stderr = log
	check(tb, cmd.Start())
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
	})
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{at}, Logger: zap.NewNop()})
	check(tb, err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	if _, err := c.Get(clientv3.WithRequireLeader(ctx), "/"); err != nil { // waits until it is up
		text, _ := os.ReadFile(log.Name())
		tb.Fatalf("etcd does not answer: %v\n%s", err, text)
	}
	return &cluster{url: at, cmd: cmd}
}

func freePort(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(tb, err)
	defer l.Close()
	return l.Addr().String()
}

// makePKI writes a CA and a certificate for the server, whose name is etcd.test, and one for the client.
func makePKI(tb testing.TB, dir string) {
	tb.Helper()
	check(tb, os.MkdirAll(dir, 0o700))
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(tb, err)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	write := func(name, kind string, der []byte) {
		check(tb, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	}
	for i, name := range []string{"ca", "server", "client"} {
		key := caKey
		leaf := ca
		if name != "ca" {
			key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			check(tb, err)
			leaf = &x509.Certificate{
				SerialNumber: big.NewInt(int64(i + 1)), Subject: pkix.Name{CommonName: name}, DNSNames: []string{"etcd.test"},
				NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
				ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			}
		}
		der, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
		check(tb, err)
		write(name+".pem", "CERTIFICATE", der)
		secret, err := x509.MarshalPKCS8PrivateKey(key)
		check(tb, err)
		write(name+".key", "PRIVATE KEY", secret)
	}
}

// openAt opens a store and closes it with the test.
func openAt(tb testing.TB, c etcd.Config) *etcd.DB {
	tb.Helper()
	db, err := etcd.Open(tb.Context(), c)
	check(tb, err)
	tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return db
}

func entry(key, value string) *store.Entry { return store.NewEntry(key, []byte(value), nil) }

func put(tb testing.TB, db store.DB, key, value string) int64 {
	tb.Helper()
	rev, err := db.Update(tb.Context(), func(tx store.Tx) error { tx.Put(entry(key, value)); return nil })
	check(tb, err)
	return rev
}

// none is the value of a key that does not exist.
const none = "<none>"

func value(tb testing.TB, db store.DB, key string) string {
	tb.Helper()
	out := none
	check(tb, db.View(tb.Context(), func(tx store.Tx) error {
		if e := tx.Get(key); e != nil {
			out = string(e.Value)
		}
		return nil
	}))
	return strings.Clone(out)
}

// eventually polls what another goroutine or process brings about.
func eventually(tb testing.TB, f func() bool) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			tb.Fatal("it did not come about")
		}
	}
}
