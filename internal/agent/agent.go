package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/dcb"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/loop"
	"github.com/verbena-cloud/verbena/internal/preflight"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/rtnl"
	"github.com/verbena-cloud/verbena/internal/sriov"
	"github.com/verbena-cloud/verbena/internal/sysfs"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// Config is what an operator may set. The zero value of every duration is its default.
type Config struct {
	Host      string // name of this host at the server; the join token has it too
	Server    string // https://HOST:PORT
	JoinToken string // used once, when the state directory has no certificate
	State     string // directory
	Version   string
	Simulated bool // the kernel behind Deps is not a real one
	Emulate   bool // domains of type qemu even where KVM works

	Beat           time.Duration // between signs of life; 5 s
	Full           time.Duration // between complete readings of the host; 5 min
	Settle         time.Duration // how long changes are gathered before one reading; 200 ms
	WriteDeadline  time.Duration // for one sysfs write; 2 min, since drivers take that long
	AppearDeadline time.Duration // for VFs to show after their creation; 30 s
	Grace          time.Duration // for a guest to shut down before its power is cut; 60 s
	Check          time.Duration // between looks whether the host can give VMs RDMA, while nothing changes; 10 min
}

func (c Config) defaults() Config {
	for _, d := range []struct {
		v *time.Duration
		d time.Duration
	}{{&c.Beat, 5 * time.Second}, {&c.Full, 5 * time.Minute}, {&c.Settle, 200 * time.Millisecond},
		{&c.WriteDeadline, 2 * time.Minute}, {&c.AppearDeadline, 30 * time.Second}, {&c.Grace, time.Minute}, {&c.Check, 10 * time.Minute}} {
		if *d.v <= 0 {
			*d.v = d.d
		}
	}
	return c
}

// Upstream is the server as the agent sees it. Desired calls f for each desired state until the stream
// breaks or ctx ends; Post and Beat are one request each. A beat says how long ago the host was looked over, less
// than 0 for never.
type Upstream interface {
	Desired(ctx context.Context, f func(*wire.Desired)) error
	Post(ctx context.Context, s wire.Status) (wire.Ack, error)
	Beat(ctx context.Context, looked time.Duration) error
}

// Disk makes and removes the files that a domain needs. All calls are idempotent; name is unique for a
// VM and generation, so that a rebuild never meets the disk of the life before.
type Disk interface {
	Ensure(ctx context.Context, name string, img wire.Image, size int64) (hyper.Disk, error)
	Seed(ctx context.Context, name string, iso []byte) (path string, err error)
	Remove(ctx context.Context, name string) error
}

// Deps is everything that the agent touches. Nil fields from Upstream on get their production value.
type Deps struct {
	Tree  sysfs.Tree
	Links rtnl.Links
	Hyper hyper.Driver
	Disk  Disk
	Seed  func(s wire.Seed, instance string) ([]byte, error)
	Log   *slog.Logger

	// Autostart keeps the hypervisor from starting our domains by itself; nil = it can't anyhow.
	Autostart hyper.Autostarter
	// DCB reads and sets the NIC ports' priorities; nil = they are left alone and not told of.
	DCB dcb.Links
	// Preflight looks at all that RDMA of VMs stands on; ports may have priorities of RoCE of their own. nil =
	// the host is not judged.
	Preflight func(ctx context.Context, priority func(roce.PCIAddr) int) preflight.Facts
	// Stats tells what VFs send and receive; nil = not here.
	Stats rtnl.StatsReader

	Upstream Upstream
	Files    Files
	// Holders lists which processes have which vfio group open: the evidence that a VF is let go.
	Holders  func(ctx context.Context) (map[string][]int, error)
	Modprobe func(ctx context.Context, module string) error
	Proc     Proc
	// LLDPAgents names the programs on the host that set DCB of NICs by themselves.
	LLDPAgents func(ctx context.Context) ([]string, error)
	// PermanentMAC asks the driver for the address burnt in, for PFs whose address was changed.
	PermanentMAC func(ctx context.Context, link string) (string, error)
	// SessionDevices names the netdevs that the session with the server runs over.
	SessionDevices func() []string
	// DialGuest opens the hypervisor's end of a guest's port.
	DialGuest func(ctx context.Context, path string) (io.ReadCloser, error)
	Now       func() time.Time
	Jitter    func(time.Duration) time.Duration // full jitter by default: anything from 0 to the wait
}

