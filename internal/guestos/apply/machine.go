// Package apply sees and sets the operating system inside a VM as package guestos plans it: /sys, /proc, the
// queues of netdevs by ethtool's ioctl and modules by modprobe. Each write is read back, and each object's
// first value is in the journal before anything is written to it.
package apply

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/verbena-cloud/verbena/internal/guestos"
	"github.com/verbena-cloud/verbena/internal/rdma/netlink"
	"github.com/verbena-cloud/verbena/internal/sysfs"
)

// Links reads and sets the queues of netdevs. A driver that has none to tell answers EOPNOTSUPP.
type Links interface {
	Channels(ctx context.Context, link string) (guestos.Channels, error)
	SetChannels(ctx context.Context, link string, combined int) error
}

// Machine is the guest. What is nil is not seen and not set.
type Machine struct {
	Sys, Proc sysfs.Tree // of /sys and /proc
	Root      fs.FS      // the guest's root, for files longer than a page
	Links     Links
	// Modprobe runs modprobe with these arguments.
	Modprobe func(ctx context.Context, args ...string) error
	// QueuePairs counts the queue pairs by RDMA device.
	QueuePairs func(ctx context.Context) (map[string]int64, error)
	// Verbs returns what ibv_devices prints and complains about; "" where it is not installed.
	Verbs  func(ctx context.Context) (string, error)
	AsRoot bool
}

// Open returns the machine whose file system is at root, and what gives it back. Only / is the machine that
// runs here: of another root, such as a captured tree, files alone are read.
func Open(root string) (*Machine, func() error, error) {
	sys, err := sysfs.Open(filepath.Join(root, "sys"))
	if err != nil {
		return nil, nil, err
	}
	proc, err := sysfs.Open(filepath.Join(root, "proc"))
	if err != nil {
		return nil, nil, errors.Join(err, sys.Close())
	}
	m := &Machine{Sys: sys, Proc: proc, Root: os.DirFS(root), AsRoot: os.Geteuid() == 0}
	if root == "/" {
		m.Links, m.Modprobe, m.QueuePairs, m.Verbs = &Ethtool{}, modprobe, queuePairs(&netlink.Devices{}), verbs
	}
	return m, func() error { return errors.Join(sys.Close(), proc.Close()) }, nil
}

func verbs(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "ibv_devices").CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("ibv_devices: %w: %.200s", err, out)
	}
	return string(out), nil
}

func modprobe(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "modprobe", args...).CombinedOutput() //nolint:gosec // arguments are names of modules from this tree
	if err != nil {
		return fmt.Errorf("modprobe: %w: %.200s", err, out)
	}
	return nil
}
