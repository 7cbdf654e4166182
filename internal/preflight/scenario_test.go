package preflight

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/verbena-cloud/verbena/internal/pci"
	"github.com/verbena-cloud/verbena/internal/roce"
)

// tells spoils a good host and wants this finding.
func tells(t *testing.T, check string, level Level, seen string, spoil func(*Facts)) Finding {
	t.Helper()
	facts := good()
	spoil(&facts)
	list := Check(facts, Default())
	i := slices.IndexFunc(list, func(f Finding) bool { return f.Check == check && f.Level == level })
	if i < 0 {
		t.Fatalf("no %s finding of %s in %+v", level, check, list)
	}
	f := list[i]
	if !strings.Contains(f.Seen, seen) || f.Doc == "" {
		t.Errorf("%+v", f)
	}
	if f.Level == Failed && (f.Expected == "" || len(f.Fix) == 0) {
		t.Errorf("a failure that says not what to do: %+v", f)
	}
	return f
}

// advises wants these words in what the finding says to do.
func (f Finding) advises(t *testing.T, words ...string) {
	t.Helper()
	for _, w := range words {
		if !slices.ContainsFunc(f.Fix, func(fix string) bool { return strings.Contains(fix, w) }) {
			t.Errorf("no %q in %q", w, f.Fix)
		}
	}
}

func TestT03_SRIOVOff(t *testing.T) {
	off := func(listed *int) func(*Facts) {
		return func(f *Facts) { f.PFs[0].SRIOV, f.PFs[0].VFs = SRIOV{Listed: listed}, nil }
	}
	tells(t, "sriov.capable", Failed, "no SR-IOV", off(nil)).advises(t, "SRIOV_EN=1")
	tells(t, "sriov.capable", Failed, "the card itself", off(new(0))).advises(t, "SRIOV_EN=1")
	tells(t, "sriov.capable", Failed, "offers 8 VFs", off(new(8))).advises(t, "CONFIG_PCI_IOV")
}

func TestT05_FewerVFsThanAsked(t *testing.T) {
	tells(t, "sriov.vfs", Failed, "sriov_numvfs is 8", func(f *Facts) { f.PFs[0].SRIOV.Num = 8 }).advises(t, "dmesg")
}

func TestT09_VFWithoutGUID(t *testing.T) {
	tells(t, "vf.guid", Failed, "GUID 0", func(f *Facts) { f.PFs[0].VFs[0].NodeGUID = new(roce.GUID(0)) }).advises(t, "binds the VF again")
}

// TestT17_IOMMUArgumentsInAList: what is asked for in a list of values is not advised again, so nobody restarts
// a host for ever.
func TestT17_IOMMUArgumentsInAList(t *testing.T) {
	for _, args := range []string{"intel_iommu=on,sm_on", "intel_iommu=sm_on,on", "amd_iommu=on", "iommu=pt"} {
		f := tells(t, "iommu.on", Failed, args, func(f *Facts) { f.IOMMUGroups, f.CommandLine = 0, []string{args} })
		f.advises(t, "BIOS")
		if strings.Contains(strings.Join(f.Fix, " "), "kernel's arguments") {
			t.Errorf("%s: %q", args, f.Fix)
		}
	}
	for _, args := range []string{"intel_iommu=off", "intel_iommu=sm_on", "xintel_iommu=on", "intel_iommu=on_x"} {
		tells(t, "iommu.on", Failed, "no IOMMU groups", func(f *Facts) { f.IOMMUGroups, f.CommandLine = 0, []string{args} }).advises(t, "intel_iommu=on")
	}
}

// TestT21_FirmwareWaits: Verbena never changes firmware; what somebody stored is told before a restart makes it
// run, with the VFs freed first.
func TestT21_FirmwareWaits(t *testing.T) {
	tells(t, "nic.pending", Warning, "fw 1 → 2", func(f *Facts) { f.PFs[0].Pending = []string{"fw 1 → 2"} }).advises(t, "after its VFs are free")
	c := Default()
	c.Pairs = []Pair{{Driver: "mlx5_core", MinFirmware: "99"}}
	list := Check(good(), c)
	i := slices.IndexFunc(list, func(f Finding) bool { return f.Check == "nic.firmware" && f.Level == Failed })
	if i < 0 {
		t.Fatalf("%+v", list)
	}
	list[i].advises(t, "after its VFs are free")
}

