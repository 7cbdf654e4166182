package agent

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/verbena-cloud/verbena/internal/rtnl"
	"github.com/verbena-cloud/verbena/internal/sriov"
	"github.com/verbena-cloud/verbena/internal/sysfs"
)

// around is what VFs of all PFs share in one observation, read once for all of them.
type around struct {
	bound   map[string]bool // functions on vfio-pci
	node    map[string]bool // IOMMU groups with a character device
	openers map[string][]int
	domain  map[string]sriov.Domain // by host PCI address
	fresh   bool                    // read again what can't change by itself: for who is about to write
	full    bool                    // read the overrides again
}

// around reads who is on vfio-pci and which groups have nodes; openers and domains are the caller's.
func (k *kernel) around(ctx context.Context, prob *problems) (around, error) {
	out := around{bound: map[string]bool{}, node: map[string]bool{}}
	for _, l := range []struct {
		dir string
		set map[string]bool
	}{{"bus/pci/drivers/" + sriov.Driver, out.bound}, {"class/vfio", out.node}} {
		names, err := k.tree.List(ctx, l.dir)
		if err != nil && !sysfs.Absent(err) {
			prob.add(err)
			return out, fmt.Errorf("list %s: %w", l.dir, err)
		}
		for _, n := range names {
			l.set[n] = true
		}
	}
	return out, nil
}

// attributes reads what the PF's driver says of its VFs, by index.
func (k *kernel) attributes(ctx context.Context, f *function) (map[int]*rtnl.VF, error) {
	if f.Netdev == "" || len(f.VFs) == 0 {
		return map[int]*rtnl.VF{}, nil
	}
	list, err := k.links.VFs(ctx, f.Netdev)
	if err != nil {
		return nil, fmt.Errorf("read the VFs of %s: %w", f.Netdev, err)
	}
	out := make(map[int]*rtnl.VF, len(list))
	for i := range list {
		out[list[i].Index] = &list[i]
	}
	return out, nil
}

// detail observes all VFs of the PF.
func (k *kernel) detail(ctx context.Context, f *function, a around, prob *problems) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	attr, err := k.attributes(ctx, f)
	if err != nil {
		prob.add(err)
		f.fail(err)
	}
	for i := range f.VFs {
		f.VFs[i].Attr = attr[f.VFs[i].Key.Index]
		k.vf(ctx, &f.VFs[i], a, prob)
	}
}

// vf observes one VF, whose key and address are known.
func (k *kernel) vf(ctx context.Context, v *sriov.VF, a around, prob *problems) {
	if v.Unread != "" {
		return
	}
	bdf := v.PCI.String()
	var failed error
	r := reader{ctx: ctx, tree: k.tree, dir: "bus/pci/devices/" + bdf, prob: prob, err: &failed}
	v.Domain = a.domain[bdf]
	v.Driver = sriov.Driver
	if !a.bound[bdf] {
		v.Driver = r.link("driver")
	}
	k.membership(r, v, a)
	if v.Group != "" {
		v.Openers = a.openers[v.Group]
	}
	if v.Driver == sriov.Driver {
		v.Node = a.node[v.Group] || (len(a.node) == 0 && k.cdev(r))
	} else if v.Driver != "" {
		v.Netdev, v.NetdevUp = k.vfNetdev(r)
	}
	if failed != nil {
		v.Unread = text(failed)
	}
}

// membership fills in whether the VF is complete, its override, its group and who shares it. Group and
// members are remembered, since they can't change without the device going away, but for hotplug into a
// group: whoever hands a VF out asks for a fresh look.
func (k *kernel) membership(r reader, v *sriov.VF, a around) {
	bdf := v.PCI.String()
	k.mu.Lock()
	was, ok := k.done[bdf]
	k.mu.Unlock()
	known := ok && !a.fresh
	if known && !a.full {
		v.Linked, v.Group, v.Mates, v.Override = true, was.group, was.mates, was.override
		return
	}
	if v.Override = r.text("driver_override"); v.Override == "(null)" { // how an untouched device reads
		v.Override = ""
	}
	if known {
		v.Linked, v.Group, v.Mates = true, was.group, was.mates
		k.remember(bdf, groupOf{v.Group, v.Mates, v.Override})
		return
	}
	v.Group = r.link("iommu_group")
	v.Linked = r.link("physfn") != ""
	if !v.Linked || v.Group == "" {
		return
	}
	members := r.at("kernel/iommu_groups/" + v.Group + "/devices").names()
	v.Mates = slices.DeleteFunc(slices.Clone(members), func(m string) bool { return m == bdf || k.bridge(r, m) })
	if *r.err == nil {
		k.remember(bdf, groupOf{v.Group, v.Mates, v.Override})
	}
}

func (k *kernel) remember(bdf string, g groupOf) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.done[bdf] = g
}

// bridge reports whether a function is a PCI bridge: vfio accepts those in a group, a guest never gets them.
func (k *kernel) bridge(r reader, bdf string) bool {
	return strings.HasPrefix(r.at("bus/pci/devices/"+bdf).text("class"), "0x0604")
}

// cdev looks for the per-device node of kernels built without vfio groups (iommufd).
func (k *kernel) cdev(r reader) bool {
	names, err := r.tree.List(r.ctx, r.dir+"/vfio-dev")
	return err == nil && len(names) > 0
}

func (k *kernel) vfNetdev(r reader) (name string, up bool) {
	names, err := r.tree.List(r.ctx, r.dir+"/net")
	if err != nil || len(names) == 0 {
		return "", false
	}
	flags, err := strconv.ParseUint(strings.TrimPrefix(r.at("class/net/"+names[0]).text("flags"), "0x"), 16, 32)
	return names[0], err == nil && flags&1 != 0
}
