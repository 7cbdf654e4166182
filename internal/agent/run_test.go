package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// simServer is a simulated server: it streams what it is told and keeps what it gets.
type simServer struct {
	mu     sync.Mutex
	wake   chan struct{}
	now    *wire.Desired
	posts  []wire.Status
	beats  int
	looked time.Duration // as the last beat says
	opened int
	down   bool
}

func newSimServer() *simServer { return &simServer{wake: make(chan struct{})} }

func (s *simServer) say(d wire.Desired) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = &d
	close(s.wake)
	s.wake = make(chan struct{})
}

// fail takes the server away, or back.
func (s *simServer) fail(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
	close(s.wake)
	s.wake = make(chan struct{})
}

var errDown = errors.New("simulated: the server is down")

func (s *simServer) Desired(ctx context.Context, f func(*wire.Desired)) error {
	s.mu.Lock()
	s.opened++
	s.mu.Unlock()
	var last *wire.Desired
	for {
		s.mu.Lock()
		wake, now, down := s.wake, s.now, s.down
		s.mu.Unlock()
		if down {
			return errDown
		}
		if now != nil && now != last {
			last = now
			d := *now
			f(&d)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-wake:
		}
	}
}

func (s *simServer) Post(_ context.Context, st wire.Status) (wire.Ack, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return wire.Ack{}, errDown
	}
	s.posts = append(s.posts, st)
	return wire.Ack{}, nil
}

func (s *simServer) Beat(_ context.Context, looked time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beats++
	s.looked = looked
	if s.down {
		return fault.New(fault.Unavailable, "down")
	}
	return nil
}

func (s *simServer) counts() (posts, beats, opened int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.posts), s.beats, s.opened
}

// last returns what the server knows of a VM and of the host.
func (s *simServer) last(uid string) (vm wire.VMStatus, inv *api.Inventory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.posts {
		if p.Inventory != nil {
			inv = p.Inventory
		}
		vm = wire.VMStatus{}
		for _, v := range p.VMs {
			if v.UID == uid {
				vm = v
			}
		}
	}
	return vm, inv
}

// running is a whole agent at work, in simulated time.
func running(t *testing.T, vfs int, f func(t *testing.T, w *world, s *simServer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, s := newWorld(t, host(vfs)), newSimServer()
		w.up = s
		stop := w.run()
		f(t, w, s)
		stop()
	})
}

// run starts an agent and returns how to end it.
func (w *world) run() (stop func()) {
	w.t.Helper()
	a := w.boot()
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	return func() {
		w.t.Helper()
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("run: %v", err)
		}
		if err := a.Close(); err != nil {
			w.t.Error(err)
		}
	}
}

func (w *world) say(s *simServer) {
	w.rev++
	d := *w.want
	d.Revision = w.rev
	d.VMs = append([]wire.VM(nil), d.VMs...)
	s.say(d)
}

func later(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestRunQuietWhenNothingChanges(t *testing.T) {
	running(t, 4, func(t *testing.T, w *world, s *simServer) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.say(s)
		later(time.Minute)
		vm, inv := s.last(uidOf("a"))
		if vm.Phase != api.PhaseReady || inv == nil || len(inv.PFs) != 2 || !inv.PFs[0].Ready {
			t.Fatalf("VM %+v, inventory %+v", vm, inv)
		}
		later(10 * time.Minute) // that the driver counts frames shows with traffic only
		w.faults.ForgetLog()
		posts, beats, _ := s.counts()
		later(time.Hour)
		p, b, opened := s.counts()
		if p != posts || opened != 1 {
			t.Errorf("%d posts and %d streams in an hour without a change: %+v", p-posts, opened-1, s.posts[posts:])
		}
		if got := b - beats; got < 719 || got > 721 {
			t.Errorf("%d beats in an hour, want one every 5 s", got)
		}
		if log := w.faults.Log(); len(log) != 0 {
			t.Errorf("written in an hour without a change: %q", log)
		}
	})
}

func TestRunServerOutageTouchesNothing(t *testing.T) {
	running(t, 4, func(t *testing.T, w *world, s *simServer) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.say(s)
		later(time.Minute)
		pid := w.hv.PID(uidOf("a"))
		s.fail(true)
		w.vm("a").Absent = true // decided while the agent can't hear it
		later(time.Hour)
		if w.hv.PID(uidOf("a")) != pid || pid == 0 {
			t.Fatal("the outage touched a running VM")
		}
		_, _, before := s.counts()
		if before > 400 {
			t.Errorf("%d attempts in an hour: too eager", before)
		}
		s.fail(false)
		w.say(s)
		later(2 * time.Minute)
		if vm, _ := s.last(uidOf("a")); !vm.Absent {
			t.Errorf("after the outage: %+v", vm)
		}
		w.drop("a")
		w.say(s)
		later(time.Minute)
		if vm, _ := s.last(uidOf("a")); vm.UID != "" {
			t.Errorf("still reported: %+v", vm)
		}
	})
}

