// Package hyper is the contract of a hypervisor: domains are defined from a complete description,
// powered on and off, removed, listed and watched. Engines: hyper/libvirt and the simulated one in
// hyper/hypertest. The XML both use is made by hyper/domxml.
package hyper

import (
	"context"
	"iter"

	"github.com/verbena-cloud/verbena/internal/roce"
)

// Domain is the whole description of a VM for its host. It is built by the agent from what the server
// resolved; it has no reference that must still be looked up.
type Domain struct {
	UUID       string // the VM's UID
	Name       string // "TENANT.VM": unique on the host, ≤ 63+1+63 characters
	Owner      Owner  // written into <metadata>, so that a crash loses nothing
	Type       string // "kvm" or "qemu" (emulation); what the host can do
	Cells      []Cell // at least one: a guest without NUMA cells would ignore every NUMA policy
	Emulator   string // host CPUs of the emulator threads, kernel list format; empty = no pinning
	VFs        []VF
	NICs       []NIC
	Disk       Disk
	Seed       string   // path of the NoCloud ISO; empty = none
	GuestPorts []string // names of virtio-serial ports, e.g. org.verbena.guest.0
}

// Owner ties a domain to the object it was made for.
type Owner struct {
	Tenant     string
	VM         string
	Generation int64
}

// Cell is a guest NUMA cell and what backs it.
type Cell struct {
	ID       int // guest cell
	HostNode int // host NUMA node; -1 = not bound
	VCPUs    int
	CPUs     []string // host CPU list of each vCPU, len = VCPUs; empty = not pinned
	Memory   int64    // bytes
	Hugepage int64    // page size in bytes; 0 = normal pages
	Strict   bool     // memory mode strict rather than preferred
}

// VF is a virtual function to pass through (form: hostdev managed='no').
type VF struct {
	Alias string       // without the "ua-" prefix that the engine adds
	Host  roce.PCIAddr // as observed now
	Cell  int          // guest cell under whose PCI expander it sits
	MAC   roce.MAC     // for <metadata>; the agent has programmed it
	VLAN  int
	QoS   int
	Guest roce.PCIAddr // where the guest sees it; fixed over restarts
}

// NIC is a virtio NIC on a host bridge.
type NIC struct {
	Bridge string
	MAC    roce.MAC
	VLAN   int
	MTU    int
}

// Disk is the root disk.
type Disk struct {
	Path   string
	Format string // qcow2 or raw
}

// State is a domain's power state.
type State string

// The states that matter to Verbena.
const (
	Off     State = "off"
	Running State = "running"
	Paused  State = "paused"
	Crashed State = "crashed"
	Dying   State = "dying" // shutting down
)

// Seen is a domain as the hypervisor reports it. Foreign domains (without our metadata) are listed with
// an empty Owner and are never touched.
type Seen struct {
	UUID  string
	Name  string
	State State
	Owner Owner
	VFs   []VF // with Alias, Host, Guest and what metadata says of MAC, VLAN, QoS
	// Ports are the host's sockets of virtio-serial ports by their names, while the domain runs.
	Ports map[string]string
	XML   string
	// Autostart says that the hypervisor starts it by itself when the host boots.
	Autostart bool
}

// Host is what the hypervisor says about itself.
type Host struct {
	Version   string // "libvirt 11.3.0 / QEMU 10.0.13"
	Simulated bool
	KVM       bool // hardware virtualisation works here
}

// Event says that a domain may have changed, or, with an empty UUID, that anything may have (the
// connection was lost and is back: list again).
type Event struct {
	UUID string
	Text string
}

// Driver is a hypervisor. All calls are idempotent: defining the same again, stopping a stopped or
// undefining a missing domain succeed. Errors are faults: Unavailable when the daemon can't be reached,
// Conflict when the domain belongs to somebody else.
type Driver interface {
	// Define makes or updates the persistent definition; a running domain keeps running as it was.
	Define(ctx context.Context, d Domain) error
	// Power brings the domain to Running or Off. hard cuts the power instead of asking the guest.
	Power(ctx context.Context, uuid string, want State, hard bool) error
	// Undefine removes a stopped domain's definition.
	Undefine(ctx context.Context, uuid string) error
	// List returns all domains and what the hypervisor says of itself.
	List(ctx context.Context) (Host, []Seen, error)
	// Events yields changes until ctx ends; it reconnects by itself.
	Events(ctx context.Context) iter.Seq[Event]
}

// Autostarter turns off that a hypervisor starts a domain by itself when the host boots. Domains that a
// Driver defines begin without it; people can set it. A missing domain is no error.
type Autostarter interface {
	NoAutostart(ctx context.Context, uuid string) error
}
