package nicqos

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/dcb"
)

const pci = "0000:3b:00.0"

// plain is an mlx5 port as its driver leaves it after loading.
func plain() Have {
	host := dcb.HostIEEE
	return Have{Link: "ens1", Driver: "mlx5_core", DCB: &dcb.State{Mode: &host, PFC: &dcb.PFC{Cap: 8}, ETS: &dcb.ETS{}, Apps: []dcb.App{}},
		Files: map[string]string{
			"class/net/ens1/ecn/roce_np/enable/3": "1", "class/net/ens1/ecn/roce_rp/enable/3": "0",
			"class/net/ens1/ecn/roce_np/cnp_dscp": "0", "class/net/ens1/ecn/roce_np/cnp_802p_prio": "6",
		}}
}

// do is a port that takes every step.
func do(t *testing.T, h Have, steps []Step) Have {
	t.Helper()
	state := *h.DCB
	h.DCB = &state
	h.Files = mapsClone(h.Files)
	for _, s := range steps {
		switch c := s.Change.(type) {
		case nil:
			h.Files[s.Path] = s.Value
		case dcb.SetMode:
			h.DCB.Mode = new(dcb.Mode(c))
		case dcb.SetPFC:
			h.DCB.PFC = &dcb.PFC{Enabled: c.Enabled}
		case dcb.AddApp:
			h.DCB.Apps = append(slices.Clone(h.DCB.Apps), dcb.App(c))
		case dcb.DelApp:
			h.DCB.Apps = slices.DeleteFunc(slices.Clone(h.DCB.Apps), func(a dcb.App) bool { return a == dcb.App(c) })
		case dcb.SetTrust:
			h.DCB.Trust = c
		default:
			t.Fatalf("a step of another kind: %s", s)
		}
	}
	return h
}

func mapsClone(m map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range m {
		out[k] = v
	}
	return out
}

func commands(steps []Step) []string {
	var out []string
	for _, s := range steps {
		out = append(out, s.String())
	}
	return out
}

func TestOrderOfAPlainPort(t *testing.T) {
	p := Make(For(3, 26, 48), pci, plain())
	want := []string{
		"dcb pfc set dev ens1 prio-pfc all:off 3:on",
		"echo 1 > /sys/class/net/ens1/ecn/roce_rp/enable/3",
		"echo 48 > /sys/class/net/ens1/ecn/roce_np/cnp_dscp",
		"dcb app add dev ens1 dgram-port-prio 4791:3",
		"dcb app add dev ens1 dscp-prio 48:6",
		"dcb app add dev ens1 dscp-prio 26:3",
	}
	if got := commands(p.Steps); !slices.Equal(got, want) || p.State != Drift || len(p.Held)+len(p.Lacks) > 0 {
		t.Errorf("%+v\n%s", p, strings.Join(got, "\n"))
	}
	if got := p.Steps[0].Line(); got != "dcb pfc set dev ens1 prio-pfc all:off 3:on  # was none: RoCE's priority 3, and no other, is lossless" {
		t.Error(got)
	}
}

