// Package netlink is dcb.Links on a Linux host, spoken straight to the kernel (no cgo, no dcb(8), no vendor
// tool).
//
// Structs are encoded and decoded by the layouts of include/uapi/linux/dcbnl.h. Three habits of
// net/dcb/dcbnl.c shape the code: a change's result comes back as one byte in the answer, not as the
// errno of the request; a change that the driver has no function for succeeds without effect; and the
// getter leaves out what the driver has no function for. So each change reads before, looks into the
// answer, and reads again.
//
// A driver works on a request inside the sending system call, under the kernel's one rtnl lock, and may
// wait for its firmware there, so each call runs under a sysfs.Guard.
package netlink
