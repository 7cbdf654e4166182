package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/client"
)

// until follows one object until done says so. The object is nil when it does not exist.
func until[T any, P interface {
	*T
	ObjectMeta() *api.Meta
}](ctx context.Context, objects client.Objects[T], tenant, name string, done func(*T) (bool, error)) error {
	there := false
	for change, err := range objects.Watch(ctx, tenant, client.Selection{}) {
		if err != nil {
			return err
		}
		var ok bool
		switch change.What {
		case client.Reset:
			there = false
			continue
		case client.Synced:
			if there {
				continue
			}
			ok, err = done(nil)
		default:
			o := change.Object
			if P(&o).ObjectMeta().Name != name {
				continue
			}
			if change.What == client.Deleted {
				ok, err = done(nil)
				break
			}
			there = true
			ok, err = done(&o)
		}
		if ok || err != nil {
			return err
		}
	}
	return errors.Join(ctx.Err(), fmt.Errorf("%s did not get there in time", name))
}

// reported waits until a host's agent has told its inventory. That the host is up is no change of the store,
// so there is no event of it to wait for.
func reported(ctx context.Context, c *client.Client, name string) (host *api.Host, err error) {
	err = until(ctx, c.Hosts(), "", name, func(h *api.Host) (bool, error) {
		host = h
		return h != nil && h.Status.Inventory != nil && len(h.Status.Inventory.PFs) > 0, nil
	})
	return host, err
}

// parked waits until every VF that a host shall have is parked or held.
func parked(ctx context.Context, c *client.Client, name string) (host *api.Host, err error) {
	err = until(ctx, c.Hosts(), "", name, func(h *api.Host) (bool, error) {
		host = h
		return h != nil && h.Status.Inventory != nil && pooled(h) == wanted(h), nil
	})
	return host, err
}

func wanted(h *api.Host) int {
	n := 0
	for _, p := range h.Spec.PFs {
		n += p.VFs
	}
	return n
}

func pooled(h *api.Host) int {
	n := 0
	for _, p := range h.Status.Inventory.PFs {
		for _, f := range p.VFs {
			if f.State == api.VFParked || f.State == api.VFAttached {
				n++
			}
		}
	}
	return n
}

// Commission sets which PFs of a host serve which fabric and waits until their VFs are parked.
func Commission(ctx context.Context, c *client.Client, name string, pfs func(*api.Inventory) []api.HostPF) (*api.Host, error) {
	h, err := reported(ctx, c, name)
	if err != nil {
		return nil, fmt.Errorf("wait for the inventory of %s: %w", name, err)
	}
	for {
		h.Spec.PFs = pfs(h.Status.Inventory)
		_, err := c.Hosts().Replace(ctx, "", name, h, client.Write{Revision: h.Revision})
		if err == nil {
			break
		}
		if !client.Is(err, "precondition") {
			return nil, fmt.Errorf("commission the PFs of %s: %w", name, err)
		}
		if h, err = c.Hosts().Get(ctx, "", name); err != nil { // its agent reported meanwhile
			return nil, err
		}
	}
	if h, err = parked(ctx, c, name); err != nil {
		return nil, fmt.Errorf("wait until the VFs of %s are parked: %w", name, err)
	}
	return h, nil
}
