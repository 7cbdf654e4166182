package preflight

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/verbena-cloud/verbena/internal/dcb"
	"github.com/verbena-cloud/verbena/internal/pci"
	"github.com/verbena-cloud/verbena/internal/roce"
)

// good is a host as it should be.
func good() Facts {
	f := Facts{
		Root: true, Kernel: "6.12.0", CommandLine: []string{"intel_iommu=on", "iommu=pt"}, IOMMUGroups: 40, Lockdown: "none",
		Modules: map[string]bool{}, Nodes: map[string]bool{"/dev/vfio/vfio": true, "/dev/infiniband/rdma_cm": true, "/dev/infiniband/uverbs0": true},
		Hugepages: []Hugepages{{Node: 0, Size: 2 << 20, Total: 512, Free: 512}}, Memlock: Limit{Known: true, Unlimited: true}, Firewall: Firewall{Known: true},
	}
	for _, m := range modules() {
		f.Modules[m] = true
	}
	addr := roce.PCIAddr{Bus: 0x3b}
	mode := dcb.HostIEEE
	guid := roce.GUID(0xb83fd203009a1ef0)
	ip := netip.MustParseAddr("10.0.0.7")
	f.PFs = []PF{{
		Address: addr, Driver: "mlx5_core", Link: "ens1f0", NUMA: 1, Carrier: new(true), Speed: 100000, MTU: 9000, Addresses: []netip.Addr{ip},
		Eswitch: "legacy", Path: []Bridge{{Address: "0000:3a:00.0", Known: true, ACS: &pci.ACS{Can: pci.Isolating, On: pci.Isolating}}},
		Firmware: "22.31.1014", Board: "MT_0000000359", PCIe: PCIe{Speed: 16, MaxSpeed: 16, Width: 16, MaxWidth: 16, UpSpeed: 16, UpWidth: 16},
		SRIOV: SRIOV{Present: true, Total: 16, Num: 1},
		VFs:   []VF{{Driver: "vfio-pci", Group: "77", GroupNode: true}},
		DCB:   &dcb.State{Mode: &mode, PFC: &dcb.PFC{Enabled: dcb.Of(3)}, Apps: []dcb.App{{Selector: dcb.DSCP, Protocol: 26, Priority: 3}}},
	}}
	f.RDMA = []RDMADevice{{Name: "mlx5_0", Address: &addr, NodeGUID: guid, Uverbs: "uverbs0", Ports: []Port{{
		Number: 1, State: "ACTIVE", LinkLayer: "Ethernet", CMMode: "RoCE v2", GIDs: []GID{{Index: 3, Addr: ip, V2: true, Link: "ens1f0"}},
	}}}}
	return f
}

func TestGoodHost(t *testing.T) {
	for _, f := range Check(good(), Default()) {
		if f.Level != OK {
			t.Errorf("%+v", f)
		}
	}
	if fixes := Fixes(good()); len(fixes) > 0 {
		t.Errorf("fixes of a good host: %v", fixes)
	}
}

