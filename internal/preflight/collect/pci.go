package collect

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"github.com/verbena-cloud/verbena/internal/devlink"
	"github.com/verbena-cloud/verbena/internal/pci"
	"github.com/verbena-cloud/verbena/internal/preflight"
)

// depth bounds the way from a card to the CPU; a PCI bus number has 8 bits.
const depth = 256

// space reads what the configuration spaces of the function and of the ports above it tell. In sysfs the directory
// of a device is in that of the port above it.
func (c *collector) space(p *preflight.PF, dir string) {
	own, _, known := c.config(dir)
	if known && own.SRIOV != nil {
		p.SRIOV.Listed = new(own.SRIOV.TotalVFs)
	} else if known && own.ExtKnown {
		p.SRIOV.Listed = new(0)
	}
	p.PCIe = c.slot(dir, own.Link)
	up := dir + "/.."
	for range depth {
		conf, kind, ok := c.config(up)
		if !ok {
			return
		}
		if up == dir+"/.." && conf.Link != nil && p.PCIe.UpSpeed == 0 {
			p.PCIe.UpSpeed, p.PCIe.UpWidth = float64(conf.Link.MaxSpeed)/1000, conf.Link.MaxWidth
		}
		if kind != upstream {
			_, slot, _ := strings.Cut(c.text(up+"/uevent"), "PCI_SLOT_NAME=")
			slot, _, _ = strings.Cut(slot, "\n")
			// A bridge of conventional PCI has no such space, and no ACS.
			known := conf.ACS != nil || conf.ExtKnown || conf.CapsKnown && kind == conventional
			p.Path = append(p.Path, preflight.Bridge{Address: slot, Known: known, ACS: conf.ACS})
		}
		up += "/.."
	}
}

// portType is the kind of a PCI Express function; the kernel wants no ACS of a switch's upstream port
// (pci_acs_enabled in drivers/pci/pci.c).
type portType int

const (
	conventional portType = -1
	upstream     portType = 5 // PCI_EXP_TYPE_UPSTREAM
)

// config reads a function's configuration space; ok is false where there is none to read, as above a root port. sysfs
// gives 64 bytes of it to an ordinary user and answers in one read. Zeros at its end are no white space, so an
// attribute's reader can read it; an end that looks like white space is a shorter read, which decodes too.
func (c *collector) config(dir string) (conf pci.Config, kind portType, ok bool) {
	b := []byte(c.text(dir + "/config"))
	if len(b) == 0 {
		return conf, conventional, false
	}
	conf, err := pci.Decode(b)
	vendor, bad := strconv.ParseUint(c.text(dir+"/vendor"), 0, 16)
	if err == nil && bad == nil && uint16(vendor) != conf.Vendor {
		err = fmt.Errorf("vendor %#04x, sysfs says %#04x: %w", conf.Vendor, vendor, pci.ErrMalformed)
	}
	if err != nil {
		c.unseen(dir+"/config", err)
		return pci.Config{}, conventional, true
	}
	kind = conventional
	for _, one := range conf.Caps {
		if one.ID == 0x10 && one.Offset+2 < len(b) { // PCI Express: its flags hold the type in bits 4 to 7
			kind = portType(b[one.Offset+2] >> 4)
		}
	}
	return conf, kind, true
}

// slot reads the link of the function and of the port above it, from its configuration space where the kernel has no
// attributes for it.
func (c *collector) slot(dir string, own *pci.Link) preflight.PCIe {
	l := preflight.PCIe{
		Speed: gts(c.text(dir + "/current_link_speed")), MaxSpeed: gts(c.text(dir + "/max_link_speed")),
		Width: c.number(dir+"/current_link_width", 0), MaxWidth: c.number(dir+"/max_link_width", 0),
	}
	l.UpSpeed, l.UpWidth = gts(c.text(dir+"/../max_link_speed")), c.number(dir+"/../max_link_width", 0)
	if own != nil && (l.Speed == 0 || l.Width == 0) {
		l.Speed, l.Width = float64(own.Speed)/1000, own.Width
		l.MaxSpeed, l.MaxWidth = float64(own.MaxSpeed)/1000, own.MaxWidth
	}
	return l
}

// devlink asks the driver for the firmware, where sysfs does not tell it, and for who switches the VFs.
func (c *collector) devlink(p *preflight.PF) {
	if c.Devlink == nil || p.Driver == "" {
		return
	}
	d := devlink.PCI(p.Address.String())
	info, err := c.Devlink.Info(c.ctx, d)
	switch {
	case err == nil:
		p.Firmware, p.Board = cmp.Or(p.Firmware, info.Firmware()), cmp.Or(p.Board, info.Board())
		for _, change := range info.Pending() {
			p.Pending = append(p.Pending, change.String())
		}
	case !devlink.Absent(err):
		c.unseen("devlink info of "+d.String(), err)
	}
	e, err := c.Devlink.Eswitch(c.ctx, d)
	switch {
	case err == nil && e.Mode != nil:
		p.Eswitch = e.Mode.String()
	case err == nil || devlink.Absent(err):
	case errors.Is(err, syscall.EPERM) && !c.AsRoot:
		c.unseen("devlink eswitch", errors.New("only root may ask"))
	default:
		c.unseen("devlink eswitch of "+d.String(), err)
	}
}
