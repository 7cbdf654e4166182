package host

import (
	"fmt"
	"slices"
	"strings"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/nicqos"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/sriov"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// Commission plans how the host's NICs get to what is asked for, by the rules that its agent goes by and
// from the facts that it told last. It changes nothing. What is refused is part of the plan; an error is
// a request that means nothing.
func Commission(tx store.Tx, name string, ask api.CommissionRequest) (*api.CommissionPlan, error) {
	stored, err := object.Peek[api.Host](tx, api.KindHost, "", name)
	if err != nil {
		return nil, err
	}
	inv := stored.Status.Inventory
	if inv == nil {
		return nil, fault.New(fault.Unready, "the agent of host %s has not reported yet, so its PFs are not known; see to it that it has joined", name)
	}
	o := *stored
	o.Spec.PFs = asked(stored, ask)
	plan := &api.CommissionPlan{Host: name, PFs: []api.PFPlan{}, Spec: o.Spec.PFs, Changed: !slices.Equal(o.Spec.PFs, stored.Spec.PFs)}
	var f fault.Faults
	for i, p := range o.Spec.PFs {
		if err := checkPF(tx, &f, fmt.Sprintf("pfs[%d]", i), p); err != nil {
			return nil, err
		}
	}
	if err := f.Err(object.Title(api.KindHost, &o.Meta)); err != nil {
		return nil, err
	}
	ledger, err := load(tx, name)
	if err != nil {
		return nil, err
	}
	if err := keepsPFs(tx, stored, &o, ledger); err != nil {
		if fault.KindOf(err) == fault.Internal {
			return nil, err
		}
		plan.Refused = append(plan.Refused, fault.Text(err))
	}
	for _, want := range o.Spec.PFs {
		p, err := planPF(tx, inv, want)
		if err != nil {
			return nil, err
		}
		plan.PFs = append(plan.PFs, p)
	}
	return plan, nil
}

// asked is the spec with what is asked for in it. PFs that are named anew are named by their keys, which
// survive reboots, other slots and renames.
func asked(o *api.Host, ask api.CommissionRequest) []api.HostPF {
	inv, out := o.Status.Inventory, slices.Clone(o.Spec.PFs)
	at := func(match string) int {
		p := find(inv, match)
		return slices.IndexFunc(out, func(q api.HostPF) bool { return q.Match == match || (p != nil && find(inv, q.Match) == p) })
	}
	for _, want := range ask.PFs {
		i := at(want.Match)
		if p := find(inv, want.Match); p != nil && p.Key != "" {
			want.Match = p.Key
		}
		if i < 0 {
			want.Fabric = firstOf(want.Fabric, ask.Fabric)
			out = append(out, want)
			continue
		}
		want.Fabric = firstOf(want.Fabric, firstOf(ask.Fabric, out[i].Fabric))
		want.AllowManagement = want.AllowManagement || out[i].AllowManagement
		want.AllowBond = want.AllowBond || out[i].AllowBond
		out[i] = want
	}
	for i := range inv.PFs {
		p := &inv.PFs[i]
		if ask.All && p.Key != "" && p.TotalVFs > 0 && !p.Management && p.Bond == "" && at(p.Key) < 0 {
			out = append(out, api.HostPF{Match: p.Key, Fabric: ask.Fabric, VFs: p.TotalVFs})
		}
	}
	return out
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func planPF(tx store.Tx, inv *api.Inventory, want api.HostPF) (api.PFPlan, error) {
	out := api.PFPlan{Match: want.Match, Fabric: want.Fabric, WantVFs: want.VFs}
	p := find(inv, want.Match)
	if p == nil {
		var there []string
		for i := range inv.PFs {
			there = append(there, firstOf(inv.PFs[i].Key, inv.PFs[i].PCI))
		}
		out.Refused = []string{fmt.Sprintf("no PF is %s; the host has %s", object.Quote(want.Match), firstOf(join(there), "none"))}
		return out, nil
	}
	out.Key, out.PCI, out.Netdev, out.NumVFs = p.Key, p.PCI, p.Netdev, p.NumVFs
	if p.Key != "" && want.Match != p.Key {
		out.Notes = append(out.Notes, fmt.Sprintf("the spec names it %s, which may be another port after a reboot; its key stays the same: --pf %s=%d --apply writes that", want.Match, p.Key, want.VFs))
	}
	count(&out, p, want)
	if len(out.Refused) > 0 || want.VFs == 0 {
		return out, nil
	}
	park(&out, p)
	if !slices.ContainsFunc([]bool{p.Caps.MAC, p.Caps.VLAN, p.Caps.SpoofCheck}, func(b bool) bool { return b }) {
		out.Steps = append(out.Steps, fmt.Sprintf("find out on a free VF what driver %s can set: MAC, VLAN, its priority, spoof check, trust, link state, rates", p.Driver))
	} else if lacks := sriov.Lacks(p.Caps); lacks != "" {
		out.Refused = append(out.Refused, fmt.Sprintf("driver %s can't set: %s; VFs of this PF never become ready", p.Driver, lacks))
	}
	q, err := quality(tx, want.Fabric)
	if err != nil || q == nil {
		return out, err
	}
	protect(&out, p, want, q)
	return out, nil
}

// count plans the number of VFs, by the agent's rules.
func count(out *api.PFPlan, p *api.PF, want api.HostPF) {
	pci, err := roce.ParsePCI(p.PCI)
	if err != nil {
		out.Refused = append(out.Refused, fmt.Sprintf("its PCI address can't be read: %s", p.PCI))
		return
	}
	if p.Key == "" {
		out.Refused = append(out.Refused, p.Reason)
		return
	}
	facts := sriov.PF{Key: p.Key, PCI: pci, Netdev: p.Netdev, Driver: p.Driver, Supported: p.TotalVFs > 0, Total: p.TotalVFs, Count: p.NumVFs,
		Autoprobe: true, Up: p.LinkUp, Bond: p.Bond, Management: p.Management}
	busy := sriov.Busy{}
	for _, v := range p.VFs {
		facts.VFs = append(facts.VFs, sriov.VF{Key: sriov.Key{PF: p.Key, Index: v.Index}, Linked: true})
		if v.State != api.VFParked {
			busy[v.Index] = v.State
			switch {
			case v.VM != "":
				busy[v.Index] = "held by VM " + v.VM
			case v.Reason != "":
				busy[v.Index] = v.Reason
			}
		}
	}
	steps, refusal := sriov.Count(facts, wire.PF{VFs: want.VFs, AllowManagement: want.AllowManagement, AllowBond: want.AllowBond}, busy)
	for _, s := range steps {
		text := s.String()
		if _, up := s.(sriov.Up); up {
			if p.NumVFs == want.VFs {
				continue // no carrier is told, not that it is down
			}
			text += "  # if it is down"
		}
		out.Steps = append(out.Steps, text)
	}
	if refusal != nil {
		out.Refused = append(out.Refused, fault.Text(refusal))
	}
}

// park plans what becomes of the VFs.
func park(out *api.PFPlan, p *api.PF) {
	const how = "its parking MAC first, so that its GUID follows; then driver_override vfio-pci and drivers_probe, and all is read back"
	if p.NumVFs != out.WantVFs {
		out.Steps = append(out.Steps, fmt.Sprintf("park VFs 0–%d, each alike: %s", out.WantVFs-1, how))
		return
	}
	for _, v := range p.VFs {
		switch v.State {
		case api.VFScrubbing:
			if v.VM == "" {
				out.Steps = append(out.Steps, fmt.Sprintf("park VF %d (%s): %s", v.Index, v.Reason, how))
			}
		case api.VFForeign, api.VFQuarantined:
			out.Notes = append(out.Notes, fmt.Sprintf("VF %d stays out of the pool, %s: %s", v.Index, v.State, v.Reason))
		}
	}
}

// protect plans the port's settings.
func protect(out *api.PFPlan, p *api.PF, want api.HostPF, q *wire.QoS) {
	if p.QoS == nil {
		out.Notes = append(out.Notes, "the agent does not tell the port's settings (PFC, DSCP)")
		return
	}
	h := nicqos.Facts(p)
	if p.Management && !want.AllowManagement {
		h.Guard = "the port carries the default route or the server session"
	}
	plan := nicqos.Make(nicqos.For(q.Priority, q.DSCP, q.CNPDSCP), p.PCI, h)
	if plan.State != nicqos.OK && (plan.State != nicqos.Drift || !q.Apply) {
		note := fmt.Sprintf("NIC QoS is %s: %s", plan.State, plan.Reason)
		if plan.State == nicqos.Drift {
			note += "; nothing is set, since nicQoS of fabric " + want.Fabric + " is not apply"
		}
		out.Notes = append(out.Notes, note)
		return
	}
	if q.Apply {
		out.Steps = append(out.Steps, nicqos.Lines(plan.Steps)...)
		out.Waits = append(out.Waits, nicqos.Lines(plan.Held)...)
	}
	if len(plan.Lacks) > 0 {
		out.Notes = append(out.Notes, "can't be set on this port: "+strings.Join(plan.Lacks, ", "))
	}
}
