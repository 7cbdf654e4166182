// Package mem is the store engine without a disk, for tests and for demos that end with the process.
package mem

import (
	"context"
	"iter"
	"sync"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/replica"
)

// DB is a store in memory. Use New.
type DB struct {
	limits  replica.Limits
	replica *replica.Replica
	mu      sync.Mutex // serialises Updates
}

var _ store.DB = (*DB)(nil)

// New returns an empty store that keeps as much history for watches as the default says.
func New() *DB { return With(replica.Config{}) }

// With returns an empty store with its own bounds of history and queues.
func With(c replica.Config) *DB {
	return &DB{limits: replica.DefaultLimits(), replica: replica.New(replica.Empty(1), c)}
}

// View runs f on the newest state.
func (d *DB) View(ctx context.Context, f func(store.Tx) error) error { return d.replica.View(ctx, f) }

// Update runs f, alone, and commits what it put. f must not call Update.
func (d *DB) Update(ctx context.Context, f func(store.Tx) error) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, fault.Wrap(err, fault.Deadline, "the request ended before it was stored; nothing was changed")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.replica.Closed(); err != nil {
		return 0, err
	}
	base := d.replica.Now()
	draft := d.replica.Draft(nil, d.limits)
	tx := draft.Begin()
	if err := f(tx); err != nil {
		return 0, err
	}
	if err := tx.Err(); err != nil || !tx.Changed() {
		return 0, err
	}
	draft.Add(tx)
	state, commit := draft.Seal()
	d.replica.Publish(state, base, commit)
	return commit.Rev, nil
}

// Watch yields every commit after a revision that touches keys with prefix.
func (d *DB) Watch(ctx context.Context, prefix string, after int64) iter.Seq2[store.Commit, error] {
	return d.replica.Watch(ctx, prefix, after)
}

// Health says how large the store is. It has no limit but the machine's memory.
func (d *DB) Health(context.Context) (store.Health, error) {
	return store.Health{
		Engine:    "memory",
		Revision:  d.replica.Now().Rev(),
		Size:      d.replica.Size(),
		Members:   1,
		Compacted: d.replica.Horizon(),
	}, d.replica.Closed()
}

// Close ends all watches; later calls of the store answer Unavailable.
func (d *DB) Close() error {
	d.replica.Close(fault.New(fault.Unavailable, "the store is closed"))
	return nil
}
