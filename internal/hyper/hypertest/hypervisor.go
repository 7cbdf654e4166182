package hypertest

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
)

// Config is what a simulated hypervisor stands on.
type Config struct {
	Kernel *sysfstest.Kernel                  // whose VFs its domains get; nil = domains with VFs do not start
	Render func(hyper.Domain) (string, error) // makes Seen.XML and refuses what can't be described; nil = no XML
	Faults *sysfstest.Faults                  // counts and breaks changes; nil = the kernel's, so that one count goes over both
	KVM    bool                               // what Host says
}

// Hypervisor is a simulated daemon with its domains. It is safe for concurrent use.
type Hypervisor struct {
	cfg    Config
	faults *sysfstest.Faults

	mu      sync.Mutex
	down    bool
	domains map[string]*domain // by UUID
	pid     int
	hangs   map[string]chan struct{} // starts that hang, by UUID
	subs    map[*subscription]bool
}

// domain is a definition and, if it runs, what it was started from.
type domain struct {
	now   hyper.Domain
	xml   string
	live  hyper.Domain
	liveX string
	state hyper.State
	pid   int
	deaf  bool
	auto  bool // the daemon starts it when it starts
}

// New returns a hypervisor without domains.
func New(cfg Config) *Hypervisor {
	h := &Hypervisor{cfg: cfg, faults: cfg.Faults, domains: map[string]*domain{}, pid: 4000, hangs: map[string]chan struct{}{}, subs: map[*subscription]bool{}}
	if h.faults == nil && cfg.Kernel != nil {
		h.faults = cfg.Kernel.Faults
	}
	if h.faults == nil {
		h.faults = &sysfstest.Faults{}
	}
	if cfg.Kernel != nil {
		cfg.Kernel.OnReboot(h.reboot)
	}
	return h
}

// reboot is the end of all processes; definitions stay.
func (h *Hypervisor) reboot() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range h.domains {
		d.state, d.pid = hyper.Off, 0
	}
	for _, id := range slices.Sorted(maps.Keys(h.domains)) {
		if d := h.domains[id]; d.auto {
			_ = h.start(d) // the daemon logs what did not start, and goes on
		}
	}
	h.tell(hyper.Event{Text: "simulated: the daemon started"})
}

// Faults is what counts and breaks the changes that drivers ask for.
func (h *Hypervisor) Faults() *sysfstest.Faults { return h.faults }

// StopDaemon ends the daemon; running domains go on, calls fail as Unavailable.
func (h *Hypervisor) StopDaemon() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.down = true
}

// StartDaemon brings it back; event streams say that anything may have happened.
func (h *Hypervisor) StartDaemon() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.down = false
	h.tell(hyper.Event{Text: "simulated: connected again"})
}

// HangStart makes starts of the domain hang until ReleaseStart, when they happen, wanted or not.
func (h *Hypervisor) HangStart(uuid string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hangs[uuid] == nil {
		h.hangs[uuid] = make(chan struct{})
	}
}

// ReleaseStart lets the domain's starts go on.
func (h *Hypervisor) ReleaseStart(uuid string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ch := h.hangs[uuid]; ch != nil {
		close(ch)
		delete(h.hangs, uuid)
	}
}

// Kill is the sudden end of a domain's process, or its guest's own shutdown: it is off and its VFs are let
// go.
func (h *Hypervisor) Kill(uuid string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.domains[uuid]
	if d == nil || d.state == hyper.Off {
		return fmt.Errorf("kill domain %s: it does not run", uuid)
	}
	h.stop(d, "simulated: the process ended")
	return nil
}

// Deafen makes the guest ignore, or heed, the request to shut down.
func (h *Hypervisor) Deafen(uuid string, deaf bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.domains[uuid]
	if d == nil {
		return fmt.Errorf("deafen domain %s: it is not defined", uuid)
	}
	d.deaf = deaf
	return nil
}

// Autostart is somebody setting the flag by hand (virsh autostart). No event tells of it.
func (h *Hypervisor) Autostart(uuid string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.domains[uuid]
	if d == nil {
		return fmt.Errorf("autostart of domain %s: it is not defined", uuid)
	}
	d.auto = true
	return nil
}

