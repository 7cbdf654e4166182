package server

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/pki"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// Texts that a terminal would obey are refused wherever they stand, but for user data.
func TestControlCharactersAreRefusedEverywhere(t *testing.T) {
	f := newFixture(t)
	f.seed()
	const red = `\u001b]0;owned\u0007\u009b31m`
	for at, o := range map[string]struct{ path, body string }{
		"body.spec.displayName":          {"/v1/tenants", `{"kind":"Tenant","name":"t","spec":{"displayName":"` + red + `","quota":{}}}`},
		"body.spec.members[0].user":      {"/v1/tenants", `{"kind":"Tenant","name":"t","spec":{"members":[{"user":"\u202e","role":"member"}],"quota":{}}}`},
		"body.spec.os":                   {"/v1/images", `{"kind":"Image","name":"i","spec":{"source":"/srv/x","os":"` + red + `"}}`},
		"body.spec.guestDrivers.d":       {"/v1/images", `{"kind":"Image","name":"i","spec":{"source":"/srv/x","guestDrivers":{"d":"` + red + `"}}}`},
		"body.spec.rack":                 {"/v1/hosts", `{"kind":"Host","name":"h","spec":{"rack":"` + red + `"}}`},
		"body.spec.rules[0].description": {"/v1/tenants/physics/securitygroups", `{"kind":"SecurityGroup","name":"s","spec":{"network":"lab","rules":[{"direction":"egress","protocol":"any","description":"` + red + `"}]}}`},
		"body.labels.a":                  {"/v1/flavors", flavorJSON("f", `{"a":"`+red+`"}`)},
	} {
		p := f.problem(http.StatusUnprocessableEntity, fault.Invalid, f.do("admin", http.MethodPost, o.path, o.body))
		if !slices.Contains(locations(p), at) {
			t.Errorf("%s: named are %v", at, locations(p))
		}
	}
	addHost(t, f.s, "h1", 2)
	o := strings.Replace(vmJSON("a", "rdma-small"), "canary", red, 1)
	f.want(http.StatusCreated, f.do("bob", http.MethodPost, vms, o))
}

// A host that was taken over must not command the terminals of those who look at it, nor fill the store.
func TestAgentsTextsArePrintableAndShort(t *testing.T) {
	f := newFixture(t)
	f.seed()
	addHost(t, f.s, "h1", 4)
	f.want(http.StatusCreated, f.do("bob", http.MethodPost, vms, vmJSON("a", "rdma-small")))
	o := f.vm("a")
	const evil = "\x1b[2J\u009b31m\u202e"
	st := ready(o)
	st.Phase, st.Message = api.PhaseFailed, evil
	st.VFs[0].PCI, st.VFs[0].State = evil, strings.Repeat("x", 100_000)
	st.VFs[0].Reason = evil
	st.Steps = []api.OpStep{{Name: evil, State: "running", Text: evil + strings.Repeat("y", 100_000)}}
	_, inv := machine("h1", 4)
	inv.Kernel, inv.Problems = evil, []string{evil}
	inv.PFs[0].Firmware, inv.PFs[0].VFs[0].Reason = evil, evil
	f.want(http.StatusOK, f.do("h1", http.MethodPost, wire.PathStatus, wire.Status{
		Host: "h1", Inventory: inv, VMs: []wire.VMStatus{st},
		Events: []wire.Event{{Object: api.Ref{Kind: api.KindHost, Name: "h1"}, Reason: evil, Message: evil}},
	}))
	for _, path := range []string{vms + "/a", "/v1/hosts/h1", "/v1/events", "/v1/operations"} {
		body := f.want(http.StatusOK, f.do("admin", http.MethodGet, path, nil)).body
		if !strings.Contains(body, "\ufffd") {
			t.Errorf("%s shows nothing of the report: %s", path, body)
		}
		if strings.Contains(body, `\u001b`) || strings.ContainsAny(body, "\x1b\u009b\u202e") || len(body) > 50_000 {
			t.Errorf("%s: %.2000s", path, body)
		}
	}
	st.Steps = make([]api.OpStep, maxReportSteps+1)
	f.problem(http.StatusRequestEntityTooLarge, fault.TooLarge, f.do("h1", http.MethodPost, wire.PathStatus, wire.Status{Host: "h1", VMs: []wire.VMStatus{st}}))
}

