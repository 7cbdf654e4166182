// Package flavor has the rules of VM sizes: what an operator may offer, the defaults, and the typed form
// that placement works with.
//
// A flavor in use keeps its size: only its labels may change while a VM refers to it, so that what a VM
// was placed with, what it is charged for and what its flavor says never differ. A new size is a new flavor.
package flavor

import (
	"fmt"
	"strings"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fabric"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/units"
)

// Ways to survive the loss of a port.
const (
	Single = "single"  // VFs spread over PFs; the VM is rebuilt when its port dies
	DualVF = "dual-vf" // one VF of each port of a card
	VFLag  = "vf-lag"  // PFs in switchdev mode and a bond
)

// Limits of a VM.
const (
	MaxVCPUs = 1024
	MaxCells = 8
	MaxVFs   = 8
)

// Size is a flavor with every quantity parsed and every default filled in.
type Size struct {
	VCPUs   int
	Memory  units.Bytes
	Disk    units.Bytes // 0 = the image's
	Page    units.Bytes // 0 = normal pages
	Cells   int         // guest NUMA cells
	VFs     int         // 0 without RDMA
	HA      string
	Strict  bool // NUMA policy required rather than preferred
	Class   string
	MinRate units.Rate // of each VF; 0 = none
	MaxRate units.Rate
	Fabric  string // empty = that of the VM's networks
}

// Unit is how many VFs always stand together: the two of a dual-vf pair, else one.
func (s Size) Unit() int {
	if s.HA == DualVF {
		return 2
	}
	return 1
}

// Cell returns the guest cell of VF k: VFs are dealt in runs, so that a pair stays in one cell; with fewer
// units than cells the first cells get one each.
func (s Size) Cell(k int) int {
	unit, units := k/s.Unit(), s.VFs/s.Unit()
	if units <= s.Cells {
		return unit
	}
	return unit * s.Cells / units
}

// PageName returns the hugepage size as the API writes it, or "".
func PageName(page units.Bytes) string {
	if page == 0 {
		return ""
	}
	return page.String()
}

// Resolve gives the typed form, or an Invalid fault that names every wrong place.
func Resolve(o *api.Flavor) (Size, error) {
	var f fault.Faults
	s := resolve(&f, o.Spec)
	return s, f.Err(object.Title(api.KindFlavor, &o.Meta))
}

func resolve(f *fault.Faults, in api.FlavorSpec) Size {
	s := Size{VCPUs: in.VCPUs, Cells: in.Cells}
	if s.Cells == 0 {
		s.Cells = 1
	}
	if in.VCPUs < 1 || in.VCPUs > MaxVCPUs {
		f.Add("spec.vcpus", "%d is not between 1 and %d", in.VCPUs, MaxVCPUs)
	}
	cellsOK := s.Cells >= 1 && s.Cells <= MaxCells
	if !cellsOK {
		f.Add("spec.cells", "%d is not between 1 and %d", in.Cells, MaxCells)
		s.Cells = 1
	} else if in.VCPUs%s.Cells != 0 {
		f.Add("spec.vcpus", "%d vCPUs can't be dealt evenly to %d cells", in.VCPUs, s.Cells)
	}
	s.Page = page(f, in.Hugepages)
	s.Memory = memory(f, in.Memory, s.Page, s.Cells)
	if in.Disk != "" {
		disk, err := units.ParseBytes(in.Disk)
		f.Check("spec.disk", err)
		if err == nil && disk < units.MiB {
			f.Add("spec.disk", "%s is too small for a disk", disk)
		}
		s.Disk = disk
	}
	if in.RDMA.Wanted() {
		rdma(f, *in.RDMA, &s)
	}
	return s
}

func page(f *fault.Faults, name string) units.Bytes {
	switch name {
	case "", "none":
		return 0
	case "2MiB":
		return 2 * units.MiB
	case "1GiB":
		return units.GiB
	default:
		f.Add("spec.hugepages", "%s is no page size; use none, 2MiB or 1GiB", object.Quote(name))
		return 0
	}
}

// binary proposes what was probably meant by a decimal unit.
func binary(text string) string {
	number, ok := strings.CutSuffix(strings.TrimSpace(text), "GB")
	if !ok {
		return ""
	}
	return " or " + strings.TrimSpace(number) + "GiB"
}

func memory(f *fault.Faults, text string, page units.Bytes, cells int) units.Bytes {
	m, err := units.ParseBytes(text)
	if err != nil {
		f.Check("spec.memory", err)
		return 0
	}
	step := units.MiB
	if page > 0 {
		step = page
	}
	step *= units.Bytes(cells)
	switch {
	case m < 16*units.MiB:
		f.Add("spec.memory", "%s is too little for a VM", m)
	case m%step != 0:
		f.Add("spec.memory", "%s is no multiple of %s (cells times whole pages); use %s%s", object.Quote(text), step, (m/step+1)*step, binary(text))
	}
	return m
}

