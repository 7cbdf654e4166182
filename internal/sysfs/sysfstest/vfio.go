package sysfstest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/verbena-cloud/verbena/internal/rtnl"
)

// addVFIO makes the group's node and the function's own.
func (k *Kernel) addVFIO(f *function) {
	id := strconv.Itoa(f.group.id)
	if k.sys.dir("class/vfio").kids[id] == nil {
		d := k.sys.dir("devices/virtual/vfio").dir(id)
		d.text("dev", "510:"+id)
		k.sys.dir("class/vfio").link(id, d, 0)
	}
	f.dir.dir("vfio-dev").dir(k.free("vfio")).text("dev", "511:"+id)
	f.vfioNode = true
}

func (k *Kernel) removeVFIO(f *function) {
	if !f.vfioNode {
		return
	}
	for name := range f.dir.dir("vfio-dev").kids {
		delete(k.rdma, name)
	}
	f.dir.remove("vfio-dev")
	f.vfioNode = false
	for _, m := range f.group.members {
		if m.vfioNode {
			return
		}
	}
	id := strconv.Itoa(f.group.id)
	k.sys.dir("class/vfio").remove(id)
	k.sys.dir("devices/virtual/vfio").remove(id)
}

// OpenVFIO is process pid opening the vfio group of the function at pci, as QEMU does for a guest. It fails
// as the kernel lets it fail: not on vfio-pci, group not viable, group open already.
func (k *Kernel) OpenVFIO(pci string, pid int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	f, err := k.device(pci)
	if err != nil {
		return fmt.Errorf("open %s by vfio: %w", pci, err)
	}
	if !f.vfioNode {
		return fmt.Errorf("open %s by vfio: it is not on vfio-pci, there is no node: %w", pci, syscall.ENOENT)
	}
	var foreign []string
	for _, m := range f.group.members {
		switch {
		case m.pid != 0:
			return fmt.Errorf("open /dev/vfio/%d: process %d has it: %w", f.group.id, m.pid, syscall.EBUSY)
		case m.port != nil && m.driver != nil && m.driver.name != "vfio-pci":
			foreign = append(foreign, m.addr.String())
		}
	}
	if len(foreign) > 0 {
		slices.Sort(foreign)
		return fmt.Errorf("group %d is not viable, it also has %s: %w", f.group.id, strings.Join(foreign, ", "), syscall.EPERM)
	}
	f.pid, f.dirty = pid, true
	f.count(rtnl.VFStats{RxPackets: 1, RxBytes: 64})
	return nil
}

// CloseVFIO is the end of process pid, or its letting go of all its functions; each is reset.
func (k *Kernel) CloseVFIO(pid int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closeVFIO(pid)
}

func (k *Kernel) closeVFIO(pid int) {
	for _, f := range k.functions {
		if f.pid != pid || pid == 0 {
			continue
		}
		f.pid = 0
		if f.port.cfg.Quirks.ResetErr == 0 {
			f.resets++
			f.dirty = false
		}
	}
	close(k.freed)
	k.freed = make(chan struct{})
}

// Holders returns which processes have which vfio group open, as /proc/*/fd shows it.
func (k *Kernel) Holders(ctx context.Context) (map[string][]int, error) {
	return look(ctx, k, "list", "proc/fd", func() (map[string][]int, error) {
		if err := k.meet("proc/fd"); err != nil {
			return nil, err
		}
		out := map[string][]int{}
		for _, f := range k.functions {
			if f.pid != 0 {
				id := strconv.Itoa(f.group.id)
				out[id] = append(out[id], f.pid)
			}
		}
		return out, nil
	})
}
