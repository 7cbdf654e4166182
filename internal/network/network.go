// Package network has the rules of tenant networks: subnet, VLAN, gateway, and which address and MAC a VM
// gets. All of it is claimed in the same commit as the VM.
//
// Networks of all tenants on one fabric share the same switches, so their subnets must not overlap and
// each VLAN belongs to one network. What a refusal tells a tenant never names another tenant. Networks
// are IPv4: RoCE v2 uses its IPv4-mapped GID, and the addresses are what the fabric's filters are made from.
package network

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fabric"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/store"
)

// Limits of a subnet's prefix length: below 8 it would be more than any site owns, above 30 there is no
// room for a gateway and a VM.
const (
	minPrefix = 8
	maxPrefix = 30
	maxDNS    = 3 // glibc's resolver reads no more (resolv.conf(5))
)

// holder is who has a VLAN or a subnet.
type holder struct {
	Tenant  string `json:"tenant"`
	Network string `json:"network"`
	CIDR    string `json:"cidr,omitempty"`
}

// ParseCIDR reads an IPv4 subnet in its canonical form, without host bits.
func ParseCIDR(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil || !p.Addr().Is4() {
		return netip.Prefix{}, fault.New(fault.Invalid, "%s is no IPv4 subnet; write for example 10.20.0.0/24", object.Quote(s))
	}
	switch a := p.Addr(); {
	case p.Masked() != p:
		return netip.Prefix{}, fault.New(fault.Invalid, "%s has host bits set; the subnet is %s", s, p.Masked())
	case p.Bits() < minPrefix || p.Bits() > maxPrefix:
		return netip.Prefix{}, fault.New(fault.Invalid, "%s: the prefix length must be between %d and %d", s, minPrefix, maxPrefix)
	case a.IsLoopback() || a.IsMulticast() || a.IsUnspecified() || a.IsLinkLocalUnicast() || a.As4()[0] >= 224 || a.As4()[0] == 0:
		return netip.Prefix{}, fault.New(fault.Invalid, "%s is no range for hosts", s)
	}
	return p, nil
}

// resolved is a network's spec parsed.
type resolved struct {
	prefix  netip.Prefix
	gateway netip.Addr
	mtu     int
	fabric  fabric.Resolved
}

// check parses the spec and notes every wrong place.
func check(tx store.Tx, f *fault.Faults, o *api.Network) (resolved, error) {
	var r resolved
	s := o.Spec
	object.CheckMeta(f, api.KindNetwork, &o.Meta)
	var err error
	r.prefix, err = ParseCIDR(s.CIDR)
	f.Check("spec.cidr", err)
	if err == nil {
		r.gateway = gateway(f, s.Gateway, r.prefix)
	}
	if len(s.DNS) > maxDNS {
		f.Add("spec.dns", "%d servers are too many; at most %d may be", len(s.DNS), maxDNS)
	}
	for i, d := range s.DNS {
		if _, err := netip.ParseAddr(d); err != nil {
			f.Add(fmt.Sprintf("spec.dns[%d]", i), "%s is no IP address", object.Quote(d))
		}
	}
	if err := object.CheckName(s.Fabric); err != nil {
		f.Check("spec.fabric", err)
		return r, nil
	}
	fb, err := object.Peek[api.Fabric](tx, api.KindFabric, "", s.Fabric)
	if fault.Is(err, fault.NotFound) {
		f.Check("spec.fabric", err)
		return r, nil
	} else if err != nil {
		return r, err
	}
	if r.fabric, err = fabric.Resolve(fb); err != nil {
		return r, err
	}
	r.mtu = s.MTU
	switch {
	case s.MTU == 0:
		r.mtu = r.fabric.MTU
	case s.MTU < fabric.MinMTU:
		f.Add("spec.mtu", "%d is below %d", s.MTU, fabric.MinMTU)
	case s.MTU > r.fabric.MTU:
		f.Add("spec.mtu", "%d is over the MTU %d of fabric %s", s.MTU, r.fabric.MTU, s.Fabric)
	}
	if s.VLAN != 0 && (s.VLAN < roce.MinVLAN || s.VLAN > roce.MaxVLAN || !r.fabric.Pool.Has(s.VLAN)) {
		f.Add("spec.vlan", "%d is not in the VLAN pool %s of fabric %s", s.VLAN, r.fabric.Pool, s.Fabric)
	}
	return r, nil
}

func gateway(f *fault.Faults, text string, p netip.Prefix) netip.Addr {
	if text == "" {
		return p.Addr().Next()
	}
	g, err := netip.ParseAddr(text)
	switch {
	case err != nil || !g.Is4():
		f.Add("spec.gateway", "%s is no IPv4 address", object.Quote(text))
	case !p.Contains(g) || g == p.Addr() || g == last(p):
		f.Add("spec.gateway", "%s is no host address of %s", g, p)
	}
	return g
}

