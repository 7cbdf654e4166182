package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/pki"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/etcd"
	"github.com/verbena-cloud/verbena/internal/store/mem"
)

const benchClients = 64

// bareTxns is the baseline: how many transactions with two keys a bare etcd commits in a second, durable, for as
// many clients, and what one costs. wire: the clients come as ours do, each over a connection of its own to the same
// process, with TLS if secure. Otherwise they call etcd's Go functions, without any protocol.
func bareTxns(b *testing.B, wire, secure bool) (rate float64, cpu time.Duration) {
	b.Helper()
	e := startBare(b, secure)
	defer e.Close()
	var clients []*clientv3.Client
	if !wire {
		clients = []*clientv3.Client{v3client.New(e.Server)}
	}
	for wire && len(clients) < benchClients {
		c := clientv3.Config{Endpoints: []string{e.Clients[0].Addr().String()}, Logger: zap.NewNop()}
		if secure {
			c.TLS = &tls.Config{InsecureSkipVerify: true} // etcd makes its certificate itself
		}
		client, err := clientv3.New(c)
		if err != nil {
			b.Fatal(err)
		}
		clients = append(clients, client)
	}
	defer func() {
		for _, c := range clients {
			_ = c.Close()
		}
	}()
	var txns atomic.Int64
	txn := func(ctx context.Context, n int64) error {
		a, z := fmt.Sprintf("/o/VM/t/%d", n), fmt.Sprintf("/ledger/%d", n)
		_, err := clients[n%int64(len(clients))].Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(a), "=", 0)).
			Then(clientv3.OpPut(a, strings.Repeat("v", 1024)), clientv3.OpPut(z, strings.Repeat("l", 256))).Commit()
		txns.Add(1)
		return err
	}
	for i := range clients { // connect
		if err := txn(b.Context(), 1<<40+int64(i)); err != nil {
			b.Fatal(err)
		}
	}
	txns.Store(0)
	before := cpuTime(b)
	rate = perSecond(b, txn)
	return rate, (cpuTime(b) - before) / time.Duration(txns.Load())
}

// startBare starts an etcd in this process that listens on loopback.
func startBare(b *testing.B, secure bool) *embed.Etcd {
	b.Helper()
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel, cfg.ClientAutoTLS = filepath.Join(b.TempDir(), "bare"), "panic", secure
	local := func(scheme string) url.URL {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		return url.URL{Scheme: scheme, Host: l.Addr().String()}
	}
	scheme := "http"
	if secure {
		scheme = "https"
	}
	client, peer := local(scheme), local("http")
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		b.Fatal(err)
	}
	<-e.Server.ReadyNotify()
	return e
}

