// Package sysfstest has a simulated kernel. It reacts as a real one does, to the letter where that could be
// measured and as its source says where not: it is the sysfs.Tree, the rtnl.Links and the rtnl.StatsReader of
// agents in tests and in the demo. It never is a source of truth about hardware.
//
// A Kernel is made from a description of a host (Config): NUMA cells, cards, their PFs. New VFs, drivers,
// netdevs, RDMA devices, IOMMU groups and vfio nodes appear and go as a result of writes. Nothing in it
// waits, sleeps or guesses: links that come late come after a number of calls, or when the test says
// Settle; calls that hang do so until the test lets them go or the process that holds the device ends.
//
// Trouble is made in four ways: Quirks of a PF (fewer VFs than asked, late links, refused attributes),
// Break/Hide/Hang of one path, FailWrite and Crash of the n-th change, and acts of the outside world
// (Unplug, Rename, Reboot, Hand, OpenVFIO, Count).
//
// What an agent reads beside /sys has the form that the agent takes it in: Proc, Holders, Modprobe,
// PermanentMAC.
//
// Sources: drivers/pci/{iov,pci-sysfs,pci-driver}.c, drivers/base/{bus,dd}.c, drivers/vfio, net/core/
// {net-sysfs,rtnetlink}.c, Documentation/ABI; igb was measured (Linux 6.12, emulated card), the other
// drivers were not.
package sysfstest
