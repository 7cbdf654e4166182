// Package wire has the messages between server and agent. They are level-triggered: the server sends
// the whole desired state of one host, the agent posts the whole status; a lost message is repaired by
// the next.
//
// Transport: GET /v1/agent/desired is a server-sent event stream over mTLS (event "desired", id =
// revision; comment lines keep it alive); POST /v1/agent/status; POST /v1/agent/beat (no body, no durable
// write). A beat tells in a header how long ago the agent looked whether the host can give VMs RDMA. An agent may only read and write what its certificate's host name owns.
package wire

import (
	"time"

	"github.com/verbena-cloud/verbena/api"
)

// Paths of the agent's endpoints.
const (
	PathJoin    = "/v1/agent/join"
	PathRenew   = "/v1/agent/renew"
	PathDesired = "/v1/agent/desired"
	PathStatus  = "/v1/agent/status"
	PathBeat    = "/v1/agent/beat"
)

// HeaderChecked is the header of a beat with the seconds since the last preflight.
const HeaderChecked = "Verbena-Checked"

// Desired is what one host should be, completely.
type Desired struct {
	Host     string  `json:"host"`
	Revision int64   `json:"revision"` // of the store; only grows
	Bridge   string  `json:"bridge,omitempty"`
	PFs      []PF    `json:"pfs"`
	VMs      []VM    `json:"vms"`
	Images   []Image `json:"images,omitempty"`
	// Preflight is what is expected of the host; nil from a server that does not tell.
	Preflight *Preflight `json:"preflight,omitempty"`
}

// Preflight is what preflight judges a host by. The digest, also of which ports serve which fabric, tells one
// expectation from the next.
type Preflight struct {
	Digest  string   `json:"digest"`
	Fabrics []Expect `json:"fabrics,omitempty"`
}

// Expect is what a fabric expects of the ports that serve it.
type Expect struct {
	Fabric   string             `json:"fabric"`
	Priority int                `json:"priority"`
	DSCP     int                `json:"dscp"`
	MTU      int                `json:"mtu"` // RoCE payload bytes
	Firmware []api.FirmwarePair `json:"firmware,omitempty"`
}

// PF is a physical function to commission. Those not named are left alone.
type PF struct {
	Match           string `json:"match"` // key, PCI address or netdev
	Fabric          string `json:"fabric"`
	VFs             int    `json:"vfs"`
	AllowManagement bool   `json:"allowManagement,omitempty"`
	AllowBond       bool   `json:"allowBond,omitempty"`
	QoS             *QoS   `json:"qos,omitempty"`
}

// QoS is how a fabric tells RoCE from other traffic on its ports.
type QoS struct {
	Priority int  `json:"priority"`
	DSCP     int  `json:"dscp"`
	CNPDSCP  int  `json:"cnpDSCP"`
	Apply    bool `json:"apply,omitempty"` // set ports so; else only tell what differs
}

// VM is a VM that the host must have, or, with Absent, must get rid of and prove it.
type VM struct {
	UID        string `json:"uid"`
	Tenant     string `json:"tenant"`
	Name       string `json:"name"`
	Generation int64  `json:"generation"`
	Absent     bool   `json:"absent,omitempty"`
	Power      string `json:"power"` // on, off
	Cells      []Cell `json:"cells"`
	VFs        []VF   `json:"vfs,omitempty"`
	NICs       []NIC  `json:"nics,omitempty"`
	Image      string `json:"image"`
	Disk       int64  `json:"disk,omitempty"` // bytes; 0 = the image's
	Seed       Seed   `json:"seed"`
	Revision   int64  `json:"revision"` // of the VM object
	// Instance is cloud-init's instance-id: it changes with a rebuild, not with a restart.
	Instance string `json:"instance"`
}

// Cell is a guest NUMA cell on a host node.
type Cell struct {
	Guest    int   `json:"guest"`
	Host     int   `json:"host"`
	VCPUs    int   `json:"vcpus"`
	Memory   int64 `json:"memory"`             // bytes
	Hugepage int64 `json:"hugepage,omitempty"` // bytes of a page
	Strict   bool  `json:"strict"`
}

// VF is a claimed virtual function and how it must be programmed.
type VF struct {
	PF         string `json:"pf"` // stable key
	Index      int    `json:"index"`
	Cell       int    `json:"cell"` // guest cell
	GuestPCI   string `json:"guestPCI"`
	MAC        string `json:"mac"`
	VLAN       int    `json:"vlan"`
	QoS        int    `json:"qos"`
	SpoofCheck bool   `json:"spoofCheck"`
	MinRate    uint32 `json:"minRate,omitempty"` // Mb/s
	MaxRate    uint32 `json:"maxRate,omitempty"` // Mb/s
	Network    string `json:"network"`
}

