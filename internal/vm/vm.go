// Package vm has the rules of virtual machines: what a tenant may ask for, and the one commit in which a VM
// is charged, placed and given its VFs, addresses, MACs and VLANs, or refused with nothing changed.
//
// What a VM holds follows its record, not its power state: a VM that is off, crashed or unreachable keeps
// its VFs, addresses and quota. Everything is given back together, once, on the proof of the host that
// held it that domain and VFs of this very VM and generation are gone and clean.
//
// The guest's PCI addresses are planned here: guest cell c has a PCI expander with bus 0x20+0x10*c, and
// the k-th VF of the cell sits behind a root port on the next buses: bus 0x21+0x10*c+k, slot 0, function 0.
// They stay the same over restarts and rebuilds.
package vm

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fabric"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/flavor"
	"github.com/verbena-cloud/verbena/internal/network"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/sched"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/tenant"
	"github.com/verbena-cloud/verbena/internal/units"
)

// Limits of a specification.
const (
	MaxUserData = 64 << 10
	maxNetworks = 8
	maxGroups   = 16
	maxKeys     = 64
	maxKey      = 16 << 10
)

// Guest PCI plan, see the package's doc.
const (
	firstBus    = 0x21
	busesOfCell = 0x10
)

// GuestPCI returns where the guest sees the k-th VF of a guest cell.
func GuestPCI(cell, k int) roce.PCIAddr {
	return roce.PCIAddr{Bus: uint8(firstBus + busesOfCell*cell + k)}
}

// need is a VM's specification with every reference resolved.
type need struct {
	size     flavor.Size
	networks []*api.Network // one per spec.networks
	priority []int          // RoCE priority of each network's fabric
}

// network returns the index of the network that VF k is dealt to.
func (n *need) network(k int) int { return k % len(n.networks) }

// ask is what the VM takes of the quota.
func (n *need) ask() tenant.Ask {
	a := tenant.Ask{VMs: 1, VCPUs: n.size.VCPUs, Memory: n.size.Memory, Bandwidth: n.size.MinRate * units.Rate(n.size.VFs)}
	for k := range n.size.VFs {
		if a.VFs == nil {
			a.VFs = map[string]int{}
		}
		a.VFs[n.networks[n.network(k)].Spec.Fabric]++
	}
	return a
}

// request is what placement gets to see.
func (n *need) request(s api.VMSpec, alive func(string) bool) *sched.Request {
	z := n.size
	r := &sched.Request{
		Cells: z.Cells, VCPUs: z.VCPUs / z.Cells, Memory: z.Memory / units.Bytes(z.Cells), Page: z.Page,
		Pairs: z.HA == flavor.DualVF, Lag: z.HA == flavor.VFLag, Strict: z.Strict, MinRate: z.MinRate, MaxRate: z.MaxRate,
		Bridge: z.VFs == 0, Host: s.Host, Labels: s.HostLabels, Alive: alive,
	}
	for k := range z.VFs {
		i := n.network(k)
		r.VFs = append(r.VFs, sched.VF{Cell: z.Cell(k), Fabric: n.networks[i].Spec.Fabric, QoS: n.priority[i] > 0})
	}
	return r
}

// resolve checks the specification and follows its references; every wrong place is noted.
func resolve(tx store.Tx, f *fault.Faults, o *api.VM) (need, error) {
	var n need
	s := o.Spec
	texts(f, s)
	if _, err := ref[api.Image](tx, f, "spec.image", target{api.KindImage, "", s.Image}); err != nil {
		return n, err
	}
	fl, err := ref[api.Flavor](tx, f, "spec.flavor", target{api.KindFlavor, "", s.Flavor})
	if err != nil {
		return n, err
	}
	if fl != nil {
		if n.size, err = flavor.Resolve(fl); err != nil {
			return n, err
		}
	}
	if err := networks(tx, f, o, &n); err != nil {
		return n, err
	}
	if fl != nil && n.size.VFs > 0 && len(s.Networks) > n.size.VFs {
		f.Add("spec.networks", "%d networks are more than the %d VFs of flavor %s: each network needs a VF; name fewer networks or use a flavor with more VFs", len(s.Networks), n.size.VFs, fl.Name)
	}
	return n, groups(tx, f, o)
}

// target is what a reference names.
type target struct {
	kind         api.Kind
	tenant, name string
}

// ref follows a reference; a name that is none or names nothing is noted at path.
func ref[T any](tx store.Tx, f *fault.Faults, path string, to target) (*T, error) {
	if err := object.CheckName(to.name); err != nil {
		f.Check(path, err)
		return nil, nil //nolint:nilnil // noted: the caller goes on to find the other faults
	}
	v, err := object.Peek[T](tx, to.kind, to.tenant, to.name)
	if fault.Is(err, fault.NotFound) {
		f.Check(path, err)
		return nil, nil //nolint:nilnil // noted, see above
	}
	return v, err
}

