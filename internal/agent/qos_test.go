package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/verbena-cloud/verbena/internal/dcb"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
	"github.com/verbena-cloud/verbena/internal/wire"
)

const (
	net0 = "ens24f0np0"
	net1 = "ens24f1np1"
)

// lossless makes the fabric ask for what no driver has by itself.
func lossless(w *world) {
	for i := range w.want.PFs {
		w.want.PFs[i].QoS = &wire.QoS{Priority: 5, DSCP: 40, CNPDSCP: 50, Apply: true}
	}
}

// isLossless checks kernel and report.
func isLossless(t *testing.T, w *world, keys ...string) {
	t.Helper()
	w.slow()
	for _, key := range keys {
		p := w.pf(key)
		s, err := w.k.Ports().Get(t.Context(), p.Netdev)
		if err != nil {
			t.Fatal(err)
		}
		want := []dcb.App{{Selector: dcb.DSCP, Protocol: 50, Priority: 6}, {Selector: dcb.DSCP, Protocol: 40, Priority: 5}}
		if s.PFC.Enabled != dcb.Of(5) || !slices.Equal(s.Apps, want) {
			t.Errorf("PF %s: PFC %s, %v", key, s.PFC.Enabled, s.Apps)
		}
		if v, err := w.k.Read(t.Context(), "class/net/"+p.Netdev+"/ecn/roce_np/cnp_dscp"); err != nil || v != "50" {
			t.Errorf("PF %s: CNP DSCP %s, %v", key, v, err)
		}
		if q := p.QoS; q == nil || q.State != "ok" || len(q.Steps)+len(q.Held) > 0 || !p.Ready {
			t.Errorf("PF %s: ready %t, %+v", key, p.Ready, q)
		}
	}
}

func TestPortsAreSetForTheirFabric(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.now("commission")
		if q := w.pf(pf0).QoS; q == nil || q.State != "" || q.DCBX != "host ieee" || q.PFC != "none" {
			t.Errorf("a port that no fabric asks of: %+v", q)
		}
		lossless(w)
		w.want.PFs[0].QoS = &wire.QoS{Priority: 5, DSCP: 40, CNPDSCP: 50} // look only
		w.now("one is set, one looked at")
		isLossless(t, w, pf1)
		if q := w.pf(pf0).QoS; q.State != "drift" || len(q.Steps) == 0 || !w.pf(pf0).Ready {
			t.Errorf("%+v", q)
		}
		lossless(w)
		w.now("both")
		isLossless(t, w, pf0, pf1)
		if q := w.pf(pf0).QoS; len(q.Lacks) != 1 || !strings.Contains(q.Lacks[0], "4791:5 (invalid argument)") {
			t.Errorf("lacks %q", q.Lacks)
		}
		if !w.told("NICQoSSet", "prio-pfc all:off 5:on") {
			t.Error("not told of")
		}
		w.boot()
		w.now("a new agent does not ask the driver again for what it refused")
	})
}

func TestPortsDriftedByHandAreSetBack(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		lossless(w)
		w.now("commission")
		if err := w.k.Ports().Reset(net0, func(s *dcb.State) {
			s.PFC.Enabled = 0xff
			s.Apps = []dcb.App{{Selector: dcb.DSCP, Protocol: 40, Priority: 0}}
		}); err != nil {
			t.Fatal(err)
		}
		if err := w.k.Hand("class/net/"+net0+"/ecn/roce_np/cnp_dscp", "0"); err != nil {
			t.Fatal(err)
		}
		<-time.After(6 * time.Minute)
		if q := w.pf(pf0).QoS; q.State != "drift" || q.PFC != "0,1,2,3,4,5,6,7" {
			t.Errorf("%+v", q)
		}
		w.now("set back")
		isLossless(t, w, pf0, pf1)
	})
}

// TestFlowControlWaitsForGuests: a change that takes the link down is not made under a running guest.
func TestFlowControlWaitsForGuests(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		lossless(w)
		w.now("the fabric asks for more")
		isLossless(t, w, pf1)
		if q := w.pf(pf0).QoS; q.State != "drift" || len(q.Held) != 1 || len(q.Steps) != 0 || q.PFC != "none" || len(q.Apps) != 2 || !strings.Contains(q.Reason, "1 VFs of the port are in use") {
			t.Errorf("%+v", q)
		}
		w.vm("a").Power = "off"
		w.now("off")
		isLossless(t, w, pf0)
		w.vm("a").Power = "on"
		w.now("on again")
		ready("a")(t, w)
	})
}

