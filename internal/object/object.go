// Package object maps API objects to keys of the store and back, so that every layer agrees where an
// object lies.
//
// Layout: /o/KIND/TENANT/NAME for objects (TENANT is "_" for platform-wide kinds), and beside them the
// ledgers that only rules write: /usage/TENANT, /ledger/HOST, /ip/TENANT/NETWORK/ADDRESS, /mac/MAC,
// /vlan/FABRIC/VID, /cidr/FABRIC/TENANT/NETWORK.
package object

import (
	"fmt"
	"iter"
	"strings"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
)

// platform stands in keys where a platform-wide object has no tenant; no tenant may be named so.
const platform = "_"

// Tenanted reports whether objects of the kind belong to a tenant.
func Tenanted(k api.Kind) bool {
	switch k {
	case api.KindNetwork, api.KindSecurityGroup, api.KindVM:
		return true
	default:
		return false
	}
}

// Key returns where the object is stored. tenant is ignored for platform-wide kinds, except events,
// operations and audit records, which are kept by the tenant that they concern.
func Key(k api.Kind, tenant, name string) string {
	if tenant == "" {
		tenant = platform
	}
	return "/o/" + string(k) + "/" + tenant + "/" + name
}

// Prefix returns the prefix of all objects of a kind, or of one tenant's if tenant is not empty.
func Prefix(k api.Kind, tenant string) string {
	if tenant == "" {
		return "/o/" + string(k) + "/"
	}
	return "/o/" + string(k) + "/" + tenant + "/"
}

// Split is the inverse of Key.
func Split(key string) (k api.Kind, tenant, name string, ok bool) {
	part := strings.Split(key, "/")
	if len(part) != 5 || part[0] != "" || part[1] != "o" {
		return "", "", "", false
	}
	if part[3] == platform {
		part[3] = ""
	}
	return api.Kind(part[2]), part[3], part[4], true
}

// UsageKey is where what a tenant holds is kept.
func UsageKey(tenant string) string { return "/usage/" + tenant }

// LedgerKey is where what VMs hold of a host is kept.
func LedgerKey(host string) string { return "/ledger/" + host }

// AddressKey is where the owner of an IP address of a network is kept.
func AddressKey(tenant, network, ip string) string {
	return "/ip/" + tenant + "/" + network + "/" + ip
}

// AddressPrefix covers all addresses of a network.
func AddressPrefix(tenant, network string) string { return "/ip/" + tenant + "/" + network + "/" }

// MACKey is where the owner of a MAC is kept; MACs are unique over all fabrics.
func MACKey(mac string) string { return "/mac/" + mac }

// VLANKey is where the owner of a VLAN of a fabric is kept.
func VLANKey(fabric string, vid int) string { return fmt.Sprintf("/vlan/%s/%04d", fabric, vid) }

// VLANPrefix covers all VLANs of a fabric.
func VLANPrefix(fabric string) string { return "/vlan/" + fabric + "/" }

// CIDRKey is where a network's subnet is kept for the overlap check of its fabric.
func CIDRKey(fabric, tenant, network string) string {
	return "/cidr/" + fabric + "/" + tenant + "/" + network
}

// CIDRPrefix covers all subnets of a fabric.
func CIDRPrefix(fabric string) string { return "/cidr/" + fabric + "/" }

// metaOf gives access to the Meta of any API object.
type metaOf interface{ ObjectMeta() *api.Meta }

// Load returns a copy of an object, its revision filled in, or a NotFound fault that names it.
func Load[T any](tx store.Tx, k api.Kind, tenant, name string) (*T, error) {
	e := tx.Get(Key(k, tenant, name))
	if e == nil {
		return nil, missing(k, tenant, name)
	}
	v, err := store.Get[T](tx, e.Key)
	if err != nil {
		return nil, err
	}
	if m, ok := any(v).(metaOf); ok {
		m.ObjectMeta().Revision = e.Rev
	}
	return v, nil
}

// Peek returns the shared, read-only object (its Revision field is not filled in), or a NotFound fault.
func Peek[T any](tx store.Tx, k api.Kind, tenant, name string) (*T, error) {
	e := tx.Get(Key(k, tenant, name))
	if e == nil {
		return nil, missing(k, tenant, name)
	}
	return store.Peek[T](e)
}

// Save stores the object under its own kind, tenant and name. The object is handed over.
func Save[T any](tx store.Tx, v *T) error {
	m, ok := any(v).(metaOf)
	if !ok {
		return fmt.Errorf("%T is no API object", v)
	}
	meta := m.ObjectMeta()
	meta.Revision = 0 // the entry's revision is the truth; the bytes never hold one
	return store.Put(tx, Key(meta.Kind, meta.Tenant, meta.Name), v)
}

// Remove deletes the object.
func Remove(tx store.Tx, k api.Kind, tenant, name string) { tx.Delete(Key(k, tenant, name)) }

// All yields the shared, read-only objects of a kind, of all tenants if tenant is empty.
func All[T any](tx store.Tx, k api.Kind, tenant string) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		for e := range tx.Scan(Prefix(k, tenant), "") {
			if !yield(store.Peek[T](e)) {
				return
			}
		}
	}
}

func missing(k api.Kind, tenant, name string) error {
	if tenant == "" {
		return fault.New(fault.NotFound, "%s %s does not exist", k, name)
	}
	return fault.New(fault.NotFound, "%s %s does not exist in tenant %s", k, name, tenant)
}
