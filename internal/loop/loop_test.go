package loop

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// start runs the loop until the test ends.
func start[K comparable](t *testing.T, l *Loop[K]) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); l.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

func TestWakeUpsWhileWaitingAreOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		gate := make(chan struct{})
		l := New(func(context.Context, string) (time.Duration, error) {
			runs.Add(1)
			<-gate
			return 0, nil
		}, Options[string]{})
		start(t, l)
		for range 5 {
			l.Wake("a")
		}
		synctest.Wait()
		if got := runs.Load(); got != 1 {
			t.Fatalf("%d runs before the first returned, want 1", got)
		}
		for range 5 { // while it runs: one more run, not five
			l.Wake("a")
		}
		close(gate)
		synctest.Wait()
		if got := runs.Load(); got != 2 {
			t.Fatalf("%d runs, want 2", got)
		}
		if !l.Idle() {
			t.Fatal("not idle after the last run")
		}
	})
}

func TestOneKeyNeverRunsTwiceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		running := map[int]int{}
		most, worst := 0, 0
		l := New(func(_ context.Context, k int) (time.Duration, error) {
			mu.Lock()
			running[k]++
			worst = max(worst, running[k])
			sum := 0
			for _, n := range running {
				sum += n
			}
			most = max(most, sum)
			mu.Unlock()
			<-time.After(time.Second)
			mu.Lock()
			running[k]--
			mu.Unlock()
			return 0, nil
		}, Options[int]{Workers: 4})
		start(t, l)
		for range 20 {
			for k := range 3 {
				l.Wake(k)
			}
			<-time.After(300 * time.Millisecond)
		}
		<-time.After(time.Minute)
		synctest.Wait()
		if worst != 1 {
			t.Errorf("one key ran %d times at once", worst)
		}
		if most != 3 {
			t.Errorf("at most %d keys ran at once, want 3: different keys do not wait for each other", most)
		}
	})
}

func TestErrorsBackOffAndSuccessResets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var at []time.Duration
		var waits []time.Duration
		l := New(func(context.Context, string) (time.Duration, error) {
			at = append(at, time.Since(begin))
			if n := len(at); n <= 4 || n == 6 {
				return 0, errors.New("no")
			}
			return time.Hour, nil
		}, Options[string]{Min: time.Second, Max: 4 * time.Second,
			Jitter: func(d time.Duration) time.Duration { return d + time.Millisecond },
			Failed: func(_ string, _ error, w time.Duration) { waits = append(waits, w) }})
		start(t, l)
		l.Wake("a")
		<-time.After(2 * time.Hour)
		synctest.Wait()
		const j = time.Millisecond
		want := []time.Duration{time.Second + j, 2*time.Second + j, 4*time.Second + j, 4*time.Second + j, time.Second + j}
		if !slices.Equal(waits, want) {
			t.Errorf("waits %v, want %v", waits, want)
		}
		if len(at) != 7 {
			t.Errorf("ran at %v, want 7 runs: four errors, success, an error an hour later, success", at)
		}
	})
}

func TestWakeCutsAWaitShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		l := New(func(context.Context, string) (time.Duration, error) {
			runs.Add(1)
			return time.Hour, nil
		}, Options[string]{})
		start(t, l)
		l.Wake("a")
		<-time.After(59 * time.Minute)
		l.Wake("a")
		<-time.After(59 * time.Minute) // the first hour is over, but its timer was replaced
		if got := runs.Load(); got != 2 {
			t.Errorf("%d runs, want 2", got)
		}
		<-time.After(2 * time.Minute)
		if got := runs.Load(); got != 3 {
			t.Errorf("%d runs, want 3", got)
		}
	})
}

func TestRemindLeavesARestAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		var fail atomic.Bool
		fail.Store(true)
		l := New(func(context.Context, string) (time.Duration, error) {
			runs.Add(1)
			if fail.Load() {
				return 0, errors.New("no")
			}
			return time.Hour, nil
		}, Options[string]{Min: time.Minute})
		start(t, l)
		l.Remind("a")
		synctest.Wait()
		l.Remind("a")
		<-time.After(59 * time.Second)
		if got := runs.Load(); got != 1 {
			t.Errorf("%d runs, want 1: it rests", got)
		}
		fail.Store(false)
		<-time.After(2 * time.Second)
		l.Remind("a") // no error any more
		synctest.Wait()
		if got := runs.Load(); got != 3 {
			t.Errorf("%d runs, want 3", got)
		}
	})
}

func TestRunEndsWithItsContextAndWaitsForTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := false
		l := New(func(ctx context.Context, _ string) (time.Duration, error) {
			<-ctx.Done()
			<-time.After(time.Second) // it needs a moment to stop
			ended = true
			return 0, ctx.Err()
		}, Options[string]{Failed: func(string, error, time.Duration) { t.Error("the end is no error of the key") }})
		ctx, cancel := context.WithCancel(t.Context())
		l.Wake("a")
		done := make(chan struct{})
		go func() { defer close(done); l.Run(ctx) }()
		synctest.Wait()
		cancel()
		<-done
		if !ended {
			t.Error("Run returned while a call was under way")
		}
	})
}

func TestManyKeysLeaveNothingBehind(t *testing.T) {
	l := New(func(context.Context, int) (time.Duration, error) { return 0, nil }, Options[int]{Workers: 2})
	start(t, l)
	for k := range 10_000 {
		l.Wake(k)
	}
	for !l.Idle() {
		select {
		case <-t.Context().Done():
			t.Fatal("not idle")
		default:
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.key) != 0 {
		t.Errorf("%d keys are remembered for nothing", len(l.key))
	}
}
