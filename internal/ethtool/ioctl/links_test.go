package ioctl

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/verbena-cloud/verbena/internal/ethtool"
	"github.com/verbena-cloud/verbena/internal/fault"
)

// driver is a kernel's answers; grow is called before each of them.
type fake struct {
	counters, flags []string
	on              uint32
	calls           []uint32
	grow            func(call int)
	old             bool // a kernel that writes as many as there are
}

func (k *fake) call(cmd uint32, b []byte) error {
	k.calls = append(k.calls, cmd)
	if k.grow != nil {
		k.grow(len(k.calls))
	}
	put := binary.NativeEndian.PutUint32
	switch cmd {
	case getSetInfo:
		mask := binary.NativeEndian.Uint64(b[8:])
		set := k.set(mask == 1<<setFlags)
		if set == nil {
			binary.NativeEndian.PutUint64(b[8:], 0)
			return nil
		}
		put(b[16:], uint32(len(set)))
	case getStrings:
		set := k.set(number(b[4:]) == setFlags)
		return k.many(b[8:12], b[12:], stringRoom, len(set), func(i int, b []byte) { copy(b, set[i]) })
	case getCounters:
		return k.many(b[4:8], b[8:], 8, len(k.counters), func(i int, b []byte) { binary.NativeEndian.PutUint64(b, uint64(i)<<33) })
	case getFlags:
		put(b[4:], k.on)
	default:
		return unix.EOPNOTSUPP
	}
	return nil
}

func (k *fake) set(flags bool) []string {
	if flags {
		return k.flags
	}
	return k.counters
}

// many answers with n entries where told were expected.
func (k *fake) many(told, room []byte, size, n int, write func(i int, b []byte)) error {
	if !k.old && int(number(told)) != n {
		binary.NativeEndian.PutUint32(told, 0)
		return nil
	}
	binary.NativeEndian.PutUint32(told, uint32(n))
	for i := range n {
		if len(room) < (i+1)*size {
			return unix.EFAULT
		}
		write(i, room[i*size:(i+1)*size])
	}
	return nil
}

