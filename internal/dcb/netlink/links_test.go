package netlink

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-cloud/verbena/internal/dcb"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/nlmsg"
)

// kernel answers as net/dcb/dcbnl.c does for a driver that tells its mode, PFC and APP table.
type kernel struct {
	mode   byte
	pfc    []byte
	apps   []byte
	says   byte // the driver's answer to a change
	takes  bool // the change has an effect
	silent bool // the mode is told only when asked for
	wrote  int
}

func (k *kernel) ask(_ uint16, cmd uint8, _ string, attrs []byte) ([]byte, error) {
	head := []byte{0, cmd, 0, 0}
	switch cmd {
	case cmdIEEEGet:
		b := nlmsg.Append(head, attrIEEE, append(nlmsg.Append(nil, ieeePFC, k.pfc), nlmsg.Append(nil, ieeeAppTable, k.apps)...))
		if k.silent {
			return b, nil
		}
		return nlmsg.Append(b, attrDCBX, []byte{k.mode}), nil
	case cmdGetDCBX:
		if k.mode == 0 {
			return nil, syscall.EOPNOTSUPP
		}
		return nlmsg.Append(head, attrDCBX, []byte{k.mode}), nil
	}
	k.wrote++
	kind := uint16(attrIEEE)
	if cmd == cmdSetDCBX {
		kind = attrDCBX
	}
	for a, err := range nlmsg.Attributes(attrs) {
		if err != nil {
			return nil, err
		}
		if k.takes && k.says == 0 {
			k.take(a)
		}
	}
	return nlmsg.Append(head, kind, []byte{k.says}), nil
}

func (k *kernel) take(a nlmsg.Attribute) {
	if a.Kind == attrDCBX {
		k.mode = a.Data[0]
		return
	}
	for part := range nlmsg.Attributes(a.Data) {
		switch part.Kind {
		case ieeePFC:
			k.pfc = part.Data
		case ieeeAppTable:
			k.apps = append(k.apps, part.Data...)
		}
	}
}

func TestSet(t *testing.T) {
	pfc, roce := dcb.SetPFC{Enabled: dcb.Of(3)}, dcb.AddApp{Selector: dcb.DSCP, Protocol: 26, Priority: 3}
	fresh := func(change func(*kernel)) *kernel {
		k := &kernel{mode: byte(dcb.HostIEEE), pfc: make([]byte, pfcSize), takes: true}
		change(k)
		return k
	}
	for _, c := range []struct {
		name   string
		kernel *kernel
		change dcb.Change
		want   error
		wrote  int
	}{
		{"taken", fresh(func(*kernel) {}), pfc, nil, 1},
		{"table", fresh(func(*kernel) {}), roce, nil, 1},
		{"there already", fresh(func(k *kernel) { k.pfc[1] = 8; k.says = 0xea }), pfc, nil, 0},
		{"same mode", fresh(func(k *kernel) { k.says = 1 }), dcb.SetMode(dcb.HostIEEE), nil, 0},
		{"other mode", fresh(func(k *kernel) { k.mode = byte(dcb.IEEE) }), dcb.SetMode(dcb.HostIEEE), nil, 1},
		{"refused mode", fresh(func(k *kernel) { k.mode, k.says = byte(dcb.LLD|dcb.CEE), 1 }), dcb.SetMode(dcb.HostIEEE), dcb.ErrOwned, 1},
		{"firmware owns it", fresh(func(k *kernel) { k.mode, k.says = byte(dcb.LLD|dcb.IEEE), 0xea }), pfc, dcb.ErrOwned, 1},
		{"invalid", fresh(func(k *kernel) { k.says = 0xea }), roce, syscall.EINVAL, 1},
		{"success without effect", fresh(func(k *kernel) { k.takes = false }), pfc, dcb.ErrNotTaken, 1},
		{"no function", fresh(func(*kernel) {}), dcb.SetTrust{dcb.DSCP}, syscall.EOPNOTSUPP, 0},
		{"mode on demand", fresh(func(k *kernel) { k.silent = true }), dcb.SetMode(dcb.HostIEEE), nil, 0},
		{"no mode at all", fresh(func(k *kernel) { k.silent, k.mode = true, 0 }), dcb.SetMode(dcb.HostIEEE), syscall.EOPNOTSUPP, 0},
	} {
		err := set(c.kernel.ask, "ens1", c.change)
		if !errors.Is(err, c.want) || c.kernel.wrote != c.wrote {
			t.Errorf("%s: %v after %d writes, want %v after %d", c.name, err, c.kernel.wrote, c.want, c.wrote)
		}
		if errors.Is(err, dcb.ErrOwned) != errors.Is(c.want, dcb.ErrOwned) {
			t.Errorf("%s: who owns it: %v", c.name, err)
		}
	}
}

// inNamespace runs f on a thread of its own network namespace with a pair of veth links, v0 and v1.
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

// TestLive: real answers of the kernel that runs the test, about links whose drivers have no DCB.
func TestLive(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		var l Links
		endless := context.Background() // calls are made on this thread
		for _, link := range []string{"lo", "v0"} {
			if _, err := l.Get(endless, link); !dcb.Unsupported(err) || !strings.Contains(err.Error(), link) {
				t.Errorf("DCB of %s: %v, want it unsupported", link, err)
			}
			for _, c := range []dcb.Change{dcb.SetPFC{Enabled: dcb.Of(3)}, dcb.SetMode(dcb.HostIEEE)} {
				if err := l.Set(endless, link, c); !dcb.Unsupported(err) || !strings.Contains(err.Error(), c.Command(link)) {
					t.Errorf("%s: %v", c.Command(link), err)
				}
			}
		}
		if _, err := ask(unix.RTM_SETDCB, cmdIEEESet, "v0", nil); !errors.Is(err, syscall.EOPNOTSUPP) {
			t.Errorf("a write without reading first: %v", err)
		}
		if _, err := l.Get(endless, "none0"); !errors.Is(err, syscall.ENODEV) && !dcb.Unsupported(err) {
			t.Errorf("DCB of a missing link: %v", err)
		}
		if _, err := ask(unix.RTM_GETDCB, 200, "v0", nil); err == nil {
			t.Error("a command that no kernel has")
		}
	})
}

func TestNames(t *testing.T) {
	var l Links
	for _, name := range []string{"", "../lo", "a-name-that-is-too-long", "lo\x00x"} {
		if _, err := l.Get(t.Context(), name); !errors.Is(err, syscall.ENODEV) {
			t.Errorf("%q: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Set(ctx, "lo", dcb.SetPFC{}); !fault.Is(err, fault.Deadline) || !strings.Contains(err.Error(), "lo") {
		t.Errorf("without time: %v", err)
	}
	if len(l.Stuck()) != 0 {
		t.Errorf("stuck: %v", l.Stuck())
	}
}
