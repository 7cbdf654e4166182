package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/sriov"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// ensure brings a VM to what is wanted of it: reserved, programmed, verified, defined, powered.
func (a *Agent) ensure(ctx context.Context, p *progress, seen *hyper.Seen) (time.Duration, error) {
	p.say(api.PhasePreparing, "")
	p.begin(stepReserve)
	if p.entry == nil {
		if wait, err := a.reserve(ctx, p, seen); err != nil || wait > 0 {
			return wait, err
		}
	}
	if up(seen) {
		return a.attend(ctx, p, seen)
	}
	p.begin(stepProgram)
	for _, h := range p.entry.VFs {
		if err := a.program(ctx, p, h); err != nil {
			return 0, err
		}
	}
	p.begin(stepVerify)
	p.begin(stepDisk)
	disk, seed, err := a.files(ctx, p)
	if err != nil {
		return 0, err
	}
	p.begin(stepDefine)
	if err := a.define(ctx, p, seen, disk, seed); err != nil {
		return 0, err
	}
	if p.want.Power != "on" {
		p.end()
		p.say(api.PhaseStopped, "")
		p.m.restarts = 0
		return 0, nil
	}
	return a.start(ctx, p, seen)
}

// reserve writes the VM down before anything is done for it. A domain from an earlier life is taken
// over first, so that it is taken back in order.
func (a *Agent) reserve(ctx context.Context, p *progress, seen *hyper.Seen) (time.Duration, error) {
	w := p.want
	if seen != nil {
		if (seen.Owner == hyper.Owner{}) {
			return 0, fault.New(fault.Conflict, "domain %s has the UID of VM %s/%s but is not Verbena's; it is left alone", seen.Name, w.Tenant, w.Name)
		}
		if seen.Owner.Generation < w.Generation {
			if err := a.adopt(ctx, p, seen); err != nil {
				return 0, err
			}
			return a.remove(ctx, p, seen)
		}
	}
	e := entry{Owner: ownerOf(w), Stage: sriov.Holding, Since: a.d.Now()}
	for _, v := range w.VFs {
		h, err := holdOf(v)
		if err != nil {
			return 0, err
		}
		e.VFs = append(e.VFs, h)
	}
	if err := a.reservable(ctx, e); err != nil {
		return 0, err
	}
	e.Pins = a.pins(ctx, w)
	if err := a.j.put(e); err != nil {
		return 0, err
	}
	p.entry = a.j.get(w.UID)
	return 0, nil
}

// holdOf reads how a VF must be programmed.
func holdOf(v wire.VF) (hold, error) {
	mac, err := roce.ParseMAC(v.MAC)
	if err != nil || !mac.Unicast() {
		return hold{}, fault.New(fault.Invalid, "VF %d of %s is to have the unusable MAC %.40q", v.Index, v.PF, v.MAC)
	}
	if v.VLAN < 0 || v.VLAN > roce.MaxVLAN || v.QoS < 0 || v.QoS > roce.MaxPriority {
		return hold{}, fault.New(fault.Invalid, "VF %d of %s is to have VLAN %d with priority %d", v.Index, v.PF, v.VLAN, v.QoS)
	}
	return hold{Key: sriov.Key{PF: v.PF, Index: v.Index}, Want: sriov.Attrs{MAC: mac, VLAN: v.VLAN, QoS: v.QoS,
		SpoofCheck: v.SpoofCheck, MinRate: v.MinRate, MaxRate: v.MaxRate}}, nil
}

// reservable refuses VFs that this VM can't have now: the agent may veto, never choose others.
func (a *Agent) reservable(ctx context.Context, e entry) error {
	for i, h := range e.VFs {
		if slices.ContainsFunc(e.VFs[:i], func(o hold) bool { return o.Key == h.Key || o.Want.MAC == h.Want.MAC }) {
			return fault.New(fault.Invalid, "the VM is to have %s, or its MAC, twice", h.Key)
		}
		f, v, err := a.find(ctx, h.Key)
		if err != nil {
			return err
		}
		if q, ok := a.j.quarantined(h.Key); ok {
			return fault.New(fault.Unready, "%s is quarantined: %s", h.Key, q.Reason)
		}
		if c := a.j.claim(h.Key); c != nil && c.Owner.UID != e.Owner.UID {
			return fault.New(fault.Unready, "%s is still held by VM %s, generation %d", h.Key, c.Owner.VM(), c.Owner.Generation)
		}
		mine := v.Domain.UID == e.Owner.UID && v.Domain.Ours
		if foreign := sriov.Foreign(*v); foreign != "" && !mine {
			return fault.New(fault.Unready, "%s is in use: %s", h.Key, foreign)
		}
		if caps, known := a.capabilities(f); known {
			if lack := sriov.Able(caps, h.Want); lack != "" {
				return fault.New(fault.Unready, "PF %s: %s", h.Key.PF, lack)
			}
		}
		if missing, ok := sriov.Parked(*v); !ok && !mine {
			return fault.New(fault.Unready, "%s is not parked yet: %s", h.Key, missing)
		}
	}
	return nil
}

