package guestos

import (
	"slices"
	"strconv"
	"strings"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/preflight"
)

// Kind is what a setting is of.
type Kind string

// The kinds, in the order in which they are set: a module may bring a device, queues bring interrupts.
const (
	Module   Kind = "module" // object: its name; value: loaded or absent
	Queues   Kind = "queues" // object: netdev; value: combined queues
	Affinity Kind = "irq"    // object: NETDEV/NUMBER; value: CPU list
	Sysctl   Kind = "sysctl" // object: net.core.busy_poll; value: number
)

// Kinds lists them in that order.
func Kinds() []Kind { return []Kind{Module, Queues, Affinity, Sysctl} }

// Values of a module.
const (
	Loaded = "loaded"
	Absent = "absent"
)

// The sysctls that are set. Documentation/admin-guide/sysctl/net.rst: microseconds that poll and select
// (busy_poll) and reads (busy_read) look into the device's queue before they sleep; it recommends 50.
const (
	BusyPoll = "net.core.busy_poll"
	BusyRead = "net.core.busy_read"
)

// Config is what the VM's owner wants.
type Config struct {
	// BusyPoll is in microseconds; 0 turns it off, -1 leaves it as it is.
	BusyPoll int `json:"busyPoll"`
	MinMTU   int `json:"minMTU"` // RoCE payload bytes
	// Pairs say which firmware goes with which driver, as in the preflight configuration.
	Pairs []preflight.Pair `json:"pairs"`
}

// Default is what is set where the owner says nothing.
func Default() Config { return Config{BusyPoll: 50, MinMTU: preflight.Default().MinMTU} }

// maxBusyPoll is a hundredth of a second: beyond it a mistyped unit is likelier than a wish.
const maxBusyPoll = 10000

// Validate names every wrong value.
func (c Config) Validate() error {
	var f fault.Faults
	if c.BusyPoll < -1 || c.BusyPoll > maxBusyPoll {
		f.Add("busyPoll", "%d is not in 0–%d µs; -1 leaves it as it is", c.BusyPoll, maxBusyPoll)
	}
	if err := f.Err("guest configuration"); err != nil {
		return err
	}
	return preflight.Config{MinMTU: c.MinMTU, Pairs: c.Pairs}.Validate()
}

// Setting is one value that differs.
type Setting struct {
	Kind   Kind   `json:"kind"`
	Object string `json:"object"`
	Before string `json:"before"`
	After  string `json:"after"`
	How    string `json:"how"` // as a shell would do it
}

// ID names what is set, apart from its values.
func (s Setting) ID() string { return string(s.Kind) + "/" + s.Object }

// Plan lists what is to be set, in order; nothing where all is as it should be.
func Plan(f Facts, c Config) []Setting {
	p := planner{facts: f}
	for _, m := range f.wanted() {
		p.add(Module, m, Loaded)
	}
	for _, n := range f.NICs {
		if n.Netdev != "" && n.Channels != nil && n.Channels.Max > 0 && len(n.CPUs) > 0 {
			p.add(Queues, n.Netdev, strconv.Itoa(min(n.Channels.Max, len(n.CPUs))))
		}
	}
	for _, n := range f.NICs {
		if len(n.CPUs) == 0 || n.Driver == virtio {
			continue
		}
		for i, q := range n.IRQs {
			p.add(Affinity, n.irq(q), strconv.Itoa(n.CPUs[i%len(n.CPUs)]))
		}
	}
	if c.BusyPoll >= 0 {
		p.add(Sysctl, BusyPoll, strconv.Itoa(c.BusyPoll))
		p.add(Sysctl, BusyRead, strconv.Itoa(c.BusyPoll))
	}
	return p.list
}

// virtio NICs put both interrupts of a queue beside its CPU by themselves.
const virtio = "virtio-pci"

// planner keeps what differs.
type planner struct {
	facts Facts
	list  []Setting
}

func (p *planner) add(k Kind, object, after string) {
	before, ok := p.facts.Value(k, object)
	if ok && before != after {
		p.list = append(p.list, Setting{Kind: k, Object: object, Before: before, After: after, How: how(k, object, after)})
	}
}

// irq is the object of an interrupt. The netdev is in it because numbers are given anew: an interrupt of
// another device must not get this one's affinity back.
func (n NIC) irq(q IRQ) string { return n.Netdev + "/" + strconv.Itoa(q.Number) }

// driver returns the RDMA module that goes with a network driver, "" where none does.
func driver(nic string) string {
	switch nic {
	case "mlx5_core":
		return "mlx5_ib"
	case "mlx4_core", "mlx4_en":
		return "mlx4_ib"
	case "bnxt_en":
		return "bnxt_re"
	case "ice":
		return "irdma"
	case "qede":
		return "qedr"
	}
	return ""
}

// wanted are the modules that verbs need here: none in a guest without an RDMA NIC. Drivers come last, so that
// the way back takes them out first: they hold the others.
func (f Facts) wanted() []string {
	out := []string{"ib_uverbs", "rdma_ucm"}
	rdma := false
	for _, n := range f.NICs {
		m := driver(n.Driver)
		rdma = rdma || m != "" || len(n.RDMA) > 0
		if m != "" && !slices.Contains(out, m) {
			out = append(out, m)
		}
	}
	if !rdma {
		return nil
	}
	return out
}

// Value is what a setting's object has now; ok is false where there is no such object.
func (f Facts) Value(k Kind, object string) (value string, ok bool) {
	switch k {
	case Module:
		if f.Modules[object] {
			return Loaded, true
		}
		return Absent, true
	case Queues:
		for _, n := range f.NICs {
			if n.Netdev == object && n.Channels != nil {
				return strconv.Itoa(n.Channels.Combined), true
			}
		}
	case Affinity:
		for _, n := range f.NICs {
			for _, q := range n.IRQs {
				if n.Netdev != "" && n.irq(q) == object {
					return FormatCPUs(q.CPUs), true
				}
			}
		}
	case Sysctl:
		v, ok := f.Sysctls[object]
		return strconv.Itoa(v), ok
	}
	return "", false
}

// how prints a setting as a shell would do it.
func how(k Kind, object, after string) string {
	switch k {
	case Module:
		if after == Absent {
			return "modprobe -r " + object
		}
		return "modprobe " + object
	case Queues:
		return "ethtool -L " + object + " combined " + after
	case Affinity:
		return "echo " + after + " > /proc/" + IRQPath(object)
	default:
		return "sysctl -w " + object + "=" + after
	}
}

// IRQPath is the file of an interrupt's affinity below /proc.
func IRQPath(object string) string {
	return "irq/" + object[strings.LastIndexByte(object, '/')+1:] + "/smp_affinity_list"
}

// SysctlPath is the file of a sysctl below /proc.
func SysctlPath(object string) string { return "sys/" + strings.ReplaceAll(object, ".", "/") }