// cpuTime is what this process has used of all cores. On a busy machine it says more than the rate.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// perSecond calls f from 64 goroutines for two seconds.
func perSecond(b *testing.B, f func(ctx context.Context, n int64) error) float64 {
	b.Helper()
	var n, done atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for range benchClients {
		wg.Go(func() {
			for time.Since(start) < 2*time.Second {
				if err := f(context.Background(), n.Add(1)); err != nil {
					b.Error(err)
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(done.Load()) / time.Since(start).Seconds()
}

// bench is a whole server on embedded etcd with hosts, tenants and a token.
type bench struct {
	s      *Server
	url    string
	client *http.Client
	token  string
	roots  *x509.CertPool // nil without TLS
}

const benchTenants = 16

func newBench(b *testing.B, db store.DB, secure bool) *bench {
	b.Helper()
	cfg := Config{Listen: "127.0.0.1:0", Version: "bench"}
	scheme := "http"
	tr := &http.Transport{MaxIdleConnsPerHost: benchClients, MaxConnsPerHost: benchClients}
	if secure {
		m, err := pki.NewMaterial(time.Now())
		if err != nil {
			b.Fatal(err)
		}
		if cfg.CA, err = pki.New(m); err != nil {
			b.Fatal(err)
		}
		scheme, tr.TLSClientConfig = "https", &tls.Config{RootCAs: cfg.CA.Pool()}
	}
	s, err := New(b.Context(), cfg, Deps{Store: db, Log: quiet()})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	b.Cleanup(func() {
		tr.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
	x := &bench{s: s, url: scheme + "://" + s.Addr(), client: &http.Client{Transport: tr}, token: s.Bootstrap()}
	if secure {
		x.roots = cfg.CA.Pool()
	}
	x.fill(b)
	return x
}

// fill makes 32 hosts of 4 PFs with 250 VFs, and tenants with a network each.
func (x *bench) fill(b *testing.B) {
	b.Helper()
	post := func(path, body string) {
		if err := x.post(b.Context(), path, body); err != nil {
			b.Fatal(err)
		}
	}
	post("/v1/fabrics", `{"kind":"Fabric","name":"roce","spec":{"speed":"25Gbps","vlanPool":["100-199"]}}`)
	post("/v1/flavors", `{"kind":"Flavor","name":"rdma-small","spec":{"vcpus":2,"memory":"4GiB","rdma":true}}`)
	post("/v1/images", `{"kind":"Image","name":"debian","spec":{"source":"/srv/debian.qcow2"}}`)
	for i := range benchTenants {
		name := fmt.Sprintf("t%d", i)
		post("/v1/tenants", tenantJSON(name))
		post("/v1/tenants/"+name+"/networks", fmt.Sprintf(`{"kind":"Network","name":"lab","spec":{"fabric":"roce","cidr":"10.%d.0.0/16"}}`, i))
	}
	var names []string
	for i := range 32 {
		names = append(names, fmt.Sprintf("h%d", i))
		addHost(b, x.s, names[i], 250)
	}
	keepHostsAlive(b, x.s, names)
}

func (x *bench) post(ctx context.Context, path, body string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, x.url+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+x.token)
	a, err := x.client.Do(r)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	out, err := io.ReadAll(a.Body)
	if err == nil && a.StatusCode != http.StatusCreated {
		err = fmt.Errorf("%s: %s %s", path, a.Status, out)
	}
	return err
}

// wireClient is one client with a connection of its own, as small as can be: what is measured is the
// server, and http.Client would cost a quarter of it.
type wireClient struct {
	x    *bench
	conn net.Conn
	r    *bufio.Reader
	buf  []byte
}

func (x *bench) dial() (*wireClient, error) {
	conn, err := net.Dial("tcp", x.s.Addr())
	if err != nil {
		return nil, err
	}
	if x.roots != nil {
		conn = tls.Client(conn, &tls.Config{RootCAs: x.roots, ServerName: "127.0.0.1"})
	}
	return &wireClient{x: x, conn: conn, r: bufio.NewReader(conn)}, nil
}

// create posts a VM and waits for the answer.
func (c *wireClient) create(path, body string) error {
	c.buf = fmt.Appendf(c.buf[:0], "POST %s HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, c.x.token, len(body), body)
	if _, err := c.conn.Write(c.buf); err != nil {
		return err
	}
	status, err := c.r.ReadString('\n')
	if err != nil {
		return err
	}
	length := 0
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) <= 2 {
			break
		}
		if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if length, err = strconv.Atoi(strings.TrimSpace(string(v))); err != nil {
				return err
			}
		}
	}
	if _, err := c.r.Discard(length); err != nil {
		return err
	}
	if !strings.Contains(status, " 201 ") {
		return fmt.Errorf("%s: %s", path, status)
	}
	return nil
}

// BenchmarkVMCreateHTTP creates RDMA VMs, placed and claimed and durable, through the whole server with 64
// clients in the same process, beside bare etcd transactions with two keys. The clients' work is in both. of-bare
// compares with clients that reach etcd as ours reach the server, over 64 connections; of-bare-in-process with Go
// calls of etcd, which no client of a server can make.
func BenchmarkVMCreateHTTP(b *testing.B) {
	for _, secure := range []bool{false, true} {
		name := "plain"
		if secure {
			name = "tls"
		}
		b.Run(name, func(b *testing.B) {
			bare, bareCPU := bareTxns(b, true, secure)
			inProcess, _ := bareTxns(b, false, false)
			db, err := etcd.Open(b.Context(), etcd.Config{Dir: filepath.Join(b.TempDir(), "etcd")})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = db.Close() })
			x := newBench(b, db, secure)
			var n atomic.Int64
			b.SetParallelism(max(1, benchClients/runtime.GOMAXPROCS(0)))
			before := cpuTime(b)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				c, err := x.dial()
				if err != nil {
					b.Error(err)
					return
				}
				defer c.conn.Close()
				for pb.Next() {
					i := n.Add(1)
					if err := c.create(fmt.Sprintf("/v1/tenants/t%d/vms", i%benchTenants), vmJSON(fmt.Sprintf("vm-%d", i), "rdma-small")); err != nil {
						b.Error(err)
						return
					}
				}
			})
			rate := float64(b.N) / b.Elapsed().Seconds()
			cpu := (cpuTime(b) - before) / time.Duration(b.N)
			b.ReportMetric(float64(cpu.Microseconds()), "cpu-us/create")
			b.ReportMetric(float64(bareCPU.Microseconds()), "cpu-us/bare-txn")
			b.ReportMetric(rate, "creates/s")
			b.ReportMetric(bare, "bare-txns/s")
			b.ReportMetric(rate/bare, "of-bare")
			b.ReportMetric(rate/inProcess, "of-bare-in-process")
		})
	}
}

