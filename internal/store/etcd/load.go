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

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/replica"
)

const (
	firstPage = 512     // keys
	maxPage   = 1 << 14 // keys
	pageBytes = 8 << 20 // the next page is made smaller after one larger than this
)

// load reads every record at one revision, in pages, and returns the state, the revision of its commit key and
// where everything lies.
func (d *DB) load(ctx context.Context) (*replica.State, int64, *shelf, error) {
	for {
		l := &loaded{shelf: newShelf(d.conf.garbage), newest: map[string]version{}}
		err := d.loadOnce(ctx, l)
		if !errors.Is(err, rpctypes.ErrCompacted) {
			return l.state(), l.last, l.shelf, err
		}
	}
}

// loaded is what a load has found so far.
type loaded struct {
	shelf  *shelf
	newest map[string]version // by key; records come in no order
	rev    int64
	last   int64 // of the commit key
}

func (l *loaded) take(versions []version) {
	for _, v := range versions {
		if was, ok := l.newest[v.key]; !ok || v.rev > was.rev {
			l.newest[v.key] = v
		}
	}
}

func (l *loaded) state() *replica.State {
	entries := make([]*store.Entry, 0, len(l.newest))
	for _, v := range l.newest {
		if v.entry != nil {
			entries = append(entries, v.entry)
		}
	}
	slices.SortFunc(entries, func(a, b *store.Entry) int { return strings.Compare(a.Key, b.Key) })
	return replica.NewState(l.rev, slices.Values(entries))
}

func (d *DB) loadOnce(ctx context.Context, l *loaded) error {
	end := clientv3.GetPrefixRangeEnd(d.root())
	for key, limit := d.root(), int64(firstPage); ; {
		opts := []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(limit)}
		if l.rev != 0 {
			opts = append(opts, clientv3.WithRev(l.rev), clientv3.WithSerializable())
		}
		res, err := d.page(ctx, key, opts)
		if err != nil {
			return fmt.Errorf("read keys from %s on: %w", key, err)
		}
		if l.rev == 0 {
			l.rev = res.Header.GetRevision()
		}
		size := 0
		for _, kv := range res.Kvs {
			size += len(kv.GetValue())
			if string(kv.GetKey()) == d.commitKey() {
				l.last = kv.GetModRevision()
				continue
			}
			versions, _, err := d.versions(kv)
			if err != nil {
				return err
			}
			l.shelf.add(string(kv.GetKey()), versions)
			l.take(versions)
		}
		if !res.More || len(res.Kvs) == 0 {
			return nil
		}
		key = string(res.Kvs[len(res.Kvs)-1].GetKey()) + "\x00"
		if size > pageBytes {
			limit = max(1, limit/4)
		} else if size < pageBytes/4 {
			limit = min(maxPage, limit*2)
		}
	}
}

// versions returns what a key in etcd holds: a record, or a single entry that foreign hands, or a version of this
// program before there were records, have put.
func (d *DB) versions(kv *mvccpb.KeyValue) (_ []version, moved bool, _ error) {
	if !strings.HasPrefix(string(kv.GetKey()), d.recordRoot()) {
		e := d.entry(kv)
		return []version{{key: e.Key, entry: e, rev: e.Rev}}, false, nil
	}
	versions, moved, err := decodeRecord(kv.GetValue(), kv.GetModRevision())
	if err != nil {
		return nil, false, fault.Wrap(err, fault.Unavailable, "the store at %s has a record that can't be read, %s: use the version of this program that wrote it, or restore a backup into an empty store", d.conf, kv.GetKey())
	}
	return versions, moved, nil
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
		unreadable := fault.Is(err, fault.Unavailable)
		if unreadable {
			d.refuse(err)
		}
		if missed || unreadable {
			switch err := d.reload(); {
			case err != nil:
				d.log.Warn("the state could not be read again", "cause", err)
			case unreadable:
				d.resume()
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
			if err := d.applyAll(res.Events); err != nil {
				return false, err
			}
		}
	}
}

// applyAll applies events, which come in the order of their revisions, those of one revision together.
func (d *DB) applyAll(events []*clientv3.Event) error {
	for len(events) > 0 {
		rev := events[0].GetKv().GetModRevision()
		n := 1
		for n < len(events) && events[n].GetKv().GetModRevision() == rev {
			n++
		}
		if err := d.apply(rev, events[:n]); err != nil {
			return err
		}
		events = events[n:]
	}
	return nil
}

func (d *DB) apply(rev int64, events []*clientv3.Event) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if rev <= d.replica.Now().Rev() {
		return nil
	}
	mark, id := int64(-1), ""
	var changes []store.Change
	for _, ev := range events {
		switch key := string(ev.GetKv().GetKey()); {
		case key == d.commitKey() && ev.GetType() == clientv3.EventTypeDelete:
			mark = 0
		case key == d.commitKey():
			mark, id = rev, string(ev.GetKv().GetValue())
		case ev.GetType() != clientv3.EventTypeDelete:
			more, err := d.arrived(ev.GetKv())
			if err != nil {
				return err
			}
			changes = append(changes, more...)
		}
	}
	for _, ev := range events { // after what arrived: a move brings what it takes away
		if key := string(ev.GetKv().GetKey()); ev.GetType() == clientv3.EventTypeDelete && key != d.commitKey() {
			changes = append(changes, d.vanished(key, rev)...)
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
	return nil
}

// arrived notes a key that was put, and returns what changes by it.
func (d *DB) arrived(kv *mvccpb.KeyValue) ([]store.Change, error) {
	versions, moved, err := d.versions(kv)
	if err != nil {
		return nil, err
	}
	key := string(kv.GetKey())
	if !strings.HasPrefix(key, d.recordRoot()) {
		d.shelf.remove(key) // records are put once, other keys as often as foreign hands like
	}
	d.shelf.add(key, versions)
	if moved {
		return nil, nil
	}
	changes := make([]store.Change, 0, len(versions))
	for _, v := range versions {
		changes = append(changes, store.Change{Key: v.key, Entry: v.entry})
	}
	return changes, nil
}

// vanished notes a key that was deleted, and returns what is gone with it: nothing, if its versions were moved.
func (d *DB) vanished(key string, rev int64) []store.Change {
	lost := d.shelf.remove(key)
	changes := make([]store.Change, 0, len(lost))
	for _, k := range lost {
		changes = append(changes, store.Change{Key: k})
		if d.shelf.has(k) {
			d.owed = append(d.owed, version{key: k, rev: rev})
		}
	}
	return changes
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
	s, last, shelf, err := d.load(d.ctx)
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
	d.shelf, d.owed = shelf, nil
	if d.flight != nil && last != d.flight.last && d.flight.seen == 0 {
		d.flight.unclear = true
	}
	d.last = last
	d.recheck()
	return nil
}
