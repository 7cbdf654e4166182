package libvirt

import (
	"context"
	"errors"
	"fmt"

	golibvirt "github.com/digitalocean/go-libvirt"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/hyper/domxml"
)

// Power brings the domain to Running or Off. A missing domain is Off already.
func (d *Driver) Power(ctx context.Context, uuid string, want hyper.State, hard bool) error {
	id, err := parseUUID(uuid)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("power %s domain %s", want, uuid)
	return d.call(ctx, what, func(l *golibvirt.Libvirt) error {
		dom, err := l.DomainLookupByUUID(id)
		if golibvirt.IsNotFound(err) {
			if want == hyper.Off {
				return nil
			}
			return fault.New(fault.NotFound, "domain %s is not defined", uuid)
		}
		if err != nil {
			return err
		}
		if err := mustBeOurs(l, id, dom.Name); err != nil {
			return err
		}
		raw, _, err := l.DomainGetState(dom, 0)
		if err != nil {
			return err
		}
		if err := power(l, dom, state(raw), want, hard); err != nil && (want != hyper.Off || !gone(err)) {
			return refine(err, what)
		}
		return nil
	})
}

func power(l *golibvirt.Libvirt, dom golibvirt.Domain, have, want hyper.State, hard bool) error {
	switch {
	case want == hyper.Running && have == hyper.Paused:
		return l.DomainResume(dom)
	case want == hyper.Running && (have == hyper.Off || have == hyper.Crashed):
		_, err := l.DomainCreateWithFlags(dom, 0)
		return err
	case want == hyper.Running:
		return nil
	case have == hyper.Off:
		return nil
	case hard || have == hyper.Crashed || have == hyper.Paused:
		return l.DomainDestroyFlags(dom, golibvirt.DomainDestroyDefault)
	case have == hyper.Dying:
		return nil
	default:
		return l.DomainShutdownFlags(dom, golibvirt.DomainShutdownDefault)
	}
}

// gone reports errors that mean "it is off or away already", which happens when the guest was quicker.
func gone(err error) bool {
	if golibvirt.IsNotFound(err) {
		return true
	}
	e, ok := errors.AsType[golibvirt.Error](err)
	return ok && golibvirt.ErrorNumber(e.Code) == golibvirt.ErrOperationInvalid
}

// state maps virDomainState (libvirt-domain.h).
func state(raw int32) hyper.State {
	switch golibvirt.DomainState(raw) {
	case golibvirt.DomainRunning, golibvirt.DomainBlocked:
		return hyper.Running
	case golibvirt.DomainPaused, golibvirt.DomainPmsuspended:
		return hyper.Paused
	case golibvirt.DomainShutdown:
		return hyper.Dying
	case golibvirt.DomainCrashed:
		return hyper.Crashed
	default:
		return hyper.Off
	}
}

// Undefine removes a stopped domain's definition with all that libvirt keeps beside it. A running domain is
// an Unready fault: its definition is what a crash would be recovered from.
func (d *Driver) Undefine(ctx context.Context, uuid string) error {
	id, err := parseUUID(uuid)
	if err != nil {
		return err
	}
	what := "undefine domain " + uuid
	return d.call(ctx, what, func(l *golibvirt.Libvirt) error {
		dom, err := l.DomainLookupByUUID(id)
		if golibvirt.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := mustBeOurs(l, id, dom.Name); err != nil {
			return err
		}
		raw, _, err := l.DomainGetState(dom, 0)
		if err != nil {
			return err
		}
		if s := state(raw); s != hyper.Off && s != hyper.Crashed {
			return fault.New(fault.Unready, "%s: it is still %s; power it off first", what, s)
		}
		err = l.DomainUndefineFlags(dom, golibvirt.DomainUndefineManagedSave|golibvirt.DomainUndefineSnapshotsMetadata|golibvirt.DomainUndefineNvram|golibvirt.DomainUndefineCheckpointsMetadata)
		if err != nil && !golibvirt.IsNotFound(err) { // engines without these flags know the plain call
			err = l.DomainUndefine(dom)
		}
		if golibvirt.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// List returns all domains, ours and foreign ones, and what the hypervisor says of itself.
func (d *Driver) List(ctx context.Context) (hyper.Host, []hyper.Seen, error) {
	var host hyper.Host
	var list []hyper.Seen
	err := d.call(ctx, "list domains", func(l *golibvirt.Libvirt) error {
		var err error
		if host, err = describe(l); err != nil {
			return err
		}
		list = nil
		doms, _, err := l.ConnectListAllDomains(1, golibvirt.ConnectListDomainsActive|golibvirt.ConnectListDomainsInactive)
		if err != nil {
			return err
		}
		auto, err := autostarted(l)
		if err != nil {
			return err
		}
		for _, dom := range doms {
			s, err := look(l, dom)
			if golibvirt.IsNotFound(err) {
				continue // it went between the list and the look
			}
			if err != nil {
				return fmt.Errorf("look at domain %s: %w", dom.Name, err)
			}
			s.Autostart = auto[s.UUID]
			list = append(list, s)
		}
		return nil
	})
	if err != nil {
		return hyper.Host{}, nil, err
	}
	return host, list, nil
}

// autostarted are the domains that the daemon starts by itself: one call tells all of them.
func autostarted(l *golibvirt.Libvirt) (map[string]bool, error) {
	doms, _, err := l.ConnectListAllDomains(1, golibvirt.ConnectListDomainsAutostart)
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, d := range doms {
		out[formatUUID(d.UUID)] = true
	}
	return out, nil
}

var _ hyper.Autostarter = (*Driver)(nil)

// NoAutostart makes the daemon leave the domain off when it starts.
func (d *Driver) NoAutostart(ctx context.Context, uuid string) error {
	id, err := parseUUID(uuid)
	if err != nil {
		return err
	}
	return d.call(ctx, "turn off the autostart of domain "+uuid, func(l *golibvirt.Libvirt) error {
		dom, err := l.DomainLookupByUUID(id)
		if golibvirt.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := mustBeOurs(l, id, dom.Name); err != nil {
			return err
		}
		return l.DomainSetAutostart(dom, 0)
	})
}

func look(l *golibvirt.Libvirt, dom golibvirt.Domain) (hyper.Seen, error) {
	raw, _, err := l.DomainGetState(dom, 0)
	if err != nil {
		return hyper.Seen{}, err
	}
	text, err := l.DomainGetXMLDesc(dom, 0)
	if err != nil {
		return hyper.Seen{}, err
	}
	s, err := domxml.Parse(text)
	if err != nil {
		return hyper.Seen{}, err
	}
	s.UUID, s.Name, s.State = formatUUID(dom.UUID), dom.Name, state(raw)
	return s, nil
}
