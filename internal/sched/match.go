package sched

import (
	"math/bits"
	"slices"
)

// nodeSet is a set of indexes into Host.Cells. Hosts with more nodes than it holds use the first ones.
type nodeSet uint64

const (
	maxNodes = 64
	anyNode  = -2 // no index
)

func (s *nodeSet) add(i int)     { *s |= 1 << i }
func (s nodeSet) has(i int) bool { return s&(1<<i) != 0 }
func (s nodeSet) size() int      { return bits.OnesCount64(uint64(s)) }

// match gives each guest cell a node of its own out of among, on which its VFs find room too (unless room is
// nil), and leaves the result in t.node. It is a bipartite matching: it finds one whenever there is one,
// and tries full nodes first.
func (t *trial) match(among nodeSet, room []int) bool {
	cells := t.req.Cells
	t.node = slices.Grow(t.node[:0], cells)[:cells]
	if cells == 1 {
		return t.matchOne(among, room)
	}
	order := t.order(among)
	var ok [maxNodes]nodeSet // by guest cell
	for g := range cells {
		t.node[g] = -1
		vfs := t.ofCell(g)
		for _, n := range order {
			if room == nil || len(vfs) == 0 || t.fit(vfs, n, room, false) {
				ok[g].add(n)
			}
		}
	}
	for g := range cells {
		var tried nodeSet
		if !t.augment(g, order, &ok, &tried) {
			return false
		}
	}
	return true
}

// matchOne is match for the common case of one guest cell, without its bookkeeping.
func (t *trial) matchOne(among nodeSet, room []int) bool {
	best, top := -1, 0.0
	vfs := t.all
	for i := range t.h.Cells {
		if !among.has(i) || room != nil && len(vfs) > 0 && !t.fit(vfs, i, room, false) {
			continue
		}
		if s := t.nodeScore(i); best < 0 || s > top {
			best, top = i, s
		}
	}
	t.node[0] = best
	return best >= 0
}

// augment finds a node for guest cell g, moving others if needed (Kuhn's algorithm).
func (t *trial) augment(g int, order []int, ok *[maxNodes]nodeSet, tried *nodeSet) bool {
	for _, n := range order {
		if !ok[g].has(n) || tried.has(n) {
			continue
		}
		tried.add(n)
		holder := slices.Index(t.node, n)
		if holder < 0 || t.augment(holder, order, ok, tried) {
			t.node[g] = n
			return true
		}
	}
	return false
}

// order returns the nodes of the set, the best score first.
func (t *trial) order(among nodeSet) []int {
	var out []int
	for i := range t.h.Cells {
		if among.has(i) {
			out = append(out, i)
		}
	}
	slices.SortStableFunc(out, func(a, b int) int {
		x, y := t.nodeScore(a), t.nodeScore(b)
		switch {
		case x > y:
			return -1
		case x < y:
			return 1
		default:
			return 0
		}
	})
	return out
}