// last returns the broadcast address.
func last(p netip.Prefix) netip.Addr {
	return at(p, uint32(1)<<(32-p.Bits())-1)
}

// Create adds a network and claims its VLAN and subnet.
func Create(tx store.Tx, o *api.Network, by object.Who) error {
	title := object.Title(api.KindNetwork, &o.Meta)
	var f fault.Faults
	r, err := check(tx, &f, o)
	if err != nil {
		return err
	}
	if err := f.Err(title); err != nil {
		return err
	}
	if _, err := object.Peek[api.Tenant](tx, api.KindTenant, "", o.Tenant); err != nil {
		return err
	}
	if err := object.Vacant(tx, api.KindNetwork, &o.Meta); err != nil {
		return err
	}
	if err := platformOnly(title, o.Spec, r.prefix.Addr().Next().String(), 0, by); err != nil {
		return err
	}
	object.Born(&o.Meta, api.KindNetwork, by)
	return claim(tx, o, r, by)
}

// platformOnly refuses a tenant's wish for another gateway or VLAN than it has.
func platformOnly(title string, s api.NetworkSpec, gw string, vlan int, by object.Who) error {
	if by.Operator {
		return nil
	}
	if s.Gateway != "" && s.Gateway != gw {
		return fault.New(fault.Forbidden, "%s: only operators may set the gateway: the fabric's routing and filters hang on it, and a wrong one cuts off or exposes every VM of the network; leave spec.gateway out (it is %s) or ask an operator", title, gw)
	}
	if s.VLAN != 0 && s.VLAN != vlan {
		return fault.New(fault.Forbidden, "%s: only operators may pick the VLAN, because it is shared with the fabric's switches; leave spec.vlan out to get the next free one", title)
	}
	return nil
}

// claim takes VLAN and subnet and saves the network.
func claim(tx store.Tx, o *api.Network, r resolved, by object.Who) error {
	title := object.Title(api.KindNetwork, &o.Meta)
	if err := overlap(tx, o, r.prefix, by); err != nil {
		return err
	}
	vlan := o.Spec.VLAN
	if vlan == 0 {
		vlan = nextVLAN(tx, r.fabric)
		if vlan == 0 {
			return fault.New(fault.Conflict, "%s: all %d VLANs of the pool %s of fabric %s are taken; ask an operator to widen the pool", title, r.fabric.Pool.Size(), r.fabric.Pool, r.fabric.Name)
		}
	} else if e := tx.Get(object.VLANKey(r.fabric.Name, vlan)); e != nil {
		h, err := store.Peek[holder](e)
		if err != nil {
			return err
		}
		return fault.New(fault.Conflict, "%s: VLAN %d of fabric %s is taken by %s", title, vlan, r.fabric.Name, shown(*h, o.Tenant, by))
	}
	h := holder{Tenant: o.Tenant, Network: o.Name, CIDR: r.prefix.String()}
	if err := store.Put(tx, object.VLANKey(r.fabric.Name, vlan), &h); err != nil {
		return err
	}
	if err := store.Put(tx, object.CIDRKey(r.fabric.Name, o.Tenant, o.Name), &h); err != nil {
		return err
	}
	o.Status = api.NetworkStatus{VLAN: vlan, Gateway: r.gateway.String(), MTU: r.mtu}
	saved := *o
	return object.Save(tx, &saved)
}

// shown names the holder of something to those who may know it.
func shown(h holder, tenant string, by object.Who) string {
	switch {
	case h.Tenant == tenant:
		return "network " + h.Network
	case by.Operator:
		return "network " + h.Network + " of tenant " + h.Tenant
	default:
		return "another network"
	}
}

func overlap(tx store.Tx, o *api.Network, p netip.Prefix, by object.Who) error {
	for e := range tx.Scan(object.CIDRPrefix(o.Spec.Fabric), "") {
		h, err := store.Peek[holder](e)
		if err != nil {
			return err
		}
		q, err := netip.ParsePrefix(h.CIDR)
		if err != nil {
			return fmt.Errorf("subnet at %s: %w", e.Key, err)
		}
		if !p.Overlaps(q) {
			continue
		}
		who := shown(*h, o.Tenant, by)
		if who != "another network" {
			who += " (" + h.CIDR + ")"
		}
		return fault.New(fault.Conflict, "%s: %s overlaps with %s on fabric %s; choose another subnet", object.Title(api.KindNetwork, &o.Meta), p, who, o.Spec.Fabric)
	}
	return nil
}

func nextVLAN(tx store.Tx, fb fabric.Resolved) int {
	for _, r := range fb.Pool {
		for id := r.First; id <= r.Last; id++ {
			if tx.Get(object.VLANKey(fb.Name, id)) == nil {
				return id
			}
		}
	}
	return 0
}

