package agent

import (
	"context"
	"slices"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/sriov"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// progress is one run of a VM's reconciler; what it found becomes the VM's status at its end.
type progress struct {
	a     *Agent
	m     *vmMemo
	uid   string
	want  *wire.VM
	entry *entry

	phase, message string
	absent         bool
	vfs            []wire.VFStatus
	done           []string // steps that are done
	running        string   // the step under way
	err            error
}

// The steps that people see of an operation.
const (
	stepReserve = "reserve"
	stepProgram = "program"
	stepVerify  = "verify"
	stepDisk    = "disk"
	stepDefine  = "define"
	stepStart   = "start"
	stepStop    = "stop"
	stepRelease = "undefine"
	stepScrub   = "scrub"
)

func (p *progress) say(phase, message string) { p.phase, p.message = phase, message }

// begin says which step is under way; the one before it is done.
func (p *progress) begin(step string) {
	if p.running != "" {
		p.done = append(p.done, p.running)
	}
	p.running = step
}

// end says that the last step is done.
func (p *progress) end() { p.begin("") }

func (p *progress) fail(err error) {
	p.err = err
	p.message = text(err)
	if p.phase == "" {
		p.phase = api.PhasePreparing
	}
	if permanent(err) && p.phase != api.PhaseDeleting {
		p.phase = api.PhaseFailed
	}
}

// gone says with authority that nothing of the VM is left.
func (p *progress) gone(*Agent) {
	p.phase, p.message, p.absent, p.vfs = api.PhaseDeleting, "", true, nil
}

// owner is whom the status is about: the entry's VM, else the wanted one.
func (p *progress) owner() sriov.Owner {
	if p.entry != nil {
		return p.entry.Owner
	}
	if p.want != nil {
		return ownerOf(p.want)
	}
	return sriov.Owner{UID: p.uid}
}

func ownerOf(w *wire.VM) sriov.Owner {
	return sriov.Owner{UID: w.UID, Tenant: w.Tenant, Name: w.Name, Generation: w.Generation}
}

func (p *progress) ref() api.Ref {
	o := p.owner()
	return api.Ref{Kind: api.KindVM, Tenant: o.Tenant, Name: o.Name, UID: o.UID}
}

// publish makes the run the VM's status, and wakes the poster if it differs from the last.
func (p *progress) publish() {
	o := p.owner()
	st := wire.VMStatus{UID: o.UID, Generation: o.Generation, Phase: p.phase, Message: p.message, Absent: p.absent, VFs: p.vfs}
	if p.absent && p.want != nil {
		st.Generation = p.want.Generation // this is the life that the server asks about
	}
	p.a.mu.Lock()
	st.Steps = p.steps()
	same := equalStatus(p.m.status, st)
	p.m.status = st
	forgotten := p.want == nil && p.entry == nil
	if forgotten {
		delete(p.a.vms, p.uid)
	}
	p.a.mu.Unlock()
	if !same || forgotten {
		p.a.changed()
		p.a.wakeHost()
	}
}

// steps gives each step the time at which it was first seen in its state, so that a status does not
// change by being looked at.
func (p *progress) steps() []api.OpStep {
	now := p.a.d.Now()
	var out []api.OpStep
	add := func(name, state, text string) {
		at := now
		for _, was := range p.m.status.Steps {
			if was.Name == name && was.State == state && p.m.status.Generation == p.owner().Generation {
				at = was.At
			}
		}
		out = append(out, api.OpStep{Name: name, State: state, Text: text, At: at})
	}
	for _, n := range p.done {
		add(n, "done", "")
	}
	switch {
	case p.running != "" && p.err != nil:
		add(p.running, "failed", p.message)
	case p.running != "":
		add(p.running, "running", "")
	}
	return out
}

func equalStatus(x, y wire.VMStatus) bool {
	return x.UID == y.UID && x.Generation == y.Generation && x.Phase == y.Phase && x.Message == y.Message &&
		x.Absent == y.Absent && slices.Equal(x.VFs, y.VFs) && slices.Equal(x.Steps, y.Steps)
}

// observe reports what is there without changing it.
func (p *progress) observe(ctx context.Context, seen *hyper.Seen) {
	if p.entry == nil {
		p.say(api.PhaseScheduled, "waiting for the server's word since this host booted")
		return
	}
	p.look(ctx)
	p.say(phaseOf(p.entry, seen), "")
	if p.want != nil && p.want.Generation < p.entry.Owner.Generation {
		p.message = "the server's state is older than what runs here; it is not followed"
	}
}

// look reads the VFs of the entry for the status.
func (p *progress) look(ctx context.Context) {
	for _, h := range p.entry.VFs {
		f, err := p.a.glance(ctx, h.Key.PF)
		if err != nil || f == nil {
			p.see(h, sriov.VF{Key: h.Key, Unread: "its PF is not there or can't be read"})
			continue
		}
		i := slices.IndexFunc(f.VFs, func(v sriov.VF) bool { return v.Key == h.Key })
		if i < 0 {
			p.see(h, sriov.VF{Key: h.Key, Unread: "it is not there"})
			continue
		}
		p.see(h, f.VFs[i])
	}
}

// see notes a VF as it was read.
func (p *progress) see(h hold, v sriov.VF) {
	c := p.entry.claim(h)
	st, reason := sriov.State(v, &c, "")
	out := wire.VFStatus{PF: h.Key.PF, Index: h.Key.Index, State: st, Reason: reason, Generation: p.entry.Owner.Generation}
	if v.Attr != nil {
		out.PCI = v.PCI.String()
		out.MAC, out.VLAN, out.QoS = v.Attr.MAC.String(), v.Attr.VLAN, v.Attr.QoS
		out.SpoofCheck = v.Attr.SpoofCheck != nil && *v.Attr.SpoofCheck
	}
	p.vfs = slices.DeleteFunc(p.vfs, func(s wire.VFStatus) bool { return s.PF == out.PF && s.Index == out.Index })
	p.vfs = append(p.vfs, out)
}

func phaseOf(e *entry, seen *hyper.Seen) string {
	switch {
	case e.Stage != sriov.Holding:
		return api.PhaseDeleting
	case seen != nil && seen.State == hyper.Running:
		return api.PhaseReady
	}
	return api.PhaseStopped
}