func TestT21_Lockdown(t *testing.T) {
	tells(t, "kernel.lockdown", Warning, "integrity", func(f *Facts) { f.Lockdown = "integrity" }).advises(t, "VMs work with it")
}

// abi is what ibv_devices prints where a kernel driver is newer than its provider; the form of the complaint is that of
// match_device in libibverbs/init.c of rdma-core.
const abi = `    device                 node GUID
    ------              ----------------
    mlx5_0              b83fd203009a1ef0

libibverbs: Warning: Driver bnxt_re does not support the kernel ABI of 8 (supports 1 to 1) for device /sys/class/infiniband/rdma0
`

func TestT26_ProviderOfAnotherABI(t *testing.T) {
	said := Misfits(abi)
	want := map[string]string{"rdma0": "provider bnxt_re goes with kernel ABI 1 to 1, this kernel's driver has 8"}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Error(diff)
	}
	tells(t, "rdma.provider", Warning, "kernel's driver has 8", func(f *Facts) { f.RDMA[0].Provider = said["rdma0"] }).advises(t, "from one source")
}

func FuzzMisfits(f *testing.F) {
	f.Add(abi)
	f.Add("libibverbs: Warning: Driver x does not support the kernel ABI of 4294967296 (supports 1 to 1) for device /")
	f.Fuzz(func(t *testing.T, text string) {
		if got := Misfits(text); len(got) > strings.Count(text, "libibverbs: ") {
			t.Errorf("%q of %q", got, text)
		}
	})
}

func TestT27_NoDriver(t *testing.T) {
	tells(t, "nic.driver", Failed, "no driver", func(f *Facts) { f.PFs[0] = PF{Address: f.PFs[0].Address, SRIOV: f.PFs[0].SRIOV} }).advises(t, "lspci -k -s 0000:3b:00.0")
}

// TestT30_GroupWithOthers: the group is listed, and ACS is what keeps functions apart.
func TestT30_GroupWithOthers(t *testing.T) {
	mate := func(f *Facts) { f.PFs[0].VFs[0].Mates = []string{"0000:3b:00.1"} }
	tells(t, "vf.group", Failed, "0000:3b:00.1", mate).advises(t, "ACS")
	tells(t, "iommu.acs", Failed, "share a group", func(f *Facts) { mate(f); f.PFs[0].Path[0].ACS = nil }).advises(t, "ACS")
	tells(t, "iommu.acs", Info, "0000:3a:00.0 has no ACS", func(f *Facts) { f.PFs[0].Path[0].ACS = nil })
	tells(t, "iommu.acs", Warning, "a bridge has ACS off (0x1 of 0x1d)", func(f *Facts) {
		f.PFs[0].Path[0] = Bridge{Known: true, ACS: &pci.ACS{Can: 0x7d, On: 0x61}}
		f.PFs[0].SRIOV.Num, f.PFs[0].VFs = 0, nil
	}).advises(t, "ACS")
	tells(t, "iommu.acs", Warning, "pcie_acs_override", func(f *Facts) {
		f.PFs[0].Path[0].ACS = nil
		f.CommandLine = append(f.CommandLine, "pcie_acs_override=downstream,multifunction")
	}).advises(t, "ACS")
}

func TestT31_IOMMUOff(t *testing.T) {
	tells(t, "iommu.on", Failed, "no IOMMU groups", func(f *Facts) { f.IOMMUGroups, f.CommandLine, f.PFs[0].VFs = 0, nil, nil }).advises(t, "BIOS", "intel_iommu=on")
	tells(t, "vf.group", Failed, "no IOMMU group", func(f *Facts) { f.PFs[0].VFs[0].Group = "" }).advises(t, "BIOS")
}

