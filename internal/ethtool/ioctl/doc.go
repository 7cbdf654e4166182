// Package ioctl is ethtool.Links and ethtool.Modules on a Linux host: ioctl(2) with SIOCETHTOOL, which every
// driver has, and ethtool's netlink for the pages of modules, that the ioctl can't address (Linux 5.13; before
// that, the ioctl reads what it can).
//
// A driver's strings and counters come in one call each, after one for their number. Kernels before 6.15
// write as many as there are at that moment, also into less room, so they get memory that ends at a page that
// can't be written: a number that has grown is then an error of the call, and all is asked again.
package ioctl