// find observes a VF with its PF.
func (a *Agent) find(ctx context.Context, k sriov.Key) (*function, *sriov.VF, error) {
	f, err := a.pf(ctx, k.PF)
	if err != nil {
		return nil, nil, err
	}
	return f.pick(k)
}

// pick returns the PF and its VF, or says why there is none.
func (f *function) pick(k sriov.Key) (*function, *sriov.VF, error) {
	if f == nil {
		return nil, nil, fault.New(fault.Unready, "PF %s is not on this host", k.PF)
	}
	if f.err != nil {
		return nil, nil, fault.New(fault.Unready, "PF %s can't be read: %s", k.PF, f.Unread)
	}
	i := slices.IndexFunc(f.VFs, func(v sriov.VF) bool { return v.Key == k })
	if i < 0 {
		return nil, nil, fault.New(fault.Unready, "%s does not exist now (the PF has %d VFs)", k, f.Count)
	}
	return f, &f.VFs[i], nil
}

// adopt writes down what a domain of ours holds that no entry covers, as a life that is to end.
func (a *Agent) adopt(ctx context.Context, p *progress, seen *hyper.Seen) error {
	e := entry{Owner: sriov.Owner{UID: p.uid, Tenant: seen.Owner.Tenant, Name: seen.Owner.VM, Generation: seen.Owner.Generation},
		Stage: sriov.Draining, Since: a.d.Now(), Hard: p.want == nil || !p.want.Absent}
	list, err := a.kernel.functions(ctx, &problems{})
	if err != nil {
		return err
	}
	for _, bdf := range list {
		f := a.kernel.fn(ctx, bdf, &problems{})
		if f.err != nil {
			return fmt.Errorf("find the VFs of domain %s: %w", seen.Name, f.err)
		}
		for _, v := range f.VFs {
			i := slices.IndexFunc(seen.VFs, func(s hyper.VF) bool { return s.Host == v.PCI })
			if i < 0 || a.j.claim(v.Key) != nil {
				continue
			}
			s := seen.VFs[i]
			e.VFs = append(e.VFs, hold{Key: v.Key, Want: sriov.Attrs{MAC: s.MAC, VLAN: s.VLAN, QoS: s.QoS, SpoofCheck: true}})
		}
	}
	if err := a.j.put(e); err != nil {
		return err
	}
	p.entry = a.j.get(p.uid)
	return nil
}

// pins chooses host CPUs for the VM's vCPUs, away from those of other VMs if there are enough.
func (a *Agent) pins(ctx context.Context, w *wire.VM) [][]cpus {
	taken := map[int]bool{}
	for _, e := range a.j.all() {
		for _, cell := range e.Pins {
			for _, c := range cell {
				if list, err := parseCPUs(c); err == nil && len(list) == 1 {
					taken[list[0]] = true
				}
			}
		}
	}
	byID := map[int][]int{}
	for _, c := range cells(ctx, a.d.Tree, &problems{}) {
		list, err := parseCPUs(c.CPUs)
		if err == nil {
			byID[c.ID] = list
		}
	}
	out := make([][]cpus, len(w.Cells))
	for i, c := range w.Cells {
		out[i] = pin(c.VCPUs, byID[c.Host], taken)
		for _, one := range out[i] {
			if list, err := parseCPUs(one); err == nil && len(list) == 1 {
				taken[list[0]] = true
			}
		}
	}
	return out
}

