package preflight

import (
	"net/netip"

	"github.com/verbena-cloud/verbena/internal/dcb"
	"github.com/verbena-cloud/verbena/internal/pci"
	"github.com/verbena-cloud/verbena/internal/roce"
)

// Facts are what was seen of a host. Zero values mean "not there" only where nothing in Unseen says otherwise.
type Facts struct {
	Root        bool   // the checks ran as root; without it some facts can't be seen
	Kernel      string // release
	CommandLine []string
	Modules     map[string]bool // loaded or built in, by name with underscores
	Nodes       map[string]bool // device nodes, by path
	IOMMUGroups int
	Lockdown    string // none, integrity, confidentiality; "" = not told
	NetnsShared *bool  // RDMA devices are seen in every network namespace; nil = not told
	Hugepages   []Hugepages
	Memlock     Limit
	LLDPAgents  []string // names of running programs that speak LLDP
	Firewall    Firewall
	PFs         []PF
	RDMA        []RDMADevice
	Unseen      []string // what could not be read and why, one line each
}

// Hugepages are the reserved pages of one size on one NUMA node.
type Hugepages struct {
	Node        int
	Size        int64 // bytes
	Total, Free int64 // pages
}

// Limit is RLIMIT_MEMLOCK of the process that asked, in bytes.
type Limit struct {
	Known, Unlimited bool
	Bytes            uint64
}

// Firewall is what packet filters say about RoCE v2's UDP port.
type Firewall struct {
	Known bool
	Drops []string // rules that drop or reject the port, as the filter prints them
}

// PF is a network function with SR-IOV, or one that is the parent of an RDMA device.
type PF struct {
	Address    roce.PCIAddr
	Driver     string // "" = none bound
	Link       string // netdev, "" = none
	Bond       string // master, if it is a bond
	NUMA       int    // -1 = the platform does not say
	Carrier    *bool  // nil = administratively down
	Speed      int    // Mb/s, 0 = unknown
	MTU        int
	Addresses  []netip.Addr // of the netdev and of what lies on it
	Management bool         // carries the default route
	Firmware   string       // "" = not told
	Board      string       // PSID or board id, "" = not told
	Version    string       // the driver's own, only of drivers outside the kernel
	Pending    []string     // parts of the firmware that wait for a reset, with both versions
	Eswitch    string       // legacy or switchdev, "" = not told
	PCIe       PCIe
	Path       []Bridge // the PCI ports above it that keep functions apart, the nearest first
	SRIOV      SRIOV
	VFs        []VF
	DCB        *dcb.State // nil = the driver has no DCB, or it could not be read
	DCBUnknown bool       // reading it failed for another reason
	ECN        *bool      // both halves of ECN on for the RoCE priority; nil = this driver does not tell it here
}

// PCIe is the function's link. Speeds are GT/s, 0 = not told.
type PCIe struct {
	Speed, MaxSpeed float64
	Width, MaxWidth int
	// What the port above it can do.
	UpSpeed float64
	UpWidth int
}

// SRIOV is the function's capability.
type SRIOV struct {
	Present   bool // sriov_totalvfs is there
	Total     int
	Num       int
	Autoprobe bool
	// Listed is how many VFs the card's own configuration space offers, 0 where it has no such capability;
	// nil = that space could not be read to its end.
	Listed *int
}

// Bridge is a root port, a downstream port of a switch or a bridge to conventional PCI.
type Bridge struct {
	Address string   // "" = not told
	Known   bool     // its configuration space could be read to its end
	ACS     *pci.ACS // nil with Known = it has none
}

// VF is one virtual function.
type VF struct {
	Index     int
	Address   roce.PCIAddr
	Driver    string
	Group     string   // IOMMU group, "" = none
	Mates     []string // other functions in the group that a host driver holds or that nobody may hand out
	NodeGUID  *roce.GUID
	GroupNode bool // /dev/vfio/GROUP exists
}

// RDMADevice is a device of /sys/class/infiniband.
type RDMADevice struct {
	Name     string
	Address  *roce.PCIAddr // nil: no PCI device (rxe, siw)
	Virtual  bool          // a VF's
	NodeGUID roce.GUID
	Uverbs   string // its uverbsN, "" = none
	Provider string // why libibverbs can't use it, "" = it can, or it was not asked
	Ports    []Port
}

// Port is a port of an RDMA device.
type Port struct {
	Number    int
	State     string // ACTIVE, DOWN, …
	LinkLayer string // Ethernet, InfiniBand
	GIDs      []GID
	CMMode    string // rdma_cm's default, "" = not told
}

// GID is one filled entry of a port's table.
type GID struct {
	Index int
	Addr  netip.Addr // IPv4-mapped ones unmapped
	V2    bool       // RoCE v2
	Link  string     // netdev, "" = not told
}
