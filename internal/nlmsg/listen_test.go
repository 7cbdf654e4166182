package nlmsg

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// inNamespace runs f on a thread of a network namespace of its own.
func inNamespace(t *testing.T, f func()) {
	t.Helper()
	skip := make(chan string, 1)
	go func() {
		defer close(skip)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			skip <- fmt.Sprintf("no network namespace of our own: %v", err)
			return
		}
		if out, err := exec.Command("ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1").CombinedOutput(); err != nil {
			skip <- fmt.Sprintf("no veth may be made here: %v: %s", err, out)
			return
		}
		f()
	}()
	if why := <-skip; why != "" {
		t.Skip(why)
	}
}

// ip changes the namespace's links.
func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Errorf("ip %v: %v: %s", args, err, out)
	}
}

// TestFollow: what happens after Subscribe is told, also what came before Follow.
func TestFollow(t *testing.T) {
	inNamespace(t, func() {
		s, err := Subscribe(unix.NETLINK_ROUTE, unix.RTMGRP_LINK)
		if err != nil {
			t.Error(err)
			return
		}
		defer s.Close()
		ip(t, "link", "set", "v0", "up")
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		heard := 0
		err = s.Follow(ctx, func(b []byte) {
			heard++
			if len(b) < unix.SizeofNlMsghdr {
				t.Errorf("a datagram of %d bytes", len(b))
			}
			cancel()
		}, func() { t.Error("events were lost") })
		if err != nil || heard != 1 {
			t.Errorf("%d events, %v", heard, err)
		}
		if err := s.Follow(ctx, func([]byte) { t.Error("an event after the end") }, func() {}); err != nil {
			t.Error(err)
		}
	})
}

// TestFollowBehind: a reader that is too slow is told that it missed something, once for all of it.
func TestFollowBehind(t *testing.T) {
	inNamespace(t, func() {
		s, err := subscribe(unix.NETLINK_ROUTE, unix.RTMGRP_LINK, 1) // the kernel makes it the least there is
		if err != nil {
			t.Error(err)
			return
		}
		defer s.Close()
		for range 4 {
			ip(t, "link", "set", "v0", "up")
			ip(t, "link", "set", "v0", "down")
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		lost := 0
		if err := s.Follow(ctx, func([]byte) {}, func() { lost++; cancel() }); err != nil || lost != 1 {
			t.Errorf("lost %d times, %v", lost, err)
		}
	})
}

// TestFollowKernelOnly: what another process sends to the socket is nobody's event.
func TestFollowKernelOnly(t *testing.T) {
	if kernel(&unix.SockaddrNetlink{Pid: 7}) || kernel(&unix.SockaddrUnix{}) || kernel(nil) || !kernel(&unix.SockaddrNetlink{}) {
		t.Error("who is the kernel")
	}
}

func TestSubscribeRefused(t *testing.T) {
	if _, err := Subscribe(31, 1); !errors.Is(err, syscall.EPROTONOSUPPORT) {
		t.Errorf("a protocol that no kernel has: %v", err)
	}
}
