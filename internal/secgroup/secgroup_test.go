package secgroup_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/secgroup"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/mem"
)

const cidr = "10.1.0.0/28"

func by() object.Who {
	return object.Who{Now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), UID: "u"}
}

func open(tb interface {
	Fatal(args ...any)
}, do func(func(store.Tx) error) error) {
	if err := do(func(tx store.Tx) error {
		return object.Save(tx, &api.Network{Meta: api.Meta{Kind: api.KindNetwork, Tenant: "red", Name: "n"}, Spec: api.NetworkSpec{Fabric: "a", CIDR: cidr}})
	}); err != nil {
		tb.Fatal(err)
	}
}

func updater(t *testing.T) func(func(store.Tx) error) error {
	t.Helper()
	db := mem.New()
	return func(f func(store.Tx) error) error {
		_, err := db.Update(t.Context(), f)
		return err
	}
}

func group(rules ...api.SecurityRule) *api.SecurityGroup {
	return &api.SecurityGroup{Meta: api.Meta{Tenant: "red", Name: "g"}, Spec: api.SecurityGroupSpec{Network: "n", Rules: rules}}
}

func create(t *testing.T, rules ...api.SecurityRule) error {
	t.Helper()
	do := updater(t)
	open(t, do)
	return do(func(tx store.Tx) error { return secgroup.Create(tx, group(rules...), by()) })
}

func TestParsePorts(t *testing.T) {
	for in, want := range map[string]secgroup.Ports{"": {0, 65535}, "1": {1, 1}, "80": {80, 80}, "8000-8080": {8000, 8080}, "1-65535": {1, 65535}} {
		if got, err := secgroup.ParsePorts(in); err != nil || got != want {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
	for _, bad := range []string{"0", "65536", "-", "1-", "-1", "9-8", "a", "1-2-3", "+1", "01", " 1", "1 ", "80,443", strings.Repeat("1", 300)} {
		if got, err := secgroup.ParsePorts(bad); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v, %v", bad, got, err)
		}
	}
}

func FuzzPorts(f *testing.F) {
	for _, s := range []string{"", "4791", "1-65535", "5-1", "0x10"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := secgroup.ParsePorts(s)
		if err != nil {
			if len(err.Error()) > 300 {
				t.Errorf("text is %q", err)
			}
			return
		}
		if p.First > p.Last || p.First < 0 || p.Last > 65535 || s != "" && p.First < 1 {
			t.Errorf("%q: %v", s, p)
		}
	})
}