func (d Deps) defaults(cfg Config) (Deps, error) {
	if d.Tree == nil || d.Links == nil || d.Hyper == nil || d.Disk == nil || d.Seed == nil {
		return d, fault.New(fault.Invalid, "the agent needs a kernel, a hypervisor, disks and seeds")
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Files == nil {
		f, err := Directory(cfg.State)
		if err != nil {
			return d, err
		}
		d.Files = f
	}
	if d.Proc == nil {
		d.Proc = func(name string) ([]byte, error) { return os.ReadFile(filepath.Join("/proc", name)) }
	}
	if d.Holders == nil {
		d.Holders = vfioHolders("/proc", "/dev/vfio")
	}
	if d.LLDPAgents == nil {
		d.LLDPAgents = lldpAgents("/proc")
	}
	if d.DialGuest == nil {
		d.DialGuest = dialUnix
	}
	if d.Modprobe == nil {
		d.Modprobe = modprobe
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Jitter == nil {
		d.Jitter = func(w time.Duration) time.Duration { return rand.N(max(w, 1)) } //nolint:gosec // spreading retries needs no secret
	}
	return d, nil
}

// key names what the loop brings to its declared state: the host's inventory, a PF or a VM.
type key struct{ kind, id string }

const (
	kindHost = "host"
	kindPF   = "pf"
	kindVM   = "vm"
)

// Agent runs one host.
type Agent struct {
	cfg     Config
	d       Deps
	log     *slog.Logger
	kernel  *kernel
	j       *journal
	loop    *loop.Loop[key]
	hv      hypervisor
	guests  *guests
	checks  checks
	link    *link // nil with another Upstream
	events  *events
	boot    string // this boot's id
	release string // of the kernel

	writes atomic.Int64 // changes tried, so that who changed nothing need not have it looked at

	mu      sync.Mutex
	desired *wire.Desired
	fresh   bool // the server confirmed desired since this process started
	sameRun bool // desired was stored in this boot of the host
	snap    *snapshot
	caps    map[string]capability
	ports   map[string]*portQoS // by PF
	refused map[string]refusals
	pfs     map[string]*pfMemo
	vms     map[string]*vmMemo
	posted  accepted
	dirty   chan struct{}
}

// New reads the state directory and returns an agent that has touched nothing yet. A journal record
// that can't be believed is set aside and told of; everything else that is unreadable is an error, since
// going on without it could hand out what is held.
func New(cfg Config, deps Deps) (*Agent, error) {
	cfg = cfg.defaults()
	deps, err := deps.defaults(cfg)
	if err != nil {
		return nil, err
	}
	a := &Agent{cfg: cfg, d: deps, log: deps.Log, kernel: newKernel(deps.Tree, deps.Links),
		events: &events{now: deps.Now}, caps: map[string]capability{}, ports: map[string]*portQoS{}, refused: map[string]refusals{}, pfs: map[string]*pfMemo{}, vms: map[string]*vmMemo{},
		dirty: make(chan struct{}, 1), checks: checks{due: make(chan struct{}, 1)}}
	if err := a.connect(); err != nil {
		return nil, err
	}
	a.guests = newGuests(deps.DialGuest, deps.Now, a.changed)
	a.kernel.permanent = deps.PermanentMAC
	// An unreadable boot id is like no other: what a stored state allows in its boot is not allowed then.
	a.boot, a.release = a.proc("sys/kernel/random/boot_id"), a.proc("sys/kernel/osrelease")
	var corrupt []string
	if a.j, corrupt, err = openJournal(deps.Files); err != nil {
		return nil, err
	}
	for _, name := range corrupt {
		a.events.add(a.hostRef(), warning, "JournalCorrupt", fmt.Sprintf("journal record %s can't be believed and was moved to corrupt/; what it covered is taken over again from the server's word and what the host shows", name))
	}
	if err := a.loadDesired(); err != nil {
		return nil, err
	}
	if err := a.loadCaps(); err != nil {
		return nil, err
	}
	if err := a.loadRefusals(); err != nil {
		return nil, err
	}
	a.loop = loop.New(a.reconcile, loop.Options[key]{Workers: 8, Min: 500 * time.Millisecond, Max: time.Minute,
		Jitter: func(w time.Duration) time.Duration { return w/2 + deps.Jitter(w/2) }, Failed: a.failed})
	return a, nil
}

func (a *Agent) hostRef() api.Ref { return api.Ref{Kind: api.KindHost, Name: a.cfg.Host} }

func (a *Agent) proc(name string) string {
	b, err := a.d.Proc(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// failed logs what a reconciler could not do; people see it in the object's status.
func (a *Agent) failed(k key, err error, wait time.Duration) {
	a.log.Warn("reconcile", "kind", k.kind, "id", k.id, "err", err, "again", wait)
}

// reconcile is the loop's function.
func (a *Agent) reconcile(ctx context.Context, k key) (time.Duration, error) {
	switch k.kind {
	case kindHost:
		return a.reconcileHost(ctx)
	case kindPF:
		return a.reconcilePF(ctx, k.id)
	default:
		return a.reconcileVM(ctx, k.id)
	}
}

// connect prepares the link to the server, if no other Upstream was given, and learns the host's name
// from the papers or the token.
func (a *Agent) connect() error {
	if a.d.SessionDevices == nil {
		a.d.SessionDevices = func() []string { return nil }
	}
	if a.d.Upstream != nil || a.cfg.Server == "" {
		return nil
	}
	ident, err := openIdentity(a.d.Files)
	if err != nil {
		return err
	}
	host, err := ident.name(a.cfg.JoinToken)
	if err != nil {
		return err
	}
	if a.cfg.Host != "" && a.cfg.Host != host {
		return fault.New(fault.Invalid, "this host is to be %s, but its certificate or token is for %s", a.cfg.Host, host)
	}
	a.cfg.Host = host
	if a.link, err = newLink(a.cfg.Server, ident); err != nil {
		return err
	}
	a.d.Upstream, a.d.SessionDevices = a.link, a.link.devices
	return nil
}

// Close gives back what New took. It is safe to call twice.
func (a *Agent) Close() error {
	if a.link != nil {
		return a.link.Close()
	}
	return nil
}

// wanted returns the desired VM, if the server lists it.
func (a *Agent) wanted(uid string) *wire.VM {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.desired == nil {
		return nil
	}
	for i := range a.desired.VMs {
		if a.desired.VMs[i].UID == uid {
			return &a.desired.VMs[i]
		}
	}
	return nil
}

// commissioned returns how the PF shall serve the pool, nil if nobody said so.
func (a *Agent) commissioned(f sriov.PF) *wire.PF {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.desired == nil {
		return nil
	}
	for i, p := range a.desired.PFs {
		if p.Match == f.Key || p.Match == f.PCI.String() || (p.Match == f.Netdev && p.Match != "") {
			return &a.desired.PFs[i]
		}
	}
	return nil
}
