package api

import "time"

// Host is a hypervisor.
type Host struct {
	Meta
	Spec   HostSpec   `json:"spec" doc:"What is wanted: people write it"`
	Status HostStatus `json:"status,omitzero" doc:"What is: the system writes it"`
}

// HostSpec is what an operator declares.
type HostSpec struct {
	Rack        string   `json:"rack,omitempty" doc:"Where the host stands; free text"`
	Maintenance string   `json:"maintenance,omitempty" enum:"none,cordon" doc:"cordon: no new VMs. Default none"`
	Bridge      string   `json:"bridge,omitempty" doc:"Linux bridge for virtio NICs of VMs without RDMA"`
	PFs         []HostPF `json:"pfs,omitempty" doc:"Physical functions that serve the VF pool; all others are left alone"`
	Reserved    Reserved `json:"reserved,omitzero" doc:"Per NUMA node, for the host itself"`
}

// HostPF commissions a physical function.
type HostPF struct {
	Match  string `json:"match" doc:"PF key, PCI address or netdev name as inventory shows it" example:"0000:3b:00.0"`
	Fabric string `json:"fabric" doc:"Fabric that the port is cabled to"`
	VFs    int    `json:"vfs" minimum:"0" maximum:"256" doc:"VF count; changed only while every VF of the PF is parked"`
	// AllowManagement lifts the guard that keeps the PF of the default route out of the pool.
	AllowManagement bool `json:"allowManagement,omitempty" doc:"Make VFs although the port carries the default route or the session with the server"`
	// AllowBond lifts the guard that keeps VFs off the ports of a bond.
	AllowBond bool `json:"allowBond,omitempty" doc:"Make VFs although the port is in a bond: RoCE over the bond ends on the host, and RDMA on the VFs does not fail over"`
}

// Reserved is kept from VMs on each NUMA node.
type Reserved struct {
	VCPUs  int    `json:"vcpus,omitempty" doc:"Host CPUs of each node kept from VMs"`
	Memory string `json:"memory,omitempty" doc:"Normal memory of each node kept from VMs, e.g. 8GiB"`
}

// Host states. Liveness is held in memory: it is never a durable write.
const (
	HostJoining = "joining" // declared, no agent has reported
	HostUp      = "up"
	HostUnknown = "unknown" // the agent's stream is lost; VMs may well run
)

// HostStatus is the live state and the last inventory.
type HostStatus struct {
	State      string      `json:"state,omitempty"`
	Seen       *time.Time  `json:"seen,omitempty" doc:"Last sign of life; not durable"`
	Inventory  *Inventory  `json:"inventory,omitempty"`
	Used       []CellUse   `json:"used,omitempty" doc:"What the ledger has given to VMs"`
	VMs        int         `json:"vms"`
	Conditions []Condition `json:"conditions,omitempty"`
	Preflight  *Preflight  `json:"preflight,omitempty" doc:"Whether the host can give VMs RDMA, as its agent found; none = it never told"`
}

// CellUse is what VMs hold of a NUMA node.
type CellUse struct {
	Cell      int              `json:"cell"`
	VCPUs     int              `json:"vcpus"`
	Memory    int64            `json:"memory"`
	Hugepages map[string]int64 `json:"hugepages,omitempty" doc:"Page size to bytes"`
	VFs       int              `json:"vfs"`
}

// Inventory is what the agent read from the kernel and the hypervisor.
type Inventory struct {
	Simulated  bool     `json:"simulated,omitempty" doc:"The host is simulated: no real kernel is behind it"`
	Agent      string   `json:"agent" doc:"Version of the agent"`
	Kernel     string   `json:"kernel,omitempty"`
	Hypervisor string   `json:"hypervisor,omitempty" doc:"e.g. libvirt 11.3.0 / QEMU 10.0.13"`
	BootID     string   `json:"bootID,omitempty" doc:"/proc/sys/kernel/random/boot_id"`
	IOMMU      bool     `json:"iommu"`
	Cells      []Cell   `json:"cells"`
	PFs        []PF     `json:"pfs"`
	Problems   []string `json:"problems,omitempty" doc:"What could not be read, and why"`
}

// Cell is a host NUMA node.
type Cell struct {
	ID        int         `json:"id"`
	CPUs      string      `json:"cpus" doc:"Kernel list format, e.g. 0-15,32-47"`
	VCPUs     int         `json:"vcpus" doc:"Number of CPUs in the list"`
	Memory    int64       `json:"memory" doc:"Bytes of normal memory, hugepages not counted"`
	Hugepages []Hugepages `json:"hugepages,omitempty"`
}

