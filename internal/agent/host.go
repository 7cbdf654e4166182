package agent

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/sriov"
)

// snapshot is one reading of the whole host.
type snapshot struct {
	at        time.Time
	full      time.Time // when the costly parts were last read
	functions []function
	cells     []api.Cell
	iommu     bool
	openers   map[string][]int
	blind     string // why openers is not known; empty = it is
	dom       *domains
	problems  []string
}

// find returns the PF with this key.
func (s *snapshot) find(key string) *function {
	if s == nil {
		return nil
	}
	for i := range s.functions {
		if s.functions[i].Key == key {
			return &s.functions[i]
		}
	}
	return nil
}

// reconcileHost reads the host and wakes the PFs and VMs whose facts are not as they should be.
func (a *Agent) reconcileHost(ctx context.Context) (time.Duration, error) {
	snap, err := a.look(ctx)
	if err != nil {
		return 0, err
	}
	a.mu.Lock()
	a.snap = snap
	a.mu.Unlock()
	for i := range snap.functions {
		if f := &snap.functions[i]; f.Key != "" && a.unsettled(f) {
			a.loop.Remind(key{kindPF, f.Key}) // one that fails has its rest
		}
	}
	for _, uid := range a.drifted(snap) {
		a.loop.Remind(key{kindVM, uid})
	}
	a.checks.seen(snap)
	a.changed()
	if slices.ContainsFunc(snap.functions, func(f function) bool { return f.err != nil }) {
		return min(a.cfg.Full, unreadAgain), nil
	}
	return a.cfg.Full, nil
}

// unreadAgain is when a PF that could not be read is looked at again.
const unreadAgain = 30 * time.Second

// look reads everything. The scan of all processes for open vfio groups is done at the slow period, and
// while domains move or somebody else has a VF; who is about to touch a VF does its own.
func (a *Agent) look(ctx context.Context) (*snapshot, error) {
	a.mu.Lock()
	last := a.snap
	a.mu.Unlock()
	prob := &problems{}
	snap := &snapshot{at: a.d.Now()}
	moved := a.hv.takeMoved()
	full := last == nil || snap.at.Sub(last.full) >= a.cfg.Full
	if full {
		snap.full = snap.at
	} else {
		snap.full = last.full
	}
	if full || moved || last.blind != "" || a.strangers(last) {
		var err error
		if snap.openers, err = a.d.Holders(ctx); err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			prob.add(err)
			snap.blind = text(err)
		}
	} else {
		snap.openers = last.openers
	}
	dom, err := a.domains(ctx, full)
	if err != nil {
		prob.add(err)
		dom = &domains{}
	}
	snap.dom = dom
	if err := a.lookPCI(ctx, snap, full, prob); err != nil {
		return nil, err
	}
	if full {
		a.noAutostart(ctx, snap, prob)
		a.readPorts(ctx, snap, prob)
		a.counted(ctx, snap)
	}
	snap.cells = cells(ctx, a.d.Tree, prob)
	groups, err := a.d.Tree.List(ctx, "kernel/iommu_groups")
	snap.iommu = err == nil && len(groups) > 0
	snap.problems = prob.lines()
	return snap, nil
}

// strangers reports whether in the last reading a process had a VF that no VM holds: it may have let go.
func (a *Agent) strangers(last *snapshot) bool {
	for i := range last.functions {
		for _, v := range last.functions[i].VFs {
			if len(v.Openers) > 0 && a.j.claim(v.Key) == nil {
				return true
			}
		}
	}
	return false
}

func (a *Agent) lookPCI(ctx context.Context, snap *snapshot, full bool, prob *problems) error {
	list, err := a.kernel.functions(ctx, prob)
	if err != nil {
		return err
	}
	ar, err := a.kernel.around(ctx, prob)
	if err != nil {
		return err
	}
	ar.openers, ar.domain, ar.full = snap.openers, snap.dom.byPCI, full
	manage := a.management(ctx, prob)
	for _, bdf := range list {
		f := a.kernel.fn(ctx, bdf, prob)
		if !f.Supported && a.commissioned(f.PF) == nil {
			continue
		}
		f.Management = manage[f.Netdev] && f.Netdev != ""
		a.kernel.detail(ctx, &f, ar, prob)
		if snap.blind != "" && f.Count > 0 && f.Unread == "" { // who has its VFs can't be seen, so none is free
			f.Unread = snap.blind
		}
		snap.functions = append(snap.functions, f)
	}
	slices.SortFunc(snap.functions, func(x, y function) int { return strings.Compare(x.Key+x.PCI.String(), y.Key+y.PCI.String()) })
	return nil
}

