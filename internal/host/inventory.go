package host

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/sched"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/units"
)

// Conditions of a host.
const (
	CondInventory    = "InventoryComplete" // everything could be read, and every PF has a key of its own
	CondCommissioned = "Commissioned"      // every declared PF is there, ready, and has its VFs
	CondClaims       = "ClaimsIntact"      // every VF that a VM holds is there
	CondQoS          = "NICQoS"            // every port that can be is set up as its fabric wants
)

// find returns the PF of an inventory that a declaration means, or nil.
func find(inv *api.Inventory, match string) *api.PF {
	if inv == nil {
		return nil
	}
	for i := range inv.PFs {
		if p := &inv.PFs[i]; p.Key == match || p.PCI == match || p.Netdev == match {
			return p
		}
	}
	return nil
}

// Observed merges an inventory that the host's own agent sent. The inventory is handed over. changed tells
// whether there was anything to store.
func Observed(tx store.Tx, name string, inv *api.Inventory, now time.Time) (changed bool, err error) {
	if inv == nil {
		return false, nil
	}
	old, err := object.Peek[api.Host](tx, api.KindHost, "", name)
	if err != nil {
		return false, err
	}
	if err := sane(name, inv); err != nil {
		return false, err
	}
	ledger, err := load(tx, name)
	if err != nil {
		return false, err
	}
	o := *old
	o.Status.Inventory = inv
	o.Status.Conditions = conditions(&o, ledger, now)
	if reflect.DeepEqual(old.Status.Inventory, inv) && reflect.DeepEqual(old.Status.Conditions, o.Status.Conditions) && reflect.DeepEqual(ledger, capacity(&o, ledger)) {
		return false, nil
	}
	return true, save(tx, &o, ledger)
}

// sane refuses what no agent of ours sends: it bounds what is stored.
func sane(name string, inv *api.Inventory) error {
	if len(inv.PFs) > 4*maxPFs || len(inv.Cells) > 1024 {
		return fault.New(fault.Invalid, "inventory of host %s: %d PFs and %d NUMA nodes are more than any host has", name, len(inv.PFs), len(inv.Cells))
	}
	for i := range inv.PFs {
		if n := len(inv.PFs[i].VFs); n > sched.MaxVFs {
			return fault.New(fault.Invalid, "inventory of host %s: PF %s has %d VFs, at most %d can be told apart", name, object.Quote(inv.PFs[i].Key), n, sched.MaxVFs)
		}
	}
	return nil
}

// capacity makes the ledger entry from declaration and inventory, and carries over what VMs hold.
func capacity(o *api.Host, old *sched.Host) *sched.Host {
	if old == nil {
		old = &sched.Host{}
	}
	h := &sched.Host{Name: o.Name, Cordoned: o.Spec.Maintenance == maintenance, Labels: o.Labels, Bridge: o.Spec.Bridge != "", VMs: old.VMs}
	inv := o.Status.Inventory
	if inv != nil {
		h.Simulated = inv.Simulated
		h.Cells = cells(o.Spec.Reserved, inv)
	}
	for _, c := range old.Cells {
		i := slices.IndexFunc(h.Cells, func(n sched.Cell) bool { return n.ID == c.ID })
		held := sched.Cell{ID: c.ID, Used: c.Used}
		for k := range c.Memory {
			held.Memory[k].Used = c.Memory[k].Used
		}
		switch {
		case i >= 0:
			h.Cells[i].Used = held.Used
			for k := range held.Memory {
				h.Cells[i].Memory[k].Used = held.Memory[k].Used
			}
		case held != sched.Cell{ID: c.ID}:
			h.Cells = append(h.Cells, held) // a node that was not read keeps what VMs hold, without room for more
		}
	}
	h.PFs = pfs(o, old)
	h.Settle()
	return h
}

func cells(r api.Reserved, inv *api.Inventory) []sched.Cell {
	reserved := int64(0)
	if b, err := units.ParseBytes(r.Memory); err == nil {
		reserved = int64(b)
	}
	out := make([]sched.Cell, 0, len(inv.Cells))
	for _, c := range inv.Cells {
		n := sched.Cell{ID: c.ID, VCPUs: max(0, c.VCPUs-r.VCPUs)}
		n.Memory[sched.Normal].Total = max(0, c.Memory-reserved)
		for _, p := range c.Hugepages {
			if size, err := units.ParseBytes(p.Size); err == nil && sched.PageClass(size) != sched.Normal {
				n.Memory[sched.PageClass(size)].Total = p.Total * int64(size)
			}
		}
		out = append(out, n)
	}
	return out
}

// pfs returns the commissioned PFs and those of which VMs still hold VFs.
func pfs(o *api.Host, old *sched.Host) []sched.PF {
	var out []sched.PF
	twice := duplicates(o.Status.Inventory)
	for _, want := range o.Spec.PFs {
		p := find(o.Status.Inventory, want.Match)
		if p == nil || slices.ContainsFunc(out, func(q sched.PF) bool { return q.Key == p.Key }) {
			continue
		}
		out = append(out, pf(p, want, twice))
	}
	for i := range old.PFs {
		was := &old.PFs[i]
		if was.Claimed.Count() == 0 {
			continue
		}
		k := slices.IndexFunc(out, func(q sched.PF) bool { return q.Key == was.Key })
		if k < 0 {
			gone := *was
			gone.Ready, gone.Reason, gone.VFs, gone.Parked = false, "not found, or no longer declared, while VMs hold VFs of it", 0, sched.Bits{}
			out = append(out, gone)
			continue
		}
		out[k].Claimed, out[k].Min = was.Claimed, was.Min
	}
	return out
}