// A change of one's rights counts in a watch from its commit on, and not only from the next bookmark.
func TestWatchKnowsALostRoleAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.seed()
		var mu sync.Mutex
		tenants := map[string]auth.Role{"physics": auth.TenantMember, "biology": auth.Viewer}
		f.s.identify = func(r *http.Request) (auth.Caller, error) {
			if r.Header.Get(as) != "bob" {
				return identifyForTest(r)
			}
			mu.Lock()
			defer mu.Unlock()
			return auth.Caller{Name: "bob", Tenants: tenants}, nil
		}
		here, across := f.watch("bob", "/v1/tenants/physics/networks?watch=true"), f.watch("bob", "/v1/networks?watch=true")
		here.take()
		across.take()
		mu.Lock()
		tenants = map[string]auth.Role{"biology": auth.Viewer}
		mu.Unlock()
		// What stands in the index does not matter here, only that the commit is about bob.
		if _, err := f.db.Update(t.Context(), func(tx store.Tx) error { return setRole(tx, "bob", "biology", auth.Viewer) }); err != nil {
			t.Fatal(err)
		}
		f.want(201, f.do("ann", http.MethodPost, "/v1/tenants/physics/networks", `{"kind":"Network","name":"hidden","spec":{"fabric":"roce","cidr":"10.7.0.0/24"}}`))
		f.want(201, f.do("eve", http.MethodPost, "/v1/tenants/biology/networks", `{"kind":"Network","name":"cells","spec":{"fabric":"roce","cidr":"10.8.0.0/24"}}`))
		if got := here.take(); len(got) != 0 {
			t.Errorf("after the role was lost: %q", got)
		}
		<-here.ended
		if got := strings.Join(across.take(), "\n"); strings.Contains(got, "hidden") || !strings.Contains(got, "cells") {
			t.Errorf("the watch over all tenants saw %q", got)
		}
		across.cancel()
		<-across.ended
	})
}

// A server whose CA was lost says so at its start, until agents have joined anew.
func TestAnotherCAIsTold(t *testing.T) {
	x := newSite(t)
	restart := func(ca *pki.CA) (*Server, string) {
		log := &safeBuffer{}
		s, err := assemble(t.Context(), Config{CA: ca, Listen: "127.0.0.1:0"}, Deps{Store: x.db, Log: slog.New(slog.NewTextHandler(log, nil)), Now: x.clock.Now})
		if err != nil {
			t.Fatal(err)
		}
		return s, log.String()
	}
	m, err := pki.NewMaterial(x.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.New(m)
	if err != nil {
		t.Fatal(err)
	}
	const words = "the CA is not the one of before"
	x.mustJoin("hv-1")
	if _, log := restart(x.ca); strings.Contains(log, words) {
		t.Errorf("the same CA: %s", log)
	}
	for range 2 {
		if _, log := restart(other); !strings.Contains(log, words) || !strings.Contains(log, "agents=1") {
			t.Errorf("another CA: %s", log)
		}
	}
	if _, log := restart(x.ca); strings.Contains(log, words) {
		t.Errorf("the old CA is back: %s", log)
	}
}

func TestReadableKeyIsTold(t *testing.T) {
	x, dir := newSite(t), t.TempDir()
	start := func() string {
		log := &safeBuffer{}
		if _, err := assemble(t.Context(), Config{Data: dir, Listen: "127.0.0.1:0"}, Deps{Store: x.db, Log: slog.New(slog.NewTextHandler(log, nil)), Now: x.clock.Now}); err != nil {
			t.Fatal(err)
		}
		return log.String()
	}
	const words = "others may read the CA's key"
	if log := start(); strings.Contains(log, words) {
		t.Errorf("as it was made: %s", log)
	}
	if err := os.Chmod(filepath.Join(dir, "ca.key"), 0o640); err != nil {
		t.Fatal(err)
	}
	if log := start(); !strings.Contains(log, words) {
		t.Errorf("with mode 0640: %s", log)
	}
}

// Paths that the mux would rewrite are not there: no redirect, no page in HTML.
func TestUncleanPathsAreProblems(t *testing.T) {
	f := newFixture(t)
	for _, path := range []string{"//v1//tenants", "/v1/tenants/a/../b", "/v1/tenants//networks", "/v1/./tenants", "/v1/tenants/%2e%2e/users", "//evil.example/x"} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		u, err := url.ParseRequestURI("http://verbena" + path)
		if err != nil {
			t.Fatal(err)
		}
		r.URL = u
		r.Header.Set(as, "admin")
		w := httptest.NewRecorder()
		f.s.ServeHTTP(w, r)
		if w.Code != http.StatusNotFound || w.Header().Get("Content-Type") != problemType {
			t.Errorf("%s: %d %s %s", path, w.Code, w.Header(), w.Body)
		}
	}
}