// management returns the netdevs that carry the default route or the session with the server.
func (a *Agent) management(ctx context.Context, prob *problems) map[string]bool {
	devs := append(defaultDevices(a.d.Proc, prob), a.d.SessionDevices()...)
	return carriers(ctx, a.d.Tree, devs, prob)
}

// pf observes one PF completely and freshly, with who has its VFs: for who is about to write or to call
// something free. nil says with evidence that there is no such PF.
func (a *Agent) pf(ctx context.Context, key string) (*function, error) {
	openers, err := a.d.Holders(ctx)
	if err != nil {
		return nil, err
	}
	dom, err := a.domains(ctx, true)
	if err != nil {
		return nil, err
	}
	return a.pfAmong(ctx, key, around{openers: openers, domain: dom.byPCI, fresh: true})
}

// glance observes one PF for a report: domains as they were last listed, and no look at processes, which
// costs more than all else on a dense host.
func (a *Agent) glance(ctx context.Context, key string) (*function, error) {
	dom, err := a.domains(ctx, false)
	if err != nil {
		return nil, err
	}
	return a.pfAmong(ctx, key, around{domain: dom.byPCI})
}

func (a *Agent) pfAmong(ctx context.Context, key string, with around) (*function, error) {
	prob := &problems{}
	list, err := a.kernel.functions(ctx, prob)
	if err != nil {
		return nil, err
	}
	ar, err := a.kernel.around(ctx, prob)
	if err != nil {
		return nil, err
	}
	ar.openers, ar.domain, ar.fresh = with.openers, with.domain, with.fresh
	for _, bdf := range list {
		if s, ok := a.kernel.remembered(bdf); ok && s.key != key {
			continue
		}
		f := a.kernel.fn(ctx, bdf, prob)
		if f.Key != key {
			if f.Key == "" && (f.err != nil || f.Count > 0) { // it might be the one that is looked for
				return nil, fault.Wrap(f.err, fault.Unready, "PF %s can't be told from others now, so nothing is concluded about %s", f.PCI, key)
			}
			continue
		}
		f.Management = a.management(ctx, prob)[f.Netdev] && f.Netdev != ""
		a.kernel.detail(ctx, &f, ar, prob)
		return &f, nil
	}
	return nil, nil //nolint:nilnil // not there, with evidence: an answer, and no error
}

// state derives a VF's state from facts and journal.
func (a *Agent) state(v sriov.VF) (state, reason string) {
	q, _ := a.j.quarantined(v.Key)
	return sriov.State(v, a.j.claim(v.Key), q.Reason)
}

// unsettled reports whether a commissioned PF or one of its free VFs is not as it should be.
func (a *Agent) unsettled(f *function) bool {
	want := a.commissioned(f.PF)
	if want == nil {
		return false
	}
	var busy sriov.Busy
	if f.Count != want.VFs {
		busy = a.busy(f)
	}
	if steps, err := sriov.Count(f.PF, *want, busy); err != nil || len(steps) > 0 {
		return true
	}
	for _, v := range f.VFs {
		if st, _ := a.state(v); st == api.VFScrubbing && a.j.claim(v.Key) == nil {
			return true
		}
		if q, ok := a.j.quarantined(v.Key); ok && a.d.Now().Sub(q.At) >= recheck {
			return true
		}
	}
	if a.qosDue(f, want) {
		return true
	}
	_, known := a.capabilities(f)
	return !known && want.VFs > 0
}

// drifted returns the VMs one of whose VFs is not as programmed, or whose domain's state is not as wanted.
func (a *Agent) drifted(snap *snapshot) []string {
	var out []string
	for _, e := range a.j.all() {
		off := false
		for _, h := range e.VFs {
			f := snap.find(h.Key.PF)
			if f == nil {
				off = true
				break
			}
			i := slices.IndexFunc(f.VFs, func(v sriov.VF) bool { return v.Key == h.Key })
			if i < 0 {
				off = true
				break
			}
			st, _ := sriov.State(f.VFs[i], a.j.claim(h.Key), "")
			off = off || (st != api.VFAttached && st != api.VFVerified)
		}
		if off || a.wrongPower(e.Owner.UID, snap.dom) {
			out = append(out, e.Owner.UID)
		}
	}
	return out
}

// wrongPower reports whether the domain's power is not what is wanted.
func (a *Agent) wrongPower(uid string, dom *domains) bool {
	want := a.wanted(uid)
	if want == nil || dom.byUID == nil {
		return false
	}
	return (want.Power == "on") != up(dom.byUID[uid])
}
