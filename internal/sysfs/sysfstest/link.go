package sysfstest

import (
	"context"
	"fmt"
	"slices"
	"syscall"

	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/rtnl"
)

// Calls on links meet the trouble at this path: Break, Hide and Hang take it too.
func rtnlPath(link string) string { return "rtnl/" + link }

// VFs returns what the PF's driver knows of its VFs.
func (k *Kernel) VFs(ctx context.Context, link string) ([]rtnl.VF, error) {
	return look(ctx, k, "read the VFs of", rtnlPath(link), func() ([]rtnl.VF, error) {
		p, err := k.linkPort(link)
		if err != nil {
			return nil, naming("read the VFs of "+link, err)
		}
		out := slices.Clone(p.attrs)
		for i := range out {
			out[i].SpoofCheck, out[i].Trust, out[i].LinkState = dup(out[i].SpoofCheck), dup(out[i].Trust), dup(out[i].LinkState)
		}
		return out, nil
	})
}

func dup[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

func naming(what string, err error) error {
	if isErrno(err) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return err
}

func (k *Kernel) linkPort(link string) (*port, error) {
	if err := k.meet(rtnlPath(link)); err != nil {
		return nil, err
	}
	n := k.netdevs[link]
	if n == nil {
		return nil, syscall.ENODEV
	}
	if n.fn.vf >= 0 {
		return &port{card: n.fn.port.card, cfg: n.fn.port.cfg, fn: n.fn}, nil // a VF's link has no VFs
	}
	return n.fn.port, nil
}

// SetVF tells the PF's driver one attribute of one VF.
func (k *Kernel) SetVF(ctx context.Context, link string, vf int, a rtnl.Attr) error {
	what := fmt.Sprintf("ip link set %s vf %d %s", link, vf, a)
	err := k.change(ctx, "set", rtnlPath(link), what, func() error {
		p, err := k.linkPort(link)
		if err != nil {
			return err
		}
		if vf < 0 || vf >= len(p.attrs) {
			return syscall.EINVAL
		}
		if err := k.setVF(p, &p.attrs[vf], a); err != 0 {
			return err
		}
		if p.fn.net.up { // a link that is down makes no message of it
			k.notify()
		}
		return nil
	})
	return naming(fmt.Sprintf("set %s on VF %d of %s", a, vf, link), err)
}

func (k *Kernel) setVF(p *port, v *rtnl.VF, a rtnl.Attr) syscall.Errno {
	c := p.card.caps()
	switch a := a.(type) {
	case rtnl.MAC:
		if c.MAC == 0 && roce.MAC(a)[0]&1 != 0 {
			return syscall.EINVAL
		}
		return set(c.MAC, func() { v.MAC = roce.MAC(a) })
	case rtnl.VLAN:
		return setVLAN(c, v, a)
	case rtnl.SpoofCheck:
		on := bool(a)
		return set(c.SpoofCheck, func() { v.SpoofCheck = show(c.SilentSpoofCheck, &on) })
	case rtnl.Trust:
		on := bool(a)
		return set(c.Trust, func() { v.Trust = show(c.SilentTrust, &on) })
	case rtnl.State:
		if rtnl.LinkState(a) > rtnl.LinkDisable {
			return syscall.EINVAL
		}
		s := rtnl.LinkState(a)
		return set(c.LinkState, func() { v.LinkState = show(c.SilentLinkState, &s) })
	case rtnl.Rate:
		return k.setRate(p, v, a)
	}
	return syscall.EOPNOTSUPP
}

func set(refusal syscall.Errno, do func()) syscall.Errno {
	if refusal == 0 {
		do()
	}
	return refusal
}

func show[T any](silent bool, v *T) *T {
	if silent {
		return nil
	}
	return v
}

func setVLAN(c Caps, v *rtnl.VF, a rtnl.VLAN) syscall.Errno {
	if a.ID < 0 || a.ID > 4095 || a.QoS < 0 || a.QoS > 7 {
		return syscall.EINVAL
	}
	if a.QoS > 0 && c.QoS != 0 {
		return c.QoS
	}
	return set(c.VLAN, func() { v.VLAN, v.QoS = a.ID, a.QoS })
}

func (k *Kernel) setRate(p *port, v *rtnl.VF, a rtnl.Rate) syscall.Errno {
	c := p.card.caps()
	switch {
	case a.Min > 0 && c.MinRate != 0:
		return c.MinRate
	case a.Max > 0 && c.MaxRate != 0:
		return c.MaxRate
	case a.Max > 0 && a.Min > a.Max:
		return syscall.EINVAL
	case c.RateNeedsLink && a.Max > 0 && (!k.carrier(p.fn.net) || int64(a.Max) > p.cfg.Speed):
		return syscall.EINVAL
	}
	v.MinRate, v.MaxRate = a.Min, a.Max
	return 0
}

// SetUp sets a link administratively up; its carrier may take a while.
func (k *Kernel) SetUp(ctx context.Context, link string) error {
	err := k.change(ctx, "set up", rtnlPath(link), "ip link set "+link+" up", func() error { return k.setUp(link, true) })
	return naming("set "+link+" up", err)
}

// SetDown is somebody else setting a link down.
func (k *Kernel) SetDown(link string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.setUp(link, false)
}

func (k *Kernel) setUp(link string, up bool) error {
	if err := k.meet(rtnlPath(link)); err != nil {
		return err
	}
	n := k.netdevs[link]
	if n == nil {
		return syscall.ENODEV
	}
	if n.up == up {
		return nil
	}
	n.up = up
	if n.fn.vf < 0 {
		n.fn.port.up = up
		n.fn.port.carrierLater(k.calls)
	}
	k.notify()
	return nil
}

// Changes calls f for each change of a link or device, changes in quick succession together, and returns
// nil when ctx ends.
func (k *Kernel) Changes(ctx context.Context, f func()) error {
	if err := k.Alive(); err != nil {
		return err
	}
	ch := make(chan struct{}, 1)
	k.mu.Lock()
	k.listeners[ch] = true
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		delete(k.listeners, ch)
		k.mu.Unlock()
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ch:
			f()
		}
	}
}

func (k *Kernel) notify() {
	for ch := range k.listeners {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// PermanentMAC returns the address burnt into a link's card (ethtool -P).
func (k *Kernel) PermanentMAC(ctx context.Context, link string) (string, error) {
	return look(ctx, k, "permanent address of", rtnlPath(link), func() (string, error) {
		n := k.netdevs[link]
		if n == nil {
			return "", naming("permanent address of "+link, syscall.ENODEV)
		}
		return n.perm.String(), nil
	})
}
