package sysfs

import (
	"context"
	"slices"
	"sync"

	"github.com/verbena-cloud/verbena/internal/fault"
)

// Guard keeps callers from waiting for kernel calls that do not return. Such a call can't be interrupted
// (a driver that waits for its firmware, a device that a process still holds), so it is left to itself and
// its path is marked as stuck until it returns. The zero Guard is ready to use.
type Guard struct {
	mu    sync.Mutex
	stuck map[string]int // calls that nobody waits for any more, by path
}

// Stuck returns the paths with a call that has outlived its caller, sorted.
func (g *Guard) Stuck() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]string, 0, len(g.stuck))
	for p := range g.stuck {
		out = append(out, p)
	}
	slices.Sort(out)
	return out
}

// Blocked returns the fault for a path that an earlier call is stuck at, or nil.
func (g *Guard) Blocked(op, path string) error {
	g.mu.Lock()
	n := g.stuck[path]
	g.mu.Unlock()
	if n == 0 {
		return nil
	}
	return fault.New(fault.Deadline, "%s %s: an earlier call there has not returned, so no other is let at it; look for a process that holds the device, or at the driver's messages in dmesg", op, path)
}

// answer is what a call returned.
type answer[T any] struct {
	value T
	err   error
}

// pending is a call and whether its caller still waits; both under the guard's lock.
type pending struct{ done, left bool }

// Guarded runs f, the kernel call op at path, for as long as ctx lasts. When ctx ends first, it returns a
// fault of kind Deadline that names the path, f goes on alone, and until f returns every other call at the
// path is refused.
func Guarded[T any](ctx context.Context, g *Guard, op, path string, f func() (T, error)) (T, error) {
	var none T
	if err := g.Blocked(op, path); err != nil {
		return none, err
	}
	if err := ctx.Err(); err != nil {
		return none, fault.Wrap(err, fault.Deadline, "%s %s: there was no time left, it was not begun", op, path)
	}
	if ctx.Done() == nil {
		return f()
	}
	call := &pending{}
	back := make(chan answer[T], 1)
	go func() {
		v, err := f()
		g.end(path, call)
		back <- answer[T]{v, err}
	}()
	select {
	case a := <-back:
		return a.value, a.err
	case <-ctx.Done():
	}
	if g.leave(path, call) {
		return none, fault.Wrap(ctx.Err(), fault.Deadline, "%s %s: the kernel has not answered in time; it may still happen, and no other call is let at it before", op, path)
	}
	a := <-back
	return a.value, a.err
}

// end notes that the call returned.
func (g *Guard) end(path string, c *pending) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.done = true
	if !c.left {
		return
	}
	if g.stuck[path]--; g.stuck[path] == 0 {
		delete(g.stuck, path)
	}
}

// leave marks the path as stuck, unless the call returned meanwhile.
func (g *Guard) leave(path string, c *pending) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.done {
		return false
	}
	if g.stuck == nil {
		g.stuck = map[string]int{}
	}
	c.left = true
	g.stuck[path]++
	return true
}
