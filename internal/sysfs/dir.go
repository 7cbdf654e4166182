package sysfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// attrMax is what one attribute holds at most: a page (Documentation/filesystems/sysfs.rst), and as much
// of a PCI configuration space.
const attrMax = 4096

// Dir is the Tree of a directory: /sys on a host, a captured tree in a test. No path and no link leads out
// of it. It is for attribute files; a file longer than a page is an error, not half an answer.
type Dir struct {
	root  *os.Root
	guard Guard
	pages sync.Pool // of *[attrMax + 1]byte
}

var _ Tree = (*Dir)(nil)

// Open returns the tree below root.
func Open(root string) (*Dir, error) {
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, fmt.Errorf("open attribute tree %s: %w", root, err)
	}
	return &Dir{root: r, pages: sync.Pool{New: func() any { return new([attrMax + 1]byte) }}}, nil
}

// Close gives the directory back. Calls that hang go on hanging.
func (d *Dir) Close() error { return d.root.Close() }

// Stuck returns the paths whose call has outlived its caller.
func (d *Dir) Stuck() []string { return d.guard.Stuck() }

// Read returns the attribute's text. It is one read(2), which sysfs answers completely or not at all.
func (d *Dir) Read(ctx context.Context, name string) (string, error) {
	return Guarded(ctx, &d.guard, "read", name, func() (string, error) { return d.read(name) })
}

func (d *Dir) read(name string) (string, error) {
	f, err := d.root.Open(name)
	if err != nil {
		return "", inside(err)
	}
	defer f.Close()
	page, ok := d.pages.Get().(*[attrMax + 1]byte)
	if !ok {
		page = new([attrMax + 1]byte)
	}
	defer d.pages.Put(page)
	n, err := raw(f, page[:], syscall.Read)
	if err != nil {
		return "", &fs.PathError{Op: "read", Path: name, Err: err}
	}
	if n > attrMax {
		return "", &fs.PathError{Op: "read", Path: name, Err: syscall.EFBIG}
	}
	return strings.TrimSpace(string(page[:n])), nil
}

// Write gives the kernel value in one write(2), never creating or truncating anything. An empty value
// never reaches the kernel's store function; to clear an attribute, write "\n".
func (d *Dir) Write(ctx context.Context, name, value string) error {
	_, err := Guarded(ctx, &d.guard, "write", name, func() (struct{}, error) { return struct{}{}, d.write(name, value) })
	return err
}

func (d *Dir) write(name, value string) (err error) {
	f, err := d.root.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return inside(err)
	}
	defer func() {
		if cerr := f.Close(); err == nil && cerr != nil {
			err = cerr
		}
	}()
	n, err := raw(f, []byte(value), syscall.Write)
	if err != nil {
		return &fs.PathError{Op: "write", Path: name, Err: err}
	}
	if n < len(value) {
		return fmt.Errorf("write %s: the kernel took %d of %d bytes: %w", name, n, len(value), io.ErrShortWrite)
	}
	return nil
}

// raw makes one system call on f's descriptor. The runtime's poller is kept out of it: an attribute that
// answers EAGAIN would make it wait for ever.
func raw(f *os.File, b []byte, call func(fd int, b []byte) (int, error)) (int, error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var n int
	var failed error
	err = conn.Control(func(fd uintptr) {
		for {
			if n, failed = call(int(fd), b); !errors.Is(failed, syscall.EINTR) {
				return
			}
		}
	})
	if err != nil {
		return 0, err
	}
	return n, failed
}

// List returns the names in the directory, sorted by bytes; see Numeric.
func (d *Dir) List(ctx context.Context, name string) ([]string, error) {
	return Guarded(ctx, &d.guard, "list", name, func() ([]string, error) { return d.list(name) })
}

func (d *Dir) list(name string) ([]string, error) {
	f, err := d.root.Open(name)
	if err != nil {
		return nil, inside(err)
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, inside(err)
	}
	slices.Sort(names)
	return names, nil
}

// Link returns the last element of the link's target, which need not exist.
func (d *Dir) Link(ctx context.Context, name string) (string, error) {
	return Guarded(ctx, &d.guard, "readlink", name, func() (string, error) {
		to, err := d.root.Readlink(name)
		if err != nil {
			return "", inside(err)
		}
		return path.Base(to), nil
	})
}

// inside gives the refusal of os.Root to leave its directory an errno, as openat2(2) would: EXDEV.
func inside(err error) error {
	var errno syscall.Errno
	if err == nil || errors.As(err, &errno) || errors.Is(err, os.ErrClosed) {
		return err
	}
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return &fs.PathError{Op: p.Op, Path: p.Path, Err: syscall.EXDEV}
	}
	return err
}
