package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
)

// revision is how far the store is: the proof that a refused request changed nothing.
func (f *fixture) revision() (rev int64) {
	f.Helper()
	if err := f.db.View(f.Context(), func(tx store.Tx) error { rev = tx.Rev(); return nil }); err != nil {
		f.Fatal(err)
	}
	return rev
}

func locations(p api.Problem) []string {
	var out []string
	for _, e := range p.Errors {
		out = append(out, e.Location)
	}
	return out
}

// A refused request answers with a problem of the right status that names the place, and changes nothing.
func TestBadInput(t *testing.T) {
	f := newFixture(t)
	f.seed()
	const flavors, networks = "/v1/flavors", "/v1/tenants/physics/networks"
	long := strings.Repeat("n", 300)
	tests := []struct {
		name, method, path, body string
		header                   []string
		status                   int
		code                     fault.Kind
		at                       string // a location that must be named
	}{
		{name: "no body", path: flavors, body: "", status: 400, code: fault.Invalid},
		{name: "no JSON", path: flavors, body: `{"kind":`, status: 400, code: fault.Invalid},
		{name: "two documents", path: flavors, body: `{} {}`, status: 400, code: fault.Invalid},
		{name: "no object", path: flavors, body: `[1,2]`, status: 422, code: fault.Invalid, at: "body"},
		{name: "null", path: flavors, body: `null`, status: 422, code: fault.Invalid, at: "body"},
		{name: "invalid UTF-8", path: flavors, body: "{\"kind\":\"Flavor\",\"name\":\"a\xff\"}", status: 400, code: fault.Invalid},
		{name: "deep JSON", path: flavors, body: strings.Repeat("[", 200_000), status: 400, code: fault.Invalid},
		{name: "deep labels", path: flavors, body: `{"kind":"Flavor","name":"d","labels":` + strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000) + `,"spec":{"vcpus":1,"memory":"1GiB"}}`, status: 422, code: fault.Invalid, at: "body.labels.a"},
		{name: "oversized", path: flavors, body: `{"kind":"Flavor","name":"` + strings.Repeat("x", MaxBody) + `"}`, status: 413, code: fault.TooLarge},
		{name: "huge number", path: flavors, body: `{"kind":"Flavor","name":"a","spec":{"vcpus":1e999,"memory":"1GiB"}}`, status: 400, code: fault.Invalid},
		{name: "large number", path: flavors, body: `{"kind":"Flavor","name":"a","spec":{"vcpus":99999999999999999999,"memory":"1GiB"}}`, status: 422, code: fault.Invalid, at: "body.spec.vcpus"},
		{name: "fraction", path: flavors, body: `{"kind":"Flavor","name":"a","spec":{"vcpus":1.5,"memory":"1GiB"}}`, status: 422, code: fault.Invalid, at: "body.spec.vcpus"},
		{name: "wrong type", path: flavors, body: `{"kind":"Flavor","name":"a","spec":{"vcpus":"two","memory":"1GiB"}}`, status: 422, code: fault.Invalid, at: "body.spec.vcpus"},
		{name: "unknown field", path: flavors, body: `{"kind":"Flavor","name":"a","spec":{"vcpus":1,"memory":"1GiB","vcpu":3}}`, status: 422, code: fault.Invalid, at: "body.spec.vcpu"},
		{name: "unknown field of rdma", path: flavors, body: `{"kind":"Flavor","name":"a","spec":{"vcpus":1,"memory":"1GiB","rdma":{"vf":3}}}`, status: 422, code: fault.Invalid, at: "body.spec.rdma.vf"},
		{name: "bad enum of rdma", path: flavors, body: `{"kind":"Flavor","name":"a","spec":{"vcpus":1,"memory":"1GiB","rdma":{"ha":"triple"}}}`, status: 422, code: fault.Invalid, at: "body.spec.rdma.ha"},
		{name: "missing field", path: flavors, body: `{"kind":"Flavor","name":"a","spec":{"vcpus":1}}`, status: 422, code: fault.Invalid, at: "body.spec"},
		{name: "bad unit", path: flavors, body: `{"kind":"Flavor","name":"a","spec":{"vcpus":1,"memory":"16"}}`, status: 422, code: fault.Invalid, at: "body.spec.memory"},
		{name: "300 characters of name", path: flavors, body: flavorJSON(long, ""), status: 422, code: fault.Invalid, at: "body.name"},
		{name: "control characters", path: flavors, body: `{"kind":"Flavor","name":"a\u001b[31mb","spec":{"vcpus":1,"memory":"1GiB"}}`, status: 422, code: fault.Invalid, at: "body.name"},
		{name: "wrong kind", path: flavors, body: `{"kind":"Image","name":"a","spec":{"vcpus":1,"memory":"1GiB"}}`, status: 422, code: fault.Invalid, at: "body.kind"},
		{name: "duplicate", path: flavors, body: flavorJSON("plain", ""), status: 409, code: fault.Conflict},
		{name: "other tenant in the body", path: networks, body: `{"kind":"Network","tenant":"biology","name":"n","spec":{"fabric":"roce","cidr":"10.9.0.0/24"}}`, status: 422, code: fault.Invalid, at: "body.tenant"},
		{name: "overlapping CIDR", path: networks, body: `{"kind":"Network","name":"n","spec":{"fabric":"roce","cidr":"10.1.5.0/24"}}`, status: 409, code: fault.Conflict},
		{name: "VLAN out of the pool", path: networks, body: `{"kind":"Network","name":"n","spec":{"fabric":"roce","cidr":"10.9.0.0/24","vlan":300}}`, status: 422, code: fault.Invalid, at: "body.spec.vlan"},
		{name: "VLAN that is none", path: networks, body: `{"kind":"Network","name":"n","spec":{"fabric":"roce","cidr":"10.9.0.0/24","vlan":5000}}`, status: 422, code: fault.Invalid, at: "body.spec.vlan"},
		{name: "rename", method: http.MethodPut, path: flavors + "/plain", body: flavorJSON("other", ""), status: 422, code: fault.Invalid, at: "body.name"},
		{name: "replace what is not there", method: http.MethodPut, path: flavors + "/none", body: flavorJSON("none", ""), status: 404, code: fault.NotFound},
		{name: "broken If-Match", method: http.MethodPut, path: flavors + "/plain", body: flavorJSON("plain", ""), header: []string{"If-Match", "abc"}, status: 422, code: fault.Invalid, at: "header.If-Match"},
		{name: "delete what is used", method: http.MethodDelete, path: "/v1/fabrics/roce", status: 409, code: fault.Conflict},
		{name: "wrong content type", path: flavors, body: "kind: Flavor", header: []string{"Content-Type", "application/yaml"}, status: 415, code: fault.Invalid},
		{name: "form", path: flavors, body: "a=b", header: []string{"Content-Type", "application/x-www-form-urlencoded"}, status: 415, code: fault.Invalid},
		{name: "wrong charset", path: flavors, body: flavorJSON("a", ""), header: []string{"Content-Type", "application/json; charset=latin1"}, status: 415, code: fault.Invalid},
		{name: "unknown query", method: http.MethodGet, path: flavors + "?lables=a", status: 422, code: fault.Invalid, at: "query.lables"},
		{name: "bad selector", method: http.MethodGet, path: flavors + "?labels=a%3E1", status: 422, code: fault.Invalid, at: "query.labels"},
		{name: "bad limit", method: http.MethodGet, path: flavors + "?limit=-1", status: 422, code: fault.Invalid, at: "query.limit"},
		{name: "no number", method: http.MethodGet, path: flavors + "?limit=many", status: 422, code: fault.Invalid, at: "query.limit"},
		{name: "forged continue", method: http.MethodGet, path: flavors + "?continue=AAAA", status: 422, code: fault.Invalid, at: "query.continue"},
		{name: "no such path", method: http.MethodGet, path: "/v2/flavors", status: 404, code: fault.NotFound},
		{name: "key in a name", method: http.MethodGet, path: "/v1/flavors/..%2F..%2FTenant%2F_%2Fphysics", status: 404, code: fault.NotFound},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &fixture{T: t, s: f.s, db: f.db, log: f.log}
			if tt.method == "" {
				tt.method = http.MethodPost
			}
			var body any
			if tt.body != "" {
				body = tt.body
			}
			before := f.revision()
			p := f.problem(tt.status, tt.code, f.do("admin", tt.method, tt.path, body, tt.header...))
			if tt.at != "" && !strings.Contains(" "+strings.Join(locations(p), " ")+" ", " "+tt.at+" ") {
				t.Errorf("%q names %q, want %s among them", p.Detail, locations(p), tt.at)
			}
			if strings.ContainsFunc(p.Detail, func(r rune) bool { return r < ' ' }) || len(p.Detail) > 2100 {
				t.Errorf("detail is not fit for a terminal: %q", p.Detail)
			}
			if after := f.revision(); after != before {
				t.Errorf("a refused request moved the store from revision %d to %d", before, after)
			}
		})
	}
}

