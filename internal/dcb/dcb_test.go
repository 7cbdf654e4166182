package dcb_test

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/verbena-cloud/verbena/internal/dcb"
)

func TestCommands(t *testing.T) {
	for _, c := range []struct {
		change dcb.Change
		want   string
	}{
		{dcb.SetMode(dcb.HostIEEE), "dcb dcbx set dev ens1 host ieee"},
		{dcb.SetPFC{Enabled: dcb.Of(3)}, "dcb pfc set dev ens1 prio-pfc all:off 3:on"},
		{dcb.SetPFC{Delay: 40}, "dcb pfc set dev ens1 prio-pfc all:off delay 40"},
		{dcb.AddApp{Selector: dcb.DSCP, Protocol: 26, Priority: 3}, "dcb app add dev ens1 dscp-prio 26:3"},
		{dcb.AddApp{Selector: dcb.EtherType, Protocol: 0x8915, Priority: 3}, "dcb app add dev ens1 ethtype-prio 0x8915:3"},
		{dcb.DelApp{Selector: dcb.Datagram, Protocol: 4791, Priority: 3}, "dcb app del dev ens1 dgram-port-prio 4791:3"},
		{dcb.SetTrust{dcb.DSCP, dcb.PCP}, "dcb apptrust set dev ens1 order dscp pcp"},
		{dcb.SetMaxRate{3: 5_000_000}, "dcb maxrate set dev ens1 tc-maxrate 0:0kbit 1:0kbit 2:0kbit 3:5000000kbit 4:0kbit 5:0kbit 6:0kbit 7:0kbit"},
		{dcb.SetBuffer{Prio: [8]uint8{3: 1}, Size: [8]uint32{1: 262144}}, "dcb buffer set dev ens1 prio-buffer 0:0 1:0 2:0 3:1 4:0 5:0 6:0 7:0 buffer-size 0:0 1:262144 2:0 3:0 4:0 5:0 6:0 7:0"},
		{
			dcb.SetETS{TxBW: [8]uint8{0: 50, 3: 50}, TSA: [8]dcb.TSA{0: dcb.Shares, 3: dcb.Shares}, PrioTC: [8]uint8{3: 3}},
			"dcb ets set dev ens1 willing off tc-tsa 0:ets 1:strict 2:strict 3:ets 4:strict 5:strict 6:strict 7:strict tc-bw 0:50 1:0 2:0 3:50 4:0 5:0 6:0 7:0 prio-tc 0:0 1:0 2:0 3:3 4:0 5:0 6:0 7:0",
		},
	} {
		if got := c.change.Command("ens1"); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

func TestHolds(t *testing.T) {
	host := dcb.HostIEEE
	s := dcb.State{
		Mode:    &host,
		PFC:     &dcb.PFC{Enabled: dcb.Of(3), Delay: 7},
		ETS:     &dcb.ETS{TxBW: [8]uint8{100}},
		Apps:    []dcb.App{{Selector: dcb.DSCP, Protocol: 26, Priority: 3}},
		Trust:   []dcb.Selector{dcb.DSCP},
		MaxRate: &[8]uint64{3: 5_000_000},
		Buffer:  &dcb.Buffer{Size: [8]uint32{1000, 262400}},
	}
	for _, c := range []struct {
		change dcb.Change
		want   bool
	}{
		{dcb.SetMode(dcb.HostIEEE), true},
		{dcb.SetMode(dcb.LLD), false},
		{dcb.SetPFC{Enabled: dcb.Of(3)}, true},
		{dcb.SetPFC{Enabled: dcb.Of(3), Delay: 9}, false},
		{dcb.SetPFC{Enabled: dcb.Of(3, 4)}, false},
		{dcb.SetETS{TxBW: [8]uint8{100}}, true},
		{dcb.SetETS{TxBW: [8]uint8{100}, PrioTC: [8]uint8{3: 1}}, false},
		{dcb.AddApp{Selector: dcb.DSCP, Protocol: 26, Priority: 3}, true},
		{dcb.AddApp{Selector: dcb.DSCP, Protocol: 26, Priority: 4}, false},
		{dcb.DelApp{Selector: dcb.DSCP, Protocol: 26, Priority: 4}, true},
		{dcb.DelApp{Selector: dcb.DSCP, Protocol: 26, Priority: 3}, false},
		{dcb.SetTrust{dcb.DSCP}, true},
		{dcb.SetTrust{dcb.PCP}, false},
		{dcb.SetMaxRate{3: 5_040_000}, true}, // a driver rounds
		{dcb.SetMaxRate{3: 9_000_000}, false},
		{dcb.SetMaxRate{2: 100_000, 3: 5_000_000}, false},
		{dcb.SetBuffer{Size: [8]uint32{1000, 262144}}, true}, // a driver rounds up to its cells
		{dcb.SetBuffer{Size: [8]uint32{1000, 300000}}, false},
		{dcb.SetBuffer{Prio: [8]uint8{1}, Size: [8]uint32{1000, 262144}}, false},
	} {
		if got := c.change.Holds(s); got != c.want {
			t.Errorf("%s: holds %v", c.change.Command("x"), got)
		}
		if !c.change.Told(s) || c.change.Told(dcb.State{}) || c.change.Holds(dcb.State{}) {
			t.Errorf("%s: told of where nothing is, or not where it is", c.change.Command("x"))
		}
	}
}

func TestWords(t *testing.T) {
	if got := fmt.Sprintf("%s|%s|%s|%s", dcb.Mode(0), dcb.LLD|dcb.CEE, dcb.Of(), dcb.Of(0, 7)); got != "firmware|lld-managed cee|none|0,7" {
		t.Error(got)
	}
	if dcb.Mode(0).Writable() || !dcb.HostIEEE.Writable() || (dcb.Host | dcb.LLD).Writable() {
		t.Error("who may write")
	}
	if got := fmt.Sprint(dcb.Strict, dcb.Shaper, dcb.Shares, dcb.Vendor, dcb.TSA(9), dcb.Stream, dcb.AnyPort, dcb.Selector(8)); got != "strict cb-shaper ets vendor tsa-9 stream-port port selector-8" {
		t.Error(got)
	}
	if !dcb.Unsupported(fmt.Errorf("x: %w", syscall.EOPNOTSUPP)) || dcb.Unsupported(syscall.EINVAL) || dcb.Of(3).Has(-1) || dcb.Of(3).Has(8) {
		t.Error("unsupported, or a priority that does not exist")
	}
}
