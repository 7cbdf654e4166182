package server

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/fault"
)

// asker is a column of the table: a way to show credentials.
type asker struct {
	name string
	sign func(r *http.Request)
}

// askers are everybody that the table knows, with real users, tokens and certificates. Tenant roles are
// in physics, which is the tenant of the paths; eve's is in biology.
func (x *site) askers(t *testing.T) []asker {
	t.Helper()
	x.as(x.root, http.MethodPost, "/v1/tenants", tenantWith("physics"), http.StatusCreated)
	bearer := func(name, token string) asker {
		return asker{name, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }}
	}
	all := []asker{bearer("platform-admin", x.root)}
	for _, r := range []string{"operator", "auditor", "viewer"} {
		x.user("p-"+r, r)
		all = append(all, bearer(r, x.token("p-"+r, "t", "")))
	}
	var members []string
	for _, r := range []string{"tenant-owner", "member", "viewer", "auditor"} {
		x.user("t-" + r)
		members = append(members, "t-"+r, r)
	}
	x.user("eve")
	x.user("nobody")
	x.user("off")
	x.as(x.root, http.MethodPut, "/v1/tenants/physics", tenantWith("physics", append(members, "off", "tenant-owner")...), http.StatusOK)
	x.as(x.root, http.MethodPost, "/v1/tenants", tenantWith("biology", "eve", "tenant-owner"), http.StatusCreated)
	for _, r := range []string{"tenant-owner", "member", "viewer", "auditor"} {
		all = append(all, bearer(r+"@physics", x.token("t-"+r, "t", "")))
	}
	all = append(all, bearer("other-tenant's-owner", x.token("eve", "t", "")), bearer("no-role", x.token("nobody", "t", "")))
	status, body := x.call(x.root, http.MethodPost, "/v1/tokens", api.TokenRequest{Name: "cut", Scopes: []string{"vm.read", "image.*"}, InTenant: "biology"})
	all = append(all, bearer("admin-cut-to-biology-vm.read", must[api.TokenGrant](x, http.StatusOK, status, body).Secret))
	off := x.token("off", "t", "")
	expired := x.token("t-member", "short", "1m")
	x.as(x.root, http.MethodPut, "/v1/users/off", `{"kind":"User","name":"off","spec":{"roles":["platform-admin"],"disabled":true}}`, http.StatusOK)
	a, gone := x.mustJoin("hv-1"), x.mustJoin("hv-2")
	x.deleteHost("hv-2")
	x.clock.advance(time.Minute)
	return append(all,
		asker{"nobody", func(*http.Request) {}},
		bearer("expired-token", expired), bearer("disabled-admin", off),
		asker{"agent", a.sign}, asker{"deleted-host's-agent", gone.sign})
}

// sign puts the certificate of an agent on a request as the TLS stack does.
func (a *testAgent) sign(r *http.Request) {
	leaf := a.leaf()
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}, VerifiedChains: [][]*x509.Certificate{{leaf}}}
}

// TestRoutesAndRoles walks every route for everybody and holds what is decided against a table that
// people review. It fails when a route is missing from the table, since the table then differs.
func TestRoutesAndRoles(t *testing.T) {
	x := newSite(t)
	askers := x.askers(t)
	var b bytes.Buffer
	fmt.Fprintln(&b, "# y = admitted; otherwise the status of the refusal. Written by: go test ./internal/server -run RoutesAndRoles -update")
	for i, a := range askers {
		fmt.Fprintf(&b, "# %2d %s\n", i+1, a.name)
	}
	for _, r := range x.s.table {
		fmt.Fprintf(&b, "%-7s %-52s %-22s", r.method, r.path, r.perm)
		for _, a := range askers {
			fmt.Fprintf(&b, " %3s", x.verdict(r, a))
		}
		fmt.Fprintln(&b)
	}
	const path = "testdata/roles.golden"
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(want, b.Bytes()) {
		return
	}
	old := strings.Split(string(want), "\n")
	for i, line := range strings.Split(b.String(), "\n") {
		if i >= len(old) || old[i] != line {
			t.Errorf("is   %s", line)
			if i < len(old) {
				t.Errorf("want %s", old[i])
			}
		}
	}
}

// verdict sends one request through the guard of the route, as a client's would go, but not to its handler.
func (x *site) verdict(r route, a asker) string {
	x.Helper()
	req := httptest.NewRequest(r.method, strings.ReplaceAll(strings.ReplaceAll(r.path, "{tenant}", "physics"), "{name}", "thing"), nil)
	for _, p := range []string{"tenant", "name", "token"} {
		req.SetPathValue(p, map[string]string{"tenant": "physics", "name": "thing", "token": "thing"}[p])
	}
	a.sign(req)
	c := &call{route: &r}
	if err := x.s.admit(req, c); err != nil {
		return fmt.Sprint(meant(fault.KindOf(err)).status)
	}
	return "y"
}

// TestEveryRouteIsGuarded sends every request without credentials to the whole server: what is not public
// must answer 401, so no route slips past the guard whose decisions the table shows.
func TestEveryRouteIsGuarded(t *testing.T) {
	x := newSite(t)
	public := 0
	for _, r := range x.s.table {
		path := strings.NewReplacer("{tenant}", "physics", "{name}", "thing", "{token}", "thing").Replace(r.path)
		status, body := x.call("", r.method, path, nil)
		if r.perm == auth.Public {
			public++
			if status == http.StatusUnauthorized && r.id != "login" {
				t.Errorf("%s %s is public but answers 401: %s", r.method, path, body)
			}
			continue
		}
		if status != http.StatusUnauthorized {
			t.Errorf("%s %s without credentials: %d %s", r.method, path, status, body)
		}
	}
	if len(x.s.table) < 40 || public > 12 {
		t.Errorf("%d routes, %d of them public", len(x.s.table), public)
	}
}

// TestMissingAndHiddenAreTheSame: another tenant's object answers as one that does not exist, word for word.
func TestMissingAndHiddenAreTheSame(t *testing.T) {
	x := newSite(t)
	x.user("eve")
	x.as(x.root, http.MethodPost, "/v1/tenants", tenantWith("physics"), http.StatusCreated)
	x.as(x.root, http.MethodPost, "/v1/tenants", tenantWith("biology", "eve", "tenant-owner"), http.StatusCreated)
	eve := x.token("eve", "t", "")
	for _, r := range x.s.table {
		if !strings.Contains(r.path, "{tenant}") {
			continue
		}
		answer := func(tenant string) string {
			path := strings.NewReplacer("{tenant}", tenant, "{name}", "thing").Replace(r.path)
			status, body := x.call(eve, r.method, path, nil)
			p := decodeProblem(t, body)
			p.RequestID = ""
			return strings.ReplaceAll(fmt.Sprint(status, p), tenant, "T")
		}
		if hidden, missing := answer("physics"), answer("nowhere"); hidden != missing || !strings.HasPrefix(hidden, "404") {
			t.Errorf("%s %s: hidden %s, missing %s", r.method, r.path, hidden, missing)
		}
	}
}
