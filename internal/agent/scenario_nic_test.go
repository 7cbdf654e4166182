package agent

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/verbena-cloud/verbena/internal/dcb"
	"github.com/verbena-cloud/verbena/internal/rtnl"
)

// TestT35_RDMADeviceGoneForAWhile: in exclusive mode a container that has the PF's RDMA device takes it out of the
// host's sight. The port is the same one, its VFs and VMs are not touched, and when the device comes back, which needs
// no restart, all is as before.
func TestT35_RDMADeviceGoneForAWhile(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		before := w.pf(pf0)
		if before.RDMADevice == "" || before.Firmware == "" {
			t.Fatalf("%+v", before)
		}
		w.faults.ForgetLog()
		for _, path := range []string{"class/infiniband/mlx5_0", "bus/pci/devices/" + dev0 + "/infiniband"} {
			w.k.Hide(path, 1<<30)
		}
		<-time.After(6 * time.Minute)
		w.now("gone")
		gone := w.pf(pf0)
		if gone.RDMADevice != "" || gone.Key != before.Key || gone.Card != before.Card || !gone.Ready || len(gone.VFs) != len(before.VFs) {
			t.Errorf("while it is gone: %+v", gone)
		}
		ready("a")(t, w)
		w.k.Settle()
		w.now("back")
		if back := w.pf(pf0); back.RDMADevice != before.RDMADevice || back.Firmware != before.Firmware || back.Key != before.Key || back.Card != before.Card {
			t.Errorf("back: %+v, was %+v", back, before)
		}
		if log := w.faults.Log(); len(log) > 0 {
			t.Errorf("something was done about it: %q", log)
		}
	})
}

// TestT37_CountersThatAnswerNonsense: statistics that can't be read say nothing about the driver and hold up nothing;
// what the kernel tells later counts.
func TestT37_CountersThatAnswerNonsense(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		w.a.d.Stats = nonsense{w.k, errIO}
		<-time.After(6 * time.Minute)
		w.now("unreadable")
		if p := w.pf(pf0); p.Caps.VFStats || !p.Ready {
			t.Errorf("%+v", p.Caps)
		}
		ready("a")(t, w)
		w.a.d.Stats = nonsense{w.k, nil} // a driver that counts nothing is no driver that counts
		<-time.After(6 * time.Minute)
		w.now("zeros")
		if w.pf(pf0).Caps.VFStats {
			t.Error("zeros were taken for counts")
		}
		w.a.d.Stats = w.k
		<-time.After(6 * time.Minute)
		w.now("counted")
		if !w.pf(pf0).Caps.VFStats {
			t.Error("counts are not seen")
		}
	})
}

// nonsense is a kernel whose statistics fail, or are all zero.
type nonsense struct {
	rtnl.StatsReader
	err error
}

func (n nonsense) VFStats(ctx context.Context, link string) ([]rtnl.VFStats, error) {
	if n.err != nil {
		return nil, n.err
	}
	list, err := n.StatsReader.VFStats(ctx, link)
	for i := range list {
		list[i] = rtnl.VFStats{Index: list[i].Index}
	}
	return list, err
}

// TestT41_LLDPAgentChangesAPort: a program that sets DCB by what the switch says comes to a port that was set. It is
// named and not fought with; when it is gone for good, the port is set again.
func TestT41_LLDPAgentChangesAPort(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		lossless(w)
		w.now("commission")
		isLossless(t, w, pf0, pf1)
		w.lldp = []string{"lldpad"}
		for range 3 { // it flaps
			if err := w.k.Ports().Reset(net0, func(s *dcb.State) { s.PFC.Enabled ^= dcb.Of(0, 5) }); err != nil {
				t.Fatal(err)
			}
			w.faults.ForgetLog()
			<-time.After(6 * time.Minute)
			w.now("it runs")
			if log := w.faults.Log(); slices.ContainsFunc(log, func(line string) bool { return strings.HasPrefix(line, "dcb ") }) {
				t.Fatalf("fought with: %q", log)
			}
		}
		q := w.pf(pf0).QoS
		if q.State != "refused" || !strings.Contains(q.Reason, "systemctl disable --now lldpad") || len(q.Held) == 0 || !w.pf(pf0).Ready {
			t.Errorf("%+v", q)
		}
		if q := w.pf(pf1).QoS; q.State != "ok" || !strings.Contains(q.Reason, "lldpad runs and may change it at any time") {
			t.Errorf("the port that it left alone: %+v", q)
		}
		w.lldp = nil
		<-time.After(6 * time.Minute)
		w.now("it is gone")
		isLossless(t, w, pf0, pf1)
	})
}
