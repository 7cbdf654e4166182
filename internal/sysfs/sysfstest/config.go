package sysfstest

import (
	"fmt"
	"syscall"

	"github.com/verbena-cloud/verbena/internal/dcb"
)

// Config describes a simulated host.
type Config struct {
	Cells   []Cell // NUMA nodes 0, 1, …; none is one node of 8 CPUs and 32 GiB
	Cards   []Card
	Modules []string // loaded at boot beside those of the cards; vfio-pci is not, unless named here
	Release string   // of the kernel; default 6.12.0-simulated
	Route   string   // netdev of the default route, "" = none
	NoIOMMU bool     // off in firmware or on the command line
	OldBind bool     // before Linux 5.3: bind of a VF without override and autoprobe "succeeds" and does nothing
}

// Cell is a NUMA node.
type Cell struct {
	CPUs   string // kernel list format
	Memory int64  // bytes, hugepages included
	Huge2M int64  // reserved pages
	Huge1G int64
}

// Card is a NIC with one or more PFs.
type Card struct {
	Driver      string // mlx5_core, bnxt_en, ice or igb; it decides whatever is not said here
	Serial      string // in the vital product data; igb has none
	Firmware    string
	NUMA        int  // -1 = the kernel does not know
	OFED        bool // NVIDIA's driver package: files for congestion control below the netdev
	SharedGroup bool // no ACS on the way: all functions of the card are in one IOMMU group
	Caps        *Caps
	PFs         []PF
}

// PF is a physical function, one port of its card.
type PF struct {
	PCI      string
	MAC      string // permanent
	Netdev   string
	RDMA     string // name of its RDMA device; default by driver, igb has none
	TotalVFs int
	Speed    int64 // Mb/s
	MTU      int
	Down     bool // administratively, after boot
	NoCable  bool
	NoDriver bool
	Bond     string    // name of the bond that it is a port of
	DCBX     *dcb.Mode // who owns DCB after boot; nil = as the driver does
	Quirks   Quirks
}

// Quirks is what a driver, its firmware or the machine around it does wrong.
type Quirks struct {
	NoSRIOV     bool          // off in firmware: the kernel shows no sriov_* files
	NoConfigure bool          // the driver has no sriov_configure
	GiveAtMost  int           // enables no more VFs than that and calls it success; 0 = all
	EnableErr   syscall.Errno // enabling VFs fails: ENOMEM without room for their BARs
	LateLinks   int           // calls until virtfn, physfn, iommu_group and driver links of new VFs show; Never = at Settle
	NoNetdev    int           // so many next binds of a VF of this PF leave net/ empty
	ResetErr    syscall.Errno // resetting a VF fails
	ResetLoses  bool          // resetting a VF loses what the PF was told of it
	ForgetsPFC  bool          // accepts flow control and does nothing
	LateCarrier int           // calls until the carrier is back after going up or a change of VFs; Never = at Settle
}

// Never is the number of calls until something that only Settle makes happen.
const Never = 1 << 40

// Caps says what a driver can set on a VF: 0 = it can, else the errno that it refuses with. Silent
// attributes are not reported either.
type Caps struct {
	MAC, VLAN, QoS, SpoofCheck, Trust, LinkState, MinRate, MaxRate syscall.Errno

	SilentSpoofCheck, SilentTrust, SilentLinkState bool
	RateNeedsLink                                  bool // rates are EINVAL without carrier and above its speed
}

// profile is what a driver decides.
type profile struct {
	vendor, device, vfDevice, vfDriver, rdma string
	board                                    string
	caps                                     Caps
	first, stride                            int // routing id of the first VF of the card (0 = behind the PFs), step
	vpd, guidFromMAC                         bool
	vfStats                                  bool // the driver has ndo_get_vf_stats
	spoof                                    bool // new VFs have the spoof check on
	lateCarrier                              int
	fw                                       string
}

func profileOf(driver string) (profile, error) {
	switch driver {
	case "mlx5_core": // ConnectX-6 Dx
		return profile{vendor: "0x15b3", device: "0x101d", vfDevice: "0x101e", vfDriver: "mlx5_core", rdma: "mlx5_", board: "MT_0000000359",
			stride: 1, vpd: true, guidFromMAC: true, vfStats: true, fw: "22.41.1000"}, nil
	case "bnxt_en": // BCM57508
		return profile{vendor: "0x14e4", device: "0x1750", vfDevice: "0x1806", vfDriver: "bnxt_en", rdma: "bnxt_re", board: "BCM957508-P2100G",
			caps: Caps{MinRate: syscall.EINVAL}, first: 16, stride: 1, vpd: true, guidFromMAC: true, fw: "230.0.157.0"}, nil
	case "ice": // E810-C
		return profile{vendor: "0x8086", device: "0x1592", vfDevice: "0x1889", vfDriver: "iavf", rdma: "irdma", board: "E810",
			spoof: true, first: 8, stride: 1, vpd: true, guidFromMAC: true, vfStats: true, fw: "1.71"}, nil
	case "igb": // 82576, as measured
		return profile{vendor: "0x8086", device: "0x10c9", vfDevice: "0x10ca", vfDriver: "igbvf",
			caps:  Caps{LinkState: syscall.EOPNOTSUPP, MinRate: syscall.EINVAL, RateNeedsLink: true},
			spoof: true, first: 128, stride: 2, lateCarrier: 6}, nil
	}
	return profile{}, fmt.Errorf("no simulated driver %q: there are mlx5_core, bnxt_en, ice and igb", driver)
}

// DualPort returns an mlx5 card with two 100G ports at PCI bus, each with room for vfs VFs. id makes serial
// number and MACs different from those of other cards.
func DualPort(id int, bus uint8, numa, vfs int) Card {
	c := Card{Driver: "mlx5_core", Serial: fmt.Sprintf("MT2301X%05d", id), NUMA: numa}
	for port := range 2 {
		c.PFs = append(c.PFs, PF{
			PCI:    fmt.Sprintf("0000:%02x:00.%d", bus, port),
			MAC:    fmt.Sprintf("b8:ce:f6:%02x:%02x:%02x", id>>8&0xff, id&0xff, port),
			Netdev: fmt.Sprintf("ens%df%dnp%d", bus, port, port), TotalVFs: vfs, Speed: 100_000, MTU: 9000,
		})
	}
	return c
}

// Host returns a two-socket host with dual-port cards spread over its two NUMA nodes, numbered by id.
func Host(id, cards, vfs int) Config {
	cfg := Config{Cells: []Cell{
		{CPUs: "0-15,32-47", Memory: 128 << 30, Huge2M: 8192, Huge1G: 64},
		{CPUs: "16-31,48-63", Memory: 128 << 30, Huge2M: 8192, Huge1G: 64},
	}}
	for i := range cards {
		cfg.Cards = append(cfg.Cards, DualPort(id<<4|i, uint8(0x18+0x10*i), i%2, vfs))
	}
	return cfg
}

// Large returns a host of 8 PFs with 64 VFs each.
func Large() Config { return Host(1, 4, 64) }

// IGB returns the host that was measured: one igb port on NUMA node 1 of a small two-node machine.
func IGB() Config {
	return Config{
		Cells: []Cell{{CPUs: "0", Memory: 1536 << 20}, {CPUs: "1", Memory: 1536 << 20}},
		Cards: []Card{{Driver: "igb", NUMA: 1, PFs: []PF{{PCI: "0000:81:00.0", MAC: "52:54:00:00:01:01", Netdev: "ens1", TotalVFs: 7, Speed: 1000, MTU: 1500}}}},
	}
}
