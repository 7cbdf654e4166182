// Package sriov has the rules of a virtual function's life: who it is, what state the facts put it in,
// and which ordered, printable steps bring it from there to parked, programmed or scrubbed.
//
// absent → parked → reserved → programmed → verified → attached → draining → scrubbing → parked, plus
// quarantined and foreign. Nothing here touches a kernel: the agent observes, asks for a plan, applies
// it and observes again. DESIGN.md says why the steps stand in the order they do.
package sriov
