package preflight

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
)

// device checks one RDMA device of the host.
func (b *book) device(f Facts, d RDMADevice) {
	if d.NodeGUID == 0 {
		b.add(Failed, "rdma.guid", d.Name, "node GUID 0").want("a GUID that is not zero: rdma_cm crashes on it", "give the function a MAC and bind it again")
	} else {
		b.ok("rdma.guid", d.Name, "%s", d.NodeGUID)
	}
	if d.Uverbs == "" || !f.Nodes["/dev/infiniband/"+d.Uverbs] {
		b.add(Failed, "rdma.uverbs", d.Name, "no device node for verbs").want("/dev/infiniband/uverbsN", "modprobe ib_uverbs")
	}
	if d.Provider != "" {
		b.add(Warning, "rdma.provider", d.Name, d.Provider).want("a provider that goes with this kernel's driver; programs of the host find no device without it, VMs bring their own",
			"install rdma-core and driver from one source: both from the distribution, or both from the NIC's vendor")
	}
	for _, p := range d.Ports {
		b.port(f, d, p)
	}
}

// Misfits reads what libibverbs prints about devices whose kernel driver its providers do not go with (match_device in
// libibverbs/init.c of rdma-core), by RDMA device.
func Misfits(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		var provider, at string
		var kernel, low, high uint32
		n, _ := fmt.Sscanf(line, "libibverbs: Warning: Driver %s does not support the kernel ABI of %d (supports %d to %d) for device %s", &provider, &kernel, &low, &high, &at)
		if n == 5 {
			out[path.Base(at)] = fmt.Sprintf("provider %.32s goes with kernel ABI %d to %d, this kernel's driver has %d", provider, low, high, kernel)
		}
	}
	return out
}

func (b *book) port(f Facts, d RDMADevice, p Port) {
	at := fmt.Sprintf("%s/%d", d.Name, p.Number)
	if p.LinkLayer != "Ethernet" {
		b.add(Info, "rdma.layer", at, p.LinkLayer).want("Ethernet: Verbena works with RoCE v2", "mstconfig set LINK_TYPE_P1=2 (ETH) where the card can do both")
		return
	}
	switch {
	case p.State == "ACTIVE":
		b.ok("rdma.state", at, "%s", p.State)
	case d.Virtual: // an unused VF has no link
		b.add(Info, "rdma.state", at, p.State)
	default:
		b.add(Failed, "rdma.state", at, p.State).want("ACTIVE", "bring its netdev up; see link.carrier")
	}
	b.gids(f, at, d, p)
	switch p.CMMode {
	case "", "RoCE v2":
	default:
		b.add(Warning, "rdma.cm", at, "rdma_cm of the host begins with "+p.CMMode).want("RoCE v2", fmt.Sprintf("echo 'RoCE v2' > /sys/kernel/config/rdma_cm/%s/ports/%d/default_roce_mode", d.Name, p.Number))
	}
}

// gids wants a RoCE v2 entry for each address of the port's netdev, and looks for them by value: an index
// changes when a link flaps or an address comes.
func (b *book) gids(f Facts, at string, d RDMADevice, p Port) {
	var have []netip.Addr
	for _, g := range p.GIDs {
		if g.V2 {
			have = append(have, g.Addr)
		}
	}
	if len(have) == 0 {
		if d.Virtual || p.State != "ACTIVE" {
			return
		}
		b.add(Failed, "rdma.gid", at, "no RoCE v2 entry in the GID table").want("one for each address", "check that the netdev is up and has an address; RoCE v1 only means an old driver")
		return
	}
	i := slices.IndexFunc(f.PFs, func(x PF) bool { return d.Address != nil && x.Address == *d.Address })
	if i < 0 {
		b.ok("rdma.gid", at, "%d RoCE v2 entries", len(have))
		return
	}
	var missing []string
	for _, a := range f.PFs[i].Addresses {
		if !slices.Contains(have, a) {
			missing = append(missing, a.String())
		}
	}
	switch {
	case len(missing) > 0:
		b.add(Failed, "rdma.gid", at, "no RoCE v2 entry for "+strings.Join(missing, ", ")).want("one for each address of the netdev", "take the address away and add it again; if it stays away, the table is full or the driver lags")
	case !slices.ContainsFunc(have, netip.Addr.Is4):
		b.add(Info, "rdma.gid", at, "only IPv6 entries, since the netdev has no IPv4 address").want("an entry of the family that programs ask for")
	default:
		b.ok("rdma.gid", at, "%d RoCE v2 entries", len(have))
	}
}