// BenchmarkVMGet reads a VM through the whole handler chain, beside a bare huma operation that returns an
// object of the same size. No sockets: what is compared is our work.
func BenchmarkVMGet(b *testing.B) {
	db := mem.New()
	b.Cleanup(func() { _ = db.Close() })
	s, err := assemble(b.Context(), Config{}, Deps{Store: db, Log: quiet()})
	if err != nil {
		b.Fatal(err)
	}
	token := s.Bootstrap()
	do := func(method, path, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w
	}
	for _, o := range []struct{ path, body string }{
		{"/v1/fabrics", `{"kind":"Fabric","name":"roce","spec":{"speed":"25Gbps","vlanPool":["100-199"]}}`},
		{"/v1/flavors", `{"kind":"Flavor","name":"rdma-small","spec":{"vcpus":2,"memory":"4GiB","rdma":true}}`},
		{"/v1/images", `{"kind":"Image","name":"debian","spec":{"source":"/srv/debian.qcow2"}}`},
		{"/v1/tenants", tenantJSON("physics")},
		{"/v1/tenants/physics/networks", `{"kind":"Network","name":"lab","spec":{"fabric":"roce","cidr":"10.1.0.0/16"}}`},
	} {
		if w := do(http.MethodPost, o.path, o.body); w.Code != http.StatusCreated {
			b.Fatal(w.Body)
		}
	}
	addHost(b, s, "h1", 8)
	made := do(http.MethodPost, "/v1/tenants/physics/vms", vmJSON("a", "rdma-small"))
	if made.Code != http.StatusCreated {
		b.Fatal(made.Body)
	}
	bare := bareGet(b)
	request := func(h http.Handler, path string) func() {
		return func() {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.Header.Set("Authorization", "Bearer "+token)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != http.StatusOK {
				b.Fatal(w.Body)
			}
		}
	}
	theirs := request(bare, "/v1/tenants/physics/vms/a")
	ours := request(s, "/v1/tenants/physics/vms/a")
	var spent time.Duration
	for b.Loop() {
		ours()
		start := time.Now()
		theirs()
		spent += time.Since(start)
	}
	b.ReportMetric(float64(spent.Nanoseconds())/float64(b.N), "bare-ns/op")
	b.ReportMetric(float64((b.Elapsed()-spent).Nanoseconds())/float64(spent.Nanoseconds()), "x-bare")
}

// bareGet is the smallest huma program that answers with a VM.
func bareGet(b *testing.B) http.Handler {
	b.Helper()
	type in struct {
		Tenant string `path:"tenant"`
		Name   string `path:"name"`
	}
	type out struct{ Body api.VM }
	mux := http.NewServeMux()
	a := humago.New(mux, huma.DefaultConfig("bare", "1"))
	vm := api.VM{Meta: api.Meta{Kind: api.KindVM, Name: "a", Tenant: "physics", UID: "0123456789abcdef"}, Spec: api.VMSpec{Flavor: "rdma-small", Image: "debian", Networks: []api.VMNetwork{{Network: "lab"}}}}
	vm.Status = api.VMStatus{Phase: api.PhaseScheduled, Host: "h1", Cells: []api.VMCell{{VCPUs: 2}}, VFs: []api.VMVF{{PF: "h1-c0-p0", MAC: "02:00:00:00:00:01", IP: "10.1.0.2", VLAN: 100}}}
	huma.Register(a, huma.Operation{OperationID: "get", Method: http.MethodGet, Path: "/v1/tenants/{tenant}/vms/{name}"},
		func(context.Context, *in) (*out, error) { return &out{vm}, nil })
	return mux
}
