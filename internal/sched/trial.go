package sched

import (
	"math"
	"slices"
)

// trial is the scratch of judging one host after the other for one request. What the rules ask often is
// counted once per host, with fabrics and nodes as small numbers.
type trial struct {
	req     *Request
	h       *Host
	fabrics []ask   // the distinct fabrics of the request
	of      []int   // fabric of each VF
	all     []int   // 0..len(req.VFs)-1
	on      []int   // index into h.Cells of each PF, -1 = on none
	fab     []int   // fabric of each PF that can serve the request, else -1
	free    []int   // VFs of each PF that this request could take
	cut     []int   // the same, cut down to what its minimum rate leaves
	stock   []stock // by index into h.Cells
	node    []int   // index into h.Cells for each guest cell
	pick    []int   // index into h.PFs for each VF
}

// ask is what a request wants of one fabric, and what a host has there.
type ask struct {
	name  string
	qos   bool
	need  int
	pfs   int
	ready int // VFs that work, free or held
	free  int
}

// stock is what a node has of VFs of any fabric.
type stock struct{ vfs, held int }

func newTrial(r *Request) *trial {
	t := &trial{req: r}
	for k, v := range r.VFs {
		t.all = append(t.all, k)
		f := t.fabric(v.Fabric)
		if f < 0 {
			f = len(t.fabrics)
			t.fabrics = append(t.fabrics, ask{name: v.Fabric})
		}
		t.of = append(t.of, f)
		t.fabrics[f].need++
		t.fabrics[f].qos = t.fabrics[f].qos || v.QoS
	}
	return t
}

func (t *trial) fabric(name string) int {
	for i := range t.fabrics {
		if t.fabrics[i].name == name {
			return i
		}
	}
	return -1
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
	case r.Bridge && !h.Bridge:
		v.rule = bridge
	}
	if v.rule != fits {
		return v
	}
	t.count()
	if len(r.VFs) > 0 {
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
		t.free, t.cut, t.on, t.fab = make([]int, n), make([]int, n), make([]int, n), make([]int, n)
	}
	t.free, t.cut, t.on, t.fab = t.free[:n], t.cut[:n], t.on[:n], t.fab[:n]
	t.stock = slices.Grow(t.stock[:0], len(t.h.Cells))[:len(t.h.Cells)]
	clear(t.stock)
	for i := range t.fabrics {
		t.fabrics[i].pfs, t.fabrics[i].ready, t.fabrics[i].free = 0, 0, 0
	}
	for i := range t.h.PFs {
		t.countPF(i)
	}
}

func (t *trial) countPF(i int) {
	p := &t.h.PFs[i]
	t.free[i], t.cut[i], t.fab[i] = 0, 0, -1
	n, on := p.count, p.on
	if !t.h.settled {
		n, on = p.tally(), t.h.index(p.Cell)
	}
	t.on[i] = on
	if on >= 0 {
		t.stock[on].vfs += p.VFs
		t.stock[on].held += n.held
	}
	k := t.fabric(p.Fabric)
	if k < 0 {
		return
	}
	f := &t.fabrics[k]
	f.pfs++
	if ok, _ := p.usable(t.req, f.qos); !ok {
		return
	}
	f.ready += n.working
	f.free += n.free
	if t.req.Lag && !p.Lag {
		return
	}
	t.fab[i], t.free[i], t.cut[i] = k, n.free, n.free
	if m := int64(t.req.MinRate); m > 0 {
		t.cut[i] = int(min(int64(n.free), max(0, p.Speed-p.Min)/m))
	}
}

// index returns where in h.Cells the node with an id is, or -1.
func (h *Host) index(id int) int {
	if id >= 0 && id < len(h.Cells) && h.Cells[id].ID == id {
		return id
	}
	for i := range h.Cells {
		if h.Cells[i].ID == id && id >= 0 {
			return i
		}
	}
	return -1
}

// judgeVFs asks the rules about VFs of the host as a whole.
func (t *trial) judgeVFs(v *verdict) {
	for i := range t.fabrics {
		f := &t.fabrics[i]
		v.fabric, v.need = f.name, int64(f.need)
		switch {
		case f.pfs == 0:
			v.rule = fabricRule
		case f.ready < f.need:
			v.rule, v.have = vfReady, int64(f.ready)
		case f.free < f.need:
			v.rule, v.have = vfFree, int64(f.free)
		}
		if v.rule != fits {
			return
		}
	}
	if !t.fit(t.all, anyNode, t.free, false) {
		v.rule, v.need, v.have = haRule, int64(len(t.req.VFs)), int64(t.most(t.free))
	}
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
	if !r.Strict && t.fit(t.all, anyNode, t.cut, false) {
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
		v.node, v.have = t.limit(mem, func(c *Cell) int64 { return int64(t.local(t.h.index(c.ID), t.free)) })
		return
	}
	rate := int64(t.req.MinRate)
	v.rule, v.need = bandwidth, rate*int64(len(t.req.VFs))
	if !t.req.Strict {
		v.have = rate * int64(t.local(anyNode, t.cut))
		return
	}
	v.need = rate * int64(t.inCell(0))
	v.node, v.have = t.limit(mem, func(c *Cell) int64 { return rate * int64(t.local(t.h.index(c.ID), t.cut)) })
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
		if t.at(i, node) {
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
