package server

import (
	"context"
	"maps"
	"slices"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
)

// memberRecord is what the index of roles holds of one tenant: user to role.
type memberRecord struct {
	Members map[string]auth.Role `json:"members"`
}

// indexMembers brings the index of roles in line with a tenant's members, in the transaction that changed
// them: a request reads its caller's roles by one key, and a role that was taken is gone with that commit.
func indexMembers(tx store.Tx, tenant string) error {
	want := map[string]auth.Role{}
	if e := tx.Get(object.Key(api.KindTenant, "", tenant)); e != nil {
		t, err := store.Peek[api.Tenant](e)
		if err != nil {
			return err
		}
		for _, m := range t.Spec.Members {
			want[m.User] = auth.Role(m.Role)
		}
	}
	have := map[string]auth.Role{}
	if e := tx.Get(memberKeys + tenant); e != nil {
		r, err := store.Peek[memberRecord](e)
		if err != nil {
			return err
		}
		have = r.Members
	}
	if maps.Equal(want, have) {
		return nil
	}
	for _, user := range changedKeys(have, want) {
		if err := setRole(tx, user, tenant, want[user]); err != nil {
			return err
		}
	}
	if len(want) == 0 {
		tx.Delete(memberKeys + tenant)
		return nil
	}
	return store.Put(tx, memberKeys+tenant, &memberRecord{Members: want})
}

// setRole gives the user the role in the tenant; an empty role takes it away.
func setRole(tx store.Tx, user, tenant string, role auth.Role) error {
	old, err := rolesOf(tx, user)
	if err != nil {
		return err
	}
	roles := maps.Clone(old)
	if roles == nil {
		roles = map[string]auth.Role{}
	}
	if role == "" {
		delete(roles, tenant)
	} else {
		roles[tenant] = role
	}
	if len(roles) == 0 {
		tx.Delete(roleKeys + user)
		return nil
	}
	return store.Put(tx, roleKeys+user, &roleRecord{Tenants: roles})
}

// changedKeys returns the keys whose values differ between a and b, sorted.
func changedKeys(a, b map[string]auth.Role) []string {
	var keys []string
	for k, v := range a {
		if b[k] != v {
			keys = append(keys, k)
		}
	}
	for k := range b {
		if _, both := a[k]; !both {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

// reindex makes the index agree with all tenants, at the start: a restored backup or an older program may
// have left it behind. It writes nothing when it agrees.
func (s *Server) reindex(ctx context.Context) error {
	_, err := s.db.Update(ctx, func(tx store.Tx) error {
		var tenants []string
		for e := range tx.Scan(object.Prefix(api.KindTenant, ""), "") {
			if _, _, name, ok := object.Split(e.Key); ok {
				tenants = append(tenants, name)
			}
		}
		for e := range tx.Scan(memberKeys, "") {
			tenants = append(tenants, e.Key[len(memberKeys):])
		}
		slices.Sort(tenants)
		for _, t := range slices.Compact(tenants) {
			if err := indexMembers(tx, t); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}
