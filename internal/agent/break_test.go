package agent

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
)

// story is a change of what is wanted or of the world, from a settled host to another.
type story struct {
	name  string
	begin func(*world) // before the change: settled
	turn  func(*world) // the change
	check func(*testing.T, *world)
}

// stories are the changes that break-every-write goes through.
func stories() []story {
	two := func(w *world) { w.add("a", vf(pf0, 0, mac1, 101), vf(pf1, 2, mac2, 102)) }
	return []story{
		{"commission", func(w *world) { w.want.PFs[0].VFs, w.want.PFs[1].VFs = 0, 0 },
			func(w *world) { w.want.PFs[0].VFs, w.want.PFs[1].VFs = 3, 3 }, free(6)},
		{"recommission", nil, func(w *world) { w.want.PFs[0].VFs = 2 }, free(5)},
		{"lossless", nil, lossless, func(t *testing.T, w *world) { free(6)(t, w); isLossless(t, w, pf0, pf1) }},
		{"lossless reboot", lossless, func(w *world) { w.reboot() }, func(t *testing.T, w *world) { free(6)(t, w); isLossless(t, w, pf0, pf1) }},
		{"create", nil, two, ready("a")},
		{"attach", two, func(w *world) { w.add("b", vf(pf0, 1, mac3, 103)) }, ready("a", "b")},
		{"detach", func(w *world) { two(w); w.add("b", vf(pf0, 1, mac3, 103)) },
			func(w *world) { w.vm("b").Absent = true }, func(t *testing.T, w *world) { ready("a")(t, w); absentVM("b")(t, w); free(4)(t, w) }},
		{"delete", two, func(w *world) { w.vm("a").Absent = true }, func(t *testing.T, w *world) { absentVM("a")(t, w); free(6)(t, w) }},
		{"restart", two, func(w *world) { w.boot() }, ready("a")},
		{"reboot", two, func(w *world) { w.reboot() }, ready("a")},
		{"off", two, func(w *world) { w.vm("a").Power = "off" }, phase("a", api.PhaseStopped)},
		{"on", func(w *world) { two(w); w.vm("a").Power = "off" }, func(w *world) { w.vm("a").Power = "on" }, ready("a")},
		{"rebuild", two, func(w *world) { w.vm("a").Generation++; w.vm("a").Instance = "a-2" }, ready("a")},
		{"move", two, func(w *world) { // another VM gets a VF of one that goes
			w.vm("a").Absent = true
			w.add("b", vf(pf0, 0, mac3, 103))
		}, func(t *testing.T, w *world) { ready("b")(t, w); absentVM("a")(t, w); free(5)(t, w) }},
	}
}

// TestARemovalThatHadBegunIsFinishedWithoutTheServer kills the agent at each change of a removal, and
// the next one never hears the server: what was begun must be finished, what was not must stay.
func TestARemovalThatHadBegunIsFinishedWithoutTheServer(t *testing.T) {
	for n := 2; n <= 14; n++ { // change 1 stores the server's word
		synctest.Test(t, func(t *testing.T) {
			w := prepare(t, story{begin: func(w *world) { w.add("a", vf(pf0, 0, mac1, 101), vf(pf1, 2, mac2, 102)) }})
			w.vm("a").Absent = true
			w.faults.Crash(n, true)
			if err := w.tell(); err != nil {
				t.Fatal(err)
			}
			if err := w.settleSafely(t.Context()); !w.faults.Crashed() {
				t.Fatalf("change %d: %v", n, err)
			}
			w.boot()
			if err := w.settleSafely(t.Context()); err != nil {
				t.Fatalf("change %d: %v", n, err)
			}
			settled(t, w, fmt.Sprintf("change %d", n))
			if len(w.a.j.all()) != 0 {
				t.Errorf("change %d: still held: %+v", n, w.a.j.all())
			}
			free(6)(t, w)
		})
	}
}

// reboot is the host and its agent starting anew.
func (w *world) reboot() {
	w.t.Helper()
	if err := w.k.Reboot(); err != nil {
		w.t.Fatal(err)
	}
	w.boot()
}

func ready(names ...string) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		t.Helper()
		for _, n := range names {
			phase(n, api.PhaseReady)(t, w)
			for _, v := range w.status(uidOf(n)).VFs {
				if v.State != api.VFAttached {
					t.Errorf("VM %s: VF %d of %s is %s: %s", n, v.Index, v.PF, v.State, v.Reason)
				}
			}
			if d := w.domains()[uidOf(n)]; d.State != hyper.Running || d.Owner.Generation != w.vm(n).Generation {
				t.Errorf("VM %s: domain %+v", n, d)
			}
		}
	}
}

func phase(name, want string) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		t.Helper()
		if st := w.status(uidOf(name)); st.Phase != want || st.Generation != w.vm(name).Generation {
			t.Errorf("VM %s is %s (%s), generation %d, want %s", name, st.Phase, st.Message, st.Generation, want)
		}
	}
}

func absentVM(name string) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		t.Helper()
		if st := w.status(uidOf(name)); !st.Absent {
			t.Errorf("VM %s is not absent: %+v", name, st)
		}
		if _, ok := w.domains()[uidOf(name)]; ok {
			t.Errorf("VM %s: its domain is still defined", name)
		}
		for path := range w.disk.files {
			if want := "/vms/" + uidOf(name); len(path) > len(want) && path[:len(want)] == want {
				t.Errorf("VM %s: %s is left behind", name, path)
			}
		}
	}
}

