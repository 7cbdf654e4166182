package guestos

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/verbena-cloud/verbena/internal/preflight"
)

// doc is the page that explains all findings; each has an anchor of its name.
const doc = "docs/guest.md#"

// book collects findings.
type book struct{ list []preflight.Finding }

func (b *book) add(level preflight.Level, check, object, seen string) *preflight.Finding {
	f := preflight.Finding{Check: check, Object: object, Level: level, Seen: seen}
	if level != preflight.OK {
		f.Doc = doc + strings.ReplaceAll(check, ".", "")
	}
	b.list = append(b.list, f)
	return &b.list[len(b.list)-1]
}

func want(f *preflight.Finding, expected string, fix ...string) { f.Expected, f.Fix = expected, fix }

// Check judges what a setting can't mend, in the order in which things are to be mended.
func Check(f Facts, c Config) []preflight.Finding {
	b := &book{}
	for _, n := range f.NICs {
		b.nic(f, c, n)
	}
	if f.Balancer && len(f.NICs) > 0 {
		want(b.add(preflight.Warning, "guest.balancer", "", "irqbalance runs and will move the interrupts again"),
			"one owner of the interrupts' affinity", "systemctl disable --now irqbalance")
	}
	for _, u := range f.Unseen {
		want(b.add(preflight.Unknown, "guest.unseen", "", u), "", "run it as root, or look at the cause")
	}
	return b.list
}

func (n NIC) name() string {
	if n.Netdev != "" {
		return n.Netdev
	}
	return n.PCI
}

func (b *book) nic(f Facts, c Config, n NIC) {
	at := n.name()
	if m := driver(n.Driver); m != "" && len(n.RDMA) == 0 {
		want(b.add(preflight.Failed, "guest.rdma", at, "no RDMA device, though "+n.Driver+" can have one"), "one beside the netdev",
			"modprobe "+m+"; an image without the module needs its kernel's package of extra modules")
	}
	if n.Driver != "" && n.Firmware != "" && len(n.RDMA) > 0 {
		level, seen, expected := preflight.Judge(c.Pairs, preflight.Installed{Kernel: f.Kernel, Driver: n.Driver, Version: n.Version, Board: n.Board, Firmware: n.Firmware})
		x := b.add(level, "guest.firmware", at, seen)
		if level != preflight.OK {
			want(x, expected, "take an image with a driver that goes with this firmware; the firmware itself is the host's")
		}
	}
	// A virtio NIC has no place, and needs none.
	if n.NUMA < 0 && f.Nodes > 1 && (len(n.RDMA) > 0 || driver(n.Driver) != "") {
		want(b.add(preflight.Warning, "guest.numa", at, fmt.Sprintf("the guest has %d NUMA nodes and does not know which one this is on", f.Nodes)),
			"a node", "rebuild the VM: its host puts each VF behind a PCI expander of its node")
	}
	if n.Channels == nil && n.Netdev != "" {
		b.add(preflight.Info, "guest.queues", at, "the driver does not tell its queues")
	}
	for _, d := range n.RDMA {
		if d.NodeGUID == 0 {
			want(b.add(preflight.Failed, "guest.guid", d.Name, "node GUID 0"), "a GUID that is not zero: rdma_cm crashes on it",
				"rebuild the VM; if it stays, its host's agent tells why in the VF's state")
		}
		if d.Provider != "" {
			want(b.add(preflight.Failed, "guest.provider", d.Name, d.Provider), "a provider that goes with the kernel's driver: programs find no device without it",
				"install rdma-core and driver from one source: both from the image's distribution, or both from the NIC's vendor")
		}
		for _, p := range d.Ports {
			b.port(c, n, d, p)
		}
	}
}

func (b *book) port(c Config, n NIC, d Device, p Port) {
	at := fmt.Sprintf("%s/%d", d.Name, p.Number)
	if p.LinkLayer != "Ethernet" {
		b.add(preflight.Info, "guest.port", at, "link layer "+p.LinkLayer)
		return
	}
	if p.State != "ACTIVE" {
		want(b.add(preflight.Failed, "guest.port", at, p.State), "ACTIVE", "ip link set "+n.name()+" up")
		return
	}
	if g, ok := p.Pick(n.Netdev); ok {
		b.add(preflight.OK, "guest.gid", at, fmt.Sprintf("%s at index %d", g.Addr, g.Index))
	} else {
		want(b.add(preflight.Failed, "guest.gid", at, "no RoCE v2 entry of an address that routers take"), "one for the netdev's address",
			"give "+n.name()+" its address (ip addr); cloud-init's network-config has it")
	}
	switch mtu := preflight.RoCEMTU(n.MTU); {
	case n.MTU == 0:
	case mtu < c.MinMTU:
		want(b.add(preflight.Warning, "guest.mtu", at, fmt.Sprintf("%d of the netdev leave a RoCE MTU of %d", n.MTU, mtu)),
			strconv.Itoa(c.MinMTU), "set the network's mtu in Verbena, so that host, VF and guest agree")
	default:
		b.add(preflight.OK, "guest.mtu", at, fmt.Sprintf("RoCE MTU %d", mtu))
	}
}
