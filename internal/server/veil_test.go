package server

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
)

// Whatever shows a VM hides its user data from who may not change the VM.
func TestUserDataIsForThoseWhoMayChangeTheVM(t *testing.T) {
	f := newFixture(t)
	f.seed()
	addHost(t, f.s, "h1", 4)
	f.want(http.StatusCreated, f.do("bob", http.MethodPost, vms, vmJSON("a", "rdma-small")))
	cut := func(scopes ...auth.Permission) auth.Caller {
		c := people()["bob"]
		c.Scopes = scopes
		return c
	}
	callers := map[string]auth.Caller{
		"viewer": {Name: "v", Platform: []auth.Role{auth.Viewer}}, "tenant-auditor": {Name: "w", Tenants: map[string]auth.Role{"physics": auth.Auditor}},
		"reads": cut("vm.read"), "deletes": cut("vm.read", "vm.delete"), "rebuilds": cut("vm.rebuild"), "creates": cut("vm.create"),
	}
	test := f.s.identify
	f.s.identify = func(r *http.Request) (auth.Caller, error) {
		if c, ok := callers[r.Header.Get(as)]; ok {
			return c, nil
		}
		return test(r)
	}
	const secret = "canary-hush"
	hidden := func(who, method, path string, body any, header ...string) {
		t.Helper()
		a := f.do(who, method, path, body, header...)
		if a.StatusCode >= 300 || strings.Contains(a.body, secret) || !strings.Contains(a.body, `"userDataHidden":true`) {
			t.Errorf("%s %s %s: %d %s", who, method, path, a.StatusCode, a.body)
		}
	}
	for _, who := range []string{"vic", "auditor", "viewer", "tenant-auditor", "reads"} {
		hidden(who, http.MethodGet, vms+"/a", nil)
		hidden(who, http.MethodGet, vms, nil)
		hidden(who, http.MethodGet, "/v1/vms", nil)
	}
	for _, who := range []string{"bob", "ann", "op", "admin"} {
		for _, path := range []string{vms + "/a", vms, "/v1/vms"} {
			if a := f.do(who, http.MethodGet, path, nil); !strings.Contains(a.body, secret) || strings.Contains(a.body, "userDataHidden") {
				t.Errorf("%s %s: %d %s", who, path, a.StatusCode, a.body)
			}
		}
	}
	hidden("creates", http.MethodPost, vms, vmJSON("b", "rdma-small"), "Idempotency-Key", "k")
	hidden("creates", http.MethodPost, vms, vmJSON("b", "rdma-small"), "Idempotency-Key", "k")
	hidden("creates", http.MethodPost, vms+"?dryRun=true", vmJSON("c", "rdma-small"))
	hidden("rebuilds", http.MethodPost, vms+"/a/rebuild?dryRun=true", nil)
	hidden("rebuilds", http.MethodPost, vms+"/a/rebuild", nil)
	hidden("deletes", http.MethodDelete, vms+"/a", nil)
	if f.vm("b").Spec.UserData == "" {
		t.Error("hiding the user data from its creator took it out of the VM")
	}
}

// What was read without its user data must not be written back as if it had none.
func TestHiddenUserDataIsNotWrittenBack(t *testing.T) {
	f := newFixture(t)
	f.seed()
	addHost(t, f.s, "h1", 4)
	f.want(http.StatusCreated, f.do("bob", http.MethodPost, vms, vmJSON("a", "rdma-small")))
	seen := f.want(http.StatusOK, f.do("vic", http.MethodGet, vms+"/a", nil)).body
	p := f.problem(http.StatusUnprocessableEntity, "invalid", f.do("bob", http.MethodPut, vms+"/a", seen))
	if at := locations(p); len(at) != 1 || at[0] != "body.spec.userData" {
		t.Errorf("the fault is at %v", at)
	}
	f.want(http.StatusOK, f.do("bob", http.MethodPut, vms+"/a", f.vm("a")))
}

func TestWatchHidesUserData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.seed()
		addHost(t, f.s, "h1", 4)
		f.want(http.StatusCreated, f.do("bob", http.MethodPost, vms, vmJSON("a", "rdma-small")))
		l := f.watch("vic", vms+"?watch=true")
		all := strings.Join(l.take(), "\n")
		o := f.vm("a")
		f.report("h1", ready(o))
		all += strings.Join(l.take(), "\n")
		f.want(http.StatusAccepted, f.do("bob", http.MethodDelete, vms+"/a", nil))
		gone := ready(o)
		gone.Absent = true
		f.report("h1", gone)
		all += strings.Join(l.take(), "\n")
		l.cancel()
		<-l.ended
		if !strings.Contains(all, "event: delete") || strings.Count(all, api.PhaseReady) == 0 {
			t.Fatalf("the watch saw %s", all)
		}
		if strings.Contains(all, "canary") || strings.Count(all, `"userDataHidden":true`) < 4 {
			t.Errorf("user data in a watch, or not said to be hidden: %s", all)
		}
	})
}
