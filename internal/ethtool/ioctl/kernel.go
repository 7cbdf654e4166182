package ioctl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ifreq is struct ifreq with a pointer in its union.
type ifreq struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [24 - unsafe.Sizeof(uintptr(0))]byte
}

// calling runs f with a caller of a link, by one socket of the calling thread's network namespace.
func calling[T any](link string, f func(caller) (T, error)) (T, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC)
	if err != nil {
		var none T
		return none, fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(fd)
	return f(func(cmd uint32, arg []byte) error { return ioctl(fd, link, cmd, arg) })
}

// ioctl gives the driver a command's struct. How long it is the kernel knows from the command and from
// numbers in it alone.
func ioctl(fd int, link string, cmd uint32, arg []byte) error {
	binary.NativeEndian.PutUint32(arg, cmd)
	r := ifreq{data: unsafe.Pointer(unsafe.SliceData(arg))} //nolint:gosec // the ioctl takes a pointer in a struct
	copy(r.name[:unix.IFNAMSIZ-1], link)
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r))) //nolint:gosec // the ioctl takes a pointer to the struct
		runtime.KeepAlive(arg)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}

// fenced runs f with memory of some size that is followed by a page that can't be touched: a kernel that
// writes on gets EFAULT and harms nothing.
func fenced(size int, f func(room []byte) error) (err error) {
	page := os.Getpagesize()
	n := (size + page - 1) / page * page
	whole, err := unix.Mmap(-1, 0, n+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return fmt.Errorf("get %d bytes of memory: %w", n, err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(whole)) }()
	if err := unix.Mprotect(whole[n:], unix.PROT_NONE); err != nil {
		return fmt.Errorf("fence %d bytes of memory: %w", n, err)
	}
	return f(whole[n-size : n : n])
}
