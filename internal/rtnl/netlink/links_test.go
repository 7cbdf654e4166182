package netlink_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/rtnl"
	"github.com/verbena-cloud/verbena/internal/rtnl/netlink"
)

// inNamespace runs f on a thread of its own network namespace with a pair of veth links, v0 and v1. The
// sockets of f must be opened on that thread, so f's calls get a context that never ends.
func inNamespace(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("no ip(8) to make links with")
	}
	skip := make(chan string, 1)
	go func() {
		defer close(skip)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			skip <- fmt.Sprintf("no network namespace of our own: %v", err)
			return
		}
		if out, err := exec.Command("ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1").CombinedOutput(); err != nil {
			skip <- fmt.Sprintf("this kernel has no veth: %v: %s", err, out)
			return
		}
		f(t)
	}()
	if why := <-skip; why != "" {
		t.Skip(why)
	}
}

// endless is a context that can't end, for which calls are made on the caller's thread.
func endless() context.Context { return context.Background() }

func up(t *testing.T, link string) bool {
	t.Helper()
	out, err := exec.Command("ip", "-o", "link", "show", link).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	return strings.Contains(string(out), ",UP")
}

// TestLiveLinks: real answers of the kernel that runs the test.
func TestLiveLinks(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		var l netlink.Links
		vfs, err := l.VFs(endless(), "v0")
		if err != nil || len(vfs) != 0 {
			t.Errorf("VFs of a veth: %v, %v", vfs, err)
		}
		if _, err := l.VFs(endless(), "none0"); !errors.Is(err, syscall.ENODEV) || !strings.Contains(err.Error(), "none0") {
			t.Errorf("VFs of a missing link: %v, want ENODEV and its name", err)
		}
		for _, a := range []rtnl.Attr{rtnl.MAC{2, 0, 0, 0, 0, 9}, rtnl.VLAN{ID: 101, QoS: 3}, rtnl.SpoofCheck(true), rtnl.Trust(false), rtnl.State(rtnl.LinkAuto), rtnl.Rate{Max: 500}, rtnl.Rate{Min: 1, Max: 5}} {
			err := l.SetVF(endless(), "v0", 1, a)
			if !errors.Is(err, syscall.EOPNOTSUPP) || !strings.Contains(err.Error(), a.String()+" on VF 1 of v0") {
				t.Errorf("%s on a veth: %v, want EOPNOTSUPP and the object", a, err)
			}
		}
		if err := l.SetVF(endless(), "none0", 1, rtnl.Trust(true)); !errors.Is(err, syscall.ENODEV) {
			t.Errorf("set on a missing link: %v", err)
		}
		if up(t, "v0") {
			t.Error("v0 is up before")
		}
		if err := l.SetUp(endless(), "v0"); err != nil || !up(t, "v0") {
			t.Errorf("set up: %v, up %v", err, up(t, "v0"))
		}
		if err := l.SetUp(endless(), "none0"); !errors.Is(err, syscall.ENODEV) {
			t.Errorf("set a missing link up: %v", err)
		}
		if stats, err := l.VFStats(endless(), "v0"); err != nil || len(stats) != 0 {
			t.Errorf("statistics of the VFs of a veth: %v, %v", stats, err)
		}
		if _, err := l.VFStats(endless(), "none0"); !errors.Is(err, syscall.ENODEV) || !strings.Contains(err.Error(), "none0") {
			t.Errorf("statistics of a missing link: %v, want ENODEV and its name", err)
		}
		if _, err := l.PermanentMAC(endless(), "lo"); !errors.Is(err, syscall.EOPNOTSUPP) {
			t.Errorf("permanent address of lo: %v", err)
		}
	})
}

// TestNames: what can't be a link's name never reaches the kernel.
func TestNames(t *testing.T) {
	var l netlink.Links
	for _, name := range []string{"", "../lo", "a-name-that-is-too-long", "lo\x00x"} {
		if _, err := l.VFs(t.Context(), name); !errors.Is(err, syscall.ENODEV) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := l.SetVF(t.Context(), "lo", -1, rtnl.Trust(true)); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("VF -1: %v", err)
	}
}

func TestEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var l netlink.Links
	if err := l.SetVF(ctx, "lo", 0, rtnl.Trust(true)); !fault.Is(err, fault.Deadline) || !strings.Contains(err.Error(), "lo") {
		t.Errorf("err = %v, want a deadline that names the link", err)
	}
}

// TestChanges: a change of a link is told, and the end of the context ends the watch.
func TestChanges(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var l netlink.Links
	told := make(chan struct{}, 1)
	var calls atomic.Int32
	ended := make(chan error, 1)
	if out, err := exec.Command("ip", "link", "add", "vbt0", "type", "veth", "peer", "name", "vbt1").CombinedOutput(); err != nil {
		t.Skipf("no veth may be made here: %v: %s", err, out)
	}
	defer exec.Command("ip", "link", "del", "vbt0").Run()
	go func() {
		ended <- l.Changes(ctx, func() {
			calls.Add(1)
			select {
			case told <- struct{}{}:
			default:
			}
		})
	}()
	for heard := false; !heard; { // the watch may begin after the change: change until it is told
		for _, state := range []string{"up", "down"} {
			if out, err := exec.Command("ip", "link", "set", "vbt0", state).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		select {
		case <-told:
			heard = true
		case err := <-ended:
			t.Skipf("no events here: %v", err)
		default:
		}
		if ctx.Err() != nil {
			t.Fatal("no change was told in a minute")
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatalf("the watch ended with %v", err)
	}
}
