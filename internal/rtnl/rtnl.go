// Package rtnl names what rtnetlink tells and takes of the virtual functions of a NIC
// (RTM_GETLINK with RTEXT_FILTER_VF, RTM_SETLINK with IFLA_VFINFO_LIST; include/uapi/linux/if_link.h).
package rtnl

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"

	"github.com/verbena-cloud/verbena/internal/roce"
)

// LinkState is IFLA_VF_LINK_STATE.
type LinkState uint32

// The kernel's values (enum in if_link.h).
const (
	LinkAuto    LinkState = 0
	LinkEnable  LinkState = 1
	LinkDisable LinkState = 2
)

// VF is the PF-side view of one virtual function. Rates are Mb/s, 0 = no limit. A nil pointer means
// that the driver does not report the attribute, which is not the same as false.
type VF struct {
	Index      int
	MAC        roce.MAC
	VLAN       int    // 0 = none
	QoS        int    // PCP 0–7
	Proto      uint16 // EtherType of the VLAN tag, 0x8100 or 0x88a8; 0 = the driver does not say
	SpoofCheck *bool
	Trust      *bool
	MinRate    uint32
	MaxRate    uint32
	LinkState  *LinkState
	// The GUIDs of a VF on an InfiniBand fabric (Linux 5.5); zero means that none was given to it.
	NodeGUID, PortGUID *roce.GUID
}

// VFStats counts the frames of one VF as the VF sees them: Rx is what reached it. mlx5 counts RDMA among
// them. A driver that does not count its VFs has zero everywhere, which the kernel does not tell apart.
type VFStats struct {
	Index                int
	RxPackets, TxPackets uint64
	RxBytes, TxBytes     uint64
	Broadcast, Multicast uint64 // of RxPackets
	// Frames that did not pass; nil where the kernel does not tell (before Linux 4.17).
	RxDropped, TxDropped *uint64
}

// Attr is one VF attribute to set; each is its own RTM_SETLINK, so that a refusal names its cause.
type Attr interface {
	fmt.Stringer
	vfAttr()
}

// The attributes.
type (
	// MAC is the administrator's address of the VF (IFLA_VF_MAC).
	MAC roce.MAC
	// VLAN is the port VLAN and its priority (IFLA_VF_VLAN, protocol 802.1Q); {0,0} removes it.
	VLAN struct{ ID, QoS int }
	// SpoofCheck drops frames whose source MAC is not the VF's (IFLA_VF_SPOOFCHK).
	SpoofCheck bool
	// Trust lets the VF change its own MAC and go promiscuous (IFLA_VF_TRUST).
	Trust bool
	// Rate bounds the transmit rate in Mb/s (IFLA_VF_RATE); both are always written together.
	Rate struct{ Min, Max uint32 }
	// State is the VF's link state (IFLA_VF_LINK_STATE).
	State LinkState
	// NodeGUID is the GUID of the VF's InfiniBand device (IFLA_VF_IB_NODE_GUID).
	NodeGUID roce.GUID
	// PortGUID is the GUID of that device's port (IFLA_VF_IB_PORT_GUID).
	PortGUID roce.GUID
)

func (MAC) vfAttr()        {}
func (VLAN) vfAttr()       {}
func (SpoofCheck) vfAttr() {}
func (Trust) vfAttr()      {}
func (Rate) vfAttr()       {}
func (State) vfAttr()      {}
func (NodeGUID) vfAttr()   {}
func (PortGUID) vfAttr()   {}

// String prints the attribute as `ip link set DEV vf N` takes it.
func (a MAC) String() string { return "mac " + roce.MAC(a).String() }

// String prints the attribute as `ip link set DEV vf N` takes it.
func (a VLAN) String() string { return fmt.Sprintf("vlan %d qos %d", a.ID, a.QoS) }

// String prints the attribute as `ip link set DEV vf N` takes it.
func (a SpoofCheck) String() string { return "spoofchk " + onOff(bool(a)) }

// String prints the attribute as `ip link set DEV vf N` takes it.
func (a Trust) String() string { return "trust " + onOff(bool(a)) }

// String prints the attribute as `ip link set DEV vf N` takes it.
func (a Rate) String() string { return fmt.Sprintf("min_tx_rate %d max_tx_rate %d", a.Min, a.Max) }

// String prints the attribute as `ip link set DEV vf N` takes it.
func (a State) String() string {
	switch LinkState(a) {
	case LinkEnable:
		return "state enable"
	case LinkDisable:
		return "state disable"
	default:
		return "state auto"
	}
}

// String prints the attribute as `ip link set DEV vf N` takes it.
func (a NodeGUID) String() string { return "node_guid " + eui64(roce.GUID(a)) }

// String prints the attribute as `ip link set DEV vf N` takes it.
func (a PortGUID) String() string { return "port_guid " + eui64(roce.GUID(a)) }

// eui64 prints a GUID by bytes, where sysfs prints it by words.
func eui64(g roce.GUID) string {
	return net.HardwareAddr(binary.BigEndian.AppendUint64(nil, uint64(g))).String()
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

// Links sets and reads links and their VFs. link is a netdev name as sysfs shows it now; callers look
// it up each time, since names change. Errors hold a syscall.Errno: EINVAL and EOPNOTSUPP mean that the
// driver can't do this attribute, ENODEV that the link is gone.
type Links interface {
	// VFs returns the VFs of a PF's link, ordered by index, without their statistics. The kernel has no pages
	// for them; where it can't tell of all in one message, the error is EMSGSIZE.
	VFs(ctx context.Context, link string) ([]VF, error)
	// SetVF sets one attribute of one VF.
	SetVF(ctx context.Context, link string, vf int, a Attr) error
	// SetUp sets the link administratively up.
	SetUp(ctx context.Context, link string) error
	// Changes calls f for each link or device change until ctx ends; a lost socket is a call too, since changes may have been missed.
	Changes(ctx context.Context, f func()) error
}

// StatsReader reads what VFs sent and received. It is apart from Links.VFs, which is asked more often and
// whose answer must hold many VFs: statistics make it half as long again.
type StatsReader interface {
	// VFStats returns the statistics of a PF's VFs, ordered by index; a VF that the kernel tells none of is
	// not among them. Errors are as for Links.VFs.
	VFStats(ctx context.Context, link string) ([]VFStats, error)
}
