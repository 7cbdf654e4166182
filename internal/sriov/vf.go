package sriov

import (
	"fmt"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/rtnl"
)

// Driver is the driver that VFs of the pool stay on for life (Documentation/driver-api/vfio.rst).
const Driver = "vfio-pci"

// Key names a VF over boots, slot changes and renames: the stable key of its PF and its index there.
// PCI address, netdev name and IOMMU group are observations.
type Key struct {
	PF    string `json:"pf"`
	Index int    `json:"index"`
}

// String prints the key as logs and errors name a VF.
func (k Key) String() string { return fmt.Sprintf("VF %d of %s", k.Index, k.PF) }

// Owner is the VM that a VF is held for. A step that names an older generation than the holder's does
// nothing.
type Owner struct {
	UID        string `json:"uid"`
	Tenant     string `json:"tenant"`
	Name       string `json:"name"`
	Generation int64  `json:"generation"`
}

// VM prints TENANT/NAME.
func (o Owner) VM() string { return o.Tenant + "/" + o.Name }

// Attrs is everything that a PF is told of one of its VFs. Rates are Mb/s, 0 = no limit.
type Attrs struct {
	MAC        roce.MAC `json:"mac"`
	VLAN       int      `json:"vlan"`
	QoS        int      `json:"qos"`
	SpoofCheck bool     `json:"spoofCheck"`
	Trust      bool     `json:"trust,omitempty"`
	MinRate    uint32   `json:"minRate,omitempty"`
	MaxRate    uint32   `json:"maxRate,omitempty"`
}

// PF is a physical function as observed. Total is 0 and Supported false when the kernel shows no
// sriov_* files, which is how firmware with SR-IOV switched off looks.
type PF struct {
	Key        string
	PCI        roce.PCIAddr
	Netdev     string
	Driver     string
	Supported  bool
	Total      int
	Count      int // sriov_numvfs
	Autoprobe  bool
	Up         bool // administratively
	LinkUp     bool
	Bond       string
	Management bool
	VFs        []VF // by index; those whose virtfn link exists
	// Unread says why the facts are incomplete. Nothing may be concluded from what an incomplete
	// reading does not show.
	Unread string
}

// VF is a virtual function as observed.
type VF struct {
	Key      Key
	PCI      roce.PCIAddr
	Linked   bool // its physfn link is there: enumeration has ended
	Driver   string
	Override string
	Group    string   // IOMMU group; "" = none
	Mates    []string // other functions of the group
	Node     bool     // the group (or its vfio device) has a character device
	Netdev   string
	NetdevUp bool
	Attr     *rtnl.VF // nil: the PF's driver does not report it
	Openers  []int    // processes that have the group open
	Domain   Domain   // the domain that has it as a host device, if any
	Unread   string
}

// Domain is a hypervisor's domain in so far as it matters to a VF that it holds.
type Domain struct {
	Name    string
	UID     string // its UUID
	Ours    bool   // carries our metadata
	Running bool
}

// Stage is how far a holder is, as journalled before the side effects of that stage.
type Stage string

// The stages. Holding covers reserved to attached, which the facts tell apart.
const (
	Holding  Stage = "holding"
	Draining Stage = "draining"
	Scrubs   Stage = "scrubbing"
)

// Claim is what the journal says of a VF: who holds it, how far, and what must be programmed.
type Claim struct {
	Owner Owner
	Stage Stage
	Want  Attrs
}

// PCIPath is the function's directory below the sysfs root.
func PCIPath(a roce.PCIAddr) string { return "bus/pci/devices/" + a.String() }

