// Package netlink is rtnl.Links on a Linux host, spoken straight to the kernel (no cgo, no ip(8)).
//
// Messages are encoded and decoded here by the layouts of include/uapi/linux/if_link.h: the index of a VF
// is the vf field of its structs, never its place in the list, and an answer is read at whatever size it
// has. Links are addressed by name inside the request itself, so that none is taken for another that got
// its index meanwhile. VF statistics are left out of what is asked for: with them the list of a PF of 128
// VFs no longer fits the 16-bit length of its attribute.
//
// The kernel works on a request inside the sending system call, under its one rtnl lock: a driver that
// hangs there would hang the caller too, so each call runs under a sysfs.Guard.
package netlink