// AddForeign is somebody else making a domain by hand, and starting it. Whatever owner it names is left
// out: it has no metadata of ours.
func (h *Hypervisor) AddForeign(dom hyper.Domain, run bool) error {
	dom.Owner = hyper.Owner{}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.define(dom, ""); err != nil {
		return err
	}
	if run {
		return h.start(h.domains[dom.UUID])
	}
	return nil
}

// PID is the process of a running domain, 0 if it is off.
func (h *Hypervisor) PID(uuid string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := h.domains[uuid]; d != nil {
		return d.pid
	}
	return 0
}

// define checks what libvirt checks of a definition.
func (h *Hypervisor) define(dom hyper.Domain, xml string) error {
	seen := map[string]bool{}
	for _, v := range dom.VFs {
		for _, key := range []string{"device " + v.Host.String(), "alias " + v.Alias} {
			if seen[key] {
				return fault.New(fault.Invalid, "define domain %s: %s is there twice", dom.Name, key)
			}
			seen[key] = true
		}
	}
	for id, d := range h.domains {
		if id != dom.UUID && d.now.Name == dom.Name {
			return fault.New(fault.Conflict, "define domain %s: a domain of that name exists already with UUID %s", dom.Name, id)
		}
	}
	d := h.domains[dom.UUID]
	switch {
	case d == nil:
		d = &domain{state: hyper.Off}
		h.domains[dom.UUID] = d
	case d.now.Name != dom.Name:
		return fault.New(fault.Conflict, "define domain %s: its UUID %s is domain %s already", dom.Name, dom.UUID, d.now.Name)
	}
	d.now, d.xml = clone(dom), xml
	h.tell(hyper.Event{UUID: dom.UUID, Text: "simulated: defined"})
	return nil
}

func clone(d hyper.Domain) hyper.Domain {
	d.Cells, d.VFs, d.NICs, d.GuestPorts = slices.Clone(d.Cells), slices.Clone(d.VFs), slices.Clone(d.NICs), slices.Clone(d.GuestPorts)
	return d
}

// start makes a process that holds the vfio groups of the domain's VFs.
func (h *Hypervisor) start(d *domain) error {
	if err := h.startable(d); err != nil {
		return err
	}
	h.pid++
	for _, v := range d.now.VFs {
		if err := h.cfg.Kernel.OpenVFIO(v.Host.String(), h.pid); err != nil {
			h.cfg.Kernel.CloseVFIO(h.pid)
			return fault.Wrap(err, fault.Unready, "start domain %s: internal error: vfio %s: %v", d.now.Name, v.Host, err)
		}
	}
	d.pid, d.state, d.live, d.liveX = h.pid, hyper.Running, clone(d.now), d.xml
	h.tell(hyper.Event{UUID: d.now.UUID, Text: "simulated: started"})
	return nil
}

func (h *Hypervisor) startable(d *domain) error {
	if len(d.now.VFs) > 0 && h.cfg.Kernel == nil {
		return fault.New(fault.Unready, "start domain %s: this simulated hypervisor has no PCI devices", d.now.Name)
	}
	for _, v := range d.now.VFs {
		for _, id := range slices.Sorted(maps.Keys(h.domains)) {
			o := h.domains[id]
			if o == d || o.state == hyper.Off {
				continue
			}
			if slices.ContainsFunc(o.live.VFs, func(w hyper.VF) bool { return w.Host == v.Host }) {
				return fault.New(fault.Unready, "start domain %s: Requested operation is not valid: PCI device %s is in use by driver QEMU, domain %s", d.now.Name, v.Host, o.now.Name)
			}
		}
		drv, ok := h.cfg.Kernel.Driver(v.Host)
		switch {
		case !ok:
			return fault.New(fault.Unready, "start domain %s: Device %s not found: could not access /sys/bus/pci/devices/%s/config", d.now.Name, v.Host, v.Host)
		case drv != "vfio-pci":
			return fault.New(fault.Unready, "start domain %s: Requested operation is not valid: Unmanaged PCI device %s must be manually detached from the host", d.now.Name, v.Host)
		}
	}
	return nil
}

func (h *Hypervisor) stop(d *domain, text string) {
	if h.cfg.Kernel != nil && d.pid != 0 {
		h.cfg.Kernel.CloseVFIO(d.pid)
	}
	d.state, d.pid = hyper.Off, 0
	h.tell(hyper.Event{UUID: d.now.UUID, Text: text})
}
