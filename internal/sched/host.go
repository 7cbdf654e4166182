package sched

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/verbena-cloud/verbena/internal/units"
)

// Host is a host's ledger entry: what it has, as last read and commissioned, and what VMs hold of it. It is
// small, so that hundreds are compared per decision, and holds sums and sets, not owners: those are in the
// claims beside it. It is read shared: Clone before Take or Give.
type Host struct {
	Name      string            `json:"n"`
	Cordoned  bool              `json:"cordoned,omitempty"`
	Simulated bool              `json:"simulated,omitempty"`
	Bridge    bool              `json:"bridge,omitempty"` // there is one for virtio NICs
	Labels    map[string]string `json:"labels,omitempty"`
	Cells     []Cell            `json:"cells,omitempty"`
	PFs       []PF              `json:"pfs,omitempty"`
	VMs       int               `json:"vms,omitempty"`

	settled bool // what PFs count of their sets is filled in, and peak
	peak    peak
}

// Page sizes by which memory is kept apart.
const (
	Normal = iota
	Page2M
	Page1G
	pages
)

// PageClass returns the pool that pages of a size come from.
func PageClass(page units.Bytes) int {
	switch page {
	case 2 * units.MiB:
		return Page2M
	case units.GiB:
		return Page1G
	default:
		return Normal
	}
}

// Amount is a pool of memory in bytes.
type Amount struct {
	Total int64 `json:"t,omitempty"`
	Used  int64 `json:"u,omitempty"`
}

// Cell is a host NUMA node, less what is reserved for the host itself.
type Cell struct {
	ID     int           `json:"id"`
	VCPUs  int           `json:"c,omitempty"`
	Used   int           `json:"u,omitempty"`
	Memory [pages]Amount `json:"m"`
}

func (c *Cell) freeVCPUs() int { return c.VCPUs - c.Used }

func (c *Cell) freeMemory(class int) int64 { return c.Memory[class].Total - c.Memory[class].Used }

// Caps is what a PF can set on a VF, of what only some requests need. What every VF needs (MAC, VLAN, spoof
// check) decides over PF.Ready already.
type Caps uint8

// The capabilities.
const (
	CapQoS Caps = 1 << iota
	CapMinRate
	CapMaxRate
)

// PF is a commissioned physical function, or one of which VMs still hold VFs.
type PF struct {
	Key     string `json:"k"`
	Fabric  string `json:"f,omitempty"`
	Card    string `json:"card,omitempty"`
	Port    int    `json:"port,omitempty"`
	Cell    int    `json:"cell"` // NUMA node; -1 = unknown
	Speed   int64  `json:"speed,omitempty"`
	Caps    Caps   `json:"caps,omitempty"`
	Lag     bool   `json:"lag,omitempty"` // switchdev mode and member of a bond
	Ready   bool   `json:"ready,omitempty"`
	Reason  string `json:"reason,omitempty"` // why not ready
	VFs     int    `json:"vfs,omitempty"`    // that exist
	Parked  Bits   `json:"parked,omitzero"`  // read back as parked: the only allocatable state
	Claimed Bits   `json:"claimed,omitzero"` // held by VMs, whatever state they are in
	Min     int64  `json:"min,omitempty"`    // sum of the minimum rates of claimed VFs, bit/s

	count counts
	on    int // index into the host's cells, -1 = on none
}

// counts are the sizes of a PF's sets. Every decision asks for them, of every PF of every host, while they
// change only with a claim or an inventory.
type counts struct{ free, working, held int }

// Free returns how many VFs may be given away.
func (p *PF) Free() int { return p.tally().free }

func (p *PF) tally() counts {
	free, working := p.Parked.without(&p.Claimed), p.Parked.with(&p.Claimed)
	return counts{free.Count(), working.Count(), p.Claimed.Count()}
}

// Settle counts once what decisions ask for. Whoever makes a host calls it last; a host that was not
// settled decides the same, only slower. Take, Give, Park and Unpark keep it so.
func (h *Host) Settle() {
	for i := range h.PFs {
		p := &h.PFs[i]
		p.count, p.on = p.tally(), h.index(p.Cell)
	}
	h.peak = h.summit()
	h.settled = true
}

// resettle keeps a settled host so after a change.
func (h *Host) resettle() {
	if h.settled {
		h.Settle()
	}
}

// UnmarshalJSON reads a ledger entry and settles it.
func (h *Host) UnmarshalJSON(b []byte) error {
	type plain Host
	if err := json.Unmarshal(b, (*plain)(h)); err != nil {
		return err
	}
	h.Settle()
	return nil
}

