package libvirt_test

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/hyper/domxml"
	"github.com/verbena-cloud/verbena/internal/hyper/libvirt"
	"github.com/verbena-cloud/verbena/internal/roce"
)

const uuid = "6f1c4a52-8a4e-4d61-9c1f-0d3a5b7e9f10"

func domain(t *testing.T, vfs int) hyper.Domain {
	t.Helper()
	d := hyper.Domain{
		UUID: uuid, Name: "research.train-0", Type: "test",
		Owner: hyper.Owner{Tenant: "research", VM: "train-0", Generation: 3},
		Cells: []hyper.Cell{{ID: 0, HostNode: 1, VCPUs: 2, Memory: 256 << 20, Strict: true}},
		Disk:  hyper.Disk{Path: "/nonexistent/disk.qcow2", Format: "qcow2"},
	}
	for k := range vfs {
		guest, err := domxml.GuestPCI(0, k)
		if err != nil {
			t.Fatal(err)
		}
		d.VFs = append(d.VFs, hyper.VF{Alias: "rdma" + string(rune('0'+k)), Host: roce.PCIAddr{Bus: 0x3b, Slot: 2, Function: uint8(k)},
			MAC: roce.MAC{2, 0, 0, 0, 0, byte(k + 1)}, VLAN: 101, QoS: 3, Guest: guest})
	}
	return d
}

func open(t *testing.T, d *daemon) *libvirt.Driver {
	t.Helper()
	drv := libvirt.New(libvirt.Config{URI: "test:///default", Socket: d.socket})
	t.Cleanup(func() { drv.Close() })
	return drv
}

func find(t *testing.T, drv *libvirt.Driver) (hyper.Seen, bool) {
	t.Helper()
	_, list, err := drv.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(s hyper.Seen) bool { return s.UUID == uuid })
	if i < 0 {
		return hyper.Seen{}, false
	}
	return list[i], true
}