// One answer names what the schema finds and what the rules find.
func TestAllFaultsInOneAnswer(t *testing.T) {
	f := newFixture(t)
	f.seed()
	body := `{"kind":"Flavor","name":"Bad Name","extra":1,"labels":{"":"x"},"spec":{"vcpus":0,"memory":"16","rdma":{"ha":"triple","minRate":"10"}}}`
	p := f.problem(http.StatusUnprocessableEntity, fault.Invalid, f.do("op", http.MethodPost, "/v1/flavors", body))
	got := strings.Join(locations(p), " ")
	for _, at := range []string{"body.extra", "body.spec.vcpus", "body.spec.rdma.ha", "body.name", "body.labels", "body.spec.memory", "body.spec.rdma.minRate"} {
		if !strings.Contains(got, at) {
			t.Errorf("%s is not among %s", at, got)
		}
	}
	for i, a := range p.Errors {
		for _, b := range p.Errors[:i] {
			if a.Location == b.Location {
				t.Errorf("%s is named twice: %q and %q", a.Location, b.Message, a.Message)
			}
		}
	}
}

func TestMethodNotAllowed(t *testing.T) {
	f := newFixture(t)
	a := f.do("admin", http.MethodPatch, "/v1/flavors/x", "{}")
	f.problem(http.StatusMethodNotAllowed, fault.Invalid, a)
	if got := a.Header.Get("Allow"); got != "GET, PUT, DELETE" {
		t.Errorf("Allow: %q", got)
	}
}

