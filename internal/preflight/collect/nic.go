package collect

import (
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/verbena-cloud/verbena/internal/dcb"
	"github.com/verbena-cloud/verbena/internal/preflight"
	"github.com/verbena-cloud/verbena/internal/roce"
)

const pciDevices = "bus/pci/devices"

// devices finds the physical functions: network functions that have SR-IOV or an RDMA device.
func (c *collector) devices() {
	for _, name := range c.list(pciDevices) {
		addr, err := roce.ParsePCI(name)
		if err != nil {
			continue
		}
		dir := pciDevices + "/" + name
		if !strings.HasPrefix(c.text(dir+"/class"), "0x02") || c.link(dir+"/physfn") != "" {
			continue
		}
		sriov := c.text(dir + "/sriov_totalvfs")
		if sriov == "" && len(c.list(dir+"/infiniband")) == 0 {
			continue
		}
		c.facts.PFs = append(c.facts.PFs, c.pf(addr, dir, sriov))
	}
}

func (c *collector) pf(addr roce.PCIAddr, dir, sriov string) preflight.PF {
	total, err := strconv.Atoi(sriov)
	p := preflight.PF{
		Address: addr,
		Driver:  c.link(dir + "/driver"),
		NUMA:    c.number(dir+"/numa_node", -1),
		SRIOV: preflight.SRIOV{
			Present: err == nil && total > 0, Total: total,
			Num: c.number(dir+"/sriov_numvfs", 0), Autoprobe: c.text(dir+"/sriov_drivers_autoprobe") != "0",
		},
		Version: c.text(dir + "/driver/module/version"),
	}
	for _, d := range c.list(dir + "/infiniband") {
		p.Firmware, p.Board = c.text("class/infiniband/"+d+"/fw_ver"), c.text("class/infiniband/"+d+"/board_id")
	}
	c.space(&p, dir)
	c.devlink(&p)
	if links := c.list(dir + "/net"); len(links) > 0 {
		c.netdev(&p, links[0])
	}
	for _, entry := range c.list(dir) {
		if index, err := strconv.Atoi(strings.TrimPrefix(entry, "virtfn")); err == nil && strings.HasPrefix(entry, "virtfn") {
			if v, ok := c.vf(dir+"/"+entry, index); ok {
				p.VFs = append(p.VFs, v)
			}
		}
	}
	return p
}

func (c *collector) netdev(p *preflight.PF, link string) {
	dir := "class/net/" + link
	p.Link = link
	p.Speed = max(0, c.number(dir+"/speed", 0))
	p.MTU = c.number(dir+"/mtu", 0)
	switch c.text(dir + "/carrier") { // EINVAL while the link is administratively down
	case "1":
		p.Carrier = new(true)
	case "0":
		p.Carrier = new(false)
	}
	if master := c.link(dir + "/master"); master != "" && len(c.list("class/net/"+master+"/bonding")) > 0 {
		p.Bond = master
	}
	p.Management = slices.ContainsFunc(c.route, func(r string) bool {
		base, _, _ := strings.Cut(r, ".") // a VLAN on the port, by the usual way to name it
		return r == link || base == link || r == p.Bond && r != ""
	})
	if c.Addresses != nil {
		var err error
		p.Addresses, err = c.Addresses(link)
		c.unseen("addresses of "+link, err)
	}
	c.dcb(p, link)
	priority := c.Priority
	if c.PriorityOf != nil {
		priority = c.PriorityOf(p.Address)
	}
	at := dir + "/ecn/roce_%/enable/" + strconv.Itoa(priority)
	np, rp := c.text(strings.Replace(at, "%", "np", 1)), c.text(strings.Replace(at, "%", "rp", 1))
	if np != "" && rp != "" {
		p.ECN = new(np == "1" && rp == "1")
	}
}

func (c *collector) dcb(p *preflight.PF, link string) {
	if c.DCB == nil {
		p.DCBUnknown = true
		return
	}
	state, err := c.DCB.Get(c.ctx, link)
	switch {
	case err == nil:
		p.DCB = &state
	case !dcb.Unsupported(err):
		p.DCBUnknown = true
		c.unseen("DCB of "+link, err)
	}
}

