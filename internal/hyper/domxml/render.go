// Package domxml turns a hyper.Domain into libvirt domain XML and back.
//
// The rules of the form (https://libvirt.org/formatdomain.html): VFs are plain hostdevs with
// managed='no', since the agent owns every attribute of the VF and libvirt would reset the VLAN priority;
// each has a "ua-" alias and a fixed place behind a root port of its guest cell's PCI expander, so that the
// guest sees the VF on the node that backs it; guest memory is bound cell by cell; there is no balloon,
// since VFIO pins all memory. memnode/@nodeset is a host node; cellid, <node> and hugepage nodesets are
// guest cells.
package domxml

import (
	"encoding/xml"
	"fmt"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/roce"
)

// Guest bus numbers: the expander of guest cell c starts at firstBus + busesPerCell*c, the root port of
// its k-th VF gets the next number after it. Everything else hangs on bus 0 and stays below firstBus.
const (
	firstBus     = 0x20
	busesPerCell = 0x10
	maxCells     = 8
	maxVFsOfCell = 8 // functions of the expander's single slot
)

// GuestPCI returns where the guest sees the k-th VF of a guest cell.
func GuestPCI(cell, k int) (roce.PCIAddr, error) {
	if cell < 0 || cell >= maxCells || k < 0 || k >= maxVFsOfCell {
		return roce.PCIAddr{}, fault.New(fault.Invalid, "VF %d of guest cell %d: a guest has at most %d cells with %d VFs each", k, cell, maxCells, maxVFsOfCell)
	}
	return roce.PCIAddr{Bus: uint8(firstBus + busesPerCell*cell + 1 + k)}, nil
}

// Render returns the domain's XML, or an Invalid fault that names what is wrong with the description.
func Render(d hyper.Domain) (string, error) {
	if err := check(d); err != nil {
		return "", err
	}
	meta, err := metadata(d)
	if err != nil {
		return "", err
	}
	x := libvirtxml.Domain{
		Type:          d.Type,
		Name:          d.Name,
		UUID:          d.UUID,
		Metadata:      &libvirtxml.DomainMetadata{XML: meta},
		Memory:        &libvirtxml.DomainMemory{Value: kib(totalMemory(d)), Unit: "KiB"},
		MemoryBacking: backing(d),
		VCPU:          &libvirtxml.DomainVCPU{Placement: "static", Value: uint(totalVCPUs(d))},
		CPUTune:       cpuTune(d),
		NUMATune:      numaTune(d),
		OS:            &libvirtxml.DomainOS{Type: &libvirtxml.DomainOSType{Arch: "x86_64", Machine: "q35", Type: "hvm"}, BootDevices: []libvirtxml.DomainBootDevice{{Dev: "hd"}}},
		Features:      &libvirtxml.DomainFeatureList{ACPI: &libvirtxml.DomainFeature{}, APIC: &libvirtxml.DomainFeatureAPIC{}},
		CPU:           cpu(d),
		Clock:         &libvirtxml.DomainClock{Offset: "utc"},
		OnPoweroff:    "destroy",
		OnReboot:      "restart",
		OnCrash:       "destroy",
		Devices:       devices(d),
	}
	out, err := x.Marshal()
	if err != nil {
		return "", fmt.Errorf("encode domain %s: %w", d.Name, err)
	}
	return out, nil
}

func check(d hyper.Domain) error {
	var f fault.Faults
	if d.UUID == "" || d.Name == "" {
		f.Add("name", "a domain needs a UUID and a name")
	}
	if len(d.Cells) == 0 {
		f.Add("cells", "a domain needs at least one NUMA cell; without one every NUMA policy is ignored")
	}
	for i, c := range d.Cells {
		if c.ID != i {
			f.Add(fmt.Sprintf("cells[%d].id", i), "cells are numbered from 0 without gaps, this is %d", c.ID)
		}
		if c.VCPUs < 1 || c.Memory < 1<<20 {
			f.Add(fmt.Sprintf("cells[%d]", i), "a cell needs at least one vCPU and 1MiB")
		}
		if len(c.CPUs) != 0 && len(c.CPUs) != c.VCPUs {
			f.Add(fmt.Sprintf("cells[%d].cpus", i), "%d pins for %d vCPUs", len(c.CPUs), c.VCPUs)
		}
		if c.Hugepage > 0 && c.Memory%c.Hugepage != 0 {
			f.Add(fmt.Sprintf("cells[%d].memory", i), "%d bytes are no multiple of the page size %d", c.Memory, c.Hugepage)
		}
	}
	checkVFs(d, &f)
	return f.Err("domain " + d.Name)
}