func TestNoCredentials(t *testing.T) {
	f := newFixture(t)
	a := f.do("", http.MethodGet, "/v1/flavors", nil)
	f.problem(http.StatusUnauthorized, fault.Unauthenticated, a)
	if a.Header.Get("WWW-Authenticate") == "" {
		t.Error("no WWW-Authenticate")
	}
}

// Another tenant's objects, a tenant that does not exist, and names that can't exist are all answered alike.
func TestOtherTenantIsNotFound(t *testing.T) {
	f := newFixture(t)
	f.seed()
	text := func(who, tenant, rest string) string {
		a := f.do(who, http.MethodGet, "/v1/tenants/"+tenant+rest, nil)
		p := f.problem(http.StatusNotFound, fault.NotFound, a)
		return strings.ReplaceAll(p.Detail, tenant, "T")
	}
	for _, rest := range []string{"", "/networks", "/networks/lab", "/networks/none", "/networks?watch=true", "/events"} {
		foreign, absent := text("eve", "physics", rest), text("eve", "chemistry", rest)
		if foreign != absent {
			t.Errorf("%s: a foreign tenant answers %q, an absent one %q", rest, foreign, absent)
		}
		if own := text("op", "chemistry", rest); own != absent && !strings.HasPrefix(rest, "/networks/") {
			t.Errorf("%s: an operator reads %q of an absent tenant", rest, own)
		}
	}
	f.problem(http.StatusNotFound, fault.NotFound, f.do("eve", http.MethodPost, "/v1/tenants/physics/networks", `{}`))
	f.problem(http.StatusForbidden, fault.Forbidden, f.do("vic", http.MethodPost, "/v1/tenants/physics/networks", `{}`))
	f.problem(http.StatusForbidden, fault.Forbidden, f.do("ann", http.MethodGet, "/v1/hosts", nil))
}

func TestListsShowOnlyOnesOwn(t *testing.T) {
	f := newFixture(t)
	f.seed()
	f.want(201, f.do("eve", http.MethodPost, "/v1/tenants/biology/networks", `{"kind":"Network","name":"cells","spec":{"fabric":"roce","cidr":"10.2.0.0/24"}}`))
	names := func(who, path string) string {
		var out []string
		for _, o := range decode[api.List[api.Network]](t, f.want(200, f.do(who, http.MethodGet, path, nil))).Items {
			out = append(out, o.Tenant+"/"+o.Name)
		}
		return fmt.Sprint(out)
	}
	for who, want := range map[string]string{"ann": "[physics/lab]", "eve": "[biology/cells]", "op": "[biology/cells physics/lab]", "vic": "[physics/lab]"} {
		if got := names(who, "/v1/networks"); got != want {
			t.Errorf("%s sees %s, want %s", who, got, want)
		}
	}
	tenants := decode[api.List[api.Tenant]](t, f.want(200, f.do("eve", http.MethodGet, "/v1/tenants", nil))).Items
	if len(tenants) != 1 || tenants[0].Name != "biology" {
		t.Errorf("eve sees the tenants %v", tenants)
	}
	f.problem(http.StatusForbidden, fault.Forbidden, f.do("nobody", http.MethodGet, "/v1/networks", nil))
}
