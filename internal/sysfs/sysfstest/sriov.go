package sysfstest

import (
	"fmt"
	"strconv"
	"syscall"

	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/rtnl"
)

// showSRIOV makes or removes the sriov_* files of a PF.
func (k *Kernel) showSRIOV(p *port) {
	d := p.fn.dir
	if p.cfg.Quirks.NoSRIOV || p.cfg.TotalVFs == 0 {
		for _, name := range []string{"totalvfs", "numvfs", "offset", "stride", "vf_device", "drivers_autoprobe", "vf_total_msix"} {
			d.remove("sriov_" + name)
		}
		return
	}
	d.text("sriov_totalvfs", strconv.Itoa(p.cfg.TotalVFs))
	d.text("sriov_offset", strconv.Itoa(p.offset()))
	d.text("sriov_stride", strconv.Itoa(p.card.prof.stride))
	d.text("sriov_vf_device", p.card.prof.vfDevice[2:])
	d.text("sriov_vf_total_msix", "0")
	d.file("sriov_numvfs", func() (string, error) { return strconv.Itoa(len(p.vfs)), nil }, func(v string) error { return k.numVFsWrite(p, v) })
	d.file("sriov_drivers_autoprobe", func() (string, error) { return bit(p.autoprobe), nil }, func(v string) error {
		on, err := strconv.ParseBool(v)
		if err != nil {
			return syscall.EINVAL
		}
		p.autoprobe = on
		return nil
	})
}

func bit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// offset is First VF Offset of the SR-IOV capability: what a VF's routing id is ahead of its PF's.
func (p *port) offset() int {
	if p.card.prof.stride > 1 {
		return p.card.prof.first
	}
	before := max(p.card.prof.first, len(p.card.cfg.PFs))
	for _, q := range p.card.cfg.PFs[:p.no] {
		before += q.TotalVFs
	}
	return before - p.no
}

func (p *port) vfAddr(i int) roce.PCIAddr {
	pf := p.fn.addr
	rid := int(pf.Bus)<<8 | int(pf.Slot)<<3 | int(pf.Function)
	rid += p.offset() + p.card.prof.stride*i
	return roce.PCIAddr{Domain: pf.Domain, Bus: uint8(rid >> 8), Slot: uint8(rid >> 3 & 0x1f), Function: uint8(rid & 7)}
}

// numVFsWrite is sriov_numvfs_store of drivers/pci/iov.c.
func (k *Kernel) numVFsWrite(p *port, text string) error {
	n, err := strconv.ParseUint(text, 0, 16)
	if err != nil {
		return syscall.EINVAL
	}
	switch {
	case int(n) > p.cfg.TotalVFs:
		return syscall.ERANGE
	case int(n) == len(p.vfs):
		return nil
	case p.fn.driver == nil || p.cfg.Quirks.NoConfigure:
		return syscall.ENOENT
	case n == 0:
		return k.disable(p)
	case len(p.vfs) > 0:
		return syscall.EBUSY
	case p.cfg.Quirks.EnableErr != 0:
		return p.cfg.Quirks.EnableErr
	}
	return k.enable(p, int(n))
}

func (k *Kernel) enable(p *port, n int) error {
	if most := p.cfg.Quirks.GiveAtMost; most > 0 {
		n = min(n, most)
	}
	late := 0
	if p.cfg.Quirks.LateLinks > 0 {
		late = k.calls + p.cfg.Quirks.LateLinks
	}
	for i := range n {
		a := p.vfAddr(i)
		if _, ok := k.functions[a]; ok {
			return syscall.ENOMEM // the bus has no room
		}
		f := &function{addr: a, port: p, vf: i, vendor: p.card.prof.vendor, device: p.card.prof.vfDevice, linksAfter: late}
		f.dir = p.fn.dir.parent.dir(a.String())
		k.describe(f, "0x020000", p.card.cfg.NUMA)
		f.dir.file("sriov_vf_msix_count", nil, func(string) error { return syscall.EOPNOTSUPP })
		f.dir.link("physfn", p.fn.dir, late)
		p.fn.dir.link(fmt.Sprintf("virtfn%d", i), f.dir, late)
		k.groupFor(p.card, f, late)
		p.vfs = append(p.vfs, f)
		p.attrs = append(p.attrs, p.fresh(i))
		if err := k.probe(f); err != nil {
			return err
		}
	}
	k.shake(p)
	return nil
}

// fresh is what a PF's driver says of a VF that nobody has told it anything of.
func (p *port) fresh(i int) rtnl.VF {
	spoof, trust, state := p.card.prof.spoof, false, rtnl.LinkAuto
	v := rtnl.VF{Index: i, SpoofCheck: &spoof, Trust: &trust, LinkState: &state}
	c := p.card.caps()
	if c.SilentSpoofCheck {
		v.SpoofCheck = nil
	}
	if c.SilentTrust {
		v.Trust = nil
	}
	if c.SilentLinkState {
		v.LinkState = nil
	}
	return v
}

// disable removes all VFs. It does not return before nobody holds one any more, and there is no way back.
func (k *Kernel) disable(p *port) error {
	for _, f := range p.vfs {
		if f.pid != 0 {
			return held{k.freed}
		}
	}
	for i, f := range p.vfs {
		p.fn.dir.remove(fmt.Sprintf("virtfn%d", i))
		k.drop(f)
	}
	p.vfs, p.attrs = nil, nil
	k.shake(p)
	return nil
}

// shake is what a change of the VFs does to some PFs: the link goes down for a while.
func (k *Kernel) shake(p *port) {
	p.carrierLater(k.calls)
	k.notify()
}

func (p *port) carrierLater(now int) {
	late := p.cfg.Quirks.LateCarrier
	if late == 0 {
		late = p.card.prof.lateCarrier
	}
	if late > 0 {
		p.carrierAt = now + late
	}
}

// reset is reset_store. The vendor's FLR leaves alone what the PF's driver was told of the VF.
func (k *Kernel) reset(f *function, text string) error {
	if text != "1" {
		return syscall.EINVAL
	}
	if f.port == nil {
		return nil
	}
	q := f.port.cfg.Quirks
	if f.vf < 0 {
		f.resets++
		for i := range f.port.attrs {
			if q.ResetLoses {
				f.port.attrs[i] = f.port.fresh(i)
			}
		}
		k.shake(f.port)
		return nil
	}
	if q.ResetErr != 0 {
		return q.ResetErr
	}
	f.resets++
	f.dirty = f.pid != 0
	if q.ResetLoses {
		f.port.attrs[f.vf] = f.port.fresh(f.vf)
	}
	return nil
}
