package vm

import (
	"fmt"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/flavor"
	"github.com/verbena-cloud/verbena/internal/network"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/sched"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/tenant"
	"github.com/verbena-cloud/verbena/internal/units"
)

// wordy is the number of hosts up to which a success, too, tells every host's verdict. Above it only a
// refusal and a plan do: nobody reads hundreds of them, and writing them would cost more than deciding.
const wordy = 16

// manyHosts is for how many hosts room is made at once.
const manyHosts = 256

// Create charges, places and claims in tx, or returns a fault and has put nothing that may be committed:
// Invalid with every wrong place, Conflict for a name, address or MAC that is taken, Forbidden, Quota with
// the quota sheet (Detail is a []api.QuotaLine), NoCapacity with every host's verdict (Detail is an
// api.Explanation). o's status is filled in. alive tells which hosts' agents answer.
func Create(tx store.Tx, o *api.VM, by object.Who, alive func(host string) bool) (api.Explanation, error) {
	v := *o // what is stored is handed over, and tx may run again with the same o
	v.Status = api.VMStatus{}
	var f fault.Faults
	object.CheckMeta(&f, api.KindVM, &v.Meta)
	n, err := check(tx, &f, &v)
	if err != nil {
		return api.Explanation{}, err
	}
	if v.Spec.Host != "" && !by.Operator {
		return api.Explanation{}, fault.New(fault.Forbidden, "VM %s: only operators may pin a VM to a host; leave spec.host out, or use spec.hostLabels", v.Name)
	}
	if err := object.Vacant(tx, api.KindVM, &v.Meta); err != nil {
		return api.Explanation{}, err
	}
	object.Born(&v.Meta, api.KindVM, by)
	ask := n.ask()
	if sheet, err := tenant.Sheet(tx, v.Tenant, ask); err != nil {
		return api.Explanation{}, err
	} else if err := tenant.Refusal(v.Tenant, sheet); err != nil {
		return overQuota(sheet), err
	}
	hosts, err := candidates(tx)
	if err != nil {
		return api.Explanation{}, err
	}
	p, d := sched.Place(n.request(v.Spec, alive), hosts)
	if !d.Fits() {
		why := d.Explanation()
		return why, &fault.Error{Kind: fault.NoCapacity, Text: fmt.Sprintf("VM %s: %s; nearest: %s", v.Name, why.Summary, why.Nearest), Detail: why}
	}
	if err := tenant.Charge(tx, v.Tenant, v.UID, ask); err != nil {
		return api.Explanation{}, err
	}
	if err := claim(tx, &v, &n, p); err != nil {
		return api.Explanation{}, err
	}
	v.Status.Conditions = object.SetCondition(nil, api.Condition{Type: CondPlaced, Status: "True", Reason: "Claimed", Since: by.Now, Message: placedText(&v)})
	v.Status.Conditions = waiting(v.Status.Conditions, &v, by.Now)
	*o = v
	if err := object.Save(tx, &v); err != nil {
		return api.Explanation{}, err
	}
	if by.Plan || len(hosts) <= wordy {
		return d.Explanation(), nil
	}
	return d.Taken(), nil
}

// check resolves and turns the noted faults into one; a missing tenant is told first.
func check(tx store.Tx, f *fault.Faults, o *api.VM) (need, error) {
	title := object.Title(api.KindVM, &o.Meta)
	if object.CheckName(o.Tenant) == nil {
		if _, err := object.Peek[api.Tenant](tx, api.KindTenant, "", o.Tenant); err != nil {
			return need{}, err
		}
	}
	n, err := resolve(tx, f, o)
	if err != nil {
		return n, err
	}
	if h := o.Spec.Host; object.CheckName(h) == nil && tx.Get(object.Key(api.KindHost, "", h)) == nil {
		f.Add("spec.host", "host %s does not exist", h)
	}
	return n, f.Err(title)
}