func pf(p *api.PF, want api.HostPF, twice []string) sched.PF {
	out := sched.PF{
		Key: p.Key, Fabric: want.Fabric, Card: p.Card, Port: p.Port, Cell: p.Cell, Speed: p.Speed,
		Lag: p.Mode == "switchdev" && p.Bond != "", Ready: p.Ready, Reason: p.Reason, VFs: len(p.VFs),
	}
	switch {
	case slices.Contains(twice, p.Key):
		out.Ready, out.Reason = false, "two PFs report the same key"
	case p.Fabric != "" && p.Fabric != want.Fabric:
		out.Ready, out.Reason = false, "its agent has not moved it from fabric "+p.Fabric+" yet"
	}
	if p.Caps.QoS {
		out.Caps |= sched.CapQoS
	}
	if p.Caps.MinRate {
		out.Caps |= sched.CapMinRate
	}
	if p.Caps.MaxRate {
		out.Caps |= sched.CapMaxRate
	}
	for i := range p.VFs {
		if p.VFs[i].State == api.VFParked {
			out.Parked.Set(p.VFs[i].Index)
		}
	}
	return out
}

// duplicates returns the keys that more than one PF reports (cloned serials, teamed MACs).
func duplicates(inv *api.Inventory) []string {
	if inv == nil {
		return nil
	}
	var seen, out []string
	for i := range inv.PFs {
		k := inv.PFs[i].Key
		if slices.Contains(seen, k) && !slices.Contains(out, k) {
			out = append(out, k)
		}
		seen = append(seen, k)
	}
	return out
}

// conditions judges the inventory against the declaration and the claims.
func conditions(o *api.Host, ledger *sched.Host, now time.Time) []api.Condition {
	inv := o.Status.Inventory
	if inv == nil {
		return o.Status.Conditions
	}
	list := o.Status.Conditions
	set := func(typ, reason string, wrong []string, next string) {
		c := api.Condition{Type: typ, Status: "True", Since: now}
		if len(wrong) > 0 {
			c.Status, c.Reason, c.Message = "False", reason, join(wrong)+"; "+next
		}
		list = object.SetCondition(list, c)
	}
	wrong := slices.Clone(inv.Problems)
	for _, k := range duplicates(inv) {
		wrong = append(wrong, "two PFs report the key "+k)
	}
	set(CondInventory, "Partial", wrong, "nothing was freed because of it; see to the host's driver and firmware")
	set(CondCommissioned, "NotReady", shortfalls(o), "VFs that are not ready are not given away")
	set(CondClaims, "VFsGone", lost(inv, ledger), "the VMs keep their claims; repair the NIC or rebuild these VMs")
	if wrong, judged := unprotected(o); judged {
		set(CondQoS, "Differs", wrong, "VMs run, but RoCE is not protected from loss there")
	}
	return list
}

// unprotected says which ports differ from their fabric; judged = false if the agent tells of none. A port
// whose driver has no such settings is no difference.
func unprotected(o *api.Host) (wrong []string, judged bool) {
	for _, want := range o.Spec.PFs {
		p := find(o.Status.Inventory, want.Match)
		if p == nil || p.QoS == nil || p.QoS.State == "" {
			continue
		}
		judged = true
		if s := p.QoS.State; s != "ok" && s != "absent" {
			wrong = append(wrong, fmt.Sprintf("PF %s: %s", p.Key, p.QoS.Reason))
		}
	}
	return wrong, judged
}

func join(parts []string) string {
	if len(parts) > 6 {
		parts = append(slices.Clone(parts[:6]), fmt.Sprintf("%d more", len(parts)-6))
	}
	return strings.Join(parts, "; ")
}

// shortfalls says which declared PFs are missing, short of VFs or not ready.
func shortfalls(o *api.Host) []string {
	var out []string
	for _, want := range o.Spec.PFs {
		p := find(o.Status.Inventory, want.Match)
		switch {
		case p == nil:
			out = append(out, fmt.Sprintf("no PF is %s", object.Quote(want.Match)))
		case len(p.VFs) < want.VFs || p.NumVFs < want.VFs:
			out = append(out, fmt.Sprintf("PF %s has %d of %d VFs", p.Key, min(len(p.VFs), p.NumVFs), want.VFs))
		case !p.Ready:
			out = append(out, fmt.Sprintf("PF %s is not ready: %s", p.Key, p.Reason))
		}
	}
	return out
}

// lost says which VFs that VMs hold are not there any more.
func lost(inv *api.Inventory, ledger *sched.Host) []string {
	var out []string
	for i := range ledger.PFs {
		held := &ledger.PFs[i]
		if held.Claimed.Count() == 0 {
			continue
		}
		k := slices.IndexFunc(inv.PFs, func(p api.PF) bool { return p.Key == held.Key })
		if k < 0 {
			out = append(out, fmt.Sprintf("PF %s is gone while VMs hold %d of its VFs", held.Key, held.Claimed.Count()))
			continue
		}
		for x := range held.Claimed.All {
			j := slices.IndexFunc(inv.PFs[k].VFs, func(v api.VF) bool { return v.Index == x })
			if j < 0 || inv.PFs[k].VFs[j].State == api.VFAbsent {
				out = append(out, fmt.Sprintf("VF %d of PF %s is gone while a VM holds it", x, held.Key))
			}
		}
	}
	return out
}
