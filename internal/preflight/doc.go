// Package preflight says whether a host can give VMs RDMA, and what to do where it can't. It is pure: Facts
// are what preflight/collect saw, Check judges them, Fixes are the steps that are safe to take at once.
//
// A fact that could not be seen is never judged as if it were bad or good: it is told as unknown. Checks run
// in the order of the layers, cables and firmware first, so that the first failure is the one to mend first.
package preflight