func rdma(f *fault.Faults, in api.RDMA, s *Size) {
	s.VFs, s.HA, s.Class, s.Fabric, s.Strict = in.VFs, in.HA, in.Class, in.Fabric, true
	switch s.HA {
	case "":
		s.HA = Single
	case Single, DualVF, VFLag:
	default:
		f.Add("spec.rdma.ha", "%s is unknown; use single, dual-vf or vf-lag", object.Quote(s.HA))
		s.HA = Single
	}
	if s.VFs == 0 {
		s.VFs = s.Unit()
	}
	switch in.NUMA {
	case "", "required":
	case "preferred":
		s.Strict = false
	default:
		f.Add("spec.rdma.numa", "%s is unknown; use required or preferred", object.Quote(in.NUMA))
	}
	switch s.Class {
	case "":
		s.Class = "storage"
	case "storage", "ai-training":
	default:
		f.Add("spec.rdma.class", "%s is unknown; use storage or ai-training", object.Quote(s.Class))
	}
	counts(f, s)
	s.MinRate = rate(f, "spec.rdma.minRate", in.MinRate)
	s.MaxRate = rate(f, "spec.rdma.maxRate", in.MaxRate)
	if s.MaxRate > 0 && s.MinRate > s.MaxRate {
		f.Add("spec.rdma.minRate", "%s is over maxRate %s", s.MinRate, s.MaxRate)
	}
	if in.Fabric != "" {
		f.Check("spec.rdma.fabric", object.CheckName(in.Fabric))
	}
}

// counts checks that the VFs can be dealt to pairs and to cells.
func counts(f *fault.Faults, s *Size) {
	switch n := s.VFs / s.Unit(); {
	case s.VFs < 1 || s.VFs > MaxVFs:
		f.Add("spec.rdma.vfs", "%d is not between 1 and %d", s.VFs, MaxVFs)
		s.VFs = s.Unit()
	case s.VFs%s.Unit() != 0:
		f.Add("spec.rdma.vfs", "ha dual-vf takes one VF of each of two ports, so the number must be even, not %d", s.VFs)
	case n > s.Cells && n%s.Cells != 0:
		f.Add("spec.rdma.vfs", "%d VFs can't be dealt evenly to %d cells", s.VFs, s.Cells)
	}
}

func rate(f *fault.Faults, path, text string) units.Rate {
	if text == "" {
		return 0
	}
	r, err := units.ParseRate(text)
	f.Check(path, err)
	if err == nil && r%units.Mbps != 0 {
		f.Add(path, "%s is no whole number of Mbps, which is what NICs can set", r)
	}
	return r
}

// check returns the size, or every fault, those of the named fabric included.
func check(tx store.Tx, o *api.Flavor) (Size, error) {
	var f fault.Faults
	object.CheckMeta(&f, api.KindFlavor, &o.Meta)
	s := resolve(&f, o.Spec)
	if s.Fabric != "" && object.CheckName(s.Fabric) == nil {
		fb, err := object.Peek[api.Fabric](tx, api.KindFabric, "", s.Fabric)
		if fault.Is(err, fault.NotFound) {
			f.Check("spec.rdma.fabric", err)
		} else if err != nil {
			return s, err
		} else if r, err := fabric.Resolve(fb); err != nil {
			return s, err
		} else {
			slower(&f, "spec.rdma.minRate", s.MinRate, r)
			slower(&f, "spec.rdma.maxRate", s.MaxRate, r)
		}
	}
	return s, f.Err(object.Title(api.KindFlavor, &o.Meta))
}

func slower(f *fault.Faults, path string, rate units.Rate, fb fabric.Resolved) {
	if rate > fb.Speed {
		f.Add(path, "%s is over the speed %s of fabric %s", rate, fb.Speed, fb.Name)
	}
}

// Create adds a flavor.
func Create(tx store.Tx, o *api.Flavor, by object.Who) error {
	if _, err := check(tx, o); err != nil {
		return err
	}
	if err := object.Vacant(tx, api.KindFlavor, &o.Meta); err != nil {
		return err
	}
	object.Born(&o.Meta, api.KindFlavor, by)
	return save(tx, o)
}

// Update changes a flavor; while VMs use it, only its labels and the way the same size is written.
func Update(tx store.Tx, old, o *api.Flavor, _ object.Who) error {
	object.Carry(&o.Meta, &old.Meta)
	s, err := check(tx, o)
	if err != nil {
		return err
	}
	if was, err := Resolve(old); err != nil || was != s {
		n, vm, err := users(tx, o.Name)
		if err != nil {
			return err
		}
		if n > 0 {
			return fault.New(fault.Conflict, "flavor %s is used by %d VMs (%s …), so its size can't change; create a new flavor for new VMs", o.Name, n, vm)
		}
	}
	return save(tx, o)
}

func save(tx store.Tx, o *api.Flavor) error {
	o.Status = api.FlavorStatus{}
	saved := *o
	return object.Save(tx, &saved)
}

// Delete removes a flavor that no VM uses.
func Delete(tx store.Tx, o *api.Flavor, _ object.Who) error {
	n, vm, err := users(tx, o.Name)
	if err != nil {
		return err
	}
	if n > 0 {
		return fault.New(fault.Conflict, "flavor %s is used by %d VMs (%s …); delete these first", o.Name, n, vm)
	}
	object.Remove(tx, api.KindFlavor, "", o.Name)
	return nil
}

// Fill derives how many VMs use the flavor.
func Fill(tx store.Tx, o *api.Flavor) error {
	n, _, err := users(tx, o.Name)
	o.Status.VMs = n
	return err
}

// users counts the VMs of the flavor and names the first.
func users(tx store.Tx, name string) (n int, first string, err error) {
	for v, err := range object.All[api.VM](tx, api.KindVM, "") {
		if err != nil {
			return 0, "", fmt.Errorf("count VMs of flavor %s: %w", name, err)
		}
		if v.Spec.Flavor != name {
			continue
		}
		if n == 0 {
			first = v.Tenant + "/" + v.Name
		}
		n++
	}
	return n, first, nil
}
