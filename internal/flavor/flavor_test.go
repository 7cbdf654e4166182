package flavor_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fabric"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/flavor"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/mem"
	"github.com/verbena-cloud/verbena/internal/units"
)

func by() object.Who {
	return object.Who{Operator: true, Now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), UID: "u"}
}

func named(s api.FlavorSpec) *api.Flavor {
	return &api.Flavor{Meta: api.Meta{Name: "f"}, Spec: s}
}

func TestResolve(t *testing.T) {
	plain := flavor.Size{VCPUs: 4, Memory: 8 * units.GiB, Cells: 1}
	with := func(edit func(*flavor.Size)) flavor.Size {
		s := plain
		s.VFs, s.HA, s.Strict, s.Class = 1, flavor.Single, true, "storage"
		edit(&s)
		return s
	}
	for name, tt := range map[string]struct {
		rdma *api.RDMA
		want flavor.Size
	}{
		"none":      {nil, plain},
		"false":     {api.RDMAShort(false), plain},
		"true":      {api.RDMAShort(true), with(func(*flavor.Size) {})},
		"empty":     {&api.RDMA{}, with(func(*flavor.Size) {})},
		"dual-vf":   {&api.RDMA{HA: "dual-vf"}, with(func(s *flavor.Size) { s.VFs, s.HA = 2, flavor.DualVF })},
		"vf-lag":    {&api.RDMA{HA: "vf-lag"}, with(func(s *flavor.Size) { s.HA = flavor.VFLag })},
		"preferred": {&api.RDMA{NUMA: "preferred", Class: "ai-training"}, with(func(s *flavor.Size) { s.Strict, s.Class = false, "ai-training" })},
		"rates":     {&api.RDMA{VFs: 3, MinRate: "1Gbps", MaxRate: "1Gbps", Fabric: "a"}, with(func(s *flavor.Size) { s.VFs, s.MinRate, s.MaxRate, s.Fabric = 3, units.Gbps, units.Gbps, "a" })},
	} {
		got, err := flavor.Resolve(named(api.FlavorSpec{VCPUs: 4, Memory: "8GiB", RDMA: tt.rdma}))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	got, err := flavor.Resolve(named(api.FlavorSpec{VCPUs: 4, Memory: "8GiB", Cells: 2, Hugepages: "1GiB", Disk: "40GiB"}))
	if err != nil || got.Cells != 2 || got.Page != units.GiB || got.Disk != 40*units.GiB {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		spec api.FlavorSpec
		path []string
	}{
		"nothing":            {api.FlavorSpec{}, []string{"spec.vcpus", "spec.memory"}},
		"units":              {api.FlavorSpec{VCPUs: 1, Memory: "16", Disk: "40Gi"}, []string{"spec.memory", "spec.disk"}},
		"too large":          {api.FlavorSpec{VCPUs: 1025, Memory: "99999999999GiB"}, []string{"spec.vcpus", "spec.memory"}},
		"uneven vCPUs":       {api.FlavorSpec{VCPUs: 3, Memory: "4GiB", Cells: 2}, []string{"spec.vcpus"}},
		"cells":              {api.FlavorSpec{VCPUs: 8, Memory: "4GiB", Cells: 9}, []string{"spec.cells"}},
		"decimal unit":       {api.FlavorSpec{VCPUs: 2, Memory: "4GB"}, []string{"spec.memory"}},
		"uneven pages":       {api.FlavorSpec{VCPUs: 2, Memory: "3GiB", Cells: 2, Hugepages: "1GiB"}, []string{"spec.memory"}},
		"page":               {api.FlavorSpec{VCPUs: 1, Memory: "4GiB", Hugepages: "4KiB"}, []string{"spec.hugepages"}},
		"odd pair":           {api.FlavorSpec{VCPUs: 1, Memory: "4GiB", RDMA: &api.RDMA{VFs: 3, HA: "dual-vf"}}, []string{"spec.rdma.vfs"}},
		"nine":               {api.FlavorSpec{VCPUs: 1, Memory: "4GiB", RDMA: &api.RDMA{VFs: 9}}, []string{"spec.rdma.vfs"}},
		"negative":           {api.FlavorSpec{VCPUs: 1, Memory: "4GiB", RDMA: &api.RDMA{VFs: -1}}, []string{"spec.rdma.vfs"}},
		"uneven VFs":         {api.FlavorSpec{VCPUs: 2, Memory: "4GiB", Cells: 2, RDMA: &api.RDMA{VFs: 3}}, []string{"spec.rdma.vfs"}},
		"words":              {api.FlavorSpec{VCPUs: 1, Memory: "4GiB", RDMA: &api.RDMA{HA: "x", NUMA: "y", Class: "z", Fabric: "Ä"}}, []string{"spec.rdma.ha", "spec.rdma.numa", "spec.rdma.class", "spec.rdma.fabric"}},
		"min over max":       {api.FlavorSpec{VCPUs: 1, Memory: "4GiB", RDMA: &api.RDMA{MinRate: "2Gbps", MaxRate: "1Gbps"}}, []string{"spec.rdma.minRate"}},
		"below what NICs do": {api.FlavorSpec{VCPUs: 1, Memory: "4GiB", RDMA: &api.RDMA{MaxRate: "1500Kbps"}}, []string{"spec.rdma.maxRate"}},
		"no fabric":          {api.FlavorSpec{VCPUs: 1, Memory: "4GiB", RDMA: &api.RDMA{Fabric: "nope"}}, []string{"spec.rdma.fabric"}},
		"over the fabric":    {api.FlavorSpec{VCPUs: 1, Memory: "4GiB", RDMA: &api.RDMA{Fabric: "a", MinRate: "26Gbps", MaxRate: "30Gbps"}}, []string{"spec.rdma.minRate", "spec.rdma.maxRate"}},
	} {
		db := mem.New()
		_, err := db.Update(t.Context(), func(tx store.Tx) error {
			if err := fabric.Create(tx, &api.Fabric{Meta: api.Meta{Name: "a"}, Spec: api.FabricSpec{Speed: "25Gbps", VLANPool: []string{"1"}}}, by()); err != nil {
				return err
			}
			return flavor.Create(tx, named(tt.spec), by())
		})
		e, ok := errors.AsType[*fault.Error](err)
		if !ok || e.Kind != fault.Invalid {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []string
		for _, f := range e.Fields {
			got = append(got, f.Path)
		}
		if diff := cmp.Diff(tt.path, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if text := e.Fields[0].Text; name == "decimal unit" && (!strings.HasPrefix(text, `"4GB" is no multiple of 1MiB`) || !strings.HasSuffix(text, "or 4GiB")) {
			t.Errorf("%s: %s", name, e.Fields[0].Text)
		}
	}
}

// TestCells: pairs stay together, every cell gets its share, and VFs come in runs per cell.
func TestCells(t *testing.T) {
	for _, cells := range []int{1, 2, 4, 8} {
		for _, ha := range []string{"single", "dual-vf"} {
			for vfs := 1; vfs <= flavor.MaxVFs; vfs++ {
				s, err := flavor.Resolve(named(api.FlavorSpec{VCPUs: 8, Memory: "8GiB", Cells: cells, RDMA: &api.RDMA{VFs: vfs, HA: ha}}))
				if err != nil {
					continue
				}
				var of []int
				count := map[int]int{}
				for k := range vfs {
					c := s.Cell(k)
					of = append(of, c)
					count[c]++
					if c < 0 || c >= cells || s.Cell(k-k%s.Unit()) != c {
						t.Errorf("%d cells, %s, VF %d of %d in cell %d", cells, ha, k, vfs, c)
					}
				}
				if !slices.IsSorted(of) {
					t.Errorf("%d cells, %s, %d VFs: cells %v", cells, ha, vfs, of)
				}
				for _, n := range count {
					if n != count[0] {
						t.Errorf("%d cells, %s, %d VFs: cells %v", cells, ha, vfs, of)
					}
				}
			}
		}
	}
}

func TestInUse(t *testing.T) {
	db := mem.New()
	do := func(f func(store.Tx) error) error { _, err := db.Update(t.Context(), f); return err }
	o := named(api.FlavorSpec{VCPUs: 4, Memory: "8GiB", RDMA: api.RDMAShort(true)})
	if err := do(func(tx store.Tx) error {
		if err := flavor.Create(tx, o, by()); err != nil {
			return err
		}
		return object.Save(tx, &api.VM{Meta: api.Meta{Kind: api.KindVM, Tenant: "t", Name: "v"}, Spec: api.VMSpec{Flavor: "f"}})
	}); err != nil {
		t.Fatal(err)
	}
	update := func(edit func(*api.Flavor)) error {
		return do(func(tx store.Tx) error {
			next := *o
			edit(&next)
			return flavor.Update(tx, o, &next, by())
		})
	}
	if err := update(func(f *api.Flavor) { f.Spec.VCPUs = 8 }); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "t/v") {
		t.Errorf("err = %v", err)
	}
	if err := update(func(f *api.Flavor) { f.Labels, f.Spec.Memory = map[string]string{"a": "b"}, "8192MiB" }); err != nil {
		t.Error(err)
	}
	if err := do(func(tx store.Tx) error { return flavor.Delete(tx, o, by()) }); !fault.Is(err, fault.Conflict) {
		t.Errorf("err = %v", err)
	}
	if err := do(func(tx store.Tx) error {
		if err := flavor.Fill(tx, o); err != nil || o.Status.VMs != 1 {
			t.Errorf("%+v, %v", o.Status, err)
		}
		object.Remove(tx, api.KindVM, "t", "v")
		if err := flavor.Update(tx, o, named(api.FlavorSpec{VCPUs: 8, Memory: "8GiB"}), by()); err != nil {
			return err
		}
		return flavor.Delete(tx, o, by())
	}); err != nil {
		t.Error(err)
	}
}