func TestRunReconnectPostsEverything(t *testing.T) {
	running(t, 4, func(t *testing.T, w *world, s *simServer) {
		w.say(s)
		later(time.Minute)
		s.fail(true)
		s.mu.Lock()
		s.posts = nil // the server has lost what was not durable
		s.mu.Unlock()
		later(time.Minute)
		s.fail(false)
		later(time.Minute)
		if _, inv := s.last(""); inv == nil {
			t.Error("no inventory after the reconnect")
		}
	})
}

func TestRunHotpluggedVFChangeIsSeen(t *testing.T) { // H93: without a restart
	running(t, 4, func(t *testing.T, w *world, s *simServer) {
		w.say(s)
		later(time.Minute)
		if err := w.k.Cable(dev0, false); err != nil {
			t.Fatal(err)
		}
		later(5 * time.Second)
		if _, inv := s.last(""); inv.PFs[0].LinkUp {
			t.Error("the pulled cable was not seen within seconds")
		}
		if err := w.k.Hand("bus/pci/drivers/vfio-pci/unbind", inv(t, s).PFs[0].VFs[2].PCI); err != nil {
			t.Fatal(err)
		}
		later(10 * time.Second)
		if v := inv(t, s).PFs[0].VFs[2]; v.State != api.VFParked {
			t.Errorf("VF 2 is %s: %s", v.State, v.Reason)
		}
	})
}

func inv(t *testing.T, s *simServer) *api.Inventory {
	t.Helper()
	_, i := s.last("")
	if i == nil {
		t.Fatal("no inventory")
	}
	return i
}

func TestRunGuestThatKeepsStoppingIsNotStartedWithoutRest(t *testing.T) {
	running(t, 4, func(t *testing.T, w *world, s *simServer) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.say(s)
		later(time.Minute)
		w.faults.ForgetLog()
		starts := 0
		for range 600 { // it lives for no second
			if w.hv.PID(uidOf("a")) != 0 {
				starts++
				if err := w.hv.Kill(uidOf("a")); err != nil {
					t.Fatal(err)
				}
			}
			later(time.Second)
		}
		if starts < 5 || starts > 15 {
			t.Errorf("%d starts in ten minutes", starts)
		}
		later(10 * time.Minute)
		if vm, _ := s.last(uidOf("a")); vm.Phase != api.PhaseReady {
			t.Errorf("left to itself it is %+v", vm)
		}
	})
}

// TestA10ManyStartsAndStops is 16 VMs that come and go at once, again and again: no VF twice, no hang.
func TestA10ManyStartsAndStops(t *testing.T) {
	running(t, 8, func(t *testing.T, w *world, s *simServer) {
		w.say(s)
		later(time.Minute)
		for i := range 16 {
			w.add(fmt.Sprintf("v%d", i), vf([]string{pf0, pf1}[i%2], i/2, fmt.Sprintf("02:5a:10:00:01:%02x", i), 100+i))
		}
		for turn := range 20 {
			for i := range w.want.VMs {
				w.want.VMs[i].Power = []string{"on", "off"}[(turn+i)%2]
			}
			w.say(s)
			later(time.Duration(turn%7) * time.Second)
			if err := w.safe(); err != nil {
				t.Fatal(err)
			}
		}
		for i := range w.want.VMs {
			w.want.VMs[i].Power = "on"
		}
		w.say(s)
		later(3 * time.Minute)
		for _, vm := range w.want.VMs {
			if st, _ := s.last(vm.UID); st.Phase != api.PhaseReady {
				t.Errorf("VM %s is %s: %s", vm.Name, st.Phase, st.Message)
			}
		}
	})
}

func TestH85BeatsGoOnWhileTheKernelHangs(t *testing.T) { // H85
	running(t, 4, func(t *testing.T, w *world, s *simServer) {
		w.say(s)
		later(time.Minute)
		_, before, _ := s.counts()
		w.k.Hang("bus/pci/devices/" + dev0 + "/sriov_numvfs")
		w.say(s)
		later(time.Minute)
		_, now, _ := s.counts()
		if now-before < 11 {
			t.Errorf("%d beats in a minute with a hanging PF", now-before)
		}
		w.k.Release("bus/pci/devices/" + dev0 + "/sriov_numvfs")
		later(2 * time.Minute)
		if p := inv(t, s).PFs[0]; !p.Ready {
			t.Errorf("PF after: %s", p.Reason)
		}
	})
}

func TestEventsAreBoundedAndToldOnce(t *testing.T) {
	now := time.Unix(1e9, 0)
	e := &events{now: func() time.Time { return now }}
	for i := range 3 * maxEvents {
		for range 2 {
			e.add(api.Ref{Kind: api.KindHost, Name: "h1"}, warning, "X", fmt.Sprint(i))
		}
	}
	if len(e.list) != maxEvents || len(e.peek()) != maxPosted || e.list[0].Message != fmt.Sprint(2*maxEvents) {
		t.Errorf("%d kept, first %+v", len(e.list), e.list[0])
	}
	told := e.peek()
	e.add(api.Ref{}, warning, "Y", "pushes the oldest out")
	e.take(told)
	if len(e.list) != maxEvents-maxPosted+1 {
		t.Errorf("%d left", len(e.list))
	}
}
