package server

import (
	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/sched"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/vm"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// takeVM merges what the host says about one VM.
func (s *Server) takeVM(tx store.Tx, name string, st wire.VMStatus, by object.Who) error {
	before, err := held(tx, name, st.UID)
	if err != nil {
		if st.Absent && fault.Is(err, fault.NotFound) {
			return nil // proven again: the host has not heard yet that it was released
		}
		return err
	}
	if st.Absent {
		return s.takeRelease(tx, name, before, st, by)
	}
	if _, err := vm.Observed(tx, name, st, by.Now); err != nil {
		return err
	}
	after, err := object.Peek[api.VM](tx, api.KindVM, before.Tenant, before.Name)
	if err != nil {
		return err
	}
	return s.progress(tx, after, st)
}

// takeRelease gives back what a VM held, if the rules accept the host's word that it is gone.
func (s *Server) takeRelease(tx store.Tx, name string, before *api.VM, st wire.VMStatus, by object.Who) error {
	if err := vm.Release(tx, name, st, by); err != nil {
		return err
	}
	if tx.Get(object.Key(api.KindVM, before.Tenant, before.Name)) == nil {
		return s.released(tx, before)
	}
	if before.Deleting == nil && st.Generation == before.Status.Generation {
		return fault.New(fault.Conflict, "host %s says that VM %s/%s is gone, but nobody asked for that", name, before.Tenant, before.Name)
	}
	return nil // of a placement that is over
}

// held returns the VM of that identity which holds something of the host.
func held(tx store.Tx, name, uid string) (*api.VM, error) {
	none := fault.New(fault.NotFound, "host %s holds no VM with uid %s", name, clip(uid))
	if !plausible(uid) {
		return nil, none
	}
	e := tx.Get(object.ClaimKey(name, uid))
	if e == nil {
		return nil, none
	}
	claim, err := store.Peek[sched.Claim](e)
	if err != nil {
		return nil, err
	}
	v, err := object.Peek[api.VM](tx, api.KindVM, claim.Tenant, claim.Name)
	if err != nil {
		return nil, err
	}
	if v.UID != uid || v.Status.Host != name {
		return nil, none
	}
	return v, nil
}

// holds reports whether the object is the host itself or a VM placed on it: what an agent may tell of.
func holds(tx store.Tx, name string, about api.Ref) bool {
	switch about.Kind {
	case api.KindHost:
		return about.Name == name && about.Tenant == ""
	case api.KindVM:
		if !plausible(about.Tenant) || !plausible(about.Name) {
			return false
		}
		v, err := object.Peek[api.VM](tx, api.KindVM, about.Tenant, about.Name)
		return err == nil && v.Status.Host == name && (about.UID == "" || about.UID == v.UID)
	default:
		return false
	}
}
