package preflight

import (
	"fmt"
	"slices"
	"strings"

	"github.com/verbena-cloud/verbena/internal/pci"
)

// switchdev is the mode in which the host switches between VFs.
const switchdev = "switchdev"

// incapable says why there is no SR-IOV: the card does not have it, or the kernel could not take it up.
func (b *book) incapable(p PF) {
	firmware := "turn SR-IOV on in the BIOS and in the NIC's firmware (mstconfig -d " + p.Address.String() + " set SRIOV_EN=1 NUM_OF_VFS=N), then restart"
	switch n := p.SRIOV.Listed; {
	case n == nil:
		b.add(Failed, "sriov.capable", p.name(), "no SR-IOV").want("SR-IOV on in firmware and BIOS", firmware)
	case *n == 0:
		b.add(Failed, "sriov.capable", p.name(), "no SR-IOV: the card itself does not offer it").want("SR-IOV on in the NIC's firmware", firmware)
	default:
		b.add(Failed, "sriov.capable", p.name(), fmt.Sprintf("no SR-IOV, though the card offers %d VFs", *n)).want("sriov_totalvfs in sysfs",
			"use a kernel with CONFIG_PCI_IOV; if it has that, turn SR-IOV on in the BIOS or add pci=realloc to the kernel's arguments: dmesg tells what "+p.Address.String()+" had no room for")
	}
}

// eswitch checks that VFs are switched as Verbena sets them up.
func (b *book) eswitch(p PF) {
	switch {
	case p.Eswitch == "":
	case p.Eswitch != switchdev:
		b.ok("nic.eswitch", p.name(), "%s", p.Eswitch)
	case p.Bond != "":
		b.ok("nic.eswitch", p.name(), "switchdev, and a member of %s: its VFs can fail over (ha: vf-lag)", p.Bond)
	default:
		b.add(Warning, "nic.eswitch", p.name(), "switchdev, without a bond").
			want("legacy: in switchdev mode a VF has no network until its representor is bridged, and the driver refuses its VLAN and rate",
				"free its VFs, then: devlink dev eswitch set pci/"+p.Address.String()+" mode legacy; or bond both ports for flavors with ha: vf-lag")
	}
}

// acs checks what keeps the functions behind a PCI port from reaching each other past the IOMMU. IOMMU groups
// are the kernel's own judgement of the same; vf.group holds them.
func (b *book) acs(f Facts, p PF) {
	if f.IOMMUGroups == 0 || len(p.Path) == 0 {
		return
	}
	var good, bad, unknown []string
	for _, up := range p.Path {
		switch why := up.lacks(); {
		case !up.Known:
			unknown = append(unknown, up.name())
		case why != "":
			bad = append(bad, up.name()+" "+why)
		default:
			good = append(good, up.name())
		}
	}
	shared := slices.ContainsFunc(p.VFs, func(v VF) bool { return len(v.Mates) > 0 })
	made := slices.ContainsFunc(f.CommandLine, func(a string) bool { return strings.HasPrefix(a, "pcie_acs_override") })
	const on = "ACS on at each PCI port above the card"
	const fix = "turn ACS on in the BIOS, or move the card to a slot whose root port has it"
	seen, at := strings.Join(bad, ", "), p.name()
	switch {
	case len(bad) == 0 && len(unknown) > 0:
		b.add(Unknown, "iommu.acs", at, "the configuration space of "+join(unknown)+" could not be read to its end").want(on, "run it as root")
	case len(bad) == 0:
		b.ok("iommu.acs", at, "on at %s", join(good))
	case shared:
		b.add(Failed, "iommu.acs", at, seen+", so VFs share a group").want(on, fix)
	case made:
		b.add(Warning, "iommu.acs", at, seen+", and pcie_acs_override hides it: VMs may reach each other's memory past the IOMMU").want(on+", and no pcie_acs_override", fix)
	case len(p.VFs) == 0:
		b.add(Warning, "iommu.acs", at, seen+", so VFs may come into one group").want(on, fix)
	default:
		b.add(Info, "iommu.acs", at, seen+", but the kernel knows that it keeps functions apart: each VF has a group of its own").want(on)
	}
}

func (u Bridge) name() string {
	if u.Address == "" {
		return "a bridge"
	}
	return u.Address
}

// lacks says what a port's ACS lacks, "" where nothing. A service that a port can't switch is as if it
// were on (pci_acs_flags_enabled in drivers/pci/pci.c).
func (u Bridge) lacks() string {
	switch {
	case !u.Known:
		return ""
	case u.ACS == nil:
		return "has no ACS"
	case !u.ACS.On.Has(u.ACS.Can & pci.Isolating):
		return fmt.Sprintf("has ACS off (%#x of %#x)", uint16(u.ACS.On&pci.Isolating), uint16(u.ACS.Can&pci.Isolating))
	}
	return ""
}
