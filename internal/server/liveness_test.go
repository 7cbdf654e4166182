package server

import (
	"fmt"
	"testing"
	"time"

	"github.com/verbena-cloud/verbena/api"
)

func TestLivenessOfAHost(t *testing.T) {
	start := newTestClock().Now()
	l := newLiveness(start)
	at := start.Add
	type want struct{ alive, lost bool }
	check := func(d time.Duration, w want) {
		t.Helper()
		lost, _ := l.lost("h", at(d))
		if got := (want{l.alive("h", at(d)), lost}); got != w {
			t.Errorf("at %s: %+v, want %+v", d, got, w)
		}
	}
	second := time.Second
	check(0, want{false, false})                  // just started: not up, but not lost either
	check(hostTTL-1, want{false, false})          // a full TTL of grace
	check(hostTTL, want{false, true})             // silent for all of it
	l.connect("h", at(20*second))                 // here it is
	check(20*second, want{false, true})           // but nobody knows yet what it looks like
	l.beat("h", false, at(21*second))             // a beat alone is not enough
	check(21*second, want{false, true})           //
	l.beat("h", true, at(22*second))              // its inventory is there
	check(22*second, want{true, false})           //
	check(22*second+hostTTL-1, want{true, false}) // up to the last moment
	check(22*second+hostTTL, want{false, true})   // no beat: unknown
	l.beat("h", false, at(40*second))             // the same connection is back
	check(40*second, want{true, false})           //
	l.connect("h", at(41*second))                 // it reconnects and was up: no flicker
	check(42*second, want{true, false})           //
	l.beat("h", false, at(50*second))             //
	check(41*second+hostTTL-1, want{true, false}) //
	check(41*second+hostTTL, want{false, true})   // but the inventory must come again
}

func TestLivenessTellsEachTurnOnce(t *testing.T) {
	start := newTestClock().Now()
	l := newLiveness(start)
	l.connect("a", start)
	l.beat("a", true, start)
	l.expect("b")
	l.expect("a")
	got := fmt.Sprint(l.turns(start), l.turns(start))
	if want := fmt.Sprint([]turn{{"a", true, start}, {"b", false, time.Time{}}}, []turn(nil)); got != want {
		t.Errorf("turns %s, want %s", got, want)
	}
	l.forget("b")
	if got := l.turns(start.Add(hostTTL)); len(got) != 1 || got[0].up || got[0].host != "a" {
		t.Errorf("turns %v", got)
	}
}

func TestVMsOfALostHostAreShownAsUnknown(t *testing.T) {
	x := newSite(t)
	v := &api.VM{Status: api.VMStatus{Host: "h", Phase: api.PhaseReady, Conditions: []api.Condition{{Type: "Ready", Status: "True"}}}}
	original := v.Status.Conditions
	x.s.shadeVM(v)
	if v.Status.Phase != api.PhaseReady {
		t.Errorf("within the grace of a start: %s", v.Status.Phase)
	}
	x.clock.advance(hostTTL)
	x.s.shadeVM(v)
	if v.Status.Phase != api.PhaseUnknown || v.Status.Conditions[0].Status != "Unknown" || v.Status.Message == "" {
		t.Errorf("after it: %+v", v.Status)
	}
	if original[0].Status != "True" {
		t.Error("the stored conditions were changed")
	}
	d := &api.VM{Status: api.VMStatus{Host: "h", Phase: api.PhaseDeleting}}
	if x.s.shadeVM(d); d.Status.Phase != api.PhaseDeleting || d.Status.Message == "" {
		t.Errorf("a VM that is being deleted: %+v", d.Status)
	}
	h := &api.Host{}
	h.Name = "h"
	if x.s.shadeHost(h); h.Status.State != api.HostJoining || h.Status.Seen != nil {
		t.Errorf("a host that never reported: %+v", h.Status)
	}
	h.Status.Inventory = &api.Inventory{}
	if x.s.shadeHost(h); h.Status.State != api.HostUnknown {
		t.Errorf("a silent host: %+v", h.Status)
	}
	x.s.ident.live.connect("h", x.clock.Now())
	x.s.ident.live.beat("h", true, x.clock.Now())
	if x.s.shadeHost(h); h.Status.State != api.HostUp || h.Status.Seen == nil || !x.s.alive("h") {
		t.Errorf("a host that shows itself: %+v", h.Status)
	}
}

func BenchmarkLivenessSweep(b *testing.B) {
	now := newTestClock().Now()
	l := newLiveness(now)
	for i := range 10_000 {
		host := fmt.Sprintf("hv-%d", i)
		l.connect(host, now)
		l.beat(host, true, now)
	}
	l.turns(now)
	for b.Loop() {
		if len(l.turns(now)) != 0 {
			b.Fatal("turned")
		}
	}
}
