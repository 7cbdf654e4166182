package nicqos

import (
	"strings"
	"testing"

	"github.com/verbena-cloud/verbena/internal/dcb"
)

// TestT41_WhoOwnsDCB: whoever else sets a port is named with the way to stop it, nothing is set against it, and what
// differs stays in sight.
func TestT41_WhoOwnsDCB(t *testing.T) {
	for owner, c := range map[string]struct {
		own func(*Have)
		way string
	}{
		"lldpad":            {func(h *Have) { h.Agents = []string{"lldpad"} }, "systemctl disable --now lldpad"},
		"both agents":       {func(h *Have) { h.Agents = []string{"lldpad", "openlldpd"} }, "lldpad, openlldpd runs"},
		"firmware of ice":   {func(h *Have) { h.Driver, h.DCB.Mode = "ice", new(dcb.LLD|dcb.IEEE) }, "fw-lldp-agent off"},
		"firmware of i40e":  {func(h *Have) { h.Driver, h.DCB.Mode = "i40e", new(dcb.LLD|dcb.CEE) }, "disable-fw-lldp on"},
		"firmware and host": {func(h *Have) { h.Driver, h.DCB.Mode = "bnxt_en", new(dcb.LLD|dcb.Host|dcb.IEEE) }, "host ieee"},
	} {
		h := plain()
		c.own(&h)
		p := Make(For(3, 26, 48), pci, h)
		if p.State != Refused || len(p.Steps) > 0 || len(p.Held) == 0 || !strings.Contains(p.Reason, c.way) {
			t.Errorf("%s: %+v", owner, p)
		}
		// What it set as wanted is left alone, and one that runs is told of all the same.
		h = do(t, h, p.Held)
		if p := Make(For(3, 26, 48), pci, h); p.State != OK || len(p.Steps)+len(p.Held) > 0 || len(h.Agents) > 0 && !strings.Contains(p.Reason, "may change it") {
			t.Errorf("%s, as wanted: %+v", owner, p)
		}
	}
}

// TestT42_GuardedPort: nothing at all is set on the port that carries the way to the server, files neither.
func TestT42_GuardedPort(t *testing.T) {
	h := plain()
	h.Guard = "it carries the default route"
	p := Make(For(3, 26, 48), pci, h)
	if p.State != Refused || len(p.Steps) > 0 || len(p.Held) != 6 || p.Reason != h.Guard {
		t.Errorf("%+v", p)
	}
	h = do(t, h, p.Held)
	h.Files["class/net/ens1/ecn/roce_np/cnp_dscp"] = "0"
	if p := Make(For(3, 26, 48), pci, h); p.State != Refused || len(p.Steps) > 0 || len(p.Held) != 1 {
		t.Errorf("a file alone: %+v", p)
	}
}
