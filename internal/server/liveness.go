package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
)

// hostTTL is how long a host without a sign of life counts as up; agents beat three times as often.
// liveTick is how late a change is told; what is asked for is exact.
const (
	hostTTL  = 15 * time.Second
	liveTick = time.Second
)

// liveness knows which agents have shown themselves lately. It lives in memory only: a heartbeat is
// never a durable write, a change of state is one event. After a start nobody has shown themselves yet,
// so nobody is called lost before a whole TTL has gone by. Looking at each host once a second costs half a
// millisecond for 10 000 of them (BenchmarkLivenessSweep), so there is no cleverer structure.
type liveness struct {
	start time.Time

	mu    sync.RWMutex
	hosts map[string]*pulse
}

// pulse is what is known of a host.
type pulse struct {
	seen time.Time // last sign of life; zero = none since the start
	// inventoried is set once the agent has sent its inventory over its present connection: until then
	// nobody knows what the host looks like now.
	inventoried bool
	// grace is until when a host that was up and has reconnected still counts as up without that.
	grace time.Time
	told  bool // the last state told: up or not
	// ignored is the first report of the host's last post that was not taken: it is audited when it
	// changes, not on every post.
	ignored string
	looked  time.Time // when the agent last looked whether the host can give VMs RDMA; zero = not told
}

// turn is a change of a host's state.
type turn struct {
	host string
	up   bool
	seen time.Time
}

func newLiveness(now time.Time) *liveness { return &liveness{start: now, hosts: map[string]*pulse{}} }

func (p *pulse) alive(now time.Time) bool {
	return p != nil && now.Before(p.seen.Add(hostTTL)) && (p.inventoried || now.Before(p.grace))
}

func (l *liveness) of(host string) *pulse {
	p := l.hosts[host]
	if p == nil {
		p = &pulse{}
		l.hosts[host] = p
	}
	return p
}

// connect notes that the host's agent has opened its stream. A host that was up stays so for one TTL,
// within which the agent has to send its inventory.
func (l *liveness) connect(host string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.of(host)
	if p.alive(now) {
		p.grace = now.Add(hostTTL)
	}
	p.seen, p.inventoried = now, false
}

// beat notes a sign of life; inventory says that the host's inventory came with it.
func (l *liveness) beat(host string, inventory bool, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.of(host)
	p.seen = now
	p.inventoried = p.inventoried || inventory
}

// look notes when the host's agent looked last whether the host can give VMs RDMA.
func (l *liveness) look(host string, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(host).looked = at
}

// refused notes what of a host's post was not taken (empty = nothing), and reports whether that is news.
func (l *liveness) refused(host, first string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.of(host)
	news := first != "" && first != p.ignored
	p.ignored = first
	return news
}

// expect notes a host that should show itself: it is told as lost if it does not.
func (l *liveness) expect(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.of(host); p.seen.IsZero() {
		p.told = true
	}
}

// forget drops a host that is gone.
func (l *liveness) forget(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.hosts, host)
}

// alive reports whether the host is up: its agent has shown itself within the TTL and has sent its
// inventory over its present connection.
func (l *liveness) alive(host string, now time.Time) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.hosts[host].alive(now)
}

// lost reports whether the host has been silent for so long that nothing it said can be relied on, and
// when it was last seen (zero = not since the server started).
func (l *liveness) lost(host string, now time.Time) (lost bool, seen time.Time) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	p := l.hosts[host]
	if p.alive(now) {
		return false, p.seen
	}
	if p != nil {
		seen = p.seen
	}
	return !now.Before(l.start.Add(hostTTL)), seen
}

// seen is the host's last sign of life and its agent's last look, zero if there was none.
func (l *liveness) seen(host string) (sign, looked time.Time) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if p := l.hosts[host]; p != nil {
		return p.seen, p.looked
	}
	return time.Time{}, time.Time{}
}

// turns returns whose state has changed since it was last told.
func (l *liveness) turns(now time.Time) []turn {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []turn
	for host, p := range l.hosts {
		if up := p.alive(now); up != p.told {
			p.told = up
			all = append(all, turn{host, up, p.seen})
		}
	}
	slices.SortFunc(all, func(a, b turn) int { return cmp.Compare(a.host, b.host) })
	return all
}

