// Package hypertest has a simulated hypervisor and the conformance suite that every engine of hyper.Driver
// runs.
//
// The Hypervisor is the daemon with its domains: it outlives the drivers, as libvirtd and QEMU outlive an
// agent. It checks what a real one checks: that names and UUIDs are unique, that every VF is on vfio-pci and
// nobody else's; a started domain is a process that holds the vfio groups of its VFs in the simulated
// kernel, and letting them go resets them. It says of itself that it is simulated.
package hypertest
