package etcd

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
)

// Health asks etcd how it is. When it does not answer, what this process knows comes with the fault.
func (d *DB) Health(ctx context.Context) (store.Health, error) {
	h := store.Health{
		Engine:    "etcd",
		Revision:  d.replica.Now().Rev(),
		Members:   len(d.conf.Endpoints),
		Compacted: d.replica.Horizon(),
	}
	if d.member != nil {
		h.Engine, h.Members, h.Limit = "etcd-embedded", 1, d.conf.Quota
	}
	if err := d.replica.Closed(); err != nil {
		return h, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.conf.Timeout)
	defer cancel()
	var err error
	behind := 0 // members whose state is older: all of them, if the cluster was restored from a backup
	for _, e := range d.endpoints() {
		var st *clientv3.StatusResponse
		if st, err = d.client.Status(ctx, e); err != nil {
			continue
		}
		h.Size = max(h.Size, st.DbSize)
		h.Limit = max(h.Limit, st.DbSizeQuota)
		if st.Header.GetRevision() < h.Revision && d.member == nil {
			behind++
		}
	}
	if h.Size == 0 {
		return h, d.unreachable(err)
	}
	if behind > 0 && behind == len(d.endpoints()) {
		d.readAgain()
	}
	alarms, err := d.client.AlarmList(ctx)
	if err != nil {
		return h, d.unreachable(err)
	}
	for _, a := range alarms.Alarms {
		h.NoSpace = h.NoSpace || a.GetAlarm() == etcdserverpb.AlarmType_NOSPACE
	}
	if list, err := d.client.MemberList(ctx); err == nil { // an external cluster may not let us
		h.Members = len(list.Members)
	}
	return h, nil
}

// endpoints to ask one by one; an embedded member has none, and its client wants no name.
func (d *DB) endpoints() []string {
	if d.member != nil {
		return []string{""}
	}
	return d.conf.Endpoints
}

// Reclaim frees the space of old revisions and lifts the alarm by which etcd refuses changes: it compacts
// to the newest revision, defragments one member after the other and disarms. A member stands still while
// it is defragmented, for about a second per GiB.
func (d *DB) Reclaim(ctx context.Context) error {
	rev := d.replica.Now().Rev()
	_, err := d.client.Compact(ctx, rev, clientv3.WithCompactPhysical())
	if err != nil && !compacted(err) {
		return fault.Wrap(err, fault.Unavailable, "the store's history up to revision %d can't be dropped", rev)
	}
	if err := d.defragment(ctx); err != nil {
		return fault.Wrap(err, fault.Unavailable, "the store at %s can't be defragmented", d.conf)
	}
	if _, err := d.client.AlarmDisarm(ctx, &clientv3.AlarmMember{}); err != nil {
		return fmt.Errorf("disarm the space alarm: %w", d.unreachable(err))
	}
	return nil
}

func (d *DB) defragment(ctx context.Context) error {
	if d.member != nil { // the client's call needs a listener's health service, which this member has not
		return d.member.etcd.Server.Backend().Defrag()
	}
	for _, e := range d.conf.Endpoints {
		if _, err := d.client.Defragment(ctx, e); err != nil {
			return fmt.Errorf("defragment %s: %w", e, err)
		}
	}
	return nil
}

// compacted: somebody else has compacted to that revision already.
func compacted(err error) bool {
	return err != nil && rpctypes.ErrorDesc(err) == rpctypes.ErrorDesc(rpctypes.ErrGRPCCompacted)
}
