package sysfstest

import (
	"context"
	"fmt"
	"syscall"

	"github.com/verbena-cloud/verbena/internal/rtnl"
)

var _ rtnl.StatsReader = (*Kernel)(nil)

// VFStats returns what the PF's driver counted of its VFs. Of a driver that does not count, the kernel tells zeros all
// the same (rtnl_fill_vfinfo in net/core/rtnetlink.c).
func (k *Kernel) VFStats(ctx context.Context, link string) ([]rtnl.VFStats, error) {
	return look(ctx, k, "read the VF statistics of", rtnlPath(link), func() ([]rtnl.VFStats, error) {
		p, err := k.linkPort(link)
		if err != nil {
			return nil, naming("read the VF statistics of "+link, err)
		}
		out := make([]rtnl.VFStats, 0, len(p.vfs))
		for i, f := range p.vfs {
			s := rtnl.VFStats{RxDropped: new(uint64), TxDropped: new(uint64)}
			if p.card.prof.vfStats {
				s = f.stats
				s.RxDropped, s.TxDropped = new(value(f.stats.RxDropped)), new(value(f.stats.TxDropped))
			}
			s.Index = i
			out = append(out, s)
		}
		return out, nil
	})
}

func value(v *uint64) uint64 {
	if v == nil {
		return 0
	}
	return *v
}

// Count is traffic of VF number i of the PF at pci: the simulated card counts so much more. Nothing but that, and the
// one frame with which each guest makes itself known, ever moves a counter; they go with their VFs.
func (k *Kernel) Count(pci string, i int, more rtnl.VFStats) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	p, err := k.port(pci)
	if err != nil {
		return fmt.Errorf("count traffic of %s: %w", pci, err)
	}
	if i < 0 || i >= len(p.vfs) {
		return fmt.Errorf("count traffic of VF %d of %s: it has %d: %w", i, pci, len(p.vfs), syscall.ENODEV)
	}
	p.vfs[i].count(more)
	return nil
}

func (f *function) count(more rtnl.VFStats) {
	s := &f.stats
	s.RxPackets, s.TxPackets = s.RxPackets+more.RxPackets, s.TxPackets+more.TxPackets
	s.RxBytes, s.TxBytes = s.RxBytes+more.RxBytes, s.TxBytes+more.TxBytes
	s.Broadcast, s.Multicast = s.Broadcast+more.Broadcast, s.Multicast+more.Multicast
	s.RxDropped, s.TxDropped = new(value(s.RxDropped)+value(more.RxDropped)), new(value(s.TxDropped)+value(more.TxDropped))
}