// TestScenarios: each spoils a port in one way, and says where it stands then.
func TestScenarios(t *testing.T) {
	for _, c := range []struct {
		name   string
		spoil  func(*Have)
		state  State
		reason string
		steps  string // in one of the steps to do now
		held   string
		lacks  string
	}{
		{name: "lldpad runs", spoil: func(h *Have) { h.Agents = []string{"lldpad"} }, state: Refused, reason: "systemctl disable --now lldpad", held: "dcb pfc set"},
		{name: "firmware LLDP of ice owns it", spoil: func(h *Have) { h.Driver, h.DCB.Mode = "ice", new(dcb.LLD|dcb.IEEE) }, state: Refused, reason: "fw-lldp-agent off", held: "dcb pfc set"},
		{name: "firmware LLDP of i40e owns it", spoil: func(h *Have) { h.Driver, h.DCB.Mode = "i40e", new(dcb.LLD|dcb.CEE) }, state: Refused, reason: "disable-fw-lldp on"},
		{name: "mlx5's firmware negotiates", spoil: func(h *Have) { h.DCB.Mode = new(dcb.Mode(0)) }, state: Refused, reason: "dcb dcbx set dev ens1 host ieee"},
		{name: "bnxt_en in CEE mode", spoil: func(h *Have) { h.Driver, h.DCB.Mode = "bnxt_en", new(dcb.Host|dcb.CEE) }, state: Drift, steps: "dcb dcbx set dev ens1 host ieee"},
		{name: "management", spoil: func(h *Have) { h.Guard = "it carries the default route" }, state: Refused, reason: "default route", held: "dcb app add"},
		{name: "no dcbnl (igb)", spoil: func(h *Have) { h.Driver, h.DCB = "igb", nil }, state: Absent, reason: "driver igb has no DCB", lacks: "PFC"},
		{name: "neither PFC nor APP", spoil: func(h *Have) { h.DCB.PFC, h.DCB.Apps = nil, nil }, state: Absent, reason: "neither PFC nor priorities"},
		{name: "APP only", spoil: func(h *Have) { h.DCB.PFC = nil }, state: Drift, steps: "dscp-prio 26:3", lacks: "PFC"},
		{name: "PFC on all", spoil: func(h *Have) { h.DCB.PFC.Enabled = 0xff }, state: Drift, steps: "prio-pfc all:off 3:on"},
		{name: "VFs in use", spoil: func(h *Have) { h.InUse = 2 }, state: Drift, reason: "2 VFs of the port are in use", steps: "dscp-prio 26:3", held: "dcb pfc set"},
		{name: "VFs in use and another mode", spoil: func(h *Have) { h.InUse, h.DCB.Mode = 2, new(dcb.Host|dcb.CEE) }, state: Drift, steps: "cnp_dscp", held: "dscp-prio 26:3"},
		{name: "4791 was refused", spoil: func(h *Have) {
			h.Refused = map[string]string{"dcb app add dev ens1 dgram-port-prio 4791:3": "invalid argument"}
		}, state: Drift, steps: "dscp-prio 26:3", lacks: "4791:3 (invalid argument)"},
		{name: "DSCP with another priority too", spoil: func(h *Have) { h.DCB.Apps = []dcb.App{{Selector: dcb.DSCP, Protocol: 26, Priority: 0}} }, state: Drift, steps: "dcb app del dev ens1 dscp-prio 26:0"},
		{name: "trust of PCP only", spoil: func(h *Have) { h.DCB.Trust = []dcb.Selector{dcb.PCP} }, state: Drift, steps: "dcb apptrust set dev ens1 order dscp pcp"},
		{name: "no ECN files", spoil: func(h *Have) { h.Files = nil }, state: Drift, lacks: "DSCP of congestion notifications"},
		{name: "debugfs of the kernel's own driver", spoil: func(h *Have) { h.Files = map[string]string{"kernel/debug/mlx5/" + pci + "/cc_params/np_cnp_dscp": "4"} }, state: Drift, steps: "echo 48 > /sys/kernel/debug/mlx5/" + pci + "/cc_params/np_cnp_dscp"},
		{name: "unread", spoil: func(h *Have) { h.Unread = "EIO" }, state: Unknown, reason: "EIO"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := plain()
			c.spoil(&h)
			p := Make(For(3, 26, 48), pci, h)
			has := func(list []string, word string) bool {
				return word == "" || slices.ContainsFunc(list, func(s string) bool { return strings.Contains(s, word) })
			}
			if p.State != c.state || !strings.Contains(p.Reason, c.reason) || !has(commands(p.Steps), c.steps) || !has(commands(p.Held), c.held) || !has(p.Lacks, c.lacks) {
				t.Errorf("%+v\nsteps %q\nheld %q", p, commands(p.Steps), commands(p.Held))
			}
			if c.state == Refused && len(p.Steps) > 0 {
				t.Errorf("refused, and yet: %q", commands(p.Steps))
			}
			if p.State == Drift && h.InUse == 0 {
				settled(t, h, p)
			}
		})
	}
}

