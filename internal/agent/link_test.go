package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/pki"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// tlsServer is a server of the agent's endpoints, with a CA of its own.
type tlsServer struct {
	*httptest.Server
	ca    *pki.CA
	token pki.JoinToken
	mu    sync.Mutex
	used  bool
	posts []wire.Status
	beats int
	after []string
	cn    []string
}

func newTLSServer(t *testing.T) *tlsServer {
	t.Helper()
	ca, err := pki.Open(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, err := pki.NewServer(ca, []string{"127.0.0.1"}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	s := &tlsServer{ca: ca, token: pki.NewJoinToken("h1", ca.Hash())}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+wire.PathJoin, s.join)
	mux.HandleFunc("POST "+wire.PathRenew, s.renew)
	mux.HandleFunc("GET "+wire.PathDesired, s.desired)
	mux.HandleFunc("POST "+wire.PathStatus, s.status)
	mux.HandleFunc("POST "+wire.PathBeat, func(w http.ResponseWriter, r *http.Request) {
		s.note(r)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.beats++
		w.WriteHeader(http.StatusNoContent)
	})
	s.Server = httptest.NewUnstartedServer(mux)
	s.Listener = tls.NewListener(s.Listener, cert.TLS()) // StartTLS would offer a certificate of its own
	s.Start()
	s.URL = strings.Replace(s.URL, "http://", "https://", 1)
	t.Cleanup(s.Close)
	return s
}

func (s *tlsServer) note(r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range r.TLS.PeerCertificates {
		s.cn = append(s.cn, c.Subject.CommonName)
	}
}

func (s *tlsServer) grant(w http.ResponseWriter, csr string) {
	signed, err := s.ca.SignAgent([]byte(csr), "h1", time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_ = json.NewEncoder(w).Encode(wire.Grant{Host: "h1", Certificate: string(signed.PEM), CA: string(s.ca.PEM()), Expires: signed.Expires})
}

func (s *tlsServer) join(w http.ResponseWriter, r *http.Request) {
	var j wire.Join
	err := json.NewDecoder(r.Body).Decode(&j)
	s.mu.Lock()
	used := s.used
	s.used = true
	s.mu.Unlock()
	if err != nil || j.Secret != s.token.Text() || used {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"title":"Unauthenticated","status":401,"code":"unauthenticated","detail":"the join token is unknown, used or expired"}`)
		return
	}
	s.grant(w, j.CSR)
}

func (s *tlsServer) renew(w http.ResponseWriter, r *http.Request) {
	s.note(r)
	var j wire.Renew
	_ = json.NewDecoder(r.Body).Decode(&j)
	s.grant(w, j.CSR)
}

func (s *tlsServer) desired(w http.ResponseWriter, r *http.Request) {
	s.note(r)
	s.mu.Lock()
	s.after = append(s.after, r.Header.Get("Last-Event-ID"))
	n := len(s.after)
	s.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, ": hello\n\nevent: desired\nid: %d\ndata: {\"host\":\"h1\",\"revision\":%d}\n\nevent: other\ndata: x\n\n", n, n)
	// The stream ends here: the client has to come again.
}

func (s *tlsServer) status(w http.ResponseWriter, r *http.Request) {
	var st wire.Status
	_ = json.NewDecoder(r.Body).Decode(&st)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.posts = append(s.posts, st)
	_, _ = io.WriteString(w, `{"ignored":["vm x"]}`)
}

func joined(t *testing.T, s *tlsServer) (*identity, string) {
	t.Helper()
	dir := t.TempDir()
	files, err := Directory(dir)
	if err != nil {
		t.Fatal(err)
	}
	id, err := openIdentity(files)
	if err != nil {
		t.Fatal(err)
	}
	if err := id.join(t.Context(), s.URL, s.token.Text(), time.Now); err != nil {
		t.Fatal(err)
	}
	return id, dir
}

func TestJoinThenWork(t *testing.T) {
	s := newTLSServer(t)
	id, dir := joined(t, s)
	info, err := os.Stat(filepath.Join(dir, identityFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v, %v", info, err)
	}
	l, err := newLink(s.URL, id)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var got []int64
	for range 2 {
		if err := l.Desired(t.Context(), func(d *wire.Desired) { got = append(got, d.Revision) }); !errors.Is(err, io.EOF) {
			t.Errorf("the stream ended with %v", err)
		}
	}
	if fmt.Sprint(got) != "[1 2]" || fmt.Sprint(s.after) != "[ 1]" {
		t.Errorf("revisions %v, resumed after %q", got, s.after)
	}
	ack, err := l.Post(t.Context(), wire.Status{Host: "h1"})
	if err != nil || len(ack.Ignored) != 1 || len(s.posts) != 1 {
		t.Errorf("post: %+v, %v", ack, err)
	}
	if err := l.Beat(t.Context(), 0); err != nil || s.beats != 1 {
		t.Errorf("beat: %v", err)
	}
	if len(s.cn) == 0 || s.cn[0] != "h1" {
		t.Errorf("client certificates %v", s.cn)
	}
	if dev := l.devices(); len(dev) != 1 || dev[0] != "lo" {
		t.Errorf("the session runs over %v", dev)
	}
	old := id.p.Cert
	if err := l.renew(t.Context(), time.Now()); err != nil || id.p.Cert == old {
		t.Errorf("renew: %v", err)
	}
	if err := l.Beat(t.Context(), -1); err != nil {
		t.Errorf("with the renewed certificate: %v", err)
	}
}

func TestJoinRefusals(t *testing.T) {
	s, other := newTLSServer(t), newTLSServer(t)
	id, _ := joined(t, s)
	fresh := &identity{files: id.files}
	if err := fresh.join(t.Context(), s.URL, s.token.Text(), time.Now); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("used token: %v", err)
	}
	err := fresh.join(t.Context(), other.URL, s.token.Text(), time.Now) // a server with another CA
	if err == nil || other.used {
		t.Errorf("the token was given to a stranger: %v", err)
	}
	if err := fresh.join(t.Context(), "http://127.0.0.1:1", s.token.Text(), time.Now); !fault.Is(err, fault.Invalid) {
		t.Errorf("without TLS: %v", err)
	}
	if err := fresh.join(t.Context(), s.URL, "verbena_join_x", time.Now); !fault.Is(err, fault.Invalid) || strings.Contains(err.Error(), "join_x") {
		t.Errorf("bad token: %v", err)
	}
	if fresh.joined() {
		t.Error("joined all the same")
	}
}

func TestDamagedIdentity(t *testing.T) {
	s := newTLSServer(t)
	_, dir := joined(t, s)
	if err := os.WriteFile(filepath.Join(dir, identityFile), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	files, err := Directory(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openIdentity(files); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "join again") {
		t.Errorf("err = %v", err)
	}
}

func TestEventStream(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"data: a\n\n", "|a"},
		{"event: e\r\nid: 7\r\ndata: a\r\ndata: b\r\n\r\n", "e7|a\nb"},
		{": only a comment\n\n", ""},
		{"data:no space\n\ndata\n\n", "|no space|"},
		{"data: cut off\n", ""},
	} {
		var got strings.Builder
		err := readEvents(strings.NewReader(tt.in), func() {}, func(m message) error {
			fmt.Fprintf(&got, "%s%s|%s", m.name, m.id, m.data)
			return nil
		})
		if !errors.Is(err, io.EOF) || got.String() != tt.want {
			t.Errorf("%q: %q, %v, want %q", tt.in, got.String(), err, tt.want)
		}
	}
}

func FuzzEventStream(f *testing.F) {
	f.Add([]byte("event: desired\nid: 7\ndata: {}\n\n: x\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		err := readEvents(bytes.NewReader(b), func() { n++ }, func(m message) error {
			if bytes.HasSuffix(m.data, []byte("\r")) {
				t.Errorf("a line's end is left in %q", m.data)
			}
			return nil
		})
		if err == nil {
			t.Error("a stream does not end without an error")
		}
	})
}

// TestAgentJoinsAndRuns is a whole agent against a server with TLS.
func TestAgentJoinsAndRuns(t *testing.T) {
	s := newTLSServer(t)
	w := newWorld(t, host(2))
	cfg, deps := w.config(), w.deps()
	cfg.Host, cfg.Server, cfg.JoinToken, cfg.Beat = "", s.URL, s.token.Text(), 10*time.Millisecond
	a, err := New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	deadline := time.After(20 * time.Second)
	for ok := false; !ok; {
		select {
		case <-deadline:
			t.Fatal("no status and no beat came")
		case <-time.After(20 * time.Millisecond):
		}
		s.mu.Lock()
		ok = s.beats > 0 && len(s.posts) > 0 && s.posts[len(s.posts)-1].Host == "h1"
		s.mu.Unlock()
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

func TestUsedTokenEndsTheAgent(t *testing.T) {
	s := newTLSServer(t)
	s.used = true
	w := newWorld(t, host(2))
	cfg, deps := w.config(), w.deps()
	cfg.Server, cfg.JoinToken = s.URL, s.token.Text()
	a, err := New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Run(t.Context()); !fault.Is(err, fault.Internal) && !strings.Contains(fmt.Sprint(err), "used or expired") {
		t.Errorf("err = %v", err)
	}
}
