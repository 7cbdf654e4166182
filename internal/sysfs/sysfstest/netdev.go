package sysfstest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/verbena-cloud/verbena/internal/roce"
)

// netdev is a network interface of a function.
type netdev struct {
	name  string
	fn    *function
	dir   *node
	index int
	mtu   int
	up    bool
	mac   roce.MAC
	perm  roce.MAC
}

// vfNetdev names the netdev of a VF after its PF's.
func vfNetdev(f *function) string { return fmt.Sprintf("%sv%d", f.port.cfg.Netdev, f.vf) }

func (k *Kernel) addNetdev(f *function, name string) {
	p := f.port
	k.ifindex++
	n := &netdev{name: name, fn: f, index: k.ifindex, mtu: p.cfg.MTU}
	if n.mtu == 0 {
		n.mtu = 1500
	}
	assign := "0"
	if f.vf < 0 {
		n.up = p.up
		if mac, err := roce.ParseMAC(p.cfg.MAC); err == nil {
			n.mac = mac
		}
		p.carrierLater(k.calls)
	} else if n.mac = p.attrs[f.vf].MAC; n.mac.IsZero() {
		n.mac = roce.MAC{0xee, byte(k.ifindex >> 8), byte(k.ifindex), byte(k.boots), byte(f.vf >> 8), byte(f.vf)} // random by the driver's account
		assign = "1"
	}
	n.perm = n.mac
	f.net = n
	k.netdevs[name] = n
	n.dir = f.dir.dir("net").dir(name)
	k.netAttributes(n, assign)
	k.sys.dir("class/net").link(name, n.dir, 0)
	if f.vf < 0 && p.card.cfg.OFED {
		n.ecn()
	}
	if f.vf < 0 && p.cfg.Bond != "" {
		k.enslave(n, p.cfg.Bond)
	}
}

func (k *Kernel) netAttributes(n *netdev, assign string) {
	d, p := n.dir, n.fn.port
	d.live("address", func() string { return n.mac.String() })
	d.text("addr_assign_type", assign)
	d.text("ifindex", strconv.Itoa(n.index))
	d.text("type", "1")
	d.text("dev_id", "0x0")
	port, label := p.no, fmt.Sprintf("p%d", p.no)
	if p.card.cfg.Driver == "igb" {
		port, label = 0, ""
	}
	d.text("dev_port", strconv.Itoa(port))
	d.text("tx_queue_len", "1000")
	d.text("carrier_changes", "2")
	d.fails("phys_port_id", syscall.EOPNOTSUPP)
	d.fails("phys_switch_id", syscall.EOPNOTSUPP)
	if d.text("phys_port_name", label); label == "" {
		d.fails("phys_port_name", syscall.EOPNOTSUPP)
	}
	d.live("flags", func() string {
		if n.up {
			return "0x1003"
		}
		return "0x1002"
	})
	d.live("operstate", func() string {
		if k.carrier(n) {
			return "up"
		}
		return "down"
	})
	d.file("carrier", func() (string, error) {
		if !n.up {
			return "", syscall.EINVAL
		}
		return bit(k.carrier(n)), nil
	}, nil)
	d.file("speed", func() (string, error) {
		if !k.carrier(n) {
			return "", syscall.EINVAL
		}
		return strconv.FormatInt(p.cfg.Speed, 10), nil
	}, nil)
	d.file("mtu", func() (string, error) { return strconv.Itoa(n.mtu), nil }, func(v string) error {
		mtu, err := strconv.Atoi(v)
		if err != nil || mtu < 68 || mtu > 9978 {
			return syscall.EINVAL
		}
		n.mtu = mtu
		return nil
	})
	d.link("device", n.fn.dir, 0)
	d.link("subsystem", k.sys.dir("class/net"), 0)
}

// carrier is the physical link; a VF has its PF's.
func (k *Kernel) carrier(n *netdev) bool {
	p := n.fn.port
	pf := p.fn.net
	return n.up && pf != nil && pf.up && !p.cfg.NoCable && p.carrierAt <= k.calls
}

// enslave makes the netdev a port of a bond; all ports have the first one's address.
func (k *Kernel) enslave(n *netdev, bond string) {
	b := k.sys.dir("devices/virtual/net/" + bond)
	if b.kids["address"] == nil {
		for _, a := range [][2]string{{"address", n.mac.String()}, {"addr_assign_type", "3"}, {"flags", "0x1403"}, {"operstate", "up"}, {"carrier", "1"}, {"type", "1"}, {"mtu", strconv.Itoa(n.mtu)}} {
			b.text(a[0], a[1])
		}
		b.dir("bonding").text("mode", "802.3ad 4")
		b.dir("bonding").live("slaves", func() string { return slaves(b) })
		k.sys.dir("class/net").link(bond, b, 0)
	}
	if s, err := b.kids["address"].read(); err == nil {
		if mac, err := roce.ParseMAC(s); err == nil {
			n.mac = mac
		}
	}
	if n.mac != n.perm {
		n.dir.text("addr_assign_type", "3") // NET_ADDR_SET
	}
	b.link("lower_"+n.name, n.dir, 0)
	n.dir.link("master", b, 0)
	n.dir.link("upper_"+bond, b, 0)
	n.dir.dir("bonding_slave").text("perm_hwaddr", n.perm.String())
	n.dir.dir("bonding_slave").text("mii_status", "up")
}

