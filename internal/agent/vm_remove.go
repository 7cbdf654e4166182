package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/sriov"
)

// remove takes back all that the entry covers: domain, VFs, files, and last the entry itself. What it
// says is gone was seen to be gone.
func (a *Agent) remove(ctx context.Context, p *progress, seen *hyper.Seen) (time.Duration, error) {
	p.say(api.PhaseDeleting, "")
	p.done, p.running = nil, ""
	if p.entry == nil {
		if err := a.adopt(ctx, p, seen); err != nil {
			return 0, err
		}
	}
	if p.entry.Stage == sriov.Holding {
		if err := a.stage(p, sriov.Draining); err != nil {
			return 0, err
		}
	}
	p.begin(stepStop)
	wait, err := a.powerless(ctx, p)
	if err != nil || wait > 0 {
		return wait, err
	}
	p.begin(stepRelease)
	if wait, err = a.undefined(ctx, p); err != nil || wait > 0 {
		return wait, err
	}
	if p.entry.Stage != sriov.Scrubs {
		if err := a.stage(p, sriov.Scrubs); err != nil {
			return 0, err
		}
	}
	p.begin(stepScrub)
	for _, h := range p.entry.VFs {
		if err := a.scrub(ctx, p, h); err != nil {
			return 0, err
		}
	}
	if !p.entry.Keep {
		if err := a.d.Disk.Remove(ctx, fileName(p.entry)); err != nil {
			return 0, fmt.Errorf("remove the disk: %w", err)
		}
	}
	return a.finish(p)
}

// stage writes down how far the VM is, before the side effects of it.
func (a *Agent) stage(p *progress, s sriov.Stage) error {
	e := *p.entry
	e.Stage, e.Since = s, a.d.Now()
	if s == sriov.Draining {
		e.Hard = p.want != nil && !p.want.Absent // a rebuild: the guest and its disk are to go anyway
		e.Keep = p.want == nil
	}
	if err := a.j.put(e); err != nil {
		return err
	}
	p.entry = a.j.get(p.uid)
	return nil
}

// finish drops the entry and says what comes next: the proof of absence, or the next life.
func (a *Agent) finish(p *progress) (time.Duration, error) {
	owner := p.entry.Owner
	if err := a.j.drop(p.uid); err != nil {
		return 0, err
	}
	p.end()
	a.events.add(p.ref(), normal, "Released", fmt.Sprintf("generation %d is gone from host %s; its VFs were scrubbed", owner.Generation, a.cfg.Host))
	a.wakeVMs() // one of them may wait for these VFs
	switch {
	case p.want == nil:
		p.entry = nil
	case p.want.Absent:
		p.gone(a)
	default:
		p.say(api.PhasePreparing, "")
		p.entry, p.vfs = nil, nil
		*p.m = vmMemo{status: p.m.status, failures: map[sriov.Key]int{}}
		a.loop.Wake(key{kindVM, p.uid})
	}
	return 0, nil
}

// powerless brings the domain down: a deletion asks the guest first, for the grace period that began
// with the stage; a rebuild does not.
func (a *Agent) powerless(ctx context.Context, p *progress) (time.Duration, error) {
	dom, err := a.domains(ctx, true)
	if err != nil {
		return 0, err
	}
	if !up(dom.byUID[p.uid]) {
		return 0, nil
	}
	left := p.entry.Since.Add(a.cfg.Grace).Sub(a.d.Now())
	if p.entry.Hard || left <= 0 {
		return a.shutdown(ctx, p, true)
	}
	if p.m.asked.IsZero() {
		p.m.asked = a.d.Now()
		return a.shutdown(ctx, p, false)
	}
	return min(time.Second, left), nil
}

// undefined removes the definition and waits until no process has one of the VM's vfio groups open:
// that the hypervisor calls a domain gone does not mean that QEMU has let go.
func (a *Agent) undefined(ctx context.Context, p *progress) (time.Duration, error) {
	dom, err := a.domains(ctx, true)
	if err != nil {
		return 0, err
	}
	if seen := dom.byUID[p.uid]; seen != nil {
		err := a.d.Hyper.Undefine(ctx, p.uid)
		a.hv.changed()
		if err != nil {
			return 0, fmt.Errorf("undefine domain %s: %w", seen.Name, err)
		}
		if dom, err = a.domains(ctx, true); err != nil {
			return 0, err
		}
		if dom.byUID[p.uid] != nil {
			return time.Second, nil
		}
	}
	for _, h := range p.entry.VFs {
		f, err := a.pf(ctx, h.Key.PF)
		if err != nil {
			return 0, err
		}
		if f == nil {
			continue
		}
		for _, v := range f.VFs {
			if v.Key == h.Key && len(v.Openers) > 0 {
				p.message = fmt.Sprintf("%s: process %d still has its vfio group %s open", h.Key, v.Openers[0], v.Group)
				return time.Second, nil
			}
		}
	}
	return 0, nil
}

// scrub brings a VF from its owner back to parked. It is gone or proven parked when there is no error,
// or in quarantine, which is no error of the VM's.
func (a *Agent) scrub(ctx context.Context, p *progress, h hold) error {
	m := a.memo(h.Key.PF)
	if err := m.gate.enter(ctx); err != nil {
		return err
	}
	defer m.gate.leave()
	f, v, err := a.there(ctx, h.Key)
	if err != nil {
		return err
	}
	if v == nil {
		return nil // what does not exist keeps nothing: a new VF starts without attributes
	}
	p.see(h, *v)
	if v.Domain.UID != "" || len(v.Openers) > 0 {
		return fault.New(fault.Unready, "%s is in use by somebody else while it is to be scrubbed: %s", h.Key, sriov.Foreign(*v))
	}
	err = a.park(ctx, f, *v, true)
	switch {
	case err == nil:
		delete(p.m.failures, h.Key)
		return a.j.pardon(h.Key)
	case ctx.Err() != nil || fault.Is(err, fault.Deadline):
		return err
	}
	if p.m.failures[h.Key]++; p.m.failures[h.Key] < attempts {
		return fmt.Errorf("scrub %s: %w", h.Key, err)
	}
	return a.condemn(h.Key, text(err), true)
}

// there observes a VF; nil says with evidence that it does not exist: everything could be read.
func (a *Agent) there(ctx context.Context, k sriov.Key) (*function, *sriov.VF, error) {
	f, err := a.pf(ctx, k.PF)
	if err != nil || f == nil {
		return nil, nil, err
	}
	if f.err != nil {
		return nil, nil, f.err
	}
	i := slices.IndexFunc(f.VFs, func(v sriov.VF) bool { return v.Key == k })
	if i < 0 {
		return f, nil, nil
	}
	return f, &f.VFs[i], nil
}
