// Package netlink is rdma.Devices and rdma.System on a Linux host, spoken straight to the kernel (no cgo, no
// rdma(8), no libibverbs).
//
// Messages are those of NETLINK_RDMA's client NLDEV: their type holds the client and the command, their
// body is attributes alone (include/uapi/rdma/rdma_netlink.h), laid out as drivers/infiniband/core/nldev.c
// fills them. The kernel answers EINVAL to almost everything that it does not like, a device that is gone
// included; a second question tells what it meant.
//
// Opening the protocol's socket may load ib_core. A driver answers inside the sending system call and may wait
// for its firmware there, so each call runs under a sysfs.Guard.
package netlink