// free checks that n VFs are parked, and that every free one really is: on the kernel's side, not on the
// agent's word.
func free(n int) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		t.Helper()
		if _, err := w.a.reconcileHost(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := 0
		for _, p := range w.a.inventory().PFs {
			for _, v := range p.VFs {
				if v.State == api.VFParked {
					got++
				}
			}
		}
		if got != n {
			t.Errorf("%d VFs are parked, want %d: %+v", got, n, w.a.inventory().PFs)
		}
	}
}

// safe checks what must hold at every moment, whatever broke: no VF in two running domains, none in a
// domain whose attributes are not its own, no MAC twice.
func (w *world) safe() error {
	if w.faults.Crashed() {
		return nil // looked at when the next agent runs: nothing changes until then
	}
	_, list, err := w.hv.Driver().List(context.WithoutCancel(w.t.Context()))
	if err != nil {
		return nil //nolint:nilerr // the daemon is away; its domains are looked at when it is back
	}
	user, mac := map[string]hyper.VF{}, map[string]string{}
	for _, d := range list {
		if d.State != hyper.Running || (d.Owner == hyper.Owner{}) {
			continue
		}
		for _, v := range d.VFs {
			if _, ok := user[v.Host.String()]; ok {
				return fmt.Errorf("%s is in %s and in another domain", v.Host, d.Name)
			}
			user[v.Host.String()] = v
			if by, ok := mac[v.MAC.String()]; ok {
				return fmt.Errorf("MAC %s is in %s and %s", v.MAC, by, d.Name)
			}
			mac[v.MAC.String()] = d.Name
		}
	}
	seen := map[roce.MAC]string{}
	for _, dev := range []string{dev0, dev1} {
		for i := range 8 {
			st, err := w.k.VF(dev, i)
			if err != nil {
				break
			}
			name := fmt.Sprintf("VF %d of %s", i, dev)
			if by, ok := seen[st.Attr.MAC]; ok && !st.Attr.MAC.IsZero() {
				return fmt.Errorf("%s and %s both have MAC %s", name, by, st.Attr.MAC)
			}
			seen[st.Attr.MAC] = name
			v, ok := user[st.PCI]
			if ok && (v.MAC != st.Attr.MAC || v.VLAN != st.Attr.VLAN || v.QoS != st.Attr.QoS || !*st.Attr.SpoofCheck) {
				return fmt.Errorf("%s runs in a domain, programmed as %+v", name, st.Attr)
			}
		}
	}
	return nil
}

// TestBreakEveryWrite breaks each change of each story in turn: it fails before it took effect, after
// it, or the agent is killed before or after it. Then the story must still end well, and once it has,
// nothing may be written any more.
func TestBreakEveryWrite(t *testing.T) {
	for _, s := range stories() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			n := breakAll(t, s)
			t.Logf("%d changes, each broken in four ways", n)
		})
	}
}

func breakAll(t *testing.T, s story) int {
	total := 0
	for n := 0; n <= total; n++ {
		for _, how := range []string{"fails", "fails after", "crash", "crash after"} {
			synctest.Test(t, func(t *testing.T) {
				w := prepare(t, s)
				s.turn(w)
				w.faults.ForgetLog()
				if n > 0 {
					arm(w.faults, how, n)
				}
				finish(t, w, fmt.Sprintf("change %d %s", n, how))
				if n == 0 {
					total = len(w.faults.Log())
				}
				settled(t, w, fmt.Sprintf("change %d %s", n, how))
				s.check(t, w)
			})
			if t.Failed() || n == 0 {
				break
			}
		}
		if t.Failed() {
			break
		}
	}
	return total
}

func arm(f *sysfstest.Faults, how string, n int) {
	switch how {
	case "fails":
		f.FailWrite(n, syscall.EIO, false)
	case "fails after":
		f.FailWrite(n, syscall.EIO, true)
	case "crash":
		f.Crash(n, false)
	case "crash after":
		f.Crash(n, true)
	}
}

func prepare(t *testing.T, s story) *world {
	w := newWorld(t, host(3))
	if s.begin != nil {
		s.begin(w)
	}
	w.boot()
	if err := w.tell(); err != nil {
		t.Fatal(err)
	}
	if err := w.settle(); err != nil {
		t.Fatalf("before: %v", err)
	}
	return w
}

// finish runs the agent, and a new one each time it was killed, until all is settled.
func finish(t *testing.T, w *world, what string) {
	t.Helper()
	for range 3 {
		if err := w.tell(); err != nil && !w.faults.Crashed() && !errors.Is(err, syscall.EIO) {
			t.Fatal(err)
		}
		err := w.settleSafely(t.Context())
		switch {
		case w.faults.Crashed():
			w.boot()
		case err != nil:
			t.Fatalf("%s: %v", what, err)
		default:
			return
		}
	}
	t.Fatalf("%s: killed again and again", what)
}

// settleSafely settles and looks after each round whether something unsafe happened.
func (w *world) settleSafely(ctx context.Context) error {
	var last error
	for range 300 {
		before := len(w.faults.Log())
		wait, err := w.round(ctx)
		if err := w.safe(); err != nil {
			return err
		}
		if w.faults.Crashed() {
			return sysfstest.ErrCrashed
		}
		if last = err; err == nil && wait == 0 && len(w.faults.Log()) == before {
			return nil
		}
		<-time.After(max(wait, time.Second))
	}
	return fmt.Errorf("it does not settle: %w", last)
}

// settled shows that one more round of everything writes nothing.
func settled(t *testing.T, w *world, what string) {
	t.Helper()
	w.faults.ForgetLog()
	for range 2 {
		if _, err := w.round(t.Context()); err != nil {
			t.Fatalf("%s: once more: %v", what, err)
		}
	}
	if log := w.faults.Log(); len(log) != 0 {
		t.Fatalf("%s: not settled: %q", what, log)
	}
}
