package hypertest

import (
	"context"
	"iter"
	"maps"
	"slices"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/hyper"
)

// Driver is one process's connection to a simulated hypervisor.
type Driver struct{ h *Hypervisor }

var _ hyper.Driver = (*Driver)(nil)

// Driver returns a new connection, as a started agent makes it.
func (h *Hypervisor) Driver() *Driver { return &Driver{h} }

// open checks that there are a caller and a daemon, and takes the lock.
func (d *Driver) open() (done func(), err error) {
	if err := d.h.faults.Alive(); err != nil {
		return nil, err
	}
	d.h.mu.Lock()
	if d.h.down {
		d.h.mu.Unlock()
		return nil, fault.New(fault.Unavailable, "the simulated hypervisor's daemon is down")
	}
	return d.h.mu.Unlock, nil
}

// change runs f as one change of the world, under the lock.
func (d *Driver) change(what string, f func() error) error {
	end, err := d.h.faults.Begin(what)
	if err != nil {
		return err
	}
	return end(f())
}

// Define makes or updates a definition.
func (d *Driver) Define(ctx context.Context, dom hyper.Domain) error {
	if err := ctx.Err(); err != nil {
		return fault.Wrap(err, fault.Deadline, "define domain %s: no time left", dom.Name)
	}
	xml := ""
	if d.h.cfg.Render != nil {
		var err error
		if xml, err = d.h.cfg.Render(dom); err != nil {
			return err
		}
	}
	done, err := d.open()
	if err != nil {
		return err
	}
	defer done()
	if err := d.ours(dom.UUID, dom.Name); err != nil {
		return err
	}
	return d.change("virsh define "+dom.Name, func() error { return d.h.define(dom, xml) })
}

// ours refuses to touch a domain that Verbena did not make.
func (d *Driver) ours(uuid, name string) error {
	if have := d.h.domains[uuid]; have != nil && have.now.Owner == (hyper.Owner{}) {
		return fault.New(fault.Conflict, "domain %s (%s) exists and was not made by Verbena; it is left alone", name, uuid)
	}
	return nil
}

// Power brings the domain to Running or Off. A missing domain is Off already.
func (d *Driver) Power(ctx context.Context, uuid string, want hyper.State, hard bool) error {
	if err := ctx.Err(); err != nil {
		return fault.Wrap(err, fault.Deadline, "power %s domain %s: no time left", want, uuid)
	}
	done, err := d.open()
	if err != nil {
		return err
	}
	dom := d.h.domains[uuid]
	if dom == nil {
		done()
		if want == hyper.Off {
			return nil
		}
		return fault.New(fault.NotFound, "domain %s is not defined", uuid)
	}
	if err := d.ours(uuid, dom.now.Name); err != nil || dom.state == want {
		done()
		return err
	}
	if want == hyper.Running {
		hang := d.h.hangs[uuid]
		done()
		return d.start(ctx, uuid, hang)
	}
	defer done()
	if hard {
		return d.change("virsh destroy "+dom.now.Name, func() error { d.h.stop(dom, "simulated: destroyed"); return nil })
	}
	return d.change("virsh shutdown "+dom.now.Name, func() error {
		if !dom.deaf {
			d.h.stop(dom, "simulated: shut down")
		}
		return nil
	})
}

// start starts a domain; one that hangs starts when it is let go, whether its caller still waits or not.
func (d *Driver) start(ctx context.Context, uuid string, hang <-chan struct{}) error {
	begin := func() error {
		done, err := d.open()
		if err != nil {
			return err
		}
		defer done()
		dom := d.h.domains[uuid]
		if dom == nil {
			return fault.New(fault.NotFound, "domain %s is not defined", uuid)
		}
		if dom.state == hyper.Running {
			return nil
		}
		return d.change("virsh start "+dom.now.Name, func() error { return d.h.start(dom) })
	}
	if hang == nil {
		return begin()
	}
	back := make(chan error, 1)
	go func() {
		<-hang
		back <- begin()
	}()
	select {
	case err := <-back:
		return err
	case <-ctx.Done():
		return fault.Wrap(ctx.Err(), fault.Deadline, "start domain %s: the hypervisor did not answer in time; it may still happen", uuid)
	}
}