// Update changes MTU, DNS, labels and, for operators, the gateway. Fabric, subnet and VLAN may change only
// while no VM holds an address.
func Update(tx store.Tx, old, o *api.Network, by object.Who) error {
	object.Carry(&o.Meta, &old.Meta)
	title := object.Title(api.KindNetwork, &o.Meta)
	var f fault.Faults
	r, err := check(tx, &f, o)
	if err != nil {
		return err
	}
	if err := f.Err(title); err != nil {
		return err
	}
	sameNet := o.Spec.CIDR == old.Spec.CIDR
	gw := old.Status.Gateway
	if !sameNet {
		gw = r.prefix.Addr().Next().String()
	}
	if err := platformOnly(title, o.Spec, gw, old.Status.VLAN, by); err != nil {
		return err
	}
	if o.Spec.Gateway == "" && sameNet && !by.Operator {
		r.gateway, err = netip.ParseAddr(gw) // leaving it out must not undo what an operator set
		if err != nil {
			return fmt.Errorf("gateway of %s: %w", title, err)
		}
	}
	pl, err := loadPool(tx, o.Tenant, o.Name)
	if err != nil {
		return err
	}
	moved := !sameNet || o.Spec.Fabric != old.Spec.Fabric || o.Spec.VLAN != 0 && o.Spec.VLAN != old.Status.VLAN
	if moved {
		if pl.Used > 0 {
			return fault.New(fault.Conflict, "%s: %d addresses are held by VMs, so fabric, cidr and vlan can't change; delete these VMs or create another network", title, pl.Used)
		}
		if group, err := groupOf(tx, o); err != nil || group != "" && !sameNet {
			if err != nil {
				return err
			}
			return fault.New(fault.Conflict, "%s: SecurityGroup %s was checked against %s, so cidr can't change; delete the group first", title, group, old.Spec.CIDR)
		}
		release(tx, old)
		return claim(tx, o, r, by)
	}
	if e := tx.Get(object.AddressKey(o.Tenant, o.Name, r.gateway.String())); e != nil {
		return fault.New(fault.Conflict, "%s: %s is held by a VM and can't be the gateway", title, r.gateway)
	}
	o.Status = api.NetworkStatus{VLAN: old.Status.VLAN, Gateway: r.gateway.String(), MTU: r.mtu}
	saved := *o
	return object.Save(tx, &saved)
}

// groupOf names a security group of the network, or "".
func groupOf(tx store.Tx, o *api.Network) (string, error) {
	for g, err := range object.All[api.SecurityGroup](tx, api.KindSecurityGroup, o.Tenant) {
		if err != nil {
			return "", err
		}
		if g.Spec.Network == o.Name {
			return g.Name, nil
		}
	}
	return "", nil
}

func release(tx store.Tx, o *api.Network) {
	tx.Delete(object.VLANKey(o.Spec.Fabric, o.Status.VLAN))
	tx.Delete(object.CIDRKey(o.Spec.Fabric, o.Tenant, o.Name))
	tx.Delete(poolKey(o.Tenant, o.Name))
}

// Delete gives VLAN and subnet back and removes the network. Nothing may use it any more.
func Delete(tx store.Tx, o *api.Network, _ object.Who) error {
	var users []string
	for v, err := range object.All[api.VM](tx, api.KindVM, o.Tenant) {
		if err != nil {
			return err
		}
		for _, n := range v.Spec.Networks {
			if n.Network == o.Name {
				users = append(users, "VM "+v.Name)
				break
			}
		}
	}
	for g, err := range object.All[api.SecurityGroup](tx, api.KindSecurityGroup, o.Tenant) {
		if err != nil {
			return err
		}
		if g.Spec.Network == o.Name {
			users = append(users, "SecurityGroup "+g.Name)
		}
	}
	if len(users) > 8 {
		users = append(users[:8], fmt.Sprintf("%d more", len(users)-8))
	}
	if len(users) > 0 {
		return fault.New(fault.Conflict, "%s is used by %s; delete these first", object.Title(api.KindNetwork, &o.Meta), strings.Join(users, ", "))
	}
	pl, err := loadPool(tx, o.Tenant, o.Name)
	if err != nil {
		return err
	}
	if pl.Used > 0 {
		return fault.New(fault.Conflict, "%s: %d addresses are still held; they go when the hosts have proven that what the VMs held is free", object.Title(api.KindNetwork, &o.Meta), pl.Used)
	}
	release(tx, o)
	object.Remove(tx, api.KindNetwork, o.Tenant, o.Name)
	return nil
}

// Fill derives how many addresses there are and how many are held.
func Fill(tx store.Tx, o *api.Network) error {
	p, err := ParseCIDR(o.Spec.CIDR)
	if err != nil {
		return err
	}
	pl, err := loadPool(tx, o.Tenant, o.Name)
	if err != nil {
		return err
	}
	o.Status.Addresses = int(uint32(1)<<(32-p.Bits())) - 3
	o.Status.Used = pl.Used
	return nil
}
