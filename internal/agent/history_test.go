package agent

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// act is one thing that happens in a random history.
type act struct {
	Kind string
	X, Y int
}

func acts() *rapid.Generator[[]act] {
	one := rapid.Custom(func(t *rapid.T) act {
		return act{rapid.SampledFrom([]string{"create", "create", "create", "delete", "rebuild", "power", "crash", "fail", "fail",
			"reboot", "qemu", "restart", "stale", "rounds", "rounds"}).Draw(t, "kind"),
			rapid.IntRange(0, 30).Draw(t, "x"), rapid.IntRange(0, 30).Draw(t, "y")}
	})
	return rapid.SliceOfN(one, 1, 40)
}

// TestRandomHistories lets a server that obeys its own rules (it gives out what was reported parked and
// takes back what was proven absent) meet a host where anything can break, and looks at every step for
// a VF in two domains, one in a domain that was not programmed for it, or one MAC in two places.
func TestRandomHistories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		list := acts().Draw(rt, "acts")
		var failed error
		synctest.Test(t, func(t *testing.T) { failed = live(t, list) })
		if failed != nil {
			rt.Fatal(failed)
		}
	})
}

// ledger is the server's side of a history.
type ledger struct {
	*world
	next int
	gens map[string]int64
}

func live(t *testing.T, list []act) error {
	l := &ledger{world: newWorld(t, host(3)), gens: map[string]int64{}}
	l.boot()
	if err := l.step(3); err != nil {
		return err
	}
	for i, a := range list {
		if err := l.act(a); err != nil {
			return fmt.Errorf("act %d (%+v): %w", i, a, err)
		}
		if err := l.step(1 + a.Y%3); err != nil {
			return fmt.Errorf("after act %d (%+v): %w", i, a, err)
		}
	}
	l.faults.FailWrite(0, nil, false)
	return l.end(t)
}

// end lets everything come to rest, and then wants all VMs ready or stopped and all else parked.
func (l *ledger) end(t *testing.T) error {
	for range 3 {
		if err := l.step(2); err != nil {
			return err
		}
		if err := l.settleSafely(t.Context()); err != nil && !l.faults.Crashed() {
			return err
		}
	}
	for _, vm := range l.want.VMs {
		st := l.status(vm.UID)
		if (vm.Power == "on" && st.Phase != api.PhaseReady) || (vm.Power != "on" && st.Phase != api.PhaseStopped) {
			return fmt.Errorf("at the end VM %s (power %s, absent %v) is %s: %s", vm.Name, vm.Power, vm.Absent, st.Phase, st.Message)
		}
	}
	held := 0
	for _, p := range l.a.inventory().PFs {
		for _, v := range p.VFs {
			if v.State != api.VFParked && v.VM == "" {
				return fmt.Errorf("at the end VF %d of %s is %s: %s", v.Index, p.Key, v.State, v.Reason)
			}
			if v.VM != "" {
				held++
			}
		}
	}
	want := 0
	for _, vm := range l.want.VMs {
		want += len(vm.VFs)
	}
	if held != want {
		return fmt.Errorf("at the end %d VFs are held, %d should be", held, want)
	}
	return nil
}

// step tells the agent the server's word and runs it for some rounds.
func (l *ledger) step(rounds int) error {
	for range rounds {
		if l.faults.Crashed() {
			l.boot()
		}
		l.collect()
		if err := l.tell(); err != nil && !expected(err) {
			return err
		}
		if _, err := l.round(l.t.Context()); err != nil && !expected(err) && l.faults.Crashed() {
			return err
		}
		if err := l.safe(); err != nil {
			return err
		}
		<-time.After(20 * time.Second)
	}
	return nil
}

func expected(err error) bool {
	return errors.Is(err, syscall.EIO) || errors.Is(err, sysfstest.ErrCrashed)
}

// collect is the server taking releases, on proof of the very generation only.
func (l *ledger) collect() {
	if l.a == nil {
		return
	}
	for _, st := range l.a.vmStatus() {
		i := slices.IndexFunc(l.want.VMs, func(v wire.VM) bool { return v.UID == st.UID })
		if i >= 0 && l.want.VMs[i].Absent && st.Absent && st.Generation == l.want.VMs[i].Generation {
			l.want.VMs = slices.Delete(l.want.VMs, i, i+1)
		}
	}
}

// parked returns the VFs that the server may give out: reported parked, and not promised already.
func (l *ledger) parked() []wire.VF {
	inv := l.a.inventory()
	if inv == nil {
		return nil
	}
	var out []wire.VF
	for _, p := range inv.PFs {
		for _, v := range p.VFs {
			taken := slices.ContainsFunc(l.want.VMs, func(vm wire.VM) bool {
				return slices.ContainsFunc(vm.VFs, func(x wire.VF) bool { return x.PF == p.Key && x.Index == v.Index })
			})
			if p.Ready && v.State == api.VFParked && !taken {
				out = append(out, wire.VF{PF: p.Key, Index: v.Index})
			}
		}
	}
	return out
}

func (l *ledger) act(a act) error {
	var vm *wire.VM
	if n := len(l.want.VMs); n > 0 {
		vm = &l.want.VMs[a.X%n]
	}
	switch a.Kind {
	case "create":
		free := l.parked()
		var take []wire.VF
		for i := range min(1+a.Y%2, len(free)) {
			f := free[(a.X+i)%len(free)]
			take = append(take, vf(f.PF, f.Index, fmt.Sprintf("02:5a:10:00:%02x:%02x", l.next, i), 100+l.next%50))
		}
		if len(take) > 0 {
			l.next++
			l.add(fmt.Sprintf("v%d", l.next), take...)
		}
	case "delete":
		if vm != nil {
			vm.Absent = true
		}
	case "rebuild":
		if vm != nil && !vm.Absent {
			vm.Generation++
			vm.Instance += "x"
		}
	case "power":
		if vm != nil {
			vm.Power = map[string]string{"on": "off", "off": "on"}[vm.Power]
		}
	case "crash":
		l.faults.Crash(1+a.X, a.Y%2 == 0)
	case "fail":
		l.faults.FailWrite(1+a.X, syscall.EIO, a.Y%2 == 0)
	default:
		return l.disturb(a, vm)
	}
	return nil
}

// disturb is what the world does by itself.
func (l *ledger) disturb(a act, vm *wire.VM) error {
	switch a.Kind {
	case "reboot":
		if err := l.k.Reboot(); err != nil {
			return err
		}
		l.boot()
	case "restart":
		l.boot()
	case "qemu":
		if vm != nil && l.hv.PID(vm.UID) != 0 {
			return l.hv.Kill(vm.UID)
		}
	case "stale": // a replica that is behind says what was true before
		if l.a.desired != nil && l.a.desired.Revision > 1 {
			d := *l.a.desired
			d.Revision--
			d.VMs = nil
			return l.a.take(&d)
		}
	case "rounds":
		return l.step(a.X % 4)
	}
	return nil
}
