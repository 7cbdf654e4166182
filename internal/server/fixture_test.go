package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/mem"
)

// as is the header by which a test says who it is; see people.
const as = "X-Test-As"

// people are the callers of the tests, by name.
func people() map[string]auth.Caller {
	return map[string]auth.Caller{
		"admin":   {Name: "admin", Platform: []auth.Role{auth.PlatformAdmin}},
		"op":      {Name: "op", Platform: []auth.Role{auth.Operator}},
		"auditor": {Name: "auditor", Platform: []auth.Role{auth.Auditor}},
		"ann":     {Name: "ann", Tenants: map[string]auth.Role{"physics": auth.TenantOwner}},
		"bob":     {Name: "bob", Tenants: map[string]auth.Role{"physics": auth.TenantMember}},
		"eve":     {Name: "eve", Tenants: map[string]auth.Role{"biology": auth.TenantOwner}},
		"vic":     {Name: "vic", Tenants: map[string]auth.Role{"physics": auth.Viewer}},
		"nobody":  {Name: "nobody"},
		"h1":      {Host: "h1"},
	}
}

// fixture is a server without a socket on a store in memory.
type fixture struct {
	*testing.T
	s   *Server
	db  store.DB
	log *bytes.Buffer
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	db := mem.New()
	t.Cleanup(func() { _ = db.Close() })
	return newFixtureOn(t, db)
}

func newFixtureOn(t *testing.T, db store.DB) *fixture {
	t.Helper()
	f := &fixture{T: t, db: db, log: &bytes.Buffer{}}
	s, err := assemble(t.Context(), Config{Version: "test"}, Deps{Store: db, Log: slog.New(slog.NewTextHandler(f.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	s.identify = identifyForTest
	f.s = s
	return f
}

func identifyForTest(r *http.Request) (auth.Caller, error) {
	c, ok := people()[r.Header.Get(as)]
	if !ok {
		return auth.Caller{}, fault.New(fault.Unauthenticated, "no credentials")
	}
	return c, nil
}

// answered is a reply with its body read.
type answered struct {
	*http.Response
	body string
}

// do sends a request. body is sent as it is if it is a string, as JSON otherwise. extra are headers in pairs.
func (f *fixture) do(who, method, path string, body any, extra ...string) answered {
	f.Helper()
	var rd io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		rd = strings.NewReader(b)
	default:
		j, err := json.Marshal(b)
		if err != nil {
			f.Fatal(err)
		}
		rd = bytes.NewReader(j)
	}
	r := httptest.NewRequestWithContext(f.Context(), method, path, rd)
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if who != "" {
		r.Header.Set(as, who)
	}
	for i := 0; i+1 < len(extra); i += 2 {
		r.Header.Set(extra[i], extra[i+1])
	}
	w := httptest.NewRecorder()
	f.s.ServeHTTP(w, r)
	return answered{w.Result(), w.Body.String()}
}

// want demands a status.
func (f *fixture) want(status int, a answered) answered {
	f.Helper()
	if a.StatusCode != status {
		f.Fatalf("status %d, want %d: %s\nlog: %s", a.StatusCode, status, a.body, f.log)
	}
	return a
}

// problem demands a problem of that status and code.
func (f *fixture) problem(status int, code fault.Kind, a answered) api.Problem {
	f.Helper()
	f.want(status, a)
	if ct := a.Header.Get("Content-Type"); ct != problemType {
		f.Errorf("content type %q, want %q", ct, problemType)
	}
	var p api.Problem
	d := json.NewDecoder(strings.NewReader(a.body))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		f.Fatalf("%v in %s", err, a.body)
	}
	if p.Code != string(code) || p.Status != status || p.Detail == "" || p.RequestID == "" || p.RequestID != a.Header.Get("X-Request-ID") {
		f.Fatalf("problem %s, want code %s with detail and request id", a.body, code)
	}
	return p
}

// decode reads a reply's object.
func decode[T any](t testing.TB, a answered) T {
	t.Helper()
	var v T
	d := json.NewDecoder(strings.NewReader(a.body))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, a.body)
	}
	return v
}

// seed makes a fabric, a flavor, an image, two tenants and a network, through the API.
func (f *fixture) seed() {
	f.Helper()
	for _, o := range []struct{ path, body string }{
		{"/v1/fabrics", `{"kind":"Fabric","name":"roce","spec":{"speed":"25Gbps","vlanPool":["100-199"]}}`},
		{"/v1/flavors", `{"kind":"Flavor","name":"rdma-small","spec":{"vcpus":2,"memory":"4GiB","rdma":true}}`},
		{"/v1/flavors", `{"kind":"Flavor","name":"plain","spec":{"vcpus":2,"memory":"4GiB"}}`},
		{"/v1/images", `{"kind":"Image","name":"debian","spec":{"source":"/srv/debian.qcow2"}}`},
		{"/v1/tenants", tenantJSON("physics")},
		{"/v1/tenants", tenantJSON("biology")},
		{"/v1/tenants/physics/networks", `{"kind":"Network","name":"lab","spec":{"fabric":"roce","cidr":"10.1.0.0/16"}}`},
	} {
		f.want(http.StatusCreated, f.do("admin", http.MethodPost, o.path, o.body))
	}
}

func tenantJSON(name string) string {
	return fmt.Sprintf(`{"kind":"Tenant","name":%q,"spec":{"quota":{"vms":1000000,"vcpus":10000000,"memory":"1000TiB","vfs":1000000}}}`, name)
}

// flavorJSON is a flavor that every test may create.
func flavorJSON(name, labels string) string {
	if labels == "" {
		labels = "{}"
	}
	return fmt.Sprintf(`{"kind":"Flavor","name":%q,"labels":%s,"spec":{"vcpus":2,"memory":"4GiB"}}`, name, labels)
}

// quiet is a logger for benchmarks.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