// texts checks what needs no look into the store. Nothing of what may hold secrets is repeated.
func texts(f *fault.Faults, s api.VMSpec) {
	if len(s.UserData) > MaxUserData {
		f.Add("spec.userData", "%d bytes are too many; at most %d may be", len(s.UserData), MaxUserData)
	}
	if !utf8.ValidString(s.UserData) {
		f.Add("spec.userData", "it is no UTF-8 text; encode binary parts as MIME base64, which cloud-init reads")
	}
	if len(s.SSHKeys) > maxKeys {
		f.Add("spec.sshKeys", "%d keys are too many; at most %d may be", len(s.SSHKeys), maxKeys)
	}
	for i, k := range s.SSHKeys {
		kind, rest, _ := strings.Cut(k, " ")
		typed := strings.HasPrefix(kind, "ssh-") || strings.HasPrefix(kind, "ecdsa-") || strings.HasPrefix(kind, "sk-")
		if !typed || strings.TrimSpace(rest) == "" || len(k) > maxKey || strings.ContainsFunc(k, func(r rune) bool { return r < ' ' }) {
			f.Add(fmt.Sprintf("spec.sshKeys[%d]", i), "it is no public key in OpenSSH form (ssh-ed25519 AAAA… comment, on one line)")
		}
	}
	switch s.Power {
	case "", "on", "off":
	default:
		f.Add("spec.power", "%s is unknown; use on or off", object.Quote(s.Power))
	}
	object.CheckLabels(f, "spec.hostLabels", s.HostLabels)
	if s.Host != "" {
		f.Check("spec.host", object.CheckName(s.Host))
	}
}

// networks resolves spec.networks and checks them against the flavor.
func networks(tx store.Tx, f *fault.Faults, o *api.VM, n *need) error {
	if c := len(o.Spec.Networks); c < 1 || c > maxNetworks {
		f.Add("spec.networks", "%d networks; a VM has 1 to %d", c, maxNetworks)
		return nil
	}
	ips, macs := map[string]bool{}, map[string]bool{}
	for i, in := range o.Spec.Networks {
		path := fmt.Sprintf("spec.networks[%d]", i)
		if in.MAC != "" {
			m, err := network.CheckMAC(in.MAC)
			f.Check(path+".mac", err)
			if macs[m.String()] {
				f.Add(path+".mac", "%s is given twice", m)
			}
			macs[m.String()] = true
		}
		nw, err := ref[api.Network](tx, f, path+".network", target{api.KindNetwork, o.Tenant, in.Network})
		if err != nil {
			return err
		}
		if nw == nil {
			continue
		}
		if in.IP != "" {
			ip, err := network.CheckAddress(nw, in.IP)
			f.Check(path+".ip", err)
			if key := nw.Name + "/" + ip.String(); ips[key] {
				f.Add(path+".ip", "%s is given twice", ip)
			} else {
				ips[key] = true
			}
		}
		fb, err := object.Peek[api.Fabric](tx, api.KindFabric, "", nw.Spec.Fabric)
		if err != nil {
			return err
		}
		if n.size.Fabric != "" && n.size.VFs > 0 && nw.Spec.Fabric != n.size.Fabric {
			f.Add(path+".network", "network %s is on fabric %s, flavor %s takes VFs of fabric %s only", nw.Name, nw.Spec.Fabric, o.Spec.Flavor, n.size.Fabric)
		}
		n.networks = append(n.networks, nw)
		n.priority = append(n.priority, priority(fb))
	}
	return nil
}

func priority(fb *api.Fabric) int {
	if fb.Spec.Priority == nil {
		return fabric.DefaultPriority
	}
	return *fb.Spec.Priority
}

// groups checks that the security groups exist and filter networks that the VM is on.
func groups(tx store.Tx, f *fault.Faults, o *api.VM) error {
	if len(o.Spec.SecurityGroups) > maxGroups {
		f.Add("spec.securityGroups", "%d groups are too many; at most %d may be", len(o.Spec.SecurityGroups), maxGroups)
		return nil
	}
	for i, name := range o.Spec.SecurityGroups {
		path := fmt.Sprintf("spec.securityGroups[%d]", i)
		g, err := ref[api.SecurityGroup](tx, f, path, target{api.KindSecurityGroup, o.Tenant, name})
		if err != nil {
			return err
		}
		if g == nil {
			continue
		}
		on := false
		for _, n := range o.Spec.Networks {
			on = on || n.Network == g.Spec.Network
		}
		if !on {
			f.Add(path, "group %s filters network %s, which the VM is not on", name, g.Spec.Network)
		}
	}
	return nil
}
