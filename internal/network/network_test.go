package network_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fabric"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/network"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/mem"
)

func operator() object.Who {
	return object.Who{Operator: true, Now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), UID: "u"}
}

func member() object.Who {
	w := operator()
	w.Operator = false
	return w
}

type bench struct {
	t  testing.TB
	db store.DB
}

func open(t testing.TB) bench {
	t.Helper()
	b := bench{t, mem.New()}
	b.must(func(tx store.Tx) error {
		for _, name := range []string{"a", "b"} {
			if err := fabric.Create(tx, &api.Fabric{Meta: api.Meta{Name: name}, Spec: api.FabricSpec{Speed: "25Gbps", VLANPool: []string{"100-103"}}}, operator()); err != nil {
				return err
			}
		}
		for _, name := range []string{"red", "blue"} {
			if err := object.Save(tx, &api.Tenant{Meta: api.Meta{Kind: api.KindTenant, Name: name}}); err != nil {
				return err
			}
		}
		return nil
	})
	return b
}

func (b bench) do(f func(store.Tx) error) error {
	_, err := b.db.Update(b.t.Context(), f)
	return err
}

func (b bench) must(f func(store.Tx) error) {
	b.t.Helper()
	if err := b.do(f); err != nil {
		b.t.Fatal(err)
	}
}

func named(tenant, name string, s api.NetworkSpec) *api.Network {
	if s.Fabric == "" {
		s.Fabric = "a"
	}
	return &api.Network{Meta: api.Meta{Tenant: tenant, Name: name}, Spec: s}
}

func (b bench) create(o *api.Network, by object.Who) error {
	return b.do(func(tx store.Tx) error { return network.Create(tx, o, by) })
}

func (b bench) update(old *api.Network, by object.Who, edit func(*api.NetworkSpec)) (*api.Network, error) {
	next := *old
	edit(&next.Spec)
	err := b.do(func(tx store.Tx) error { return network.Update(tx, old, &next, by) })
	return &next, err
}

func TestParseCIDR(t *testing.T) {
	for _, ok := range []string{"10.0.0.0/8", "10.20.0.0/24", "192.168.1.4/30", "100.64.0.0/10"} {
		if _, err := network.ParseCIDR(ok); err != nil {
			t.Errorf("%s: %v", ok, err)
		}
	}
	for _, bad := range []string{"", "10.0.0.0", "10.0.0.1/24", "10.0.0.0/31", "10.0.0.0/7", "10.0.0.0/33", "fd00::/64", "::ffff:10.0.0.0/104", "127.0.0.0/8", "224.0.0.0/8", "169.254.0.0/16", "0.0.0.0/8", "240.0.0.0/8", "10.0.0.0/024", "a/b", strings.Repeat("1", 300)} {
		if _, err := network.ParseCIDR(bad); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzCIDR(f *testing.F) {
	for _, s := range []string{"10.0.0.0/8", "10.0.0.1/8", "::/0", "1.2.3.4/30", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := network.ParseCIDR(s)
		if err != nil {
			if len(err.Error()) > 300 {
				t.Errorf("text is %q", err)
			}
			return
		}
		if q, err := network.ParseCIDR(p.String()); err != nil || q != p || !p.Addr().Is4() || p.Masked() != p {
			t.Errorf("%q: %s", s, p)
		}
	})
}

func TestDefaultsAndAllocation(t *testing.T) {
	b := open(t)
	o := named("red", "n", api.NetworkSpec{CIDR: "10.1.0.0/24", DNS: []string{"10.9.9.9"}})
	if err := b.create(o, member()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(api.NetworkStatus{VLAN: 100, Gateway: "10.1.0.1", MTU: 4200}, o.Status); diff != "" {
		t.Error(diff)
	}
	if o.Spec.VLAN != 0 || o.Spec.Gateway != "" {
		t.Errorf("the specification was rewritten: %+v", o.Spec)
	}
	fixed := named("red", "m", api.NetworkSpec{CIDR: "10.2.0.0/24", VLAN: 102, Gateway: "10.2.0.254", MTU: 1500})
	if err := b.create(fixed, operator()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(api.NetworkStatus{VLAN: 102, Gateway: "10.2.0.254", MTU: 1500}, fixed.Status); diff != "" {
		t.Error(diff)
	}
}

func TestVLANsAreUniqueAndRunOut(t *testing.T) {
	b := open(t)
	seen := map[int]bool{}
	for i := range 4 {
		o := named("red", fmt.Sprintf("n%d", i), api.NetworkSpec{CIDR: fmt.Sprintf("10.%d.0.0/24", i)})
		if err := b.create(o, member()); err != nil {
			t.Fatal(err)
		}
		if seen[o.Status.VLAN] {
			t.Errorf("VLAN %d twice", o.Status.VLAN)
		}
		seen[o.Status.VLAN] = true
	}
	extra := named("red", "n9", api.NetworkSpec{CIDR: "10.9.0.0/24"})
	if err := b.create(extra, member()); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "100-103") {
		t.Errorf("err = %v", err)
	}
	extra.Spec.Fabric = "b" // the other fabric has its own pool, and the same subnet is no overlap there
	extra.Spec.CIDR = "10.0.0.0/24"
	if err := b.create(extra, member()); err != nil {
		t.Error(err)
	}
	b.must(func(tx store.Tx) error {
		o, err := object.Load[api.Network](tx, api.KindNetwork, "red", "n2")
		if err != nil {
			return err
		}
		return network.Delete(tx, o, member())
	})
	again := named("blue", "n2", api.NetworkSpec{CIDR: "10.2.0.0/24"})
	if err := b.create(again, member()); err != nil || again.Status.VLAN != 102 {
		t.Errorf("VLAN %d, %v", again.Status.VLAN, err)
	}
}

func TestOverlapDoesNotNameOtherTenants(t *testing.T) {
	b := open(t)
	if err := b.create(named("red", "secret-plan", api.NetworkSpec{CIDR: "10.1.0.0/16", VLAN: 101}), operator()); err != nil {
		t.Fatal(err)
	}
	for _, cidr := range []string{"10.1.0.0/16", "10.1.2.0/24", "10.0.0.0/8"} {
		err := b.create(named("blue", "n", api.NetworkSpec{CIDR: cidr}), member())
		if !fault.Is(err, fault.Conflict) || strings.Contains(err.Error(), "red") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", cidr, err)
		}
		if err := b.create(named("blue", "n", api.NetworkSpec{CIDR: cidr}), operator()); !strings.Contains(err.Error(), "secret-plan of tenant red") {
			t.Errorf("an operator is not told: %v", err)
		}
	}
	if err := b.create(named("red", "n", api.NetworkSpec{CIDR: "10.1.2.0/24"}), member()); !strings.Contains(err.Error(), "secret-plan") {
		t.Errorf("the own tenant is not told: %v", err)
	}
	if err := b.create(named("blue", "n", api.NetworkSpec{CIDR: "10.7.0.0/24", VLAN: 101}), operator()); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "101") {
		t.Errorf("err = %v", err)
	}
}

