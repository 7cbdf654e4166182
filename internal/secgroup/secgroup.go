// Package secgroup has the rules of security groups. RoCE v2 travels in UDP datagrams to port 4791
// (roce.Port) whatever the application is: closing it inside a network would break every RDMA connection
// there at once, with no more than timeouts to see. So that port is always open inside the network, by
// rules that come first, are visible and can't be changed; a tenant's rule that would close it is refused
// with the reason instead of being silently without effect.
package secgroup

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/network"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/store"
)

// maxRules keeps a group within what switch ACL tables can hold for one port.
const maxRules = 128

// Ports is a range of ports, both ends included.
type Ports struct{ First, Last int }

// ParsePorts reads "80" or "8000-8080"; "" means all.
func ParsePorts(s string) (Ports, error) {
	if s == "" {
		return Ports{0, 65535}, nil
	}
	from, to, isRange := strings.Cut(s, "-")
	if !isRange {
		to = from
	}
	a, okA := port(from)
	b, okB := port(to)
	if !okA || !okB {
		return Ports{}, fault.New(fault.Invalid, "%s is no port or range; write for example 443 or 8000-8080, within 1-65535", object.Quote(s))
	}
	if a > b {
		return Ports{}, fault.New(fault.Invalid, "port range %s runs backwards; write %d-%d", object.Quote(s), b, a)
	}
	return Ports{a, b}, nil
}

func port(s string) (int, bool) {
	if s == "" || len(s) > 5 || s[0] < '1' || s[0] > '9' {
		return 0, false
	}
	v, err := strconv.Atoi(s)
	return v, err == nil && v <= 65535
}

// Rule is a security rule parsed, against the subnet of its network.
type Rule struct {
	Ingress  bool
	Allow    bool
	Protocol string // any, tcp, udp, icmp
	Ports    Ports
	Remote   netip.Prefix // 0.0.0.0/0 = anywhere
}

// Packet is what a rule is matched against; Remote is the other end.
type Packet struct {
	Ingress  bool
	Protocol string
	Port     int // destination port of tcp and udp
	Remote   netip.Addr
}

// Matches reports whether the rule decides on the packet.
func (r Rule) Matches(p Packet) bool {
	if r.Ingress != p.Ingress || !r.Remote.Contains(p.Remote) {
		return false
	}
	switch r.Protocol {
	case "any":
		return true
	case p.Protocol:
		return p.Protocol == "icmp" || p.Port >= r.Ports.First && p.Port <= r.Ports.Last
	default:
		return false
	}
}

// Allows says what a list of rules does with a packet: the first that matches decides, none means no.
func Allows(rules []Rule, p Packet) bool {
	for _, r := range rules {
		if r.Matches(p) {
			return r.Allow
		}
	}
	return false
}

// Effective returns the rules that really apply: the locked ones, then the tenant's.
func Effective(s api.SecurityGroupSpec) []api.SecurityRule {
	out := make([]api.SecurityRule, 0, len(s.Rules)+2)
	for _, d := range []string{"ingress", "egress"} {
		out = append(out, api.SecurityRule{
			Direction: d, Action: "allow", Protocol: "udp", Ports: strconv.Itoa(roce.Port), Remote: "network", Locked: true,
			Description: "RoCE v2 inside the network; set by the platform",
		})
	}
	return append(out, s.Rules...)
}

// Parse gives the typed form of rules of a network with the given subnet; faults are noted at path[i].
func Parse(f *fault.Faults, path string, rules []api.SecurityRule, subnet netip.Prefix) []Rule {
	out := make([]Rule, 0, len(rules))
	for i, in := range rules {
		out = append(out, parseRule(f, fmt.Sprintf("%s[%d]", path, i), in, subnet))
	}
	return out
}

func parseRule(f *fault.Faults, path string, in api.SecurityRule, subnet netip.Prefix) Rule {
	r := Rule{Ingress: in.Direction == "ingress", Allow: in.Action != "deny", Protocol: in.Protocol}
	if in.Direction != "ingress" && in.Direction != "egress" {
		f.Add(path+".direction", "%s is unknown; use ingress or egress", object.Quote(in.Direction))
	}
	if in.Action != "" && in.Action != "allow" && in.Action != "deny" {
		f.Add(path+".action", "%s is unknown; use allow or deny", object.Quote(in.Action))
	}
	switch in.Protocol {
	case "tcp", "udp":
	case "any", "icmp":
		if in.Ports != "" {
			f.Add(path+".ports", "protocol %s has no ports; use tcp or udp, or leave ports out", in.Protocol)
		}
	default:
		f.Add(path+".protocol", "%s is unknown; use any, tcp, udp or icmp", object.Quote(in.Protocol))
	}
	var err error
	r.Ports, err = ParsePorts(in.Ports)
	f.Check(path+".ports", err)
	switch in.Remote {
	case "":
		r.Remote = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	case "network":
		r.Remote = subnet
	default:
		p, err := netip.ParsePrefix(in.Remote)
		if err != nil || !p.Addr().Is4() || p.Masked() != p {
			f.Add(path+".remote", "%s is no IPv4 subnet without host bits; write for example 10.20.0.0/24, network, or leave it out for anywhere", object.Quote(in.Remote))
		}
		r.Remote = p
	}
	if len(in.Description) > 256 {
		f.Add(path+".description", "%d bytes are too long; at most 256 may be", len(in.Description))
	}
	return r
}

