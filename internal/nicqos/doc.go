// Package nicqos has the rules of how a NIC port tells RoCE from other traffic: flow control (PFC) on the RoCE
// priority, priorities by DSCP, and the DSCP of congestion notifications (CNP). From what a fabric wants and
// what was observed it makes ordered, printable steps, or says why there can be none.
//
// A port is as wanted, drifted, refused (somebody else owns its DCB, or nobody may touch it) or has no such
// settings at all, which is no fault: VFs of an igb port serve just as well. DESIGN.md says why the steps
// stand in the order they do.
package nicqos