// candidates returns every host's ledger entry, shared.
func candidates(tx store.Tx) ([]*sched.Host, error) {
	out := make([]*sched.Host, 0, manyHosts)
	for e := range tx.Scan(object.LedgerPrefix(), "") {
		h, err := store.Peek[sched.Host](e)
		if err != nil {
			return nil, err
		}
		out = append(out, h)
	}
	return out, nil
}

func overQuota(sheet []api.QuotaLine) api.Explanation {
	return api.Explanation{Summary: "the tenant's quota is exhausted", Nearest: "delete VMs, choose a smaller flavor or ask for more quota", Hosts: []api.HostVerdict{}, Quota: sheet}
}

// Explain answers what Create would, without claiming anything. A VM that exists is looked at as if what
// it holds were free: the answer says where it could be placed now.
func Explain(tx store.Tx, o api.VM, alive func(host string) bool) (api.Explanation, error) {
	var f fault.Faults
	if o.Name != "" {
		object.CheckMeta(&f, api.KindVM, &o.Meta)
	}
	n, err := check(tx, &f, &o)
	if err != nil {
		return api.Explanation{}, err
	}
	hosts, err := candidates(tx)
	if err != nil {
		return api.Explanation{}, err
	}
	ask := n.ask()
	for i, h := range hosts {
		c, err := claimOf(tx, h.Name, o.UID)
		if err != nil {
			return api.Explanation{}, err
		}
		if c == nil {
			continue
		}
		ask = tenant.Ask{} // charged already
		hosts[i] = h.Clone()
		hosts[i].Give(c)
		for _, v := range c.VFs {
			hosts[i].Park(v)
		}
	}
	sheet, err := tenant.Sheet(tx, o.Tenant, ask)
	if err != nil {
		return api.Explanation{}, err
	}
	_, d := sched.Place(n.request(o.Spec, alive), hosts)
	out := d.Explanation()
	out.Quota = sheet
	if tenant.Refusal(o.Tenant, sheet) != nil {
		q := overQuota(sheet)
		out.Fits, out.Host, out.Summary, out.Nearest = false, "", q.Summary, q.Nearest
	}
	return out, nil
}

// claimOf returns what a VM holds of a host, shared, or nil.
func claimOf(tx store.Tx, host, uid string) (*sched.Claim, error) {
	if uid == "" {
		return nil, nil //nolint:nilnil // no VM yet, so no claim
	}
	e := tx.Get(object.ClaimKey(host, uid))
	if e == nil {
		return nil, nil //nolint:nilnil // it holds nothing there
	}
	return store.Peek[sched.Claim](e)
}

// claim takes what was decided and writes it into status and ledgers.
func claim(tx store.Tx, v *api.VM, n *need, p sched.Placement) error {
	st := &v.Status
	st.Phase, st.Host, st.Simulated, st.Generation = api.PhaseScheduled, p.Host.Name, p.Host.Simulated, 1
	st.Message = "placed; waiting for the host's agent"
	c := &sched.Claim{UID: v.UID, Tenant: v.Tenant, Name: v.Name, Generation: st.Generation, VFs: p.VFs, MinRate: int64(n.size.MinRate)}
	cells := int64(n.size.Cells)
	for g, node := range p.Nodes {
		cell := api.VMCell{Guest: g, Host: node, VCPUs: n.size.VCPUs / n.size.Cells, Memory: int64(n.size.Memory) / cells, Hugepages: flavor.PageName(n.size.Page)}
		st.Cells = append(st.Cells, cell)
		c.Cells = append(c.Cells, sched.CellClaim{Node: node, VCPUs: cell.VCPUs, Memory: cell.Memory, Page: sched.PageClass(n.size.Page)})
	}
	switch {
	case n.size.VFs == 0:
		st.NUMA = "none"
	case p.Met:
		st.NUMA = "required"
	default:
		st.NUMA = "preferred"
	}
	ledger := p.Host.Clone()
	if err := ledger.Take(c); err != nil {
		return err
	}
	if err := store.Put(tx, object.LedgerKey(ledger.Name), ledger); err != nil {
		return err
	}
	if err := store.Put(tx, object.ClaimKey(ledger.Name, v.UID), c); err != nil {
		return err
	}
	if n.size.VFs == 0 {
		return nics(tx, v, n)
	}
	return vfs(tx, v, n, p)
}