func TestGatewayIsThePlatforms(t *testing.T) {
	b := open(t)
	if err := b.create(named("red", "n", api.NetworkSpec{CIDR: "10.1.0.0/24", Gateway: "10.1.0.9"}), member()); !fault.Is(err, fault.Forbidden) || !strings.Contains(err.Error(), "only operators") {
		t.Errorf("err = %v", err)
	}
	o := named("red", "n", api.NetworkSpec{CIDR: "10.1.0.0/24", Gateway: "10.1.0.1"}) // what it would be anyway
	if err := b.create(o, member()); err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(*api.NetworkSpec){
		"gateway": func(s *api.NetworkSpec) { s.Gateway = "10.1.0.2" },
		"VLAN":    func(s *api.NetworkSpec) { s.VLAN = 103 },
	} {
		if _, err := b.update(o, member(), edit); !fault.Is(err, fault.Forbidden) {
			t.Errorf("%s: %v", name, err)
		}
	}
	moved, err := b.update(o, operator(), func(s *api.NetworkSpec) { s.Gateway = "10.1.0.254" })
	if err != nil || moved.Status.Gateway != "10.1.0.254" {
		t.Fatalf("%+v, %v", moved.Status, err)
	}
	kept, err := b.update(moved, member(), func(s *api.NetworkSpec) { s.Gateway, s.MTU = "", 1500 })
	if err != nil || kept.Status.Gateway != "10.1.0.254" || kept.Status.MTU != 1500 {
		t.Errorf("leaving it out undid the operator's choice: %+v, %v", kept.Status, err)
	}
}

