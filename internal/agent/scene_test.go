package agent

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/rtnl"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
)

// scene is a settled host with an agent that knows what the server wants.
func scene(t *testing.T, cfg sysfstest.Config, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, cfg)
		w.boot()
		f(t, w)
	})
}

// now tells the agent what the server wants and lets it settle.
func (w *world) now(what string) {
	w.t.Helper()
	if err := w.tell(); err != nil {
		w.t.Fatal(err)
	}
	w.mustSettle(what)
}

// rounds tells the agent what the server wants and runs it a few times, whatever comes of it.
func (w *world) rounds(n int) (last error) {
	w.t.Helper()
	if err := w.tell(); err != nil {
		w.t.Fatal(err)
	}
	for range n {
		_, last = w.round(w.t.Context())
		if err := w.safe(); err != nil {
			w.t.Fatal(err)
		}
		pauseFor(w.t)
	}
	return last
}

// pf returns a PF as the inventory has it now.
func (w *world) pf(key string) api.PF {
	w.t.Helper()
	if _, err := w.a.reconcileHost(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	for _, p := range w.a.inventory().PFs {
		if p.Key == key {
			return p
		}
	}
	w.t.Fatalf("no PF %s in %+v", key, w.a.inventory().PFs)
	return api.PF{}
}

// vf returns a VF as the inventory has it now.
func (w *world) vf(key string, index int) api.VF {
	w.t.Helper()
	for _, v := range w.pf(key).VFs {
		if v.Index == index {
			return v
		}
	}
	w.t.Fatalf("no VF %d of %s", index, key)
	return api.VF{}
}

// kernelVF returns a VF as the kernel has it.
func (w *world) kernelVF(dev string, index int) sysfstest.State {
	w.t.Helper()
	st, err := w.k.VF(dev, index)
	if err != nil {
		w.t.Fatal(err)
	}
	return st
}

// hand sets a VF's attribute behind the agent's back.
func (w *world) hand(link string, index int, a rtnl.Attr) {
	w.t.Helper()
	if err := w.k.SetVF(w.t.Context(), link, index, a); err != nil {
		w.t.Fatal(err)
	}
}

// told reports whether an event of this reason holds the words.
func (w *world) told(reason, words string) bool {
	for _, e := range w.a.events.peek() {
		if e.Reason == reason && strings.Contains(e.Message, words) {
			return true
		}
	}
	return false
}

func (w *world) wantVF(key string, index int, state, reason string) {
	w.t.Helper()
	v := w.vf(key, index)
	if v.State != state || !strings.Contains(v.Reason, reason) {
		w.t.Errorf("VF %d of %s is %s (%q), want %s (%q)", index, key, v.State, v.Reason, state, reason)
	}
}

func (w *world) wantVM(name, phase, words string) {
	w.t.Helper()
	st := w.status(uidOf(name))
	if st.Phase != phase || !strings.Contains(st.Message, words) {
		w.t.Errorf("VM %s is %s (%q), want %s (%q)", name, st.Phase, st.Message, phase, words)
	}
}

func pauseFor(t testing.TB) {
	t.Helper()
	if err := pause(t.Context(), waitRound); err != nil {
		t.Fatal(err)
	}
}

const waitRound = 30 * time.Second
