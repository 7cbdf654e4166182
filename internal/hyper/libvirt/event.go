package libvirt

import (
	"context"
	"encoding/xml"
	"fmt"
	"iter"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"

	"github.com/verbena-cloud/verbena/internal/hyper"
)

// Events yields domain life cycle changes. The first event, and one after each reconnect, has no UUID:
// anything may have happened meanwhile.
func (d *Driver) Events(ctx context.Context) iter.Seq[hyper.Event] {
	return func(yield func(hyper.Event) bool) {
		wait := retryFirst
		for ctx.Err() == nil {
			on, stop := d.follow(ctx, yield)
			if stop {
				return
			}
			if on {
				wait = retryFirst
			}
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return
			}
			wait = min(2*wait, retryLast)
		}
	}
}

// follow subscribes once and passes events on until the connection breaks. on says that it was up, stop
// that the consumer has enough.
func (d *Driver) follow(ctx context.Context, yield func(hyper.Event) bool) (on, stop bool) {
	sub, cancel := context.WithCancel(ctx)
	defer cancel()
	var ch <-chan golibvirt.DomainEventLifecycleMsg
	err := d.call(sub, "subscribe to libvirt events", func(l *golibvirt.Libvirt) error {
		var err error
		ch, err = l.LifecycleEvents(sub)
		return err
	})
	if err != nil {
		if ctx.Err() == nil {
			d.cfg.Log.Warn("libvirt events", "err", err)
		}
		return false, false
	}
	if !yield(hyper.Event{Text: "connected to libvirt"}) {
		return true, true
	}
	for {
		select {
		case m, ok := <-ch:
			if !ok {
				return true, false
			}
			if !yield(hyper.Event{UUID: formatUUID(m.Dom.UUID), Text: fmt.Sprintf("domain %s: event %d/%d", m.Dom.Name, m.Event, m.Detail)}) {
				return true, true
			}
		case <-ctx.Done():
			return true, true
		}
	}
}

// capabilities is the part of `virsh capabilities` that matters here.
type capabilities struct {
	Guests []struct {
		Arch struct {
			Domains []struct {
				Type string `xml:"type,attr"`
			} `xml:"domain"`
		} `xml:"arch"`
	} `xml:"guest"`
}

// describe asks the daemon for its versions and whether hardware virtualisation works.
func describe(l *golibvirt.Libvirt) (hyper.Host, error) {
	lib, err := l.ConnectGetLibVersion()
	if err != nil {
		return hyper.Host{}, fmt.Errorf("ask libvirt for its version: %w", err)
	}
	kind, err := l.ConnectGetType()
	if err != nil {
		return hyper.Host{}, fmt.Errorf("ask libvirt for its type: %w", err)
	}
	emu, err := l.ConnectGetVersion()
	if err != nil {
		return hyper.Host{}, fmt.Errorf("ask libvirt for the version of %s: %w", kind, err)
	}
	h := hyper.Host{Version: fmt.Sprintf("libvirt %s / %s %s", version(lib), kind, version(emu))}
	text, err := l.ConnectGetCapabilities()
	if err != nil {
		return hyper.Host{}, fmt.Errorf("ask libvirt for its capabilities: %w", err)
	}
	var c capabilities
	if err := xml.Unmarshal([]byte(text), &c); err != nil {
		return hyper.Host{}, fmt.Errorf("read libvirt's capabilities: %w", err)
	}
	for _, g := range c.Guests {
		for _, dom := range g.Arch.Domains {
			h.KVM = h.KVM || dom.Type == "kvm"
		}
	}
	return h, nil
}

// version prints libvirt's packed numbers: major*1e6 + minor*1e3 + release.
func version(v uint64) string {
	return fmt.Sprintf("%d.%d.%d", v/1_000_000, v/1000%1000, v%1000)
}