// TestPortsAreSetBeforeTheFirstVM: a reserved VF is no user, so after a reboot everything is set first.
func TestPortsAreSetBeforeTheFirstVM(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		lossless(w)
		w.now("create")
		w.reboot()
		w.faults.ForgetLog()
		w.tellOnly()
		if err := w.settle(); err != nil {
			t.Fatal(err)
		}
		log := w.faults.Log()
		at := func(word string) int {
			return slices.IndexFunc(log, func(line string) bool { return strings.Contains(line, word) })
		}
		set, last, began := at(net0+" prio-pfc"), at("dev "+net0+" dscp-prio 40:5"), at("virsh start")
		if set < 0 || last < set || began < last {
			t.Errorf("PFC in step %d, DSCP in %d, start in %d: %q", set, last, began, log)
		}
		isLossless(t, w, pf0, pf1)
	})
}

// TestT41_PortsThatAreNotOurs: each keeps its VFs in the pool, is told of, and is left as it is.
func TestT41_PortsThatAreNotOurs(t *testing.T) {
	for name, c := range map[string]struct {
		edit          func(*sysfstest.Config, *world)
		state, reason string
		held, written bool
	}{
		"lldpad":           {func(_ *sysfstest.Config, w *world) { w.lldp = []string{"lldpad"} }, "refused", "systemctl disable --now lldpad", true, false},
		"firmware of ice":  {func(c *sysfstest.Config, _ *world) { c.Cards[0].Driver, c.Cards[0].OFED = "ice", false }, "refused", "fw-lldp-agent off", true, false},
		"firmware of mlx5": {func(c *sysfstest.Config, _ *world) { c.Cards[0].PFs[0].DCBX = new(dcb.Mode(0)) }, "refused", "dcb dcbx set dev " + net0 + " host ieee", true, false},
		"igb":              {func(c *sysfstest.Config, _ *world) { c.Cards[0].Driver, c.Cards[0].OFED = "igb", false }, "absent", "driver igb has no DCB", false, false},
		"takes nothing":    {func(c *sysfstest.Config, _ *world) { c.Cards[0].PFs[0].Quirks.ForgetsPFC = true }, "drift", "reads back differently", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := host(4)
			pre := &world{}
			c.edit(&cfg, pre)
			scene(t, cfg, func(t *testing.T, w *world) {
				w.lldp = pre.lldp
				lossless(w)
				w.now("commission")
				w.faults.ForgetLog()
				<-time.After(6 * time.Minute)
				w.now("nothing is tried over and over")
				for _, p := range w.a.inventory().PFs {
					if p.Netdev != net0 {
						continue
					}
					if q := p.QoS; !p.Ready || q.State != c.state || !strings.Contains(q.Reason, c.reason) || (len(q.Held) > 0) != c.held {
						t.Errorf("ready %t (%s), %+v", p.Ready, p.Reason, q)
					}
				}
				if c.written != w.told("NICQoSRefused", c.reason) {
					t.Errorf("events %+v", w.a.events.peek())
				}
			})
		})
	}
}

func TestT42_ManagementPortIsNotSet(t *testing.T) {
	cfg := host(4)
	cfg.Route = net0
	scene(t, cfg, func(t *testing.T, w *world) {
		lossless(w)
		if err := w.rounds(2); err == nil {
			t.Error("VFs on the management port")
		}
		if q := w.pf(pf0).QoS; q.State != "refused" || !strings.Contains(q.Reason, "default route") || q.PFC != "none" {
			t.Errorf("%+v", q)
		}
		w.want.PFs[0].AllowManagement = true
		w.now("allowed")
		isLossless(t, w, pf0, pf1)
	})
}

func TestUnreadPort(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		lossless(w)
		w.now("commission")
		w.k.Break("dcb/"+net0, errIO)
		<-time.After(6 * time.Minute)
		if q := w.pf(pf0).QoS; q.State != "unknown" || q.Reason == "" || !w.pf(pf0).Ready {
			t.Errorf("%+v", q)
		}
	})
}

// TestVFStatsShowWithTraffic: only a count over 0 shows that a driver counts.
func TestVFStatsShowWithTraffic(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.add("a", vf(pf0, 0, mac1, 101))
		w.now("create")
		if w.pf(pf0).Caps.VFStats {
			t.Error("known before it could be")
		}
		<-time.After(6 * time.Minute)
		w.now("later")
		if !w.pf(pf0).Caps.VFStats || w.pf(pf1).Caps.VFStats {
			t.Errorf("%+v, %+v", w.pf(pf0).Caps, w.pf(pf1).Caps)
		}
	})
}

func TestLLDPAgents(t *testing.T) {
	dir := t.TempDir()
	for pid, comm := range map[string]string{"1": "systemd", "70": "lldpad", "71": "lldpad", "72": "lldpd", "self": "lldpad"} {
		if err := os.MkdirAll(filepath.Join(dir, pid), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, pid, "comm"), fmt.Appendln(nil, comm), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := lldpAgents(dir)(t.Context()); err != nil || !slices.Equal(got, []string{"lldpad"}) {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := lldpAgents(filepath.Join(dir, "none"))(t.Context()); err == nil {
		t.Error("no /proc, and no error")
	}
}
