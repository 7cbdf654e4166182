package etcd

import "context"

// historyShare: a part of one in so many of the quota may be put between two compactions.
const historyShare = 16

// store makes the record of a sealed batch, and clears away what is not needed any more if there is room. Called
// under DB.mu, when everything that was committed before is in the replica and on the shelf.
func (d *DB) store(b *batch) {
	b.stored = stored{key: d.recordRoot() + b.id, value: encodeCommit(b.commit, b.draft.Rev()), owed: len(d.owed)}
	for _, v := range d.owed {
		b.stored.value = v.append(b.stored.value, 0)
	}
	room := min(maxRequest-len(b.stored.value), max(2*len(b.stored.value), fullRecord))
	b.stored.victims = d.shelf.next(int64(room), maxVictims)
	for _, r := range b.stored.victims {
		for _, key := range d.shelf.needs(r) {
			v := version{key: key, rev: d.shelf.places[key].rev}
			if v.entry = d.replica.Now().Get(key); v.entry != nil {
				v.rev = v.entry.Rev
			}
			b.stored.versions = append(b.stored.versions, v)
		}
	}
	if len(b.stored.versions) > 0 {
		b.stored.movedKey, b.stored.moved = b.stored.key+"-moved", encodeMove(b.stored.versions)
	}
}

// shelve notes where a committed batch lies. Called under DB.mu.
func (d *DB) shelve(b *batch) {
	versions := make([]version, 0, len(b.commit.Changes))
	for _, ch := range b.commit.Changes {
		versions = append(versions, version{key: ch.Key, entry: ch.Entry, rev: b.commit.Rev})
	}
	d.shelf.add(b.stored.key, append(versions, d.owed[:b.stored.owed]...))
	d.owed = d.owed[b.stored.owed:]
	if b.stored.movedKey != "" {
		d.shelf.add(b.stored.movedKey, b.stored.versions)
	}
	for _, r := range b.stored.victims {
		d.shelf.remove(r.key)
	}
}

// history is what etcd still has of the past.
type history struct {
	bytes int64 // put since the last mark
	mark  int64 // revision to be compacted to next
}

// forget compacts the history of an embedded member when a share of its quota has been put since the last time, to
// where it was then: the hourly compaction of etcd alone would let heavy changes fill the quota. Other clusters have
// their own compaction.
func (d *DB) forget(b *batch) {
	d.history.bytes += int64(len(b.stored.value) + len(b.stored.moved))
	if d.member == nil || d.history.bytes < d.conf.Quota/historyShare {
		return
	}
	rev := d.history.mark
	d.history = history{mark: d.replica.Now().Rev()}
	ctx, cancel := context.WithTimeout(d.ctx, d.conf.Timeout)
	defer cancel()
	if rev == 0 {
		return
	}
	if _, err := d.client.Compact(ctx, rev); err != nil && !compacted(err) {
		d.log.Warn("the history of etcd was not compacted", "revision", rev, "cause", err)
	}
}
