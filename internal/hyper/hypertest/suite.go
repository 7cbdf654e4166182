package hypertest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/hyper"
)

// Fixture is a hypervisor for one subtest of the suite, with nothing of ours on it.
type Fixture struct {
	// Connect returns a new connection to the same hypervisor, as a restarted agent has it.
	Connect func() hyper.Driver
	// Domain describes domain number i (0 to 2) of this hypervisor, with vfs VFs; VF k of every domain is
	// the same host function, so that two of them can't run at once.
	Domain func(i, vfs int) hyper.Domain
	// Foreign is the UUID and name of a domain that was not made by us; "" = there can be none.
	Foreign, ForeignName string
	// Exclusive says that VFs are real enough to be refused to a second domain.
	Exclusive bool
	// Kill ends a running domain's process; nil = this engine has no processes.
	Kill func(uuid string)
	// Stop and Start are the death and return of the daemon; nil = not here.
	Stop, Start func()
}

// suiteTime bounds what the suite waits for an event of a real daemon.
const suiteTime = time.Minute

// Run runs the conformance suite of hyper.Driver.
func Run(t *testing.T, open func(t *testing.T) Fixture) {
	t.Helper()
	for _, c := range []struct {
		name string
		test func(*testing.T, Fixture)
	}{
		{"LifeCycle", lifeCycle}, {"Missing", missing}, {"Conflicts", conflicts}, {"Foreign", foreign},
		{"RedefineRunning", redefineRunning}, {"NewConnection", newConnection}, {"EndedContext", endedContext},
		{"Exclusive", exclusive}, {"Killed", killed}, {"Events", events}, {"DaemonDeath", daemonDeath},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

// seen returns the domain as the hypervisor lists it, nil if it does not.
func seen(t *testing.T, d hyper.Driver, uuid string) *hyper.Seen {
	t.Helper()
	_, list, err := d.List(t.Context())
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	if i := slices.IndexFunc(list, func(s hyper.Seen) bool { return s.UUID == uuid }); i >= 0 {
		return &list[i]
	}
	return nil
}

func expect(t *testing.T, d hyper.Driver, dom hyper.Domain, state hyper.State) {
	t.Helper()
	s := seen(t, d, dom.UUID)
	if s == nil {
		t.Fatalf("domain %s is not listed, want it %s", dom.Name, state)
	}
	if s.Name != dom.Name || s.State != state || s.Owner != dom.Owner || !slices.Equal(s.VFs, dom.VFs) {
		t.Fatalf("domain is listed as %+v\nwant %s, %+v", *s, state, dom)
	}
}

func twice(t *testing.T, what string, f func() error) {
	t.Helper()
	for _, nth := range []string{"first", "second"} {
		if err := f(); err != nil {
			t.Fatalf("%s, %s time: %v", what, nth, err)
		}
	}
}

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func wantKind(t *testing.T, what string, err error, kind fault.Kind) {
	t.Helper()
	if !fault.Is(err, kind) {
		t.Fatalf("%s: %v, want a fault of kind %s", what, err, kind)
	}
}

// lifeCycle: every call is idempotent, and everything is read back as it was defined.
func lifeCycle(t *testing.T, f Fixture) {
	d, ctx := f.Connect(), t.Context()
	dom := f.Domain(0, 2)
	twice(t, "define", func() error { return d.Define(ctx, dom) })
	expect(t, d, dom, hyper.Off)
	twice(t, "start", func() error { return d.Power(ctx, dom.UUID, hyper.Running, false) })
	expect(t, d, dom, hyper.Running)
	wantKind(t, "undefine a running domain", d.Undefine(ctx, dom.UUID), fault.Unready)
	expect(t, d, dom, hyper.Running)
	twice(t, "cut the power", func() error { return d.Power(ctx, dom.UUID, hyper.Off, true) })
	expect(t, d, dom, hyper.Off)
	must(t, "start again", d.Power(ctx, dom.UUID, hyper.Running, false))
	must(t, "cut the power again", d.Power(ctx, dom.UUID, hyper.Off, true))
	twice(t, "undefine", func() error { return d.Undefine(ctx, dom.UUID) })
	if s := seen(t, d, dom.UUID); s != nil {
		t.Fatalf("after undefine it is still listed: %+v", *s)
	}
}

func missing(t *testing.T, f Fixture) {
	d, ctx := f.Connect(), t.Context()
	dom := f.Domain(0, 0)
	must(t, "stop a missing domain", d.Power(ctx, dom.UUID, hyper.Off, true))
	must(t, "ask a missing domain to shut down", d.Power(ctx, dom.UUID, hyper.Off, false))
	must(t, "undefine a missing domain", d.Undefine(ctx, dom.UUID))
	wantKind(t, "start a missing domain", d.Power(ctx, dom.UUID, hyper.Running, false), fault.NotFound)
}

func conflicts(t *testing.T, f Fixture) {
	d, ctx := f.Connect(), t.Context()
	a, b := f.Domain(0, 0), f.Domain(1, 0)
	must(t, "define", d.Define(ctx, a))
	b.Name = a.Name
	wantKind(t, "define another UUID under a taken name", d.Define(ctx, b), fault.Conflict)
	if s := seen(t, d, b.UUID); s != nil {
		t.Fatalf("the refused domain is listed: %+v", *s)
	}
	expect(t, d, a, hyper.Off)
	must(t, "undefine", d.Undefine(ctx, a.UUID))
	must(t, "define under the free name", d.Define(ctx, b))
}

func foreign(t *testing.T, f Fixture) {
	if f.Foreign == "" {
		t.Skip("this hypervisor has no foreign domain")
	}
	d, ctx := f.Connect(), t.Context()
	before := seen(t, d, f.Foreign)
	if before == nil || before.Owner != (hyper.Owner{}) {
		t.Fatalf("the foreign domain is listed as %+v, want it without an owner", before)
	}
	taken, named := f.Domain(0, 0), f.Domain(1, 0)
	taken.UUID = f.Foreign
	named.Name = f.ForeignName
	wantKind(t, "define over it", d.Define(ctx, taken), fault.Conflict)
	wantKind(t, "define under its name", d.Define(ctx, named), fault.Conflict)
	wantKind(t, "power it off", d.Power(ctx, f.Foreign, hyper.Off, true), fault.Conflict)
	wantKind(t, "undefine it", d.Undefine(ctx, f.Foreign), fault.Conflict)
	if after := seen(t, d, f.Foreign); after == nil || after.State != before.State {
		t.Fatalf("the foreign domain was %+v and is %+v", before, after)
	}
}

// redefineRunning: a running domain keeps running as it was until it is started again.
func redefineRunning(t *testing.T, f Fixture) {
	d, ctx := f.Connect(), t.Context()
	old := f.Domain(0, 0)
	must(t, "define", d.Define(ctx, old))
	must(t, "start", d.Power(ctx, old.UUID, hyper.Running, false))
	changed := f.Domain(0, 1)
	changed.Owner.Generation++
	must(t, "redefine", d.Define(ctx, changed))
	if s := seen(t, d, old.UUID); s == nil || s.State != hyper.Running || len(s.VFs) != 0 {
		t.Fatalf("the running domain is listed as %+v, want it as it was started", s)
	}
	must(t, "stop", d.Power(ctx, old.UUID, hyper.Off, true))
	expect(t, d, changed, hyper.Off)
}

func newConnection(t *testing.T, f Fixture) {
	ctx := t.Context()
	dom := f.Domain(0, 1)
	d := f.Connect()
	must(t, "define", d.Define(ctx, dom))
	must(t, "start", d.Power(ctx, dom.UUID, hyper.Running, false))
	d = f.Connect()
	expect(t, d, dom, hyper.Running)
	must(t, "stop", d.Power(ctx, dom.UUID, hyper.Off, true))
	expect(t, d, dom, hyper.Off)
}

func endedContext(t *testing.T, f Fixture) {
	d := f.Connect()
	dom := f.Domain(0, 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantKind(t, "define", d.Define(ctx, dom), fault.Deadline)
	_, _, err := d.List(ctx)
	wantKind(t, "list", err, fault.Deadline)
}

// exclusive: a VF is in one running domain only, and free again after it.
func exclusive(t *testing.T, f Fixture) {
	if !f.Exclusive {
		t.Skip("this hypervisor does not look at the devices")
	}
	d, ctx := f.Connect(), t.Context()
	a, b := f.Domain(0, 1), f.Domain(1, 1)
	must(t, "define", d.Define(ctx, a))
	must(t, "define", d.Define(ctx, b))
	must(t, "start", d.Power(ctx, a.UUID, hyper.Running, false))
	wantKind(t, "start a second domain with the VF", d.Power(ctx, b.UUID, hyper.Running, false), fault.Unready)
	expect(t, d, a, hyper.Running)
	expect(t, d, b, hyper.Off)
	must(t, "stop", d.Power(ctx, a.UUID, hyper.Off, true))
	must(t, "start the second domain", d.Power(ctx, b.UUID, hyper.Running, false))
}

func killed(t *testing.T, f Fixture) {
	if f.Kill == nil {
		t.Skip("this hypervisor has no processes")
	}
	d, ctx := f.Connect(), t.Context()
	dom := f.Domain(0, 1)
	must(t, "define", d.Define(ctx, dom))
	must(t, "start", d.Power(ctx, dom.UUID, hyper.Running, false))
	next, stop := follow(t, d)
	defer stop()
	next("the first", func(e hyper.Event) bool { return e.UUID == "" })
	f.Kill(dom.UUID)
	next("the end of the domain", func(e hyper.Event) bool { return e.UUID == dom.UUID })
	expect(t, d, dom, hyper.Off)
	must(t, "start again", d.Power(ctx, dom.UUID, hyper.Running, false))
}

// follow reads events in the background. next waits for one that matches.
func follow(t *testing.T, d hyper.Driver) (next func(what string, match func(hyper.Event) bool), stop func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), suiteTime)
	ch := make(chan hyper.Event, 256)
	go func() {
		defer close(ch)
		for e := range d.Events(ctx) {
			ch <- e
		}
	}()
	next = func(what string, match func(hyper.Event) bool) {
		t.Helper()
		for e := range ch {
			if match(e) {
				return
			}
		}
		t.Fatalf("no event: %s", what)
	}
	return next, func() {
		cancel()
		for range ch { // the reader must end with its context
		}
	}
}

func events(t *testing.T, f Fixture) {
	d, ctx := f.Connect(), t.Context()
	dom := f.Domain(0, 0)
	ours := func(e hyper.Event) bool { return e.UUID == dom.UUID }
	next, stop := follow(t, d)
	next("anything may have happened before", func(e hyper.Event) bool { return e.UUID == "" })
	must(t, "define", d.Define(ctx, dom))
	next("defined", ours)
	must(t, "start", d.Power(ctx, dom.UUID, hyper.Running, false))
	next("started", ours)
	must(t, "stop", d.Power(ctx, dom.UUID, hyper.Off, true))
	next("stopped", ours)
	must(t, "undefine", d.Undefine(ctx, dom.UUID))
	next("undefined", ours)
	stop()
}

// daemonDeath: calls fail as Unavailable meanwhile, work again afterwards without anybody's help, and the
// event stream says that everything must be looked at again. What the daemon remembers is its affair:
// defining again converges.
func daemonDeath(t *testing.T, f Fixture) {
	if f.Stop == nil || f.Start == nil {
		t.Skip("this hypervisor's daemon can't be stopped here")
	}
	d, ctx := f.Connect(), t.Context()
	dom := f.Domain(0, 1)
	relist := func(e hyper.Event) bool { return e.UUID == "" }
	next, stop := follow(t, d)
	defer stop()
	next("the first", relist)
	must(t, "define", d.Define(ctx, dom))
	f.Stop()
	_, _, err := d.List(ctx)
	wantKind(t, "list", err, fault.Unavailable)
	wantKind(t, "define", d.Define(ctx, dom), fault.Unavailable)
	wantKind(t, "start", d.Power(ctx, dom.UUID, hyper.Running, false), fault.Unavailable)
	f.Start()
	next("the daemon is back", relist)
	must(t, "define again", d.Define(ctx, dom))
	must(t, "start", d.Power(ctx, dom.UUID, hyper.Running, false))
	expect(t, d, dom, hyper.Running)
}
