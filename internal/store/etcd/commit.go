package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/verbena-cloud/verbena/internal/fault"
)

// commitAll commits batch after batch until Close.
func (d *DB) commitAll() {
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-d.kick:
		}
		for b := d.take(); b != nil; b = d.take() {
			start := time.Now()
			d.commit(b)
			d.forget(b)
			d.gather(b, min(time.Since(start)/4, maxGather))
		}
	}
}

// maxGather bounds what gathering can add to the latency of an Update.
const maxGather = time.Millisecond

// gather waits for those whom batch b has just answered to come back with their next Update, if there was
// more than one of them or others are waiting already: otherwise clients fall into two halves, of which one
// always waits for the other's commit. It waits a quarter of the last commit's time at most.
func (d *DB) gather(b *batch, limit time.Duration) {
	d.mu.Lock()
	waiting := 0
	if d.open != nil {
		waiting = d.open.members
	}
	if waiting+b.members < 2 {
		d.mu.Unlock()
		return
	}
	all := make(chan struct{})
	d.gathered, d.awaited = all, b.members
	d.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-all:
	case <-timer.C:
	case <-d.ctx.Done():
	}
}

// take closes the open batch and sends it on its way. There is no delay to collect more: what comes while
// one batch is on its way makes the next.
func (d *DB) take() *batch {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.open
	if b == nil || b.members == 0 || d.down != nil {
		return nil
	}
	d.open = nil
	close(b.taken)
	if b.withdrawn {
		b.finish(outcome{again: true})
		return nil
	}
	d.serial++
	b.id = fmt.Sprintf("%s-%d", d.server, d.serial)
	b.last = d.last
	b.state = b.draft.Base()
	if !b.draft.Empty() {
		b.state, b.commit = b.draft.Seal()
		d.store(b)
	}
	d.flight = b
	return b
}

// unmoved holds as long as nobody has committed since the state that the batch was made on.
func (d *DB) unmoved(b *batch) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(d.commitKey()), "=", b.last)
}

// send commits the batch in one transaction: everything, if the commit key is unmoved, or nothing.
func (d *DB) send(b *batch) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), d.conf.Timeout)
	defer cancel()
	var ops []clientv3.Op
	if !b.draft.Empty() {
		ops = append(ops, putBytes(b.stored.key, b.stored.value), clientv3.OpPut(d.commitKey(), b.id))
	}
	if len(b.stored.moved) > 0 {
		ops = append(ops, putBytes(b.stored.movedKey, b.stored.moved))
	}
	for _, r := range b.stored.victims {
		ops = append(ops, clientv3.OpDelete(r.key))
	}
	return d.kv.Txn(ctx).If(d.unmoved(b)).Then(ops...).Else(clientv3.OpGet(d.commitKey())).Commit()
}

// putBytes is OpPut without its two copies of the value, which nobody changes any more.
func putBytes(key string, value []byte) clientv3.Op {
	op := clientv3.OpPut(key, "")
	op.WithValueBytes(value)
	return op
}

func (d *DB) commit(b *batch) {
	res, err := d.send(b)
	// A batch that changes nothing can be sent as often as it takes.
	late := time.Now().Add(d.conf.Timeout)
	for pause := firstPause; b.draft.Empty() && d.transient(err) && time.Now().Before(late); pause = d.rest(pause) {
		res, err = d.send(b)
	}
	switch refusal := d.refusal(err); {
	case err == nil && res.Succeeded:
		d.committed(b, res.Header.GetRevision())
	case err == nil:
		d.overtaken(b, res)
	case refusal != nil:
		d.settle(b, outcome{err: refusal})
	case b.draft.Empty():
		d.settle(b, outcome{err: d.silent(err, "nothing was changed")})
	default:
		d.log.Warn("etcd did not say whether a commit was made; finding out", "batch", b.id, "cause", err)
		d.resolve(b, err)
	}
}

// transient: etcd gave no answer, and asking again makes sense.
func (d *DB) transient(err error) bool {
	return err != nil && d.refusal(err) == nil && d.ctx.Err() == nil
}

// committed publishes the batch, if the watch has not done so already, and answers its members.
func (d *DB) committed(b *batch, rev int64) {
	d.mu.Lock()
	if !b.draft.Empty() && rev == b.draft.Rev() && d.replica.Publish(b.state, b.draft.Base(), b.commit) {
		d.last = rev
		d.shelve(b)
	}
	d.mu.Unlock()
	if !b.draft.Empty() {
		if rev < b.draft.Rev() {
			d.readAgain()
		}
		// Somebody else's revisions came between, or the watch is ahead: it brings this batch in its turn.
		d.wait(b, outcome{rev: rev}, func() bool { return d.replica.Now().Rev() >= rev })
	}
	d.settle(b, outcome{rev: rev})
}

// overtaken runs the batch again once what another server committed is here.
func (d *DB) overtaken(b *batch, res *clientv3.TxnResponse) {
	if res.Header.GetRevision() < d.replica.Now().Rev() {
		d.readAgain()
	}
	if d.wait(b, outcome{err: d.silent(context.DeadlineExceeded, "nothing was changed")}, func() bool { return d.last != b.last }) {
		d.settle(b, outcome{again: true})
	}
}

// settle ends the flight of a batch.
func (d *DB) settle(b *batch, o outcome) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flight = nil
	d.recheck()
	b.finish(o)
}