// closes reports whether rule i would be the first to match some RoCE packet inside the subnet, and deny it.
func closes(rules []Rule, i int, subnet netip.Prefix) bool {
	r := rules[i]
	if r.Allow || !touchesRoCE(r) || !r.Remote.Overlaps(subnet) {
		return false
	}
	area := subnet
	if r.Remote.Bits() > subnet.Bits() {
		area = r.Remote
	}
	var open []netip.Prefix
	for _, a := range rules[:i] {
		if a.Allow && a.Ingress == r.Ingress && touchesRoCE(a) {
			open = append(open, a.Remote)
		}
	}
	return !covered(area, open)
}

func touchesRoCE(r Rule) bool {
	return r.Protocol == "any" || r.Protocol == "udp" && r.Ports.First <= roce.Port && r.Ports.Last >= roce.Port
}

// covered reports whether the prefixes in open hold every address of area together.
func covered(area netip.Prefix, open []netip.Prefix) bool {
	some := false
	for _, p := range open {
		if !p.Overlaps(area) {
			continue
		}
		if p.Bits() <= area.Bits() {
			return true
		}
		some = true
	}
	if !some {
		return false
	}
	low := netip.PrefixFrom(area.Addr(), area.Bits()+1)
	b := area.Addr().As4()
	b[area.Bits()/8] |= 0x80 >> (area.Bits() % 8)
	high := netip.PrefixFrom(netip.AddrFrom4(b), area.Bits()+1)
	return covered(low, open) && covered(high, open)
}

// check validates a group against its network.
func check(tx store.Tx, o *api.SecurityGroup) error {
	var f fault.Faults
	object.CheckMeta(&f, api.KindSecurityGroup, &o.Meta)
	title := object.Title(api.KindSecurityGroup, &o.Meta)
	if len(o.Spec.Rules) > maxRules {
		f.Add("spec.rules", "%d rules are too many; at most %d may be", len(o.Spec.Rules), maxRules)
		return f.Err(title)
	}
	var subnet netip.Prefix
	if err := object.CheckName(o.Spec.Network); err != nil {
		f.Check("spec.network", err)
	} else if object.CheckName(o.Tenant) == nil {
		n, err := object.Peek[api.Network](tx, api.KindNetwork, o.Tenant, o.Spec.Network)
		switch {
		case fault.Is(err, fault.NotFound):
			f.Check("spec.network", err)
		case err != nil:
			return err
		default:
			if subnet, err = network.ParseCIDR(n.Spec.CIDR); err != nil {
				return err
			}
		}
	}
	rules := Parse(&f, "spec.rules", o.Spec.Rules, subnet)
	wellFormed := len(f.Fields()) == 0
	for i := range o.Spec.Rules {
		if o.Spec.Rules[i].Locked {
			f.Add(fmt.Sprintf("spec.rules[%d].locked", i), "locked rules are the platform's; leave it out")
		}
		if wellFormed && closes(rules, i, subnet) {
			f.Add(fmt.Sprintf("spec.rules[%d]", i), "this rule would deny UDP %d inside network %s (%s), and with it every RDMA connection between its VMs; that port stays open. Narrow protocol, ports or remote, or allow udp %d from 'network' in a rule before it", roce.Port, o.Spec.Network, subnet, roce.Port)
		}
	}
	return f.Err(title)
}

// Create adds a group.
func Create(tx store.Tx, o *api.SecurityGroup, by object.Who) error {
	if err := check(tx, o); err != nil {
		return err
	}
	if err := object.Vacant(tx, api.KindSecurityGroup, &o.Meta); err != nil {
		return err
	}
	object.Born(&o.Meta, api.KindSecurityGroup, by)
	return save(tx, o)
}

// Update changes a group's rules; its network stays.
func Update(tx store.Tx, old, o *api.SecurityGroup, _ object.Who) error {
	object.Carry(&o.Meta, &old.Meta)
	if o.Spec.Network != old.Spec.Network {
		return fault.New(fault.Conflict, "%s filters network %s and can't move to another; create a new group", object.Title(api.KindSecurityGroup, &o.Meta), old.Spec.Network)
	}
	if err := check(tx, o); err != nil {
		return err
	}
	return save(tx, o)
}

func save(tx store.Tx, o *api.SecurityGroup) error {
	o.Status = api.SecurityGroupStatus{}
	saved := *o
	return object.Save(tx, &saved)
}

// Delete removes a group that no VM names.
func Delete(tx store.Tx, o *api.SecurityGroup, _ object.Who) error {
	for v, err := range object.All[api.VM](tx, api.KindVM, o.Tenant) {
		if err != nil {
			return err
		}
		for _, g := range v.Spec.SecurityGroups {
			if g == o.Name {
				return fault.New(fault.Conflict, "%s is used by VM %s; take it out there first", object.Title(api.KindSecurityGroup, &o.Meta), v.Name)
			}
		}
	}
	object.Remove(tx, api.KindSecurityGroup, o.Tenant, o.Name)
	return nil
}

// Fill derives the effective rules.
func Fill(_ store.Tx, o *api.SecurityGroup) error {
	o.Status.Effective = Effective(o.Spec)
	return nil
}
