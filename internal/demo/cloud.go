// Package demo runs the whole system in one process: the server, and agents on simulated kernels and
// hypervisors. Above the contracts of kernel, hypervisor and disk it is the code that runs in production:
// agents join by one-time tokens over TLS, people use the real command line and client.
//
// Cloud is that system; `verbena demo` tells a story on it, and the end-to-end tests run their scripts on
// it. Everything simulated says so.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/verbena-cloud/verbena/client"
	"github.com/verbena-cloud/verbena/internal/server"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/etcd"
	"github.com/verbena-cloud/verbena/internal/store/mem"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
)

// CloudConfig says how the system is run.
type CloudConfig struct {
	Dir     string // of everything; must be empty
	Listen  string // default 127.0.0.1:0
	Version string
	Memory  bool // the store is in memory and lives as long as the Cloud
	Log     *slog.Logger
	// Beat is between two signs of life of an agent; 0 = the agent's default.
	Beat time.Duration
}

// engine is a store that ends.
type engine interface {
	store.DB
	io.Closer
}

// Cloud is a server and simulated hosts.
type Cloud struct {
	cfg   CloudConfig
	addr  string
	token string
	ca    []byte
	Hosts []*Host

	mu     sync.Mutex
	db     engine
	server *running
}

// running is a program in its own goroutine.
type running struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // once done
}

// start runs f until it returns or stop is called. The program outlives the call that starts it.
func start(ctx context.Context, f func(context.Context) error) *running {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &running{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = f(ctx)
	}()
	return r
}

// stop ends the program and waits for it.
func (r *running) stop() error {
	r.cancel()
	<-r.done
	if errors.Is(r.err, context.Canceled) {
		return nil
	}
	return r.err
}

// NewCloud starts the server. Close ends it.
func NewCloud(ctx context.Context, cfg CloudConfig) (*Cloud, error) {
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory: %w", err)
	}
	if list, err := os.ReadDir(cfg.Dir); err != nil || len(list) > 0 {
		return nil, errors.Join(err, fmt.Errorf("%s is not empty: simulated hosts end with the process, so each run needs a directory of its own", cfg.Dir))
	}
	c := &Cloud{cfg: cfg, addr: cfg.Listen}
	if err := c.StartServer(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	var err error
	if c.ca, err = os.ReadFile(c.CAFile()); err != nil {
		return nil, errors.Join(fmt.Errorf("read the CA: %w", err), c.Close())
	}
	token, err := os.ReadFile(filepath.Join(c.serverDir(), "bootstrap-token"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read the first token: %w", err), c.Close())
	}
	c.token = strings.TrimSpace(string(token))
	return c, nil
}

func (c *Cloud) serverDir() string { return filepath.Join(c.cfg.Dir, "server") }

// CAFile is the file with the CA that proves the server.
func (c *Cloud) CAFile() string { return filepath.Join(c.serverDir(), "ca.crt") }

// Address is where the server is reached.
func (c *Cloud) Address() string { return "https://" + c.addr }

// Token is the first administrator's.
func (c *Cloud) Token() string { return c.token }

// Client returns a client of the first administrator.
func (c *Cloud) Client() (*client.Client, error) {
	return client.New(client.Config{Server: c.Address(), Token: c.token, CA: c.ca, UserAgent: "verbena-demo/" + c.cfg.Version})
}

// StartServer starts the server, again at the address that it had.
func (c *Cloud) StartServer(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server != nil {
		return errors.New("the server runs already")
	}
	if err := os.MkdirAll(c.serverDir(), 0o700); err != nil {
		return fmt.Errorf("make the server's directory: %w", err)
	}
	if err := c.openStore(ctx); err != nil {
		return err
	}
	s, err := server.New(ctx, server.Config{Listen: c.addr, Version: c.cfg.Version, Data: c.serverDir()},
		server.Deps{Store: c.db, Log: c.cfg.Log.With("program", "server")})
	if err != nil {
		return err
	}
	c.addr = s.Addr()
	c.server = start(ctx, s.Run)
	return nil
}

func (c *Cloud) openStore(ctx context.Context) error {
	if c.db != nil {
		return nil
	}
	if c.cfg.Memory {
		c.db = mem.New()
		return nil
	}
	db, err := etcd.Open(ctx, etcd.Config{Dir: filepath.Join(c.serverDir(), "etcd"), Log: c.cfg.Log.With("program", "etcd")})
	if err != nil {
		return err
	}
	c.db = db
	return nil
}

// StopServer ends the server, and the embedded etcd with it. A store in memory stays.
func (c *Cloud) StopServer() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == nil {
		return errors.New("the server does not run")
	}
	err := c.server.stop()
	c.server = nil
	if !c.cfg.Memory {
		err = errors.Join(err, c.db.Close())
		c.db = nil
	}
	return err
}

// AddHost boots a simulated host, makes its join token and starts its agent.
func (c *Cloud) AddHost(ctx context.Context, name string, hardware sysfstest.Config) (*Host, error) {
	h, err := newHost(name, filepath.Join(c.cfg.Dir, "hosts", name), hardware)
	if err != nil {
		return nil, fmt.Errorf("boot simulated host %s: %w", name, err)
	}
	h.cloud = c
	cl, err := c.Client()
	if err != nil {
		return nil, err
	}
	if err := h.join(ctx, cl); err != nil {
		return nil, fmt.Errorf("join host %s: %w", name, err)
	}
	c.Hosts = append(c.Hosts, h)
	return h, h.StartAgent(ctx)
}

// Host returns the simulated host of a name.
func (c *Cloud) Host(name string) *Host {
	for _, h := range c.Hosts {
		if h.Name == name {
			return h
		}
	}
	return nil
}

// Failed returns why the server ended by itself, nil while it runs.
func (c *Cloud) Failed() error {
	c.mu.Lock()
	s := c.server
	c.mu.Unlock()
	if s == nil {
		return nil
	}
	select {
	case <-s.done:
		return errors.Join(errors.New("the server ended"), s.err)
	default:
		return nil
	}
}

// Close ends everything.
func (c *Cloud) Close() error {
	var errs []error
	for _, h := range c.Hosts {
		errs = append(errs, h.StopAgent())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server != nil {
		errs = append(errs, c.server.stop())
		c.server = nil
	}
	if c.db != nil {
		errs = append(errs, c.db.Close())
		c.db = nil
	}
	return errors.Join(errs...)
}
