package domxml

import (
	"fmt"

	"libvirt.org/go/libvirtxml"

	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/roce"
)

// spareRootPorts are for the virtio devices that libvirt places itself and for later hot-plug: slots of
// pcie-root can't take hot-plugged devices (libvirt docs/pci-hotplug).
const spareRootPorts = 4

func devices(d hyper.Domain) *libvirtxml.DomainDeviceList {
	out := &libvirtxml.DomainDeviceList{
		MemBalloon: &libvirtxml.DomainMemBalloon{Model: "none"},
		Serials:    []libvirtxml.DomainSerial{{Source: pty()}},
		Consoles:   []libvirtxml.DomainConsole{{Source: pty(), Target: &libvirtxml.DomainConsoleTarget{Type: "serial", Port: ptr[uint](0)}}},
		RNGs: []libvirtxml.DomainRNG{{Model: "virtio", Backend: &libvirtxml.DomainRNGBackend{
			Random: &libvirtxml.DomainRNGBackendRandom{Device: "/dev/urandom"},
		}}},
	}
	out.Controllers, out.Hostdevs = topology(d)
	if d.Disk.Path != "" {
		out.Disks = append(out.Disks, libvirtxml.DomainDisk{
			Device: "disk",
			Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: d.Disk.Format, Cache: "none", Discard: "unmap"},
			Source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: d.Disk.Path}},
			Target: &libvirtxml.DomainDiskTarget{Dev: "vda", Bus: "virtio"},
		})
	}
	if d.Seed != "" {
		out.Disks = append(out.Disks, libvirtxml.DomainDisk{
			Device:   "cdrom",
			Driver:   &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "raw"},
			Source:   &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: d.Seed}},
			Target:   &libvirtxml.DomainDiskTarget{Dev: "sda", Bus: "sata"},
			ReadOnly: &libvirtxml.DomainDiskReadOnly{},
		})
	}
	for i, n := range d.NICs {
		out.Interfaces = append(out.Interfaces, bridgeNIC(i, n))
	}
	for _, name := range d.GuestPorts {
		out.Channels = append(out.Channels, libvirtxml.DomainChannel{
			Source: &libvirtxml.DomainChardevSource{UNIX: &libvirtxml.DomainChardevSourceUNIX{Mode: "bind"}},
			Target: &libvirtxml.DomainChannelTarget{VirtIO: &libvirtxml.DomainChannelTargetVirtIO{Name: name}},
		})
	}
	return out
}

func pty() *libvirtxml.DomainChardevSource {
	return &libvirtxml.DomainChardevSource{Pty: &libvirtxml.DomainChardevSourcePty{}}
}

func bridgeNIC(i int, n hyper.NIC) libvirtxml.DomainInterface {
	x := libvirtxml.DomainInterface{
		MAC:    &libvirtxml.DomainInterfaceMAC{Address: n.MAC.String()},
		Source: &libvirtxml.DomainInterfaceSource{Bridge: &libvirtxml.DomainInterfaceSourceBridge{Bridge: n.Bridge}},
		Model:  &libvirtxml.DomainInterfaceModel{Type: "virtio"},
		Alias:  &libvirtxml.DomainAlias{Name: fmt.Sprintf("ua-nic%d", i)},
	}
	if n.VLAN != 0 {
		// A libvirt that can't tag on this bridge refuses the domain; an untagged NIC would break isolation.
		x.VLan = &libvirtxml.DomainInterfaceVLan{Tags: []libvirtxml.DomainInterfaceVLanTag{{ID: uint(n.VLAN)}}}
	}
	if n.MTU != 0 {
		x.MTU = &libvirtxml.DomainInterfaceMTU{Size: uint(n.MTU)}
	}
	return x
}

// topology builds one PCI expander per guest cell that has VFs, one root port per VF on it, and the
// hostdevs behind them. Controller indexes count up without gaps: an <address bus> is such an index, not
// the bus number that the guest sees.
func topology(d hyper.Domain) ([]libvirtxml.DomainController, []libvirtxml.DomainHostdev) {
	list := []libvirtxml.DomainController{controller(0, "pcie-root")}
	expander := map[int]uint{}
	for _, c := range d.Cells {
		if !hasVF(d, c.ID) {
			continue
		}
		i := uint(len(list))
		x := controller(i, "pcie-expander-bus")
		x.PCI = &libvirtxml.DomainControllerPCI{Target: &libvirtxml.DomainControllerPCITarget{
			BusNr: ptr(uint(firstBus + busesPerCell*c.ID)), NUMANode: ptr(uint(c.ID)),
		}}
		list = append(list, x)
		expander[c.ID] = i
	}
	var hostdevs []libvirtxml.DomainHostdev
	for _, v := range d.VFs {
		i := uint(len(list))
		k := uint(int(v.Guest.Bus) - firstBus - busesPerCell*v.Cell - 1)
		port := controller(i, "pcie-root-port")
		port.PCI = &libvirtxml.DomainControllerPCI{Target: &libvirtxml.DomainControllerPCITarget{
			Chassis: ptr(i), Port: ptr(uint(v.Cell)<<4 | k),
		}}
		port.Address = pciAddress(roce.PCIAddr{Bus: uint8(expander[v.Cell]), Function: uint8(k)})
		if k == 0 {
			port.Address.PCI.MultiFunction = "on"
		}
		list = append(list, port)
		hostdevs = append(hostdevs, hostdev(v, i))
	}
	for range spareRootPorts {
		list = append(list, controller(uint(len(list)), "pcie-root-port"))
	}
	return list, hostdevs
}

func hasVF(d hyper.Domain, cell int) bool {
	for _, v := range d.VFs {
		if v.Cell == cell {
			return true
		}
	}
	return false
}

func controller(index uint, model string) libvirtxml.DomainController {
	return libvirtxml.DomainController{Type: "pci", Index: &index, Model: model}
}

func hostdev(v hyper.VF, port uint) libvirtxml.DomainHostdev {
	return libvirtxml.DomainHostdev{
		Managed: "no",
		SubsysPCI: &libvirtxml.DomainHostdevSubsysPCI{
			Source: &libvirtxml.DomainHostdevSubsysPCISource{Address: pciAddress(v.Host).PCI},
		},
		ROM:     &libvirtxml.DomainROM{Bar: "off"}, // a VF has no option ROM to boot from
		Alias:   &libvirtxml.DomainAlias{Name: aliasPrefix + v.Alias},
		Address: pciAddress(roce.PCIAddr{Bus: uint8(port)}),
	}
}

func pciAddress(a roce.PCIAddr) *libvirtxml.DomainAddress {
	return &libvirtxml.DomainAddress{PCI: &libvirtxml.DomainAddressPCI{
		Domain: ptr(uint(a.Domain)), Bus: ptr(uint(a.Bus)), Slot: ptr(uint(a.Slot)), Function: ptr(uint(a.Function)),
	}}
}

func ptr[T any](v T) *T { return &v }
