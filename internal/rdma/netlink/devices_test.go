package netlink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/nlmsg"
	"github.com/verbena-cloud/verbena/internal/rdma"
)

// kernel answers as nldev.c does: EINVAL about devices, ports and counters that are not there.
type kernel struct {
	absent   bool
	devices  map[uint32]string
	ports    uint32
	counters map[string]uint64 // nil = the driver has none
	qps      [][]uint32        // local numbers, by message of the dump
	old      bool              // before Linux 5.2
	twice    bool
}

func (k *kernel) ask(cmd uint16, dump bool, attrs []byte) ([][]byte, error) {
	if k.absent {
		return nil, syscall.EPROTONOSUPPORT
	}
	if cmd == cmdSysGet {
		if k.old {
			return nil, syscall.EINVAL
		}
		return [][]byte{nlmsg.Append(nil, attrSharing, []byte{1})}, nil
	}
	if cmd == cmdGet && dump {
		var out [][]byte
		for i, name := range k.devices {
			out = append(out, nlmsg.AppendUint32(named(i, name), attrPort, k.ports))
		}
		return out, nil
	}
	var index, port uint32
	for a := range nlmsg.Attributes(attrs) {
		switch a.Kind {
		case attrIndex:
			index, _ = a.Uint32()
		case attrPort:
			port, _ = a.Uint32()
		}
	}
	name, ok := k.devices[index]
	if !ok {
		return nil, syscall.EINVAL
	}
	body := named(index, name)
	switch cmd {
	case cmdGet:
		return [][]byte{nlmsg.AppendUint32(body, attrPort, k.ports)}, nil
	case cmdPortGet:
		return k.portDump(body), nil
	case cmdResGet:
		body = append(body, table(attrSummary, attrSumEntry, attrSumName, attrSumCount, map[string]uint64{"qp": 3})...)
	case cmdQPGet:
		return k.qpDump(body), nil
	case cmdCounters:
		if k.counters == nil || port < 1 || port > k.ports {
			return nil, syscall.EINVAL
		}
		body = append(body, table(attrCounters, attrCountEntry, attrCountName, attrCountNumber, k.counters)...)
	}
	if k.twice {
		return [][]byte{body, body}, nil
	}
	return [][]byte{body}, nil
}

func (k *kernel) portDump(head []byte) [][]byte {
	var out [][]byte
	for n := k.ports; n > 0; n-- {
		out = append(out, nlmsg.Append(nlmsg.AppendUint32(slices.Clone(head), attrPort, n), attrState, []byte{4}))
	}
	return out
}

func (k *kernel) qpDump(head []byte) [][]byte {
	var out [][]byte
	for _, part := range k.qps {
		var list []byte
		for _, n := range part {
			list = nlmsg.Append(list, attrQPEntry, nlmsg.AppendUint32(nlmsg.AppendUint32(nil, attrLocal, n), attrPID, n))
		}
		out = append(out, nlmsg.Append(slices.Clone(head), attrQPTable, list))
	}
	return out
}

func host() *kernel {
	return &kernel{devices: map[uint32]string{2: "mlx5_0", 11: "mlx5_10", 3: "mlx5_1"}, ports: 2, counters: map[string]uint64{"np_cnp_sent": 8}, qps: [][]uint32{{9, 1}, {4}}}
}

func TestAsk(t *testing.T) {
	k := host()
	devices, err := list(k.ask)
	if err != nil || len(devices) != 3 || devices[0].ID != mlx5() || devices[2].Name != "mlx5_10" {
		t.Errorf("%+v, %v", devices, err)
	}
	ps, err := ports(k.ask, mlx5())
	if err != nil || len(ps) != 2 || ps[0].Number != 1 || ps[1].State != rdma.Active {
		t.Errorf("%+v, %v", ps, err)
	}
	qps, err := pairs(k.ask, mlx5())
	if err != nil || len(qps) != 3 || qps[0].Local != 1 || qps[2].Local != 9 {
		t.Errorf("%+v, %v", qps, err)
	}
	sum, err := one(k.ask, cmdResGet, mlx5(), 0, decodeSummary)
	if err != nil || sum["qp"] != 3 {
		t.Errorf("%v, %v", sum, err)
	}
	cs, err := counters(k.ask, mlx5(), 1)
	if err != nil || cs["np_cnp_sent"] != 8 {
		t.Errorf("%v, %v", cs, err)
	}
	if s, err := sharing(k.ask); err != nil || s != rdma.Shared {
		t.Errorf("%v, %v", s, err)
	}
	k.devices, k.qps = nil, nil
	if got, err := list(k.ask); err != nil || got == nil || len(got) != 0 {
		t.Errorf("no devices: %v, %v", got, err)
	}
}

