package apply

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/guestos"
)

func run(t *testing.T, k *kernel, j Journal) []string {
	t.Helper()
	var said []string
	if err := k.machine().Tune(t.Context(), guestos.Default(), j, func(s guestos.Step) {
		if said = append(said, s.How); s.Result != guestos.Done || s.Now != s.After {
			t.Errorf("%+v", s)
		}
	}); err != nil {
		t.Fatal(err)
	}
	return said
}

func undo(t *testing.T, k *kernel, j Journal) {
	t.Helper()
	if err := k.machine().Undo(t.Context(), j, func(guestos.Step) {}); err != nil {
		t.Fatal(err)
	}
}

// TestTune: the interrupts that come with more queues are set in the same run, a second run does nothing, and
// undo after two runs ends where the first began.
func TestTune(t *testing.T) {
	k := newKernel()
	first, j := k.settings(), &memory{k: k}
	want := []string{
		"modprobe ib_uverbs",
		"ethtool -L rdma0 combined 4",
		"echo 4 > /proc/irq/40/smp_affinity_list",
		"echo 5 > /proc/irq/41/smp_affinity_list",
		"echo 6 > /proc/irq/42/smp_affinity_list",
		"echo 7 > /proc/irq/43/smp_affinity_list",
		"echo 4 > /proc/irq/44/smp_affinity_list",
		"sysctl -w net.core.busy_poll=50",
		"sysctl -w net.core.busy_read=50",
	}
	if diff := cmp.Diff(want, run(t, k, j)); diff != "" {
		t.Errorf("done (-want +got):\n%s", diff)
	}
	writes := k.writes
	if again := run(t, k, j); len(again) != 0 || k.writes != writes {
		t.Errorf("the second run did %v", again)
	}
	k.files["proc/irq/41/smp_affinity_list"], k.queues = "3", 3 // by somebody else
	k.interrupts()
	run(t, k, j)
	undo(t, k, j)
	if diff := cmp.Diff(first, k.settings()); diff != "" {
		t.Errorf("undo ends elsewhere (-first +now):\n%s", diff)
	}
	if j.text != nil {
		t.Errorf("the journal is still there: %s", j.text)
	}
	writes = k.writes
	undo(t, k, j)
	if k.writes != writes {
		t.Error("undo of nothing wrote something")
	}
}

// TestBreakEveryWrite: each write of kernel and journal fails once, before or after it took effect. The next
// run converges, and undo, which may fail likewise, ends where all began.
func TestBreakEveryWrite(t *testing.T) {
	broken := errors.New("broken by the test")
	for _, late := range []bool{false, true} {
		for at := 1; ; at++ {
			k := newKernel()
			first, j := k.settings(), &memory{k: k}
			hit := false
			k.fail = func(n int) (error, error) {
				if n != at {
					return nil, nil
				}
				hit = true
				if late {
					return nil, broken
				}
				return broken, nil
			}
			m := k.machine()
			silent := func(guestos.Step) {}
			_ = m.Tune(t.Context(), guestos.Default(), j, silent)
			if err := m.Tune(t.Context(), guestos.Default(), j, silent); err != nil && !hit {
				t.Fatalf("write %d: the second run: %v", at, err)
			}
			if plan := guestos.Plan(m.Facts(t.Context()), guestos.Default()); len(plan) != 0 {
				t.Fatalf("write %d (late %v): after the second run there is still %v", at, late, plan)
			}
			_ = m.Undo(t.Context(), j, silent)
			if err := m.Undo(t.Context(), j, silent); err != nil {
				t.Fatalf("write %d: the second undo: %v", at, err)
			}
			if diff := cmp.Diff(first, k.settings()); diff != "" || j.text != nil {
				t.Fatalf("write %d (late %v): undo ends elsewhere, journal %q:\n%s", at, late, j.text, diff)
			}
			if !hit {
				if at < 30 {
					t.Fatalf("only %d writes", at)
				}
				break
			}
		}
	}
}

// TestKilledAnywhere: a run that ends between any two writes is taken up by the next, and undone all the same.
func TestKilledAnywhere(t *testing.T) {
	gone := errors.New("killed")
	for at := 1; at < 20; at++ {
		k := newKernel()
		first, j := k.settings(), &memory{k: k}
		k.fail = func(n int) (error, error) {
			if n >= at {
				return gone, nil
			}
			return nil, nil
		}
		_ = k.machine().Tune(t.Context(), guestos.Default(), j, func(guestos.Step) {})
		k.fail = nil
		if at%2 == 0 {
			run(t, k, j)
		}
		undo(t, k, j)
		if diff := cmp.Diff(first, k.settings()); diff != "" {
			t.Fatalf("killed at write %d: undo ends elsewhere:\n%s", at, diff)
		}
	}
}

// stubborn is a kernel that takes a write and does nothing.
type stubborn struct{ tree }

