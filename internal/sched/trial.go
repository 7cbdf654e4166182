package sched

import (
	"math"
)

// trial is the scratch of judging one host after the other for one request.
type trial struct {
	req  *Request
	h    *Host
	free []int // VFs of each PF that this request could take
	cut  []int // the same, cut down to what its minimum rate leaves
	node []int // index into h.Cells for each guest cell
	pick []int // index into h.PFs for each VF
	all  []int // 0..len(req.VFs)-1
}

// judge asks the rules in order.
func (t *trial) judge(h *Host) verdict {
	t.h = h
	v := verdict{host: h, node: -1}
	r := t.req
	switch {
	case h.Cordoned:
		v.rule = cordoned
	case len(h.Cells) == 0 || r.Alive != nil && !r.Alive(h.Name):
		v.rule = unknown
	case r.Host != "" && r.Host != h.Name:
		v.rule = pinned
	case !hasLabels(h.Labels, r.Labels):
		v.rule = labels
	}
	if v.rule != fits {
		return v
	}
	if len(r.VFs) > 0 {
		t.count()
		if t.judgeVFs(&v); v.rule != fits {
			return v
		}
	}
	if t.judgeCells(&v); v.rule != fits {
		return v
	}
	v.score = t.score(v.met)
	return v
}

func hasLabels(have, want map[string]string) bool {
	for k, w := range want {
		if have[k] != w {
			return false
		}
	}
	return true
}

// count fills in what each PF could give to this request.
func (t *trial) count() {
	n := len(t.h.PFs)
	if cap(t.free) < n {
		t.free, t.cut = make([]int, n), make([]int, n)
	}
	t.free, t.cut = t.free[:n], t.cut[:n]
	for len(t.all) < len(t.req.VFs) {
		t.all = append(t.all, len(t.all))
	}
	for i := range t.h.PFs {
		p := &t.h.PFs[i]
		t.free[i], t.cut[i] = 0, 0
		if !t.serves(p) {
			continue
		}
		t.free[i] = p.Free()
		t.cut[i] = t.free[i]
		if m := int64(t.req.MinRate); m > 0 {
			t.cut[i] = int(min(int64(t.free[i]), max(0, p.Speed-p.Min)/m))
		}
	}
}

// serves reports whether the PF is on a fabric of the request and can do what it asks for.
func (t *trial) serves(p *PF) bool {
	if t.req.Lag && !p.Lag {
		return false
	}
	for i := range t.req.VFs {
		if t.req.VFs[i].Fabric == p.Fabric {
			ok, _ := p.usable(t.req, t.req.VFs[i].QoS)
			return ok
		}
	}
	return false
}

// judgeVFs asks the rules about VFs of the host as a whole.
func (t *trial) judgeVFs(v *verdict) {
	for i, f := range t.req.VFs {
		if t.seen(i) {
			continue
		}
		need, on, ready, free := t.tally(f.Fabric)
		v.fabric, v.need = f.Fabric, int64(need)
		switch {
		case on == 0:
			v.rule = fabricRule
		case ready < need:
			v.rule, v.have = vfReady, int64(ready)
		case free < need:
			v.rule, v.have = vfFree, int64(free)
		}
		if v.rule != fits {
			return
		}
	}
	if !t.fit(t.all, anyNode, t.free, false) {
		v.rule, v.need, v.have = haRule, int64(len(t.req.VFs)), int64(t.most(t.free))
	}
}

// seen reports whether an earlier VF is of the same fabric.
func (t *trial) seen(i int) bool {
	for _, f := range t.req.VFs[:i] {
		if f.Fabric == t.req.VFs[i].Fabric {
			return true
		}
	}
	return false
}

// tally counts a fabric: VFs asked for, PFs on it, VFs that work (free or held), VFs that are free. The
// mode that vf-lag needs is a later rule's matter.
func (t *trial) tally(fabric string) (need, on, ready, free int) {
	qos := false
	for _, f := range t.req.VFs {
		if f.Fabric == fabric {
			need++
			qos = qos || f.QoS
		}
	}
	for i := range t.h.PFs {
		p := &t.h.PFs[i]
		if p.Fabric != fabric {
			continue
		}
		on++
		if ok, _ := p.usable(t.req, qos); ok {
			working := p.Parked.with(&p.Claimed)
			ready += working.Count()
			free += p.Free()
		}
	}
	return need, on, ready, free
}

