package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// build makes the stripped static binary that people run.
func build(b *testing.B) string {
	b.Helper()
	out := filepath.Join(b.TempDir(), "verbena")
	cmd := exec.CommandContext(b.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, text)
	}
	return out
}

// BenchmarkProcessStart compares a whole `verbena version` with a whole `true`: what the binary adds to
// starting any process. It also tells the binary's size.
func BenchmarkProcessStart(b *testing.B) {
	bin := build(b)
	info, err := os.Stat(bin)
	if err != nil {
		b.Fatal(err)
	}
	var ours, base time.Duration
	for b.Loop() {
		base += elapsed(b, "true")
		ours += elapsed(b, bin, "version")
	}
	b.ReportMetric(float64(ours.Microseconds())/float64(b.N)/1e3, "ms/start")
	b.ReportMetric(float64(base.Microseconds())/float64(b.N)/1e3, "ms/true")
	b.ReportMetric(float64(info.Size())/(1<<20), "MiB")
	b.ReportMetric(0, "ns/op")
}

func elapsed(b *testing.B, name string, args ...string) time.Duration {
	b.Helper()
	begin := time.Now()
	if err := exec.CommandContext(b.Context(), name, args...).Run(); err != nil {
		b.Fatal(err)
	}
	return time.Since(begin)
}

// idleTime is how long the idle server is watched; etcd's ticks and compaction timers need some seconds to average.
const idleTime = 20 * time.Second

// BenchmarkServerIdle starts a server on a fresh embedded etcd and watches what it costs while nobody asks:
// share of one core and resident memory.
func BenchmarkServerIdle(b *testing.B) {
	bin := build(b)
	for b.Loop() {
		ctx, cancel := context.WithCancel(b.Context())
		cmd := exec.CommandContext(ctx, bin, "server", "--data", filepath.Join(b.TempDir(), "data"), "--listen", "127.0.0.1:0")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		talk, err := cmd.StderrPipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		awaitServing(b, talk)
		settle := time.NewTimer(idleTime / 4)
		<-settle.C
		before := cpuTime(b, cmd.Process.Pid)
		watch := time.NewTimer(idleTime)
		<-watch.C
		used := cpuTime(b, cmd.Process.Pid) - before
		b.ReportMetric(100*used.Seconds()/idleTime.Seconds(), "%core")
		b.ReportMetric(float64(resident(b, cmd.Process.Pid))/1024, "MiB-RSS")
		b.ReportMetric(0, "ns/op")
		cancel()
		_ = cmd.Wait() // it was ended on purpose
	}
}

func awaitServing(b *testing.B, talk io.Reader) {
	b.Helper()
	lines := bufio.NewScanner(talk)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "msg=serving") {
			go func() { _, _ = io.Copy(io.Discard, talk) }()
			return
		}
	}
	b.Fatal("the server ended before it served")
}

// cpuTime reads utime and stime (proc(5), /proc/PID/stat fields 14 and 15, in ticks of 10 ms).
func cpuTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	field := strings.Fields(rest)
	user, err1 := strconv.ParseInt(field[11], 10, 64)
	system, err2 := strconv.ParseInt(field[12], 10, 64)
	if err1 != nil || err2 != nil {
		b.Fatalf("can't read %q", text)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

// resident reads VmRSS in KiB.
func resident(b *testing.B, pid int) int64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return kib
		}
	}
	b.Fatal("no VmRSS")
	return 0
}