// TestFaults: each fault gives its finding at its level. Those with a scenario's number are in scenario_test.go.
func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		check string
		level Level
		seen  string
		spoil func(*Facts)
	}{
		"no NIC":                      {"nic.present", Failed, "no NIC", func(f *Facts) { f.PFs, f.RDMA = nil, nil }},
		"node missing":                {"kernel.nodes", Failed, "missing", func(f *Facts) { delete(f.Nodes, "/dev/vfio/vfio") }},
		"switchdev":                   {"nic.eswitch", Warning, "without a bond", func(f *Facts) { f.PFs[0].Eswitch = "switchdev" }},
		"ACS unseen":                  {"iommu.acs", Unknown, "0000:3a:00.0", func(f *Facts) { f.PFs[0].Path[0] = Bridge{Address: "0000:3a:00.0"} }},
		"only RoCE v1":                {"rdma.gid", Failed, "no RoCE v2", func(f *Facts) { f.RDMA[0].Ports[0].GIDs[0].V2 = false }},
		"address without GID":         {"rdma.gid", Failed, "10.0.0.8", func(f *Facts) { f.PFs[0].Addresses = append(f.PFs[0].Addresses, netip.MustParseAddr("10.0.0.8")) }},
		"port down":                   {"rdma.state", Failed, "DOWN", func(f *Facts) { f.RDMA[0].Ports[0].State = "DOWN" }},
		"no carrier":                  {"link.carrier", Failed, "no carrier", func(f *Facts) { f.PFs[0].Carrier = new(false) }},
		"small MTU":                   {"link.mtu", Failed, "RoCE MTU of 1024", func(f *Facts) { f.PFs[0].MTU = 1500 }},
		"slow slot":                   {"nic.pcie", Warning, "8 GT/s", func(f *Facts) { f.PFs[0].PCIe.Speed = 8 }},
		"unknown NUMA node":           {"nic.numa", Warning, "does not say", func(f *Facts) { f.PFs[0].NUMA = -1 }},
		"PFC on all":                  {"nic.pfc", Failed, "0,1,2,3,4,5,6,7", func(f *Facts) { f.PFs[0].DCB.PFC.Enabled = 0xff }},
		"DSCP not trusted":            {"nic.trust", Failed, "DSCP 26", func(f *Facts) { f.PFs[0].DCB.Apps = []dcb.App{} }},
		"firmware owns DCB":           {"nic.dcbx", Warning, "lld-managed", func(f *Facts) { m := dcb.LLD | dcb.IEEE; f.PFs[0].DCB.Mode = &m }},
		"ECN off":                     {"nic.ecn", Failed, "off", func(f *Facts) { f.PFs[0].ECN = new(false) }},
		"firewall":                    {"net.firewall", Failed, "4791", func(f *Facts) { f.Firewall.Drops = []string{"udp dport 4791 drop"} }},
		"firewall unreadable":         {"net.firewall", Unknown, "could not be read", func(f *Facts) { f.Firewall.Known = false }},
		"little memlock":              {"memory.memlock", Warning, "64 KiB", func(f *Facts) { f.Memlock = Limit{Known: true, Bytes: 64 << 10} }},
		"InfiniBand":                  {"rdma.layer", Info, "InfiniBand", func(f *Facts) { f.RDMA[0].Ports[0].LinkLayer = "InfiniBand" }},
		"rdma_cm begins with RoCE v1": {"rdma.cm", Warning, "RoCE v1", func(f *Facts) { f.RDMA[0].Ports[0].CMMode = "IB/RoCE v1" }},
		"unread":                      {"host.unseen", Unknown, "EIO", func(f *Facts) { f.Unseen = []string{"x: EIO"} }},
	} {
		t.Run(name, func(t *testing.T) { tells(t, c.check, c.level, c.seen, c.spoil) })
	}
}

// TestVFLag: a bond of ports in switchdev mode is what ha: vf-lag needs, so neither is complained about.
func TestVFLag(t *testing.T) {
	f := good()
	f.PFs[0].Eswitch, f.PFs[0].Bond = "switchdev", "bond0"
	for _, x := range Check(f, Default()) {
		if x.Level != OK {
			t.Errorf("%+v", x)
		}
	}
}

// TestHardwired: what a port can't switch is as if it were on, and without an IOMMU nobody asks.
func TestHardwired(t *testing.T) {
	f := good()
	f.PFs[0].Path[0].ACS = &pci.ACS{Can: pci.SourceValidation, On: pci.SourceValidation}
	if list := Check(f, Default()); !slices.ContainsFunc(list, func(x Finding) bool { return x.Check == "iommu.acs" && x.Level == OK }) {
		t.Errorf("%+v", list)
	}
	f.IOMMUGroups = 0
	if list := Check(f, Default()); slices.ContainsFunc(list, func(x Finding) bool { return x.Check == "iommu.acs" }) {
		t.Errorf("%+v", list)
	}
}

func TestMatrix(t *testing.T) {
	c := Default()
	c.Pairs = []Pair{{Driver: "mlx5_core", Board: "MT_0000000359", MinFirmware: "22.9.1", Bad: []string{"22.35.1012"}}}
	for firmware, want := range map[string]Level{"22.31.1014": OK, "22.8.9999": Failed, "22.35.1012": Failed} {
		f := good()
		f.PFs[0].Firmware = firmware
		list := Check(f, c)
		i := slices.IndexFunc(list, func(x Finding) bool { return x.Check == "nic.firmware" })
		if i < 0 || list[i].Level != want {
			t.Errorf("firmware %s: %+v", firmware, list)
		}
	}
	f := good()
	f.PFs[0].Board = "another"
	if list := Check(f, c); !slices.ContainsFunc(list, func(x Finding) bool { return x.Check == "nic.firmware" && x.Level == Warning }) {
		t.Errorf("a pair that nobody tried: %+v", list)
	}
}

func TestFixes(t *testing.T) {
	f := good()
	delete(f.Modules, "rdma_ucm")
	if got := Fixes(f); len(got) != 1 || got[0].Command() != "modprobe rdma_ucm" {
		t.Errorf("%v", got)
	}
}

func TestConfig(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
	err := Config{Priority: 8, DSCP: 64, MinMTU: 1500, Pairs: []Pair{{}}}.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
}

func FuzzVersions(f *testing.F) {
	f.Add("22.31.1014", "22.9")
	f.Fuzz(func(t *testing.T, a, b string) {
		if Versions(a, b) != -Versions(b, a) || Versions(a, a) != 0 {
			t.Errorf("%q and %q are not ordered", a, b)
		}
	})
}
