package preflight

import (
	"fmt"
	"slices"
	"strings"

	"github.com/verbena-cloud/verbena/internal/dcb"
)

// name is what people know the port by.
func (p PF) name() string {
	if p.Link != "" {
		return p.Link
	}
	return p.Address.String()
}

// physical checks the cable and the slot.
func (b *book) physical(p PF) {
	at := p.name()
	if p.Driver == "" {
		b.add(Failed, "nic.driver", at, "no driver").want("the NIC's driver bound", "load its module: lspci -k -s "+p.Address.String()+" names it")
		return
	}
	switch {
	case p.Link == "":
	case p.Carrier == nil:
		b.add(Failed, "link.carrier", at, "administratively down").want("up", "ip link set "+p.Link+" up")
	case !*p.Carrier:
		b.add(Failed, "link.carrier", at, "no carrier").want("link", "check cable and optics (ethtool -m "+p.Link+") and the switch port")
	default:
		b.ok("link.carrier", at, "up")
	}
	if p.Speed > 0 {
		// The netdev's speed: the RDMA port's "rate" is made up on RoCE.
		b.ok("link.speed", at, "%g Gb/s", float64(p.Speed)/1000)
	}
	b.slot(p)
	if p.MTU > 0 {
		b.mtu(p)
	}
}

func (b *book) mtu(p PF) {
	active := RoCEMTU(p.MTU)
	if active >= b.conf.MinMTU {
		b.ok("link.mtu", p.name(), "%d, RoCE MTU %d", p.MTU, active)
		return
	}
	b.add(Failed, "link.mtu", p.name(), fmt.Sprintf("%d, which leaves a RoCE MTU of %d", p.MTU, active)).
		want(fmt.Sprintf("RoCE MTU %d: a netdev MTU of at least %d", b.conf.MinMTU, b.conf.MinMTU+headers), fmt.Sprintf("ip link set %s mtu 9000, after the switch ports carry it", p.name()))
}

// slot compares the PCIe link with what both its ends can do.
func (b *book) slot(p PF) {
	l := p.PCIe
	if l.Speed == 0 || l.Width == 0 {
		return
	}
	speed, width := l.MaxSpeed, l.MaxWidth
	if l.UpSpeed > 0 {
		speed = min(speed, l.UpSpeed)
	}
	if l.UpWidth > 0 {
		width = min(width, l.UpWidth)
	}
	seen := fmt.Sprintf("%g GT/s ×%d", l.Speed, l.Width)
	switch {
	case l.Speed < speed || l.Width < width:
		b.add(Warning, "nic.pcie", p.name(), seen).want(fmt.Sprintf("%g GT/s ×%d, as card and slot can", speed, width), "reseat the card; check the riser and the BIOS setting of the slot")
	default:
		b.ok("nic.pcie", p.name(), "%s", seen)
	}
}

// sriov checks the capability and each VF.
func (b *book) sriov(f Facts, p PF) {
	at := p.name()
	switch {
	case p.Driver == "":
		return
	case !p.SRIOV.Present:
		b.incapable(p)
		return
	case p.SRIOV.Num == 0:
		b.add(Info, "sriov.vfs", at, fmt.Sprintf("no VFs of %d", p.SRIOV.Total)).want("VFs for VMs", "verbena host commission")
	case len(p.VFs) < p.SRIOV.Num:
		b.add(Failed, "sriov.vfs", at, fmt.Sprintf("sriov_numvfs is %d, but %d VFs are there", p.SRIOV.Num, len(p.VFs))).want("as many as asked for", "dmesg tells why: MMIO or bus numbers (pci=realloc), or the firmware's limit")
	default:
		b.ok("sriov.vfs", at, "%d of %d", p.SRIOV.Num, p.SRIOV.Total)
	}
	b.acs(f, p)
	if p.Bond != "" && p.SRIOV.Num > 0 && p.Eswitch != switchdev {
		b.add(Warning, "sriov.bond", at, "member of "+p.Bond+" with VFs in legacy mode").
			want("it is known that RDMA of a VF stays on its own port: the bond gives VMs no failover", "use flavors with ha: dual-vf, or switchdev on both ports (ha: vf-lag)")
	}
	for _, v := range p.VFs {
		b.vf(f, p, v)
	}
}

