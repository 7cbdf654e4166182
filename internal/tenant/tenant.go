// Package tenant has the rules of departments: their quota and what is charged against it.
//
// What a tenant's VMs hold is counted in a ledger of its own (object.UsageKey), with one claim per VM
// beside it, written in the same commit as placement and VF claim. A VM is charged from its creation
// until its release was proven, whether it runs or not. Claiming twice for one VM counts once, and
// giving back twice gives back once.
//
// Lowering a quota below what is in use is allowed: nothing that runs is touched, and nothing more fits
// until enough was deleted. Refusing it would force an operator to delete first and lower later, a gap
// in which the tenant can fill up again.
package tenant

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/units"
)

// maxListed bounds how many users of an object a refusal names.
const maxListed = 8

// Create adds a tenant.
func Create(tx store.Tx, o *api.Tenant, by object.Who) error {
	if err := check(o); err != nil {
		return err
	}
	if err := object.Vacant(tx, api.KindTenant, &o.Meta); err != nil {
		return err
	}
	object.Born(&o.Meta, api.KindTenant, by)
	return save(tx, o)
}

// Update changes quota, members, labels or the display name.
func Update(tx store.Tx, old, o *api.Tenant, _ object.Who) error {
	object.Carry(&o.Meta, &old.Meta)
	if err := check(o); err != nil {
		return err
	}
	return save(tx, o)
}

func save(tx store.Tx, o *api.Tenant) error {
	o.Status = api.TenantStatus{}
	saved := *o
	return object.Save(tx, &saved)
}

// Delete removes a tenant that owns nothing any more.
func Delete(tx store.Tx, o *api.Tenant, _ object.Who) error {
	var left []string
	for _, k := range []api.Kind{api.KindVM, api.KindSecurityGroup, api.KindNetwork} {
		prefix := object.Prefix(k, o.Name)
		for e := range tx.Scan(prefix, "") {
			if len(left) == maxListed {
				left = append(left, "and more")
				break
			}
			left = append(left, fmt.Sprintf("%s %s", k, strings.TrimPrefix(e.Key, prefix)))
		}
		if len(left) > maxListed {
			break
		}
	}
	if len(left) > 0 {
		return fault.New(fault.Conflict, "tenant %s still owns %s; delete these first", o.Name, strings.Join(left, ", "))
	}
	for e := range tx.Scan(object.UsageKey(o.Name)+"/", "") {
		return fault.New(fault.Conflict, "tenant %s still has a charge at %s; it goes when the host has proven that what the VM held is free", o.Name, e.Key)
	}
	tx.Delete(object.UsageKey(o.Name))
	object.Remove(tx, api.KindTenant, "", o.Name)
	return nil
}

// Fill derives the quota sheet.
func Fill(tx store.Tx, o *api.Tenant) error {
	u, err := usage(tx, o.Name)
	if err != nil {
		return err
	}
	o.Status.Usage, err = lines(o.Spec.Quota, u, Ask{})
	if err != nil {
		return err
	}
	var over []string
	for _, l := range o.Status.Usage {
		if l.Used > l.Limit {
			over = append(over, fmt.Sprintf("%s %s of %s", l.Resource, amount(l.Used, l.Unit), amount(l.Limit, l.Unit)))
		}
	}
	c := api.Condition{Type: "WithinQuota", Status: "True"}
	if len(over) > 0 {
		c = api.Condition{Type: "WithinQuota", Status: "False", Reason: "QuotaLowered", Message: "holds more than its quota: " + strings.Join(over, ", ") + "; nothing more fits until enough was deleted"}
	}
	if o.Created != nil {
		c.Since = *o.Created
	}
	o.Status.Conditions = object.SetCondition(nil, c)
	return nil
}

func check(o *api.Tenant) error {
	var f fault.Faults
	object.CheckMeta(&f, api.KindTenant, &o.Meta)
	if len(o.Spec.DisplayName) > 200 {
		f.Add("spec.displayName", "%d bytes are too long; at most 200 may be", len(o.Spec.DisplayName))
	}
	checkQuota(&f, o.Spec.Quota)
	seen := map[string]bool{}
	for i, m := range o.Spec.Members {
		path := fmt.Sprintf("spec.members[%d]", i)
		if m.User == "" || len(m.User) > 200 || strings.ContainsFunc(m.User, control) {
			f.Add(path+".user", "%s is no user name", object.Quote(m.User))
		}
		if seen[m.User] {
			f.Add(path+".user", "%s is named twice; a user has one role in a tenant", object.Quote(m.User))
		}
		seen[m.User] = true
		switch m.Role {
		case "tenant-owner", "member", "viewer", "auditor":
		default:
			f.Add(path+".role", "%s is no role in a tenant; use tenant-owner, member, viewer or auditor", object.Quote(m.Role))
		}
	}
	return f.Err(object.Title(api.KindTenant, &o.Meta))
}

func control(r rune) bool { return r < ' ' || r == 0x7f }

func checkQuota(f *fault.Faults, q api.Quota) {
	notNegative := func(path string, n int) {
		if n < 0 {
			f.Add(path, "%d is negative; 0 means none", n)
		}
	}
	notNegative("spec.quota.vms", q.VMs)
	notNegative("spec.quota.vcpus", q.VCPUs)
	notNegative("spec.quota.vfs", q.VFs)
	if q.Memory != "" {
		_, err := units.ParseBytes(q.Memory)
		f.Check("spec.quota.memory", err)
	}
	if q.GuaranteedBandwidth != "" {
		_, err := units.ParseRate(q.GuaranteedBandwidth)
		f.Check("spec.quota.guaranteedBandwidth", err)
	}
	for _, name := range slices.Sorted(maps.Keys(q.VFsPerFabric)) {
		f.Check("spec.quota.vfsPerFabric", object.CheckName(name))
		notNegative("spec.quota.vfsPerFabric."+name, q.VFsPerFabric[name])
	}
}
