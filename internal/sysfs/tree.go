// Package sysfs reads and writes a kernel attribute tree through one small interface, so that the
// same code runs on a host's /sys, on a captured tree and on a simulated kernel that reacts.
//
// Source of the formats: Documentation/ABI/{testing,stable}/sysfs-* and Documentation/PCI/pci-iov-howto.rst.
package sysfs

import (
	"context"
	"errors"
	"io/fs"
	"syscall"
)

// Tree is a kernel attribute tree. Paths are relative to its root ("bus/pci/devices/0000:3b:00.0/sriov_numvfs"),
// slash-separated, without a leading slash.
//
// Read returns the attribute's text without surrounding white space. Write gives the kernel value in
// one write(2). List returns the sorted names in a directory. Link returns the last element of a
// symbolic link's target ("vfio-pci" for a driver link). Errors are *fs.PathError with a syscall.Errno
// inside; a call that the kernel does not answer until ctx ends returns a fault of kind Deadline and
// leaves the path marked as stuck: no second writer is let at it until the first returns.
type Tree interface {
	Read(ctx context.Context, path string) (string, error)
	Write(ctx context.Context, path, value string) error
	List(ctx context.Context, path string) ([]string, error)
	Link(ctx context.Context, path string) (string, error)
}

// Absent reports that this kernel, driver or device has no such attribute, as opposed to "reading it
// went wrong". Every reader asks here, so that the rule can't drift between them.
func Absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EOPNOTSUPP) ||
		errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENODEV)
}
