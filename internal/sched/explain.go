package sched

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/units"
)

// words puts a verdict into words, with the numbers and the nearest change.
func (d *Decision) words(v verdict) api.HostVerdict {
	out := api.HostVerdict{Host: v.host.Name, Fits: v.rule == fits, Rule: v.rule.String(), Need: v.need, Have: v.have}
	switch v.rule {
	case fits:
		out.Need, out.Have = 0, 0
		out.Score = math.Round(v.score*100) / 100
		out.Text = d.room(v)
	case cordoned:
		out.Text, out.Nearest = "takes no new VMs: it is cordoned", "uncordon it"
	case unknown:
		out.Text, out.Nearest = "does not answer: its agent's stream is lost", "bring its agent back"
		if len(v.host.Cells) == 0 {
			out.Text, out.Nearest = "has no inventory yet: its agent never reported", "let its agent join"
		}
	case pinned:
		out.Text, out.Nearest = "the VM is pinned to host "+d.req.Host, "take the pin away"
	case labels:
		out.Text, out.Nearest = d.lacking(v.host)
	case bridge:
		out.Text, out.Nearest = "has no bridge for the NICs of a VM without RDMA", "set its spec.bridge to a Linux bridge that filters VLANs, or use a flavor with rdma"
	case fabricRule, vfReady, vfFree, haRule:
		out.Text, out.Nearest = d.vfs(v)
	case numaVCPUs, numaMemory, numaHugepages:
		out.Text, out.Nearest = d.cells(v)
	case numaVF:
		out.Text, out.Nearest = d.local(v)
	case bandwidth:
		out.Text, out.Nearest = d.rates(v)
	}
	return out
}

// room tells what a host that fits has free.
func (d *Decision) room(v verdict) string {
	vcpus, vfs := 0, 0
	class := PageClass(d.req.Page)
	var memory int64
	for i := range v.host.Cells {
		vcpus += v.host.Cells[i].freeVCPUs()
		memory += v.host.Cells[i].freeMemory(class)
	}
	for i := range v.host.PFs {
		vfs += v.host.PFs[i].Free()
	}
	text := fmt.Sprintf("fits: %d vCPUs, %s and %d VFs are free", vcpus, size(memory), vfs)
	if len(d.req.VFs) > 0 && !v.met {
		text += "; not every VF is on the NUMA node of its cell"
	}
	return text
}

func (d *Decision) lacking(h *Host) (text, nearest string) {
	for _, k := range slices.Sorted(maps.Keys(d.req.Labels)) {
		if want := d.req.Labels[k]; h.Labels[k] != want {
			return fmt.Sprintf("lacks the label %s=%s", k, want), fmt.Sprintf("label it %s=%s", k, want)
		}
	}
	return "", ""
}

func (d *Decision) vfs(v verdict) (text, nearest string) {
	switch v.rule {
	case fabricRule:
		return fmt.Sprintf("has no PF on fabric %s", v.fabric), fmt.Sprintf("commission a PF for fabric %s on it", v.fabric)
	case vfReady:
		why := d.unready(v)
		return fmt.Sprintf("needs %d VFs of fabric %s, only %d are ready%s", v.need, v.fabric, v.have, why),
			fmt.Sprintf("make %d more VFs of fabric %s ready", v.need-v.have, v.fabric)
	case vfFree:
		held, other := 0, 0
		for i := range v.host.PFs {
			if p := &v.host.PFs[i]; p.Fabric == v.fabric {
				held += p.Claimed.Count()
				known := p.Parked.with(&p.Claimed)
				other += max(0, p.VFs-known.Count())
			}
		}
		text = fmt.Sprintf("needs %d VFs of fabric %s, %d are free (%d are held by VMs, %d are not parked)", v.need, v.fabric, v.have, held, other)
		return text, fmt.Sprintf("free %d more VFs of fabric %s", v.need-v.have, v.fabric)
	default:
		return d.ha(v)
	}
}

