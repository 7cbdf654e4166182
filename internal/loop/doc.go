// Package loop runs reconcilers: functions that bring one object closer to its declared state and may
// be called at any time, any number of times.
package loop