func checkVFs(d hyper.Domain, f *fault.Faults) {
	alias, guest, host := map[string]bool{}, map[roce.PCIAddr]bool{}, map[roce.PCIAddr]bool{}
	for i, v := range d.VFs {
		at := fmt.Sprintf("vfs[%d]", i)
		if v.Cell < 0 || v.Cell >= len(d.Cells) {
			f.Add(at+".cell", "there is no guest cell %d", v.Cell)
		}
		if alias[v.Alias] || guest[v.Guest] || host[v.Host] || v.Alias == "" {
			f.Add(at, "alias, guest and host address must each be unique in the domain")
		}
		alias[v.Alias], guest[v.Guest], host[v.Host] = true, true, true
		if k := int(v.Guest.Bus) - firstBus - busesPerCell*v.Cell - 1; k < 0 || k >= maxVFsOfCell || v.Guest.Slot != 0 || v.Guest.Function != 0 || v.Guest.Domain != 0 {
			f.Add(at+".guest", "%s is no address of guest cell %d", v.Guest, v.Cell)
		}
		if v.Host.Domain > 0xffff {
			f.Add(at+".host", "%s: QEMU takes PCI domains of 16 bits only", v.Host)
		}
		if !v.MAC.Unicast() {
			f.Add(at+".mac", "%s is no unicast address", v.MAC)
		}
	}
}

func totalMemory(d hyper.Domain) (sum int64) {
	for _, c := range d.Cells {
		sum += c.Memory
	}
	return sum
}

func totalVCPUs(d hyper.Domain) (sum int) {
	for _, c := range d.Cells {
		sum += c.VCPUs
	}
	return sum
}

func kib(bytes int64) uint { return uint(bytes >> 10) }

// backing asks for huge pages cell by cell; nosharepages, since KSM and pinned DMA pages do not mix.
func backing(d hyper.Domain) *libvirtxml.DomainMemoryBacking {
	b := &libvirtxml.DomainMemoryBacking{MemoryNosharepages: &libvirtxml.DomainMemoryNosharepages{}}
	bySize := map[int64][]string{}
	var sizes []int64
	for _, c := range d.Cells {
		if c.Hugepage == 0 {
			continue
		}
		if bySize[c.Hugepage] == nil {
			sizes = append(sizes, c.Hugepage)
		}
		bySize[c.Hugepage] = append(bySize[c.Hugepage], strconv.Itoa(c.ID))
	}
	for _, s := range sizes {
		if b.MemoryHugePages == nil {
			b.MemoryHugePages = &libvirtxml.DomainMemoryHugepages{}
		}
		b.MemoryHugePages.Hugepages = append(b.MemoryHugePages.Hugepages,
			libvirtxml.DomainMemoryHugepage{Size: kib(s), Unit: "KiB", Nodeset: strings.Join(bySize[s], ",")})
	}
	return b
}

func cpuTune(d hyper.Domain) *libvirtxml.DomainCPUTune {
	t := &libvirtxml.DomainCPUTune{}
	n := uint(0)
	for _, c := range d.Cells {
		for i := range c.VCPUs {
			if i < len(c.CPUs) && c.CPUs[i] != "" {
				t.VCPUPin = append(t.VCPUPin, libvirtxml.DomainCPUTuneVCPUPin{VCPU: n, CPUSet: c.CPUs[i]})
			}
			n++
		}
	}
	if d.Emulator != "" {
		t.EmulatorPin = &libvirtxml.DomainCPUTuneEmulatorPin{CPUSet: d.Emulator}
	}
	if len(t.VCPUPin) == 0 && t.EmulatorPin == nil {
		return nil
	}
	return t
}

