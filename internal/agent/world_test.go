package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/hyper/hypertest"
	"github.com/verbena-cloud/verbena/internal/preflight"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// world is a simulated host that outlives its agents: kernel, hypervisor, disks and state directory
// share one count of changes, so that the n-th of all of them can fail or be the agent's last.
type world struct {
	t      testing.TB
	k      *sysfstest.Kernel
	faults *sysfstest.Faults
	hv     *hypertest.Hypervisor
	disk   *simDisk
	files  *simFiles
	want   *wire.Desired
	a      *Agent
	up     Upstream
	lldp   []string
	look   func(context.Context, func(roce.PCIAddr) int) preflight.Facts
	rev    int64
}

// host is the world's configuration: one card, two ports, four VFs each.
func host(vfs int) sysfstest.Config {
	cfg := sysfstest.Host(1, 1, vfs)
	cfg.Cards[0].OFED = true
	return cfg
}

func newWorld(t testing.TB, cfg sysfstest.Config) *world {
	t.Helper()
	k, err := sysfstest.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f := k.Faults
	w := &world{t: t, k: k, faults: f, hv: hypertest.New(hypertest.Config{Kernel: k}),
		disk: &simDisk{f: f, files: map[string]string{}}, files: &simFiles{f: f, data: map[string][]byte{}}}
	w.want = &wire.Desired{Host: "h1", Images: []wire.Image{{Name: "debian", Source: "/images/debian.qcow2", Format: "qcow2"}}}
	for _, c := range cfg.Cards {
		for _, p := range c.PFs {
			w.want.PFs = append(w.want.PFs, wire.PF{Match: p.PCI, Fabric: "roce", VFs: p.TotalVFs})
		}
	}
	return w
}

func (w *world) config() Config { return Config{Host: "h1", Version: "test", Simulated: true} }

func (w *world) deps() Deps {
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() && os.Getenv("AGENT_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return Deps{
		Tree: w.k, Links: w.k, Hyper: w.hv.Driver(), Disk: w.disk, Files: w.files, Log: log,
		Seed:    func(s wire.Seed, instance string) ([]byte, error) { return []byte(s.Hostname + instance), nil },
		Holders: w.k.Holders, Modprobe: w.k.Modprobe, Proc: w.k.Proc, PermanentMAC: w.k.PermanentMAC,
		DCB: w.k.Ports(), Autostart: w.hv.Driver(), Stats: w.k, LLDPAgents: func(context.Context) ([]string, error) { return w.lldp, nil },
		Upstream: w.up, Preflight: w.look,
		Jitter: func(d time.Duration) time.Duration { return d },
	}
}

// boot starts an agent, as after a crash or a reboot. It does not know the server's word yet.
func (w *world) boot() *Agent {
	w.t.Helper()
	w.faults.Revive()
	a, err := New(w.config(), w.deps())
	if err != nil {
		w.t.Fatalf("start the agent: %v", err)
	}
	w.a = a
	return a
}

// tell gives the agent the server's word of now.
func (w *world) tell() error {
	w.rev++
	d := *w.want
	d.Revision = w.rev
	d.PFs, d.VMs = slices.Clone(d.PFs), slices.Clone(d.VMs)
	return w.a.take(&d)
}

// round runs every reconciler once, in order. It returns the longest wait that one asked for.
func (w *world) round(ctx context.Context) (time.Duration, error) {
	var wait time.Duration
	var errs []error
	_, err := w.a.reconcileHost(ctx)
	errs = append(errs, err)
	w.a.mu.Lock()
	snap := w.a.snap
	w.a.mu.Unlock()
	if snap != nil {
		for i := range snap.functions {
			if f := &snap.functions[i]; f.Key != "" && w.a.unsettled(f) {
				_, err := w.a.reconcilePF(ctx, f.Key)
				errs = append(errs, err)
			}
		}
	}
	for _, uid := range w.a.uids() {
		d, err := w.a.reconcileVM(ctx, uid)
		errs = append(errs, err)
		wait = max(wait, d)
	}
	return wait, errors.Join(errs...)
}

// settle runs rounds until one writes nothing, asks for nothing and fails with nothing.
func (w *world) settle() error {
	w.t.Helper()
	var last error
	for range 200 {
		if w.faults.Crashed() {
			return sysfstest.ErrCrashed
		}
		before := len(w.faults.Log())
		wait, err := w.round(w.t.Context())
		last = err
		if err == nil && wait == 0 && len(w.faults.Log()) == before {
			return nil
		}
		<-time.After(max(wait, time.Second))
	}
	return fmt.Errorf("it does not settle: %w", last)
}

// mustSettle settles, then shows that a further round of everything writes nothing.
func (w *world) mustSettle(what string) {
	w.t.Helper()
	if err := w.settle(); err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
	w.faults.ForgetLog()
	for range 2 {
		if _, err := w.round(w.t.Context()); err != nil {
			w.t.Fatalf("%s: once more: %v", what, err)
		}
	}
	if log := w.faults.Log(); len(log) != 0 {
		w.t.Fatalf("%s: not settled: %q", what, log)
	}
}

