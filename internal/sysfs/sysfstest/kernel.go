package sysfstest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/rtnl"
	"github.com/verbena-cloud/verbena/internal/sysfs"
)

// Kernel is a simulated kernel with its hardware. It is safe for concurrent use.
type Kernel struct {
	*Faults

	cfg   Config
	guard sysfs.Guard

	mu        sync.Mutex
	sys       *node
	calls     int // of any kind: the clock of everything that comes late
	reads     int
	boots     int
	cards     []*card
	functions map[roce.PCIAddr]*function
	drivers   map[string]*driver
	modules   map[string]bool
	groups    map[int]*group
	trouble   map[string]*trouble
	freed     chan struct{} // closed whenever a process lets a vfio group go
	ifindex   int
	netdevs   map[string]*netdev
	rdma      map[string]bool
	listeners map[chan struct{}]bool
	onBoot    []func()
}

var (
	_ sysfs.Tree = (*Kernel)(nil)
	_ rtnl.Links = (*Kernel)(nil)
)

// New boots a simulated host.
func New(cfg Config) (*Kernel, error) {
	if len(cfg.Cells) == 0 {
		cfg.Cells = []Cell{{CPUs: "0-7", Memory: 32 << 30}}
	}
	if cfg.Release == "" {
		cfg.Release = "6.12.0-simulated"
	}
	cfg.Cards = slices.Clone(cfg.Cards)
	for i := range cfg.Cards {
		cfg.Cards[i].PFs = slices.Clone(cfg.Cards[i].PFs)
	}
	k := &Kernel{Faults: &Faults{}, cfg: cfg, trouble: map[string]*trouble{}, listeners: map[chan struct{}]bool{}, freed: make(chan struct{})}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.boot(); err != nil {
		return nil, err
	}
	return k, nil
}

// held is the answer of a call that the kernel does not return from before until is closed.
type held struct{ until <-chan struct{} }

func (held) Error() string { return "simulated: the call hangs" }

// locked runs f under the kernel's lock.
func locked[T any](k *Kernel, f func() (T, error)) (T, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return f()
}

// perform makes the call op at path. Only a call that hangs costs a goroutine.
func perform[T any](ctx context.Context, k *Kernel, op, path string, f func() (T, error)) (T, error) {
	var none T
	if err := k.guard.Blocked(op, path); err != nil {
		return none, err
	}
	if ctx.Err() != nil {
		return sysfs.Guarded(ctx, &k.guard, op, path, f)
	}
	v, err := locked(k, f)
	var h held
	if !errors.As(err, &h) {
		return v, err
	}
	return sysfs.Guarded(ctx, &k.guard, op, path, func() (T, error) {
		for {
			<-h.until
			v, err := locked(k, f)
			if !errors.As(err, &h) {
				return v, err
			}
		}
	})
}

// look makes a reading call.
func look[T any](ctx context.Context, k *Kernel, op, path string, f func() (T, error)) (T, error) {
	var none T
	if err := k.Alive(); err != nil {
		return none, err
	}
	k.mu.Lock()
	k.calls++
	k.reads++
	k.mu.Unlock()
	v, err := perform(ctx, k, op, path, f)
	if dead := k.Alive(); dead != nil {
		return none, dead
	}
	return v, err
}

// change makes a call that changes the world: it is logged, counted and can be made to fail.
func (k *Kernel) change(ctx context.Context, op, path, line string, f func() error) error {
	end, err := k.Begin(line)
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.calls++
	k.mu.Unlock()
	_, err = perform(ctx, k, op, path, func() (struct{}, error) { return struct{}{}, f() })
	return end(err)
}

// Read returns an attribute's text.
func (k *Kernel) Read(ctx context.Context, path string) (string, error) {
	return look(ctx, k, "read", path, func() (string, error) {
		n, err := k.find("read", path, true)
		switch {
		case err != nil:
			return "", err
		case n.isDir():
			return "", pathError("read", path, syscall.EISDIR)
		case n.read == nil:
			return "", pathError("open", path, syscall.EACCES)
		}
		s, err := n.read()
		if err != nil {
			return "", pathError("read", path, err)
		}
		return strings.TrimSpace(s), nil
	})
}

// Write gives an attribute a value.
func (k *Kernel) Write(ctx context.Context, path, value string) error {
	line := fmt.Sprintf("echo %s > /sys/%s", strings.TrimSpace(value), path)
	err := k.change(ctx, "write", path, line, func() error { return k.store(path, value) })
	if errno, ok := errors.AsType[syscall.Errno](err); ok && !hasPath(err) {
		return pathError("write", path, errno)
	}
	return err
}

// Hand is Write by somebody else's hand: not logged, not counted, never made to fail.
func (k *Kernel) Hand(path, value string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.store(path, value)
}

func (k *Kernel) store(path, value string) error {
	n, err := k.find("write", path, true)
	switch {
	case err != nil:
		return err
	case n.isDir():
		return pathError("open", path, syscall.EISDIR)
	case n.write == nil:
		return pathError("open", path, syscall.EACCES)
	case value == "": // write(2) of nothing never reaches the attribute
		return nil
	}
	err = n.write(strings.TrimRight(value, "\n"))
	if _, ok := errors.AsType[syscall.Errno](err); ok {
		return pathError("write", path, err)
	}
	return err
}

// List returns the sorted names in a directory.
func (k *Kernel) List(ctx context.Context, path string) ([]string, error) {
	return look(ctx, k, "list", path, func() ([]string, error) {
		n, err := k.find("list", path, true)
		if err != nil {
			return nil, err
		}
		if !n.isDir() {
			return nil, pathError("list", path, syscall.ENOTDIR)
		}
		names := make([]string, 0, len(n.kids))
		for name, kid := range n.kids {
			if kid.after <= k.calls && !k.hidden(path, name, kid) {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return names, nil
	})
}

// Link returns the last element of a link's target.
func (k *Kernel) Link(ctx context.Context, path string) (string, error) {
	return look(ctx, k, "readlink", path, func() (string, error) {
		n, err := k.find("readlink", path, false)
		if err != nil {
			return "", err
		}
		if n.to == nil {
			return "", pathError("readlink", path, syscall.EINVAL)
		}
		return n.to.name, nil
	})
}

// find walks to a path and runs into the trouble that waits there.
func (k *Kernel) find(op, path string, last bool) (*node, error) {
	if err := k.meet(path); err != nil {
		return nil, atPath(op, path, err)
	}
	n, err := k.sys.walk(path, k.calls, last)
	if err != nil {
		return nil, pathError(op, path, err)
	}
	if len(k.trouble) > 0 {
		if err := k.meet(n.path()); err != nil {
			return nil, atPath(op, path, err)
		}
	}
	return n, nil
}

// atPath names the path, but for calls that hang: those have no answer yet.
func atPath(op, path string, err error) error {
	if errors.As(err, new(held)) {
		return err
	}
	return pathError(op, path, err)
}
