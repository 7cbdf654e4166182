package sched

import "math"

// peak bounds from above what a request can score on a host, so that most hosts need not be judged once a
// good one is known. Every part is the largest of any node: a request that asks for v vCPUs, m memory and n
// VFs scores at most what fill + perCPU*v + perByte*m and held + perVF*n weigh.
type peak struct {
	vcpus   int          // most free vCPUs of a node
	memory  [pages]int64 // most free memory of a node
	vfs     int          // free VFs of the host
	has     bool         // it has VFs at all
	fill    [pages]float64
	perCPU  float64
	perByte [pages]float64
	held    float64 // share of a node's VFs that VMs hold
	perVF   float64
}

// slack keeps rounding from making a bound lower than the score that it bounds.
const slack = 1e-6

func (h *Host) summit() peak {
	var p peak
	for i := range h.PFs {
		p.vfs += h.PFs[i].count.free
		p.has = p.has || h.PFs[i].VFs > 0
	}
	for i := range h.Cells {
		c := &h.Cells[i]
		p.vcpus = max(p.vcpus, c.freeVCPUs())
		p.perCPU = max(p.perCPU, inverse(int64(c.VCPUs)))
		for class, m := range c.Memory {
			p.memory[class] = max(p.memory[class], c.freeMemory(class))
			p.fill[class] = max(p.fill[class], ratio(int64(c.Used), int64(c.VCPUs))+ratio(m.Used, m.Total))
			p.perByte[class] = max(p.perByte[class], inverse(m.Total))
		}
		k := h.stock(i)
		p.held = max(p.held, ratio(int64(k.held), int64(k.vfs)))
		p.perVF = max(p.perVF, inverse(int64(k.vfs)))
	}
	return p
}

func inverse(n int64) float64 { return ratio(1, n) }

// stock counts what a node has of VFs.
func (h *Host) stock(cell int) stock {
	var s stock
	for i := range h.PFs {
		if p := &h.PFs[i]; p.on == cell {
			s.vfs += p.VFs
			s.held += p.count.held
		}
	}
	return s
}

// ceiling returns what the host can score at most, -Inf if it can't fit. A host that is not settled may
// score anything.
func (t *trial) ceiling(h *Host) float64 {
	if !h.settled {
		return math.Inf(1)
	}
	r, p := t.req, &h.peak
	class := PageClass(r.Page)
	if p.vcpus < r.VCPUs || p.memory[class] < int64(r.Memory) || p.vfs < len(r.VFs) {
		return math.Inf(-1)
	}
	top := 50*(p.fill[class]+p.perCPU*float64(r.VCPUs)+p.perByte[class]*float64(r.Memory)) + slack
	switch {
	case len(r.VFs) > 0:
		return top + 20*(p.held+p.perVF*float64(len(r.VFs))) + 1000
	case p.has:
		return top - 300
	}
	return top
}

// ceilings returns every host's, and the index of the highest, -1 if no host can fit.
func (t *trial) ceilings(hosts []*Host) (tops []float64, highest int) {
	tops, highest = make([]float64, len(hosts)), -1
	for i, h := range hosts {
		tops[i] = t.ceiling(h)
		if !math.IsInf(tops[i], -1) && (highest < 0 || tops[i] > tops[highest]) {
			highest = i
		}
	}
	return tops, highest
}
