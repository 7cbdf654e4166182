// Package server is Verbena's API server: it identifies callers, checks what they may do, runs the rules
// in transactions of the store, and tells people and agents what happened.
//
// One file per noun. route.go has the shape of a route and what happens before a handler runs, kind.go the
// verbs that every kind shares, problem.go how faults go over the wire. Handlers are thin: what an object
// means is decided by the rules packages.
package server

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/pki"
	"github.com/verbena-cloud/verbena/internal/store"
)

// The limits of a connection. A client that sends slower than these is cut off; streams lift the write
// limit and set their own for each event.
const (
	headerTimeout = 10 * time.Second
	readTimeout   = 30 * time.Second
	writeTimeout  = 60 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 32 << 10
	// MaxBody is the largest request body, in bytes.
	MaxBody = 1 << 20
	drain   = 5 * time.Second
)

// Config is what an operator sets.
type Config struct {
	Listen  string // host:port; port 0 takes a free one
	Version string // of the program

	// Data is the directory with the CA and, until it is first used, the bootstrap token.
	Data string
	// KeyFile, if set, keeps the CA in the store instead, its key sealed by this file: for an external
	// store that several servers share.
	KeyFile string
	Names   []string    // further host names and addresses that the server is reached by
	CA      *pki.CA     // replaces Data and KeyFile
	TLS     *tls.Config // replaces the certificate made by the CA. Without any of them: plain HTTP, tests only
}

// Deps is what the server works with. Store and Log are needed; the rest has defaults.
type Deps struct {
	Store store.DB
	Log   *slog.Logger
	Now   func() time.Time // default time.Now
	UID   func() string    // identities of new objects; default random UUIDs
	// Notice gets the bootstrap token, once, at the first start; usually stderr. nil = nobody is told.
	Notice io.Writer
}

// Server serves the API.
type Server struct {
	cfg  Config
	db   store.DB
	log  *slog.Logger
	now  func() time.Time
	uid  func() string
	mux  *http.ServeMux
	api  huma.API
	http *http.Server

	// identify proves who sent a request. It is a field so that the test of routes and roles can be anybody.
	identify func(*http.Request) (auth.Caller, error)
	ident    *identity
	metrics  *metrics
	serial   atomic.Uint64 // request ids count up from a random start
	epoch    uint64
	docs     docs
	pageKey  []byte // signs continue tokens
	seats    seats

	table []route // every route, in the order of registration
	tasks []task  // what runs beside the listener until the server stops

	listener  net.Listener
	base      context.Context // carries New's values; requests outlive Run's context by the drain time
	stop      chan struct{}   // closed when the server stops: streams end
	closeOnce sync.Once
	closeErr  error
}

// task is background work: it ends when ctx does.
type task struct {
	name string
	run  func(ctx context.Context) error
}

// New wires a server. It listens when it returns, so that Addr is known, but serves only in Run. It fails
// when a route has no permission.
func New(ctx context.Context, cfg Config, deps Deps) (*Server, error) {
	s, err := assemble(ctx, cfg, deps)
	if err != nil {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", cfg.Listen, err)
	}
	s.listener = bound(listener, openFiles())
	s.http = &http.Server{
		Handler:           s,
		TLSConfig:         s.cfg.TLS,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		BaseContext:       func(net.Listener) context.Context { return s.base },
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug), // broken handshakes of strangers
	}
	return s, nil
}

// assemble makes everything but the listener. Tests serve it without a socket.
func assemble(ctx context.Context, cfg Config, deps Deps) (*Server, error) {
	if deps.Store == nil || deps.Log == nil {
		return nil, errors.New("server needs a store and a log")
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.UID == nil {
		deps.UID = randomUID
	}
	s := &Server{
		cfg: cfg, db: deps.Store, log: deps.Log, now: deps.Now, uid: deps.UID,
		mux: http.NewServeMux(), base: context.WithoutCancel(ctx), stop: make(chan struct{}),
	}
	var err error
	if s.pageKey, err = loadPageKey(ctx, s.db); err != nil {
		return nil, err
	}
	s.identify = s.identifyRequest
	s.epoch = rand64() >> 33
	s.metrics = newMetrics()
	if err := s.openIdentity(ctx, deps.Notice); err != nil {
		return nil, err
	}
	s.api = humago.New(s.mux, openAPIConfig())
	if err := s.register(s.routes()); err != nil {
		return nil, err
	}
	if s.docs, err = s.renderDocs(); err != nil {
		return nil, err
	}
	s.mux.HandleFunc("/", s.unrouted)
	s.tasks = append(s.tasks, task{"prune", s.pruneTask})
	return s, nil
}

// Run serves until ctx ends or something fails, then lets running requests end.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, t := range s.tasks {
		wg.Go(func() {
			if err := t.run(ctx); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s: %w", t.name, err))
			}
		})
	}
	wg.Go(func() {
		if err := s.serve(); err != nil && !errors.Is(err, http.ErrServerClosed) {
			cancel(fmt.Errorf("serve on %s: %w", s.Addr(), err))
		}
	})
	<-ctx.Done()
	err := s.Close()
	wg.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

func (s *Server) serve() error {
	if s.cfg.TLS != nil {
		return s.http.ServeTLS(s.listener, "", "")
	}
	return s.http.Serve(s.listener)
}

// Close stops the server: running requests have a few seconds, streams end at once. It is safe to call
// twice. The store stays open; it belongs to the caller.
func (s *Server) Close() error {
	s.closeOnce.Do(func() {
		close(s.stop)
		ctx, cancel := context.WithTimeout(s.base, drain)
		defer cancel()
		if err := s.http.Shutdown(ctx); err != nil {
			s.closeErr = s.http.Close()
		}
		_ = s.listener.Close() // a server that never ran still listens; closing twice is harmless
	})
	return s.closeErr
}

// Addr is where the server listens, host:port.
func (s *Server) Addr() string { return s.listener.Addr().String() }

func rand64() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand
	return binary.NativeEndian.Uint64(b[:])
}

// randomUID makes a random UUID in the text form of RFC 9562. A VM's is its domain's, and libvirt gives
// every UUID back in this form: in another one the agent would not know its own domains again.
func randomUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])  // never fails: crypto/rand
	b[6] = b[6]&0x0f | 0x40 // version 4
	b[8] = b[8]&0x3f | 0x80 // variant 10
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
