package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/sriov"
	"github.com/verbena-cloud/verbena/internal/wire"
)

const (
	// attempts is how often a VF may fail to get parked before it is quarantined.
	attempts = 3
	// recheck is how long a quarantined VF rests before it is tried again.
	recheck = 10 * time.Minute
)

// pfMemo is what the process remembers of a PF.
type pfMemo struct {
	gate   gate
	reason string            // why it is not as commissioned
	failed map[sriov.Key]int // attempts to park, in a row
}

// gate lets one writer at a PF's VFs at a time, and gives up waiting with the caller.
type gate chan struct{}

func (g gate) enter(ctx context.Context) error {
	select {
	case g <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g gate) leave() { <-g }

func (a *Agent) memo(pf string) *pfMemo {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.pfs[pf]
	if m == nil {
		m = &pfMemo{gate: make(gate, 1), failed: map[sriov.Key]int{}}
		a.pfs[pf] = m
	}
	return m
}

func (a *Agent) setReason(m *pfMemo, reason string) (changed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	changed = m.reason != reason
	m.reason = reason
	return changed
}

// reconcilePF brings a commissioned PF to its number of VFs and parks those that nobody holds.
func (a *Agent) reconcilePF(ctx context.Context, pf string) (time.Duration, error) {
	m := a.memo(pf)
	if err := m.gate.enter(ctx); err != nil {
		return 0, err
	}
	defer m.gate.leave()
	before := a.writes.Load()
	err := a.commission(ctx, pf, m)
	if a.writes.Load() != before { // else host and PF would wake each other for ever over what neither can help
		a.wakeHost()
	}
	reason := ""
	if err != nil {
		reason = text(err)
	}
	if a.setReason(m, reason) {
		a.wakeHost() // what kept it from being read may be over
		a.changed()
		if err != nil {
			a.events.add(a.hostRef(), warning, "PFNotReady", reason)
		}
	}
	return 0, err
}

func (a *Agent) commission(ctx context.Context, pf string, m *pfMemo) error {
	f, err := a.pf(ctx, pf)
	if err != nil {
		return err
	}
	if f == nil {
		return fault.New(fault.NotFound, "PF %s is not on this host any more", pf)
	}
	want := a.commissioned(f.PF)
	if want == nil {
		return nil
	}
	steps, refusal := sriov.Count(f.PF, *want, a.busy(f))
	if len(steps) > 0 { // a refused change of the number may still have the link to set up
		if err := a.apply(ctx, steps); err != nil {
			return errors.Join(err, a.parkAll(ctx, pf, m)) // what there is of VFs is of use
		}
	}
	if refusal != nil && (len(f.VFs) == 0 || f.Unread != "") { // what can't be read must not put VFs into quarantine
		return refusal
	}
	// The port is set up before its gate opens: no VM starts on it before.
	if err := errors.Join(a.parkAll(ctx, pf, m), a.quality(ctx, f, want)); err != nil {
		return errors.Join(refusal, err)
	}
	if refusal != nil {
		return a.retryCount(ctx, pf, *want, m, refusal)
	}
	return nil
}

// retryCount changes the number of VFs after all, if parking removed what was in the way.
func (a *Agent) retryCount(ctx context.Context, pf string, want wire.PF, m *pfMemo, refusal error) error {
	f, err := a.pf(ctx, pf)
	if err != nil || f == nil {
		return errors.Join(refusal, err)
	}
	steps, err := sriov.Count(f.PF, want, a.busy(f))
	if err != nil {
		return err
	}
	if err := a.apply(ctx, steps); err != nil {
		return err
	}
	return a.parkAll(ctx, pf, m)
}

// busy says which VFs of the PF keep its number as it is: all that are not parked, and those that the
// server has promised to a VM whose entry is not written yet.
func (a *Agent) busy(f *function) sriov.Busy {
	out := sriov.Busy{}
	for _, v := range f.VFs {
		if st, reason := a.state(v); st != api.VFParked {
			out[v.Key.Index] = st
			if reason != "" {
				out[v.Key.Index] = reason
			} else if c := a.j.claim(v.Key); c != nil {
				out[v.Key.Index] = "held by VM " + c.Owner.VM()
			}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.desired == nil {
		return out
	}
	for _, vm := range a.desired.VMs {
		for _, v := range vm.VFs {
			if _, ok := out[v.Index]; !ok && v.PF == f.Key && !vm.Absent {
				out[v.Index] = "promised to VM " + vm.Tenant + "/" + vm.Name
			}
		}
	}
	return out
}

// parkAll parks every VF of the PF that nobody holds, then finds out what the PF's driver can do. One
// that fails does not stop its siblings.
func (a *Agent) parkAll(ctx context.Context, pf string, m *pfMemo) error {
	f, err := a.pf(ctx, pf)
	if err != nil || f == nil {
		return err
	}
	var failed []error
	for _, v := range f.VFs {
		if err := a.parkOne(ctx, f, v, m); err != nil {
			failed = append(failed, err)
		}
	}
	if err := a.probe(ctx, f, m); err != nil {
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// parkOne parks a free VF. Its failures are counted: after some the VF is quarantined and no error any more.
func (a *Agent) parkOne(ctx context.Context, f *function, v sriov.VF, m *pfMemo) error {
	if a.j.claim(v.Key) != nil || sriov.Foreign(v) != "" {
		return nil
	}
	q, bad := a.j.quarantined(v.Key)
	if bad && a.d.Now().Sub(q.At) < recheck {
		return nil
	}
	was, _ := sriov.Parked(v)
	err := a.park(ctx, f, v, bad && q.Reset)
	switch {
	case err == nil:
		delete(m.failed, v.Key)
		if bad {
			a.events.add(a.hostRef(), normal, "VFRecovered", fmt.Sprintf("%s is parked again", v.Key))
			return a.j.pardon(v.Key)
		}
		if v.Driver == sriov.Driver && was != "" {
			a.events.add(a.hostRef(), warning, "VFRepaired", fmt.Sprintf("%s was not as a parked VF must be (%s); it was reset and parked again", v.Key, was))
		}
		return nil
	case ctx.Err() != nil || fault.Is(err, fault.Deadline):
		return err
	}
	m.failed[v.Key]++
	if m.failed[v.Key] < attempts && !bad {
		return fmt.Errorf("park %s: %w", v.Key, err)
	}
	delete(m.failed, v.Key)
	return a.condemn(v.Key, text(err), errors.As(err, new(resetError)))
}

func (a *Agent) condemn(k sriov.Key, reason string, reset bool) error {
	if err := a.j.condemn(quarantine{Key: k, Reason: reason, Reset: reset, At: a.d.Now()}); err != nil {
		return err
	}
	a.writes.Add(1)
	a.events.add(a.hostRef(), warning, "VFQuarantined", fmt.Sprintf("%s is out of the pool: %s", k, reason))
	return nil
}

// park carries the plan out and believes only what is read back. reset is for a VF with an unknown past
// that its attributes do not show.
func (a *Agent) park(ctx context.Context, f *function, v sriov.VF, reset bool) error {
	plan := sriov.Park
	if reset {
		plan = sriov.Clean
	}
	steps, err := plan(f.PF, v)
	if err != nil || len(steps) == 0 {
		return err
	}
	if err := a.apply(ctx, steps); err != nil {
		return err
	}
	wrong := func(v sriov.VF) string { missing, _ := sriov.Parked(v); return missing }
	now, err := a.vf(ctx, f, v.Key)
	if err == nil && now != nil {
		if wrong(*now) == "" {
			return nil
		}
		err = a.apply(ctx, sriov.Reapply(f.PF, *now, sriov.Parking(v.Key))) // some drivers forget a VF's attributes with its reset
	}
	if err != nil {
		return err
	}
	return a.proven(ctx, f, v, wrong)
}

// proven observes the VF until wrong has nothing to say. Links of a device that was just bound come
// late, and some drivers take a moment before a MAC reads back.
func (a *Agent) proven(ctx context.Context, f *function, v sriov.VF, wrong func(sriov.VF) string) error {
	missing := ""
	for wait := 10 * time.Millisecond; wait < 2*time.Second; wait *= 3 {
		now, err := a.vf(ctx, f, v.Key)
		switch {
		case err != nil:
			missing = text(err)
		case now == nil:
			return fault.New(fault.Unready, "%s is gone", v.Key)
		default:
			if missing = wrong(*now); missing == "" {
				return nil
			}
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
	return fault.New(fault.Unready, "%s", missing)
}

// vf observes one VF freshly, nil if it is not there. Who has its group open and which domain has it is
// as it was in f.
func (a *Agent) vf(ctx context.Context, f *function, k sriov.Key) (*sriov.VF, error) {
	prob := &problems{}
	now := a.kernel.fn(ctx, f.PCI.String(), prob)
	if now.err != nil {
		return nil, now.err
	}
	ar, err := a.kernel.around(ctx, prob)
	if err != nil {
		return nil, err
	}
	ar.fresh = true
	attr, err := a.kernel.attributes(ctx, &now)
	if err != nil {
		return nil, err
	}
	for _, v := range now.VFs {
		if v.Key != k {
			continue
		}
		v.Attr = attr[k.Index]
		a.kernel.vf(ctx, &v, ar, prob)
		for _, was := range f.VFs {
			if was.Key == k {
				v.Openers, v.Domain = was.Openers, was.Domain
			}
		}
		return &v, nil
	}
	return nil, nil //nolint:nilnil // not there, with evidence: an answer, and no error
}

// pause waits, or ends with the context.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