func TestRulesThatWouldCloseRoCEAreRefused(t *testing.T) {
	deny := func(edit func(*api.SecurityRule)) api.SecurityRule {
		r := api.SecurityRule{Direction: "ingress", Action: "deny", Protocol: "udp", Ports: "4791", Remote: "network"}
		edit(&r)
		return r
	}
	open := api.SecurityRule{Direction: "ingress", Protocol: "udp", Ports: "4791", Remote: "network"}
	for name, rules := range map[string][]api.SecurityRule{
		"plain":              {deny(func(*api.SecurityRule) {})},
		"egress":             {deny(func(r *api.SecurityRule) { r.Direction = "egress" })},
		"any protocol":       {deny(func(r *api.SecurityRule) { r.Protocol, r.Ports = "any", "" })},
		"all ports":          {deny(func(r *api.SecurityRule) { r.Ports = "" })},
		"range":              {deny(func(r *api.SecurityRule) { r.Ports = "4000-5000" })},
		"range ends there":   {deny(func(r *api.SecurityRule) { r.Ports = "1-4791" })},
		"anywhere":           {deny(func(r *api.SecurityRule) { r.Remote = "" })},
		"wider":              {deny(func(r *api.SecurityRule) { r.Remote = "10.0.0.0/8" })},
		"half the network":   {deny(func(r *api.SecurityRule) { r.Remote = "10.1.0.8/29" })},
		"one address":        {deny(func(r *api.SecurityRule) { r.Remote = "10.1.0.3/32" })},
		"allowed too late":   {deny(func(*api.SecurityRule) {}), open},
		"allowed other way":  {{Direction: "egress", Protocol: "udp", Ports: "4791", Remote: "network"}, deny(func(*api.SecurityRule) {})},
		"allowed half":       {{Direction: "ingress", Protocol: "udp", Ports: "4791", Remote: "10.1.0.0/29"}, deny(func(*api.SecurityRule) {})},
		"allowed other port": {{Direction: "ingress", Protocol: "udp", Ports: "4792", Remote: "network"}, deny(func(*api.SecurityRule) {})},
	} {
		err := create(t, rules...)
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "4791") || !strings.Contains(err.Error(), "RDMA") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, rules := range map[string][]api.SecurityRule{
		"none":               nil,
		"tcp":                {deny(func(r *api.SecurityRule) { r.Protocol = "tcp" })},
		"other ports":        {deny(func(r *api.SecurityRule) { r.Ports = "4792-65535" }), deny(func(r *api.SecurityRule) { r.Ports = "1-4790" })},
		"outside":            {deny(func(r *api.SecurityRule) { r.Remote = "10.2.0.0/16" })},
		"icmp":               {deny(func(r *api.SecurityRule) { r.Protocol, r.Ports = "icmp", "" })},
		"allowed before":     {open, deny(func(r *api.SecurityRule) { r.Protocol, r.Ports, r.Remote = "any", "", "" })},
		"allowed by halves":  {{Direction: "ingress", Protocol: "any", Remote: "10.1.0.0/29"}, {Direction: "ingress", Protocol: "udp", Remote: "10.1.0.8/29"}, deny(func(*api.SecurityRule) {})},
		"allowed everything": {{Direction: "ingress", Protocol: "any"}, deny(func(*api.SecurityRule) {})},
	} {
		if err := create(t, rules...); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEveryFaultInOneAnswer(t *testing.T) {
	err := create(t,
		api.SecurityRule{Direction: "in", Action: "drop", Protocol: "sctp", Ports: "x", Remote: "y"},
		api.SecurityRule{Direction: "ingress", Protocol: "icmp", Ports: "8"},
		api.SecurityRule{Direction: "ingress", Protocol: "tcp", Remote: "10.1.0.1/24", Locked: true},
		api.SecurityRule{Direction: "ingress", Protocol: "tcp", Remote: "fd00::/64", Description: strings.Repeat("x", 257)},
	)
	e, ok := errors.AsType[*fault.Error](err)
	if !ok || e.Kind != fault.Invalid {
		t.Fatalf("err = %v", err)
	}
	var got []string
	for _, f := range e.Fields {
		got = append(got, strings.TrimPrefix(f.Path, "spec.rules"))
	}
	want := []string{"[0].direction", "[0].action", "[0].protocol", "[0].ports", "[0].remote", "[1].ports", "[2].remote", "[3].remote", "[3].description", "[2].locked"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err := create(t, make([]api.SecurityRule, 129)...); !fault.Is(err, fault.Invalid) {
		t.Errorf("err = %v", err)
	}
	unknown := group()
	unknown.Spec.Network = "other"
	do := updater(t)
	if err := do(func(tx store.Tx) error { return secgroup.Create(tx, unknown, by()) }); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "spec.network") {
		t.Errorf("err = %v", err)
	}
}

func drawRule(t *rapid.T) api.SecurityRule {
	r := api.SecurityRule{
		Direction: rapid.SampledFrom([]string{"ingress", "egress"}).Draw(t, "direction"),
		Action:    rapid.SampledFrom([]string{"", "allow", "deny", "deny"}).Draw(t, "action"),
		Protocol:  rapid.SampledFrom([]string{"any", "udp", "udp", "tcp", "icmp"}).Draw(t, "protocol"),
		Remote:    rapid.SampledFrom([]string{"", "network", "10.0.0.0/8", "10.1.0.0/29", "10.1.0.8/29", "10.1.0.8/30", "10.1.0.12/30", "10.2.0.0/16"}).Draw(t, "remote"),
	}
	if r.Protocol == "udp" || r.Protocol == "tcp" {
		r.Ports = rapid.SampledFrom([]string{"", "4791", "4790", "1-4790", "4000-5000", "4792-65535"}).Draw(t, "ports")
	}
	return r
}

// TestRoCEInsideIsAlwaysAllowed: of any rules, those taken never deny UDP 4791 inside the network, neither with
// the locked rules nor by themselves, and those refused would deny it to some address.
func TestRoCEInsideIsAlwaysAllowed(t *testing.T) {
	taken, refused := 0, 0
	for range 20 { // of 100 groups each
		rapid.Check(t, func(rt *rapid.T) {
			rules := rapid.SliceOfN(rapid.Custom(drawRule), 0, 6).Draw(rt, "rules")
			err := create(t, rules...)
			if err != nil && !fault.Is(err, fault.Invalid) {
				rt.Fatal(err)
			}
			subnet := netip.MustParsePrefix(cidr)
			var f fault.Faults
			own := secgroup.Parse(&f, "r", rules, subnet)
			all := secgroup.Parse(&f, "r", secgroup.Effective(api.SecurityGroupSpec{Rules: rules}), subnet)
			if f.Err("rules") != nil {
				rt.Fatal(f.Fields())
			}
			closed := false
			for ip := subnet.Addr(); subnet.Contains(ip); ip = ip.Next() {
				for _, in := range []bool{true, false} {
					p := secgroup.Packet{Ingress: in, Protocol: "udp", Port: 4791, Remote: ip}
					if !secgroup.Allows(all, p) {
						rt.Fatalf("the effective rules deny %+v", p)
					}
					for _, r := range own { // the first that matches decides
						if r.Matches(p) {
							closed = closed || !r.Allow
							break
						}
					}
				}
			}
			if closed != (err != nil) {
				rt.Fatalf("the rules deny RoCE somewhere: %t, err = %v", closed, err)
			}
			if closed {
				refused++
			} else {
				taken++
			}
		})
	}
	if taken == 0 || refused == 0 {
		t.Errorf("%d taken, %d refused: one of both was never tested", taken, refused)
	}
}

func TestLockedRulesComeFirst(t *testing.T) {
	o := group(api.SecurityRule{Direction: "ingress", Protocol: "tcp", Ports: "22"})
	if err := secgroup.Fill(nil, o); err != nil {
		t.Fatal(err)
	}
	e := o.Status.Effective
	if len(e) != 3 || !e[0].Locked || !e[1].Locked || e[2].Locked || e[0].Ports != "4791" || e[0].Remote != "network" || e[0].Direction == e[1].Direction {
		t.Errorf("%+v", e)
	}
	if len(o.Spec.Rules) != 1 {
		t.Error("the specification was rewritten")
	}
	var f fault.Faults
	rules := secgroup.Parse(&f, "r", e, netip.MustParsePrefix(cidr))
	for p, want := range map[secgroup.Packet]bool{
		{Ingress: true, Protocol: "tcp", Port: 22, Remote: netip.MustParseAddr("192.0.2.1")}:   true,
		{Ingress: true, Protocol: "tcp", Port: 23, Remote: netip.MustParseAddr("192.0.2.1")}:   false,
		{Ingress: true, Protocol: "udp", Port: 4791, Remote: netip.MustParseAddr("192.0.2.1")}: false,
		{Ingress: true, Protocol: "icmp", Remote: netip.MustParseAddr("10.1.0.2")}:             false,
	} {
		if got := secgroup.Allows(rules, p); got != want {
			t.Errorf("%+v: %t", p, got)
		}
	}
}

func TestChangeAndDelete(t *testing.T) {
	do := updater(t)
	open(t, do)
	o := group()
	if err := do(func(tx store.Tx) error { return secgroup.Create(tx, o, by()) }); err != nil {
		t.Fatal(err)
	}
	if err := do(func(tx store.Tx) error { return secgroup.Create(tx, group(), by()) }); !fault.Is(err, fault.Conflict) {
		t.Errorf("err = %v", err)
	}
	other := group()
	other.Spec.Network = "m"
	if err := do(func(tx store.Tx) error { return secgroup.Update(tx, o, other, by()) }); !fault.Is(err, fault.Conflict) {
		t.Errorf("err = %v", err)
	}
	closing := group(api.SecurityRule{Direction: "ingress", Action: "deny", Protocol: "any"})
	if err := do(func(tx store.Tx) error { return secgroup.Update(tx, o, closing, by()) }); !fault.Is(err, fault.Invalid) {
		t.Errorf("err = %v", err)
	}
	if err := do(func(tx store.Tx) error {
		return object.Save(tx, &api.VM{Meta: api.Meta{Kind: api.KindVM, Tenant: "red", Name: "v"}, Spec: api.VMSpec{SecurityGroups: []string{"g"}}})
	}); err != nil {
		t.Fatal(err)
	}
	if err := do(func(tx store.Tx) error { return secgroup.Delete(tx, o, by()) }); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "VM v") {
		t.Errorf("err = %v", err)
	}
	if err := do(func(tx store.Tx) error {
		object.Remove(tx, api.KindVM, "red", "v")
		return secgroup.Delete(tx, o, by())
	}); err != nil {
		t.Error(err)
	}
}