func (b *book) vf(f Facts, p PF, v VF) {
	at := fmt.Sprintf("%s vf %d", p.name(), v.Index)
	if v.NodeGUID != nil && *v.NodeGUID == 0 {
		b.add(Failed, "vf.guid", at, "node GUID 0").want("a GUID that is not zero: rdma_cm crashes on it", "verbena host commission sets the MAC and binds the VF again")
	}
	if f.IOMMUGroups > 0 && v.Group == "" {
		b.add(Failed, "vf.group", at, "no IOMMU group").want("a group of its own", "turn the IOMMU on for this slot in the BIOS")
	}
	if len(v.Mates) > 0 {
		b.add(Failed, "vf.group", at, fmt.Sprintf("group %s also holds %s", v.Group, join(v.Mates))).want("a group of its own", "turn ACS on in the BIOS, or move the card to a slot whose root port has it")
	}
	if v.Driver == "vfio-pci" && v.Group != "" && !v.GroupNode {
		b.add(Failed, "vf.node", at, "bound to vfio-pci, but there is no /dev/vfio/"+v.Group).want("the node", "unbind the VF and bind it again: verbena host commission")
	}
}

// firmware compares with the site's matrix.
func (b *book) firmware(f Facts, p PF) {
	if len(p.Pending) > 0 {
		b.add(Warning, "nic.pending", p.name(), "waits for a reset: "+join(p.Pending)).want("what is stored is what runs, so that a restart changes nothing",
			"restart the host in a maintenance window, or: devlink dev reload pci/"+p.Address.String()+" action fw_activate, after its VFs are free")
	}
	if p.Driver == "" || p.Firmware == "" {
		return
	}
	level, seen, want := Judge(b.conf.Pairs, Installed{Kernel: f.Kernel, Driver: p.Driver, Version: p.Version, Board: p.Board, Firmware: p.Firmware})
	switch level {
	case Failed:
		b.add(Failed, "nic.firmware", p.name(), seen).want(want, "update the firmware in a maintenance window, after its VFs are free")
	case Warning:
		b.add(Warning, "nic.firmware", p.name(), seen).want(want, "try it, then add it to pairs in the preflight configuration")
	default:
		b.ok("nic.firmware", p.name(), "%s", seen)
	}
}

// Installed is what runs together: on a host for its ports, in a VM for its VFs.
type Installed struct {
	Kernel, Driver string
	Version        string // the driver's own, only of drivers outside the kernel
	Board          string
	Firmware       string
}

// Judge holds what is installed against a site's matrix: Failed where a line refuses it, Warning where lines
// are there and none is about it. It tells what was seen and what is wanted instead.
func Judge(pairs []Pair, have Installed) (level Level, seen, want string) {
	matched := false
	for _, m := range pairs {
		if m.Driver != have.Driver || m.Board != "" && m.Board != have.Board || !strings.HasPrefix(have.Kernel, m.Kernel) {
			continue
		}
		matched = true
		if why := m.reject(have); why != "" {
			return Failed, fmt.Sprintf("firmware %s with %s on %s: %s", have.Firmware, have.Driver, have.Kernel, why), m.text()
		}
	}
	seen = fmt.Sprintf("%s, driver %s", have.Firmware, have.Driver)
	if !matched && len(pairs) > 0 {
		return Warning, seen + ": not in the matrix", "a pair that the site has tried"
	}
	return OK, seen, ""
}

// reject says why the pair does not hold, "" where it does.
func (m Pair) reject(p Installed) string {
	switch {
	case slices.Contains(m.Bad, p.Firmware):
		return "known as broken"
	case m.MinFirmware != "" && Versions(p.Firmware, m.MinFirmware) < 0:
		return "older than " + m.MinFirmware
	case m.MaxFirmware != "" && Versions(p.Firmware, m.MaxFirmware) > 0:
		return "newer than " + m.MaxFirmware
	case m.MinVersion != "" && p.Version != "" && Versions(p.Version, m.MinVersion) < 0:
		return "driver " + p.Version + " is older than " + m.MinVersion
	}
	return ""
}