// most returns for how many VFs of the request, taken from the first, room can be found.
func (t *trial) most(room []int) int {
	step := 1
	if t.req.Pairs {
		step = 2
	}
	n := 0
	for n+step <= len(t.all) && t.fit(t.all[:n+step], anyNode, room, false) {
		n += step
	}
	return n
}

// judgeCells asks the rules about NUMA nodes and bandwidth, and leaves the chosen nodes in t.node.
func (t *trial) judgeCells(v *verdict) {
	r := t.req
	class := PageClass(r.Page)
	var cpu, mem nodeSet
	for i := range t.h.Cells {
		c := &t.h.Cells[i]
		if i < maxNodes && c.freeVCPUs() >= r.VCPUs {
			cpu.add(i)
			if c.freeMemory(class) >= int64(r.Memory) {
				mem.add(i)
			}
		}
	}
	switch {
	case cpu.size() < r.Cells:
		v.rule, v.need = numaVCPUs, int64(r.VCPUs)
		v.node, v.have = t.limit(^nodeSet(0), func(c *Cell) int64 { return int64(c.freeVCPUs()) })
		return
	case mem.size() < r.Cells:
		v.rule, v.need = numaMemory, int64(r.Memory)
		if class != Normal {
			v.rule = numaHugepages
		}
		v.node, v.have = t.limit(cpu, func(c *Cell) int64 { return c.freeMemory(class) })
		return
	}
	v.met = t.match(mem, t.cut)
	if v.met {
		return
	}
	if !r.Strict && t.fit(t.all[:len(r.VFs)], anyNode, t.cut, false) {
		t.match(mem, nil)
		return
	}
	t.judgeLocal(v, mem)
}

// judgeLocal tells a lack of VFs on the right node from a lack of bandwidth.
func (t *trial) judgeLocal(v *verdict, mem nodeSet) {
	v.fabric = t.req.VFs[0].Fabric
	if t.req.Strict && !t.match(mem, t.free) {
		v.rule, v.need = numaVF, int64(t.inCell(0))
		v.node, v.have = t.limit(mem, func(c *Cell) int64 { return int64(t.local(c.ID, t.free)) })
		return
	}
	rate := int64(t.req.MinRate)
	v.rule, v.need = bandwidth, rate*int64(len(t.req.VFs))
	if !t.req.Strict {
		v.have = rate * int64(t.local(anyNode, t.cut))
		return
	}
	v.need = rate * int64(t.inCell(0))
	v.node, v.have = t.limit(mem, func(c *Cell) int64 { return rate * int64(t.local(c.ID, t.cut)) })
}

// inCell returns how many VFs a guest cell has.
func (t *trial) inCell(cell int) int {
	n := 0
	for i := range t.req.VFs {
		if t.req.VFs[i].Cell == cell {
			n++
		}
	}
	return n
}

// local returns how much room the PFs of a node have for the request.
func (t *trial) local(node int, room []int) int {
	n := 0
	for i, r := range room {
		if t.on(i, node) {
			n += r
		}
	}
	return n
}

// limit returns the node of the set that decides: the one that has the n-th most, where n guest cells need
// a node each; with fewer nodes than cells there is nothing to have.
func (t *trial) limit(among nodeSet, have func(*Cell) int64) (node int, amount int64) {
	var taken nodeSet
	for range t.req.Cells {
		best, top := -1, int64(math.MinInt64)
		for i := range t.h.Cells {
			if n := have(&t.h.Cells[i]); i < maxNodes && among.has(i) && !taken.has(i) && n > top {
				best, top = i, n
			}
		}
		if best < 0 {
			return -1, 0
		}
		taken.add(best)
		node, amount = t.h.Cells[best].ID, top
	}
	return node, max(0, amount)
}