// usable reports whether the PF can serve the request at all, and if not, why.
func (p *PF) usable(r *Request, qos bool) (ok bool, why string) {
	switch {
	case !p.Ready && p.Reason == "":
		return false, "not ready"
	case !p.Ready:
		return false, p.Reason
	case qos && p.Caps&CapQoS == 0:
		return false, "its driver can't set a VLAN priority"
	case r.MinRate > 0 && p.Caps&CapMinRate == 0:
		return false, "its driver can't guarantee a minimum rate"
	case r.MaxRate > 0 && p.Caps&CapMaxRate == 0:
		return false, "its driver can't limit the rate"
	}
	return true, ""
}

// Claim is what one VM holds of a host, with owner and generation.
type Claim struct {
	UID        string      `json:"uid"`
	Tenant     string      `json:"tenant"`
	Name       string      `json:"name"`
	Generation int64       `json:"generation"`
	Cells      []CellClaim `json:"cells"`
	VFs        []VFClaim   `json:"vfs,omitempty"`
	MinRate    int64       `json:"minRate,omitempty"` // of each VF
}

// CellClaim is what a guest cell holds of a host node.
type CellClaim struct {
	Node   int   `json:"node"`
	VCPUs  int   `json:"vcpus"`
	Memory int64 `json:"memory"`
	Page   int   `json:"page,omitempty"` // page class
}

// VFClaim is a VF that the VM holds.
type VFClaim struct {
	PF    string `json:"pf"`
	Index int    `json:"index"`
}

// Clone returns a copy that may be changed.
func (h *Host) Clone() *Host {
	c := *h
	c.Cells = slices.Clone(h.Cells)
	c.PFs = slices.Clone(h.PFs)
	return &c
}

// Take books the claim. It refuses what is not free: that would be a fault of the caller, who must have
// decided on this very state.
func (h *Host) Take(c *Claim) error {
	for _, v := range c.VFs {
		p := h.pf(v.PF)
		if p == nil || p.Claimed.Has(v.Index) || !p.Parked.Has(v.Index) {
			return fmt.Errorf("claim VF %d of %s on host %s for VM %s/%s: it is not free", v.Index, v.PF, h.Name, c.Tenant, c.Name)
		}
		p.Claimed.Set(v.Index)
		p.Min += c.MinRate
	}
	for _, cc := range c.Cells {
		cell := h.cell(cc.Node)
		if cell == nil || cell.freeVCPUs() < cc.VCPUs || cell.freeMemory(cc.Page) < cc.Memory {
			return fmt.Errorf("claim %d vCPUs and %s of node %d on host %s for VM %s/%s: they are not free", cc.VCPUs, units.Bytes(cc.Memory), cc.Node, h.Name, c.Tenant, c.Name)
		}
		cell.Used += cc.VCPUs
		cell.Memory[cc.Page].Used += cc.Memory
	}
	h.VMs++
	h.resettle()
	return nil
}

// Give takes back what the claim holds.
func (h *Host) Give(c *Claim) {
	for _, v := range c.VFs {
		if p := h.pf(v.PF); p != nil && p.Claimed.Has(v.Index) {
			p.Claimed.Clear(v.Index)
			p.Min -= c.MinRate
		}
	}
	for _, cc := range c.Cells {
		if cell := h.cell(cc.Node); cell != nil {
			cell.Used -= cc.VCPUs
			cell.Memory[cc.Page].Used -= cc.Memory
		}
	}
	h.VMs--
	h.resettle()
}

func (h *Host) pf(key string) *PF {
	for i := range h.PFs {
		if h.PFs[i].Key == key {
			return &h.PFs[i]
		}
	}
	return nil
}

func (h *Host) cell(id int) *Cell {
	for i := range h.Cells {
		if h.Cells[i].ID == id {
			return &h.Cells[i]
		}
	}
	return nil
}

// Park notes that a VF was read back as parked, so that it may be given away once nobody holds it.
func (h *Host) Park(v VFClaim) {
	if p := h.pf(v.PF); p != nil {
		p.Parked.Set(v.Index)
		h.resettle()
	}
}

// Unpark notes that a VF was read back in another state.
func (h *Host) Unpark(v VFClaim) {
	if p := h.pf(v.PF); p != nil {
		p.Parked.Clear(v.Index)
		h.resettle()
	}
}
