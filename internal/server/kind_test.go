package server

import (
	"net/http"
	"strings"
	"testing"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
)

func TestLifeOfAnObject(t *testing.T) {
	f := newFixture(t)
	created := f.want(http.StatusCreated, f.do("op", http.MethodPost, "/v1/flavors", flavorJSON("small", "")))
	o := decode[api.Flavor](t, created)
	if o.UID == "" || o.Revision == 0 || o.Created == nil || created.Header.Get("ETag") == "" {
		t.Fatalf("created without identity: %s", created.body)
	}
	if got := created.Header.Get("Location"); got != "/v1/flavors/small" {
		t.Errorf("Location %q", got)
	}
	tag := created.Header.Get("ETag")

	read := f.want(http.StatusOK, f.do("bob", http.MethodGet, "/v1/flavors/small", nil))
	if read.Header.Get("ETag") != tag {
		t.Errorf("etag %s after create, %s on read", tag, read.Header.Get("ETag"))
	}

	bigger := strings.Replace(flavorJSON("small", ""), `"vcpus":2`, `"vcpus":4`, 1)
	f.problem(http.StatusPreconditionFailed, fault.Precondition, f.do("op", http.MethodPut, "/v1/flavors/small", bigger, "If-Match", `"1"`))
	put := f.want(http.StatusOK, f.do("op", http.MethodPut, "/v1/flavors/small", bigger, "If-Match", tag))
	if n := decode[api.Flavor](t, put); n.Spec.VCPUs != 4 || n.UID != o.UID || n.Revision <= o.Revision {
		t.Errorf("replaced by %s", put.body)
	}
	stale := f.do("op", http.MethodPut, "/v1/flavors/small", flavorJSON("small", ""), "If-Match", tag)
	p := f.problem(http.StatusPreconditionFailed, fault.Precondition, stale)
	if stale.Header.Get("ETag") != put.Header.Get("ETag") || !strings.Contains(p.Detail, "revision") {
		t.Errorf("a stale If-Match must tell the current revision: %v %s", stale.Header, stale.body)
	}

	f.want(http.StatusNoContent, f.do("op", http.MethodDelete, "/v1/flavors/small", nil, "If-Match", put.Header.Get("ETag")))
	f.problem(http.StatusNotFound, fault.NotFound, f.do("op", http.MethodGet, "/v1/flavors/small", nil))
	f.problem(http.StatusNotFound, fault.NotFound, f.do("op", http.MethodDelete, "/v1/flavors/small", nil))
}
