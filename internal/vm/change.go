package vm

import (
	"fmt"
	"maps"
	"slices"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/network"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/sched"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/tenant"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// Update changes power, labels, security groups, user data, SSH keys and the image (the last three are
// read when the VM is rebuilt). What the VM was placed by can't change: VFs are never swapped under a guest.
func Update(tx store.Tx, old, o *api.VM, _ object.Who) error {
	object.Carry(&o.Meta, &old.Meta)
	title := object.Title(api.KindVM, &o.Meta)
	stored, err := object.Peek[api.VM](tx, api.KindVM, old.Tenant, old.Name)
	if err != nil {
		return err
	}
	if stored.Deleting != nil {
		return fault.New(fault.Conflict, "%s is being deleted and can't change any more", title)
	}
	var f fault.Faults
	object.CheckLabels(&f, "labels", o.Labels)
	a, b := o.Spec, stored.Spec
	const other = "create a new VM with it and delete this one"
	if a.Flavor != b.Flavor {
		f.Add("spec.flavor", "the flavor of a VM can't change (%s → %s): its vCPUs, memory and VFs are claimed; %s", object.Quote(b.Flavor), object.Quote(a.Flavor), other)
	}
	if !slices.Equal(a.Networks, b.Networks) {
		f.Add("spec.networks", "the networks of a VM can't change: its VFs are programmed for them; %s", other)
	}
	if a.Host != b.Host {
		f.Add("spec.host", "a VM with or without a pin stays where it is: RDMA VMs can't be moved live; %s", other)
	}
	if !maps.Equal(a.HostLabels, b.HostLabels) {
		f.Add("spec.hostLabels", "they were met when the VM was placed and can't change; %s", other)
	}
	if len(f.Fields()) > 0 {
		return f.Err(title)
	}
	if _, err := resolve(tx, &f, o); err != nil {
		return err
	}
	if err := f.Err(title); err != nil {
		return err
	}
	o.Status = stored.Status
	saved := *o
	return object.Save(tx, &saved)
}

// Rebuild makes the VM anew from its image, in place: the same host, cells, VFs, MACs and addresses under
// the next generation. It needs no free capacity, and its flavor can't have changed meanwhile.
func Rebuild(tx store.Tx, tenantName, name string, by object.Who) (*api.VM, error) {
	stored, err := object.Peek[api.VM](tx, api.KindVM, tenantName, name)
	if err != nil {
		return nil, err
	}
	if stored.Deleting != nil {
		return nil, fault.New(fault.Conflict, "VM %s is being deleted and can't be rebuilt", name)
	}
	c, err := claimOf(tx, stored.Status.Host, stored.UID)
	if err != nil {
		return nil, err
	}
	if c == nil {
		return nil, fmt.Errorf("rebuild VM %s/%s: it has no claim on host %s", tenantName, name, stored.Status.Host)
	}
	v := *stored
	next := *c
	v.Status.Generation++
	next.Generation = v.Status.Generation
	v.Status.Phase, v.Status.Message = api.PhaseScheduled, "to be rebuilt; waiting for the host's agent"
	v.Status.VFs = slices.Clone(v.Status.VFs)
	for i := range v.Status.VFs {
		v.Status.VFs[i].Generation, v.Status.VFs[i].State = v.Status.Generation, ""
	}
	v.Status.Conditions = waiting(v.Status.Conditions, &v, by.Now)
	if err := store.Put(tx, object.ClaimKey(v.Status.Host, v.UID), &next); err != nil {
		return nil, err
	}
	out := v
	return &out, object.Save(tx, &v)
}

// Delete asks for the VM to go. It stays, with all that it holds, until its host has proven that nothing
// of it is left. Asking again changes nothing.
func Delete(tx store.Tx, o *api.VM, by object.Who) error {
	stored, err := object.Peek[api.VM](tx, api.KindVM, o.Tenant, o.Name)
	if err != nil {
		return err
	}
	if stored.Deleting != nil {
		return nil
	}
	v := *stored
	now := by.Now
	v.Deleting = &now
	v.Status.Phase, v.Status.Message = api.PhaseDeleting, "waiting for the host to prove that its VFs are clean"
	v.Status.Conditions = object.SetCondition(v.Status.Conditions, api.Condition{Type: CondReady, Status: "False", Reason: "Deleting", Message: "deletion was asked for", Since: now})
	*o = v
	return object.Save(tx, &v)
}

// Release gives everything that the VM holds back and removes its record. It does so only for a VM that is
// to be deleted, on the Absent evidence of the host that holds it, for its very UID and generation.
// Anything else (no evidence, another host, a stale generation, released already) changes nothing.
func Release(tx store.Tx, host string, st wire.VMStatus, _ object.Who) error {
	c, err := claimOf(tx, host, st.UID)
	if err != nil || c == nil || !st.Absent || c.Generation != st.Generation {
		return err
	}
	v, err := object.Peek[api.VM](tx, api.KindVM, c.Tenant, c.Name)
	if err != nil {
		return err
	}
	if v.UID != st.UID || v.Deleting == nil {
		return nil
	}
	if err := giveLedger(tx, host, c, st); err != nil {
		return err
	}
	give := func(nw, ip, mac string) error {
		if err := network.GiveAddress(tx, v.Tenant, nw, ip, v.UID); err != nil {
			return err
		}
		return network.GiveMAC(tx, mac, v.UID)
	}
	for _, f := range v.Status.VFs {
		if err := give(f.Network, f.IP, f.MAC); err != nil {
			return err
		}
	}
	for _, n := range v.Status.NICs {
		if err := give(n.Network, n.IP, n.MAC); err != nil {
			return err
		}
	}
	if err := tenant.Refund(tx, v.Tenant, v.UID); err != nil {
		return err
	}
	tx.Delete(object.ClaimKey(host, st.UID))
	object.Remove(tx, api.KindVM, v.Tenant, v.Name)
	return nil
}

// giveLedger takes the claim out of the host's sums. What the evidence says of a VF decides whether it may
// be given away again at once; what it does not mention is as the last inventory had it.
func giveLedger(tx store.Tx, host string, c *sched.Claim, st wire.VMStatus) error {
	e := tx.Get(object.LedgerKey(host))
	if e == nil {
		return fmt.Errorf("release VM %s/%s: host %s has no ledger", c.Tenant, c.Name, host)
	}
	shared, err := store.Peek[sched.Host](e)
	if err != nil {
		return err
	}
	ledger := shared.Clone()
	ledger.Give(c)
	for _, f := range st.VFs {
		v := sched.VFClaim{PF: f.PF, Index: f.Index}
		switch {
		case !slices.Contains(c.VFs, v):
		case f.State == api.VFParked:
			ledger.Park(v)
		default:
			ledger.Unpark(v)
		}
	}
	return store.Put(tx, object.LedgerKey(host), ledger)
}
