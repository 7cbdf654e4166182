// Package guestos says how the operating system inside a VM is to be set so that RDMA and sockets reach what
// the VM's virtual functions can do, and how to take that back. It is pure: Facts are what guestos/apply saw,
// Plan lists the settings that differ with their values before and after, Undo lists the way back to the
// first values, Check judges what no setting can mend, and Report says it all to the host.
//
// No setting outlives a boot of the guest, so the journal of first values is good for one boot only.
package guestos
