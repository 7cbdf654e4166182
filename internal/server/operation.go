package server

import (
	"slices"
	"strconv"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// Actions of operations.
const (
	actionCreate  = "create"
	actionStart   = "start"
	actionStop    = "stop"
	actionRebuild = "rebuild"
	actionDelete  = "delete"
)

// States of operations.
const (
	opRunning   = "running"
	opDone      = "done"
	opFailed    = "failed"
	opCancelled = "cancelled"
)

// operations of a VM are named by its UID first, so that they are found by a scan.
func operationPrefix(vm *api.VM) string {
	return object.Prefix(api.KindOperation, vm.Tenant) + vm.UID + "-"
}

// begin starts an operation on a VM. What ran before is over: nobody waits for a start any more once the
// VM is to be deleted.
func (s *Server) begin(tx store.Tx, vm *api.VM, action, by string) error {
	now := s.now().UTC()
	if action != actionCreate { // a new VM has none
		if err := s.endAll(tx, vm, opCancelled, "superseded by "+action, now); err != nil {
			return err
		}
	}
	about := refOf(&vm.Meta)
	name := vm.UID + "-" + action + "-" + strconv.FormatInt(now.UnixMilli(), 36)
	return object.Save(tx, &api.Operation{
		Meta:   api.Meta{Kind: api.KindOperation, Name: name, Tenant: vm.Tenant, Labels: aboutLabels(about), UID: name, Created: &now},
		Object: about, Action: action, State: opRunning, By: by,
	})
}

// running yields copies of the VM's operations that have not ended.
func running(tx store.Tx, vm *api.VM) ([]*api.Operation, error) {
	var all []*api.Operation
	for e := range tx.Scan(operationPrefix(vm), "") {
		shared, err := store.Peek[api.Operation](e)
		if err != nil {
			return nil, err
		}
		if shared.State == opRunning {
			o := *shared
			all = append(all, &o)
		}
	}
	return all, nil
}

func (s *Server) endAll(tx store.Tx, vm *api.VM, state, message string, now time.Time) error {
	all, err := running(tx, vm)
	if err != nil {
		return err
	}
	for _, o := range all {
		end(o, state, message, now)
		if err := object.Save(tx, o); err != nil {
			return err
		}
	}
	return nil
}

func end(o *api.Operation, state, message string, now time.Time) {
	o.State, o.Message, o.Ended = state, message, &now
	if state == opDone {
		o.Progress = 100
	}
}

// progress carries what an agent reports about a VM into its running operation, and tells of the end. vm
// is the VM with the report merged in. It writes only what changed.
func (s *Server) progress(tx store.Tx, vm *api.VM, st wire.VMStatus) error {
	if st.Generation != vm.Status.Generation {
		return nil // of a placement that is over
	}
	all, err := running(tx, vm)
	if err != nil {
		return err
	}
	for _, o := range all {
		before := *o
		advance(o, st.Steps)
		if state, reason := outcome(o.Action, vm); state != "" {
			end(o, state, vm.Status.Message, s.now().UTC())
			if err := s.event(tx, refOf(&vm.Meta), eventType(state), reason, opMessage(o, vm)); err != nil {
				return err
			}
		}
		if o.State == before.State && o.Progress == before.Progress && slices.Equal(o.Steps, before.Steps) {
			continue
		}
		if err := object.Save(tx, o); err != nil {
			return err
		}
	}
	return nil
}

// advance takes over the agent's steps. The last tenth is for the proof that all is as it should be.
func advance(o *api.Operation, steps []api.OpStep) {
	if len(steps) == 0 {
		return
	}
	o.Steps = slices.Clone(steps)
	done := 0
	for _, st := range steps {
		if st.State == opDone {
			done++
		}
	}
	o.Progress = max(o.Progress, done*90/len(steps)) // agents name steps as they come; progress never falls
}

// outcome says whether an action has ended in the VM's state, and by which word events call it.
func outcome(action string, vm *api.VM) (state, reason string) {
	phase := vm.Status.Phase
	switch {
	case phase == api.PhaseFailed:
		return opFailed, "Failed"
	case action == actionDelete:
		return "", "" // ends with the release
	case action == actionStop:
		if phase == api.PhaseStopped {
			return opDone, "Stopped"
		}
	case phase == api.PhaseReady:
		return opDone, "Ready"
	case phase == api.PhaseStopped && vm.Spec.Power == "off":
		return opDone, "Stopped" // created or rebuilt to be off
	}
	return "", ""
}

func eventType(state string) string {
	if state == opFailed {
		return eventWarning
	}
	return eventNormal
}

func opMessage(o *api.Operation, vm *api.VM) string {
	if o.State == opFailed {
		return o.Action + " failed on host " + vm.Status.Host + ": " + vm.Status.Message
	}
	return o.Action + " done on host " + vm.Status.Host
}

// released ends the delete of a VM whose VFs, addresses and room were given back in this transaction. vm
// is the VM as it was.
func (s *Server) released(tx store.Tx, vm *api.VM) error {
	if err := s.endAll(tx, vm, opDone, "everything it held is free", s.now().UTC()); err != nil {
		return err
	}
	message := "deleted; host " + vm.Status.Host + " proved that everything it held is free"
	if n := len(vm.Status.VFs); n > 0 {
		message = "deleted; host " + vm.Status.Host + " scrubbed and parked its " + strconv.Itoa(n) + " VFs"
	}
	return s.event(tx, refOf(&vm.Meta), eventNormal, "Freed", message)
}
