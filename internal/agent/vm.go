package agent

import (
	"context"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/sriov"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// vmMemo is what the process remembers of a VM: how it goes, and what must not be done too often.
type vmMemo struct {
	status   wire.VMStatus
	asked    time.Time // when the guest was last asked to shut down
	ran      time.Time // since when it runs
	restarts int       // in a row
	next     time.Time // not started again before
	failures map[sriov.Key]int
}

// action is what a VM needs next.
type action string

const (
	leave  action = "leave"  // nothing may or must be done
	ensure action = "ensure" // reserve, program, define, power as wanted
	remove action = "remove" // take everything back, with proof
	absent action = "absent" // nothing is left: say so
	orphan action = "orphan" // it runs, but the server does not list it
)

// trust is how much the desired state at hand may do.
type trust struct {
	fresh bool // the server said so since the agent started: everything
	boot  bool // stored in this boot of the host: whatever takes nothing away
}

// decide says what a VM needs, from what the server wants, the journal and the domain. It is pure.
//
// Taking away needs the server's word of now, but for a removal that had begun. A VM that the server
// does not list and that is off is taken back without its disk; one that runs is left alone, since an
// empty list may be a fault of the server. After a reboot nothing is started before the server was
// heard: the VM may live elsewhere by now.
func decide(want *wire.VM, e *entry, dom *hyper.Seen, t trust) action {
	switch {
	case e != nil && e.Stage != sriov.Holding:
		return remove
	case want == nil && e == nil:
		return leave
	case want == nil:
		if !t.fresh {
			return leave
		}
		if up(dom) {
			return orphan
		}
		return remove
	case e == nil && want.Absent:
		if dom == nil {
			return absent
		}
		return takeOver(dom, t)
	case e == nil:
		if !t.fresh && !t.boot {
			return leave
		}
		return ensure
	case want.Generation < e.Owner.Generation:
		return leave // a message from before: whatever it says, it is about an earlier life
	case want.Absent || want.Generation > e.Owner.Generation:
		if !t.fresh {
			return leave
		}
		return remove
	case !t.fresh && !t.boot:
		return leave
	}
	return ensure
}

// takeOver decides for a domain of a VM to be removed that no entry covers.
func takeOver(dom *hyper.Seen, t trust) action {
	if !t.fresh || (dom.Owner == hyper.Owner{}) {
		return leave
	}
	return remove
}

// up reports whether a domain has its devices: anything but off and crashed.
func up(dom *hyper.Seen) bool {
	return dom != nil && dom.State != hyper.Off && dom.State != hyper.Crashed
}

func (a *Agent) vm(uid string) *vmMemo {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.vms[uid]
	if m == nil {
		m = &vmMemo{failures: map[sriov.Key]int{}}
		a.vms[uid] = m
	}
	return m
}

func (a *Agent) trust() trust {
	a.mu.Lock()
	defer a.mu.Unlock()
	return trust{fresh: a.fresh, boot: a.sameRun}
}

// reconcileVM brings one VM closer to what the server wants of it.
func (a *Agent) reconcileVM(ctx context.Context, uid string) (time.Duration, error) {
	want, e := a.wanted(uid), a.j.get(uid)
	p := &progress{a: a, m: a.vm(uid), uid: uid, want: want, entry: e}
	defer p.publish()
	dom, err := a.domains(ctx, false)
	if err != nil {
		p.say(api.PhaseUnknown, text(err))
		return 0, err
	}
	seen := dom.byUID[uid]
	a.guests.follow(uid, guestSocket(seen))
	wait, err := a.act(ctx, p, decide(want, e, seen, a.trust()), seen)
	if err != nil {
		p.fail(err)
		if permanent(err) {
			return time.Minute, nil // only a change helps; look again now and then all the same
		}
	}
	return wait, err
}

// permanent reports that trying again at once would end the same way.
func permanent(err error) bool {
	return fault.Is(err, fault.Invalid) || fault.Is(err, fault.Conflict)
}

func (a *Agent) act(ctx context.Context, p *progress, do action, seen *hyper.Seen) (time.Duration, error) {
	switch do {
	case ensure:
		return a.ensure(ctx, p, seen)
	case remove:
		return a.remove(ctx, p, seen)
	case absent:
		p.gone(a)
		return 0, nil
	case orphan:
		p.say(api.PhaseUnknown, "it runs here, but the server does not list it; it is left alone")
		a.events.add(p.ref(), warning, "OrphanVM", "the VM runs on host "+a.cfg.Host+", but the server does not list it; it is left alone")
		return 0, nil
	}
	p.observe(ctx, seen)
	return 0, nil
}