// alive reports whether the host's agent has shown itself lately.
func (s *Server) alive(host string) bool { return s.ident.live.alive(host, s.now()) }

// runLiveness tells changes of hosts' states.
func (s *Server) runLiveness(ctx context.Context) error {
	tick := time.NewTicker(liveTick)
	defer tick.Stop()
	for expected := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if !expected && !s.now().Before(s.ident.live.start.Add(hostTTL)) {
			err := s.expectHosts(ctx)
			expected = err == nil
			s.warn(ctx, "looking for silent hosts will be tried again", err)
		}
		s.warn(ctx, "an event about a host is lost", s.tellTurns(ctx, s.ident.live.turns(s.now())))
	}
}

func (s *Server) warn(ctx context.Context, what string, err error) {
	if err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, what, "err", err)
	}
}

// expectHosts notes every host that has reported before, once the time to show itself after our start
// is over.
func (s *Server) expectHosts(ctx context.Context) error {
	return s.db.View(ctx, func(tx store.Tx) error {
		for h, err := range object.All[api.Host](tx, api.KindHost, "") {
			if err != nil {
				return err
			}
			if h.Status.Inventory != nil {
				s.ident.live.expect(h.Name)
			}
		}
		return nil
	})
}

// tellTurns makes one event for each change.
func (s *Server) tellTurns(ctx context.Context, turns []turn) error {
	if len(turns) == 0 {
		return nil
	}
	_, err := s.db.Update(ctx, func(tx store.Tx) error {
		for _, t := range turns {
			e := tx.Get(object.Key(api.KindHost, "", t.host))
			if e == nil {
				s.ident.live.forget(t.host)
				continue
			}
			h, err := store.Peek[api.Host](e)
			if err != nil {
				return err
			}
			typ, reason, message := eventNormal, "HostUp", "the agent answers and has sent its inventory"
			if !t.up {
				typ, reason, message = eventWarning, "HostUnknown", "the agent does not answer; its VMs may well run"
			}
			if err := s.event(tx, refOf(&h.Meta), typ, reason, message); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

func since(seen time.Time) string {
	if seen.IsZero() {
		return " since the server started"
	}
	return fmt.Sprintf(", last seen %s", seen.UTC().Format(time.RFC3339))
}

// shadeHost fills in a host's live state, which is not stored.
func (s *Server) shadeHost(h *api.Host) {
	now := s.now()
	seen, looked := s.ident.live.seen(h.Name)
	if !seen.IsZero() {
		h.Status.Seen = new(seen.UTC())
	}
	if h.Status.Preflight != nil && !looked.IsZero() {
		p := *h.Status.Preflight // what is stored is shared
		p.Checked = new(looked.UTC())
		h.Status.Preflight = &p
	}
	switch {
	case s.ident.live.alive(h.Name, now):
		h.Status.State = api.HostUp
	case h.Status.Inventory == nil:
		h.Status.State = api.HostJoining
	default:
		h.Status.State = api.HostUnknown
	}
}

// shadeVM shows a VM as Unknown while its host is: what the host said last may no longer be so. Nothing
// is written, and what is stored shows again when the host does.
func (s *Server) shadeVM(v *api.VM) {
	if v.Status.Host == "" {
		return
	}
	lost, seen := s.ident.live.lost(v.Status.Host, s.now())
	if !lost {
		return
	}
	message := fmt.Sprintf("host %s does not answer%s; the VM may well run", v.Status.Host, since(seen))
	if v.Status.Phase == api.PhaseDeleting {
		// The wish to delete is ours, not the host's word; only its progress is unknown.
		v.Status.Message = message
		return
	}
	v.Status.Phase, v.Status.Message = api.PhaseUnknown, message
	conditions := slices.Clone(v.Status.Conditions) // the original is shared
	for i := range conditions {
		if conditions[i].Type == "Ready" {
			conditions[i].Status, conditions[i].Reason, conditions[i].Message = "Unknown", "HostUnknown", message
		}
	}
	v.Status.Conditions = conditions
}