// settled: whoever took the steps needs no more.
func settled(t *testing.T, h Have, p Plan) {
	t.Helper()
	after := Make(For(3, 26, 48), pci, do(t, h, p.Steps))
	if after.State != OK || len(after.Steps)+len(after.Held) > 0 {
		t.Errorf("not settled: %+v", after)
	}
}

func TestOKWhoeverOwnsIt(t *testing.T) {
	h := do(t, plain(), Make(For(3, 26, 48), pci, plain()).Steps)
	h.DCB.Mode = new(dcb.LLD | dcb.IEEE)
	h.Agents = []string{"lldpad"}
	if p := Make(For(3, 26, 48), pci, h); p.State != OK || !strings.Contains(p.Reason, "lldpad") {
		t.Errorf("%+v", p)
	}
	h.Files["class/net/ens1/ecn/roce_np/cnp_dscp"] = "0" // no matter of DCB's owner
	if p := Make(For(3, 26, 48), pci, h); p.State != Drift || len(p.Steps) != 1 {
		t.Errorf("%+v", p)
	}
}

func TestPriorityOfNotifications(t *testing.T) {
	for in, want := range map[[3]int]int{{3, 26, 48}: 6, {3, 26, 24}: 7, {6, 48, 50}: 7, {7, 56, 57}: 6, {0, 0, 8}: 1} {
		if got := For(in[0], in[1], in[2]); got.CNPPriority != want {
			t.Errorf("%v: %+v", in, got)
		}
	}
}

// TestFactsSurviveTheInventory: a plan made from a report is the plan made from the port.
func TestFactsSurviveTheInventory(t *testing.T) {
	for i, spoil := range []func(*Have){
		func(*Have) {},
		func(h *Have) { h.DCB = nil },
		func(h *Have) { h.DCB.Mode = new(dcb.Mode(0)) },
		func(h *Have) { h.DCB.Mode, h.InUse = new(dcb.Host|dcb.CEE), 3 },
		func(h *Have) { h.DCB.PFC.Enabled = dcb.Of(0, 4) },
		func(h *Have) { h.DCB.Trust = []dcb.Selector{dcb.PCP, dcb.DSCP} },
		func(h *Have) {
			h.DCB.Apps = []dcb.App{{Selector: dcb.DSCP, Protocol: 26, Priority: 1}, {Selector: dcb.EtherType, Protocol: 0x8915, Priority: 3}}
		},
		func(h *Have) { h.Unread = "EIO" },
		func(h *Have) { h.Agents = []string{"lldpad"} },
	} {
		h := plain()
		spoil(&h)
		pf := &api.PF{Netdev: h.Link, Driver: h.Driver, PCI: pci, QoS: Report(h)}
		p := Make(For(3, 26, 48), pci, h)
		Judge(pf.QoS, p)
		if back := Make(For(3, 26, 48), pci, Facts(pf)); !reflect.DeepEqual(back, p) {
			t.Errorf("%d: %+v\nwant %+v", i, back, p)
		}
	}
	if h := Facts(&api.PF{}); h.Unread == "" {
		t.Error("nothing was told, and it is taken for facts")
	}
}

func FuzzFacts(f *testing.F) {
	f.Add("host ieee", "3", "dscp pcp", "dscp-prio 26:3")
	f.Add("firmware", "none", "none", "ethtype-prio 0x8915:9")
	f.Fuzz(func(t *testing.T, mode, pfc, trust, app string) {
		h := Facts(&api.PF{Netdev: "x", QoS: &api.NICQoS{DCBX: mode, PFC: pfc, Trust: trust, Apps: []string{app}}})
		again := Facts(&api.PF{Netdev: "x", QoS: Report(h)})
		if h.DCB != nil && again.DCB != nil && fmt.Sprint(h.DCB.Apps) != fmt.Sprint(again.DCB.Apps) {
			t.Errorf("%v, then %v", h.DCB.Apps, again.DCB.Apps)
		}
	})
}