var _ hyper.Autostarter = (*Driver)(nil)

// NoAutostart makes the daemon leave the domain off when the host boots.
func (d *Driver) NoAutostart(ctx context.Context, uuid string) error {
	if err := ctx.Err(); err != nil {
		return fault.Wrap(err, fault.Deadline, "turn off the autostart of domain %s: no time left", uuid)
	}
	done, err := d.open()
	if err != nil {
		return err
	}
	defer done()
	dom := d.h.domains[uuid]
	if dom == nil {
		return nil
	}
	if err := d.ours(uuid, dom.now.Name); err != nil {
		return err
	}
	return d.change("virsh autostart --disable "+dom.now.Name, func() error { dom.auto = false; return nil })
}

// Undefine removes a stopped domain's definition.
func (d *Driver) Undefine(ctx context.Context, uuid string) error {
	if err := ctx.Err(); err != nil {
		return fault.Wrap(err, fault.Deadline, "undefine domain %s: no time left", uuid)
	}
	done, err := d.open()
	if err != nil {
		return err
	}
	defer done()
	dom := d.h.domains[uuid]
	if dom == nil {
		return nil
	}
	if err := d.ours(uuid, dom.now.Name); err != nil {
		return err
	}
	if dom.state != hyper.Off {
		return fault.New(fault.Unready, "undefine domain %s: it is still %s; power it off first", dom.now.Name, dom.state)
	}
	return d.change("virsh undefine "+dom.now.Name, func() error {
		delete(d.h.domains, uuid)
		d.h.tell(hyper.Event{UUID: uuid, Text: "simulated: undefined"})
		return nil
	})
}

// List returns all domains, sorted by UUID, and says that the host is simulated.
func (d *Driver) List(ctx context.Context) (hyper.Host, []hyper.Seen, error) {
	if err := ctx.Err(); err != nil {
		return hyper.Host{}, nil, fault.Wrap(err, fault.Deadline, "list domains: no time left")
	}
	done, err := d.open()
	if err != nil {
		return hyper.Host{}, nil, err
	}
	defer done()
	var out []hyper.Seen
	for _, id := range slices.Sorted(maps.Keys(d.h.domains)) {
		dom := d.h.domains[id]
		cfg, xml := dom.now, dom.xml
		if dom.state != hyper.Off {
			cfg, xml = dom.live, dom.liveX
		}
		out = append(out, hyper.Seen{UUID: id, Name: cfg.Name, State: dom.state, Owner: cfg.Owner, VFs: slices.Clone(cfg.VFs), XML: xml, Autostart: dom.auto})
	}
	return hyper.Host{Version: "simulated", Simulated: true, KVM: d.h.cfg.KVM}, out, nil
}

// subscription is one reader of events. Its queue has no bound, since a reader that is behind must still
// hear of everything.
type subscription struct {
	queue []hyper.Event
	wake  chan struct{}
}

// tell passes an event to all readers. A daemon that is down tells nothing.
func (h *Hypervisor) tell(e hyper.Event) {
	if h.down {
		return
	}
	for s := range h.subs {
		s.queue = append(s.queue, e)
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// Events yields changes until ctx ends. The first event, once the daemon is there, has no UUID.
func (d *Driver) Events(ctx context.Context) iter.Seq[hyper.Event] {
	return func(yield func(hyper.Event) bool) {
		s := &subscription{wake: make(chan struct{}, 1)}
		h := d.h
		h.mu.Lock()
		h.subs[s] = true
		if !h.down {
			s.queue = []hyper.Event{{Text: "simulated: connected"}}
			s.wake <- struct{}{}
		}
		h.mu.Unlock()
		defer func() {
			h.mu.Lock()
			delete(h.subs, s)
			h.mu.Unlock()
		}()
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.wake:
			}
			h.mu.Lock()
			list := s.queue
			s.queue = nil
			h.mu.Unlock()
			for _, e := range list {
				if ctx.Err() != nil || !yield(e) {
					return
				}
			}
		}
	}
}
