// Package ethtool names what a link's driver tells beside sysfs and rtnetlink: itself, speed and duplex,
// counters under names of its own, queues, private flags, and the memory of the transceiver in the port
// (include/uapi/linux/ethtool.h; SFF-8472, SFF-8636 and CMIS of the SNIA and the OIF).
package ethtool

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// Driver is who drives a link (struct ethtool_drvinfo).
type Driver struct {
	Name     string
	Version  string // of the kernel, where the driver is the kernel's own
	Firmware string // as the driver writes it, mlx5 with the board's id in parentheses
	Bus      string // the PCI address, for a NIC
	Counters int    // how many Counters there are at the moment
}

// Duplex is whether a link sends and receives at one time.
type Duplex uint8

// The kernel's values.
const (
	Half          Duplex = 0
	Full          Duplex = 1
	DuplexUnknown Duplex = 0xff
)

// String names the duplex as ethtool(8) does.
func (d Duplex) String() string {
	switch d {
	case Half:
		return "half"
	case Full:
		return "full"
	case DuplexUnknown:
	}
	return "unknown"
}

// Port is the kind of a link's connector.
type Port uint8

// The kernel's values.
const (
	TwistedPair Port = 0x00
	AUI         Port = 0x01
	MII         Port = 0x02
	Fibre       Port = 0x03
	BNC         Port = 0x04
	DirectCable Port = 0x05 // a copper cable with its own connectors
	NoPort      Port = 0xef
	OtherPort   Port = 0xff
)

// String names the port as ethtool(8) takes it.
func (p Port) String() string {
	switch p {
	case TwistedPair:
		return "tp"
	case AUI:
		return "aui"
	case MII:
		return "mii"
	case Fibre:
		return "fibre"
	case BNC:
		return "bnc"
	case DirectCable:
		return "da"
	case NoPort:
		return "none"
	case OtherPort:
		return "other"
	}
	return fmt.Sprintf("port-%#x", uint8(p))
}

// Settings is how a link runs (struct ethtool_link_settings).
type Settings struct {
	Speed   int64 // Mb/s; 0 = unknown, as for a link without carrier
	Duplex  Duplex
	AutoNeg bool // speed and duplex are negotiated
	Port    Port
}

// Counter is one of a driver's statistics. Names are the driver's own and change with its version.
type Counter struct {
	Name  string
	Value uint64
}

// Flag is one of a driver's private flags, such as fw-lldp-agent of ice.
type Flag struct {
	Name string
	On   bool
}

// Queues is a count of each kind of a link's channels.
type Queues struct{ Rx, Tx, Other, Combined int }

// Channels is how many queues a link has and may have (struct ethtool_channels).
type Channels struct{ Now, Max Queues }

// Links reads links. link is a netdev name as sysfs shows it now. Errors hold a syscall.Errno: ENODEV means
// that the link is gone; see Unsupported.
type Links interface {
	// Driver returns who drives a link.
	Driver(ctx context.Context, link string) (Driver, error)
	// Settings returns how a link runs.
	Settings(ctx context.Context, link string) (Settings, error)
	// Counters returns a driver's statistics in its own order, of one set of names.
	Counters(ctx context.Context, link string) ([]Counter, error)
	// Flags returns a driver's private flags in its own order.
	Flags(ctx context.Context, link string) ([]Flag, error)
	// Channels returns how many queues a link has.
	Channels(ctx context.Context, link string) (Channels, error)
}

// Modules reads the transceiver or cable in a port. Its memory is behind a slow bus: a call takes some tens
// of milliseconds, and flags in it that stay until they are read are cleared by it.
type Modules interface {
	// Module returns what a port's module tells. Many drivers answer EIO, EINVAL or ENODEV for an empty port.
	Module(ctx context.Context, link string) (Module, error)
}

// Unsupported reports that the driver has no function for what was asked, as opposed to a failure.
func Unsupported(err error) bool { return errors.Is(err, syscall.EOPNOTSUPP) }
