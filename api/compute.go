package api

import (
	"bytes"
	"encoding/json"
	"time"
)

// Flavor is a size of VM, and whether and how it gets RDMA.
type Flavor struct {
	Meta
	Spec   FlavorSpec   `json:"spec" doc:"What is wanted: people write it"`
	Status FlavorStatus `json:"status,omitzero" doc:"What is: the system writes it"`
}

// FlavorSpec is what an operator offers.
type FlavorSpec struct {
	VCPUs     int    `json:"vcpus" minimum:"1" maximum:"1024" doc:"vCPUs of a VM; dealt evenly to its cells"`
	Memory    string `json:"memory" example:"16GiB" doc:"Memory of a VM; dealt evenly to its cells"`
	Disk      string `json:"disk,omitempty" example:"40GiB" doc:"Size of the root disk; empty = the image's"`
	Hugepages string `json:"hugepages,omitempty" enum:"none,2MiB,1GiB" doc:"Default none"`
	Cells     int    `json:"cells,omitempty" minimum:"1" maximum:"8" doc:"Guest NUMA cells; default 1"`
	RDMA      *RDMA  `json:"rdma,omitempty" doc:"true = one VF with the defaults, or an object"`
}

// RDMA asks for virtual functions. In JSON it is `true`, `false` or an object; it is written back as it was read.
type RDMA struct {
	VFs     int    `json:"vfs,omitempty" minimum:"1" maximum:"8" doc:"Number of VFs; default 1, with ha dual-vf 2"`
	HA      string `json:"ha,omitempty" enum:"single,dual-vf,vf-lag" doc:"single: VFs spread over PFs, you rebuild or recreate the VM when a port dies; dual-vf: one VF of each port of a NIC; vf-lag: PFs in switchdev bond. Default single"`
	NUMA    string `json:"numa,omitempty" enum:"required,preferred" doc:"required: vCPUs, memory, hugepages and VFs of a cell on one host node. Default required"`
	Class   string `json:"class,omitempty" enum:"storage,ai-training" doc:"Traffic class template of the fabric; default storage"`
	MinRate string `json:"minRate,omitempty" example:"1Gbps" doc:"Guaranteed transmit rate of each VF"`
	MaxRate string `json:"maxRate,omitempty" example:"10Gbps" doc:"Transmit limit of each VF"`
	Fabric  string `json:"fabric,omitempty" doc:"Only VFs of this fabric; empty = that of the VM's network"`

	short *bool // the short form as it was written
}

// rdmaFields has RDMA's fields without its methods.
type rdmaFields RDMA

