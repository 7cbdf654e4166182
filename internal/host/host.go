// Package host has the rules of hypervisors: what an operator may declare, how an inventory is merged, what
// the host must be (its desired state), and the host's ledger entry from which placement decides.
//
// A PF is known by its key (permanent MAC and port); PCI address, netdev name and IOMMU groups are
// observations. No observation ever frees anything: a PF or VF that is gone, a discovery that failed or
// came back with less, a declaration that was changed, all keep the claims of VMs and raise an alarm. What
// VMs hold is given back by the release of the very VM alone.
package host

import (
	"fmt"
	"slices"
	"strings"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/sched"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/units"
)

// Limits of a declaration.
const (
	maxPFs      = 64
	maxBridge   = 15 // IFNAMSIZ less the NUL (linux/if.h)
	maxMatch    = 64
	maintenance = "cordon"
)

// Create declares a host. It takes VMs once its agent has joined and reported.
func Create(tx store.Tx, o *api.Host, by object.Who) error {
	if err := check(tx, o); err != nil {
		return err
	}
	if err := object.Vacant(tx, api.KindHost, &o.Meta); err != nil {
		return err
	}
	object.Born(&o.Meta, api.KindHost, by)
	o.Status = api.HostStatus{}
	return save(tx, o, nil)
}

// Update changes the declaration. A PF of which VMs hold VFs keeps its place, fabric and VF count.
func Update(tx store.Tx, old, o *api.Host, by object.Who) error {
	object.Carry(&o.Meta, &old.Meta)
	if err := check(tx, o); err != nil {
		return err
	}
	ledger, err := load(tx, o.Name)
	if err != nil {
		return err
	}
	stored, err := object.Peek[api.Host](tx, api.KindHost, "", o.Name)
	if err != nil {
		return err
	}
	if err := keepsPFs(tx, stored, o, ledger); err != nil {
		return err
	}
	if err := keepsBridge(tx, stored, o); err != nil {
		return err
	}
	o.Status = stored.Status // what was derived on read is not stored
	o.Status.Conditions = conditions(o, ledger, by.Now)
	return save(tx, o, ledger)
}

// keepsPFs refuses to take a PF away, or to change its fabric or VF count, while VMs hold VFs of it.
func keepsPFs(tx store.Tx, old, o *api.Host, ledger *sched.Host) error {
	var f fault.Faults
	for i, p := range o.Spec.PFs {
		for _, q := range o.Spec.PFs[:i] {
			if pf := find(old.Status.Inventory, p.Match); pf != nil && pf == find(old.Status.Inventory, q.Match) {
				f.Add(fmt.Sprintf("spec.pfs[%d].match", i), "%s and %s are the same PF %s", object.Quote(p.Match), object.Quote(q.Match), pf.Key)
			}
		}
	}
	if err := f.Err(object.Title(api.KindHost, &o.Meta)); err != nil {
		return err
	}
	for _, was := range old.Spec.PFs {
		pf := find(old.Status.Inventory, was.Match)
		if pf == nil {
			continue
		}
		held := heldOf(ledger, pf.Key)
		if held == 0 {
			continue
		}
		i := slices.IndexFunc(o.Spec.PFs, func(p api.HostPF) bool { return find(old.Status.Inventory, p.Match) == pf })
		if i >= 0 && o.Spec.PFs[i].Fabric == was.Fabric && o.Spec.PFs[i].VFs == was.VFs {
			continue
		}
		vms, err := holders(tx, o.Name, pf.Key)
		if err != nil {
			return err
		}
		return fault.New(fault.Conflict, "host %s: %d VFs of PF %s are held by %s; its fabric and VF count can't change, nor can it be taken away, until these VMs are deleted or moved", o.Name, held, pf.Key, strings.Join(vms, ", "))
	}
	return nil
}

// keepsBridge refuses to take the bridge away while VMs have NICs on it. It may get another name: a VM that
// runs stays where it is plugged in, and its next start uses the new one.
func keepsBridge(tx store.Tx, old, o *api.Host) error {
	if old.Spec.Bridge == "" || o.Spec.Bridge != "" {
		return nil
	}
	vms, err := holding(tx, o.Name, func(c *sched.Claim) bool { return len(c.VFs) == 0 })
	if err != nil || len(vms) == 0 {
		return err
	}
	return fault.New(fault.Conflict, "host %s: NICs of %s are on its bridge %s; it can't be taken away until these VMs are deleted or moved", o.Name, strings.Join(vms, ", "), old.Spec.Bridge)
}

func heldOf(ledger *sched.Host, key string) int {
	for i := range ledger.PFs {
		if ledger.PFs[i].Key == key {
			return ledger.PFs[i].Claimed.Count()
		}
	}
	return 0
}

// holders names the VMs on a host that hold VFs of the PF; all VMs if key is empty.
func holders(tx store.Tx, name, key string) ([]string, error) {
	return holding(tx, name, func(c *sched.Claim) bool {
		return key == "" || slices.ContainsFunc(c.VFs, func(v sched.VFClaim) bool { return v.PF == key })
	})
}

// holding names the VMs on a host whose claim is of a kind.
func holding(tx store.Tx, name string, kind func(*sched.Claim) bool) ([]string, error) {
	var out []string
	for e := range tx.Scan(object.ClaimPrefix(name), "") {
		c, err := store.Peek[sched.Claim](e)
		if err != nil {
			return nil, err
		}
		if kind(c) {
			out = append(out, "VM "+c.Tenant+"/"+c.Name)
		}
	}
	if len(out) > 8 {
		out = append(out[:8], fmt.Sprintf("%d more", len(out)-8))
	}
	return out, nil
}

