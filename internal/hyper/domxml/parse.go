package domxml

import (
	"encoding/xml"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/roce"
)

// aliasPrefix marks aliases that a user chose; libvirt drops others.
const aliasPrefix = "ua-"

// Parse reads a domain's XML as libvirt gives it back. A domain without our metadata has an empty Owner;
// its passed-through PCI devices are still listed, since they are busy. State and XML's truth are the caller's.
func Parse(text string) (hyper.Seen, error) {
	var x libvirtxml.Domain
	if err := x.Unmarshal(text); err != nil {
		return hyper.Seen{}, fault.Wrap(err, fault.Invalid, "the hypervisor's domain XML can't be read")
	}
	s := hyper.Seen{UUID: x.UUID, Name: x.Name, XML: text}
	meta, ours := readMetadata(x.Metadata)
	if ours {
		s.Owner = hyper.Owner{Tenant: meta.Tenant, VM: meta.Name, Generation: meta.Generation}
	}
	if x.Devices == nil {
		return s, nil
	}
	for _, h := range x.Devices.Hostdevs {
		if v, ok := readHostdev(h, meta); ok {
			s.VFs = append(s.VFs, v)
		}
	}
	for _, n := range x.Devices.Interfaces { // a foreign domain may hold a VF in this form
		if n.Source != nil && n.Source.Hostdev != nil && n.Source.Hostdev.PCI != nil {
			if a, ok := address(n.Source.Hostdev.PCI.Address); ok {
				s.VFs = append(s.VFs, hyper.VF{Host: a})
			}
		}
	}
	s.Ports = ports(x.Devices.Channels)
	return s, nil
}

// ports are the sockets that the hypervisor made for virtio-serial ports; it names them while the domain runs.
func ports(channels []libvirtxml.DomainChannel) map[string]string {
	var out map[string]string
	for _, c := range channels {
		if c.Target == nil || c.Target.VirtIO == nil || c.Source == nil || c.Source.UNIX == nil || c.Source.UNIX.Path == "" {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[c.Target.VirtIO.Name] = c.Source.UNIX.Path
	}
	return out
}

func readMetadata(m *libvirtxml.DomainMetadata) (vmMeta, bool) {
	var v vmMeta
	if m == nil {
		return v, false
	}
	d := xml.NewDecoder(strings.NewReader(m.XML))
	for {
		tok, err := d.Token()
		if err != nil {
			return vmMeta{}, false
		}
		start, ok := tok.(xml.StartElement)
		if !ok {
			continue
		}
		if start.Name.Local == "vm" && strings.HasPrefix(start.Name.Space, "https://verbena-cloud.github.io/xmlns/vm/") {
			if err := d.DecodeElement(&v, &start); err != nil {
				return vmMeta{}, false
			}
			return v, v.Name != ""
		}
		if err := d.Skip(); err != nil {
			return vmMeta{}, false
		}
	}
}

func readHostdev(h libvirtxml.DomainHostdev, meta vmMeta) (hyper.VF, bool) {
	if h.SubsysPCI == nil || h.SubsysPCI.Source == nil {
		return hyper.VF{}, false
	}
	host, ok := address(h.SubsysPCI.Source.Address)
	if !ok {
		return hyper.VF{}, false
	}
	v := hyper.VF{Host: host}
	if h.Alias != nil {
		v.Alias = strings.TrimPrefix(h.Alias.Name, aliasPrefix)
	}
	for _, m := range meta.VFs {
		if m.Alias != v.Alias {
			continue
		}
		v.VLAN, v.QoS, v.Cell = m.VLAN, m.QoS, m.Cell
		if mac, err := roce.ParseMAC(m.MAC); err == nil {
			v.MAC = mac
		}
		if g, err := roce.ParsePCI(m.Guest); err == nil {
			v.Guest = g
		}
	}
	return v, true
}

func address(a *libvirtxml.DomainAddressPCI) (roce.PCIAddr, bool) {
	if a == nil || a.Bus == nil || a.Slot == nil || a.Function == nil {
		return roce.PCIAddr{}, false
	}
	if *a.Bus > 0xff || *a.Slot > 0x1f || *a.Function > 7 {
		return roce.PCIAddr{}, false
	}
	out := roce.PCIAddr{Bus: uint8(*a.Bus), Slot: uint8(*a.Slot), Function: uint8(*a.Function)}
	if a.Domain != nil {
		if uint64(*a.Domain) > 0xffffffff {
			return roce.PCIAddr{}, false
		}
		out.Domain = uint32(*a.Domain)
	}
	return out, true
}