func (c *collector) vf(dir string, index int) (preflight.VF, bool) {
	addr, err := roce.ParsePCI(c.link(dir))
	if err != nil {
		return preflight.VF{}, false
	}
	v := preflight.VF{Index: index, Address: addr, Driver: c.link(dir + "/driver"), Group: c.link(dir + "/iommu_group")}
	if v.Group != "" {
		v.GroupNode = c.exists("dev/vfio/" + v.Group)
		v.Mates = c.mates(v)
	}
	for _, d := range c.list(dir + "/infiniband") {
		if g, err := roce.ParseGUID(c.text("class/infiniband/" + d + "/node_guid")); err == nil {
			v.NodeGUID = &g
		}
	}
	return v, true
}

// mates are the other functions of the group. Bridges and root ports may be in it (Documentation/driver-api/vfio.rst).
func (c *collector) mates(v preflight.VF) []string {
	var out []string
	for _, other := range c.list("kernel/iommu_groups/" + v.Group + "/devices") {
		if other != v.Address.String() && !strings.HasPrefix(c.text(pciDevices+"/"+other+"/class"), "0x0604") {
			out = append(out, other)
		}
	}
	return out
}

// rdma reads the RDMA devices with their GID tables.
func (c *collector) rdma() {
	nodes := map[string]string{}
	for _, u := range c.list("class/infiniband_verbs") {
		if !strings.HasPrefix(u, "uverbs") { // abi_version is a file beside them
			continue
		}
		if d := c.text("class/infiniband_verbs/" + u + "/ibdev"); d != "" {
			nodes[d] = u
		}
	}
	devices := c.list("class/infiniband")
	misfits := c.misfits(len(devices))
	for _, name := range devices {
		dir := "class/infiniband/" + name
		d := preflight.RDMADevice{Name: name, Uverbs: nodes[name], Virtual: c.link(dir+"/device/physfn") != "", Provider: misfits[name]}
		if a, err := roce.ParsePCI(c.link(dir + "/device")); err == nil {
			d.Address = &a
		}
		var err error
		if d.NodeGUID, err = roce.ParseGUID(c.text(dir + "/node_guid")); err != nil {
			c.unseen(dir+"/node_guid", errors.New("no GUID: "+err.Error()))
		}
		for _, n := range c.list(dir + "/ports") {
			if number, err := strconv.Atoi(n); err == nil {
				d.Ports = append(d.Ports, c.port(name, path.Join(dir, "ports", n), number))
			}
		}
		c.facts.RDMA = append(c.facts.RDMA, d)
	}
}

// misfits asks libibverbs, if one of its programs is there, which devices it can't use.
func (c *collector) misfits(devices int) map[string]string {
	if c.Run == nil || devices == 0 {
		return nil
	}
	text, err := c.Run(c.ctx, "ibv_devices")
	c.unseen("ibv_devices", err)
	return preflight.Misfits(text)
}

func (c *collector) port(device, dir string, number int) preflight.Port {
	_, state, _ := strings.Cut(c.text(dir+"/state"), ": ") // "4: ACTIVE"
	p := preflight.Port{Number: number, State: state, LinkLayer: c.text(dir + "/link_layer")}
	for _, n := range c.list(dir + "/gids") {
		index, err := strconv.Atoi(n)
		gid, ok := parseGID(c.text(dir + "/gids/" + n))
		if err != nil || !ok {
			continue
		}
		// Both attributes of an empty entry answer EINVAL.
		p.GIDs = append(p.GIDs, preflight.GID{Index: index, Addr: gid, V2: c.text(dir+"/gid_attrs/types/"+n) == "RoCE v2", Link: c.text(dir + "/gid_attrs/ndevs/" + n)})
	}
	if mode := c.file("sys/kernel/config/rdma_cm/" + device + "/ports/" + strconv.Itoa(number) + "/default_roce_mode"); mode != "" {
		p.CMMode = strings.TrimSpace(mode)
	}
	return p
}