// TestGone: an index that has no device, and one that another device has now, are ENODEV and never the
// numbers of another device.
func TestGone(t *testing.T) {
	for what, id := range map[string]rdma.ID{"gone": {Index: 7, Name: "mlx5_0"}, "renamed": {Index: 2, Name: "rocep59s0"}} {
		k := host()
		for op, f := range map[string]func() error{
			"ports":     func() error { _, err := ports(k.ask, id); return err },
			"resources": func() error { _, err := one(k.ask, cmdResGet, id, 0, decodeSummary); return err },
			"qps":       func() error { _, err := pairs(k.ask, id); return err },
			"counters":  func() error { _, err := counters(k.ask, id, 1); return err },
			"none":      func() error { k.counters = nil; _, err := counters(k.ask, id, 1); return err },
		} {
			if err := f(); !errors.Is(err, syscall.ENODEV) || rdma.Absent(err) {
				t.Errorf("%s of a device that is %s: %v", op, what, err)
			}
		}
	}
}

func TestRefusals(t *testing.T) {
	k := host()
	if _, err := counters(k.ask, mlx5(), 3); !errors.Is(err, syscall.EINVAL) || rdma.Absent(err) || !strings.Contains(err.Error(), "ports 1 to 2") {
		t.Errorf("a port that is not there: %v", err)
	}
	k.counters = nil
	if _, err := counters(k.ask, mlx5(), 1); !rdma.Absent(err) {
		t.Errorf("a driver without counters: %v", err)
	}
	k.old = true
	if _, err := sharing(k.ask); !rdma.Absent(err) {
		t.Errorf("a kernel that does not tell: %v", err)
	}
	silent := func(uint16, bool, []byte) ([][]byte, error) { return [][]byte{nil}, nil }
	if _, err := sharing(silent); !rdma.Absent(err) {
		t.Errorf("an answer without the mode: %v", err)
	}
	k.twice = true
	if _, err := one(k.ask, cmdResGet, mlx5(), 0, decodeSummary); !errors.Is(err, nlmsg.ErrMalformed) {
		t.Errorf("two answers: %v", err)
	}
	k.absent = true
	if _, err := counters(k.ask, mlx5(), 1); !errors.Is(err, syscall.EPROTONOSUPPORT) {
		t.Errorf("%v", err)
	}
	for _, f := range []func(asker) error{
		func(a asker) error { _, err := list(a); return err },
		func(a asker) error { _, err := ports(a, mlx5()); return err },
		func(a asker) error { _, err := pairs(a, mlx5()); return err },
		func(a asker) error { _, err := one(a, cmdResGet, mlx5(), 0, decodeSummary); return err },
		func(a asker) error { _, err := sharing(a); return err },
	} {
		torn := func(uint16, bool, []byte) ([][]byte, error) { return [][]byte{{9, 0, 0, 0}}, nil }
		if err := f(torn); !errors.Is(err, nlmsg.ErrMalformed) {
			t.Errorf("torn: %v", err)
		}
		if err := f(k.ask); !errors.Is(err, syscall.EPROTONOSUPPORT) {
			t.Errorf("absent: %v", err)
		}
	}
}

// TestT34_NamespaceMode: exclusive, shared, and kernels that know one mode alone and do not tell.
func TestT34_NamespaceMode(t *testing.T) {
	for mode, want := range map[byte]rdma.Sharing{0: rdma.Exclusive, 1: rdma.Shared} {
		answer := func(uint16, bool, []byte) ([][]byte, error) {
			return [][]byte{nlmsg.Append(nil, attrSharing, []byte{mode})}, nil
		}
		if s, err := sharing(answer); err != nil || s != want {
			t.Errorf("%v, %v", s, err)
		}
	}
	k := host()
	if k.old = true; !rdma.Absent(second(sharing(k.ask))) {
		t.Error("a kernel before 5.2 is a failure")
	}
}