// Hugepages is a pool of one page size on a node.
type Hugepages struct {
	Size  string `json:"size" enum:"2MiB,1GiB"`
	Total int64  `json:"total" doc:"Pages"`
	Free  int64  `json:"free" doc:"Pages"`
}

// PF is a physical function of an SR-IOV NIC.
type PF struct {
	Key        string `json:"key" doc:"Stable identity: permanent MAC and port, e.g. 3c:ec:ef:00:00:01-p0"`
	PCI        string `json:"pci"`
	Netdev     string `json:"netdev,omitempty"`
	RDMADevice string `json:"rdmaDevice,omitempty"`
	MAC        string `json:"mac,omitempty"`
	Serial     string `json:"serial,omitempty"`
	Card       string `json:"card,omitempty" doc:"Equal for all ports of one card"`
	Port       int    `json:"port" doc:"Port number on its card, from 0"`
	Vendor     string `json:"vendor,omitempty"`
	Device     string `json:"device,omitempty"`
	Driver     string `json:"driver,omitempty"`
	Firmware   string `json:"firmware,omitempty"`
	Cell       int    `json:"numa" doc:"NUMA node; -1 = unknown"`
	Speed      int64  `json:"speed,omitempty" doc:"bit/s of the netdev; 0 = unknown or down"`
	LinkUp     bool   `json:"linkUp"`
	MTU        int    `json:"mtu,omitempty"`
	Mode       string `json:"mode,omitempty" doc:"eswitch mode: legacy, switchdev or empty = unknown"`
	Bond       string `json:"bond,omitempty"`
	Management bool   `json:"management,omitempty" doc:"Carries the default route or the server session"`
	TotalVFs   int    `json:"totalVFs"`
	NumVFs     int    `json:"numVFs"`
	Fabric     string `json:"fabric,omitempty" doc:"As commissioned"`
	WantVFs    int    `json:"wantVFs" doc:"As commissioned; numVFs below it is a shortfall"`
	Caps       PFCaps `json:"capabilities"`
	Ready      bool   `json:"ready" doc:"Commissioned, and every mandatory capability is there"`
	Reason     string `json:"reason,omitempty" doc:"Why not ready"`
	// QoS is how the port tells RoCE from other traffic.
	QoS *NICQoS `json:"qos,omitempty" doc:"How the port tells RoCE from other traffic"`
	VFs []VF    `json:"vfs,omitempty"`
}

// NICQoS is what a port does to keep RoCE from losing packets, as read, and how that stands to its fabric.
type NICQoS struct {
	State   string            `json:"state,omitempty" enum:"ok,drift,absent,refused,unknown" doc:"absent: the driver has no such settings, which is no fault; refused: somebody else owns them; empty: the port serves no fabric"`
	Reason  string            `json:"reason,omitempty" doc:"Why not ok, and what to do"`
	Steps   []string          `json:"steps,omitempty" doc:"What differs and is set by the agent if the fabric's nicQoS is apply"`
	Held    []string          `json:"held,omitempty" doc:"What differs and waits until nobody uses the port, or is for people to do"`
	Lacks   []string          `json:"lacks,omitempty" doc:"What can't be set on this port"`
	DCBX    string            `json:"dcbx,omitempty" doc:"Who configures the port: host ieee, lld-managed …, firmware; empty = the driver does not tell" example:"host ieee"`
	PFC     string            `json:"pfc,omitempty" doc:"Priorities with flow control, or none; empty = the driver does not tell" example:"3"`
	Trust   string            `json:"trust,omitempty" doc:"What the port goes by, where the driver tells" example:"dscp pcp"`
	Apps    []string          `json:"apps,omitempty" doc:"Which packets have which priority" example:"[\"dscp-prio 26:3\"]"`
	Files   map[string]string `json:"files,omitempty" doc:"Congestion control of mlx5, by path below /sys"`
	LLDP    []string          `json:"lldp,omitempty" doc:"Programs on the host that set DCB by LLDP"`
	InUse   int               `json:"inUse,omitempty" doc:"VFs of the port that guests or processes use now"`
	Refused map[string]string `json:"refused,omitempty" doc:"Optional settings that the driver refused, by command"`
}

// PFCaps is what the PF's driver can set on a VF, found out by probing; a mandatory one missing keeps the PF out of the pool.
type PFCaps struct {
	MAC        bool `json:"mac"`
	VLAN       bool `json:"vlan"`
	QoS        bool `json:"qos" doc:"VLAN priority"`
	SpoofCheck bool `json:"spoofCheck"`
	Trust      bool `json:"trust"`
	MaxRate    bool `json:"maxRate"`
	MinRate    bool `json:"minRate"`
	LinkState  bool `json:"linkState"`
	VFStats    bool `json:"vfStats" doc:"The driver counts what each VF sends and receives; the count may leave RDMA out"`
}

