// Package agent is the program on a hypervisor: it reads and writes the kernel and the hypervisor, and
// nothing else. It gets the whole desired state of its host over one stream, brings VFs and domains
// there, and posts what it read back.
//
// Every reconciler has the same shape: observe, a pure plan (package sriov), apply, observe again. What
// must survive a kill -9 is in the journal before the first side effect. DESIGN.md has the choices.
package agent
