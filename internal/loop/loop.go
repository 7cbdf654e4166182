package loop

import (
	"context"
	"sync"
	"time"
)

// Func brings the object named by key closer to its declared state. It must be safe to repeat and must
// read that state itself: a key says that something may have changed, never what. It returns how long to
// wait before it is called again without a change (0 = not at all).
type Func[K comparable] func(ctx context.Context, key K) (wait time.Duration, err error)

// Options tune a loop. The zero value of each field has a meaning, so that a loop needs none.
type Options[K comparable] struct {
	// Workers is how many keys run at once; 0 means one.
	Workers int
	// Min and Max bound the wait after an error, which doubles with each further error of the key;
	// 0 means 500 ms and 1 min.
	Min, Max time.Duration
	// Jitter spreads a wait, so that a thousand hosts do not come at once; nil means no spreading. It is
	// passed in since contracts have no randomness.
	Jitter func(time.Duration) time.Duration
	// Failed is told of every error and the wait that follows; nil means nobody is.
	Failed func(key K, err error, wait time.Duration)
}

// Loop calls one Func for many keys.
type Loop[K comparable] struct {
	f    Func[K]
	opt  Options[K]
	mu   sync.Mutex
	key  map[K]*entry
	due  []K
	cond *sync.Cond
	stop bool
	busy int
}

// entry is what the loop knows of a key.
type entry struct {
	queued  bool // stands in due
	running bool
	again   bool // woken while it ran
	errors  int  // in a row
	timer   *time.Timer
	turn    uint64 // counts timers, so that a stopped one that fired all the same does nothing
}

// New returns a loop that does nothing until Run.
func New[K comparable](f Func[K], opt Options[K]) *Loop[K] {
	opt.Workers = max(opt.Workers, 1)
	if opt.Min <= 0 {
		opt.Min = 500 * time.Millisecond
	}
	if opt.Max < opt.Min {
		opt.Max = max(time.Minute, opt.Min)
	}
	if opt.Jitter == nil {
		opt.Jitter = func(d time.Duration) time.Duration { return d }
	}
	l := &Loop[K]{f: f, opt: opt, key: map[K]*entry{}}
	l.cond = sync.NewCond(&l.mu)
	return l
}

// Wake makes the key run soon, whatever it waits for. It never blocks and may be called from a Func.
func (l *Loop[K]) Wake(key K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wake(key)
}

// Remind makes the key run soon, unless it rests after an error: for whoever only sees that all is not
// well yet. It never blocks.
func (l *Loop[K]) Remind(key K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.key[key]; e != nil && e.errors > 0 && e.timer != nil {
		return
	}
	l.wake(key)
}

func (l *Loop[K]) wake(key K) {
	e := l.key[key]
	if e == nil {
		e = &entry{}
		l.key[key] = e
	}
	e.cancel()
	switch {
	case e.running:
		e.again = true
	case !e.queued:
		e.queued = true
		l.due = append(l.due, key)
		l.cond.Broadcast()
	}
}

// cancel takes back the timed call.
func (e *entry) cancel() {
	e.turn++
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
}

// Run calls the Func for woken keys until ctx ends, and returns when the calls under way have returned.
// What is woken while nothing runs waits for the next Run.
func (l *Loop[K]) Run(ctx context.Context) {
	l.mu.Lock()
	l.stop = false
	l.mu.Unlock()
	unhook := context.AfterFunc(ctx, l.halt)
	defer unhook()
	var wg sync.WaitGroup
	for range l.opt.Workers {
		wg.Go(func() { l.work(ctx) })
	}
	wg.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.key {
		e.cancel()
	}
}

func (l *Loop[K]) halt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stop = true
	l.cond.Broadcast()
}

func (l *Loop[K]) work(ctx context.Context) {
	for {
		key, ok := l.next(ctx)
		if !ok {
			return
		}
		wait, err := l.f(ctx, key)
		l.done(ctx, key, wait, err)
	}
}

func (l *Loop[K]) next(ctx context.Context) (K, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.due) == 0 && !l.stop && ctx.Err() == nil {
		l.cond.Wait()
	}
	if l.stop || ctx.Err() != nil {
		var none K
		return none, false
	}
	key := l.due[0]
	l.due = l.due[1:]
	e := l.key[key]
	e.queued, e.running = false, true
	l.busy++
	return key, true
}

func (l *Loop[K]) done(ctx context.Context, key K, wait time.Duration, err error) {
	if err != nil && ctx.Err() == nil {
		wait = l.backoff(key)
		if l.opt.Failed != nil {
			l.opt.Failed(key, err, wait)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy--
	e := l.key[key]
	e.running = false
	if err == nil {
		e.errors = 0
	}
	switch {
	case e.again:
		e.again = false
		l.wake(key)
	case wait > 0 && ctx.Err() == nil:
		l.later(key, e, wait)
	case e.errors == 0:
		delete(l.key, key) // nothing to remember: keys come and go for ever
	}
}

// backoff counts an error of the key and returns the wait for it.
func (l *Loop[K]) backoff(key K) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.key[key]
	wait := l.opt.Min
	for range e.errors {
		if wait *= 2; wait >= l.opt.Max {
			wait = l.opt.Max
			break
		}
	}
	e.errors++
	return l.opt.Jitter(wait)
}

func (l *Loop[K]) later(key K, e *entry, wait time.Duration) {
	e.cancel()
	turn := e.turn
	e.timer = time.AfterFunc(wait, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.key[key] == e && e.turn == turn && !l.stop {
			l.wake(key)
		}
	})
}

// Idle reports that no key runs or is due now; keys that wait for their time do not count.
func (l *Loop[K]) Idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.busy == 0 && len(l.due) == 0
}