func (m Pair) text() string {
	text := "firmware"
	if m.MinFirmware != "" {
		text += " from " + m.MinFirmware
	}
	if m.MaxFirmware != "" {
		text += " to " + m.MaxFirmware
	}
	if m.Why != "" {
		text += " (" + m.Why + ")"
	}
	return text
}

// place checks where the card sits and what else runs over it.
func (b *book) place(p PF) {
	if p.NUMA < 0 {
		b.add(Warning, "nic.numa", p.name(), "the platform does not say").want("a NUMA node, so that VMs can be placed beside the card", "turn NUMA on in the BIOS; a single-node machine needs nothing")
	} else {
		b.ok("nic.numa", p.name(), "node %d", p.NUMA)
	}
	if p.Management {
		b.add(Warning, "nic.management", p.name(), "carries the default route").want("a port of its own for RDMA", "Verbena makes no VFs on it unless told (--allow-management): a reset would cut this host off")
	}
}

// lossless checks PFC, trust and who owns both.
func (b *book) lossless(p PF) {
	if p.Driver == "" || p.Link == "" {
		return
	}
	at, want := p.name(), dcb.Of(b.conf.Priority)
	if p.DCB == nil {
		level, seen := Warning, "the driver has no DCB: packets of RoCE are dropped when the switch is full"
		if p.DCBUnknown {
			level, seen = Unknown, "could not be read"
		}
		b.add(level, "nic.pfc", at, seen).want(fmt.Sprintf("PFC on priority %d", b.conf.Priority), "use a NIC with PFC, or global pause where nothing else runs on the port")
		return
	}
	d := p.DCB
	if d.Mode != nil && !d.Mode.Writable() {
		b.add(Warning, "nic.dcbx", at, d.Mode.String()).want("host ieee: nobody else changes PFC", "mlxconfig LLDP_NB_DCBX_P1=0, ethtool --set-priv-flags "+p.Link+" fw-lldp-agent off (ice), or stop lldpad")
	}
	switch {
	case d.PFC == nil:
		b.add(Warning, "nic.pfc", at, "the driver does not tell").want(fmt.Sprintf("PFC on priority %d", b.conf.Priority))
	case d.PFC.Enabled == want:
		b.ok("nic.pfc", at, "on priority %s", d.PFC.Enabled)
	default:
		b.add(Failed, "nic.pfc", at, "on priority "+d.PFC.Enabled.String()).want(fmt.Sprintf("on priority %d alone", b.conf.Priority),
			"verbena host commission, or: "+dcb.SetPFC{Enabled: want}.Command(p.Link))
	}
	app := dcb.App{Selector: dcb.DSCP, Protocol: uint16(b.conf.DSCP), Priority: b.conf.Priority}
	switch {
	case d.Apps == nil:
	case slices.Contains(d.Apps, app):
		b.ok("nic.trust", at, "DSCP %d is priority %d", b.conf.DSCP, b.conf.Priority)
	default:
		b.add(Failed, "nic.trust", at, fmt.Sprintf("DSCP %d has no priority", b.conf.DSCP)).want(fmt.Sprintf("trust DSCP, %d → priority %d", b.conf.DSCP, b.conf.Priority),
			"verbena host commission, or: "+dcb.AddApp(app).Command(p.Link))
	}
	if p.ECN != nil && !*p.ECN {
		b.add(Failed, "nic.ecn", at, "off").want(fmt.Sprintf("on for priority %d, both as sender and receiver", b.conf.Priority), fmt.Sprintf("echo 1 > /sys/class/net/%s/ecn/roce_np/enable/%d and …/roce_rp/enable/%d", p.Link, b.conf.Priority, b.conf.Priority))
	}
}
