package netlink

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/verbena-cloud/verbena/internal/rtnl"
)

var _ rtnl.StatsReader = (*Links)(nil)

// VFStats returns what the VFs of a PF's link sent and received, by index.
func (l *Links) VFStats(ctx context.Context, link string) ([]rtnl.VFStats, error) {
	info, size, err := l.get(ctx, link, filterVF)
	if err == nil {
		err = whole(info, size)
	}
	if err != nil {
		return nil, fmt.Errorf("read the statistics of the VFs of %s: %w", link, err)
	}
	return info.stats, nil
}

// Numbers in IFLA_VF_STATS (enum in include/uapi/linux/if_link.h). 6 is padding, that some machines have
// before each counter and others never.
const (
	statsRxPackets = 0
	statsTxPackets = 1
	statsRxBytes   = 2
	statsTxBytes   = 3
	statsBroadcast = 4
	statsMulticast = 5
	statsRxDropped = 7
	statsTxDropped = 8
)

// count reads IFLA_VF_STATS, whose counters have no index of the VF.
func (d *vfDecoder) count(data []byte) error {
	for a, err := range attributes(data) {
		if err != nil {
			return err
		}
		to := d.counter(a.kind)
		if to == nil {
			continue
		}
		if len(a.data) < 8 {
			return fmt.Errorf("%w: VF counter %d of %d bytes", errMalformed, a.kind, len(a.data))
		}
		*to = binary.NativeEndian.Uint64(a.data)
		d.counted = true
	}
	return nil
}

// counter is where the counter of a number goes, nil if it is none.
func (d *vfDecoder) counter(kind uint16) *uint64 {
	switch kind {
	case statsRxPackets:
		return &d.stats.RxPackets
	case statsTxPackets:
		return &d.stats.TxPackets
	case statsRxBytes:
		return &d.stats.RxBytes
	case statsTxBytes:
		return &d.stats.TxBytes
	case statsBroadcast:
		return &d.stats.Broadcast
	case statsMulticast:
		return &d.stats.Multicast
	case statsRxDropped:
		d.stats.RxDropped = new(uint64)
		return d.stats.RxDropped
	case statsTxDropped:
		d.stats.TxDropped = new(uint64)
		return d.stats.TxDropped
	}
	return nil
}