func TestCounters(t *testing.T) {
	k := &fake{counters: []string{"rx_prio3_pause", "tx_pause_storm_warning_events", "a_name_that_fills_all_of_its_room"[:32]}}
	got, err := counters(k.call)
	want := []ethtool.Counter{{Name: "rx_prio3_pause"}, {Name: "tx_pause_storm_warning_events", Value: 1 << 33}, {Name: "a_name_that_fills_all_of_its_room"[:32], Value: 2 << 33}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if _, err := counters((&fake{}).call); !ethtool.Unsupported(err) {
		t.Errorf("a driver without counters: %v", err)
	}
	if got, err := counters((&fake{counters: []string{}}).call); err != nil || len(got) != 0 {
		t.Errorf("a driver with no counter at the moment: %v, %v", got, err)
	}
}

// TestCountersThatChange: queues come and go between any two calls, on kernels that check the room and on
// such that do not; names and values are of one moment, or it is an error.
func TestCountersThatChange(t *testing.T) {
	for _, old := range []bool{false, true} {
		for at := 1; at <= 3; at++ {
			for _, by := range []int{-1, 1, 500} {
				k := &fake{old: old, counters: []string{"a", "b"}}
				k.grow = func(call int) {
					if call == at {
						k.counters = slices.Repeat([]string{"x"}, 2+by)
					}
				}
				got, err := counters(k.call)
				if err != nil || len(got) != 2+by || got[0].Name != "x" {
					t.Errorf("%+d before call %d, old kernel %v: %v, %v", by, at, old, got, err)
				}
			}
		}
		k := &fake{old: old}
		k.grow = func(call int) { k.counters = slices.Repeat([]string{"x"}, call) }
		if got, err := counters(k.call); !errors.Is(err, syscall.EAGAIN) || len(got) != 0 || len(k.calls) > 3*tries {
			t.Errorf("never at rest, old kernel %v: %v, %v after %d calls", old, got, err, len(k.calls))
		}
	}
}

func TestTooManyStrings(t *testing.T) {
	_, err := counters(func(_ uint32, b []byte) error {
		binary.NativeEndian.PutUint32(b[16:], 1<<31)
		return nil
	})
	if !errors.Is(err, syscall.EOVERFLOW) {
		t.Errorf("err = %v", err)
	}
}

func TestFlags(t *testing.T) {
	k := &fake{flags: []string{"link-down-on-close", "fw-lldp-agent"}, on: 2}
	got, err := flags(k.call)
	if diff := cmp.Diff([]ethtool.Flag{{Name: "link-down-on-close"}, {Name: "fw-lldp-agent", On: true}}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// le answers one command with bytes written out by hand from linux/ethtool.h, little endian.
func le(t *testing.T, cmd uint32, text string) caller {
	t.Helper()
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the bytes are those of a little-endian machine")
	}
	answer, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return func(got uint32, b []byte) error {
		if got != cmd {
			return unix.EOPNOTSUPP
		}
		copy(b[4:], answer)
		return nil
	}
}

func field(s string, n int) string {
	return hex.EncodeToString(append([]byte(s), make([]byte, n-len(s))...))
}

func TestDriver(t *testing.T) {
	got, err := driver(le(t, getDriver, field("mlx5_core", 32)+field("6.12.0", 32)+field("22.41.1000 (MT_0000000359)", 32)+field("0000:3b:00.0", 32)+field("", 32)+field("", 12)+"0d000000 d2070000 04000000"))
	want := ethtool.Driver{Name: "mlx5_core", Version: "6.12.0", Firmware: "22.41.1000 (MT_0000000359)", Bus: "0000:3b:00.0", Counters: 2002}
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestChannels(t *testing.T) {
	got, err := channels(le(t, getChannels, "01000000 02000000 03000000 3f000000 00000000 00000000 01000000 20000000"))
	want := ethtool.Channels{Max: ethtool.Queues{Rx: 1, Tx: 2, Other: 3, Combined: 63}, Now: ethtool.Queues{Other: 1, Combined: 32}}
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestSettings: the kernel wants to hear first how long its lists are.
func TestSettings(t *testing.T) {
	for speed, want := range map[uint32]int64{400000: 400000, 0xffffffff: 0} {
		got, err := settings(func(_ uint32, b []byte) error {
			if b[15] != 4 {
				clear(b[4:])
				b[15] = 0xfc // four words, please
				return nil
			}
			if len(b) != 48+3*4*4 {
				t.Errorf("room of %d bytes", len(b))
			}
			binary.NativeEndian.PutUint32(b[4:], speed)
			b[8], b[9], b[11] = 1, 5, 1
			return nil
		})
		if err != nil || got != (ethtool.Settings{Speed: want, Duplex: ethtool.Full, Port: ethtool.DirectCable, AutoNeg: true}) {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if _, err := settings(func(_ uint32, b []byte) error { b[15] = 0xfc; return nil }); !errors.Is(err, syscall.EPROTO) {
		t.Errorf("a kernel that never agrees: %v", err)
	}
}

// TestFence: the kernel can't write behind the memory it is given.
func TestFence(t *testing.T) {
	for _, size := range []int{1, 8, 4096, 5000} {
		err := fenced(size, func(room []byte) error {
			if len(room) != size || cap(room) != size {
				return fmt.Errorf("room of %d bytes, %d wanted", len(room), size)
			}
			var fds [2]int
			if err := unix.Pipe2(fds[:], unix.O_NONBLOCK); err != nil {
				return err
			}
			defer unix.Close(fds[0])
			defer unix.Close(fds[1])
			if _, err := unix.Write(fds[1], make([]byte, size+1)); err != nil {
				return err
			}
			n, _, errno := unix.Syscall(unix.SYS_READ, uintptr(fds[0]), uintptr(unsafe.Pointer(&room[0])), uintptr(size+1))
			if errno == 0 && int(n) > size {
				return fmt.Errorf("%d bytes were written into %d", n, size)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// inNamespace runs f on a thread of its own network namespace with a pair of veth links, v0 and v1, where
// calls with a context that never ends are made.
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

// TestLive: real answers of the kernel that runs the test.
func TestLive(t *testing.T) {
	inNamespace(t, func() {
		var l Links
		ctx := context.Background()
		d, err := l.Driver(ctx, "v0")
		if err != nil || d.Name != "veth" || d.Counters == 0 {
			t.Errorf("driver %+v, %v", d, err)
		}
		c, err := l.Counters(ctx, "v0")
		if err != nil || len(c) != d.Counters || c[0].Name != "peer_ifindex" || c[0].Value == 0 {
			t.Errorf("counters %+v, %v", c, err)
		}
		s, err := l.Settings(ctx, "v0")
		if err != nil || s.Speed != 10000 || s.Duplex != ethtool.Full || s.Port != ethtool.TwistedPair || s.AutoNeg {
			t.Errorf("settings %+v, %v", s, err)
		}
		q, err := l.Channels(ctx, "v0")
		if err != nil || q.Now.Rx != 1 || q.Max.Rx < 1 {
			t.Errorf("channels %+v, %v", q, err)
		}
		if _, err := l.Module(ctx, "v0"); !ethtool.Unsupported(err) || !strings.Contains(err.Error(), "v0") {
			t.Errorf("module of a veth: %v", err)
		}
		if _, err := l.Flags(ctx, "v0"); !ethtool.Unsupported(err) {
			t.Errorf("flags of a veth: %v", err)
		}
		if _, err := l.Counters(ctx, "lo"); !ethtool.Unsupported(err) {
			t.Errorf("counters of lo: %v", err)
		}
		for _, name := range []string{"none0", "", "../lo", "a-name-that-is-too-long"} {
			if _, err := l.Driver(ctx, name); !errors.Is(err, syscall.ENODEV) {
				t.Errorf("driver of %q: %v", name, err)
			}
			if _, err := l.Module(ctx, name); !errors.Is(err, syscall.ENODEV) {
				t.Errorf("module of %q: %v", name, err)
			}
		}
	})
}

func TestEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var l Links
	if _, err := l.Driver(ctx, "lo"); !fault.Is(err, fault.Deadline) || !strings.Contains(err.Error(), "lo") {
		t.Errorf("err = %v, want a deadline that names the link", err)
	}
	if len(l.Stuck()) != 0 {
		t.Error("a call is stuck")
	}
}
