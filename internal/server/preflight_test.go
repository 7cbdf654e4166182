package server

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/preflight"
	"github.com/verbena-cloud/verbena/internal/wire"
)

func (x *site) preflights(query string) api.List[api.HostPreflight] {
	x.Helper()
	status, body := x.call(x.root, http.MethodGet, "/v1/preflights"+query, nil)
	return must[api.List[api.HostPreflight]](x, http.StatusOK, status, body)
}

// TestPreflightsOfAFleet: what agents found is told in pages, with when they looked; the same found again is no write.
func TestPreflightsOfAFleet(t *testing.T) {
	x := newSite(t)
	agents := x.cloud(2, "h1", "h2", "h3")
	digest := func(h string) string {
		s := agents[h].follow(t)
		defer s.cancel()
		return (<-s.events).Preflight.Digest
	}("h1")
	p := &api.Preflight{Config: digest, Counts: api.Findings{OK: 7, Failed: 1}, Findings: []api.Finding{{Check: "nic.pfc", Object: "ens1f0", Level: "failed", Seen: "on priority \x1b[31mnone"}}}
	agents["h1"].report(http.StatusOK, wire.Status{Preflight: p, Checked: new(int64(60))})
	agents["h2"].report(http.StatusOK, wire.Status{Preflight: &api.Preflight{Config: "older", Counts: api.Findings{OK: 8}}})

	all := x.preflights("")
	if len(all.Items) != 3 || all.Continue != "" || all.Items[2].Preflight != nil {
		t.Fatalf("%+v", all)
	}
	one, two := all.Items[0].Preflight, all.Items[1].Preflight
	if one.Outdated || one.Counts.Failed != 1 || one.Checked == nil || !one.Checked.Equal(x.clock.Now().Add(-time.Minute).UTC()) || strings.Contains(one.Findings[0].Seen, "\x1b") {
		t.Errorf("%+v", one)
	}
	if !two.Outdated || two.Checked != nil || all.Items[1].Seen == nil {
		t.Errorf("%+v", two)
	}
	agents["h1"].beat("90")
	agents["h1"].report(http.StatusOK, wire.Status{Preflight: p})
	status, body := x.call(x.root, http.MethodGet, "/v1/hosts/h1/preflight", nil)
	again := must[api.HostPreflight](x, http.StatusOK, status, body)
	if !again.Preflight.Checked.Equal(x.clock.Now().Add(-90*time.Second).UTC()) || x.preflights("").Revision != all.Revision {
		t.Errorf("%+v; revision %d after %d", again.Preflight, x.preflights("").Revision, all.Revision)
	}
	for _, odd := range []string{"", "-5", "soon", "99999999999"} {
		agents["h1"].beat(odd)
	}

	var names []string
	for next := ""; ; {
		page := x.preflights("?limit=1" + next)
		for _, h := range page.Items {
			names = append(names, h.Host)
		}
		if page.Continue == "" {
			break
		}
		next = "&continue=" + page.Continue
	}
	if strings.Join(names, " ") != "h1 h2 h3" {
		t.Errorf("pages have %v", names)
	}
	if status, _ := x.call(x.root, http.MethodGet, "/v1/preflights?continue=x", nil); status != http.StatusUnprocessableEntity && status != http.StatusBadRequest {
		t.Errorf("a continue of nobody: %d", status)
	}
	ack := agents["h3"].report(http.StatusOK, wire.Status{Preflight: &api.Preflight{Findings: make([]api.Finding, preflight.MaxFindings+1)}})
	if len(ack.Ignored) != 1 || x.preflights("").Items[2].Preflight != nil {
		t.Errorf("too many findings: %+v", ack)
	}
}

// beat sends a sign of life with what it says of the last look.
func (a *testAgent) beat(checked string) {
	a.x.Helper()
	r, err := http.NewRequestWithContext(a.x.Context(), http.MethodPost, a.x.url+wire.PathBeat, nil)
	if err != nil {
		a.x.Fatal(err)
	}
	if checked != "" {
		r.Header.Set(wire.HeaderChecked, checked)
	}
	res, err := a.http.Do(r)
	if err != nil {
		a.x.Fatal(err)
	}
	if err := res.Body.Close(); err != nil || res.StatusCode != http.StatusNoContent {
		a.x.Errorf("beat %q: %d, %v", checked, res.StatusCode, err)
	}
}