func TestRefused(t *testing.T) {
	b := open(t)
	for name, tt := range map[string]struct {
		spec api.NetworkSpec
		path []string
	}{
		"everything":      {api.NetworkSpec{Fabric: "A", CIDR: "x", DNS: []string{"y"}}, []string{"spec.cidr", "spec.dns[0]", "spec.fabric"}},
		"unknown fabric":  {api.NetworkSpec{Fabric: "z", CIDR: "10.0.0.0/24"}, []string{"spec.fabric"}},
		"MTU, VLAN":       {api.NetworkSpec{CIDR: "10.0.0.0/24", MTU: 9000, VLAN: 99}, []string{"spec.mtu", "spec.vlan"}},
		"small MTU":       {api.NetworkSpec{CIDR: "10.0.0.0/24", MTU: 100, VLAN: 5000}, []string{"spec.mtu", "spec.vlan"}},
		"gateway outside": {api.NetworkSpec{CIDR: "10.0.0.0/24", Gateway: "10.0.1.1"}, []string{"spec.gateway"}},
		"broadcast":       {api.NetworkSpec{CIDR: "10.0.0.0/24", Gateway: "10.0.0.255"}, []string{"spec.gateway"}},
		"network":         {api.NetworkSpec{CIDR: "10.0.0.0/24", Gateway: "10.0.0.0"}, []string{"spec.gateway"}},
	} {
		e, ok := errors.AsType[*fault.Error](b.create(named("red", "n", tt.spec), operator()))
		if !ok || e.Kind != fault.Invalid {
			t.Errorf("%s: %v", name, e)
			continue
		}
		var got []string
		for _, f := range e.Fields {
			got = append(got, f.Path)
		}
		if diff := cmp.Diff(tt.path, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if err := b.create(named("nobody", "n", api.NetworkSpec{CIDR: "10.0.0.0/24"}), operator()); !fault.Is(err, fault.NotFound) {
		t.Errorf("err = %v", err)
	}
}

func TestMovesOnlyWhileUnused(t *testing.T) {
	b := open(t)
	o := named("red", "n", api.NetworkSpec{CIDR: "10.1.0.0/24"})
	if err := b.create(o, member()); err != nil {
		t.Fatal(err)
	}
	moved, err := b.update(o, member(), func(s *api.NetworkSpec) { s.CIDR, s.Fabric = "10.2.0.0/24", "b" })
	if err != nil || moved.Status.Gateway != "10.2.0.1" {
		t.Fatalf("%+v, %v", moved.Status, err)
	}
	if err := b.create(named("blue", "n", api.NetworkSpec{CIDR: "10.1.0.0/24"}), member()); err != nil {
		t.Errorf("what was left is still taken: %v", err)
	}
	b.must(func(tx store.Tx) error {
		_, err := network.TakeAddress(tx, moved, "", network.Owner{UID: "x", VM: "red/x"})
		return err
	})
	for name, edit := range map[string]func(*api.NetworkSpec){
		"cidr":    func(s *api.NetworkSpec) { s.CIDR = "10.3.0.0/24" },
		"fabric":  func(s *api.NetworkSpec) { s.Fabric = "a" },
		"vlan":    func(s *api.NetworkSpec) { s.VLAN = 103 },
		"gateway": func(s *api.NetworkSpec) { s.Gateway = "10.2.0.2" }, // the VM's
	} {
		if _, err := b.update(moved, operator(), edit); !fault.Is(err, fault.Conflict) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := b.do(func(tx store.Tx) error { return network.Delete(tx, moved, operator()) }); !fault.Is(err, fault.Conflict) {
		t.Errorf("err = %v", err)
	}
}

// TestAddresses: any history hands out each host address at most once, never the network's, the broadcast or
// the gateway's, and all of them before it says that there is none.
func TestAddresses(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := open(t)
		o := named("red", "n", api.NetworkSpec{CIDR: "10.1.0.0/29", Gateway: rapid.SampledFrom([]string{"", "10.1.0.3", "10.1.0.6"}).Draw(rt, "gateway")})
		if err := b.create(o, operator()); err != nil {
			rt.Fatal(err)
		}
		held := map[string]string{}
		for i := range rapid.IntRange(1, 40).Draw(rt, "steps") {
			uid := fmt.Sprintf("u%d", i)
			if rapid.Bool().Draw(rt, "give") && len(held) > 0 {
				ip := fmt.Sprintf("10.1.0.%d", rapid.IntRange(0, 7).Draw(rt, "which"))
				give := func(tx store.Tx) error {
					if err := network.GiveAddress(tx, "red", "n", ip, "stranger"); err != nil {
						return err
					}
					return network.GiveAddress(tx, "red", "n", ip, held[ip])
				}
				b.must(give)
				b.must(give) // twice gives back once
				delete(held, ip)
				continue
			}
			fixed := ""
			if rapid.IntRange(0, 3).Draw(rt, "fixed") == 0 {
				fixed = fmt.Sprintf("10.1.0.%d", rapid.IntRange(0, 9).Draw(rt, "address"))
			}
			var ip string
			err := b.do(func(tx store.Tx) (err error) {
				ip, err = network.TakeAddress(tx, o, fixed, network.Owner{UID: uid, VM: "red/x"})
				return err
			})
			switch {
			case err == nil:
				if held[ip] != "" || ip == "10.1.0.0" || ip == "10.1.0.7" || ip == o.Status.Gateway || !netip.MustParsePrefix("10.1.0.0/29").Contains(netip.MustParseAddr(ip)) || fixed != "" && ip != fixed {
					rt.Fatalf("%s was handed out, held %v", ip, held)
				}
				held[ip] = uid
			case fixed == "" && len(held) != 5:
				rt.Fatalf("%d of 5 are held: %v", len(held), err)
			}
			if err := b.do(func(tx store.Tx) error { return network.Fill(tx, o) }); err != nil || o.Status.Used != len(held) || o.Status.Addresses != 5 {
				rt.Fatalf("%+v, held %d, %v", o.Status, len(held), err)
			}
		}
	})
}

func TestFixedAddressSaysWhy(t *testing.T) {
	b := open(t)
	o := named("red", "n", api.NetworkSpec{CIDR: "10.1.0.0/24"})
	if err := b.create(o, member()); err != nil {
		t.Fatal(err)
	}
	take := func(ip string) error {
		return b.do(func(tx store.Tx) error {
			_, err := network.TakeAddress(tx, o, ip, network.Owner{UID: "x", VM: "red/x"})
			return err
		})
	}
	for ip, want := range map[string]string{"10.1.0.0": "network itself", "10.1.0.255": "broadcast", "10.1.0.1": "gateway", "10.2.0.1": "not in", "fd00::1": "no IPv4", "\x00": "no IPv4"} {
		if err := take(ip); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", ip, err)
		}
	}
	if err := take("10.1.0.9"); err != nil {
		t.Fatal(err)
	}
	if err := take("10.1.0.9"); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "red/x") {
		t.Errorf("err = %v", err)
	}
}