// UnmarshalJSON accepts true, false and the object form; unknown fields are refused.
func (r *RDMA) UnmarshalJSON(b []byte) error {
	b = bytes.TrimSpace(b)
	var on bool
	if err := json.Unmarshal(b, &on); err == nil && !bytes.Equal(b, []byte("null")) {
		*r = RDMA{short: &on}
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var f rdmaFields
	if err := d.Decode(&f); err != nil {
		return err
	}
	*r = RDMA(f)
	return nil
}

// MarshalJSON writes the form that was read.
func (r RDMA) MarshalJSON() ([]byte, error) {
	if r.short != nil {
		return json.Marshal(*r.short)
	}
	return json.Marshal(rdmaFields(r))
}

// RDMAShort returns the short form `rdma: on`.
func RDMAShort(on bool) *RDMA { return &RDMA{short: &on} }

// Wanted reports whether VFs are asked for: absent and `false` mean no.
func (r *RDMA) Wanted() bool { return r != nil && (r.short == nil || *r.short) }

// FlavorStatus is derived.
type FlavorStatus struct {
	VMs        int         `json:"vms" doc:"VMs that use it"`
	Conditions []Condition `json:"conditions,omitempty"`
}

// Image is a disk image.
type Image struct {
	Meta
	Spec   ImageSpec   `json:"spec" doc:"What is wanted: people write it"`
	Status ImageStatus `json:"status,omitzero" doc:"What is: the system writes it"`
}

// ImageSpec says where the image is and what it must hash to.
type ImageSpec struct {
	Source       string            `json:"source" doc:"https URL, or a path that every host has"`
	SHA256       string            `json:"sha256,omitempty" pattern:"^[0-9a-f]{64}$" doc:"Needed for URLs"`
	Format       string            `json:"format,omitempty" enum:"qcow2,raw" doc:"Default qcow2"`
	OS           string            `json:"os,omitempty" example:"debian13"`
	GuestDrivers map[string]string `json:"guestDrivers,omitempty" doc:"Driver name to version inside the image, e.g. mlx5_core"`
	RDMAReady    bool              `json:"rdmaReady,omitempty" doc:"The image holds VF driver and rdma-core"`
}

// ImageStatus is derived.
type ImageStatus struct {
	Conditions []Condition `json:"conditions,omitempty"`
}

// VM is a virtual machine of a tenant.
type VM struct {
	Meta
	Spec   VMSpec   `json:"spec" doc:"What is wanted: people write it"`
	Status VMStatus `json:"status,omitzero" doc:"What is: the system writes it"`
}

// VMSpec is what the tenant asks for.
type VMSpec struct {
	Flavor         string            `json:"flavor" doc:"Name of the flavor: size and RDMA"`
	Image          string            `json:"image" doc:"Name of the image that the disk is made from"`
	Networks       []VMNetwork       `json:"networks" minItems:"1" maxItems:"8" doc:"VFs are dealt to these in turn; without RDMA each gets a virtio NIC on the host's bridge"`
	SecurityGroups []string          `json:"securityGroups,omitempty" doc:"Names of security groups of the same tenant"`
	UserData       string            `json:"userData,omitempty" maxLength:"65536" doc:"cloud-init user data; it may hold secrets, is never logged or put into events, and is shown only to those who may change the VM"`
	SSHKeys        []string          `json:"sshKeys,omitempty" doc:"Public keys in the form of authorized_keys, for the guest"`
	Power          string            `json:"power,omitempty" enum:"on,off" doc:"Default on"`
	Host           string            `json:"host,omitempty" doc:"Pin to this host (operators); the same rules apply"`
	HostLabels     map[string]string `json:"hostLabels,omitempty" doc:"Only hosts with these labels"`
}

// VMNetwork attaches the VM to a network of its tenant.
type VMNetwork struct {
	Network string `json:"network" doc:"Name of a network of the same tenant"`
	IP      string `json:"ip,omitempty" doc:"Fixed address; default the next free one"`
	MAC     string `json:"mac,omitempty" doc:"Fixed unicast MAC; default derived and stable over rebuilds"`
}

// VM phases, in the order of a life.
const (
	PhaseScheduled = "Scheduled" // placed and claimed; the agent has not reported yet
	PhasePreparing = "Preparing" // VFs are being programmed, the disk is being made
	PhaseStarting  = "Starting"  // the domain is defined and starts
	PhaseReady     = "Ready"     // running, and every VF was read back as wanted
	PhaseStopping  = "Stopping"
	PhaseStopped   = "Stopped"
	PhaseDeleting  = "Deleting" // until the VFs are proven scrubbed
	PhaseFailed    = "Failed"   // needs somebody; the Ready condition says why
	PhaseUnknown   = "Unknown"  // the host does not answer; the VM may well run
)

// VMStatus is what the system did about it.
type VMStatus struct {
	Phase      string   `json:"phase,omitempty" doc:"Scheduled, Preparing, Starting, Ready, Stopping, Stopped, Deleting, Failed or Unknown"`
	Message    string   `json:"message,omitempty" doc:"What is waited for, or what failed"`
	Host       string   `json:"host,omitempty" doc:"Host where it was placed"`
	Simulated  bool     `json:"simulated,omitempty" doc:"The host is a simulated one: nothing real runs"`
	Generation int64    `json:"generation,omitempty" doc:"Counts placements; every VF step and release carries it"`
	NUMA       string   `json:"numa,omitempty" doc:"Policy that the placement met: required, preferred or none"`
	Cells      []VMCell `json:"cells,omitempty"`
	VFs        []VMVF   `json:"vfs,omitempty"`
	NICs       []VMNIC  `json:"nics,omitempty" doc:"virtio NICs of a VM without RDMA"`
	// Guest is what the program in the VM says; nothing of it is taken for true by anything else.
	Guest      *GuestStatus `json:"guest,omitempty" doc:"What the program verbena-guest inside the running VM reports of it; the VM's owner may make it say anything"`
	Conditions []Condition  `json:"conditions,omitempty"`
	// UserDataHidden is set in an answer only: an empty userData beside it does not mean that there is none.
	UserDataHidden bool `json:"userDataHidden,omitempty" doc:"There is userData, but this caller may not read it, since that takes vm.update in the tenant"`
}

// GuestStatus is what a program inside a VM says of it.
type GuestStatus struct {
	Seen     time.Time   `json:"seen" doc:"When it was heard, by the host's clock; told anew every 5 minutes, or each minute if something else changes"`
	Tool     string      `json:"tool,omitempty" doc:"Version of the program"`
	Kernel   string      `json:"kernel,omitempty"`
	Ports    []GuestPort `json:"ports,omitempty" doc:"Ports of its RDMA devices"`
	BadLines int64       `json:"badLines,omitempty" doc:"Lines that could not be read, since the agent or the VM started"`
}

// GuestPort is a port of an RDMA device as the guest sees it.
type GuestPort struct {
	Device   string `json:"device"`
	Port     int    `json:"port"`
	PCI      string `json:"pci,omitempty" doc:"Address in the guest"`
	Netdev   string `json:"netdev,omitempty"`
	Driver   string `json:"driver,omitempty"`
	Firmware string `json:"firmware,omitempty"`
	NUMA     *int   `json:"numa,omitempty" doc:"Guest cell; none = the guest does not know"`
	State    string `json:"state,omitempty" doc:"ACTIVE, DOWN, …"`
	GID      string `json:"gid,omitempty" doc:"RoCE v2 address to use"`
	GIDIndex *int   `json:"gidIndex,omitempty" doc:"Where it is now; it changes when a link flaps"`
	MTU      int    `json:"mtu,omitempty" doc:"RoCE MTU in bytes"`
	Queues   int    `json:"queues,omitempty" doc:"Combined queues of the netdev"`
	QPCount  *int64 `json:"qps,omitempty" doc:"Queue pairs, the kernel's own among them"`
}

// VMCell is a guest NUMA cell and the host node that backs it.
type VMCell struct {
	Guest     int    `json:"guest"`
	Host      int    `json:"host" doc:"Host NUMA node"`
	VCPUs     int    `json:"vcpus"`
	Memory    int64  `json:"memory" doc:"Bytes"`
	Hugepages string `json:"hugepages,omitempty"`
}

// VMVF is a virtual function that the VM holds.
type VMVF struct {
	PF         string `json:"pf" doc:"Stable key of the physical function on its host"`
	Index      int    `json:"index"`
	PCI        string `json:"pci,omitempty" doc:"Host PCI address, an observation that may change over boots"`
	GuestPCI   string `json:"guestPCI" doc:"PCI address in the guest"`
	Cell       int    `json:"cell" doc:"Guest cell"`
	HostCell   int    `json:"numa" doc:"Host NUMA node of the PF"`
	Fabric     string `json:"fabric"`
	Network    string `json:"network"`
	MAC        string `json:"mac"`
	IP         string `json:"ip"`
	VLAN       int    `json:"vlan"`
	QoS        int    `json:"qos" doc:"802.1Q priority"`
	SpoofCheck bool   `json:"spoofCheck"`
	MinRate    string `json:"minRate,omitempty"`
	MaxRate    string `json:"maxRate,omitempty"`
	State      string `json:"state,omitempty" doc:"Life cycle state that the agent last read back"`
	Generation int64  `json:"generation"`
}

// VMNIC is a virtio NIC.
type VMNIC struct {
	Network string `json:"network"`
	MAC     string `json:"mac"`
	IP      string `json:"ip"`
	VLAN    int    `json:"vlan"`
}

// Explanation says for a request, host by host, what was possible; it answers `vm explain`, the dry run
// and a refusal alike.
type Explanation struct {
	Fits    bool          `json:"fits"`
	Summary string        `json:"summary" doc:"One sentence for people"`
	Host    string        `json:"host,omitempty" doc:"The host that was or would be taken"`
	Hosts   []HostVerdict `json:"hosts" doc:"Every host with the first rule that said no"`
	Nearest string        `json:"nearest,omitempty" doc:"The smallest change that would make it fit"`
	Quota   []QuotaLine   `json:"quota,omitempty"`
}

// HostVerdict is one host's answer.
type HostVerdict struct {
	Host    string  `json:"host"`
	Fits    bool    `json:"fits"`
	Rule    string  `json:"rule,omitempty" doc:"First rule that failed: cordoned, unknown, pinned, labels, bridge, fabric, vf-ready, vf-free, ha, numa-vcpus, numa-memory, numa-hugepages, numa-vf, bandwidth"`
	Text    string  `json:"text" doc:"Sentence with the numbers"`
	Need    int64   `json:"need,omitempty"`
	Have    int64   `json:"have,omitempty"`
	Nearest string  `json:"nearest,omitempty" doc:"What would make this host fit"`
	Score   float64 `json:"score,omitempty"`
}

// VMPlan is the answer of a dry run: what would be claimed, or why not.
type VMPlan struct {
	VM          VM          `json:"vm" doc:"The object as it would be, status included"`
	Steps       []string    `json:"steps" doc:"What server and agent would do, in order"`
	Explanation Explanation `json:"explanation"`
}

// Event is something that happened to an object.
type Event struct {
	Meta
	Object  Ref       `json:"object"`
	Type    string    `json:"type" enum:"Normal,Warning"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Count   int       `json:"count"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
}

// Operation is long work that somebody started.
type Operation struct {
	Meta
	Object   Ref        `json:"object"`
	Action   string     `json:"action" doc:"create, start, stop, rebuild, delete"`
	State    string     `json:"state" enum:"running,done,failed,cancelled"`
	Progress int        `json:"progress" minimum:"0" maximum:"100"`
	Steps    []OpStep   `json:"steps,omitempty"`
	Message  string     `json:"message,omitempty"`
	By       string     `json:"by,omitempty"`
	Ended    *time.Time `json:"ended,omitempty"`
}

// OpStep is a step of an operation.
type OpStep struct {
	Name  string    `json:"name"`
	State string    `json:"state" enum:"done,failed,running"`
	Text  string    `json:"text,omitempty"`
	At    time.Time `json:"at"`
}

// AuditRecord says who did what with what result. Bodies are never in it.
type AuditRecord struct {
	Meta
	At        time.Time `json:"at"`
	Who       string    `json:"who" doc:"user:NAME, token:ID, host:NAME or anonymous"`
	Action    string    `json:"action" doc:"The permission that the route needs, e.g. vm.create"`
	Object    Ref       `json:"object"`
	Status    int       `json:"status" doc:"HTTP status of the answer"`
	Code      string    `json:"code,omitempty"`
	Result    string    `json:"result" enum:"ok,refused,failed"`
	Message   string    `json:"message,omitempty"`
	Remote    string    `json:"remote,omitempty" doc:"Address that the request came from"`
	RequestID string    `json:"requestId"`
	ObjectRev int64     `json:"objectRevision,omitempty"`
}
