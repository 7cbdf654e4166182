// Package etcd is the durable store engine, on etcd v3: embedded as a single member in a data directory,
// or an external cluster by its URLs. Both run the same code.
//
// The whole state lives in memory (package replica); concurrent Updates share one etcd transaction whose
// only condition is that nobody else has committed since. ../DESIGN.md tells why, what was refused, and how
// a commit whose answer got lost is settled.
package etcd
