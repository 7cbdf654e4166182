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

	"golang.org/x/sys/unix"
)

// attrMax is what one attribute holds at most: a page (Documentation/filesystems/sysfs.rst), and as much
// of a PCI configuration space.
const attrMax = 4096

// Dir is the Tree of a directory: /sys on a host, a captured tree in a test. No path and no link leads out
// of it. It is for attribute files; a file longer than a page is an error, not half an answer.
type Dir struct {
	root  *os.Root
	dir   *os.File // the same directory, for openat2
	guard Guard
	plain bool      // do without openat2
	pages sync.Pool // of *[attrMax + 1]byte
}

var _ Tree = (*Dir)(nil)

// Open returns the tree below root.
func Open(root string) (*Dir, error) {
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, fmt.Errorf("open attribute tree %s: %w", root, err)
	}
	f, err := r.Open(".")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open attribute tree %s: %w", root, err), r.Close())
	}
	return &Dir{root: r, dir: f, pages: sync.Pool{New: func() any { return new([attrMax + 1]byte) }}}, nil
}

// Close gives the directory back. Calls that hang go on hanging.
func (d *Dir) Close() error { return errors.Join(d.dir.Close(), d.root.Close()) }

// Stuck returns the paths whose call has outlived its caller.
func (d *Dir) Stuck() []string { return d.guard.Stuck() }

// Read returns the attribute's text. It is one read(2), which sysfs answers completely or not at all.
func (d *Dir) Read(ctx context.Context, name string) (string, error) {
	return Guarded(ctx, &d.guard, "read", name, func() (string, error) { return d.read(name) })
}

func (d *Dir) read(name string) (string, error) {
	fd, err := d.open(name, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	page, ok := d.pages.Get().(*[attrMax + 1]byte)
	if !ok {
		page = new([attrMax + 1]byte)
	}
	defer d.pages.Put(page)
	n, err := again(func() (int, error) { return unix.Read(fd, page[:]) })
	if err != nil {
		return "", &fs.PathError{Op: "read", Path: name, Err: err}
	}
	if n > attrMax {
		return "", &fs.PathError{Op: "read", Path: name, Err: unix.EFBIG}
	}
	return strings.TrimSpace(string(page[:n])), nil
}

// open opens a path below the directory. openat2(2) does in one call what os.Root does element by element,
// at a fifth of its cost with sysfs's long paths; where it is missing (Linux before 5.6, some sandboxes),
// os.Root does it. Descriptors are used plainly, not through os.File: its poller would wait for ever on an
// attribute that answers EAGAIN.
func (d *Dir) open(name string, flags int) (int, error) {
	if d.plain {
		return d.walk(name, flags)
	}
	conn, err := d.dir.SyscallConn()
	if err != nil {
		return -1, err
	}
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	fd := -1
	var failed error
	err = conn.Control(func(dir uintptr) {
		fd, failed = again(func() (int, error) { return unix.Openat2(int(dir), name, &how) })
	})
	switch {
	case err != nil:
		return -1, &fs.PathError{Op: "open", Path: name, Err: err}
	case failed == nil:
		return fd, nil
	case errors.Is(failed, unix.ENOSYS), errors.Is(failed, unix.EPERM), errors.Is(failed, unix.EAGAIN): // EAGAIN: a rename passed by
		return d.walk(name, flags)
	}
	return -1, &fs.PathError{Op: "open", Path: name, Err: failed}
}

// walk is open by os.Root.
func (d *Dir) walk(name string, flags int) (int, error) {
	f, err := d.root.OpenFile(name, flags, 0)
	if err != nil {
		return -1, inside(err)
	}
	defer f.Close()
	conn, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var failed error
	err = conn.Control(func(own uintptr) { fd, failed = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(err, failed)
}

func again(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// Write gives the kernel value in one write(2), never creating or truncating anything. An empty value
// never reaches the kernel's store function; to clear an attribute, write "\n".
func (d *Dir) Write(ctx context.Context, name, value string) error {
	_, err := Guarded(ctx, &d.guard, "write", name, func() (struct{}, error) { return struct{}{}, d.write(name, value) })
	return err
}

func (d *Dir) write(name, value string) error {
	fd, err := d.open(name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	n, err := again(func() (int, error) { return unix.Write(fd, []byte(value)) })
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return &fs.PathError{Op: "write", Path: name, Err: err}
	}
	if n < len(value) {
		return fmt.Errorf("write %s: the kernel took %d of %d bytes: %w", name, n, len(value), io.ErrShortWrite)
	}
	return nil
}

// List returns the names in the directory, sorted by bytes; see Numeric.
func (d *Dir) List(ctx context.Context, name string) ([]string, error) {
	return Guarded(ctx, &d.guard, "list", name, func() ([]string, error) { return d.list(name) })
}

func (d *Dir) list(name string) ([]string, error) {
	fd, err := d.open(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
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
	var errno unix.Errno
	if err == nil || errors.As(err, &errno) || errors.Is(err, os.ErrClosed) {
		return err
	}
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return &fs.PathError{Op: p.Op, Path: p.Path, Err: unix.EXDEV}
	}
	return err
}