func TestT33_ModuleNotLoaded(t *testing.T) {
	missing := func(f *Facts) { delete(f.Modules, "rdma_cm") }
	tells(t, "kernel.modules", Failed, "rdma_cm", missing).advises(t, "modprobe rdma_cm")
	f := good()
	missing(&f)
	if fixes := Fixes(f); len(fixes) != 1 || fixes[0].Command() != "modprobe rdma_cm" {
		t.Errorf("%v", fixes)
	}
}

func TestT34_ExclusiveNamespaces(t *testing.T) {
	tells(t, "kernel.netns", Info, "exclusive", func(f *Facts) { f.NetnsShared = new(false) }).advises(t, "set netns shared")
}

// TestT38_GIDsByValue: a link that flaps, or an address that comes, gives the entries other indexes and another
// order. They are found by what they are, so nothing is to be said of it.
func TestT38_GIDsByValue(t *testing.T) {
	table := func(list ...GID) []Finding {
		f := good()
		f.RDMA[0].Ports[0].GIDs = list
		return Check(f, Default())
	}
	v4, local := netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fe80::ba3f:d2ff:fe9a:1ef0")
	before := table(GID{Index: 1, Addr: local, V2: true}, GID{Index: 3, Addr: v4, V2: true})
	after := table(GID{Index: 5, Addr: v4, V2: true}, GID{Index: 1, Addr: local, V2: true})
	if diff := cmp.Diff(before, after); diff != "" || slices.ContainsFunc(after, func(f Finding) bool { return f.Level != OK }) {
		t.Errorf("%s\n%+v", diff, after)
	}
	// The old index taken by an entry of RoCE v1 is not the address's.
	tells(t, "rdma.gid", Failed, "10.0.0.7", func(f *Facts) {
		f.RDMA[0].Ports[0].GIDs = []GID{{Index: 1, Addr: local, V2: true}, {Index: 3, Addr: v4}}
	})
}

func TestT39_OnlyIPv6(t *testing.T) {
	tells(t, "rdma.gid", Info, "only IPv6 entries, since the netdev has no IPv4 address", func(f *Facts) {
		v6 := netip.MustParseAddr("2001:db8::7")
		f.PFs[0].Addresses[0], f.RDMA[0].Ports[0].GIDs[0].Addr = v6, v6
	})
}

func TestT41_LLDPAgentRuns(t *testing.T) {
	tells(t, "net.lldp", Warning, "lldpad", func(f *Facts) { f.LLDPAgents = []string{"lldpad"} }).advises(t, "systemctl disable --now lldpad")
}

func TestT42_ManagementPort(t *testing.T) {
	tells(t, "nic.management", Warning, "default route", func(f *Facts) { f.PFs[0].Management = true }).advises(t, "no VFs on it unless told")
}

func TestT49_ZeroGUID(t *testing.T) {
	tells(t, "rdma.guid", Failed, "GUID 0", func(f *Facts) { f.RDMA[0].NodeGUID = 0 }).advises(t, "bind it again")
}

func TestT50_BoundWithoutNode(t *testing.T) {
	tells(t, "vf.node", Failed, "/dev/vfio/77", func(f *Facts) { f.PFs[0].VFs[0].GroupNode = false }).advises(t, "bind it again")
}

// TestT51_SpeedOfTheNetdev: a port's speed is the netdev's; RDMA's rate of 100 Gb/s on a 400G port raises nothing.
func TestT51_SpeedOfTheNetdev(t *testing.T) {
	f := good()
	f.PFs[0].Speed = 400000
	list := Check(f, Default())
	if !slices.ContainsFunc(list, func(x Finding) bool { return x.Check == "link.speed" && x.Level == OK && x.Seen == "400 Gb/s" }) {
		t.Errorf("%+v", list)
	}
}

func TestT55_BondInLegacyMode(t *testing.T) {
	tells(t, "sriov.bond", Warning, "bond0", func(f *Facts) { f.PFs[0].Bond = "bond0" }).advises(t, "dual-vf")
}
