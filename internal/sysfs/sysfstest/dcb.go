package sysfstest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"syscall"

	"github.com/verbena-cloud/verbena/internal/dcb"
)

// Ports is the simulated kernel's dcbnl. Sources: drivers/net/ethernet/mellanox/mlx5/core/en_dcbnl.c,
// broadcom/bnxt/bnxt_dcb.c and intel/ice/ice_dcb_nl.c; igb has none.
type Ports struct{ k *Kernel }

var _ dcb.Links = Ports{}

// Ports returns what reads and sets DCB.
func (k *Kernel) Ports() Ports { return Ports{k} }

// dcbPath is where calls on a link's DCB meet trouble.
func dcbPath(link string) string { return "dcb/" + link }

// bootDCB is what a driver shows after it was loaded, nil for one without DCB.
func bootDCB(c *Card, p *PF) *dcb.State {
	mode := dcb.HostIEEE
	switch c.Driver {
	case "mlx5_core", "bnxt_en":
	case "ice": // its firmware's LLDP agent is on by default
		mode = dcb.LLD | dcb.IEEE
	default:
		return nil
	}
	if p.DCBX != nil {
		mode = *p.DCBX
	}
	s := &dcb.State{Mode: &mode, PFC: &dcb.PFC{Cap: dcb.Priorities}, ETS: &dcb.ETS{Cap: dcb.Priorities}, Apps: []dcb.App{}}
	for i := range dcb.Priorities {
		s.ETS.TSA[i] = dcb.Strict
	}
	return s
}

func (d Ports) port(link string) (*port, error) {
	if err := d.k.meet(dcbPath(link)); err != nil {
		return nil, err
	}
	n := d.k.netdevs[link]
	switch {
	case n == nil:
		return nil, syscall.ENODEV
	case n.fn.vf >= 0 || n.fn.port.dcb == nil:
		return nil, syscall.EOPNOTSUPP
	}
	return n.fn.port, nil
}

// Get returns all that the link's driver tells.
func (d Ports) Get(ctx context.Context, link string) (dcb.State, error) {
	return look(ctx, d.k, "read DCB of", dcbPath(link), func() (dcb.State, error) {
		p, err := d.port(link)
		if err != nil {
			return dcb.State{}, naming("read DCB of "+link, err)
		}
		return copyDCB(*p.dcb), nil
	})
}

func copyDCB(s dcb.State) dcb.State {
	s.Mode, s.PFC, s.ETS = dup(s.Mode), dup(s.PFC), dup(s.ETS)
	s.Apps, s.Trust = slices.Clone(s.Apps), slices.Clone(s.Trust)
	return s
}

// Set makes one change and reads it back.
func (d Ports) Set(ctx context.Context, link string, c dcb.Change) error {
	now, err := d.Get(ctx, link)
	if err != nil {
		return err
	}
	if !c.Told(now) {
		return naming(c.Command(link), syscall.EOPNOTSUPP)
	}
	if c.Holds(now) {
		return nil
	}
	err = d.k.change(ctx, "set DCB of", dcbPath(link), c.Command(link), func() error {
		p, err := d.port(link)
		if err != nil {
			return err
		}
		if errno := p.setDCB(c); errno != 0 {
			return errno
		}
		if _, pfc := c.(dcb.SetPFC); pfc {
			p.carrierLater(d.k.calls)
			d.k.notify()
		}
		return nil
	})
	if err == nil {
		if now, err = d.Get(ctx, link); err == nil && !c.Holds(now) {
			return fmt.Errorf("%s: %w", c.Command(link), dcb.ErrNotTaken)
		}
	}
	if err != nil && isErrno(err) && !now.Mode.Writable() {
		return fmt.Errorf("%s: %w, its mode is %q: %w", c.Command(link), dcb.ErrOwned, now.Mode, err)
	}
	return naming(c.Command(link), err)
}

// setDCB is the driver's part. mlx5 and ice know entries by DSCP only, one for each DSCP.
func (p *port) setDCB(c dcb.Change) syscall.Errno {
	s := p.dcb
	if _, mode := c.(dcb.SetMode); !mode && !s.Mode.Writable() {
		return syscall.EINVAL
	}
	switch c := c.(type) {
	case dcb.SetMode:
		if p.card.cfg.Driver == "ice" {
			return syscall.EINVAL
		}
		s.Mode = new(dcb.Mode(c))
	case dcb.SetPFC:
		if !p.cfg.Quirks.ForgetsPFC {
			s.PFC.Enabled = c.Enabled
		}
	case dcb.SetETS:
		s.ETS.TxBW, s.ETS.TSA, s.ETS.PrioTC = c.TxBW, c.TSA, c.PrioTC
	case dcb.AddApp:
		if c.Selector != dcb.DSCP && p.card.cfg.Driver != "bnxt_en" {
			return syscall.EINVAL
		}
		if c.Selector == dcb.DSCP {
			s.Apps = slices.DeleteFunc(s.Apps, func(a dcb.App) bool { return a.Selector == c.Selector && a.Protocol == c.Protocol })
		}
		s.Apps = append(s.Apps, dcb.App(c))
	case dcb.DelApp:
		s.Apps = slices.DeleteFunc(s.Apps, func(a dcb.App) bool { return a == dcb.App(c) })
	default:
		return syscall.EOPNOTSUPP
	}
	return 0
}

// Reset is somebody else changing a link's DCB by hand.
func (d Ports) Reset(link string, f func(*dcb.State)) error {
	d.k.mu.Lock()
	defer d.k.mu.Unlock()
	p, err := d.port(link)
	if err != nil {
		return naming("reset DCB of "+link, err)
	}
	f(p.dcb)
	return nil
}

// ecn makes the files by which NVIDIA's driver package sets congestion control, with its defaults.
func (n *netdev) ecn() {
	for _, end := range []string{"roce_np", "roce_rp"} {
		for p := range dcb.Priorities {
			n.dir.dir("ecn/"+end+"/enable").number(strconv.Itoa(p), 1, 1)
		}
	}
	n.dir.dir("ecn/roce_np").number("cnp_dscp", 48, 63)
	n.dir.dir("ecn/roce_np").number("cnp_802p_prio", 6, 7)
}

// number makes an attribute that holds a number from 0 to most.
func (n *node) number(name string, v, most int) {
	n.file(name, func() (string, error) { return strconv.Itoa(v), nil }, func(text string) error {
		i, err := strconv.Atoi(text)
		if err != nil || i < 0 || i > most {
			return syscall.EINVAL
		}
		v = i
		return nil
	})
}