// ofCell returns the indexes of a guest cell's VFs: they are dealt in runs, so it is one stretch of t.all.
func (t *trial) ofCell(g int) []int {
	first, n := -1, 0
	for i := range t.req.VFs {
		if t.req.VFs[i].Cell == g {
			if first < 0 {
				first = i
			}
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return t.all[first : first+n]
}

// fit reports whether the VFs find room on PFs of a node (or of any), where room says how many each PF has.
// With keep it writes the PFs into t.pick and takes the room away.
func (t *trial) fit(vfs []int, node int, room []int, keep bool) bool {
	if t.req.Pairs {
		return t.fitPairs(vfs, node, room, keep)
	}
	if !keep {
		return t.enough(vfs, node, room)
	}
	for _, k := range vfs {
		best := -1
		for i := range room {
			if room[i] > 0 && t.fab[i] == t.of[k] && t.at(i, node) && (best < 0 || t.wider(i, best, room)) {
				best = i
			}
		}
		if best < 0 {
			return false
		}
		room[best]--
		t.pick[k] = best
	}
	return true
}

// enough counts per fabric: VFs of one fabric and node are interchangeable, so the sums decide.
func (t *trial) enough(vfs []int, node int, room []int) bool {
	for x, k := range vfs {
		f := t.of[k]
		if x > 0 && t.of[vfs[x-1]] == f {
			continue // counted with the one before
		}
		need := 0
		for _, j := range vfs {
			if t.of[j] == f {
				need++
			}
		}
		for i := range room {
			if t.fab[i] == f && t.at(i, node) {
				need -= room[i]
			}
		}
		if need > 0 {
			return false
		}
	}
	return true
}

// at reports whether a PF is on a node (an index into h.Cells), or whether any will do.
func (t *trial) at(pf, node int) bool { return node == anyNode || t.on[pf] == node }

// wider prefers the PF of which this VM holds fewer VFs, then the one with more room: VFs are spread.
func (t *trial) wider(a, b int, room []int) bool {
	x, y := t.taken(a), t.taken(b)
	if x != y {
		return x < y
	}
	return room[a] > room[b]
}

// taken returns how many VFs of the VM are on the PF so far.
func (t *trial) taken(pf int) int {
	n := 0
	for _, p := range t.pick {
		if p == pf {
			n++
		}
	}
	return n
}

// fitPairs takes VFs two by two from two ports of one card: widest first, and if that leads nowhere, every way.
func (t *trial) fitPairs(vfs []int, node int, room []int, keep bool) bool {
	var left [64]int
	r := left[:0]
	r = append(r, room...)
	if len(t.pick) < len(t.req.VFs) {
		t.pick = make([]int, len(t.req.VFs))
	}
	var backup [16]int
	saved := append(backup[:0], t.pick...)
	ok := t.pairs(vfs, node, r, true)
	if !ok {
		r = append(r[:0], room...)
		ok = t.pairs(vfs, node, r, false)
	}
	if keep && ok {
		copy(room, r)
		return true
	}
	copy(t.pick, saved)
	return ok
}

// pairs places the pairs one after the other. Greedy takes the widest pair of ports and never comes back.
func (t *trial) pairs(vfs []int, node int, room []int, greedy bool) bool {
	if len(vfs) < 2 {
		return true
	}
	bestA, bestB, top := -1, -1, 0
	for a := range room {
		for b := range room {
			if !t.pair(vfs, a, b, node, room) {
				continue
			}
			if greedy {
				if w := min(room[a], room[b]); w > top {
					bestA, bestB, top = a, b, w
				}
				continue
			}
			if t.take(vfs, a, b, room); t.pairs(vfs[2:], node, room, false) {
				return true
			}
			room[a]++
			room[b]++
		}
	}
	if bestA < 0 {
		return false
	}
	t.take(vfs, bestA, bestB, room)
	return t.pairs(vfs[2:], node, room, true)
}

func (t *trial) take(vfs []int, a, b int, room []int) {
	room[a]--
	room[b]--
	t.pick[vfs[0]], t.pick[vfs[1]] = a, b
}

func (t *trial) pair(vfs []int, a, b, node int, room []int) bool {
	p, q := &t.h.PFs[a], &t.h.PFs[b]
	return room[a] > 0 && room[b] > 0 && p.Card != "" && p.Card == q.Card && p.Port != q.Port &&
		t.fab[a] == t.of[vfs[0]] && t.fab[b] == t.of[vfs[1]] && t.at(a, node) && t.at(b, node)
}

// build makes the decision for the host that was chosen: the same steps as judge, with the VFs taken.
func (t *trial) build(h *Host) Placement {
	v := t.judge(h)
	p := Placement{Host: h, Met: v.met}
	for _, n := range t.node {
		p.Nodes = append(p.Nodes, h.Cells[n].ID)
	}
	if len(t.req.VFs) == 0 {
		return p
	}
	t.pick = make([]int, len(t.req.VFs))
	for i := range t.pick {
		t.pick[i] = -1
	}
	if v.met {
		for g := range t.req.Cells {
			t.fit(t.ofCell(g), t.node[g], t.cut, true)
		}
	} else {
		t.fit(t.all, anyNode, t.cut, true)
	}
	given := make(map[int]*Bits, 2)
	for _, i := range t.pick {
		free := given[i]
		if free == nil {
			b := h.PFs[i].Parked.without(&h.PFs[i].Claimed)
			free = &b
			given[i] = free
		}
		x := free.first()
		free.Clear(x)
		p.VFs = append(p.VFs, VFClaim{PF: h.PFs[i].Key, Index: x})
		p.Local = append(p.Local, h.PFs[i].Cell)
	}
	return p
}

// score says how good the host is with the nodes in t.node: higher is better.
func (t *trial) score(met bool) float64 {
	s := 0.0
	for _, n := range t.node[:t.req.Cells] {
		s += t.nodeScore(n)
	}
	s /= float64(t.req.Cells)
	switch {
	case len(t.req.VFs) == 0 && t.hostVFs() > 0:
		s -= 300 // keep away from hosts with VFs at all
	case len(t.req.VFs) > 0 && met:
		s += 1000 // a preferred NUMA fit outweighs any packing
	}
	return s
}

func (t *trial) hostVFs() int {
	n := 0
	for i := range t.h.PFs {
		n += t.h.PFs[i].VFs
	}
	return n
}

// nodeScore is the fill of a node after the placement in percent, less what would be left over lopsided; a
// VM without RDMA keeps away from nodes with VFs.
func (t *trial) nodeScore(n int) float64 {
	c := &t.h.Cells[n]
	m := c.Memory[PageClass(t.req.Page)]
	cpu := ratio(int64(c.Used+t.req.VCPUs), int64(c.VCPUs))
	mem := ratio(m.Used+int64(t.req.Memory), m.Total)
	s := 50*(cpu+mem) - 10*max(cpu-mem, mem-cpu)
	k := t.stock[n]
	if len(t.req.VFs) > 0 {
		return s + 20*ratio(int64(k.held+len(t.req.VFs)), int64(k.vfs))
	}
	if k.vfs > 0 {
		s -= 1000
	}
	return s
}

func ratio(a, b int64) float64 {
	if b <= 0 {
		return 0
	}
	return float64(a) / float64(b)
}