// TestE59_MACsAreUnique: derived MACs are stable, local unicast and unique, also where a fixed one took their place.
func TestE59_MACsAreUnique(t *testing.T) {
	b := open(t)
	take := func(fixed, uid string, index int) (mac string, err error) {
		err = b.do(func(tx store.Tx) error {
			mac, err = network.TakeMAC(tx, fixed, index, network.Owner{UID: uid, VM: "red/" + uid})
			return err
		})
		return mac, err
	}
	first, err := take("", "x", 0)
	if err != nil {
		t.Fatal(err)
	}
	b.must(func(tx store.Tx) error { return network.GiveMAC(tx, first, "x") })
	if again, _ := take("", "x", 0); again != first {
		t.Errorf("%s, then %s", first, again)
	}
	b.must(func(tx store.Tx) error { return network.GiveMAC(tx, first, "stranger") })
	b.must(func(tx store.Tx) error { return network.GiveMAC(tx, first, "x") })
	if _, err := take(first, "y", 0); err != nil {
		t.Fatal(err)
	}
	next, err := take("", "x", 0) // its own is taken: the next one
	if err != nil || next == first {
		t.Errorf("%s, %v", next, err)
	}
	seen := map[string]bool{first: true, next: true}
	for i := range 500 {
		mac, err := take("", fmt.Sprintf("vm-%d", i/8), i%8)
		if err != nil {
			t.Fatal(err)
		}
		m, err := roce.ParseMAC(mac)
		if err != nil || !m.Unicast() || !m.Local() || seen[mac] {
			t.Errorf("MAC %s: %v", mac, err)
		}
		seen[mac] = true
	}
	for bad, want := range map[string]string{"01:00:5e:00:00:01": "multicast", "ff:ff:ff:ff:ff:ff": "multicast", "00:00:00:00:00:00": "zero", "02:00": "no MAC", "7e:00:00:00:00:01": "parked VF", "\x1b[2J": "no MAC"} {
		if _, err := take(bad, "z", 0); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := take(strings.ToUpper(first), "z", 0); !fault.Is(err, fault.Conflict) {
		t.Errorf("err = %v", err)
	}
}

func TestDeleteNamesTheUsers(t *testing.T) {
	b := open(t)
	o := named("red", "n", api.NetworkSpec{CIDR: "10.1.0.0/24"})
	if err := b.create(o, member()); err != nil {
		t.Fatal(err)
	}
	b.must(func(tx store.Tx) error {
		if err := object.Save(tx, &api.VM{Meta: api.Meta{Kind: api.KindVM, Tenant: "red", Name: "v"}, Spec: api.VMSpec{Networks: []api.VMNetwork{{Network: "n"}, {Network: "n"}}}}); err != nil {
			return err
		}
		return object.Save(tx, &api.SecurityGroup{Meta: api.Meta{Kind: api.KindSecurityGroup, Tenant: "red", Name: "g"}, Spec: api.SecurityGroupSpec{Network: "n"}})
	})
	if err := b.do(func(tx store.Tx) error { return network.Delete(tx, o, member()) }); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "VM v, SecurityGroup g;") {
		t.Errorf("err = %v", err)
	}
	if _, err := b.update(o, member(), func(s *api.NetworkSpec) { s.CIDR = "10.2.0.0/24" }); !fault.Is(err, fault.Conflict) {
		t.Errorf("a group was checked against the old subnet: %v", err)
	}
}
