package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/replica"
)

const (
	firstPage = 512     // keys
	maxPage   = 1 << 14 // keys
	pageBytes = 8 << 20 // the next page is made smaller after one larger than this
)

// load reads every key at one revision, in pages, and returns the state and the revision of its commit key.
func (d *DB) load(ctx context.Context) (*replica.State, int64, error) {
	for {
		s, last, err := d.loadOnce(ctx)
		if !errors.Is(err, rpctypes.ErrCompacted) {
			return s, last, err
		}
	}
}

func (d *DB) loadOnce(ctx context.Context) (*replica.State, int64, error) {
	var entries []*store.Entry
	var rev, last int64
	end := clientv3.GetPrefixRangeEnd(d.root())
	for key, limit := d.root(), int64(firstPage); ; {
		opts := []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(limit)}
		if rev != 0 {
			opts = append(opts, clientv3.WithRev(rev), clientv3.WithSerializable())
		}
		res, err := d.page(ctx, key, opts)
		if err != nil {
			return nil, 0, fmt.Errorf("read keys from %s on: %w", key, err)
		}
		if rev == 0 {
			rev = res.Header.GetRevision()
		}
		size := 0
		for _, kv := range res.Kvs {
			size += len(kv.GetValue())
			if string(kv.GetKey()) == d.commitKey() {
				last = kv.GetModRevision()
				continue
			}
			entries = append(entries, d.entry(kv))
		}
		if !res.More || len(res.Kvs) == 0 {
			return replica.NewState(rev, slices.Values(entries)), last, nil
		}
		key = string(res.Kvs[len(res.Kvs)-1].GetKey()) + "\x00"
		if size > pageBytes {
			limit = max(1, limit/4)
		} else if size < pageBytes/4 {
			limit = min(maxPage, limit*2)
		}
	}
}

func (d *DB) page(ctx context.Context, key string, opts []clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*d.conf.Timeout)
	defer cancel()
	return d.kv.Get(ctx, key, opts...)
}

func (d *DB) entry(kv *mvccpb.KeyValue) *store.Entry {
	return store.NewEntry(d.local(kv.GetKey()), kv.GetValue(), nil).At(kv.GetCreateRevision(), kv.GetModRevision())
}

// follow keeps the replica in step with etcd until Close, over lost connections and compactions.
func (d *DB) follow() {
	pause := firstPause
	for d.ctx.Err() == nil {
		before := d.replica.Now().Rev()
		missed, err := d.watch()
		if d.ctx.Err() != nil {
			return
		}
		d.log.Warn("the watch of etcd broke and is started again", "after", d.replica.Now().Rev(), "missed", missed, "cause", err)
		if missed {
			if err := d.reload(); err != nil {
				d.log.Warn("the state could not be read again", "cause", err)
			}
		}
		if d.replica.Now().Rev() > before {
			pause = firstPause
		}
		pause = d.rest(pause)
	}
}

const (
	firstPause = 5 * time.Millisecond
	maxPause   = time.Second
)

// rest waits and returns the next, longer pause.
func (d *DB) rest(pause time.Duration) time.Duration {
	select {
	case <-time.After(pause):
	case <-d.ctx.Done():
	}
	return min(2*pause, maxPause)
}

// watch applies commits until the watch breaks. missed: the commits in between are not there any more.
func (d *DB) watch() (missed bool, err error) {
	ctx, cancel := context.WithCancel(d.ctx)
	defer cancel()
	from := d.replica.Now().Rev() + 1
	events := d.client.Watch(clientv3.WithRequireLeader(ctx), d.root(), clientv3.WithPrefix(), clientv3.WithRev(from))
	for {
		select {
		case <-d.again:
			return true, errors.New("etcd is behind what it answered before")
		case res, ok := <-events:
			if !ok {
				return false, errors.New("the stream ended")
			}
			if err := res.Err(); err != nil {
				return res.CompactRevision != 0, err
			}
			d.applyAll(res.Events)
		}
	}
}

// applyAll applies events, which come in the order of their revisions, those of one revision together.
func (d *DB) applyAll(events []*clientv3.Event) {
	for len(events) > 0 {
		rev := events[0].GetKv().GetModRevision()
		n := 1
		for n < len(events) && events[n].GetKv().GetModRevision() == rev {
			n++
		}
		d.apply(rev, events[:n])
		events = events[n:]
	}
}

func (d *DB) apply(rev int64, events []*clientv3.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if rev <= d.replica.Now().Rev() {
		return
	}
	mark, id := int64(-1), ""
	changes := make([]store.Change, 0, len(events))
	for _, ev := range events {
		switch deleted := ev.GetType() == clientv3.EventTypeDelete; {
		case string(ev.GetKv().GetKey()) == d.commitKey() && deleted:
			mark = 0
		case string(ev.GetKv().GetKey()) == d.commitKey():
			mark, id = rev, string(ev.GetKv().GetValue())
		case deleted:
			changes = append(changes, store.Change{Key: d.local(ev.GetKv().GetKey())})
		default:
			changes = append(changes, store.Change{Key: d.local(ev.GetKv().GetKey()), Entry: d.entry(ev.GetKv())})
		}
	}
	own := d.flight != nil && id == d.flight.id
	if own {
		d.flight.seen = rev
		d.flight.keepDecoded(changes)
	}
	if !own || rev != d.flight.draft.Rev() || !d.replica.Publish(d.flight.state, d.flight.draft.Base(), d.flight.commit) {
		d.replica.Apply(rev, changes)
	}
	if mark >= 0 {
		d.last = mark
	}
	d.recheck()
}

// keepDecoded replaces entries that the watch brought by those that were sent, which need no decoding.
func (b *batch) keepDecoded(changes []store.Change) {
	for i, ch := range changes {
		j, ok := slices.BinarySearchFunc(b.commit.Changes, ch.Key, func(c store.Change, key string) int { return strings.Compare(c.Key, key) })
		if ok && ch.Entry != nil && b.commit.Changes[j].Entry != nil {
			changes[i].Entry = b.commit.Changes[j].Entry.At(ch.Entry.Created, ch.Entry.Rev)
		}
	}
}

// reload reads the whole state anew, when etcd has forgotten the commits in between or was itself replaced
// by an older state.
func (d *DB) reload() error {
	before := d.replica.Now().Rev()
	s, last, err := d.load(d.ctx)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// Own commits may have gone on meanwhile; then nothing was missed, or they had been refused. An older
	// state than before the read is another matter.
	if s.Rev() >= before && s.Rev() <= d.replica.Now().Rev() {
		return nil
	}
	d.replica.Reset(s)
	if d.flight != nil && last != d.flight.last && d.flight.seen == 0 {
		d.flight.unclear = true
	}
	d.last = last
	d.recheck()
	return nil
}
