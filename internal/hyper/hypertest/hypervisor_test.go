package hypertest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/hyper/hypertest"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
)

const pf = "0000:81:00.0"

// lab is a kernel whose VFs are all on vfio-pci, and a hypervisor on it.
type lab struct {
	k *sysfstest.Kernel
	h *hypertest.Hypervisor
}

func newLab(t *testing.T) lab {
	t.Helper()
	k, err := sysfstest.New(sysfstest.IGB())
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Modprobe(t.Context(), "vfio-pci"); err != nil {
		t.Fatal(err)
	}
	l := lab{k, hypertest.New(hypertest.Config{Kernel: k, Render: func(d hyper.Domain) (string, error) {
		if d.Name == "" {
			return "", fault.New(fault.Invalid, "a domain needs a name")
		}
		return fmt.Sprintf("<domain><name>%s</name><generation>%d</generation></domain>", d.Name, d.Owner.Generation), nil
	}})}
	l.bind(t)
	k.ForgetLog()
	return l
}

func (l lab) bind(t *testing.T) {
	t.Helper()
	for _, w := range [][2]string{{"bus/pci/devices/" + pf + "/sriov_drivers_autoprobe", "0"}, {"bus/pci/devices/" + pf + "/sriov_numvfs", "4"}} {
		if err := l.k.Hand(w[0], w[1]); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 4 {
		s := l.vf(t, i)
		for _, w := range [][2]string{{"bus/pci/devices/" + s.PCI + "/driver_override", "vfio-pci"}, {"bus/pci/drivers_probe", s.PCI}} {
			if err := l.k.Hand(w[0], w[1]); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (l lab) vf(t *testing.T, i int) sysfstest.State {
	t.Helper()
	s, err := l.k.VF(pf, i)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func domain(i, vfs int) hyper.Domain {
	d := hyper.Domain{
		UUID: fmt.Sprintf("6f1c4a52-8a4e-4d61-9c1f-0d3a5b7e9f1%d", i), Name: fmt.Sprintf("research.train-%d", i), Type: "qemu",
		Owner: hyper.Owner{Tenant: "research", VM: fmt.Sprintf("train-%d", i), Generation: 1},
		Cells: []hyper.Cell{{HostNode: 1, VCPUs: 1, Memory: 256 << 20, Strict: true}},
	}
	for k := range vfs {
		d.VFs = append(d.VFs, hyper.VF{Alias: fmt.Sprintf("rdma%d", k), Host: roce.PCIAddr{Bus: 0x81, Slot: 0x10, Function: uint8(2 * k)}, VLAN: 101})
	}
	return d
}

func TestSuite(t *testing.T) {
	hypertest.Run(t, func(t *testing.T) hypertest.Fixture {
		l := newLab(t)
		other := domain(9, 0)
		if err := l.h.AddForeign(other, true); err != nil {
			t.Fatal(err)
		}
		return hypertest.Fixture{
			Connect: func() hyper.Driver { return l.h.Driver() }, Domain: domain, Foreign: other.UUID, ForeignName: other.Name, Exclusive: true,
			Kill: func(uuid string) {
				if err := l.h.Kill(uuid); err != nil {
					t.Fatal(err)
				}
			}, Stop: l.h.StopDaemon, Start: l.h.StartDaemon,
		}
	})
}

// TestHoldsVFIO: a running domain is a process that has its groups open, and its end resets the VFs.
func TestHoldsVFIO(t *testing.T) {
	l := newLab(t)
	d := l.h.Driver()
	dom := domain(0, 2)
	run := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	run(d.Define(t.Context(), dom))
	run(d.Power(t.Context(), dom.UUID, hyper.Running, false))
	pid := l.h.PID(dom.UUID)
	holders, err := l.k.Holders(t.Context())
	if err != nil || len(holders) != 2 || !slices.Equal(holders["8"], []int{pid}) {
		t.Fatalf("holders %v, %v; want groups 8 and 9 by %d", holders, err, pid)
	}
	if s := l.vf(t, 1); s.Holder != pid || !s.Dirty {
		t.Fatalf("VF 1 is %+v", s)
	}
	run(d.Power(t.Context(), dom.UUID, hyper.Off, true))
	if s := l.vf(t, 1); s.Holder != 0 || s.Dirty || s.Resets != 1 {
		t.Fatalf("after the end VF 1 is %+v", s)
	}
	_, list, err := d.List(t.Context())
	if err != nil || !strings.Contains(list[0].XML, "<generation>1<") {
		t.Fatalf("list %+v, %v", list, err)
	}
}

// TestUnboundVF: what libvirt says of a VF that is not on vfio-pci with managed='no', and nothing is held.
func TestUnboundVF(t *testing.T) {
	l := newLab(t)
	if err := l.k.Hand("bus/pci/drivers/vfio-pci/unbind", "0000:81:10.2"); err != nil {
		t.Fatal(err)
	}
	d := l.h.Driver()
	dom := domain(0, 2)
	if err := d.Define(t.Context(), dom); err != nil {
		t.Fatal(err)
	}
	err := d.Power(t.Context(), dom.UUID, hyper.Running, false)
	if !fault.Is(err, fault.Unready) || !strings.Contains(err.Error(), "0000:81:10.2 must be manually detached") {
		t.Fatalf("err = %v", err)
	}
	if s := l.vf(t, 0); s.Holder != 0 || s.Dirty {
		t.Fatalf("VF 0 is %+v", s)
	}
}

// TestRefusals: descriptions that no hypervisor takes.
func TestRefusals(t *testing.T) {
	l := newLab(t)
	d := l.h.Driver()
	twin := domain(0, 2)
	twin.VFs[1].Host = twin.VFs[0].Host
	if err := d.Define(t.Context(), twin); !fault.Is(err, fault.Invalid) {
		t.Fatalf("one VF twice: %v", err)
	}
	alias := domain(0, 2)
	alias.VFs[1].Alias = alias.VFs[0].Alias
	if err := d.Define(t.Context(), alias); !fault.Is(err, fault.Invalid) {
		t.Fatalf("one alias twice: %v", err)
	}
	bad := domain(0, 0)
	bad.Name = ""
	if err := d.Define(t.Context(), bad); !fault.Is(err, fault.Invalid) {
		t.Fatalf("what Render refuses: %v", err)
	}
	if log := l.h.Faults().Log(); len(log) != 2 {
		t.Fatalf("log %q", log)
	}
}

// TestFaults: each change fails before or after its effect, and a kill -9 silences the process until the
// next one, while the domain goes on.
func TestFaults(t *testing.T) {
	l := newLab(t)
	dom := domain(0, 1)
	d := l.h.Driver()
	broken := errors.New("broken pipe")
	l.h.Faults().FailWrite(1, broken, false)
	if err := d.Define(t.Context(), dom); !errors.Is(err, broken) {
		t.Fatalf("err = %v", err)
	}
	if _, list, _ := d.List(t.Context()); len(list) != 0 {
		t.Fatalf("failed before its effect, but there is %+v", list)
	}
	l.h.Faults().FailWrite(2, broken, true)
	if err := d.Define(t.Context(), dom); err != nil {
		t.Fatal(err)
	}
	if err := d.Power(t.Context(), dom.UUID, hyper.Running, false); !errors.Is(err, broken) {
		t.Fatalf("err = %v", err)
	}
	if l.h.PID(dom.UUID) == 0 {
		t.Fatal("failed after its effect, but the domain is off")
	}
	l.h.Faults().Crash(1, false)
	if err := d.Power(t.Context(), dom.UUID, hyper.Off, true); !errors.Is(err, sysfstest.ErrCrashed) {
		t.Fatalf("err = %v", err)
	}
	if _, _, err := d.List(t.Context()); !errors.Is(err, sysfstest.ErrCrashed) {
		t.Fatalf("a dead process listed: %v", err)
	}
	if _, err := l.k.Read(t.Context(), "class/net/lo/mtu"); !errors.Is(err, sysfstest.ErrCrashed) {
		t.Fatalf("a dead process read: %v", err)
	}
	l.h.Faults().Revive()
	if _, list, err := l.h.Driver().List(t.Context()); err != nil || list[0].State != hyper.Running {
		t.Fatalf("after the restart: %+v, %v", list, err)
	}
	want := []string{"virsh define research.train-0", "virsh define research.train-0", "virsh start research.train-0", "virsh destroy research.train-0"}
	if log := l.h.Faults().Log(); !slices.Equal(log, want) {
		t.Fatalf("log %q", log)
	}
}

// TestHangingStart: the caller's deadline ends the wait, not the start.
func TestHangingStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		d := l.h.Driver()
		dom := domain(0, 1)
		if err := d.Define(t.Context(), dom); err != nil {
			t.Fatal(err)
		}
		l.h.HangStart(dom.UUID)
		ctx, cancel := context.WithTimeout(t.Context(), 120e9)
		defer cancel()
		if err := d.Power(ctx, dom.UUID, hyper.Running, false); !fault.Is(err, fault.Deadline) {
			t.Fatalf("err = %v", err)
		}
		if l.h.PID(dom.UUID) != 0 {
			t.Fatal("it runs already")
		}
		l.h.ReleaseStart(dom.UUID)
		synctest.Wait()
		if l.h.PID(dom.UUID) == 0 {
			t.Fatal("what hung never happened")
		}
	})
}

// TestDeafGuest: a request to shut down is only a request.
func TestDeafGuest(t *testing.T) {
	l := newLab(t)
	d := l.h.Driver()
	dom := domain(0, 0)
	for _, err := range []error{d.Define(t.Context(), dom), d.Power(t.Context(), dom.UUID, hyper.Running, false), l.h.Deafen(dom.UUID, true), d.Power(t.Context(), dom.UUID, hyper.Off, false)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if l.h.PID(dom.UUID) == 0 {
		t.Fatal("the deaf guest went off")
	}
	if err := l.h.Deafen(dom.UUID, false); err != nil {
		t.Fatal(err)
	}
	if err := d.Power(t.Context(), dom.UUID, hyper.Off, false); err != nil || l.h.PID(dom.UUID) != 0 {
		t.Fatalf("err %v, pid %d", err, l.h.PID(dom.UUID))
	}
}

// TestHostReboot: no domain runs, no VF is there, definitions are.
func TestHostReboot(t *testing.T) {
	l := newLab(t)
	d := l.h.Driver()
	dom := domain(0, 1)
	if err := errors.Join(d.Define(t.Context(), dom), d.Power(t.Context(), dom.UUID, hyper.Running, false), l.k.Reboot()); err != nil {
		t.Fatal(err)
	}
	_, list, err := d.List(t.Context())
	if err != nil || len(list) != 1 || list[0].State != hyper.Off {
		t.Fatalf("list %+v, %v", list, err)
	}
	err = d.Power(t.Context(), dom.UUID, hyper.Running, false)
	if !fault.Is(err, fault.Unready) || !strings.Contains(err.Error(), "not found") {
		t.Fatalf("start without the VF: %v", err)
	}
}

// TestForeignHoldsVF: somebody else's domain keeps its VF.
func TestForeignHoldsVF(t *testing.T) {
	l := newLab(t)
	if err := l.h.AddForeign(domain(9, 1), true); err != nil {
		t.Fatal(err)
	}
	d := l.h.Driver()
	dom := domain(0, 1)
	if err := d.Define(t.Context(), dom); err != nil {
		t.Fatal(err)
	}
	if err := d.Power(t.Context(), dom.UUID, hyper.Running, false); !fault.Is(err, fault.Unready) || !strings.Contains(err.Error(), "in use by driver QEMU, domain research.train-9") {
		t.Fatalf("err = %v", err)
	}
	host, _, err := d.List(t.Context())
	if err != nil || !host.Simulated || host.Version != "simulated" {
		t.Fatalf("host %+v, %v", host, err)
	}
}