// paired reports whether the host has a card with two ports on the fabric, be VFs free there or not.
func (v verdict) paired() bool {
	for i := range v.host.PFs {
		p := &v.host.PFs[i]
		if p.Fabric != v.fabric || p.Card == "" {
			continue
		}
		for j := range v.host.PFs[:i] {
			if q := &v.host.PFs[j]; q.Fabric == v.fabric && q.Card == p.Card && q.Port != p.Port {
				return true
			}
		}
	}
	return false
}

func (d *Decision) ha(v verdict) (text, nearest string) {
	if d.req.Lag {
		return fmt.Sprintf("ha vf-lag needs %d VFs of PFs in switchdev mode and a bond, room is for %d", v.need, v.have), "bond its PFs in switchdev mode, or use a flavor with ha single"
	}
	if !v.paired() {
		return fmt.Sprintf("ha dual-vf needs two ports of one card on fabric %s, it has no such card", v.fabric),
			fmt.Sprintf("use a flavor with ha single, or commission the second port of a card for fabric %s", v.fabric)
	}
	return fmt.Sprintf("ha dual-vf needs %d VFs in pairs of two ports of one card, room is for %d", v.need, v.have), "free a VF on both ports of a card, or use a flavor with ha single"
}

// unready tells why the first PF of the fabric that can't serve the request can't.
func (d *Decision) unready(v verdict) string {
	qos := slices.ContainsFunc(d.req.VFs, func(f VF) bool { return f.QoS && f.Fabric == v.fabric })
	for i := range v.host.PFs {
		p := &v.host.PFs[i]
		if p.Fabric != v.fabric {
			continue
		}
		if ok, why := p.usable(d.req, qos); !ok {
			return fmt.Sprintf(" (PF %s: %s)", p.Key, why)
		}
	}
	return ""
}

func (d *Decision) cells(v verdict) (text, nearest string) {
	what, need, have, more := "vCPUs", strconv.FormatInt(v.need, 10), strconv.FormatInt(v.have, 10), strconv.FormatInt(v.need-v.have, 10)
	if v.rule != numaVCPUs {
		what, need, have, more = "memory", size(v.need), size(v.have), size(v.need-v.have)
		if v.rule == numaHugepages {
			what = d.req.Page.String() + " pages"
		}
	}
	if d.req.Cells > len(v.host.Cells) {
		return fmt.Sprintf("has %d NUMA nodes, the VM's %d cells need one each", len(v.host.Cells), d.req.Cells), "use a flavor with fewer cells"
	}
	also := ""
	if v.rule != numaVCPUs {
		also = " beside the vCPUs"
	}
	if v.node < 0 {
		return fmt.Sprintf("needs %s of %s on one node%s, no other node has the vCPUs", need, what, also), fmt.Sprintf("free %d vCPUs on another node", d.req.VCPUs)
	}
	text = fmt.Sprintf("needs %s %s on one NUMA node%s, node %d has %s free", need, what, also, v.node, have)
	if d.req.Cells > 1 {
		text = fmt.Sprintf("needs %s %s on each of %d NUMA nodes%s, node %d has %s free", need, what, d.req.Cells, also, v.node, have)
	}
	return text, fmt.Sprintf("free %s %s on node %d", more, what, v.node)
}

// local tells where the free VFs are when they are not where vCPUs and memory are, and what is short there.
func (d *Decision) local(v verdict) (text, nearest string) {
	text = fmt.Sprintf("needs %d VFs of fabric %s on the NUMA node of the cell; node %d, which has vCPUs and memory, has %d free", v.need, v.fabric, v.node, v.have)
	if v.have >= v.need {
		text = fmt.Sprintf("needs %d VFs of fabric %s on the NUMA node of each cell, in the combination of ports and fabrics that the flavor asks for; no node that has vCPUs and memory has that", v.need, v.fabric)
	}
	parts := []string{text}
	nearest = "use a flavor with numa preferred"
	class := PageClass(d.req.Page)
	seen := map[int]bool{}
	for i := range v.host.PFs {
		p := &v.host.PFs[i]
		if p.Fabric != v.fabric || p.Free() == 0 || seen[p.Cell] || p.Cell == v.node {
			continue
		}
		seen[p.Cell] = true
		c := v.host.cell(p.Cell)
		if c == nil {
			parts = append(parts, fmt.Sprintf("PF %s with %d is on an unknown node (%d)", p.Key, p.Free(), p.Cell))
			continue
		}
		short := d.short(c)
		if short == "" { // it could back one cell, and each guest cell takes a node of its own
			parts = append(parts, fmt.Sprintf("node %d, where PF %s has %d, can back only one of the %d cells", c.ID, p.Key, p.Free(), d.req.Cells))
			nearest = "use a flavor with fewer cells, or one with numa preferred"
			continue
		}
		parts = append(parts, fmt.Sprintf("node %d, where PF %s has %d, has %d vCPUs and %s free, not %d and %s", c.ID, p.Key, p.Free(), c.freeVCPUs(), d.memory(c.freeMemory(class)), d.req.VCPUs, d.memory(int64(d.req.Memory))))
		if len(seen) == 1 {
			nearest = fmt.Sprintf("free %s on node %d, or ", short, c.ID) + nearest
		}
	}
	return strings.Join(parts, "; "), nearest
}