func numaTune(d hyper.Domain) *libvirtxml.DomainNUMATune {
	t := &libvirtxml.DomainNUMATune{}
	var nodes []string
	mode := "preferred"
	for _, c := range d.Cells {
		if c.HostNode < 0 {
			continue
		}
		m := "preferred"
		if c.Strict {
			m, mode = "strict", "strict"
		}
		node := strconv.Itoa(c.HostNode)
		t.MemNodes = append(t.MemNodes, libvirtxml.DomainNUMATuneMemNode{CellID: uint(c.ID), Mode: m, Nodeset: node})
		nodes = append(nodes, node)
	}
	if len(nodes) == 0 {
		return nil
	}
	if mode == "preferred" {
		nodes = nodes[:1] // libvirt takes exactly one node for mode 'preferred'
	}
	t.Memory = &libvirtxml.DomainNUMATuneMemory{Mode: mode, Nodeset: strings.Join(unique(nodes), ",")}
	return t
}

func unique(in []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, s := range in {
		if !seen[s] {
			out = append(out, s)
		}
		seen[s] = true
	}
	return out
}

func cpu(d hyper.Domain) *libvirtxml.DomainCPU {
	mode := "host-passthrough"
	if d.Type != "kvm" {
		mode = "maximum" // there is no host CPU to pass through under emulation
	}
	n := totalVCPUs(d)
	c := &libvirtxml.DomainCPU{Mode: mode, Numa: &libvirtxml.DomainNuma{}}
	c.Topology = &libvirtxml.DomainCPUTopology{Sockets: 1, Cores: n, Threads: 1}
	if n%len(d.Cells) == 0 {
		c.Topology = &libvirtxml.DomainCPUTopology{Sockets: len(d.Cells), Cores: n / len(d.Cells), Threads: 1}
	}
	first := 0
	for _, cell := range d.Cells {
		id := uint(cell.ID)
		cpus := strconv.Itoa(first)
		if cell.VCPUs > 1 {
			cpus = fmt.Sprintf("%d-%d", first, first+cell.VCPUs-1)
		}
		first += cell.VCPUs
		c.Numa.Cell = append(c.Numa.Cell, libvirtxml.DomainCell{ID: &id, CPUs: cpus, Memory: kib(cell.Memory), Unit: "KiB"})
	}
	return c
}

// vmMeta is what Verbena keeps in <metadata>: enough to know after a crash whose domain and VFs these are.
type vmMeta struct {
	XMLName    xml.Name `xml:"https://verbena-cloud.github.io/xmlns/vm/1 vm"`
	Tenant     string   `xml:"tenant"`
	Name       string   `xml:"name"`
	Generation int64    `xml:"generation"`
	VFs        []vfMeta `xml:"vf"`
}

type vfMeta struct {
	Alias string `xml:"alias,attr"`
	MAC   string `xml:"mac,attr"`
	VLAN  int    `xml:"vlan,attr"`
	QoS   int    `xml:"qos,attr"`
	Cell  int    `xml:"cell,attr"`
	Guest string `xml:"guest,attr"`
}

func metadata(d hyper.Domain) (string, error) {
	m := vmMeta{Tenant: d.Owner.Tenant, Name: d.Owner.VM, Generation: d.Owner.Generation}
	for _, v := range d.VFs {
		m.VFs = append(m.VFs, vfMeta{Alias: v.Alias, MAC: v.MAC.String(), VLAN: v.VLAN, QoS: v.QoS, Cell: v.Cell, Guest: v.Guest.String()})
	}
	b, err := xml.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("encode metadata of %s: %w", d.Name, err)
	}
	// libvirt wants a prefixed namespace on the element it keeps.
	s := strings.Replace(string(b), `<vm xmlns=`, `<verbena:vm xmlns:verbena=`, 1)
	s = strings.Replace(s, `</vm>`, `</verbena:vm>`, 1)
	for _, tag := range []string{"tenant", "name", "generation", "vf"} {
		s = strings.ReplaceAll(s, "<"+tag+">", "<verbena:"+tag+">")
		s = strings.ReplaceAll(s, "<"+tag+" ", "<verbena:"+tag+" ")
		s = strings.ReplaceAll(s, "</"+tag+">", "</verbena:"+tag+">")
	}
	return s, nil
}
