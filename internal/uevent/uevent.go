// Package uevent names what the kernel tells of devices that come, go and change (NETLINK_KOBJECT_UEVENT,
// lib/kobject_uevent.c; Documentation/ABI/testing/sysfs-uevent).
package uevent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Action is what happened to a device.
type Action string

// The kernel's actions.
const (
	Add     Action = "add"
	Remove  Action = "remove"
	Change  Action = "change"
	Move    Action = "move" // another name or place
	Online  Action = "online"
	Offline Action = "offline"
	Bind    Action = "bind" // to a driver
	Unbind  Action = "unbind"
)

// Event is one thing that happened.
type Event struct {
	Action    Action
	Path      string // of the device below /sys: "/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"
	Subsystem string // "pci", "net", "infiniband"
	Seq       uint64 // rises with each event of the machine; a listener does not hear all
	// Values has all that the kernel tells of the device: DRIVER, PCI_SLOT_NAME, INTERFACE, DEVNAME, and also
	// what is above.
	Values map[string]string
}

// Listener hears events.
type Listener interface {
	// Listen calls event for each event and lost where some may have been missed: at the start, when it
	// begins to hear, and when the kernel had to drop some. A user then looks at everything. Calls are made
	// one at a time, until ctx ends; then it returns nil.
	Listen(ctx context.Context, event func(Event), lost func()) error
}

// ErrMalformed is in the error of a message that does not have the kernel's form.
var ErrMalformed = errors.New("malformed uevent")

// ErrForeign is in the error of a message that udev sends on, in a form of its own.
var ErrForeign = errors.New("uevent of udev, not of the kernel")

// Decode reads a message of the kernel: ACTION@DEVPATH, then KEY=VALUE texts, each ended by a zero.
func Decode(b []byte) (Event, error) {
	if bytes.HasPrefix(b, []byte("libudev\x00")) {
		return Event{}, ErrForeign
	}
	text, ended := strings.CutSuffix(string(b), "\x00")
	if !ended {
		return Event{}, fmt.Errorf("%w: %d bytes without an end", ErrMalformed, len(b))
	}
	head, rest, _ := strings.Cut(text, "\x00")
	action, path, ok := strings.Cut(head, "@")
	if !ok || action == "" || !strings.HasPrefix(path, "/") {
		return Event{}, fmt.Errorf("%w: it begins with %.40q", ErrMalformed, head)
	}
	e := Event{Action: Action(action), Path: path, Values: map[string]string{}}
	for field := range strings.SplitSeq(rest, "\x00") {
		key, value, ok := strings.Cut(field, "=")
		if _, twice := e.Values[key]; !ok || key == "" || twice {
			return Event{}, fmt.Errorf("%w: %.40q among its values", ErrMalformed, field)
		}
		e.Values[key] = value
	}
	if e.Values["ACTION"] != action || e.Values["DEVPATH"] != path {
		return Event{}, fmt.Errorf("%w: %.40q, but its values say %.40q@%.40q", ErrMalformed, head, e.Values["ACTION"], e.Values["DEVPATH"])
	}
	e.Subsystem = e.Values["SUBSYSTEM"]
	seq, err := strconv.ParseUint(e.Values["SEQNUM"], 10, 64)
	if e.Subsystem == "" || err != nil {
		return Event{}, fmt.Errorf("%w: %.40q of subsystem %.40q with number %.40q", ErrMalformed, head, e.Subsystem, e.Values["SEQNUM"])
	}
	e.Seq = seq
	return e, nil
}