// vfs gives each VF its network, address, MAC and place in the guest.
func vfs(tx store.Tx, v *api.VM, n *need, p sched.Placement) error {
	var inCell [flavor.MaxCells]int
	for k, got := range p.VFs {
		i := n.network(k)
		nw := n.networks[i]
		ip, mac, err := addresses(tx, v, nw, link{n: i, index: k, first: k < len(n.networks)})
		if err != nil {
			return err
		}
		cell := guestCell(n.size.Cell(k), p, k, &inCell)
		v.Status.VFs = append(v.Status.VFs, api.VMVF{
			PF: got.PF, Index: got.Index, GuestPCI: GuestPCI(cell, inCell[cell]).String(), Cell: cell, HostCell: p.Local[k],
			Fabric: nw.Spec.Fabric, Network: nw.Name, MAC: mac, IP: ip, VLAN: nw.Status.VLAN, QoS: n.priority[i], SpoofCheck: true,
			MinRate: rateText(n.size.MinRate), MaxRate: rateText(n.size.MaxRate), Generation: v.Status.Generation,
		})
		inCell[cell]++
	}
	return nil
}

// guestCell returns the guest cell of VF k: the one it was dealt to, or, if the policy had to give way,
// the one whose host node the VF is really on, so that the guest is told the truth where there is one.
func guestCell(dealt int, p sched.Placement, k int, inCell *[flavor.MaxCells]int) int {
	if p.Met {
		return dealt
	}
	for g, node := range p.Nodes {
		if node == p.Local[k] && inCell[g] < flavor.MaxVFs {
			return g
		}
	}
	return dealt
}

func rateText(r units.Rate) string {
	if r == 0 {
		return ""
	}
	return r.String()
}

// nics gives a VM without RDMA one virtio NIC per network.
func nics(tx store.Tx, v *api.VM, n *need) error {
	for i, nw := range n.networks {
		ip, mac, err := addresses(tx, v, nw, link{n: i, index: i, first: true})
		if err != nil {
			return err
		}
		v.Status.NICs = append(v.Status.NICs, api.VMNIC{Network: nw.Name, MAC: mac, IP: ip, VLAN: nw.Status.VLAN})
	}
	return nil
}

// link is an interface: its number in the VM, the entry of spec.networks it belongs to, and whether it is
// the first of that entry: only that one gets the entry's fixed addresses.
type link struct {
	n, index int
	first    bool
}

func addresses(tx store.Tx, v *api.VM, nw *api.Network, l link) (ip, mac string, err error) {
	want := api.VMNetwork{}
	if l.first {
		want = v.Spec.Networks[l.n]
	}
	owner := network.Owner{UID: v.UID, VM: v.Tenant + "/" + v.Name}
	if ip, err = network.TakeAddress(tx, nw, want.IP, owner); err != nil {
		return "", "", at(err, v, fmt.Sprintf("spec.networks[%d].ip", l.n))
	}
	if mac, err = network.TakeMAC(tx, want.MAC, l.index, owner); err != nil {
		return "", "", at(err, v, fmt.Sprintf("spec.networks[%d].mac", l.n))
	}
	return ip, mac, nil
}

// at says to which place of the specification a fault belongs.
func at(err error, v *api.VM, path string) error {
	k := fault.KindOf(err)
	if k == fault.Internal {
		return err
	}
	text := fault.Text(err)
	return &fault.Error{Kind: k, Text: fmt.Sprintf("VM %s: %s", v.Name, text), Cause: err, Fields: []fault.Field{{Path: path, Text: text}}}
}
