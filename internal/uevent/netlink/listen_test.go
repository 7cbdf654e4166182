package netlink_test

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-cloud/verbena/internal/uevent"
	"github.com/verbena-cloud/verbena/internal/uevent/netlink"
)

// TestListen: a pair of links is made and removed in a network namespace of its own, and all of that is told,
// the first of it because the listener hears before it calls.
func TestListen(t *testing.T) {
	skip := make(chan string, 1)
	go func() {
		defer close(skip)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			skip <- fmt.Sprintf("no network namespace of our own: %v", err)
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		var heard []string
		why := ""
		err := netlink.Listener{}.Listen(ctx, func(e uevent.Event) {
			if e.Subsystem != "net" || e.Seq == 0 || e.Values["IFINDEX"] == "" {
				return
			}
			heard = append(heard, string(e.Action)+" "+e.Values["INTERFACE"])
			switch {
			case e.Action == uevent.Add && e.Values["INTERFACE"] == "v1":
				if out, err := exec.Command("ip", "link", "del", "v0").CombinedOutput(); err != nil {
					t.Errorf("remove a veth: %v: %s", err, out)
					cancel()
				}
			case e.Action == uevent.Remove && slices.Contains(heard, "remove v0") && slices.Contains(heard, "remove v1"):
				cancel()
			}
		}, func() {
			if out, err := exec.Command("ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1").CombinedOutput(); err != nil {
				why = fmt.Sprintf("no veth may be made here: %v: %s", err, out)
				cancel()
			}
		})
		if why != "" {
			skip <- why
			return
		}
		for _, want := range []string{"add v0", "add v1", "remove v0", "remove v1"} {
			if !slices.Contains(heard, want) {
				t.Errorf("%q was not told, only %q; %v", want, heard, err)
			}
		}
		if err != nil {
			t.Errorf("the end: %v", err)
		}
	}()
	if why := <-skip; why != "" {
		t.Skip(why)
	}
}