// wait returns true when the replica is where cond, called under the lock, wants it. If that takes longer
// than the timeout the batch's members get late, and Updates are refused until cond holds. False: closed.
func (d *DB) wait(b *batch, late outcome, cond func() bool) bool {
	inTime, cancel := context.WithTimeout(d.ctx, d.conf.Timeout)
	defer cancel()
	for ctx := inTime; ; {
		d.mu.Lock()
		ok, rev := cond(), d.replica.Now().Rev()
		d.mu.Unlock()
		if ok {
			d.resume()
			return true
		}
		switch err := d.replica.Wait(ctx, rev+1); {
		case err == nil:
		case d.ctx.Err() != nil:
			d.settle(b, late)
			return false
		default:
			d.suspend(b, late)
			ctx = d.ctx
		}
	}
}

// refuse has Updates answered with err until resume.
func (d *DB) refuse(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down == nil {
		d.down = err
		d.log.Error("changes are refused", "cause", err)
	}
	if d.open != nil {
		d.open.finish(outcome{err: d.down})
		d.open = nil
	}
}

// suspend answers the members of the batch with o, and those who wait behind it and those who come that
// they have to try again later. The batch stays on its way.
func (d *DB) suspend(b *batch, o outcome) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b.finish(o)
	if d.down == nil {
		d.down = d.silent(context.DeadlineExceeded, "nothing was changed")
		d.log.Error("the store does not answer; changes are refused until it does", "store", d.conf.String())
	}
	if d.open != nil {
		d.open.finish(outcome{err: d.down})
		d.open = nil
	}
}

func (d *DB) resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down != nil && d.ctx.Err() == nil {
		d.down = nil
		d.log.Info("the store answers again")
	}
}

func (d *DB) silent(cause error, so string) error {
	return fault.Wrap(cause, fault.Unavailable, "the store did not answer within %s; %s. Try again; if it stays so, check etcd at %s", d.conf.Timeout, so, d.conf)
}

// resolve finds out what became of a batch whose answer was lost. Reading would not do, because the
// transaction may still be on its way; so the commit key is moved under the same condition. Only one of
// the two can succeed: if this one does the batch can never be, and its members run again.
func (d *DB) resolve(b *batch, cause error) {
	unknown := outcome{err: d.silent(cause, "the change may still be applied")}
	late := time.Now().Add(d.conf.Timeout)
	for pause := firstPause; ; pause = d.rest(pause) {
		if d.ctx.Err() != nil {
			d.settle(b, unknown)
			return
		}
		if seen := d.seen(b); seen != 0 {
			d.resume()
			d.committed(b, seen)
			return
		}
		res, err := d.fence(b)
		switch {
		case err != nil:
			if time.Now().After(late) {
				d.suspend(b, unknown)
			}
			continue
		case !res.Succeeded && len(res.Responses) > 0:
			for _, kv := range res.Responses[0].GetResponseRange().GetKvs() {
				if string(kv.GetValue()) == b.id {
					d.resume()
					d.committed(b, kv.GetModRevision())
					return
				}
			}
		}
		d.judge(b, unknown)
		return
	}
}

// judge decides once the commit key has moved to something else than the batch: the first commit after the
// batch's base was the batch or it never will be, and the watch brings commits in order.
func (d *DB) judge(b *batch, unknown outcome) {
	if !d.wait(b, unknown, func() bool { return d.last != b.last }) {
		return
	}
	switch seen := d.seen(b); {
	case seen != 0:
		d.committed(b, seen)
	case d.unclear(b):
		d.settle(b, unknown)
	default:
		d.settle(b, outcome{again: true})
	}
}

func (d *DB) seen(b *batch) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return b.seen
}

func (d *DB) unclear(b *batch) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return b.unclear
}

func (d *DB) fence(b *batch) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), d.conf.Timeout)
	defer cancel()
	return d.kv.Txn(ctx).If(d.unmoved(b)).
		Then(clientv3.OpPut(d.commitKey(), b.id+"-fence")).
		Else(clientv3.OpGet(d.commitKey())).Commit()
}

// refusal returns the fault for an error by which etcd says that the transaction was not made, nil for any
// other error.
func (d *DB) refusal(err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fault.Wrap(err, fault.Unavailable, "the store is full and takes no changes: an operator must reclaim its space or raise its quota, then try again")
	case errors.Is(err, rpctypes.ErrRequestTooLarge):
		return fault.Wrap(err, fault.TooLarge, "etcd takes no transaction of this size; its --max-request-bytes must be at least 1572864")
	case errors.Is(err, rpctypes.ErrTooManyOps):
		return fault.Wrap(err, fault.TooLarge, "etcd takes fewer operations in a transaction than %d; raise its --max-txn-ops, whose default is 128", maxVictims+4)
	case errors.Is(err, rpctypes.ErrPermissionDenied), errors.Is(err, rpctypes.ErrUserEmpty), errors.Is(err, rpctypes.ErrInvalidAuthToken):
		return fault.Wrap(err, fault.Unavailable, "etcd does not let this server write below %s; grant the role of its certificate readwrite there", d.root())
	case errors.Is(err, rpctypes.ErrTooManyRequests):
		return fault.Wrap(err, fault.Unavailable, "etcd has too many requests waiting; try again")
	}
	return nil
}