// TestT37_CountersOfOtherDrivers: one that keeps none is told apart from a port that is not there, and what has no
// number is an error, never a zero.
func TestT37_CountersOfOtherDrivers(t *testing.T) {
	k := host()
	k.counters = map[string]uint64{"RNR sent": 1<<64 - 1, "": 0}
	if c, err := counters(k.ask, mlx5(), 1); !errors.Is(err, nlmsg.ErrMalformed) {
		t.Errorf("a counter without a name: %v, %v", c, err)
	}
	delete(k.counters, "")
	if c, err := counters(k.ask, mlx5(), 1); err != nil || c["RNR sent"] != 1<<64-1 {
		t.Errorf("%v, %v", c, err)
	}
	k.counters = nil
	if c, err := counters(k.ask, mlx5(), 1); !rdma.Absent(err) || c != nil {
		t.Errorf("none: %v, %v", c, err)
	}
	if c, err := counters(k.ask, mlx5(), 3); rdma.Absent(err) || err == nil || c != nil {
		t.Errorf("no such port: %v, %v", c, err)
	}
}

func TestPrograms(t *testing.T) {
	s := Devices{Proc: fstest.MapFS{"12/comm": {Data: []byte("ib_write_bw\n")}}}
	list := []rdma.QP{{PID: 12}, {PID: 12}, {PID: 13}, {Program: "ib_core"}}
	s.programs(list)
	for i, want := range []string{"ib_write_bw", "ib_write_bw", "", "ib_core"} {
		if list[i].Program != want {
			t.Errorf("%d: %q", i, list[i].Program)
		}
	}
}

func TestDeadline(t *testing.T) {
	var s Devices
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range []error{
		second(s.List(ctx)), second(s.Ports(ctx, mlx5())), second(s.Resources(ctx, mlx5())), second(s.Counters(ctx, mlx5(), 1)), second(s.Sharing(ctx)),
	} {
		if !fault.Is(err, fault.Deadline) {
			t.Errorf("without time: %v", err)
		}
	}
	if _, more, err := s.QueuePairs(ctx, mlx5(), -1); more || !strings.Contains(fmt.Sprint(err), "mlx5_0") {
		t.Errorf("%v", err)
	}
	if len(s.Stuck()) != 0 {
		t.Errorf("stuck: %v", s.Stuck())
	}
}

func second[T any](_ T, err error) error { return err }

// TestLive asks the kernel that runs the test: it has an RDMA core and says about each device what it can,
// or it has not and says so.
func TestLive(t *testing.T) {
	var s Devices
	mode, err := s.Sharing(t.Context())
	if errors.Is(err, rdma.ErrAbsent) {
		t.Skipf("no RDMA core to ask: %v", err)
	}
	if err != nil && !rdma.Absent(err) {
		t.Error(err)
	}
	devices, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %+v", mode, devices)
	for _, d := range devices {
		ports, err := s.Ports(t.Context(), d.ID)
		if err != nil || len(ports) != d.Ports {
			t.Errorf("%s: %+v, %v", d, ports, err)
		}
		if sum, err := s.Resources(t.Context(), d.ID); err != nil || len(sum) == 0 {
			t.Errorf("%s: %v, %v", d, sum, err)
		}
		if qps, more, err := s.QueuePairs(t.Context(), d.ID, 10); err != nil || len(qps) > 10 || more && len(qps) < 10 {
			t.Errorf("%s: %v, %v, %v", d, qps, more, err)
		}
		for _, p := range ports {
			if c, err := s.Counters(t.Context(), d.ID, p.Number); err != nil && !rdma.Absent(err) {
				t.Errorf("%s: %v, %v", d, c, err)
			}
		}
	}
	if _, err := s.Ports(t.Context(), rdma.ID{Index: 1 << 30, Name: "none"}); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("a device that is not there: %v", err)
	}
}
