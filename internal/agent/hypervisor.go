package agent

import (
	"context"
	"fmt"
	"sync"

	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/sriov"
)

// hypervisor remembers the last list of domains. A list with all XML is slow on a dense host, so it is
// read again only after an event, after one of our own calls, or for who needs evidence.
type hypervisor struct {
	mu    sync.Mutex
	list  *domains
	stale bool
	moved bool // a domain came, went or changed its power since the vfio groups were last looked at
}

// domains is one answer of the hypervisor.
type domains struct {
	host  hyper.Host
	byUID map[string]*hyper.Seen
	byPCI map[string]sriov.Domain
}

// changed says that the remembered list is old.
func (h *hypervisor) changed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stale, h.moved = true, true
}

// takeMoved reports whether domains have moved since it was last asked.
func (h *hypervisor) takeMoved() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.moved
	h.moved = false
	return was
}

// domains returns the hypervisor's domains; fresh asks again whatever is remembered.
func (a *Agent) domains(ctx context.Context, fresh bool) (*domains, error) {
	a.hv.mu.Lock()
	defer a.hv.mu.Unlock()
	if a.hv.list != nil && !a.hv.stale && !fresh {
		return a.hv.list, nil
	}
	a.hv.stale = false
	host, seen, err := a.d.Hyper.List(ctx)
	if err != nil {
		a.hv.stale = true
		return nil, fmt.Errorf("list domains: %w", err)
	}
	out := &domains{host: host, byUID: map[string]*hyper.Seen{}, byPCI: map[string]sriov.Domain{}}
	for i := range seen {
		s := &seen[i]
		out.byUID[s.UUID] = s
		for _, v := range s.VFs {
			d := sriov.Domain{Name: s.Name, UID: s.UUID, Ours: s.Owner != hyper.Owner{}, Running: s.State != hyper.Off && s.State != hyper.Crashed}
			if was, ok := out.byPCI[v.Host.String()]; ok && was.Running && !d.Running {
				continue // two definitions name it: the one that runs has it
			}
			out.byPCI[v.Host.String()] = d
		}
	}
	a.hv.list = out
	return out, nil
}

// watchHypervisor wakes what a domain's change concerns.
func (a *Agent) watchHypervisor(ctx context.Context) {
	for e := range a.d.Hyper.Events(ctx) {
		a.hv.changed()
		if e.UUID == "" {
			a.wakeVMs()
		} else if a.j.get(e.UUID) != nil || a.wanted(e.UUID) != nil {
			a.loop.Wake(key{kindVM, e.UUID})
		}
		a.wakeHost()
	}
}
