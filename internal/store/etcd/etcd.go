package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/replica"
)

// DB is a store on etcd. Use Open.
type DB struct {
	conf    Config
	log     *slog.Logger
	limits  replica.Limits
	client  *clientv3.Client
	kv      clientv3.KV
	member  *member // nil if external
	replica *replica.Replica
	server  string       // this process in batch ids
	cause   atomic.Value // string: what the connection last complained of

	ctx    context.Context // of the goroutines
	cancel context.CancelFunc
	work   sync.WaitGroup
	once   sync.Once
	kick   chan struct{} // there is an open batch
	again  chan struct{} // the state must be read anew

	mu     sync.Mutex // held while a function of an Update runs
	last   int64      // revision of the commit key in the replica's newest state
	shelf  *shelf     // where in etcd the newest state lies
	owed   []version  // deletions by foreign hands that the next record repeats, or older records would undo them
	serial int64      // of batches
	open   *batch     // takes Updates
	flight *batch     // is being committed
	down   error      // answer to Updates that come now

	history history // of the committer

	gathered chan struct{} // closed when awaited comes down to 0
	awaited  int           // Updates that the committer waits for
}

var _ store.DB = (*DB)(nil)

// Open connects to the store, starting the embedded member if the config names a directory, and reads the
// whole state. ctx bounds the start; it may end afterwards.
func Open(ctx context.Context, c Config) (*DB, error) { return openWith(ctx, c, nil) }

// openWith lets tests put faults between the engine and etcd.
func openWith(ctx context.Context, c Config, wrap func(clientv3.KV) clientv3.KV) (*DB, error) {
	c, err := c.normal()
	if err != nil {
		return nil, err
	}
	d := &DB{
		conf:   c,
		log:    c.Log,
		limits: c.limits(),
		server: rand.Text()[:12],
		kick:   make(chan struct{}, 1),
		again:  make(chan struct{}, 1),
	}
	if err := d.connect(ctx); err != nil {
		return nil, err
	}
	if d.kv = d.client.KV; wrap != nil {
		d.kv = wrap(d.kv)
	}
	s, last, shelf, err := d.load(ctx)
	if err != nil {
		if fault.KindOf(err) == fault.Internal {
			err = d.unreachable(err)
		}
		return nil, errors.Join(err, d.disconnect())
	}
	d.last, d.shelf = last, shelf
	d.replica = replica.New(s, replica.Config{History: c.History, Queue: c.Queue})
	d.ctx, d.cancel = context.WithCancel(context.WithoutCancel(ctx))
	d.work.Go(d.follow)
	d.work.Go(d.commitAll)
	return d, nil
}

func (d *DB) unreachable(err error) error {
	if cause, ok := d.cause.Load().(string); ok {
		err = fmt.Errorf("%w (%s)", err, cause)
	}
	return fault.Wrap(err, fault.Unavailable, "the store at %s does not answer; check that etcd runs there and that the certificates fit", d.conf)
}

func (d *DB) connect(ctx context.Context) error {
	var err error
	if d.conf.Dir != "" {
		d.member, d.client, err = startMember(ctx, d.conf)
		return err
	}
	secure, err := d.conf.TLS.load(d.conf.Endpoints)
	if err != nil {
		return err
	}
	d.client, err = clientv3.New(clientv3.Config{
		Endpoints:            d.conf.Endpoints,
		TLS:                  secure,
		DialTimeout:          d.conf.Timeout,
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: d.conf.Timeout,
		Logger:               zapLogger(ctx, d.log, &d.cause),
		Context:              context.WithoutCancel(ctx),
	})
	if err != nil {
		return d.unreachable(err)
	}
	return nil
}

func (d *DB) disconnect() error {
	err := d.client.Close()
	if errors.Is(err, context.Canceled) {
		err = nil // how the client says that it is closed
	}
	if d.member != nil {
		err = errors.Join(err, d.member.close())
	}
	return err
}

// commitKey is put by every transaction; its modification revision is what transactions compare.
func (d *DB) commitKey() string { return d.conf.Prefix + replica.Reserved }

// root is the prefix of all keys in etcd.
func (d *DB) root() string { return d.conf.Prefix + "/" }

// View runs f on the newest state that this process knows.
func (d *DB) View(ctx context.Context, f func(store.Tx) error) error { return d.replica.View(ctx, f) }

// Watch yields every commit after a revision that touches keys with prefix.
func (d *DB) Watch(ctx context.Context, prefix string, after int64) iter.Seq2[store.Commit, error] {
	if after == 0 {
		after = d.replica.Now().Rev()
	}
	return func(yield func(store.Commit, error) bool) {
		from, err := d.position(ctx, after)
		if err != nil {
			yield(store.Commit{}, err)
			return
		}
		d.replica.Watch(ctx, prefix, from)(yield)
	}
}

// position returns where a watch starts for one who has seen rev, perhaps from another server that is ahead
// of this one. A revision that etcd has not reached either is left for the replica to refuse.
func (d *DB) position(ctx context.Context, rev int64) (int64, error) {
	if rev <= d.replica.Now().Rev() || d.replica.Closed() != nil {
		return rev, nil
	}
	ctx, cancel := context.WithTimeout(ctx, d.conf.Timeout)
	defer cancel()
	res, err := d.kv.Get(ctx, d.commitKey())
	if err != nil {
		return 0, d.unreachable(err)
	}
	if rev > res.Header.GetRevision() || len(res.Kvs) == 0 {
		return rev, nil
	}
	newest := min(rev, res.Kvs[0].GetModRevision())
	if err := d.replica.Wait(ctx, newest); err != nil {
		return 0, fault.Wrap(err, fault.Unavailable, "the store did not catch up with revision %d in %s", newest, d.conf.Timeout)
	}
	// Revisions after the newest commit are those of others who use the cluster.
	return min(rev, d.replica.Now().Rev()), nil
}

// readAgain has the state read anew, because etcd is behind what it has answered before.
func (d *DB) readAgain() {
	select {
	case d.again <- struct{}{}:
	default:
	}
}

// Close ends watches and Updates, stops the member and frees the directory. An Update whose commit is on
// its way gets its answer if etcd gives one.
func (d *DB) Close() error {
	var err error
	d.once.Do(func() {
		closed := fault.New(fault.Unavailable, "the store is closed")
		d.mu.Lock()
		d.down = closed
		if d.open != nil {
			d.open.finish(outcome{err: closed})
			d.open = nil
		}
		d.mu.Unlock()
		d.cancel()
		d.work.Wait()
		d.replica.Close(closed)
		err = d.disconnect()
	})
	if err != nil {
		return fmt.Errorf("close the store at %s: %w", d.conf, err)
	}
	return nil
}

// recordRoot is the prefix of the records.
func (d *DB) recordRoot() string { return d.conf.Prefix + replica.Records }

// local turns a key in etcd into the store's.
func (d *DB) local(key []byte) string { return strings.TrimPrefix(string(key), d.conf.Prefix) }