// A user has so many watches and no more, and gets places back.
func TestWatchesOfAUserAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		var open []*listener
		for range maxWatches {
			open = append(open, f.watch("bob", "/v1/flavors?watch=true"))
		}
		synctest.Wait()
		a := f.do("bob", http.MethodGet, "/v1/flavors?watch=true", nil)
		f.problem(http.StatusTooManyRequests, fault.RateLimited, a)
		if a.Header.Get("Retry-After") == "" {
			t.Error("nobody says when to try again")
		}
		open = append(open, f.watch("ann", "/v1/flavors?watch=true"))
		open[0].cancel()
		<-open[0].ended
		open = append(open[1:], f.watch("bob", "/v1/flavors?watch=true"))
		synctest.Wait()
		if n := f.s.openWatchers(); n != maxWatches+1 {
			t.Errorf("%v watches are open", n)
		}
		for _, l := range open {
			l.cancel()
			<-l.ended
		}
		if len(f.s.seats.open) != 0 {
			t.Errorf("places are not given back: %v", f.s.seats.open)
		}
	})
}

// What is kept is shared out: who has little keeps all of it, however much noise others make.
func TestShareIsFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		counts := rapid.SliceOf(rapid.IntRange(0, 50)).Draw(t, "counts")
		most := rapid.IntRange(0, 500).Draw(t, "most")
		level := share(slices.Clone(counts), most)
		kept, all := 0, 0
		for _, n := range counts {
			kept += min(n, level)
			all += n
		}
		if kept > most || (kept < all && kept+len(counts) <= most) {
			t.Fatalf("%v: level %d keeps %d of %d, at most %d", counts, level, kept, all, most)
		}
	})
}

func TestNoiseOfATenantCostsOthersNothing(t *testing.T) {
	f := newFixture(t)
	now := time.Unix(1_800_000_000, 0)
	_, err := f.db.Update(t.Context(), func(tx store.Tx) error {
		for i := range 30 {
			tenant := "noisy"
			if i < 3 {
				tenant = "quiet" // older than all noise
			}
			r := &api.AuditRecord{Meta: api.Meta{Kind: api.KindAuditRecord, Tenant: tenant, Name: fmt.Sprintf("%016x-%d", 1_000-i, i), Created: &now}}
			if err := object.Save(tx, r); err != nil {
				return err
			}
			if err := f.s.event(tx, api.Ref{Kind: api.KindTenant, Name: tenant}, eventWarning, "Noise", fmt.Sprint(i)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.db.View(t.Context(), func(tx store.Tx) error {
		doomed := doomedRecords(tx, "~", 10)
		if len(doomed) != 20 || strings.Contains(strings.Join(doomed, " "), "quiet") || slices.Contains(doomed, object.Key(api.KindAuditRecord, "noisy", fmt.Sprintf("%016x-29", 1_000-29))) {
			t.Errorf("to go: %v", doomed)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := f.s.prune(t.Context(), pruning{object.Prefix(api.KindEvent, ""), 10, staleEvent}); err != nil {
		t.Fatal(err)
	}
	left := f.want(http.StatusOK, f.do("admin", http.MethodGet, "/v1/events", nil)).body
	if q, n := strings.Count(left, `"tenant":"quiet","labels"`), strings.Count(left, `"tenant":"noisy","labels"`); q != 3 || n != 7 {
		t.Errorf("%d quiet and %d noisy events are left: %s", q, n, left)
	}
}

// A loop of refused requests neither fills the audit nor the events.
func TestRefusalsInALoopAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.seed()
		kept := 0
		for range 3 * refusedBurst {
			if f.s.worthKeeping(&call{Caller: people()["eve"]}) {
				kept++
			}
		}
		if kept != refusedBurst || !f.s.worthKeeping(&call{Caller: people()["ann"]}) {
			t.Errorf("%d refusals of one caller are kept, and none of another", kept)
		}
		for i := range refusalBurst + 20 { // there is no host
			f.problem(http.StatusConflict, fault.NoCapacity, f.do("bob", http.MethodPost, vms, vmJSON(fmt.Sprintf("v%d", i), "rdma-small")))
		}
		list := decode[api.List[api.Event]](t, f.want(200, f.do("bob", http.MethodGet, "/v1/tenants/physics/events", nil)))
		if len(list.Items) != refusalBurst {
			t.Errorf("%d events", len(list.Items))
		}
	})
}
