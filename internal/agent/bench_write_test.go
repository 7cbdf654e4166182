package agent

import (
	"context"
	"testing"
	"time"

	"github.com/verbena-cloud/verbena/internal/dcb"
	"github.com/verbena-cloud/verbena/internal/rtnl"
	"github.com/verbena-cloud/verbena/internal/sysfs"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
)

// recorder notes the changes that an agent makes of a kernel, so that they can be made again without it.
type recorder struct {
	sysfs.Tree
	rtnl.Links
	ports dcb.Links
	calls []func(ctx context.Context, k *sysfstest.Kernel) error
}

func (r *recorder) Write(ctx context.Context, path, value string) error {
	r.calls = append(r.calls, func(ctx context.Context, k *sysfstest.Kernel) error { return k.Write(ctx, path, value) })
	return r.Tree.Write(ctx, path, value)
}

func (r *recorder) SetVF(ctx context.Context, link string, vf int, a rtnl.Attr) error {
	r.calls = append(r.calls, func(ctx context.Context, k *sysfstest.Kernel) error { return k.SetVF(ctx, link, vf, a) })
	return r.Links.SetVF(ctx, link, vf, a)
}

func (r *recorder) Get(ctx context.Context, link string) (dcb.State, error) {
	return r.ports.Get(ctx, link)
}

func (r *recorder) Set(ctx context.Context, link string, c dcb.Change) error {
	r.calls = append(r.calls, func(ctx context.Context, k *sysfstest.Kernel) error { return k.Ports().Set(ctx, link, c) })
	return r.ports.Set(ctx, link, c)
}

// record makes the agent's changes go through a recorder.
func (w *world) record() *recorder {
	r := &recorder{Tree: w.a.d.Tree, Links: w.a.d.Links, ports: w.a.d.DCB}
	w.a.d.Tree, w.a.d.Links, w.a.d.DCB = r, r, r
	return r
}

// replay makes the recorded changes on another kernel of the same hardware, and tells how much processor time
// that took. What a driver refused there it refuses here.
func (r *recorder) replay(b *testing.B, k *sysfstest.Kernel) time.Duration {
	b.Helper()
	begin := cpuTime(b)
	for _, f := range r.calls {
		if err := f(b.Context(), k); err != nil && !final(err) {
			b.Fatal(err)
		}
	}
	return cpuTime(b) - begin
}

// bare is a kernel of the world's hardware that no agent has touched.
func bare(b *testing.B, cfg sysfstest.Config) *sysfstest.Kernel {
	b.Helper()
	k, err := sysfstest.New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	if err := k.Modprobe(b.Context(), "vfio-pci"); err != nil {
		b.Fatal(err)
	}
	return k
}

// All of these measure processor time, which other work on the machine does not change much.

// BenchmarkCommission brings a port from nothing to 64 parked VFs, capabilities found out and port set up, beside
// the same changes made by a program that reads nothing back.
func BenchmarkCommission(b *testing.B) {
	var ours, plain time.Duration
	writes := 0
	for b.Loop() {
		w := newWorld(b, host(64))
		w.want.PFs = w.want.PFs[:1]
		lossless(w)
		w.boot()
		if err := w.tell(); err != nil {
			b.Fatal(err)
		}
		r := w.record()
		begin := cpuTime(b)
		if _, err := w.a.reconcilePF(b.Context(), pf0); err != nil {
			b.Fatal(err)
		}
		ours += cpuTime(b) - begin
		writes = len(r.calls)
		plain += r.replay(b, bare(b, host(64)))
		if p := w.kernelVF(dev0, 63); p.Driver != "vfio-pci" {
			b.Fatalf("%+v", p)
		}
	}
	b.ReportMetric(float64(ours.Microseconds())/1000/float64(b.N), "cpu-ms/64-VFs")
	b.ReportMetric(float64(plain.Microseconds())/1000/float64(b.N), "bare-cpu-ms")
	b.ReportMetric(float64(ours)/float64(plain), "x-bare")
	b.ReportMetric(float64(writes), "writes")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkAttach takes a VM with one VF from the server's word to a started domain on a host of 8 PFs with 64
// VFs each: what the agent adds to the boot of a VM.
func BenchmarkAttach(b *testing.B) {
	w, c := large(b)
	var ours time.Duration
	c.reads.Store(0)
	n := 0
	for b.Loop() {
		w.add("a", vf("b8:ce:f6:00:10:00-p0", 5, mac1, 101))
		if err := w.tell(); err != nil {
			b.Fatal(err)
		}
		begin, before := cpuTime(b), c.reads.Load()
		if _, err := w.a.reconcileVM(b.Context(), uidOf("a")); err != nil {
			b.Fatal(err)
		}
		ours += cpuTime(b) - begin
		n += int(c.reads.Load() - before)
		if w.hv.PID(uidOf("a")) == 0 {
			b.Fatalf("it does not run: %+v", w.status(uidOf("a")))
		}
		w.vm("a").Absent = true
		for w.a.j.get(uidOf("a")) != nil {
			if err := w.tell(); err != nil {
				b.Fatal(err)
			}
			if _, err := w.a.reconcileVM(b.Context(), uidOf("a")); err != nil {
				b.Fatal(err)
			}
		}
		w.drop("a")
	}
	b.ReportMetric(float64(ours.Microseconds())/1000/float64(b.N), "cpu-ms/attach")
	b.ReportMetric(float64(n)/float64(b.N), "reads/attach")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkNICQoS looks at the ports of 8 PFs, as every complete reading of the host does, and sets up one
// that is as its driver left it, beside the same changes by a program that reads nothing back.
func BenchmarkNICQoS(b *testing.B) {
	b.Run("look", func(b *testing.B) {
		w, c := large(b)
		lossless(w)
		if err := w.tell(); err != nil {
			b.Fatal(err)
		}
		c.reads.Store(0)
		for b.Loop() {
			w.a.readPorts(b.Context(), w.a.snap, &problems{})
		}
		b.ReportMetric(float64(b.Elapsed().Microseconds())/8/float64(b.N), "us/port")
		b.ReportMetric(float64(c.reads.Load())/8/float64(b.N), "reads/port")
		b.ReportMetric(0, "ns/op")
	})
	b.Run("set", func(b *testing.B) {
		var ours, plain time.Duration
		for b.Loop() {
			w := newWorld(b, host(1))
			w.boot()
			lossless(w)
			if err := w.tell(); err != nil {
				b.Fatal(err)
			}
			f, err := w.a.pf(b.Context(), pf0)
			if err != nil {
				b.Fatal(err)
			}
			r := w.record()
			begin := cpuTime(b)
			if err := w.a.quality(b.Context(), f, w.a.commissioned(f.PF)); err != nil {
				b.Fatal(err)
			}
			ours += cpuTime(b) - begin
			plain += r.replay(b, bare(b, host(1)))
		}
		b.ReportMetric(float64(ours.Microseconds())/float64(b.N), "cpu-us/port")
		b.ReportMetric(float64(ours)/float64(plain), "x-bare")
		b.ReportMetric(0, "ns/op")
	})
}
