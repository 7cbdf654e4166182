// Package netlink is uevent.Listener on a Linux host: the kernel's multicast group of NETLINK_KOBJECT_UEVENT.
// Network devices are told of in their own network namespace only, everything else in the first one.
package netlink

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/verbena-cloud/verbena/internal/nlmsg"
	"github.com/verbena-cloud/verbena/internal/uevent"
)

// Listener is the host's uevents, of the network namespace that Listen is called in.
type Listener struct{}

var _ uevent.Listener = Listener{}

// kernelGroup is the group that the kernel sends to; udev sends its own form to group 2.
const kernelGroup = 1

// Listen calls event for each event and lost where some may have been missed, until ctx ends. A message of the
// kernel that has no known form counts as missed.
func (Listener) Listen(ctx context.Context, event func(uevent.Event), lost func()) error {
	s, err := nlmsg.Subscribe(unix.NETLINK_KOBJECT_UEVENT, kernelGroup)
	if err != nil {
		return fmt.Errorf("listen to uevents: %w", err)
	}
	defer s.Close()
	lost()
	err = s.Follow(ctx, func(b []byte) {
		if e, err := uevent.Decode(b); err == nil {
			event(e)
		} else {
			lost()
		}
	}, lost)
	if err != nil {
		return fmt.Errorf("listen to uevents: %w", err)
	}
	return nil
}
