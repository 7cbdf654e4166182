package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-cloud/verbena/internal/guestreport"
	"github.com/verbena-cloud/verbena/internal/hyper"
)

// room is guests with VMs behind them that are written to by the test.
type room struct {
	*guests
	changes atomic.Int32
	dials   atomic.Int32
	ends    chan end
	aside   map[string]net.Conn
}

// end is a VM's end of its port.
type end struct {
	path string
	conn net.Conn
}

// at waits for the VM whose port is at path.
func (r *room) at(path string) net.Conn {
	for r.aside[path] == nil {
		e := <-r.ends
		r.aside[e.path] = e.conn
	}
	c := r.aside[path]
	delete(r.aside, path)
	return c
}

// enter runs the readers for the length of a test.
func enter(t *testing.T) *room {
	t.Helper()
	r := &room{ends: make(chan end, 64), aside: map[string]net.Conn{}}
	r.guests = newGuests(func(_ context.Context, path string) (io.ReadCloser, error) {
		r.dials.Add(1)
		if path == "/nobody" {
			return nil, errors.New("refused")
		}
		host, vm := net.Pipe()
		r.ends <- end{path, vm}
		return host, nil
	}, time.Now, func() { r.changes.Add(1) })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { r.run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	synctest.Wait()
	return r
}

func line(t *testing.T, qps int64) []byte {
	t.Helper()
	b, err := guestreport.Encode(guestreport.Report{Seq: 1, Kernel: "6.12.0", Agent: "v1", Devices: []guestreport.Device{{Name: "mlx5_0", Netdev: "rdma0", Queues: 4, QPCount: &qps,
		Ports: []guestreport.Port{{Port: 1, State: "ACTIVE", GID: "10.20.0.5", GIDIndex: 3, ActiveMTU: 4096}}}}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func say(t *testing.T, c net.Conn, b []byte) {
	t.Helper()
	if _, err := c.Write(b); err != nil {
		t.Error(err)
	}
	synctest.Wait()
}

func wait(t *testing.T, d time.Duration) {
	t.Helper()
	if err := pause(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

func TestGuestIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := enter(t)
		r.follow("vm-1", "/run/5/port")
		r.follow("vm-1", "/run/5/port")
		vm := r.at("/run/5/port")
		say(t, vm, line(t, 5))
		st := r.of("vm-1")
		if st == nil || st.Tool != "v1" || st.Kernel != "6.12.0" || len(st.Ports) != 1 || r.dials.Load() != 1 {
			t.Fatalf("%+v", st)
		}
		if p := st.Ports[0]; p.GID != "10.20.0.5" || *p.GIDIndex != 3 || p.MTU != 4096 || p.Queues != 4 || *p.QPCount != 5 || *p.NUMA != 0 {
			t.Errorf("%+v", p)
		}
		// What changes is told once a minute, and that it lives every five.
		wait(t, 30*time.Second)
		say(t, vm, line(t, 6))
		if *r.of("vm-1").Ports[0].QPCount != 5 || r.changes.Load() != 1 {
			t.Error("told again within the minute")
		}
		wait(t, 31*time.Second)
		say(t, vm, line(t, 6))
		if *r.of("vm-1").Ports[0].QPCount != 6 || r.changes.Load() != 2 {
			t.Error("a change was not told")
		}
		wait(t, 2*time.Minute)
		say(t, vm, line(t, 6))
		if r.changes.Load() != 2 {
			t.Error("the same was told again after two minutes")
		}
		wait(t, 4*time.Minute)
		say(t, vm, line(t, 6))
		if r.changes.Load() != 3 {
			t.Error("that it lives was not told")
		}
		// Another domain of the same VM is another guest, and one that is off is none.
		r.follow("vm-1", "/run/6/port")
		if r.of("vm-1") != nil {
			t.Error("the guest before the restart is still told of")
		}
		say(t, r.at("/run/6/port"), line(t, 7))
		r.follow("vm-1", "")
		synctest.Wait()
		if r.of("vm-1") != nil || r.changes.Load() != 6 {
			t.Errorf("%+v after %d changes", r.of("vm-1"), r.changes.Load())
		}
	})
}

// TestHostileGuest: nonsense is counted, a flood is slowed down in the guest, and a guest that ends is heard
// again when it comes back. Nobody else waits for any of it.
func TestHostileGuest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := enter(t)
		r.follow("evil", "/run/1/port")
		r.follow("none", "/nobody")
		r.follow("good", "/run/2/port")
		evil, good := r.at("/run/1/port"), r.at("/run/2/port")
		start := time.Now()
		flood := bytes.Repeat([]byte("x"), 1<<20) // one endless line
		for range 8 {
			say(t, evil, flood)
		}
		if took := time.Since(start); took < 30*time.Second {
			t.Errorf("8 MiB were taken in %v", took)
		}
		if _, err := fmt.Fprintf(evil, "\nnonsense\n{\"v\":1,\"kernel\":\"\\u001b[2J\",\"mood\":1}\n"); err != nil {
			t.Fatal(err)
		}
		wait(t, 10*time.Second)
		say(t, good, line(t, 1))
		one, other := r.of("evil"), r.of("good")
		if one == nil || other == nil || other.BadLines != 0 {
			t.Fatalf("%+v %+v", one, other)
		}
		if one.BadLines != 2 || strings.Contains(one.Kernel, "\x1b") {
			t.Errorf("%+v", one)
		}
		_ = evil.Close()
		dials := r.dials.Load()
		wait(t, 31*time.Second)
		if r.dials.Load() != dials+2 { // it, and the one where nobody answers
			t.Errorf("dialled %d times in half a minute", r.dials.Load()-dials)
		}
		_ = good.Close()
	})
}