// Foreign says why a VF that no claim covers is busy with something that is not ours, or "".
// A kernel driver without a visible netdev may have it in another network namespace, so it counts too.
func Foreign(v VF) string {
	switch {
	case v.Domain.UID != "" && v.Domain.Ours:
		return fmt.Sprintf("domain %s has it, but no journal entry covers it", v.Domain.Name)
	case v.Domain.UID != "":
		return fmt.Sprintf("domain %s, which is not Verbena's, has it", v.Domain.Name)
	case len(v.Openers) > 0:
		return fmt.Sprintf("process %d has its vfio group %s open", v.Openers[0], v.Group)
	case v.NetdevUp:
		return fmt.Sprintf("its netdev %s is up", v.Netdev)
	case v.Driver != "" && v.Driver != Driver && v.Netdev == "":
		return fmt.Sprintf("driver %s has it and no netdev is visible: it may be in another network namespace", v.Driver)
	}
	return ""
}

// Parked reports whether everything that the pool demands was read back so; the text says what is not.
func Parked(v VF) (missing string, ok bool) {
	if missing := unsound(v); missing != "" {
		return missing, false
	}
	if diff := Diff(*v.Attr, Parking(v.Key)); len(diff) > 0 {
		return "read back " + diff[0], false
	}
	return "", true
}

// unsound says what keeps a VF from any guest, whoever holds it, or "".
func unsound(v VF) string {
	switch {
	case v.Unread != "":
		return v.Unread
	case !v.Linked:
		return "the kernel has not finished to set it up"
	case v.Group == "":
		return "it has no IOMMU group: the IOMMU is off (kernel command line intel_iommu=on or BIOS VT-d/AMD-Vi)"
	case len(v.Mates) > 0:
		return fmt.Sprintf("IOMMU group %s also has %v: a VM would get those too (ACS is off on the way)", v.Group, v.Mates)
	case v.Driver != Driver:
		return "it is not on " + Driver
	case v.Override != Driver:
		return "its driver_override is not " + Driver
	case !v.Node:
		return fmt.Sprintf("there is no /dev/vfio node for its group %s", v.Group)
	case v.Attr == nil:
		return "the PF's driver does not report its attributes"
	}
	return ""
}

// State derives where in its life the VF is, and why it is not further. Facts beat the journal: the
// journal only says who may hold it and whether a release has begun.
func State(v VF, c *Claim, quarantine string) (state, reason string) {
	switch {
	case c != nil:
		return held(v, *c)
	case Foreign(v) != "":
		return api.VFForeign, Foreign(v)
	case quarantine != "":
		return api.VFQuarantined, quarantine
	}
	if missing, ok := Parked(v); !ok {
		return api.VFScrubbing, missing
	}
	return api.VFParked, ""
}

func held(v VF, c Claim) (state, reason string) {
	switch c.Stage {
	case Draining:
		return api.VFDraining, ""
	case Scrubs:
		return api.VFScrubbing, ""
	case Holding:
	}
	if v.Unread != "" {
		return api.VFReserved, v.Unread
	}
	if v.Attr == nil {
		return api.VFReserved, "the PF's driver does not report its attributes"
	}
	if diff := Diff(*v.Attr, c.Want); len(diff) > 0 {
		return api.VFReserved, "read back " + diff[0]
	}
	switch {
	case unsound(v) != "":
		return api.VFProgrammed, unsound(v)
	case v.Domain.UID == c.Owner.UID && v.Domain.Running:
		return api.VFAttached, ""
	case v.Domain.UID != "" && v.Domain.UID != c.Owner.UID:
		return api.VFProgrammed, fmt.Sprintf("domain %s has it too", v.Domain.Name)
	}
	return api.VFVerified, ""
}

// Ready says why a VF must not be given to the guest now, or "": the last look before a domain starts.
func Ready(v VF, c Claim) string {
	if v.Domain.UID != "" && v.Domain.UID != c.Owner.UID {
		return fmt.Sprintf("it is in use by domain %s", v.Domain.Name)
	}
	if len(v.Openers) > 0 && !(v.Domain.UID == c.Owner.UID && v.Domain.Running) {
		return fmt.Sprintf("process %d has its vfio group %s open", v.Openers[0], v.Group)
	}
	if missing := unsound(v); missing != "" {
		return missing
	}
	if diff := Diff(*v.Attr, c.Want); len(diff) > 0 {
		return "read back " + diff[0]
	}
	return ""
}
