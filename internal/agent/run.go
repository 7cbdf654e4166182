package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// Run works until ctx ends and returns when all has stopped. Domains and VFs stay as they are.
func (a *Agent) Run(ctx context.Context) error {
	if a.link != nil {
		if err := a.admitted(ctx); err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // told to end while it waited for the server
			}
			return err
		}
	}
	var wg sync.WaitGroup
	for _, f := range []func(context.Context){a.loop.Run, a.watchKernel, a.watchHypervisor, a.guests.run, a.lookOver} {
		wg.Go(func() { f(ctx) })
	}
	a.wakeHost()
	a.wakeVMs()
	if a.d.Upstream != nil {
		for _, f := range []func(context.Context){a.follow, a.post, a.beat} {
			wg.Go(func() { f(ctx) })
		}
	}
	if a.link != nil {
		wg.Go(func() { a.renew(ctx, a.link) })
	}
	wg.Wait()
	return nil
}

func (a *Agent) wakeHost() { a.loop.Wake(key{kindHost, ""}) }

// wakeVMs wakes every VM that the server names or the journal covers.
func (a *Agent) wakeVMs() {
	for _, uid := range a.uids() {
		a.loop.Wake(key{kindVM, uid})
	}
}

func (a *Agent) uids() []string {
	var out []string
	for _, e := range a.j.all() {
		out = append(out, e.Owner.UID)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.desired != nil {
		for _, w := range a.desired.VMs {
			out = append(out, w.UID)
		}
	}
	for uid := range a.vms {
		out = append(out, uid)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// watchKernel reads the host again after changes of links and devices, gathered for a moment: a new
// number of VFs is hundreds of them.
func (a *Agent) watchKernel(ctx context.Context) {
	signal := make(chan struct{}, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		for wait := time.Second; ctx.Err() == nil; wait = min(2*wait, time.Minute) {
			if err := a.d.Links.Changes(ctx, func() { nudge(signal) }); err != nil && ctx.Err() == nil {
				a.log.Warn("watch links", "err", err)
			}
			if pause(ctx, a.d.Jitter(wait)) != nil {
				return
			}
			nudge(signal) // changes may have been missed
		}
	})
	defer wg.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-signal:
		}
		if pause(ctx, a.cfg.Settle) != nil {
			return
		}
		select {
		case <-signal:
		default:
		}
		a.wakeHost()
	}
}

func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// changed says that the status may differ from what the server knows.
func (a *Agent) changed() { nudge(a.dirty) }

// backoff waits with full jitter, longer after each failure in a row.
type backoff struct{ next time.Duration }

func (b *backoff) wait(ctx context.Context, jitter func(time.Duration) time.Duration) error {
	b.next = min(max(2*b.next, time.Second), 30*time.Second)
	return pause(ctx, jitter(b.next))
}

// follow keeps the stream of the desired state open.
func (a *Agent) follow(ctx context.Context) {
	var b backoff
	for ctx.Err() == nil {
		err := a.d.Upstream.Desired(ctx, func(d *wire.Desired) {
			b.next = 0
			if d.Host != a.cfg.Host {
				a.log.Error("the server sent another host's state", "host", d.Host)
				return
			}
			if err := a.take(d); err != nil {
				a.log.Warn("desired state", "err", err)
			}
			a.repost() // the server may have restarted: tell it everything
		})
		if err != nil && ctx.Err() == nil {
			a.log.Warn("desired state", "err", err)
		}
		if b.wait(ctx, a.d.Jitter) != nil {
			return
		}
	}
}

// repost makes the next status complete, whatever the server had accepted before.
func (a *Agent) repost() {
	a.mu.Lock()
	a.posted = accepted{}
	a.mu.Unlock()
	a.changed()
}

// post tells the server what changed, and nothing if nothing did.
func (a *Agent) post(ctx context.Context) {
	var b backoff
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.dirty:
		}
		if err := a.postOnce(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn("post status", "err", err)
			a.changed()
			if b.wait(ctx, a.d.Jitter) != nil {
				return
			}
			continue
		}
		b.next = 0
	}
}

func (a *Agent) postOnce(ctx context.Context) error {
	a.mu.Lock()
	last := a.posted
	a.mu.Unlock()
	s, now, err := a.status()
	if err != nil {
		return err
	}
	if now == last && len(s.Events) == 0 {
		return nil
	}
	if now.inventory == last.inventory {
		s.Inventory = nil
	}
	if now.preflight == last.preflight {
		s.Preflight = nil
	}
	ack, err := a.d.Upstream.Post(ctx, s)
	if err != nil {
		return err
	}
	if len(ack.Ignored) > 0 {
		a.log.Warn("the server ignored a part of the status", "ignored", ack.Ignored)
	}
	a.events.take(s.Events)
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.events.peek()) > 0 {
		a.changed() // one post takes only so many
	}
	if a.posted == last { // else somebody asked for a complete one meanwhile
		a.posted = now
	}
	return nil
}

// accepted tells by hashes what the server knows.
type accepted struct{ core, inventory, preflight string }

// status gathers what the server should know.
func (a *Agent) status() (s wire.Status, now accepted, err error) {
	s = wire.Status{Host: a.cfg.Host, Agent: a.cfg.Version, VMs: a.vmStatus()}
	a.mu.Lock()
	if a.desired != nil {
		s.Revision = a.desired.Revision
	}
	a.mu.Unlock()
	if now.core, err = hashOf(s); err != nil {
		return s, now, err
	}
	s.Inventory, s.Events = a.inventory(), a.events.peek()
	if now.inventory, err = hashOf(s.Inventory); err != nil {
		return s, now, err
	}
	s.Preflight, _ = a.checks.last()
	if ago := a.sinceLook(); ago >= 0 {
		s.Checked = new(int64(ago / time.Second))
	}
	now.preflight, err = hashOf(s.Preflight)
	return s, now, err
}

// sinceLook is how long ago the host was looked over, less than 0 for never.
func (a *Agent) sinceLook() time.Duration {
	_, at := a.checks.last()
	if at.IsZero() {
		return -1
	}
	return max(a.d.Now().Sub(at), 0)
}

func (a *Agent) vmStatus() []wire.VMStatus {
	out := []wire.VMStatus{}
	for _, uid := range a.uids() {
		a.mu.Lock()
		if m := a.vms[uid]; m != nil && m.status.UID != "" {
			st := m.status
			st.Guest = a.guests.of(uid)
			out = append(out, st)
		}
		a.mu.Unlock()
	}
	return out
}

func hashOf(v any) (string, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

// beat tells the server that the agent lives, whatever else goes on: reading a dense host is off its path.
func (a *Agent) beat(ctx context.Context) {
	tick := time.NewTicker(a.cfg.Beat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		once, cancel := context.WithTimeout(ctx, a.cfg.Beat)
		err := a.d.Upstream.Beat(once, a.sinceLook())
		cancel()
		if err != nil && ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) && !fault.Is(err, fault.Unavailable) {
			a.log.Warn("beat", "err", err)
		}
	}
}