// VF life cycle states (see docs/vf.md).
const (
	VFAbsent      = "absent"
	VFParked      = "parked" // vfio-pci, parking MAC, VLAN 0, spoof check on, trust off, rates 0, and read back so: the only allocatable state
	VFReserved    = "reserved"
	VFProgrammed  = "programmed"
	VFVerified    = "verified"
	VFAttached    = "attached"
	VFDraining    = "draining"
	VFScrubbing   = "scrubbing"
	VFQuarantined = "quarantined"
	VFForeign     = "foreign" // busy with something that is not ours
)

// VF is a virtual function as last read.
type VF struct {
	Index      int    `json:"index"`
	PCI        string `json:"pci,omitempty"`
	Group      string `json:"group,omitempty" doc:"IOMMU group, changes over boots"`
	Driver     string `json:"driver,omitempty"`
	State      string `json:"state"`
	Reason     string `json:"reason,omitempty" doc:"Why quarantined, foreign or not yet parked"`
	MAC        string `json:"mac,omitempty"`
	VLAN       int    `json:"vlan,omitempty"`
	QoS        int    `json:"qos,omitempty"`
	SpoofCheck bool   `json:"spoofCheck,omitempty"`
	Trust      bool   `json:"trust,omitempty"`
	MinRate    int64  `json:"minRate,omitempty" doc:"bit/s"`
	MaxRate    int64  `json:"maxRate,omitempty" doc:"bit/s"`
	Owner      string `json:"owner,omitempty" doc:"UID of the VM that holds it"`
	VM         string `json:"vm,omitempty" doc:"TENANT/NAME of the VM that holds it"`
	Generation int64  `json:"generation,omitempty"`
}

// Fabric is a lossless RoCE v2 network.
type Fabric struct {
	Meta
	Spec   FabricSpec   `json:"spec" doc:"What is wanted: people write it"`
	Status FabricStatus `json:"status,omitzero" doc:"What is: the system writes it"`
}

// FabricSpec is the operator's intent.
type FabricSpec struct {
	Speed    string   `json:"speed" example:"25Gbps"`
	MTU      int      `json:"mtu,omitempty" doc:"IP MTU of the fabric; default 4200, so that RoCE's MTU of 4096 fits"`
	Priority *int     `json:"priority,omitempty" minimum:"0" maximum:"7" doc:"802.1Q priority of RoCE traffic; default 3"`
	DSCP     *int     `json:"dscp,omitempty" minimum:"0" maximum:"63" doc:"DSCP of RoCE traffic; default 26"`
	CNPDSCP  *int     `json:"cnpDSCP,omitempty" minimum:"0" maximum:"63" doc:"DSCP of congestion notification packets; default 48"`
	NICQoS   string   `json:"nicQoS,omitempty" enum:"observe,apply" doc:"apply: agents set PFC, DSCP priorities and CNP DSCP on the fabric's NIC ports; observe: they only tell what differs. Default observe"`
	VLANPool []string `json:"vlanPool" doc:"VLAN ids and ranges for tenant networks" example:"[\"100-199\"]"`
	// Firmware is what the site has tried.
	Firmware []FirmwarePair `json:"nicFirmware,omitempty" doc:"Which firmware goes with which driver on the fabric's NIC ports; preflight judges hosts by it. Empty = not checked"`
}

// FirmwarePair is one line of a site's matrix. Empty fields match anything.
type FirmwarePair struct {
	Driver      string   `json:"driver" example:"mlx5_core"`
	Board       string   `json:"board,omitempty" doc:"PSID or board id" example:"MT_0000000359"`
	Kernel      string   `json:"kernel,omitempty" doc:"Release of the host's kernel, or its beginning" example:"6.12"`
	MinFirmware string   `json:"minFirmware,omitempty" example:"22.31.1014"`
	MaxFirmware string   `json:"maxFirmware,omitempty"`
	MinVersion  string   `json:"minVersion,omitempty" doc:"Of a driver from outside the kernel"`
	Bad         []string `json:"bad,omitempty" doc:"Firmware versions known as broken"`
	Why         string   `json:"why,omitempty" doc:"What people read with a finding"`
}

// FabricStatus is derived.
type FabricStatus struct {
	VLANsFree  int         `json:"vlansFree"`
	VFs        int         `json:"vfs" doc:"VFs of all hosts on it"`
	VFsFree    int         `json:"vfsFree" doc:"Parked and unclaimed"`
	Conditions []Condition `json:"conditions,omitempty"`
}
