// Package netlink is devlink.Devices on a Linux host, spoken straight to the kernel (no cgo, no devlink(8)).
//
// devlink is a family of generic netlink, whose number the kernel gives at boot: each call asks the controller
// for it first, which also says whether this kernel has devlink at all. Attributes are those of
// include/uapi/linux/devlink.h, laid out as net/devlink/dev.c fills them.
//
// A driver answers inside the sending system call, under its instance's lock, and may wait for its firmware
// there, so each call runs under a sysfs.Guard.
package netlink
