package netlink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-cloud/verbena/internal/devlink"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/nlmsg"
)

const number = 0x15 // of devlink in the kernel below

// kernel answers as generic netlink and net/devlink do.
type kernel struct {
	none    error // the controller's refusal
	devices []string
	refuse  error // of every question about one device
	other   bool  // answers are about another device
	twice   bool
	asked   int
}

func (k *kernel) ask(r nlmsg.Request) ([][]byte, error) {
	k.asked++
	if r.Protocol != unix.NETLINK_GENERIC || len(r.Body) < headerSize {
		return nil, syscall.EINVAL
	}
	if r.Kind == controller {
		return [][]byte{nlmsg.Append(request(1, ctrlVersion, nil), ctrlID, []byte{number, 0})}, k.none
	}
	if r.Kind != number {
		return nil, syscall.EOPNOTSUPP
	}
	if r.Dump { // several messages, in the order in which the drivers came
		var out [][]byte
		for _, name := range k.devices {
			out = append(out, append(request(3, familyVersion, nil), handle(devlink.PCI(name))...))
		}
		return out, nil
	}
	if k.refuse != nil {
		return nil, k.refuse
	}
	d, err := decodeDevice(r.Body)
	if err != nil {
		return nil, err
	}
	if k.other {
		d.Name = "0000:5e:00.0"
	}
	body := info(d, "mlx5_core", "running fw 22.31.1014")
	if r.Body[0] == cmdEswitchGet {
		body = nlmsg.Append(append(request(cmdEswitchGet, familyVersion, nil), handle(d)...), attrEswitchMode, []byte{1, 0})
	}
	if k.twice {
		return [][]byte{body, body}, nil
	}
	return [][]byte{body}, nil
}

func TestList(t *testing.T) {
	littleEndian(t)
	k := &kernel{devices: []string{"0000:3b:00.10", "0000:3b:00.2", "0000:3b:00.2"}}
	got, err := list(k.ask)
	if want := []devlink.Device{devlink.PCI("0000:3b:00.2"), devlink.PCI("0000:3b:00.10")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := list((&kernel{}).ask); err != nil || got == nil || len(got) != 0 {
		t.Errorf("no devices: %v, %v", got, err)
	}
}

// TestAbsent: a kernel without devlink is told apart from every other refusal.
func TestAbsent(t *testing.T) {
	littleEndian(t)
	for _, c := range []struct {
		err    error
		absent bool
	}{
		{syscall.ENOENT, true}, {syscall.EPROTONOSUPPORT, true}, {syscall.EAFNOSUPPORT, true}, {syscall.EPERM, false}, {syscall.ENOBUFS, false},
	} {
		_, err := list((&kernel{none: c.err}).ask)
		if errors.Is(err, devlink.ErrAbsent) != c.absent || devlink.Absent(err) != c.absent || !errors.Is(err, c.err) {
			t.Errorf("%v: %v", c.err, err)
		}
		if _, err := one((&kernel{none: c.err}).ask, cmdInfoGet, devlink.PCI("0000:3b:00.0"), decodeInfo); errors.Is(err, devlink.ErrAbsent) != c.absent {
			t.Errorf("%v: %v", c.err, err)
		}
	}
}

func TestOne(t *testing.T) {
	littleEndian(t)
	d := devlink.PCI("0000:3b:00.0")
	i, err := one((&kernel{}).ask, cmdInfoGet, d, decodeInfo)
	if err != nil || i.Firmware() != "22.31.1014" {
		t.Errorf("%+v, %v", i, err)
	}
	e, err := one((&kernel{}).ask, cmdEswitchGet, d, decodeEswitch)
	if err != nil || e.Mode == nil || *e.Mode != devlink.Switchdev {
		t.Errorf("%+v, %v", e, err)
	}
	for what, c := range map[string]struct {
		k    *kernel
		want error
	}{
		"another device": {&kernel{other: true}, nlmsg.ErrMalformed},
		"two answers":    {&kernel{twice: true}, nlmsg.ErrMalformed},
		"no instance":    {&kernel{refuse: syscall.ENODEV}, syscall.ENODEV},
		"no function":    {&kernel{refuse: syscall.EOPNOTSUPP}, syscall.EOPNOTSUPP},
		"firmware hangs": {&kernel{refuse: fmt.Errorf("firmware is not ready: %w", syscall.EBUSY)}, syscall.EBUSY},
	} {
		if _, err := one(c.k.ask, cmdInfoGet, d, decodeInfo); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestExplain: each refusal says what to do, and keeps its cause.
func TestExplain(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{devlink.ErrAbsent, "CONFIG_NET_DEVLINK"}, {syscall.ENODEV, "instance"}, {syscall.EOPNOTSUPP, "no function"}, {syscall.EPERM, "root"}, {syscall.EIO, "input"},
	} {
		if err := explain(c.err); !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.err, err)
		}
	}
}

func TestNames(t *testing.T) {
	var s Devices
	for _, d := range []devlink.Device{{}, {Bus: "pci"}, {Bus: "pci", Name: "a/b"}, {Bus: "p\x00", Name: "x"}, {Bus: "pci", Name: strings.Repeat("x", 99)}} {
		if _, err := s.Info(t.Context(), d); !errors.Is(err, syscall.ENODEV) {
			t.Errorf("%+v: %v", d, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Eswitch(ctx, devlink.PCI("0000:3b:00.0")); !fault.Is(err, fault.Deadline) || !strings.Contains(err.Error(), "0000:3b:00.0") {
		t.Errorf("without time: %v", err)
	}
	if _, err := s.List(ctx); !fault.Is(err, fault.Deadline) {
		t.Errorf("without time: %v", err)
	}
	if len(s.Stuck()) != 0 {
		t.Errorf("stuck: %v", s.Stuck())
	}
}

// TestLive asks the kernel that runs the test: it has devlink and says about each instance what it can, or
// it has not and says so.
func TestLive(t *testing.T) {
	var s Devices
	got, err := s.List(t.Context())
	if devlink.Absent(err) {
		if !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.EPROTONOSUPPORT) && !errors.Is(err, syscall.EAFNOSUPPORT) {
			t.Errorf("absent for another reason: %v", err)
		}
		t.Skipf("no devlink to ask: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range got {
		i, err := s.Info(t.Context(), d)
		if err != nil && !devlink.Absent(err) {
			t.Errorf("%s: %v", d, err)
		}
		e, err := s.Eswitch(t.Context(), d)
		if err != nil && !devlink.Absent(err) && !(errors.Is(err, syscall.EPERM) && os.Geteuid() != 0) {
			t.Errorf("%s: %v", d, err)
		}
		t.Logf("%s: %+v %+v", d, i, e)
	}
	if _, err := s.Info(t.Context(), devlink.Device{Bus: "none", Name: "none"}); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("a device that is not there: %v", err)
	}
}