// slaves are the ports of a bond, in no order that means anything.
func slaves(bond *node) string {
	var names []string
	for name := range bond.kids {
		if port, ok := strings.CutPrefix(name, "lower_"); ok {
			names = append(names, port)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func (k *Kernel) removeNetdev(f *function) {
	f.dir.remove("net")
	if f.net == nil {
		return
	}
	k.sys.dir("class/net").remove(f.net.name)
	if f.vf < 0 && f.port.cfg.Bond != "" {
		k.sys.dir("devices/virtual/net/" + f.port.cfg.Bond).remove("lower_" + f.net.name)
	}
	delete(k.netdevs, f.net.name)
	f.net = nil
}

// free returns prefix with the lowest number that is not taken, and takes it.
func (k *Kernel) free(prefix string) string {
	for i := 0; ; i++ {
		if name := prefix + strconv.Itoa(i); !k.rdma[name] {
			k.rdma[name] = true
			return name
		}
	}
}

// addRDMA makes the function's RDMA device. A VF's node GUID is made from the address that the
// administrator gave it, at this moment: without one it is zero.
func (k *Kernel) addRDMA(f *function) {
	p := f.port
	if p.card.prof.rdma == "" {
		return
	}
	name := p.cfg.RDMA
	if f.vf >= 0 || name == "" {
		name = k.free(p.card.prof.rdma)
	}
	f.rdma = name
	guid := roce.GUID(0)
	if f.vf < 0 {
		guid = eui64(f.net.perm)
	} else if mac := p.attrs[f.vf].MAC; !mac.IsZero() {
		guid = eui64(mac)
	}
	d := f.dir.dir("infiniband").dir(name)
	for _, a := range [][2]string{{"node_guid", guid.String()}, {"sys_image_guid", p.card.image().String()}, {"fw_ver", p.card.firmware()},
		{"board_id", p.card.prof.board}, {"hca_type", f.device[2:]}, {"node_type", "1: CA"}, {"node_desc", name + " simulated"}} {
		d.text(a[0], a[1])
	}
	k.rdmaPort(f, d.dir("ports/1"))
	d.link("device", f.dir, 0)
	k.sys.dir("class/infiniband").link(name, d, 0)
	u := k.free("uverbs")
	v := f.dir.dir("infiniband_verbs").dir(u)
	v.text("ibdev", name)
	v.text("dev", "231:"+u[len("uverbs"):])
	v.text("abi_version", "1")
	k.sys.dir("class/infiniband_verbs").link(u, v, 0)
}

func (k *Kernel) rdmaPort(f *function, d *node) {
	up := func(yes, no string) func() string {
		return func() string {
			if f.net != nil && k.carrier(f.net) {
				return yes
			}
			return no
		}
	}
	d.live("state", up("4: ACTIVE", "1: DOWN"))
	d.live("phys_state", up("5: LinkUp", "3: Disabled"))
	d.live("rate", up("100 Gb/sec (4X EDR)", "2.5 Gb/sec (1X SDR)")) // says nothing about the speed, as on real RoCE
	d.text("link_layer", "Ethernet")
	for i, typ := range []string{"IB/RoCE v1", "RoCE v2", ""} {
		n := strconv.Itoa(i)
		if typ == "" || f.net == nil {
			d.dir("gids").text(n, "0000:0000:0000:0000:0000:0000:0000:0000")
			d.dir("gid_attrs/types").fails(n, syscall.EINVAL)
			d.dir("gid_attrs/ndevs").fails(n, syscall.EINVAL)
			continue
		}
		d.dir("gids").text(n, "fe80:0000:0000:0000:"+eui64(f.net.mac).String())
		d.dir("gid_attrs/types").text(n, typ)
		d.dir("gid_attrs/ndevs").live(n, func() string { return f.net.name })
	}
}

func (k *Kernel) removeRDMA(f *function) {
	if f.rdma == "" {
		return
	}
	k.sys.dir("class/infiniband").remove(f.rdma)
	for u := range f.dir.dir("infiniband_verbs").kids {
		k.sys.dir("class/infiniband_verbs").remove(u)
		delete(k.rdma, u)
	}
	f.dir.remove("infiniband")
	f.dir.remove("infiniband_verbs")
	delete(k.rdma, f.rdma)
	f.rdma = ""
}

// eui64 is the modified EUI-64 of RFC 4291, appendix A.
func eui64(m roce.MAC) roce.GUID {
	var g roce.GUID
	for _, b := range []byte{m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]} {
		g = g<<8 | roce.GUID(b)
	}
	return g
}

func (c *card) image() roce.GUID {
	if mac, err := roce.ParseMAC(c.cfg.PFs[0].MAC); err == nil {
		return eui64(mac)
	}
	return 0
}

func (c *card) firmware() string {
	if c.cfg.Firmware != "" {
		return c.cfg.Firmware
	}
	return c.prof.fw
}
