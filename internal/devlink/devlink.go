// Package devlink names what devlink tells of a NIC: the firmware that runs and the one that waits for a
// reset, serial numbers, and who switches its VFs. It only reads. Source: include/uapi/linux/devlink.h and
// Documentation/networking/devlink.
package devlink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
)

// Device is a devlink instance. A NIC has one for each of its functions.
type Device struct {
	Bus  string // "pci"
	Name string // "0000:3b:00.0"
}

// PCI is the instance of a PCI function.
func PCI(address string) Device { return Device{Bus: "pci", Name: address} }

// String is the handle as devlink(8) takes it.
func (d Device) String() string { return d.Bus + "/" + d.Name }

// Info is what the driver tells of its device. Fields are empty where it does not tell them.
type Info struct {
	Driver      string // told by all drivers since Linux 6.2
	Serial      string
	BoardSerial string
	// Versions by name, such as fw, fw.mgmt, fw.psid, board.id; drivers have names of their own too
	// (Documentation/networking/devlink/devlink-info.rst).
	Fixed, Running, Stored map[string]string
}

// Firmware is the version of the firmware that runs, "" where the driver does not tell it: fw.version is
// mlx5's name, fw that of most, fw.mgmt the part that ice and others tell instead.
func (i Info) Firmware() string {
	return cmp.Or(i.Running["fw.version"], i.Running["fw"], i.Running["fw.mgmt"])
}

// Board is the identity of the board's firmware (on mlx5 its PSID), "" where the driver does not tell it.
func (i Info) Board() string {
	return cmp.Or(i.Fixed["fw.psid"], i.Running["fw.psid"], i.Fixed["board.id"])
}

// Change is a component that will have another version after a reset.
type Change struct{ Name, Running, Stored string }

// String shows both versions.
func (c Change) String() string { return fmt.Sprintf("%s %s → %s", c.Name, c.Running, c.Stored) }

// Pending lists, by name, what is stored in the device and does not run yet.
func (i Info) Pending() []Change {
	var out []Change
	for _, name := range slices.Sorted(maps.Keys(i.Stored)) {
		if running, told := i.Running[name]; told && running != i.Stored[name] {
			out = append(out, Change{Name: name, Running: running, Stored: i.Stored[name]})
		}
	}
	return out
}

// Mode says who switches between a card's functions (DEVLINK_ESWITCH_MODE_*).
type Mode uint16

// The kernel's values.
const (
	Legacy    Mode = 0 // the card alone, by MAC and VLAN
	Switchdev Mode = 1 // the host, through one representor netdev for each VF
)

// String names the mode as devlink(8) does.
func (m Mode) String() string {
	switch m {
	case Legacy:
		return "legacy"
	case Switchdev:
		return "switchdev"
	}
	return fmt.Sprintf("mode-%d", uint16(m))
}

// Inline says which headers a VF must put into its send descriptors (DEVLINK_ESWITCH_INLINE_MODE_*).
type Inline uint8

// The kernel's values.
const (
	InlineNone      Inline = 0
	InlineLink      Inline = 1
	InlineNetwork   Inline = 2
	InlineTransport Inline = 3
)

// String names the mode as devlink(8) does.
func (i Inline) String() string {
	switch i {
	case InlineNone:
		return "none"
	case InlineLink:
		return "link"
	case InlineNetwork:
		return "network"
	case InlineTransport:
		return "transport"
	}
	return fmt.Sprintf("inline-%d", uint8(i))
}

// Eswitch is the switch inside a card. A nil pointer means that the driver does not tell that part.
type Eswitch struct {
	Mode   *Mode
	Inline *Inline
	Encap  *bool // tunnels can be ended in the card
}

// Devices reads devlink instances. Errors hold a syscall.Errno; Absent tells those apart that mean "there is
// nothing to tell". EPERM of Eswitch means a caller without CAP_NET_ADMIN, or on mlx5 a function that is not
// the manager of its switch: the host side of a card whose own processors are (DPU).
type Devices interface {
	// List returns all instances of this network namespace.
	List(ctx context.Context) ([]Device, error)
	// Info asks the driver, which may ask its firmware.
	Info(ctx context.Context, d Device) (Info, error)
	// Eswitch returns the state of the switch; all its parts are nil where the driver has none.
	Eswitch(ctx context.Context, d Device) (Eswitch, error)
}

// ErrAbsent is in the error of every call on a kernel without devlink.
var ErrAbsent = errors.New("this kernel has no devlink")

// Absent reports that there is nothing to tell, as opposed to a failure: the kernel has no devlink, the
// device's driver made no instance (ENODEV) or has no function for what was asked (EOPNOTSUPP).
func Absent(err error) bool {
	return errors.Is(err, ErrAbsent) || errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.EOPNOTSUPP)
}
