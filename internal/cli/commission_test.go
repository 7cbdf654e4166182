package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/verbena-cloud/verbena/api"
)

// planned is a server with one host, which somebody else writes between the plan and the write, so often.
type planned struct {
	meanwhile int
	refuse    bool // once somebody else wrote it
	qos       api.NICQoS
	revision  int64
	host      api.Host
	puts      int
}

func (s *planned) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	want := api.HostPF{Match: "k0", Fabric: "roce", VFs: 2}
	answer := func(status int, v any) {
		w.Header().Set("Content-Type", map[bool]string{true: "application/json", false: "application/problem+json"}[status == http.StatusOK])
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	s.host.Meta = api.Meta{Kind: api.KindHost, Name: "h1", Revision: s.revision}
	switch {
	case r.URL.Path == "/v1/hosts/h1/plan":
		p := api.CommissionPlan{Host: "h1", State: api.HostUp, Revision: s.revision, Spec: []api.HostPF{want}, Changed: len(s.host.Spec.PFs) == 0,
			PFs: []api.PFPlan{{Match: "k0", Key: "k0", Fabric: "roce", WantVFs: 2, Steps: []string{"echo 2 > numvfs"}}}}
		if s.refuse && s.revision > 1 {
			p.PFs[0].Refused = []string{"VM red/a holds one"}
		}
		answer(http.StatusOK, p)
		if s.meanwhile > 0 {
			s.meanwhile--
			s.revision++
		}
	case r.URL.Path == "/v1/fabrics/roce":
		answer(http.StatusOK, api.Fabric{Spec: api.FabricSpec{NICQoS: "apply"}})
	case r.Method == http.MethodPut:
		s.puts++
		if r.Header.Get("If-Match") != fmt.Sprintf("%q", fmt.Sprint(s.revision)) {
			answer(http.StatusPreconditionFailed, api.Problem{Code: "precondition", Status: http.StatusPreconditionFailed})
			return
		}
		s.revision++
		s.host.Spec.PFs = []api.HostPF{want}
		s.host.Status = api.HostStatus{State: api.HostUp, Inventory: &api.Inventory{PFs: []api.PF{{Key: "k0", Netdev: "ens1", Fabric: "roce", WantVFs: 2, NumVFs: 2, Ready: true,
			QoS: &s.qos, VFs: []api.VF{{State: api.VFParked}, {Index: 1, State: api.VFParked}}}}}}
		answer(http.StatusOK, s.host)
	default:
		answer(http.StatusOK, s.host)
	}
}

func TestCommissionPlansAgainWhenTheHostChanged(t *testing.T) {
	for name, c := range map[string]struct {
		s    planned
		code int
		puts int
		out  string
		err  string
	}{
		"done":              {planned{qos: api.NICQoS{State: "ok"}}, exitOK, 1, "k0   ens1     roce     2     2        ok", "2 of 2 VFs, 2 parked"},
		"changed meanwhile": {planned{meanwhile: 2, qos: api.NICQoS{State: "absent"}}, exitOK, 3, "absent", ""},
		"changed for ever":  {planned{meanwhile: 99}, exitConflict, 5, "", "changed meanwhile"},
		"refused by then":   {planned{meanwhile: 1, refuse: true}, exitChecks, 1, "refused: VM red/a holds one", "nothing was changed"},
		"port is not ours":  {planned{qos: api.NICQoS{State: "refused", Reason: "lldpad runs"}}, exitChecks, 1, "lldpad runs", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.s
			s.revision = 1
			web := httptest.NewServer(&s)
			defer web.Close()
			x := &terminal{env: map[string]string{"VERBENA_TOKEN": "t"}}
			code := x.run(t, "host", "commission", "h1", "--pf", "k0=2", "--fabric", "roce", "--apply", "--server", web.URL)
			if code != c.code || s.puts != c.puts || !strings.Contains(x.out.String(), c.out) || !strings.Contains(x.err.String(), c.err) {
				t.Errorf("exit %d after %d writes\n%s\n%s", code, s.puts, x.out.String(), x.err.String())
			}
		})
	}
}

func TestCommissionUsage(t *testing.T) {
	for _, args := range [][]string{{"--pf", "k0"}, {"--pf", "=2"}, {"--pf", "k0=-1"}, {"--pf", "k0=x"}, {"--allow-bond"}, {"--plan", "--apply"}, {"-o", "xml"}} {
		x := &terminal{}
		if code := x.run(t, append([]string{"host", "commission", "h1", "--server", "http://127.0.0.1:1"}, args...)...); code != exitUsage {
			t.Errorf("%q: exit %d: %s", args, code, x.err.String())
		}
	}
}
