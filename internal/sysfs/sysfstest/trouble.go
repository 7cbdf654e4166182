package sysfstest

import (
	"errors"
	"io/fs"
	"syscall"

	"github.com/verbena-cloud/verbena/internal/roce"
)

// trouble is what waits at a path.
type trouble struct {
	err   error         // every call fails so
	until int           // as if it were not there, before that many calls
	hang  chan struct{} // calls hang until it is closed
}

// Break makes every call at path fail with err; nil repairs it. The path may be any that leads to the
// attribute, and need not exist yet.
func (k *Kernel) Break(path string, err error) {
	k.upset(path, func(t *trouble) { t.err = err })
}

// Hide makes the path look as if it did not exist for so many calls of any kind; 0 shows it again.
func (k *Kernel) Hide(path string, calls int) {
	k.upset(path, func(t *trouble) { t.until = 0 })
	if calls > 0 {
		k.upset(path, func(t *trouble) { t.until = k.calls + calls + 1 })
	}
}

// Hang makes calls at path hang until Release. What they would do happens then, wanted or not.
func (k *Kernel) Hang(path string) {
	k.upset(path, func(t *trouble) {
		if t.hang == nil {
			t.hang = make(chan struct{})
		}
	})
}

// Release lets the calls at path go on.
func (k *Kernel) Release(path string) {
	k.upset(path, func(t *trouble) {
		if t.hang != nil {
			close(t.hang)
			t.hang = nil
		}
	})
}

// upset changes the trouble at a path, which is kept under the name that all ways to it share.
func (k *Kernel) upset(path string, f func(*trouble)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n, err := k.sys.walk(path, Never, false); err == nil {
		if t, ok := k.trouble[path]; ok && path != n.path() { // it came to be after the trouble did
			delete(k.trouble, path)
			k.trouble[n.path()] = t
		}
		path = n.path()
	}
	t := k.trouble[path]
	if t == nil {
		t = &trouble{}
		k.trouble[path] = t
	}
	f(t)
	if t.err == nil && t.until <= k.calls && t.hang == nil {
		delete(k.trouble, path)
	}
}

func (k *Kernel) meet(path string) error {
	t := k.trouble[path]
	switch {
	case t == nil:
		return nil
	case t.until > k.calls:
		return syscall.ENOENT
	case t.hang != nil:
		return held{t.hang}
	}
	return t.err
}

// hidden says that a listing must leave the kid out.
func (k *Kernel) hidden(dir, name string, kid *node) bool {
	if len(k.trouble) == 0 {
		return false
	}
	for _, p := range []string{dir + "/" + name, kid.path()} {
		if t := k.trouble[p]; t != nil && t.until > k.calls {
			return true
		}
	}
	return false
}

func hasPath(err error) bool {
	_, ok := errors.AsType[*fs.PathError](err)
	return ok
}

// Tune changes the quirks of the PF at pci, for what happens from now on.
func (k *Kernel) Tune(pci string, f func(*Quirks)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	p, err := k.port(pci)
	if err != nil {
		return err
	}
	f(&p.cfg.Quirks)
	k.showSRIOV(p)
	return nil
}

// Settle makes everything that comes late be there now.
func (k *Kernel) Settle() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sys.settle()
	for _, t := range k.trouble {
		t.until = 0
	}
	for _, c := range k.cards {
		for _, p := range c.ports {
			p.carrierAt = 0
		}
	}
	k.notify()
}

func (n *node) settle() {
	n.after = 0
	for _, kid := range n.kids {
		kid.settle()
	}
}

// Reads returns how many reading calls there were.
func (k *Kernel) Reads() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.reads
}

// Stuck returns the paths whose call has outlived its caller.
func (k *Kernel) Stuck() []string { return k.guard.Stuck() }

func (k *Kernel) port(pci string) (*port, error) {
	a, err := roce.ParsePCI(pci)
	if err != nil {
		return nil, err
	}
	f := k.functions[a]
	if f == nil || f.vf >= 0 || f.port == nil {
		return nil, syscall.ENODEV
	}
	return f.port, nil
}