// TestLifeCycle walks a domain with two VFs through a real daemon; every step is repeated, since every call
// is idempotent.
func TestLifeCycle(t *testing.T) {
	drv := open(t, startDaemon(t))
	twice := func(what string, f func() error) {
		t.Helper()
		for range 2 {
			if err := f(); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	want := domain(t, 2)
	twice("define", func() error { return drv.Define(t.Context(), want) })
	got, ok := find(t, drv)
	if !ok || got.State != hyper.Off || got.Owner != want.Owner {
		t.Fatalf("after define: %+v", got)
	}
	if !slices.Equal(got.VFs, want.VFs) {
		t.Errorf("VFs read back as %+v, want %+v", got.VFs, want.VFs)
	}
	twice("start", func() error { return drv.Power(t.Context(), uuid, hyper.Running, false) })
	if got, _ := find(t, drv); got.State != hyper.Running || !slices.Equal(got.VFs, want.VFs) {
		t.Fatalf("after start: %+v", got)
	}
	if err := drv.Undefine(t.Context(), uuid); !fault.Is(err, fault.Unready) {
		t.Fatalf("undefining a running domain: %v, want Unready", err)
	}
	twice("stop", func() error { return drv.Power(t.Context(), uuid, hyper.Off, true) })
	if got, _ := find(t, drv); got.State != hyper.Off {
		t.Fatalf("after stop: %+v", got)
	}
	twice("undefine", func() error { return drv.Undefine(t.Context(), uuid) })
	if _, ok := find(t, drv); ok {
		t.Fatal("still there after undefine")
	}
	if err := drv.Power(t.Context(), uuid, hyper.Off, true); err != nil {
		t.Fatalf("stopping a missing domain: %v", err)
	}
	if err := drv.Power(t.Context(), uuid, hyper.Running, false); !fault.Is(err, fault.NotFound) {
		t.Fatalf("starting a missing domain: %v, want NotFound", err)
	}
}

// TestC38_AliasesDistinguishDevices: each hostdev keeps its alias through the daemon, so that two VFs with
// one MAC could still be told apart (and C39: aliases are read back).
func TestC38_AliasesDistinguishDevices(t *testing.T) {
	drv := open(t, startDaemon(t))
	d := domain(t, 3)
	if err := drv.Define(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	got, _ := find(t, drv)
	var aliases []string
	for _, v := range got.VFs {
		aliases = append(aliases, v.Alias)
	}
	if strings.Join(aliases, " ") != "rdma0 rdma1 rdma2" {
		t.Errorf("aliases %v", aliases)
	}
}

// TestForeignDomain: the daemon's own domain was not made by us, is listed and is never touched.
func TestForeignDomain(t *testing.T) {
	drv := open(t, startDaemon(t))
	host, list, err := drv.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(host.Version, "libvirt ") || host.Simulated {
		t.Errorf("host = %+v", host)
	}
	if len(list) != 1 || list[0].Name != "test" || list[0].Owner != (hyper.Owner{}) {
		t.Fatalf("list = %+v", list)
	}
	if err := drv.Power(t.Context(), list[0].UUID, hyper.Off, true); !fault.Is(err, fault.Conflict) {
		t.Errorf("power: %v, want Conflict", err)
	}
	d := domain(t, 0)
	d.UUID = list[0].UUID
	if err := drv.Define(t.Context(), d); !fault.Is(err, fault.Conflict) {
		t.Errorf("define: %v, want Conflict", err)
	}
	d = domain(t, 0)
	d.Name = "test"
	if err := drv.Define(t.Context(), d); !fault.Is(err, fault.Conflict) {
		t.Errorf("define under a taken name: %v, want Conflict", err)
	}
}

// TestDaemonDeathAndReturn: calls fail as Unavailable while the daemon is dead and work again afterwards
// without anybody's help; the event stream says that everything must be looked at again.
func TestDaemonDeathAndReturn(t *testing.T) {
	d := startDaemon(t)
	drv := open(t, d)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	events := make(chan hyper.Event, 64)
	go func() {
		defer close(events)
		for e := range drv.Events(ctx) {
			events <- e
		}
	}()
	expect := func(what string, match func(hyper.Event) bool) {
		t.Helper()
		for {
			select {
			case e := <-events:
				if match(e) {
					return
				}
			case <-ctx.Done():
				t.Fatalf("no event: %s", what)
			}
		}
	}
	relist := func(e hyper.Event) bool { return e.UUID == "" }
	expect("first connect", relist)
	if err := drv.Define(ctx, domain(t, 1)); err != nil {
		t.Fatal(err)
	}
	if err := drv.Power(ctx, uuid, hyper.Running, false); err != nil {
		t.Fatal(err)
	}
	expect("start of our domain", func(e hyper.Event) bool { return e.UUID == uuid })

	d.kill()
	if _, _, err := drv.List(ctx); !fault.Is(err, fault.Unavailable) {
		t.Fatalf("list without a daemon: %v, want Unavailable", err)
	}
	d.start()
	expect("relist after the return", relist)
	if _, _, err := drv.List(ctx); err != nil {
		t.Fatalf("list after the return: %v", err)
	}
	// The test driver forgets its domains with the daemon, as a host does with a wiped disk: defining again converges.
	if err := drv.Define(ctx, domain(t, 1)); err != nil {
		t.Fatal(err)
	}
	cancel()
	for range events {
	}
}

// TestHangingDaemon: a daemon that accepts and never answers costs the caller's deadline, not for ever.
func TestHangingDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	accepted := make(chan net.Conn, 8)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	drv := libvirt.New(libvirt.Config{Socket: socket})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { // the daemon has taken the call and is silent: now the caller's time is over
		c := <-accepted
		cancel()
		<-t.Context().Done()
		c.Close()
	}()
	if _, _, err := drv.List(ctx); !fault.Is(err, fault.Deadline) {
		t.Fatalf("err = %v, want Deadline", err)
	}
}

func TestNoDaemon(t *testing.T) {
	drv := libvirt.New(libvirt.Config{Socket: filepath.Join(t.TempDir(), "none")})
	_, _, err := drv.List(t.Context())
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "systemctl status libvirtd") {
		t.Fatalf("err = %v, want Unavailable with what to do next", err)
	}
}

// TestAutostart: what the driver defines is not started by the daemon, and a flag set by hand is seen and
// turned off.
func TestAutostart(t *testing.T) {
	d := startDaemon(t)
	drv := open(t, d)
	if err := drv.Define(t.Context(), domain(t, 1)); err != nil {
		t.Fatal(err)
	}
	if got, _ := find(t, drv); got.Autostart {
		t.Error("defined with autostart")
	}
	raw, err := (&net.Dialer{}).DialContext(t.Context(), "unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	l := golibvirt.NewWithDialer(dialers.NewAlreadyConnected(raw))
	if err := l.ConnectToURI("test:///default"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Disconnect() })
	dom, err := l.DomainLookupByName("research.train-0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.DomainSetAutostart(dom, 1); err != nil {
		t.Fatal(err)
	}
	if got, _ := find(t, drv); !got.Autostart {
		t.Error("not seen")
	}
	for range 2 {
		if err := drv.NoAutostart(t.Context(), uuid); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := find(t, drv); got.Autostart {
		t.Error("not turned off")
	}
	if err := drv.NoAutostart(t.Context(), "6695eb01-f6a4-8304-79aa-97f2502e193f"); !fault.Is(err, fault.Conflict) {
		t.Errorf("somebody else's domain: %v", err)
	}
	if err := drv.NoAutostart(t.Context(), "6f1c4a52-8a4e-4d61-9c1f-0d3a5b7e9fff"); err != nil {
		t.Errorf("a missing domain: %v", err)
	}
}
