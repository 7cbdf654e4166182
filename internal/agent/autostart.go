package agent

import (
	"context"
	"fmt"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/hyper"
)

// noAutostart turns off what would start our domains before the agent has made, parked and programmed
// their VFs, and before the server was heard. No event tells of the flag, so it is looked for at each
// listing of all domains.
func (a *Agent) noAutostart(ctx context.Context, snap *snapshot, prob *problems) {
	if a.d.Autostart == nil {
		return
	}
	for uid, d := range snap.dom.byUID {
		if !d.Autostart || d.Owner == (hyper.Owner{}) {
			continue
		}
		a.writes.Add(1)
		err := a.d.Autostart.NoAutostart(ctx, uid)
		a.hv.changed()
		if err != nil {
			prob.add(fmt.Errorf("turn off the autostart of domain %s: %w", d.Name, err))
			continue
		}
		a.events.add(api.Ref{Kind: api.KindVM, Tenant: d.Owner.Tenant, Name: d.Owner.VM, UID: uid}, warning, "AutostartTurnedOff",
			"somebody had set autostart on domain "+d.Name+"; it was turned off, since only the agent may start it, after its VFs are there")
	}
}
