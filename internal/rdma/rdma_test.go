package rdma_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/verbena-cloud/verbena/internal/rdma"
)

func TestWords(t *testing.T) {
	for _, c := range []struct {
		got  fmt.Stringer
		want string
	}{
		{rdma.ID{Index: 3, Name: "mlx5_0"}, "mlx5_0"},
		{rdma.ChannelAdapter, "ca"}, {rdma.RNIC, "rnic"}, {rdma.Unspecified, "unspecified"}, {rdma.NodeType(0), "node-0"}, {rdma.NodeType(99), "node-99"},
		{rdma.Down, "DOWN"}, {rdma.Active, "ACTIVE"}, {rdma.PortState(5), "ACTIVE_DEFER"}, {rdma.PortState(9), "state-9"},
		{rdma.LinkUp, "LinkUp"}, {rdma.Disabled, "Disabled"}, {rdma.PhysState(7), "Phy Test"}, {rdma.PhysState(0), "phys-0"},
		{rdma.RC, "RC"}, {rdma.UD, "UD"}, {rdma.QPType(1), "GSI"}, {rdma.QPType(7), "type-7"}, {rdma.QPType(8), "RAW_PACKET"}, {rdma.QPType(0xff), "DRIVER"},
		{rdma.Reset, "RESET"}, {rdma.ReadyToSend, "RTS"}, {rdma.Failed, "ERR"}, {rdma.QPState(7), "state-7"},
		{rdma.Shared, "shared"}, {rdma.Exclusive, "exclusive"}, {rdma.Sharing(2), "mode-2"},
	} {
		if got := c.got.String(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestLinkLayer(t *testing.T) {
	for protocol, want := range map[string]string{"roce": "Ethernet", "iw": "Ethernet", "usnic": "Ethernet", "ib": "InfiniBand", "opa": "InfiniBand", "": "", "new": ""} {
		if got := (rdma.Device{Protocol: protocol}).LinkLayer(); got != want {
			t.Errorf("%q: %q", protocol, got)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{fmt.Errorf("x: %w", rdma.ErrAbsent), true}, {syscall.EOPNOTSUPP, true}, {syscall.ENODEV, false}, {syscall.EINVAL, false}, {nil, false},
		{rdma.Gone(rdma.ID{Name: "mlx5_0"}), false},
	} {
		if got := rdma.Absent(c.err); got != c.want {
			t.Errorf("%v: %v", c.err, got)
		}
	}
	if err := rdma.Gone(rdma.ID{Name: "mlx5_0"}); !errors.Is(err, syscall.ENODEV) {
		t.Error(err)
	}
}
