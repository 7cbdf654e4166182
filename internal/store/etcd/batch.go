package etcd

import (
	"context"
	"sync"
	"time"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/replica"
)

// batch is the Updates that share one transaction. All but done, outcome and taken is guarded by DB.mu.
type batch struct {
	draft     *replica.Draft
	members   int
	withdrawn bool          // a member has left: the others must run again without it
	taken     chan struct{} // closed when nobody can join any more

	id      string // value of the commit key that marks this batch
	last    int64  // what the commit key's revision must be
	state   *replica.State
	commit  store.Commit
	stored  stored
	seen    int64 // revision at which the watch brought this batch
	unclear bool  // history was lost before it could be seen

	once   sync.Once
	done   chan struct{} // closed when result is set
	result outcome
}

// stored is how a batch lies in etcd, and what it clears away on its way.
type stored struct {
	key, movedKey string
	value, moved  []byte
	versions      []version // that were moved
	victims       []*record // that are not needed any more then
	owed          int       // of DB.owed
}

// outcome of a batch: committed at rev, to be run again, or refused.
type outcome struct {
	rev   int64
	again bool
	err   error
}

// newBatch builds on the newest state, or on what the batch on its way will make of it.
func (d *DB) newBatch() *batch {
	var after *replica.Draft
	if d.flight != nil && !d.flight.draft.Empty() {
		after = d.flight.draft
	}
	return &batch{draft: d.replica.Draft(after, d.limits), taken: make(chan struct{}), done: make(chan struct{})}
}

// finish sets the outcome; only the first counts.
func (b *batch) finish(o outcome) {
	b.once.Do(func() {
		b.result = o
		close(b.done)
	})
}

// Update runs f, alone among all Updates of this process, on the newest state with what they have put on
// top, and returns when the transaction that it shares with them is committed. If etcd does not answer
// within Config.Timeout the fault is Unavailable and says whether the change may still be applied.
func (d *DB) Update(ctx context.Context, f func(store.Tx) error) (int64, error) {
	for {
		if err := ctx.Err(); err != nil {
			return 0, untouched(err)
		}
		a := d.attempt(f)
		switch {
		case a.batch == nil:
			return 0, a.err
		case a.full:
			select {
			case <-a.batch.taken:
			case <-a.batch.done:
			case <-ctx.Done():
			}
			continue
		}
		o, err := d.await(ctx, a)
		switch {
		case err != nil:
			return 0, err
		case o.again:
		case o.err != nil:
			return 0, o.err
		case a.err != nil || !a.wrote:
			return 0, a.err
		default:
			return o.rev, nil
		}
	}
}

func untouched(cause error) error {
	return fault.Wrap(cause, fault.Deadline, "the request ended before it was stored; nothing was changed")
}

// attempt is one run of an Update's function.
type attempt struct {
	batch *batch // whose outcome decides; nil if the run's own result stands
	full  bool   // the batch had no room: wait until it is taken and run again
	wrote bool
	err   error // of the function
}

func (d *DB) attempt(f func(store.Tx) error) attempt {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down != nil {
		return attempt{err: d.down}
	}
	if d.open == nil {
		d.open = d.newBatch()
	}
	b := d.open
	tx := b.draft.Begin()
	err := f(tx)
	if err == nil {
		err = tx.Err()
	}
	switch wrote := err == nil && tx.Changed(); {
	case wrote && !b.draft.Fits(tx):
		return attempt{batch: b, full: true}
	case wrote:
		b.draft.Add(tx)
		d.join(b)
		return attempt{batch: b, wrote: true}
	case d.member == nil || !b.draft.Empty():
		// It decided on what is not committed yet, or on a copy that another server may have outdated: the
		// batch's comparison tells whether that holds.
		d.join(b)
		return attempt{batch: b, err: err}
	case d.flight != nil:
		return attempt{batch: d.flight, err: err}
	default:
		return attempt{err: err}
	}
}

// tip is the state that the next batch builds on: the newest, or what the batch on its way will make of it.
func (d *DB) tip() *replica.State {
	if d.flight != nil {
		return d.flight.state
	}
	return d.replica.Now()
}

func (d *DB) join(b *batch) {
	b.members++
	if d.awaited--; d.awaited == 0 {
		close(d.gathered)
	}
	select {
	case d.kick <- struct{}{}:
	default:
	}
}

// recheck has the open batch run again if the state that it builds on will never be.
func (d *DB) recheck() {
	if d.open != nil && d.open.draft.Base() != d.tip() {
		d.open.finish(outcome{again: true})
		d.open = nil
	}
}

// await waits for the outcome of the attempt's batch. If ctx ends first the attempt is withdrawn, or, if it
// is on its way already, waited for a little longer.
func (d *DB) await(ctx context.Context, a attempt) (outcome, error) {
	select {
	case <-a.batch.done:
		return a.batch.result, nil
	case <-ctx.Done():
	}
	if d.withdraw(a) {
		return outcome{}, untouched(ctx.Err())
	}
	select {
	case <-a.batch.done:
		return a.batch.result, nil
	case <-time.After(d.conf.Timeout):
		return outcome{}, fault.Wrap(ctx.Err(), fault.Deadline, "the request ended before the store had answered; the change may still be applied")
	}
}

// withdraw takes an attempt out of its batch, if that can still be done.
func (d *DB) withdraw(a attempt) bool {
	if !a.wrote {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open != a.batch {
		return false
	}
	a.batch.withdrawn = true
	return true
}
