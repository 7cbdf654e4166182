package sysfstest

import (
	"errors"
	"slices"
	"sync"
)

// ErrCrashed is what every call answers from the moment that stands for kill -9 until Revive: the process
// that would make the call is dead.
var ErrCrashed = errors.New("simulated kill -9")

// Faults decides which change of the world fails. It is shared by all simulated parts of a host, so that
// one count goes over kernel and hypervisor. The zero Faults lets everything pass.
type Faults struct {
	mu      sync.Mutex
	log     []string
	n       int // changes since the last arming
	at      int // the change that is hit; 0 = none
	err     error
	after   bool
	crash   bool
	crashed bool
}

// FailWrite makes the n-th change from now (1 = the next) fail with err, before it takes effect or after.
// 0 disarms.
func (f *Faults) FailWrite(n int, err error, after bool) { f.arm(n, err, after, false) }

// Crash makes the n-th change from now (1 = the next) the process's last: it happens or not, but its
// caller and everybody after get ErrCrashed until Revive.
func (f *Faults) Crash(n int, after bool) { f.arm(n, ErrCrashed, after, true) }

func (f *Faults) arm(n int, err error, after, crash bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n, f.at, f.err, f.after, f.crash = 0, n, err, after, crash
}

// Revive is the start of a new process after Crash. What was armed is disarmed.
func (f *Faults) Revive() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n, f.at, f.err, f.after, f.crash, f.crashed = 0, 0, nil, false, false, false
}

// Crashed reports whether the process is dead.
func (f *Faults) Crashed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.crashed
}

// Log returns all changes that were asked for since ForgetLog, also those that failed, as a shell would
// do them.
func (f *Faults) Log() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.log)
}

// ForgetLog empties the log.
func (f *Faults) ForgetLog() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = nil
}

// Alive returns ErrCrashed if the process is dead.
func (f *Faults) Alive() error {
	if f.Crashed() {
		return ErrCrashed
	}
	return nil
}

// Begin counts and logs a change. An error means that it must not take effect; otherwise the caller makes
// the change and passes its result through end, which may turn success into the armed failure.
func (f *Faults) Begin(what string) (end func(error) error, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.crashed {
		return nil, ErrCrashed
	}
	f.log = append(f.log, what)
	f.n++
	if f.n != f.at {
		return f.pass, nil
	}
	hit := f.err
	if f.after {
		return func(err error) error { return f.hit(err, hit) }, nil
	}
	f.crashed = f.crash
	return nil, hit
}

// pass lets the result through, unless the process died while the call was under way.
func (f *Faults) pass(err error) error {
	if f.Crashed() {
		return ErrCrashed
	}
	return err
}

func (f *Faults) hit(err, hit error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.crash {
		f.crashed = true
		return hit
	}
	if err != nil {
		return err
	}
	return hit
}
