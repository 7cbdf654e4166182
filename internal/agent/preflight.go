package agent

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/preflight"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/sriov"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// A look at the whole host takes some hundred reads and a program or two, so it is rare: at the start, when ports or
// what is expected of them changed, and now and then for what nothing tells of.
const (
	lookTime   = time.Minute      // one look; what hangs costs its own facts only
	lookAgain  = 30 * time.Second // after one that found something else: devices may have been on their way
	lookRest   = 50               // a look is followed by so many times its own length of rest
	firstWait  = 10 * time.Second // for the server's word, before the first look
	simulation = "simulated: "    // what was seen of a host that is none
)

// checks is what the process knows of whether the host can give VMs RDMA.
type checks struct {
	due chan struct{}

	mu     sync.Mutex
	ports  string // as they were when a look was asked for last
	report *api.Preflight
	looked time.Time // zero = never
}

// last returns the last findings and when they were looked for.
func (c *checks) last() (*api.Preflight, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.report, c.looked
}

// seen asks for a look if the ports are not as they were.
func (c *checks) seen(snap *snapshot) {
	now := ports(snap)
	c.mu.Lock()
	same := c.ports == now
	c.ports = now
	c.mu.Unlock()
	if !same {
		nudge(c.due)
	}
}

// ports is what a finding may hang on of all that the agent reads anyhow; frames, VMs and addresses are no part of it.
func ports(snap *snapshot) string {
	var b strings.Builder
	fmt.Fprintln(&b, snap.iommu)
	for i := range snap.functions {
		f := &snap.functions[i]
		fmt.Fprintln(&b, f.Key, f.PCI, f.Netdev, f.RDMA, f.Driver, f.Firmware, f.LinkUp, f.Speed, f.MTU, f.Bond, f.Management, f.Count, f.Total)
		for _, v := range f.VFs {
			fmt.Fprintln(&b, v.Linked, v.Driver, v.Group)
		}
	}
	return b.String()
}

// lookOver looks at the host whenever it is due, until ctx ends.
func (a *Agent) lookOver(ctx context.Context) {
	if a.d.Preflight == nil {
		return
	}
	first := time.NewTimer(firstWait)
	defer first.Stop()
	for !a.ready() { // what is expected of which port is not known yet; a look now would be for nothing
		select {
		case <-ctx.Done():
			return
		case <-a.checks.due:
			continue
		case <-first.C:
		}
		break
	}
	for {
		began := a.d.Now()
		news := a.lookOnce(ctx)
		if ctx.Err() != nil || pause(ctx, max(a.cfg.Settle, min(lookRest*a.d.Now().Sub(began), a.cfg.Check/2))) != nil {
			return
		}
		again := a.cfg.Check
		if news {
			again = min(again, lookAgain)
		}
		tick := time.NewTimer(again)
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-a.checks.due:
			tick.Stop()
			if pause(ctx, a.cfg.Settle) != nil {
				return
			}
		case <-tick.C:
		}
	}
}

// ready reports whether the agent knows the ports, and what is expected of them.
func (a *Agent) ready() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.snap != nil && expectation(a.desired) != ""
}

// expectation tells one expectation from the next; "" = none is known.
func expectation(d *wire.Desired) string {
	if d == nil || d.Preflight == nil {
		return ""
	}
	return d.Preflight.Digest
}

// lookOnce looks at the host and reports whether it found something else than the last time.
func (a *Agent) lookOnce(ctx context.Context) (news bool) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	a.mu.Lock()
	var want *wire.Preflight
	if a.desired != nil {
		want = a.desired.Preflight
	}
	a.mu.Unlock()
	of := func(at roce.PCIAddr, link string) (preflight.Config, bool) { return a.expects(want, at, link) }
	facts := a.d.Preflight(ctx, func(at roce.PCIAddr) int {
		c, _ := of(at, "")
		return c.Priority
	})
	if ctx.Err() != nil {
		return false // what was cut short is no evidence
	}
	serving := false
	for _, p := range facts.PFs {
		_, serves := of(p.Address, p.Link)
		serving = serving || serves
	}
	report := summary(preflight.CheckEach(facts, func(p preflight.PF) preflight.Expect {
		c, serves := of(p.Address, p.Link)
		return preflight.Expect{Config: c, Spare: serving && !serves}
	}), a.cfg.Simulated)
	if want != nil {
		report.Config = want.Digest
	}
	before, _ := a.checks.last()
	was, err1 := hashOf(before)
	is, err2 := hashOf(report)
	a.checks.mu.Lock()
	a.checks.report, a.checks.looked = report, a.d.Now()
	a.checks.mu.Unlock()
	if err1 != nil || err2 != nil || was == is {
		return false
	}
	a.changed()
	return true
}

// expects is what is expected of a port, and whether it serves a fabric at all. Of one that serves none, and where
// the server does not tell, it is what Verbena assumes.
func (a *Agent) expects(want *wire.Preflight, at roce.PCIAddr, link string) (preflight.Config, bool) {
	f := sriov.PF{PCI: at, Netdev: link}
	a.mu.Lock()
	if a.snap != nil {
		for i := range a.snap.functions {
			if g := &a.snap.functions[i]; g.PCI == at {
				f.Key, f.Netdev = g.Key, g.Netdev
			}
		}
	}
	a.mu.Unlock()
	c, pf := preflight.Default(), a.commissioned(f)
	if pf == nil {
		return c, false
	}
	if want == nil {
		return c, true
	}
	for _, e := range want.Fabrics {
		if e.Fabric != pf.Fabric {
			continue
		}
		c.Priority, c.DSCP, c.MinMTU = e.Priority, e.DSCP, e.MTU
		for _, p := range e.Firmware {
			c.Pairs = append(c.Pairs, preflight.Pair(p))
		}
	}
	return c, true
}

// summary is what the server is told of findings.
func summary(list []preflight.Finding, simulated bool) *api.Preflight {
	out := &api.Preflight{}
	for i := range list {
		switch list[i].Level {
		case preflight.OK:
			out.Counts.OK++
		case preflight.Info:
			out.Counts.Info++
		case preflight.Unknown:
			out.Counts.Unknown++
		case preflight.Warning:
			out.Counts.Warning++
		case preflight.Failed:
			out.Counts.Failed++
		}
		if simulated {
			list[i].Seen = simulation + list[i].Seen
		}
	}
	worst, omitted := preflight.Worst(list)
	out.Omitted = omitted
	for _, f := range worst {
		out.Findings = append(out.Findings, api.Finding{Check: f.Check, Object: f.Object, Level: string(f.Level), Seen: f.Seen, Expected: f.Expected, Fix: f.Fix, Doc: f.Doc})
	}
	return out
}