// status returns a VM's status as the server would get it.
func (w *world) status(uid string) wire.VMStatus {
	for _, s := range w.a.vmStatus() {
		if s.UID == uid {
			return s
		}
	}
	return wire.VMStatus{}
}

// add makes the server want a VM with the given VFs.
func (w *world) add(name string, vfs ...wire.VF) *wire.VM {
	vm := wire.VM{UID: uidOf(name), Tenant: "hr", Name: name, Generation: 1, Power: "on", Image: "debian", Instance: name + "-1",
		Cells: []wire.Cell{{Guest: 0, Host: 0, VCPUs: 2, Memory: 1 << 30, Strict: true}}, Seed: wire.Seed{Hostname: name}}
	for i, v := range vfs {
		v.GuestPCI = fmt.Sprintf("0000:%02x:00.0", i+2)
		vm.VFs = append(vm.VFs, v)
	}
	w.want.VMs = append(w.want.VMs, vm)
	return w.vm(name)
}

func uidOf(name string) string {
	return "00000000-0000-4000-8000-" + fmt.Sprintf("%012x", []byte(name))
}

func (w *world) vm(name string) *wire.VM {
	for i := range w.want.VMs {
		if w.want.VMs[i].Name == name {
			return &w.want.VMs[i]
		}
	}
	return nil
}

// drop is the server forgetting a VM whose release it took.
func (w *world) drop(name string) {
	w.want.VMs = slices.DeleteFunc(w.want.VMs, func(v wire.VM) bool { return v.Name == name })
}

// domains returns what the hypervisor has, by UID.
func (w *world) domains() map[string]hyper.Seen {
	w.t.Helper()
	_, list, err := w.hv.Driver().List(context.WithoutCancel(w.t.Context()))
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[string]hyper.Seen{}
	for _, d := range list {
		out[d.UUID] = d
	}
	return out
}

const (
	pf0  = "b8:ce:f6:00:10:00-p0"
	pf1  = "b8:ce:f6:00:10:01-p1"
	dev0 = "0000:18:00.0"
	dev1 = "0000:18:00.1"
)

func vf(pf string, index int, mac string, vlan int) wire.VF {
	return wire.VF{PF: pf, Index: index, MAC: mac, VLAN: vlan, QoS: 3, SpoofCheck: true, Network: "net"}
}

// simDisk is a simulated disk maker.
type simDisk struct {
	mu    sync.Mutex
	f     *sysfstest.Faults
	files map[string]string
}

func (d *simDisk) Ensure(_ context.Context, name string, img wire.Image, _ int64) (hyper.Disk, error) {
	disk := hyper.Disk{Path: "/vms/" + name + ".qcow2", Format: "qcow2"}
	return disk, d.put(disk.Path, img.Name)
}

func (d *simDisk) Seed(_ context.Context, name string, iso []byte) (string, error) {
	return "/vms/" + name + ".iso", d.put("/vms/"+name+".iso", string(iso))
}

func (d *simDisk) put(path, content string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files[path] == content {
		return d.f.Alive()
	}
	end, err := d.f.Begin("write " + path)
	if err != nil {
		return err
	}
	d.files[path] = content
	return end(nil)
}

func (d *simDisk) Remove(_ context.Context, name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range []string{"/vms/" + name + ".qcow2", "/vms/" + name + ".iso"} {
		if _, ok := d.files[p]; !ok {
			continue
		}
		end, err := d.f.Begin("rm " + p)
		if err != nil {
			return err
		}
		delete(d.files, p)
		if err := end(nil); err != nil {
			return err
		}
	}
	return d.f.Alive()
}

// simFiles is a simulated state directory.
type simFiles struct {
	mu   sync.Mutex
	f    *sysfstest.Faults
	data map[string][]byte
	full error
}

func (s *simFiles) Read(name string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.data[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return slices.Clone(b), s.f.Alive()
}

func (s *simFiles) Write(name string, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full != nil {
		return &fs.PathError{Op: "write", Path: name, Err: s.full}
	}
	end, err := s.f.Begin("save " + name)
	if err != nil {
		return err
	}
	s.data[name] = slices.Clone(data)
	return end(nil)
}

func (s *simFiles) Remove(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.data[name]; !ok {
		return s.f.Alive()
	}
	end, err := s.f.Begin("unlink " + name)
	if err != nil {
		return err
	}
	delete(s.data, name)
	return end(nil)
}

func (s *simFiles) List(dir string) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for n := range s.data {
		if rest, ok := strings.CutPrefix(n, dir+"/"); ok && !strings.Contains(rest, "/") {
			out = append(out, rest)
		}
	}
	slices.Sort(out)
	return out, s.f.Alive()
}