// Delete removes a host on which no VM holds anything.
func Delete(tx store.Tx, o *api.Host, _ object.Who) error {
	vms, err := holders(tx, o.Name, "")
	if err != nil {
		return err
	}
	if len(vms) > 0 {
		return fault.New(fault.Conflict, "host %s still has %s; delete or move these first", o.Name, strings.Join(vms, ", "))
	}
	tx.Delete(object.LedgerKey(o.Name))
	object.Remove(tx, api.KindHost, "", o.Name)
	return nil
}

// Fill derives what VMs hold. The state (up, unknown) is the server's: it is never stored.
func Fill(tx store.Tx, o *api.Host) error {
	ledger, err := load(tx, o.Name)
	if err != nil {
		return err
	}
	o.Status.VMs = ledger.VMs
	o.Status.Used = nil
	for i := range ledger.Cells {
		c := &ledger.Cells[i]
		u := api.CellUse{Cell: c.ID, VCPUs: c.Used, Memory: c.Memory[sched.Normal].Used}
		for class, name := range map[int]string{sched.Page2M: "2MiB", sched.Page1G: "1GiB"} {
			if n := c.Memory[class].Used; n > 0 {
				if u.Hugepages == nil {
					u.Hugepages = map[string]int64{}
				}
				u.Hugepages[name] = n
			}
		}
		for j := range ledger.PFs {
			if ledger.PFs[j].Cell == c.ID {
				u.VFs += ledger.PFs[j].Claimed.Count()
			}
		}
		o.Status.Used = append(o.Status.Used, u)
	}
	if o.Status.Inventory == nil {
		o.Status.State = api.HostJoining
	}
	return Outdated(tx, o)
}

// load returns the shared ledger entry of a host, an empty one if there is none yet.
func load(tx store.Tx, name string) (*sched.Host, error) {
	e := tx.Get(object.LedgerKey(name))
	if e == nil {
		return &sched.Host{Name: name}, nil
	}
	return store.Peek[sched.Host](e)
}

// save stores the host and what follows from it for the ledger.
func save(tx store.Tx, o *api.Host, ledger *sched.Host) error {
	next := capacity(o, ledger)
	if err := store.Put(tx, object.LedgerKey(o.Name), next); err != nil {
		return err
	}
	saved := *o
	saved.Status.Used, saved.Status.VMs, saved.Status.State, saved.Status.Seen = nil, 0, "", nil
	return object.Save(tx, &saved)
}

func check(tx store.Tx, o *api.Host) error {
	var f fault.Faults
	s := o.Spec
	object.CheckMeta(&f, api.KindHost, &o.Meta)
	if len(s.Rack) > object.MaxName {
		f.Add("spec.rack", "%d bytes are too long; at most %d may be", len(s.Rack), object.MaxName)
	}
	switch s.Maintenance {
	case "", "none", maintenance:
	default:
		f.Add("spec.maintenance", "%s is unknown; use none or cordon", object.Quote(s.Maintenance))
	}
	if len(s.Bridge) > maxBridge || strings.ContainsFunc(s.Bridge, badInIfname) {
		f.Add("spec.bridge", "%s is no interface name: use at most %d characters without space, '/' and ':'", object.Quote(s.Bridge), maxBridge)
	}
	if s.Reserved.VCPUs < 0 {
		f.Add("spec.reserved.vcpus", "%d is negative", s.Reserved.VCPUs)
	}
	if s.Reserved.Memory != "" {
		_, err := units.ParseBytes(s.Reserved.Memory)
		f.Check("spec.reserved.memory", err)
	}
	if len(s.PFs) > maxPFs {
		f.Add("spec.pfs", "%d PFs are too many; at most %d may be", len(s.PFs), maxPFs)
		return f.Err(object.Title(api.KindHost, &o.Meta))
	}
	seen := map[string]bool{}
	for i, p := range s.PFs {
		if err := checkPF(tx, &f, fmt.Sprintf("spec.pfs[%d]", i), p); err != nil {
			return err
		}
		if seen[p.Match] {
			f.Add(fmt.Sprintf("spec.pfs[%d].match", i), "%s is named twice", object.Quote(p.Match))
		}
		seen[p.Match] = true
	}
	return f.Err(object.Title(api.KindHost, &o.Meta))
}

func badInIfname(r rune) bool { return r <= ' ' || r >= 0x7f || r == '/' || r == ':' }

func checkPF(tx store.Tx, f *fault.Faults, path string, p api.HostPF) error {
	if p.Match == "" || len(p.Match) > maxMatch || strings.ContainsFunc(p.Match, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		f.Add(path+".match", "%s names no PF: use its key, PCI address or netdev name as the inventory shows it", object.Quote(p.Match))
	}
	if p.VFs < 0 || p.VFs > sched.MaxVFs {
		f.Add(path+".vfs", "%d is not between 0 and %d", p.VFs, sched.MaxVFs)
	}
	if err := object.CheckName(p.Fabric); err != nil {
		f.Check(path+".fabric", err)
		return nil
	}
	if _, err := object.Peek[api.Fabric](tx, api.KindFabric, "", p.Fabric); fault.Is(err, fault.NotFound) {
		f.Check(path+".fabric", err)
	} else if err != nil {
		return err
	}
	return nil
}
