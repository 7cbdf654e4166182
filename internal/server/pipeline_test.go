package server

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store/mem"
)

func TestRouteWithoutPermissionDoesNotStart(t *testing.T) {
	f := newFixture(t)
	ok := func(context.Context, *struct{}) (*struct{}, error) { return nil, nil }
	for want, r := range map[string]route{
		"has no permission":     handle(route{id: "x", method: "GET", path: "/x"}, ok),
		"unknown permission":    handle(route{id: "x", method: "GET", path: "/x", perm: "vm.fly"}, ok),
		"has no handler":        {id: "x", method: "GET", path: "/x", perm: auth.Public},
		"disagree about the te": handle(route{id: "x", method: "GET", path: "/x/{tenant}", perm: auth.VMRead}, ok),
	} {
		if err := f.s.register([]route{r}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// A panic costs one answer: a problem without its words, which are in the log under the request's id.
func TestPanic(t *testing.T) {
	f := newFixture(t)
	err := f.s.register(append(f.s.table[:0:0], handle(route{id: "boom", method: "GET", path: "/boom", perm: auth.Public, tag: "Test"},
		func(context.Context, *struct{}) (*struct{}, error) { panic("canary-panic") })))
	if err != nil {
		t.Fatal(err)
	}
	p := f.problem(500, fault.Internal, f.do("", "GET", "/boom", nil))
	if strings.Contains(p.Detail, "canary") || !strings.Contains(f.log.String(), "canary-panic") || !strings.Contains(f.log.String(), p.RequestID) {
		t.Errorf("answer %+v, log %s", p, f.log)
	}
	f.want(200, f.do("", "GET", "/healthz", nil))
}

// What is no fault stays here; huma would send its words.
func TestUnclassifiedErrorStaysInside(t *testing.T) {
	f := newFixture(t)
	err := f.s.register([]route{handle(route{id: "leak", method: "GET", path: "/leak", perm: auth.Public, tag: "Test"},
		func(context.Context, *struct{}) (*struct{}, error) {
			return nil, net.UnknownNetworkError("canary-db-password")
		})})
	if err != nil {
		t.Fatal(err)
	}
	a := f.do("", "GET", "/leak", nil)
	f.problem(500, fault.Internal, a)
	if strings.Contains(a.body, "canary") || !strings.Contains(f.log.String(), "canary-db-password") {
		t.Errorf("answer %s, log %s", a.body, f.log)
	}
}

// Huma's own validation answers like ours: with places and without values.
func TestHumaErrorsHideTheirInput(t *testing.T) {
	f := newFixture(t)
	type in struct {
		Limit int `query:"limit" minimum:"1"`
		Body  struct {
			Password string `json:"password" minLength:"64"`
		}
	}
	err := f.s.register([]route{handle(route{id: "echo", method: "POST", path: "/echo", perm: auth.Public, tag: "Test"},
		func(context.Context, *in) (*struct{}, error) { return nil, nil })})
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{`{"password":"canary"}`, `{"password":["canary"]}`, `{"password":"canary`, `{"canary":1,"password":"canary"}`, `"canary"`, `canary`} {
		a := f.do("", "POST", "/echo?limit=0", body)
		if a.StatusCode < 400 || a.StatusCode >= 500 {
			t.Errorf("%s: status %d", body, a.StatusCode)
		}
		p := f.problem(a.StatusCode, fault.Invalid, a)
		if strings.Contains(strings.ReplaceAll(a.body, "body.canary", ""), "canary") {
			t.Errorf("%s comes back in %s", body, a.body)
		}
		if len(p.Errors) == 0 {
			t.Errorf("%s: no place is named: %s", body, a.body)
		}
	}
}

func TestSecurityHeaders(t *testing.T) {
	f := newFixture(t)
	for _, a := range []answered{f.do("", "GET", "/healthz", nil), f.do("", "GET", "/none", nil), f.do("bob", "GET", "/v1/flavors", nil)} {
		for _, h := range []string{"X-Content-Type-Options", "Content-Security-Policy", "Cache-Control", "X-Request-Id", "Referrer-Policy"} {
			if a.Header.Get(h) == "" {
				t.Errorf("%s is missing", h)
			}
		}
	}
	hosted := f.do("bob", "GET", "http://evil.example/v1/flavors", nil)
	if strings.Contains(hosted.body, "$schema") || hosted.Header.Get("Link") != "" {
		t.Errorf("links built from the Host header: %v %s", hosted.Header, hosted.body)
	}
}

func TestStatusAndMetrics(t *testing.T) {
	f := newFixture(t)
	if a := f.want(200, f.do("op", "GET", "/v1/status", nil)); !strings.Contains(a.body, `"engine":"memory"`) || !strings.Contains(a.body, `"StoreWritable"`) {
		t.Errorf("status %s", a.body)
	}
	f.want(200, f.do("", "GET", "/readyz", nil))
	f.problem(401, fault.Unauthenticated, f.do("", "GET", "/metrics", nil))
	f.problem(403, fault.Forbidden, f.do("bob", "GET", "/metrics", nil))
	if a := f.want(200, f.do("op", "GET", "/metrics", nil)); !strings.Contains(a.body, `verbena_http_request_seconds_count{route="status",status="2xx"} 1`) {
		t.Errorf("metrics %s", a.body)
	}
	_ = f.db.Close()
	f.problem(503, fault.Unavailable, f.do("", "GET", "/readyz", nil))
}

// The whole server on a socket: it starts, answers, stops when told and leaves nothing behind.
func TestRunAndClose(t *testing.T) {
	db := mem.New()
	defer db.Close()
	s, err := New(t.Context(), Config{Listen: "127.0.0.1:0"}, Deps{Store: db, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	r, err := http.Get("http://" + s.Addr() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Body.Close()
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	if _, err := net.Dial("tcp", s.Addr()); err == nil {
		t.Error("the server still listens")
	}
}

// Client that sends its request a byte at a time must not hold a connection for ever; the limits are the
// http.Server's, so it is enough that they are set.
func TestConnectionLimitsAreSet(t *testing.T) {
	db := mem.New()
	defer db.Close()
	s, err := New(t.Context(), Config{Listen: "127.0.0.1:0"}, Deps{Store: db, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	h := s.http
	if h.ReadHeaderTimeout <= 0 || h.ReadTimeout <= 0 || h.WriteTimeout <= 0 || h.IdleTimeout <= 0 || h.MaxHeaderBytes <= 0 || h.MaxHeaderBytes > 1<<16 {
		t.Errorf("a limit is missing: %+v", h)
	}
}