func TestGuestSocket(t *testing.T) {
	dom := &hyper.Seen{State: hyper.Running, Owner: hyper.Owner{VM: "a"}, Ports: map[string]string{guestPort: "/run/x", "other": "/run/y"}}
	if got := guestSocket(dom); got != "/run/x" {
		t.Errorf("%q", got)
	}
	off, foreign := *dom, *dom
	off.State, foreign.Owner = hyper.Off, hyper.Owner{}
	for _, d := range []*hyper.Seen{nil, &off, &foreign, {State: hyper.Running, Owner: dom.Owner}} {
		if got := guestSocket(d); got != "" {
			t.Errorf("%+v: %q", d, got)
		}
	}
}

func TestDialUnix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "port")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := dialUnix(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	_ = l.Close()
	_ = os.Remove(path)
	if _, err := dialUnix(t.Context(), path); err == nil {
		t.Error("nobody listens there")
	}
}

func TestGuestStatusIsBounded(t *testing.T) {
	r := guestreport.Report{}
	for range 64 {
		r.Devices = append(r.Devices, guestreport.Device{NUMA: -1, Ports: make([]guestreport.Port, 8)})
	}
	if st := guestStatus(r); len(st.Ports) != guestPorts || st.Ports[0].NUMA != nil || st.Ports[0].GIDIndex != nil {
		t.Errorf("%+v", st)
	}
}

// ported is a hypervisor that names the sockets of running domains, as libvirt does.
type ported struct{ hyper.Driver }

func (p ported) List(ctx context.Context) (hyper.Host, []hyper.Seen, error) {
	h, seen, err := p.Driver.List(ctx)
	for i := range seen {
		if seen[i].State == hyper.Running {
			seen[i].Ports = map[string]string{guestPort: "/run/" + seen[i].UUID}
		}
	}
	return h, seen, err
}

// TestRunGuestReachesTheServer: a VM's words are in its status while it runs, and not when it is off.
func TestRunGuestReachesTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := newWorld(t, host(4)), newSimServer()
		w.up = s
		d := w.deps()
		d.Hyper = ported{d.Hyper}
		vms := make(chan net.Conn, 8)
		d.DialGuest = func(_ context.Context, path string) (io.ReadCloser, error) {
			if path != "/run/"+uidOf("a") {
				t.Errorf("dialled %s", path)
			}
			host, vm := net.Pipe()
			vms <- vm
			return host, nil
		}
		a, err := New(w.config(), d)
		if err != nil {
			t.Fatal(err)
		}
		w.a = a
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		w.add("a", vf(pf0, 0, mac1, 101))
		w.say(s)
		later(time.Minute)
		say(t, <-vms, line(t, 7))
		later(10 * time.Second)
		if vm, _ := s.last(uidOf("a")); vm.Guest == nil || *vm.Guest.Ports[0].QPCount != 7 {
			t.Errorf("posted %+v", vm.Guest)
		}
		w.vm("a").Power = "off"
		w.say(s)
		later(5 * time.Minute)
		if vm, _ := s.last(uidOf("a")); vm.Guest != nil || vm.Phase != "Stopped" {
			t.Errorf("posted %+v of a VM that is %s", vm.Guest, vm.Phase)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
