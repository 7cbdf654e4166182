package apply

import (
	"context"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/verbena-cloud/verbena/internal/guestos"
	"github.com/verbena-cloud/verbena/internal/sysfs"
)

// Ethtool reads and sets queues by SIOCETHTOOL, which every kernel answers. A driver that hangs keeps later
// calls for that link away, not the program.
type Ethtool struct{ guard sysfs.Guard }

var _ Links = (*Ethtool)(nil)

// ethtool_channels of include/uapi/linux/ethtool.h.
type channels struct {
	cmd                                 uint32
	maxRX, maxTX, maxOther, maxCombined uint32
	rx, tx, other, combined             uint32
}

const (
	getChannels = 0x3c // ETHTOOL_GCHANNELS
	setChannels = 0x3d // ETHTOOL_SCHANNELS
)

// ifreq is struct ifreq with a pointer in its union, as SIOCETHTOOL takes it.
type ifreq struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [24 - unsafe.Sizeof(uintptr(0))]byte
}

// Channels reads a link's queues.
func (e *Ethtool) Channels(ctx context.Context, link string) (guestos.Channels, error) {
	c := channels{cmd: getChannels}
	c, err := e.ask(ctx, link, c)
	return guestos.Channels{Combined: int(c.combined), Max: int(c.maxCombined)}, err
}

// SetChannels sets the combined queues and leaves the others as they are.
func (e *Ethtool) SetChannels(ctx context.Context, link string, combined int) error {
	c, err := e.ask(ctx, link, channels{cmd: getChannels})
	if err != nil {
		return err
	}
	c.cmd, c.combined = setChannels, uint32(combined)
	_, err = e.ask(ctx, link, c)
	return err
}

func (e *Ethtool) ask(ctx context.Context, link string, c channels) (channels, error) {
	c, err := sysfs.Guarded(ctx, &e.guard, "ethtool", link, func() (channels, error) { return ioctl(link, c) })
	if err != nil {
		return channels{}, fmt.Errorf("channels of %s: %w", link, err)
	}
	return c, nil
}

func ioctl(link string, c channels) (channels, error) {
	if len(link) >= unix.IFNAMSIZ {
		return c, unix.ENODEV
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return c, err
	}
	defer unix.Close(fd)
	var r ifreq
	copy(r.name[:], link)
	r.data = unsafe.Pointer(&c)                                                                             //nolint:gosec // the ioctl takes a pointer to its structure, which lives until the call ends
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r))) //nolint:gosec // as above, the structure lives until the call ends
	runtime.KeepAlive(&c)
	if errno != 0 {
		return c, errno
	}
	return c, nil
}
