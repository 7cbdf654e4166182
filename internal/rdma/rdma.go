// Package rdma names what the kernel's RDMA core tells of its devices: ports and their netdevs, what is
// allocated on them, queue pairs with their owners, and the counters that drivers keep. It only reads.
// Source: include/uapi/rdma/rdma_netlink.h and drivers/infiniband/core/nldev.c.
//
// A VF that a VM holds has no device here: the guest's queue pairs are invisible to its host.
package rdma

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"syscall"

	"github.com/verbena-cloud/verbena/internal/roce"
)

// ID is how the kernel knows a device. Callers take it from a list and hold it briefly: an index may be given
// to another device after a reload, and udev may rename one.
type ID struct {
	Index uint32
	Name  string // "mlx5_0"
}

// String is the device's name.
func (d ID) String() string { return d.Name }

// Device is one RDMA device.
type Device struct {
	ID
	Firmware  string // "" where the driver tells none, as rxe and siw
	NodeGUID  roce.GUID
	ImageGUID roce.GUID // the same for all devices of one card
	Type      NodeType
	Protocol  string // roce, ib, iw, opa or usnic, of its first port; "" before Linux 5.1
	Ports     int
	Caps      uint64 // IB_DEVICE_* of include/rdma/ib_verbs.h
}

// LinkLayer is Ethernet or InfiniBand, "" where the kernel does not tell the protocol.
func (d Device) LinkLayer() string {
	switch d.Protocol {
	case "roce", "iw", "usnic":
		return "Ethernet"
	case "ib", "opa":
		return "InfiniBand"
	}
	return ""
}

// NodeType is what kind of node a device is (enum rdma_node_type).
type NodeType uint8

// The kernel's values; RoCE devices are channel adapters.
const (
	ChannelAdapter NodeType = 1
	Switch         NodeType = 2
	Router         NodeType = 3
	RNIC           NodeType = 4
	UsNIC          NodeType = 5
	UsNICUDP       NodeType = 6
	Unspecified    NodeType = 7
)

// String names the type as rdma(8) does.
func (t NodeType) String() string {
	return word("node", t, "", "ca", "switch", "router", "rnic", "usnic", "usnic_udp", "unspecified")
}

// word is the name of a kernel's number, and kind-N for one of a newer kernel.
func word[T ~uint8](kind string, v T, names ...string) string {
	if int(v) < len(names) && names[v] != "" {
		return names[v]
	}
	return kind + "-" + strconv.Itoa(int(v))
}

// PortState is the logical state of a port (enum ib_port_state).
type PortState uint8

// The states that matter.
const (
	Down   PortState = 1
	Active PortState = 4
)

// String names the state as /sys/class/infiniband does.
func (s PortState) String() string {
	return word("state", s, "NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
}

// PhysState is the physical state of a port (enum ib_port_phys_state).
type PhysState uint8

// The states that matter.
const (
	Disabled PhysState = 3
	LinkUp   PhysState = 5
)

// String names the state as /sys/class/infiniband does.
func (s PhysState) String() string {
	return word("phys", s, "", "Sleep", "Polling", "Disabled", "PortConfigurationTraining", "LinkUp", "LinkErrorRecovery", "Phy Test")
}

// Port is a port of a device.
type Port struct {
	Number    int // from 1
	State     PortState
	Phys      PhysState
	LinkIndex int    // of its netdev; 0 = none, or one of another network namespace
	Link      string // name of that netdev
	// Caps are IB_PORT_* and, 32 bits higher, those of CapabilityMask2. The kernel tells them of InfiniBand
	// ports only, also those about GIDs: nil on RoCE, where sysfs has the GID table itself.
	Caps *uint64
}

// Resources counts what is allocated on a device, by the kernel's names: pd, cq, qp, cm_id, mr, ctx, and srq
// since Linux 5.15.
type Resources map[string]uint64

// QPType is the kind of a queue pair (enum ib_qp_type).
type QPType uint8

// String names the type as rdma(8) does.
func (t QPType) String() string {
	if t == 0xff {
		return "DRIVER"
	}
	return word("type", t, "SMI", "GSI", "RC", "UC", "UD", "RAW_IPV6", "RAW_ETHERTYPE", "", "RAW_PACKET", "XRC_INI", "XRC_TGT")
}

// RC and UD are the types that programs use most.
const (
	RC QPType = 2
	UD QPType = 4
)

// QPState is the state of a queue pair (enum ib_qp_state).
type QPState uint8

// The states that matter.
const (
	Reset       QPState = 0
	ReadyToSend QPState = 3
	Failed      QPState = 6
)

// String names the state as rdma(8) does.
func (s QPState) String() string {
	return word("state", s, "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")
}

// QP is one queue pair.
type QP struct {
	Local   uint32
	Remote  *uint32 // of connected types (RC, UC) only
	Port    int     // 0 before the queue pair has one
	Type    QPType
	State   QPState
	PID     int    // of the process that made it; 0 = the kernel
	Program string // the process's name, or the kernel module's; "" where it can't be known
}

// Sharing says how network namespaces share RDMA devices.
type Sharing uint8

// The kernel's values (RDMA_NLDEV_SYS_ATTR_NETNS_MODE).
const (
	Exclusive Sharing = 0 // a device is seen in one namespace only
	Shared    Sharing = 1 // every device is seen in every namespace
)

// String names the mode as rdma(8) does.
func (s Sharing) String() string { return word("mode", s, "exclusive", "shared") }

// Devices reads RDMA devices. Errors hold a syscall.Errno: ENODEV means that the device is gone or was
// renamed, so list again; Absent tells those apart that mean "there is nothing to tell".
type Devices interface {
	// List returns all devices that this network namespace sees.
	List(ctx context.Context) ([]Device, error)
	Ports(ctx context.Context, d ID) ([]Port, error)
	Resources(ctx context.Context, d ID) (Resources, error)
	// QueuePairs returns at most so many queue pairs, by number, and whether there are more. Which ones is the
	// kernel's choice where there are more. Those of other PID namespaces are not told.
	QueuePairs(ctx context.Context, d ID, most int) (list []QP, more bool, err error)
	// Counters returns the driver's hardware counters of a port by name; they differ by driver. Names may
	// hold spaces.
	Counters(ctx context.Context, d ID, port int) (map[string]uint64, error)
}

// System reads what holds for all devices.
type System interface {
	// Sharing returns the mode of network namespaces (Linux 5.2).
	Sharing(ctx context.Context) (Sharing, error)
}

// ErrAbsent is in the error of every call on a kernel without RDMA, or with its core not loaded.
var ErrAbsent = errors.New("this kernel has no RDMA core")

// Absent reports that there is nothing to tell, as opposed to a failure: there is no RDMA core, or the driver
// or this kernel has no function for what was asked (EOPNOTSUPP).
func Absent(err error) bool { return errors.Is(err, ErrAbsent) || errors.Is(err, syscall.EOPNOTSUPP) }

// Gone is the error about a device that is not there under this index and name.
func Gone(d ID) error {
	return fmt.Errorf("no device %s under index %d, it is gone or was renamed; list the devices again: %w", d.Name, d.Index, syscall.ENODEV)
}