// program brings a VF to what its owner needs and reads it back; no other VF may have its address.
func (a *Agent) program(ctx context.Context, p *progress, h hold) error {
	m := a.memo(h.Key.PF)
	if err := m.gate.enter(ctx); err != nil {
		return err
	}
	defer m.gate.leave()
	f, v, err := a.find(ctx, h.Key)
	if err != nil {
		return err
	}
	p.see(h, *v)
	if v.Domain.UID != "" && v.Domain.UID != p.uid {
		return fault.New(fault.Unready, "%s is in use by domain %s", h.Key, v.Domain.Name)
	}
	if len(v.Openers) > 0 {
		return fault.New(fault.Unready, "%s is in use: process %d has its vfio group %s open", h.Key, v.Openers[0], v.Group)
	}
	c := p.entry.claim(h)
	if sriov.Ready(*v, c) == "" {
		return nil
	}
	if err := a.unique(ctx, h); err != nil {
		return err
	}
	steps, err := sriov.Program(f.PF, *v, h.Want)
	if err != nil {
		return err
	}
	if err := a.apply(ctx, steps); err != nil {
		if refused(err) {
			return fault.Wrap(err, fault.Unready, "the driver of PF %s refuses what the VM needs", h.Key.PF)
		}
		return err
	}
	return a.proven(ctx, f, *v, func(v sriov.VF) string {
		p.see(h, v)
		return sriov.Ready(v, c)
	})
}

// unique looks for the MAC on every other VF of the host: two on one NIC take each other's frames.
func (a *Agent) unique(ctx context.Context, h hold) error {
	prob := &problems{}
	list, err := a.kernel.functions(ctx, prob)
	if err != nil {
		return err
	}
	for _, bdf := range list {
		f := a.kernel.fn(ctx, bdf, prob)
		if !f.Supported || f.Count == 0 {
			continue
		}
		attr, err := a.kernel.attributes(ctx, &f)
		if err != nil {
			return err
		}
		for i, v := range attr {
			if v.MAC == h.Want.MAC && (sriov.Key{PF: f.Key, Index: i}) != h.Key {
				return fault.New(fault.Unready, "%s also has the MAC %s; it must be parked first", sriov.Key{PF: f.Key, Index: i}, v.MAC)
			}
		}
	}
	return nil
}

// attend looks after a VM that runs: what somebody changed on its VFs by hand is set back, since a
// tenant on the wrong VLAN is worse than a short interruption; nothing is unbound or reset.
func (a *Agent) attend(ctx context.Context, p *progress, seen *hyper.Seen) (time.Duration, error) {
	p.done = []string{stepReserve, stepProgram, stepVerify, stepDisk, stepDefine, stepStart}
	p.running = ""
	for _, h := range p.entry.VFs {
		if err := a.reapply(ctx, p, h); err != nil {
			return 0, err
		}
	}
	if p.want.Power != "on" {
		return a.stop(ctx, p)
	}
	if p.m.ran.IsZero() {
		p.m.ran = a.d.Now()
	} else if a.d.Now().Sub(p.m.ran) >= quiet {
		p.m.restarts = 0
	}
	p.say(api.PhaseReady, "")
	switch seen.State {
	case hyper.Paused:
		p.say(api.PhaseReady, "the domain is paused; somebody did that at the hypervisor")
	case hyper.Dying:
		p.say(api.PhaseStopping, "the guest is shutting down")
		return time.Second, nil
	}
	for _, v := range p.vfs {
		if v.State != api.VFAttached {
			p.say(api.PhaseFailed, fmt.Sprintf("VF %d of %s is %s: %s", v.Index, v.PF, v.State, v.Reason))
			return time.Minute, nil
		}
	}
	return 0, nil
}

func (a *Agent) reapply(ctx context.Context, p *progress, h hold) error {
	f, err := a.glance(ctx, h.Key.PF)
	if err != nil {
		return err
	}
	f, v, err := f.pick(h.Key)
	if err != nil {
		p.see(h, sriov.VF{Key: h.Key, Unread: text(err)})
		if fault.Is(err, fault.Unready) {
			return nil // reported with the VF; the guest keeps what it has
		}
		return err
	}
	p.see(h, *v)
	if v.Attr == nil {
		return nil
	}
	diff := sriov.Diff(*v.Attr, h.Want)
	if len(diff) == 0 {
		return nil
	}
	m := a.memo(h.Key.PF)
	if err := m.gate.enter(ctx); err != nil {
		return err
	}
	defer m.gate.leave()
	a.events.add(p.ref(), warning, "VFChangedByHand", fmt.Sprintf("%s: read back %s; it is set again", h.Key, diff[0]))
	if err := a.apply(ctx, sriov.Reapply(f.PF, *v, h.Want)); err != nil {
		return err
	}
	now, err := a.vf(ctx, f, h.Key)
	if err != nil {
		return err
	}
	if now != nil {
		p.see(h, *now)
	}
	return nil
}

