package sysfstest

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"github.com/verbena-cloud/verbena/internal/dcb"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/rtnl"
)

// card is a NIC in its slot.
type card struct {
	cfg   *Card
	prof  profile
	group *group // of all functions, without ACS
	ports []*port
}

// port is a PF.
type port struct {
	card      *card
	cfg       *PF
	no        int // on its card, from 0
	fn        *function
	vfs       []*function
	attrs     []rtnl.VF
	dcb       *dcb.State // nil: the driver has no DCB
	autoprobe bool
	up        bool
	carrierAt int // call from which the carrier is there
}

// function is a PF, a VF or the bridge above them.
type function struct {
	addr             roce.PCIAddr
	dir              *node
	port             *port // nil for a bridge
	vf               int   // index, -1 for a PF
	vendor, device   string
	override         string
	driver           *driver
	group            *group
	net              *netdev
	rdma             string
	pid              int // process that has its vfio group open
	resets           int
	stats            rtnl.VFStats
	dirty            bool // a guest had it since the last reset
	linksAfter       int  // when its links are to be seen
	vfioNode, noProb bool
}

// group is an IOMMU group.
type group struct {
	id      int
	dir     *node
	members map[roce.PCIAddr]*function
}

// caps are the card's own, or its driver's.
func (c *card) caps() Caps {
	if c.cfg.Caps != nil {
		return *c.cfg.Caps
	}
	return c.prof.caps
}

func (k *Kernel) addCard(cfg *Card) error {
	prof, err := profileOf(cfg.Driver)
	if err != nil {
		return err
	}
	c := &card{cfg: cfg, prof: prof}
	k.cards = append(k.cards, c)
	k.addDriver(cfg.Driver, cfg.Driver, prof.vendor+" "+prof.device)
	k.addDriver(prof.vfDriver, prof.vfDriver, prof.vendor+" "+prof.vfDevice)
	switch prof.rdma {
	case "mlx5_":
		k.load("mlx5_ib")
	case "":
	default:
		k.load(prof.rdma)
	}
	for i := range cfg.PFs {
		if err := k.addPF(c, &cfg.PFs[i], i); err != nil {
			return err
		}
	}
	return nil
}

// slotOf is the directory of the root port above a function, made with the first function behind it.
func (k *Kernel) slotOf(c *card, a roce.PCIAddr) *node {
	up := roce.PCIAddr{Domain: a.Domain, Bus: (a.Bus - 1) &^ 0x1f}
	up.Slot = a.Bus - up.Bus - 1
	path := fmt.Sprintf("devices/pci%04x:%02x/%s", up.Domain, up.Bus, up)
	if d, err := k.sys.walk(path, Never, false); err == nil {
		return d
	}
	d := k.sys.dir(path)
	f := &function{addr: up, dir: d, vf: -1, vendor: "0x8086", device: "0x347a"}
	k.describe(f, "0x060400", c.cfg.NUMA)
	k.join(f, nil, 0)
	return d
}

func (k *Kernel) addPF(c *card, cfg *PF, no int) error {
	a, err := roce.ParsePCI(cfg.PCI)
	if err != nil {
		return err
	}
	if _, ok := k.functions[a]; ok {
		return fmt.Errorf("two functions at %s: %w", a, syscall.EEXIST)
	}
	p := &port{card: c, cfg: cfg, no: no, autoprobe: true, up: !cfg.Down, dcb: bootDCB(c.cfg, cfg)}
	f := &function{addr: a, port: p, vf: -1, vendor: c.prof.vendor, device: c.prof.device}
	p.fn = f
	c.ports = append(c.ports, p)
	f.dir = k.slotOf(c, a).dir(a.String())
	k.describe(f, "0x020000", c.cfg.NUMA)
	for name, v := range map[string]string{"max_link_speed": "16.0 GT/s PCIe", "current_link_speed": "16.0 GT/s PCIe", "max_link_width": "16", "current_link_width": "16"} {
		f.dir.text(name, v)
	}
	if c.prof.vpd && c.cfg.Serial != "" {
		f.dir.text("vpd", string(vpd(c.prof.board, c.cfg.Serial)))
	}
	f.dir.text("config", string(configSpace(f, c.cfg.Serial, cfg.TotalVFs)))
	k.showSRIOV(p)
	k.groupFor(c, f, 0)
	if !cfg.NoDriver {
		return k.probe(f)
	}
	return nil
}

// groupFor puts the function into a group of its own, or into the card's if nothing keeps them apart.
func (k *Kernel) groupFor(c *card, f *function, after int) {
	if !c.cfg.SharedGroup {
		k.join(f, nil, after)
		return
	}
	c.group = k.join(f, c.group, after)
}

// join puts f into group g, or into a new one of the lowest free number.
func (k *Kernel) join(f *function, g *group, after int) *group {
	if k.cfg.NoIOMMU {
		return nil
	}
	if g == nil {
		id := 6 + 13*(k.boots-1) // numbers differ from boot to boot
		for k.groups[id] != nil {
			id++
		}
		g = &group{id: id, members: map[roce.PCIAddr]*function{}}
		g.dir = k.sys.dir(fmt.Sprintf("kernel/iommu_groups/%d", id))
		g.dir.text("type", "DMA-FQ")
		g.dir.dir("devices")
		k.groups[id] = g
	}
	f.group = g
	g.members[f.addr] = f
	g.dir.kids["devices"].link(f.addr.String(), f.dir, 0)
	f.dir.link("iommu_group", g.dir, after)
	return g
}

func (k *Kernel) leave(f *function) {
	g := f.group
	if g == nil {
		return
	}
	delete(g.members, f.addr)
	g.dir.kids["devices"].remove(f.addr.String())
	if len(g.members) == 0 {
		k.sys.dir("kernel/iommu_groups").remove(strconv.Itoa(g.id))
		delete(k.groups, g.id)
		if f.port != nil && f.port.card.group == g {
			f.port.card.group = nil
		}
	}
}

// describe makes the attributes that every PCI function has.
func (k *Kernel) describe(f *function, class string, numa int) {
	k.functions[f.addr] = f
	d := f.dir
	d.text("vendor", f.vendor)
	d.text("device", f.device)
	d.text("subsystem_vendor", f.vendor)
	d.text("subsystem_device", "0x0016")
	d.text("class", class)
	d.text("revision", "0x00")
	d.text("numa_node", strconv.Itoa(numa))
	cpus := k.cfg.Cells[0].CPUs
	if numa >= 0 && numa < len(k.cfg.Cells) {
		cpus = k.cfg.Cells[numa].CPUs
	}
	d.text("local_cpulist", cpus)
	d.text("power_state", "D0")
	d.text("enable", "1")
	d.file("driver_override", func() (string, error) {
		if f.override == "" {
			return "(null)", nil
		}
		return f.override, nil
	}, func(v string) error {
		f.override = strings.TrimRight(v, "\x00")
		return nil
	})
	d.link("subsystem", k.sys.dir("bus/pci"), 0)
	k.sys.dir("bus/pci/devices").link(f.addr.String(), d, 0)
	if class != "0x060400" {
		d.text("reset_method", map[bool]string{true: "flr pm bus", false: "flr"}[f.vf < 0])
		d.file("reset", nil, func(v string) error { return k.reset(f, v) })
	}
}

// drop removes the function from the bus, with all that hangs on it.
func (k *Kernel) drop(f *function) {
	k.detach(f)
	k.leave(f)
	k.sys.dir("bus/pci/devices").remove(f.addr.String())
	f.dir.parent.remove(f.addr.String())
	delete(k.functions, f.addr)
}
