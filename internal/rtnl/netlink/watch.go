package netlink

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/verbena-cloud/verbena/internal/nlmsg"
	"github.com/verbena-cloud/verbena/internal/uevent"
)

// ueventGroup is the group of NETLINK_KOBJECT_UEVENT that the kernel itself sends to.
const ueventGroup = 1

// Changes calls f for each link change (RTMGRP_LINK) and each device change (NETLINK_KOBJECT_UEVENT), never
// two at a time, and returns nil when ctx ends. Events that the kernel had to drop are a call too.
func (l *Links) Changes(ctx context.Context, f func()) error {
	route, err := nlmsg.Subscribe(unix.NETLINK_ROUTE, unix.RTMGRP_LINK)
	if err != nil {
		return err
	}
	defer route.Close()
	device, err := nlmsg.Subscribe(unix.NETLINK_KOBJECT_UEVENT, ueventGroup)
	if err != nil {
		return err
	}
	defer device.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	var one sync.Mutex
	tell := func() {
		one.Lock()
		defer one.Unlock()
		f()
	}
	errs := make(chan error, 2)
	go func() { errs <- route.Follow(ctx, func([]byte) { tell() }, tell) }()
	go func() {
		errs <- device.Follow(ctx, func(b []byte) {
			if relevant(b) {
				tell()
			}
		}, tell)
	}()
	first := <-errs
	cancel()
	return errors.Join(first, <-errs)
}

// relevant says whether a uevent is about something that an inventory has.
func relevant(message []byte) bool {
	e, err := uevent.Decode(message)
	if err != nil {
		return true // not of the form that is known: rather look once too often
	}
	switch e.Subsystem {
	case "pci", "net", "infiniband", "infiniband_verbs", "vfio", "vfio-dev", "iommu", "drivers":
		return true
	}
	return false
}
