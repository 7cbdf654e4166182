package guestos

import (
	"net/netip"

	"github.com/verbena-cloud/verbena/internal/roce"
)

// Facts are what was seen of the guest.
type Facts struct {
	Root     bool // it was looked at as root
	Kernel   string
	Boot     string          // this boot's id
	CPUs     []int           // online
	Nodes    int             // NUMA nodes
	Modules  map[string]bool // loaded or built in, by name with underscores
	Sysctls  map[string]int  // of those that matter here, the ones that the kernel has
	Balancer bool            // irqbalance runs
	NICs     []NIC
	Unseen   []string // what could not be read and why, one line each
}

// NIC is a network function on the guest's PCI bus: a virtual function or a virtio NIC.
type NIC struct {
	Netdev   string // "" = none
	PCI      string
	MAC      string
	Driver   string // of the PCI function
	Version  string // the driver's own, only of drivers outside the kernel
	Firmware string // "" = not told
	Board    string
	NUMA     int   // -1 = the guest does not know
	CPUs     []int // online CPUs of that node, all where it is not known
	MTU      int
	Channels *Channels // nil = the driver does not tell
	IRQs     []IRQ     // by number
	RDMA     []Device
}

// Channels are the combined queues of a netdev.
type Channels struct{ Combined, Max int }

// IRQ is an interrupt whose affinity can be read.
type IRQ struct {
	Number int
	CPUs   []int
}

// Device is an RDMA device.
type Device struct {
	Name     string
	NodeGUID roce.GUID
	Provider string // why libibverbs can't use it, "" = it can, or it was not asked
	QPCount  *int64 // nil = the kernel does not tell
	Ports    []Port
}

// Port is a port of an RDMA device.
type Port struct {
	Number    int
	State     string // ACTIVE, DOWN, …
	LinkLayer string
	GIDs      []GID
	Counters  map[string]uint64 // hw_counters
	Unread    int               // of those, files that gave no number
}

// GID is one filled entry of a port's table.
type GID struct {
	Index int
	Addr  netip.Addr // IPv4-mapped ones unmapped
	V2    bool       // RoCE v2
	Link  string     // netdev, "" = not told
}

// Pick is the entry to use, found by value since an index changes when a link flaps or an address comes: RoCE
// v2 on the netdev itself, IPv4 before IPv6, and never a link-local one, which no router takes further.
func (p Port) Pick(netdev string) (GID, bool) {
	best, found := GID{Index: -1}, false
	for _, g := range p.GIDs {
		if !g.V2 || g.Link != "" && g.Link != netdev || g.Addr.IsLinkLocalUnicast() {
			continue
		}
		if !found || g.Addr.Is4() && !best.Addr.Is4() {
			best, found = g, true
		}
	}
	return best, found
}