// NIC is a virtio NIC on the host's bridge.
type NIC struct {
	MAC     string `json:"mac"`
	VLAN    int    `json:"vlan"`
	MTU     int    `json:"mtu,omitempty"`
	Network string `json:"network"`
}

// Seed is the content of the cloud-init NoCloud seed. UserData may hold secrets: it is never logged.
type Seed struct {
	Hostname   string     `json:"hostname"`
	SSHKeys    []string   `json:"sshKeys,omitempty"`
	UserData   string     `json:"userData,omitempty"`
	Interfaces []SeedLink `json:"interfaces"`
}

// SeedLink configures a guest interface, found by MAC.
type SeedLink struct {
	Name    string   `json:"name"` // rdma0, eth0
	MAC     string   `json:"mac"`
	Address string   `json:"address"` // CIDR form
	Gateway string   `json:"gateway,omitempty"`
	MTU     int      `json:"mtu,omitempty"`
	DNS     []string `json:"dns,omitempty"`
	RDMA    bool     `json:"rdma,omitempty"`
}

// Image is a disk image that VMs of this host use.
type Image struct {
	Name   string `json:"name"`
	Source string `json:"source"`
	SHA256 string `json:"sha256,omitempty"`
	Format string `json:"format"`
}

// Status is what the agent saw and did. Inventory is sent when it changed since the last accepted post, and after each (re)connect.
type Status struct {
	Host      string         `json:"host"`
	Agent     string         `json:"agent"`    // version
	Revision  int64          `json:"revision"` // of the Desired that this answers
	Inventory *api.Inventory `json:"inventory,omitempty"`
	VMs       []VMStatus     `json:"vms"`
	Events    []Event        `json:"events,omitempty"`
	// Preflight is sent like Inventory. Checked is how many seconds ago the agent looked last, nil for never.
	Preflight *api.Preflight `json:"preflight,omitempty"`
	Checked   *int64         `json:"checked,omitempty"`
}

// VMStatus is one VM on this host.
type VMStatus struct {
	UID        string `json:"uid"`
	Generation int64  `json:"generation"`
	Phase      string `json:"phase"` // api.Phase*
	Message    string `json:"message,omitempty"`
	// Absent is the positive evidence for a release: domain gone, every VF of this generation scrubbed
	// and read back as parked (or quarantined). Only then may the server give the claim back.
	Absent bool         `json:"absent,omitempty"`
	VFs    []VFStatus   `json:"vfs,omitempty"`
	Steps  []api.OpStep `json:"steps,omitempty"`
	// Guest is what the program in the VM says, nil for nothing.
	Guest *api.GuestStatus `json:"guest,omitempty"`
}

// VFStatus is one VF of a VM as read back.
type VFStatus struct {
	PF         string `json:"pf"`
	Index      int    `json:"index"`
	State      string `json:"state"` // api.VF*
	PCI        string `json:"pci,omitempty"`
	MAC        string `json:"mac,omitempty"`
	VLAN       int    `json:"vlan,omitempty"`
	QoS        int    `json:"qos,omitempty"`
	SpoofCheck bool   `json:"spoofCheck,omitempty"`
	Generation int64  `json:"generation"`
	Reason     string `json:"reason,omitempty"`
}

// Event is something worth telling people about an object of this host.
type Event struct {
	Object  api.Ref   `json:"object"`
	Type    string    `json:"type"` // Normal, Warning
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	At      time.Time `json:"at"`
}

// Join asks for a certificate with a one-time token. CSR is PEM.
type Join struct {
	Secret string `json:"secret"`
	CSR    string `json:"csr"`
}

// Renew asks for the next certificate; it is authenticated by the current one.
type Renew struct {
	CSR string `json:"csr"`
}

// Grant is a signed certificate chain and the CA to trust, PEM.
type Grant struct {
	Host        string    `json:"host"`
	Certificate string    `json:"certificate"`
	CA          string    `json:"ca"`
	Expires     time.Time `json:"expires"`
}

// Ack answers a status post. Ignored names what the server did not take, since it is not the host's;
// the agent logs it and goes on.
type Ack struct {
	Ignored []string `json:"ignored,omitempty"`
}
