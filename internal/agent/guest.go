package agent

import (
	"context"
	"errors"
	"io"
	"net"
	"reflect"
	"sync"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/guestreport"
	"github.com/verbena-cloud/verbena/internal/hyper"
)

// How much a guest may say. What is over it waits in the guest, whose port fills.
const (
	guestPause  = time.Second      // between two lines
	guestWindow = 256 << 10        // bytes within a second
	guestTell   = time.Minute      // between two statuses that differ
	guestAlive  = 5 * time.Minute  // between two statuses that tell a later time alone
	guestAgain  = 30 * time.Second // before a port is opened again
	guestPorts  = 16               // of RDMA devices in a status
)

// guests hears what the programs inside VMs say of them, one reader per running VM. A guest is hostile until
// proven otherwise: it costs a reader with one bounded line, and what it says is shown and followed by nothing.
type guests struct {
	dial func(ctx context.Context, path string) (io.ReadCloser, error)
	now  func() time.Time
	// changed is told when a status is another.
	changed func()

	mu    sync.Mutex
	wg    sync.WaitGroup
	ctx   context.Context // of the readers; nil before and after run
	want  map[string]string
	heard map[string]*guestLine
}

// guestLine is one VM's reader.
type guestLine struct {
	path   string
	stop   context.CancelFunc
	bad    int64
	status *api.GuestStatus
}

func newGuests(dial func(ctx context.Context, path string) (io.ReadCloser, error), now func() time.Time, changed func()) *guests {
	return &guests{dial: dial, now: now, changed: changed, want: map[string]string{}, heard: map[string]*guestLine{}}
}

// dialUnix opens the hypervisor's end of a port.
func dialUnix(ctx context.Context, path string) (io.ReadCloser, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", path)
}

// run lets readers work until ctx ends, and returns when all have stopped.
func (g *guests) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	g.mu.Lock()
	g.ctx = ctx
	for uid, path := range g.want {
		g.start(uid, path)
	}
	g.mu.Unlock()
	<-ctx.Done()
	g.mu.Lock()
	g.ctx = nil
	g.mu.Unlock()
	cancel()
	g.wg.Wait()
}

// follow reads the VM's port at path from now on; "" ends it and forgets what was said.
func (g *guests) follow(uid, path string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.want[uid] == path {
		return
	}
	if l := g.heard[uid]; l != nil {
		l.stop()
		delete(g.heard, uid)
		if l.status != nil {
			g.changed()
		}
	}
	if path == "" {
		delete(g.want, uid)
		return
	}
	g.want[uid] = path
	if g.ctx != nil {
		g.start(uid, path)
	}
}

// start begins a reader; the caller holds the lock.
func (g *guests) start(uid, path string) {
	ctx, stop := context.WithCancel(g.ctx)
	l := &guestLine{path: path, stop: stop}
	g.heard[uid] = l
	g.wg.Go(func() {
		defer stop()
		for ctx.Err() == nil {
			// That nobody answers says nothing: the domain may just be ending, and a guest need not have the program.
			if conn, err := g.dial(ctx, path); err == nil {
				g.listen(ctx, l, conn)
			}
			if pause(ctx, guestAgain) != nil {
				return
			}
		}
	})
}

// listen takes reports until the stream ends.
func (g *guests) listen(ctx context.Context, l *guestLine, conn io.ReadCloser) {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // a read waits for a guest that says nothing
	defer conn.Close()
	d := guestreport.NewDecoder(&slow{ctx: ctx, r: conn, now: g.now})
	for {
		r, err := d.Next()
		switch bad := (*guestreport.BadLineError)(nil); {
		case errors.As(err, &bad):
			g.mu.Lock()
			l.bad++ // told with the next good line
			g.mu.Unlock()
		case err != nil:
			return
		default:
			g.take(ctx, l, r)
		}
		if pause(ctx, guestPause) != nil {
			return
		}
	}
}

// take makes a report the VM's status, unless it was told too short a time ago.
func (g *guests) take(ctx context.Context, l *guestLine, r guestreport.Report) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if ctx.Err() != nil {
		return // the domain is another by now
	}
	st := guestStatus(r)
	st.Seen, st.BadLines = g.now().UTC().Truncate(time.Second), l.bad
	if old := l.status; old != nil {
		same := *old
		same.Seen = st.Seen
		wait := guestTell
		if reflect.DeepEqual(&same, st) {
			wait = guestAlive
		}
		if st.Seen.Sub(old.Seen) < wait {
			return
		}
	}
	l.status = st
	g.changed()
}

// of is what a VM's status says of its guest, nil for nothing.
func (g *guests) of(uid string) *api.GuestStatus {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.heard[uid]; l != nil {
		return l.status
	}
	return nil
}

// guestStatus keeps of a report what people look at; counters are too many for a status.
func guestStatus(r guestreport.Report) *api.GuestStatus {
	st := &api.GuestStatus{Tool: r.Agent, Kernel: r.Kernel}
	for _, d := range r.Devices {
		for _, p := range d.Ports {
			if len(st.Ports) == guestPorts {
				return st
			}
			x := api.GuestPort{Device: d.Name, Port: p.Port, PCI: d.PCI, Netdev: d.Netdev, Driver: d.Driver, Firmware: d.Firmware,
				State: p.State, GID: p.GID, MTU: p.ActiveMTU, Queues: d.Queues, QPCount: d.QPCount}
			if d.NUMA >= 0 {
				x.NUMA = new(d.NUMA)
			}
			if p.GID != "" && p.GIDIndex >= 0 {
				x.GIDIndex = new(p.GIDIndex)
			}
			st.Ports = append(st.Ports, x)
		}
	}
	return st
}

// guestSocket is where the hypervisor has the port of a running domain, "" where it has none.
func guestSocket(dom *hyper.Seen) string {
	if dom == nil || !up(dom) || dom.Owner == (hyper.Owner{}) {
		return ""
	}
	return dom.Ports[guestPort]
}

// slow lets so many bytes through in a second.
type slow struct {
	ctx   context.Context
	r     io.Reader
	now   func() time.Time
	since time.Time
	n     int
}

// Read reads what the window still has room for.
func (s *slow) Read(b []byte) (int, error) {
	for {
		now := s.now()
		if now.Sub(s.since) >= time.Second || now.Before(s.since) {
			s.since, s.n = now, 0
		}
		if s.n < guestWindow {
			break
		}
		if err := pause(s.ctx, time.Second); err != nil {
			return 0, err
		}
	}
	n, err := s.r.Read(b[:min(len(b), guestWindow-s.n)])
	s.n += n
	return n, err
}