// memory prints an amount with the page size that the request is about.
func (d *Decision) memory(n int64) string {
	if d.req.Page == 0 {
		return size(n) + " memory"
	}
	return size(n) + " in " + d.req.Page.String() + " pages"
}

// short says what a node lacks of vCPUs and memory.
func (d *Decision) short(c *Cell) string {
	var parts []string
	if n := d.req.VCPUs - c.freeVCPUs(); n > 0 {
		parts = append(parts, fmt.Sprintf("%d vCPUs", n))
	}
	if n := int64(d.req.Memory) - c.freeMemory(PageClass(d.req.Page)); n > 0 {
		parts = append(parts, d.memory(n))
	}
	return strings.Join(parts, " and ")
}

func (d *Decision) rates(v verdict) (text, nearest string) {
	text = fmt.Sprintf("needs %s guaranteed for %d VFs of fabric %s, its free VFs can get %s", units.Rate(v.need), len(d.req.VFs), v.fabric, units.Rate(v.have))
	down := slices.IndexFunc(v.host.PFs, func(p PF) bool { return p.Fabric == v.fabric && p.Speed == 0 })
	if down >= 0 {
		text += fmt.Sprintf(" (the link speed of PF %s is unknown or its link is down)", v.host.PFs[down].Key)
	}
	return text, "free guaranteed bandwidth, or use a flavor with a lower minRate"
}

// size prints bytes to one decimal, which is enough to compare.
func size(n int64) string {
	switch g := float64(n) / float64(units.GiB); {
	case n%int64(units.GiB) == 0:
		return fmt.Sprintf("%dGiB", n/int64(units.GiB))
	case g >= 1:
		return fmt.Sprintf("%.1fGiB", g)
	default:
		return fmt.Sprintf("%.0fMiB", float64(n)/float64(units.MiB))
	}
}

// nearest picks the host that failed last in the order of rules, and there the one that lacks least.
func (d *Decision) nearest(all []verdict) string {
	best := -1
	for i, v := range all {
		if best < 0 || closer(v, all[best]) {
			best = i
		}
	}
	if best < 0 {
		return "no host has joined yet: create a Host and let its agent join"
	}
	w := d.words(all[best])
	return "host " + w.Host + ": " + w.Nearest
}

func closer(a, b verdict) bool {
	if a.rule != b.rule {
		return a.rule > b.rule
	}
	x, y := ratio(a.need-a.have, a.need), ratio(b.need-b.have, b.need)
	if x < y || x > y {
		return x < y
	}
	return a.host.Name < b.host.Name
}

// summary counts the rules that said no.
func (d *Decision) summary(all []verdict) string {
	if d.best >= 0 {
		return "fits on host " + d.taken.host.Name
	}
	var count [bandwidth + 1]int
	for _, v := range all {
		count[v.rule]++
	}
	var parts []string
	for r := bandwidth; r > fits; r-- {
		if count[r] > 0 {
			parts = append(parts, fmt.Sprintf("%d by %s", count[r], r))
		}
	}
	if len(parts) == 0 {
		return "no host fits: there is none"
	}
	return fmt.Sprintf("no host fits: of %d, %s", len(all), strings.Join(parts, ", "))
}