// start powers the domain on, after a last look at who has its VFs.
func (a *Agent) start(ctx context.Context, p *progress, seen *hyper.Seen) (time.Duration, error) {
	if wait := a.restart(p, seen); wait > 0 {
		p.end()
		return wait, nil
	}
	p.begin(stepStart)
	p.say(api.PhaseStarting, "")
	for _, h := range p.entry.VFs {
		_, v, err := a.find(ctx, h.Key)
		if err != nil {
			return 0, err
		}
		p.see(h, *v)
		if wrong := sriov.Ready(*v, p.entry.claim(h)); wrong != "" {
			return 0, fault.New(fault.Unready, "%s: %s", h.Key, wrong)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startTime(p.want))
	defer cancel()
	err := a.d.Hyper.Power(ctx, p.uid, hyper.Running, false)
	a.hv.changed()
	if err != nil {
		return 0, fmt.Errorf("start: %w", err)
	}
	p.m.ran = a.d.Now()
	dom, err := a.domains(ctx, true)
	if err != nil {
		return 0, err
	}
	if !up(dom.byUID[p.uid]) {
		return time.Second, nil
	}
	p.vfs = nil
	p.look(ctx)
	p.end()
	p.say(api.PhaseReady, "")
	return 0, nil
}

// restart says how long to wait before a domain that ran is started again: a guest that keeps going
// down must not make the host do nothing else. spec.power says on, so however it went down, it comes up
// again; who wants it off says so there.
func (a *Agent) restart(p *progress, seen *hyper.Seen) time.Duration {
	if p.m.ran.IsZero() {
		return 0
	}
	now := a.d.Now()
	if !p.m.next.After(p.m.ran) { // this stop is new
		p.m.next = now.Add(min(time.Second<<min(p.m.restarts, 9), 5*time.Minute))
		p.m.restarts++
		reason, how := "GuestStopped", "was shut down from inside"
		if seen != nil && seen.State == hyper.Crashed {
			reason, how = "DomainCrashed", "crashed"
		}
		a.events.add(p.ref(), warning, reason, fmt.Sprintf("the domain %s; power is on, so it is started again", how))
	}
	if wait := p.m.next.Sub(now); wait > 0 {
		p.say(api.PhaseStarting, fmt.Sprintf("it stopped and is started again (attempt %d)", p.m.restarts))
		return wait
	}
	return 0
}

// startTime is how long a start may take: VFIO pins all memory first, which took others over 3 s per GiB
// of small pages.
func startTime(w *wire.VM) time.Duration {
	var mem int64
	for _, c := range w.Cells {
		mem += c.Memory
	}
	return 2*time.Minute + time.Duration(mem>>30)*4*time.Second
}

// stop asks the guest to shut down, and after the grace period cuts the power. The VFs stay the VM's.
func (a *Agent) stop(ctx context.Context, p *progress) (time.Duration, error) {
	p.done, p.running = nil, ""
	p.begin(stepStop)
	p.say(api.PhaseStopping, "")
	if p.m.asked.IsZero() {
		p.m.asked = a.d.Now()
		return a.shutdown(ctx, p, false)
	}
	if a.d.Now().Sub(p.m.asked) >= a.cfg.Grace {
		return a.shutdown(ctx, p, true)
	}
	return time.Second, nil
}

// shutdown makes one power-off call and looks what came of it.
func (a *Agent) shutdown(ctx context.Context, p *progress, hard bool) (time.Duration, error) {
	err := a.d.Hyper.Power(ctx, p.uid, hyper.Off, hard)
	a.hv.changed()
	if err != nil {
		return 0, fmt.Errorf("stop: %w", err)
	}
	dom, err := a.domains(ctx, true)
	if err != nil {
		return 0, err
	}
	if up(dom.byUID[p.uid]) {
		return time.Second, nil
	}
	p.m.asked, p.m.ran = time.Time{}, time.Time{}
	if p.phase == api.PhaseStopping {
		p.end()
		p.vfs = nil
		p.look(ctx)
		p.say(api.PhaseStopped, "")
	}
	return 0, nil
}
