// Package loop runs reconcilers: functions that bring one object closer to its declared state and may
// be called at any time, any number of times.
//
// A key is woken, never told what happened; wake-ups that arrive while the key waits are one, and one
// that arrives while it runs makes it run again. One key never runs twice at once, different keys do.
package loop
