package etcd

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// OpenWith opens a store whose requests go through wrap.
func OpenWith(ctx context.Context, c Config, wrap func(clientv3.KV) clientv3.KV) (*DB, error) {
	return openWith(ctx, c, wrap)
}

// Client is the store's connection, for tests that do what an operator does with etcdctl.
func (d *DB) Client() *clientv3.Client { return d.client }

// LastWords are the options of the embedded member's logger.
func LastWords(c Config) []zap.Option { return c.lastWords() }

// Eager has garbage cleaned away at once, so that tests of everything else test cleaning too.
func Eager(c Config) Config {
	c.garbage = garbage{slack: 1, records: 4}
	return c
}

// Differs tells how what d has in memory differs from what other has read from the same store; "" if not.
func (d *DB) Differs(other *DB) string {
	mine, theirs := d.replica.Now(), other.replica.Now()
	if mine.Len() != theirs.Len() {
		return fmt.Sprintf("%d keys, not %d", theirs.Len(), mine.Len())
	}
	for e := range mine.Scan("", "") {
		switch o := theirs.Get(e.Key); {
		case o == nil:
			return e.Key + " is missing"
		case o.Rev != e.Rev || o.Created != e.Created || !bytes.Equal(o.Value, e.Value):
			return fmt.Sprintf("%s is at %d (%d) = %q, not at %d (%d) = %q", e.Key, o.Rev, o.Created, o.Value, e.Rev, e.Created, e.Value)
		}
	}
	a, b := d.shelf, other.shelf
	if a.size != b.size || a.live != b.live || len(a.places) != len(b.places) || len(a.records) != len(b.records) {
		return fmt.Sprintf("on the shelf %d records, %d keys, %d of %d bytes, not %d, %d, %d of %d", len(b.records), len(b.places), b.live, b.size, len(a.records), len(a.places), a.live, a.size)
	}
	return ""
}

// Garbage is how many bytes of how many are not needed, and the number of records.
func (d *DB) Garbage() (unneeded, all int64, records int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.shelf.size - d.shelf.live, d.shelf.size, len(d.shelf.records)
}

// DecodeRecord is for the fuzz test: it decodes, encodes what it got, decodes that and compares.
func DecodeRecord(b []byte) (same bool, err error) {
	versions, _, err := decodeRecord(b, 7)
	if err != nil {
		return true, err
	}
	again, moved, err := decodeRecord(encodeMove(versions), 7)
	return moved && slices.EqualFunc(versions, again, func(a, b version) bool {
		if a.key != b.key || a.rev != b.rev || (a.entry == nil) != (b.entry == nil) {
			return false
		}
		return a.entry == nil || a.entry.Created == b.entry.Created && bytes.Equal(a.entry.Value, b.entry.Value)
	}), err
}
