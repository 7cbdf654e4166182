package agent

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/preflight"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// looking sees the ports of the simulated host as preflight does, and counts how often.
type looking struct {
	w     *world
	looks atomic.Int64
	prio  atomic.Int64 // that was told last
	hangs atomic.Bool
}

func (l *looking) facts(ctx context.Context, priority func(roce.PCIAddr) int) preflight.Facts {
	l.looks.Add(1)
	if l.hangs.Load() {
		<-ctx.Done()
	}
	f := preflight.Facts{Kernel: "6.12", IOMMUGroups: 1, CommandLine: []string{"iommu=pt"}, Firewall: preflight.Firewall{Known: true}}
	for i, link := range []string{net0, net1} {
		at, err := roce.ParsePCI(fmt.Sprintf("0000:18:00.%d", i))
		if err != nil {
			panic(err)
		}
		l.prio.Store(int64(priority(at)))
		p := preflight.PF{Address: at, Driver: "mlx5_core", Link: link, MTU: 1500, SRIOV: preflight.SRIOV{Present: true, Total: 4}, Firmware: "22.31"}
		up, err := l.w.k.Read(ctx, "class/net/"+link+"/carrier")
		p.Carrier = new(err == nil && up == "1")
		if s, err := l.w.k.Ports().Get(ctx, link); err == nil {
			p.DCB = &s
		}
		f.PFs = append(f.PFs, p)
	}
	return f
}

// judged is a whole agent at work that looks its host over, with both ports on fabric roce.
func judged(t *testing.T, f func(t *testing.T, w *world, s *simServer, l *looking)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, s := newWorld(t, host(4)), newSimServer()
		w.up = s
		l := &looking{w: w}
		w.look = l.facts
		w.want.Preflight = &wire.Preflight{Digest: "one", Fabrics: []wire.Expect{{Fabric: "roce", Priority: 5, DSCP: 40, MTU: 1024,
			Firmware: []api.FirmwarePair{{Driver: "mlx5_core", MinFirmware: "22.40"}}}}}
		stop := w.run()
		f(t, w, s, l)
		stop()
	})
}

// told is the last preflight that the server got, and how many it got.
func (s *simServer) told() (p *api.Preflight, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, post := range s.posts {
		if post.Preflight != nil {
			p, n = post.Preflight, n+1
		}
	}
	return p, n
}

// finding is the level of a check of an object and what was seen, "" for none.
func finding(p *api.Preflight, check, object string) string {
	for _, f := range p.Findings {
		if f.Check == check && f.Object == object {
			return f.Level + ": " + f.Seen
		}
	}
	return ""
}

// TestPreflightIsRareAndSilent: while nothing changes the host is looked over six times an hour, nothing is posted
// for it, and each beat says how old the last look is.
func TestPreflightIsRareAndSilent(t *testing.T) {
	judged(t, func(t *testing.T, w *world, s *simServer, l *looking) {
		w.say(s)
		later(2 * time.Minute)
		p, _ := s.told()
		if p == nil || p.Config != "one" || p.Counts.Failed == 0 || l.prio.Load() != 5 {
			t.Fatalf("%+v, priority %d", p, l.prio.Load())
		}
		for check, want := range map[string]string{"nic.pfc": "failed: simulated: on priority none", "nic.firmware": "failed: simulated: firmware 22.31"} {
			if got := finding(p, check, net0); !strings.HasPrefix(got, want) {
				t.Errorf("%s is %q", check, got)
			}
		}
		later(10 * time.Minute)
		looks := l.looks.Load()
		posts, _, _ := s.counts()
		later(time.Hour)
		if n := l.looks.Load() - looks; n < 5 || n > 6 {
			t.Errorf("%d looks in an hour without a change", n)
		}
		if p, _, _ := s.counts(); p != posts {
			t.Errorf("%d posts in an hour without a change", p-posts)
		}
		if s.looked < 0 || s.looked > 11*time.Minute {
			t.Errorf("the beat says that the last look was %s ago", s.looked)
		}
	})
}

// TestPreflightFollowsChanges: a pulled cable, other expectations and what the agent sets itself are looked at within
// seconds; a port that serves no fabric any more fails nothing.
func TestPreflightFollowsChanges(t *testing.T) {
	judged(t, func(t *testing.T, w *world, s *simServer, _ *looking) {
		w.say(s)
		later(2 * time.Minute)
		if err := w.k.Cable(dev0, false); err != nil {
			t.Fatal(err)
		}
		later(5 * time.Second)
		p, _ := s.told()
		if got := finding(p, "link.carrier", net0); got != "failed: simulated: no carrier" {
			t.Errorf("the pulled cable is %q", got)
		}
		lossless(w)
		w.want.Preflight = &wire.Preflight{Digest: "two", Fabrics: []wire.Expect{{Fabric: "roce", Priority: 5, DSCP: 40, MTU: 4096}}}
		w.say(s)
		later(10 * time.Second)
		p, _ = s.told()
		if p.Config != "two" || finding(p, "nic.firmware", net0) != "" || finding(p, "link.mtu", net0) == "" || finding(p, "nic.pfc", net1) != "" {
			t.Errorf("%+v", p)
		}
		w.want.PFs = w.want.PFs[1:]
		w.want.Preflight = &wire.Preflight{Digest: "three", Fabrics: w.want.Preflight.Fabrics}
		w.say(s)
		later(10 * time.Second)
		p, _ = s.told()
		if got := finding(p, "link.carrier", net0); !strings.HasPrefix(got, "info: simulated: no carrier (the port serves") {
			t.Errorf("a spare port's cable is %q", got)
		}
	})
}

// TestPreflightAfterOutage: a server that forgot everything hears the findings again, and how old they are.
func TestPreflightAfterOutage(t *testing.T) {
	judged(t, func(t *testing.T, w *world, s *simServer, l *looking) {
		w.say(s)
		later(5 * time.Minute)
		s.fail(true)
		s.mu.Lock()
		s.posts = nil
		s.mu.Unlock()
		later(time.Minute)
		s.fail(false)
		later(time.Minute)
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, p := range s.posts {
			if p.Preflight != nil && p.Checked != nil && *p.Checked > 0 {
				return
			}
		}
		t.Errorf("after %d looks it heard of none", l.looks.Load())
	})
}

// TestPreflightNeedsNoServersWord: a server of an older version tells nothing; the host is judged by what Verbena
// assumes.
func TestPreflightNeedsNoServersWord(t *testing.T) {
	judged(t, func(t *testing.T, w *world, s *simServer, _ *looking) {
		w.want.Preflight = nil
		w.say(s)
		later(time.Minute)
		p, _ := s.told()
		if p == nil || p.Config != "" || finding(p, "nic.firmware", net0) != "" || finding(p, "nic.pfc", net0) == "" {
			t.Errorf("%+v", p)
		}
	})
}

// TestPreflightThatHangs: a look that does not end in time is no evidence, and its age tells.
func TestPreflightThatHangs(t *testing.T) {
	judged(t, func(t *testing.T, w *world, s *simServer, l *looking) {
		w.say(s)
		later(2 * time.Minute)
		_, before := s.told()
		l.hangs.Store(true)
		later(time.Hour)
		if _, n := s.told(); n != before || s.looked < time.Hour-11*time.Minute {
			t.Errorf("%d posts more; the last look is %s ago", n-before, s.looked)
		}
	})
}
