// Package replica holds a store's whole state in memory for the engines: ordered, as immutable snapshots
// that cost nothing to take, with the recent commits kept so that a watch can be resumed.
//
// An engine serialises its writers; everything else here is safe for concurrent use. The life of a
// commit: Replica.Draft forks the newest state, Draft.Begin gives each function its Tx, Draft.Add takes what
// the function put, Draft.Seal turns the draft into the next State and its Commit, and Replica.Publish
// makes both visible to readers and watchers at one moment. See ../DESIGN.md.
package replica