func TestReadBack(t *testing.T) {
	k := newKernel()
	m := k.machine()
	m.Proc = stubborn{tree{k, "proc"}}
	var bad []string
	if err := m.Tune(t.Context(), guestos.Default(), &memory{k: k}, func(s guestos.Step) {
		if s.Result == guestos.Failed {
			bad = append(bad, s.Object+": "+s.Error)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if len(bad) != 7 || !strings.Contains(bad[0], "rdma0/40: the kernel took it, but says 0-7") {
		t.Errorf("%q", bad)
	}
}

func (stubborn) Write(context.Context, string, string) error { return nil }

func TestAfterReboot(t *testing.T) {
	k := newKernel()
	j := &memory{k: k}
	run(t, k, j)
	k2 := newKernel()
	k2.files["proc/sys/kernel/random/boot_id"] = "boot-2"
	j.k = k2
	writes := k2.writes
	undo(t, k2, j)
	if k2.writes != writes+1 || j.text != nil { // the journal's removal
		t.Errorf("%d writes, journal %q", k2.writes-writes, j.text)
	}
	delete(k2.files, "proc/sys/kernel/random/boot_id")
	if err := k2.machine().Tune(t.Context(), guestos.Default(), j, func(guestos.Step) {}); !fault.Is(err, fault.Unready) {
		t.Errorf("without a boot id: %v", err)
	}
}

func TestFacts(t *testing.T) {
	f := newKernel().machine().Facts(t.Context())
	if len(f.Unseen) != 0 || f.Nodes != 2 || !f.Modules["rdma_ucm"] || f.Balancer || len(f.NICs) != 2 {
		t.Fatalf("%+v", f)
	}
	eth, vf := f.NICs[0], f.NICs[1]
	if eth.Netdev != "eth0" || eth.Driver != "virtio-pci" || eth.Channels != nil || len(eth.CPUs) != 8 || len(eth.RDMA) != 0 {
		t.Errorf("%+v", eth)
	}
	if vf.Netdev != "rdma0" || vf.Firmware != "22.31.1014" || len(vf.IRQs) != 3 || guestos.FormatCPUs(vf.CPUs) != "4-7" || vf.MTU != 4200 {
		t.Errorf("%+v", vf)
	}
	d := vf.RDMA[0]
	if d.Name != "mlx5_0" || *d.QPCount != 5 || d.NodeGUID == 0 {
		t.Errorf("%+v", d)
	}
	p := d.Ports[0]
	g, ok := p.Pick("rdma0")
	if !ok || g.Index != 1 || g.Addr.String() != "10.20.0.5" || len(p.GIDs) != 2 || p.State != "ACTIVE" || p.Counters["RNR sent"] != 9 || len(p.Counters) != 2 || p.Unread != 1 {
		t.Errorf("%+v", p)
	}
}

// TestSoftRoCE: an rxe device has no PCI function; its netdev says where it belongs.
func TestSoftRoCE(t *testing.T) {
	k := newKernel()
	k.files["sys/class/infiniband/rxe0/parent"], k.files["sys/class/infiniband/rxe0/node_guid"] = "eth0", "0000:00ff:fe00:0001"
	f := k.machine().Facts(t.Context())
	if len(f.NICs[0].RDMA) != 1 || f.NICs[0].RDMA[0].Name != "rxe0" || len(f.NICs[1].RDMA) != 1 {
		t.Errorf("%+v", f.NICs)
	}
}

func TestFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	j, err := OpenFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(dir); !fault.Is(err, fault.Conflict) {
		t.Errorf("a second owner: %v", err)
	}
	if _, err := j.Load(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing saved: %v", err)
	}
	for _, text := range []string{"a longer text", "b"} {
		if err := j.Save([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := j.Load(); err != nil || string(got) != text {
			t.Errorf("%q, %v", got, err)
		}
	}
	for range 2 {
		if err := j.Save(nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := j.Load(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("removed: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if j, err = OpenFile(dir); err != nil {
		t.Fatal(err)
	}
	_ = j.Close()
}

// TestLive: the kernel that runs the tests is looked at without a failure of the tool's own.
func TestLive(t *testing.T) {
	m, done, err := Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	f := m.Facts(t.Context())
	if f.Kernel == "" || f.Boot == "" || len(f.CPUs) == 0 || len(f.Sysctls) == 0 {
		t.Errorf("%+v", f)
	}
	if _, err := m.Links.Channels(t.Context(), "lo"); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("channels of lo: %v", err)
	}
	if _, err := m.Links.Channels(t.Context(), strings.Repeat("x", 20)); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("channels of no link: %v", err)
	}
}

// TestWork: what a program can do without being root, and on the file system of another machine.
func TestWork(t *testing.T) {
	o := Options{Verb: guestos.Show, Root: "/", State: t.TempDir(), Config: guestos.Default()}
	out, err := Work(t.Context(), o)
	if err != nil || out.Kernel == "" || out.Failed() || out.Count(guestos.Planned) != len(out.Steps) {
		t.Errorf("%+v, %v", out, err)
	}
	o.Root = t.TempDir()
	for _, d := range []string{"sys", "proc"} {
		if err := os.Mkdir(filepath.Join(o.Root, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := Work(t.Context(), o); err != nil || len(out.Steps) != 0 {
		t.Errorf("%+v, %v", out, err)
	}
	o.Verb = guestos.Tune
	if _, err := Work(t.Context(), o); !fault.Is(err, fault.Invalid) {
		t.Errorf("another root was set: %v", err)
	}
	o.Config.BusyPoll = -7
	if _, err := Work(t.Context(), o); !fault.Is(err, fault.Invalid) {
		t.Errorf("a wrong configuration: %v", err)
	}
}
