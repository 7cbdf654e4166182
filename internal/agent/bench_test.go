package agent

import (
	"context"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-cloud/verbena/internal/sysfs"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
)

// counted counts the calls of a tree.
type counted struct {
	sysfs.Tree
	reads, writes atomic.Int64
}

func (c *counted) Read(ctx context.Context, path string) (string, error) {
	c.reads.Add(1)
	return c.Tree.Read(ctx, path)
}

func (c *counted) List(ctx context.Context, path string) ([]string, error) {
	c.reads.Add(1)
	return c.Tree.List(ctx, path)
}

func (c *counted) Link(ctx context.Context, path string) (string, error) {
	c.reads.Add(1)
	return c.Tree.Link(ctx, path)
}

func (c *counted) Write(ctx context.Context, path, value string) error {
	c.writes.Add(1)
	return c.Tree.Write(ctx, path, value)
}

// large is a settled host of 8 PFs with 64 VFs each.
func large(tb testing.TB) (*world, *counted) {
	tb.Helper()
	w := newWorld(tb, sysfstest.Large())
	w.boot()
	if err := w.tell(); err != nil {
		tb.Fatal(err)
	}
	for range 3 {
		if _, err := w.round(tb.Context()); err != nil {
			tb.Fatal(err)
		}
	}
	c := &counted{Tree: w.k}
	w.a.kernel.tree, w.a.d.Tree = c, c
	return w, c
}

// minimal is the number of reads without which a change could go unseen: per VF its driver_override (one
// listing tells the driver of all, one netlink dump per PF their attributes), per PF 16 values of its
// function and netdev, and for the host four listings, its nodes and their memory.
func minimal(pfs, vfs, nodes int) int64 { return int64(pfs*16 + pfs*vfs + 4 + nodes*6) }

// slow makes the next reading a complete one, as after the slow period.
func (w *world) slow() {
	w.a.mu.Lock()
	defer w.a.mu.Unlock()
	w.a.snap.full = time.Time{}
}

func TestUnchangedHostCostsOnlyItsReads(t *testing.T) {
	w, c := large(t)
	w.faults.ForgetLog()
	for what, most := range map[string]int64{"after a change": 8*16 + 32, "complete": minimal(8, 64, 2) * 12 / 10} {
		if what == "complete" {
			w.slow()
		}
		c.reads.Store(0)
		if _, err := w.a.reconcileHost(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := c.reads.Load(); got > most {
			t.Errorf("%s: %d reads, more than %d", what, got, most)
		}
	}
	if log := w.faults.Log(); len(log) != 0 {
		t.Errorf("written: %q", log)
	}
	if free := w.a.inventory().PFs[0].VFs; len(free) != 64 {
		t.Errorf("%d VFs", len(free))
	}
}

// BenchmarkUnchangedHost reads a host of 8 PFs with 64 VFs each, of which nothing changed: on the
// simulated kernel, and on a captured tree of files as production reads it.
func BenchmarkUnchangedHost(b *testing.B) {
	b.Run("simulated/complete", func(b *testing.B) {
		w, c := large(b)
		measure(b, w, c, true)
	})
	for _, full := range []bool{false, true} {
		b.Run("captured/"+map[bool]string{false: "after-a-change", true: "complete"}[full], func(b *testing.B) { captured(b, full) })
	}
}

func captured(b *testing.B, full bool) {
	b.Helper()
	w, c := large(b)
	dir := b.TempDir()
	if err := sysfstest.Extract(w.k.Capture(), dir); err != nil {
		b.Fatal(err)
	}
	tree, err := sysfs.Open(dir)
	if err != nil {
		b.Fatal(err)
	}
	defer tree.Close()
	c.Tree = tree
	measure(b, w, c, full)
}

func measure(b *testing.B, w *world, c *counted, full bool) {
	b.Helper()
	c.reads.Store(0)
	before := cpuTime(b)
	for b.Loop() {
		if full {
			w.slow()
		}
		if _, err := w.a.reconcileHost(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	least := minimal(8, 64, 2)
	b.ReportMetric(float64(c.reads.Load())/float64(b.N), "reads/op")
	b.ReportMetric(float64(c.reads.Load())/float64(b.N)/float64(least), "reads/minimal")
	b.ReportMetric(float64(c.writes.Load()), "writes")
	b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op") // what other work on the machine does not change
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/op")
}

// cpuTime is what this process has used.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
