package preflight

import (
	"fmt"
	"slices"
	"strings"
)

// nics says whether there is anything to work with.
func (b *book) nics(f Facts) {
	capable := 0
	for _, p := range f.PFs {
		if p.SRIOV.Present {
			capable++
		}
	}
	switch {
	case capable > 0:
		b.ok("nic.present", "", "%d ports with SR-IOV, %d RDMA devices", capable, len(f.RDMA))
	case len(f.PFs) > 0:
		b.add(Failed, "nic.present", "", fmt.Sprintf("%d network ports that RDMA runs on, none with SR-IOV", len(f.PFs))).
			want("a NIC with SR-IOV", "turn SR-IOV on in the BIOS and in the NIC's firmware (mstconfig -d ADDRESS set SRIOV_EN=1 NUM_OF_VFS=N), then restart")
	default:
		b.add(Failed, "nic.present", "", "no NIC with SR-IOV and no RDMA NIC").
			want("a NIC that does RoCE v2 and SR-IOV, with its driver loaded", "lspci -nn shows what is there; mlx5, bnxt_en with bnxt_re and ice with irdma do both")
	}
}

// kernel checks modules, device nodes, lockdown and the RDMA namespace mode.
func (b *book) kernel(f Facts) {
	var missing, fix []string
	for _, m := range modules() {
		if !f.Modules[m] {
			missing = append(missing, m)
			fix = append(fix, "modprobe "+m)
		}
	}
	if len(missing) > 0 {
		b.add(Failed, "kernel.modules", "", "not loaded: "+strings.Join(missing, ", ")).want(strings.Join(modules(), ", ")+" loaded", fix...)
	} else {
		b.ok("kernel.modules", "", "%s", strings.Join(modules(), ", "))
	}
	for _, n := range []struct{ path, module string }{{"/dev/vfio/vfio", "vfio_iommu_type1"}, {"/dev/infiniband/rdma_cm", "rdma_ucm"}} {
		switch {
		case f.Nodes[n.path]:
			b.ok("kernel.nodes", n.path, "there")
		case f.Modules[n.module]:
			b.add(Failed, "kernel.nodes", n.path, "missing, though "+n.module+" is loaded").want("made by udev", "systemctl restart systemd-udevd && udevadm trigger")
		}
	}
	switch f.Lockdown {
	case "", "none":
	default:
		b.add(Warning, "kernel.lockdown", "", f.Lockdown).want("none", "turn Secure Boot off where firmware tools or debugfs (ECN of the kernel's mlx5 driver) are needed; VMs work with it")
	}
	if f.NetnsShared != nil && !*f.NetnsShared {
		b.add(Info, "kernel.netns", "", "RDMA devices belong to one network namespace each (exclusive)").want("shared, unless containers need it", "rdma system set netns shared")
	}
}

// iommu checks that VFs can be handed to VMs one by one.
func (b *book) iommu(f Facts) {
	asked := slices.ContainsFunc(f.CommandLine, func(a string) bool {
		name, values, _ := strings.Cut(a, "=")
		return (name == "intel_iommu" || name == "amd_iommu" || name == "iommu") && slices.Contains(strings.Split(values, ","), "on") || a == "iommu=pt"
	})
	if f.IOMMUGroups == 0 {
		seen := "no IOMMU groups"
		if asked {
			seen += ", though the kernel's arguments ask for it: " + strings.Join(f.CommandLine, " ")
			b.add(Failed, "iommu.on", "", seen).want("IOMMU groups in /sys/kernel/iommu_groups", "turn VT-d or AMD-Vi on in the BIOS")
		} else {
			b.add(Failed, "iommu.on", "", seen).want("IOMMU groups in /sys/kernel/iommu_groups", "turn VT-d or AMD-Vi on in the BIOS",
				"add intel_iommu=on iommu=pt (Intel) or iommu=pt (AMD) to the kernel's arguments and restart")
		}
		return
	}
	b.ok("iommu.on", "", "%d groups", f.IOMMUGroups)
	if !slices.Contains(f.CommandLine, "iommu=pt") && !slices.Contains(f.CommandLine, "iommu.passthrough=1") {
		b.add(Info, "iommu.passthrough", "", "devices of the host itself are translated too").want("iommu=pt", "add iommu=pt to the kernel's arguments: the host's own DMA gets faster, VMs are isolated either way")
	}
}

// memory checks hugepages and what may be locked.
func (b *book) memory(f Facts) {
	var have []string
	for _, h := range f.Hugepages {
		if h.Total > 0 {
			have = append(have, fmt.Sprintf("node %d: %d × %d MiB, %d free", h.Node, h.Total, h.Size>>20, h.Free))
		}
	}
	if len(have) > 0 {
		b.ok("memory.hugepages", "", "%s", strings.Join(have, "; "))
	} else {
		b.add(Info, "memory.hugepages", "", "none reserved").want("hugepages on each NUMA node with an RDMA NIC, for flavors that ask for them",
			"add hugepagesz=1G hugepages=N to the kernel's arguments, or write N to /sys/devices/system/node/nodeM/hugepages/hugepages-2048kB/nr_hugepages")
	}
	const little = 64 << 20
	switch l := f.Memlock; {
	case !l.Known:
	case l.Unlimited || l.Bytes >= little:
		b.ok("memory.memlock", "", "%s", l)
	default:
		b.add(Warning, "memory.memlock", "", l.String()).want("at least 64 MiB for programs on the host that register RDMA memory (VMs get theirs from libvirt)",
			"in /etc/security/limits.d/rdma.conf: * - memlock unlimited")
	}
}

// String is the limit in MiB.
func (l Limit) String() string {
	if l.Unlimited {
		return "unlimited"
	}
	return fmt.Sprintf("%d KiB", l.Bytes>>10)
}

// network checks who else decides about RoCE packets on this host.
func (b *book) network(f Facts) {
	switch {
	case !f.Firewall.Known:
		b.add(Unknown, "net.firewall", "", "the packet filter's rules could not be read").want("no rule that drops UDP 4791", "run it as root with nft installed")
	case len(f.Firewall.Drops) > 0:
		b.add(Failed, "net.firewall", "", join(f.Firewall.Drops)).want("UDP 4791 (RoCE v2) passes", "remove the rule, or accept udp dport 4791 before it")
	default:
		b.ok("net.firewall", "", "no rule drops UDP 4791")
	}
	if len(f.LLDPAgents) > 0 && len(f.PFs) > 0 {
		b.add(Warning, "net.lldp", "", join(f.LLDPAgents)+" runs and may change PFC and ETS when the switch says so").
			want("one owner of DCB", "systemctl disable --now "+strings.Join(f.LLDPAgents, " ")+", or let it leave DCB alone (lldpad: adminStatus disabled)")
	}
}
