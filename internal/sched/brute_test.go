package sched_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/verbena-cloud/verbena/internal/sched"
	"github.com/verbena-cloud/verbena/internal/units"
)

// brute says whether the request fits on the host by trying every assignment of guest cells to nodes and of
// VFs to PFs. It is slow and shares nothing with the code under test but the types.
type brute struct {
	r    sched.Request
	h    *sched.Host
	free []int
	rate []int64
	node []int
	pf   []int
}

func newBrute(r sched.Request, h *sched.Host) *brute {
	b := &brute{r: r, h: h, node: make([]int, r.Cells), pf: make([]int, len(r.VFs))}
	for _, p := range h.PFs {
		n := 0
		for i := range sched.MaxVFs {
			if p.Parked.Has(i) && !p.Claimed.Has(i) {
				n++
			}
		}
		b.free = append(b.free, n)
		b.rate = append(b.rate, p.Speed-p.Min)
	}
	return b
}

func (b *brute) fits() bool {
	if b.h.Cordoned || len(b.h.Cells) == 0 || b.r.Alive != nil && !b.r.Alive(b.h.Name) || b.r.Host != "" && b.r.Host != b.h.Name {
		return false
	}
	for k, v := range b.r.Labels {
		if b.h.Labels[k] != v {
			return false
		}
	}
	return (b.h.Bridge || !b.r.Bridge) && b.cells(0)
}

func (b *brute) cells(g int) bool {
	if g == b.r.Cells {
		return b.vfs(0)
	}
	for n := range b.h.Cells {
		c := b.h.Cells[n]
		m := c.Memory[sched.PageClass(b.r.Page)]
		taken := false
		for _, o := range b.node[:g] {
			taken = taken || o == n
		}
		if taken || c.VCPUs-c.Used < b.r.VCPUs || m.Total-m.Used < int64(b.r.Memory) {
			continue
		}
		b.node[g] = n
		if b.cells(g + 1) {
			return true
		}
	}
	return false
}

func (b *brute) vfs(k int) bool {
	if k == len(b.r.VFs) {
		return true
	}
	for i := range b.h.PFs {
		if !b.allowed(k, i) {
			continue
		}
		b.pf[k] = i
		b.free[i]--
		b.rate[i] -= int64(b.r.MinRate)
		ok := b.vfs(k + 1)
		b.free[i]++
		b.rate[i] += int64(b.r.MinRate)
		if ok {
			return true
		}
	}
	return false
}

func (b *brute) allowed(k, i int) bool {
	want, p := b.r.VFs[k], b.h.PFs[i]
	switch {
	case !p.Ready || b.free[i] < 1 || p.Fabric != want.Fabric:
		return false
	case want.QoS && p.Caps&sched.CapQoS == 0:
		return false
	case b.r.MinRate > 0 && (p.Caps&sched.CapMinRate == 0 || b.rate[i] < int64(b.r.MinRate)):
		return false
	case b.r.MaxRate > 0 && p.Caps&sched.CapMaxRate == 0:
		return false
	case b.r.Lag && !p.Lag:
		return false
	case b.r.Strict && p.Cell != b.h.Cells[b.node[want.Cell]].ID:
		return false
	}
	if b.r.Pairs && k%2 == 1 {
		q := b.h.PFs[b.pf[k-1]]
		return q.Card == p.Card && p.Card != "" && q.Port != p.Port
	}
	return true
}

func drawHost(t *rapid.T, name string) *sched.Host {
	n := rapid.IntRange
	h := &sched.Host{Name: name, Cordoned: n(0, 9).Draw(t, "cordoned") == 0, Bridge: n(0, 2).Draw(t, "bridge") > 0, Labels: map[string]string{"zone": rapid.SampledFrom([]string{"x", "y"}).Draw(t, "zone")}}
	cells := max(0, n(-1, 12).Draw(t, "cells")+3) / 4 // rarely none
	for i := range cells {
		c := sched.Cell{ID: i, VCPUs: n(2, 12).Draw(t, "vcpus")}
		c.Used = n(0, 6).Draw(t, "used") % c.VCPUs
		for k := range c.Memory {
			c.Memory[k].Total = int64(n(0, 8).Draw(t, "memory")) * int64(units.GiB)
		}
		h.Cells = append(h.Cells, c)
	}
	for i := range n(0, 5).Draw(t, "pfs") {
		p := sched.PF{
			Key: fmt.Sprintf("%s-%d", name, i), Fabric: rapid.SampledFrom([]string{"a", "a", "b"}).Draw(t, "fabric"),
			Card: rapid.SampledFrom([]string{"", "c0", "c1"}).Draw(t, "card"), Port: n(0, 2).Draw(t, "port"), Cell: n(-1, 3).Draw(t, "cell"),
			Speed: int64(n(0, 5).Draw(t, "speed")) * 1e9, Caps: sched.Caps(n(0, 7).Draw(t, "caps") | n(0, 7).Draw(t, "more caps")),
			Lag: rapid.Bool().Draw(t, "lag"), Ready: n(0, 5).Draw(t, "ready") > 0, VFs: 4,
		}
		for x := range 4 {
			if n(0, 3).Draw(t, "parked") > 0 {
				p.Parked.Set(x)
			}
			if n(0, 3).Draw(t, "claimed") == 0 {
				p.Claimed.Set(x)
			}
		}
		p.Min = min(p.Speed, int64(n(0, 2).Draw(t, "min"))*1e9)
		h.PFs = append(h.PFs, p)
	}
	if rapid.Bool().Draw(t, "settled") {
		h.Settle()
	}
	return h
}

func drawRequest(t *rapid.T) sched.Request {
	n := rapid.IntRange
	r := sched.Request{
		Cells: n(1, 3).Draw(t, "guest cells"), VCPUs: n(1, 4).Draw(t, "need vcpus"), Memory: units.Bytes(n(1, 4).Draw(t, "need memory")) * units.GiB,
		Page:  rapid.SampledFrom([]units.Bytes{0, 0, 2 * units.MiB, units.GiB}).Draw(t, "page"),
		Pairs: rapid.Bool().Draw(t, "pairs"), Lag: n(0, 4).Draw(t, "want lag") == 0, Strict: rapid.Bool().Draw(t, "strict"),
		MinRate: units.Rate(max(0, n(-2, 2).Draw(t, "min rate"))) * units.Gbps, MaxRate: units.Rate(max(0, n(-3, 1).Draw(t, "max rate"))) * units.Gbps,
	}
	unit := 1
	if r.Pairs {
		unit = 2
	}
	// As flavors deal them: in runs of whole units, evenly over the cells, or one unit to each of the first cells.
	perCell := n(0, 2).Draw(t, "units per cell")
	nets := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "a", "b"}), 1, 3).Draw(t, "networks")
	for g := range r.Cells {
		for range perCell * unit {
			r.VFs = append(r.VFs, sched.VF{Cell: g, Fabric: nets[len(r.VFs)%len(nets)]})
		}
	}
	if perCell == 1 {
		r.VFs = r.VFs[:unit*n(0, r.Cells).Draw(t, "units")]
	}
	qos := map[string]bool{"a": rapid.Bool().Draw(t, "qos a"), "b": rapid.Bool().Draw(t, "qos b")}
	for i := range r.VFs {
		r.VFs[i].QoS = qos[r.VFs[i].Fabric]
	}
	r.Bridge = len(r.VFs) == 0
	r.Host = rapid.SampledFrom([]string{"", "", "", "h0"}).Draw(t, "pin")
	if n(0, 3).Draw(t, "labels") == 0 {
		r.Labels = map[string]string{"zone": "x"}
	}
	dead := rapid.SampledFrom([]string{"", "", "h1"}).Draw(t, "dead")
	r.Alive = func(name string) bool { return name != dead }
	return r
}

// TestPlaceEqualsBruteForce: the same hosts fit as by trying everything, the decision keeps every rule, and
// every refusal names a rule with numbers.
func TestPlaceEqualsBruteForce(t *testing.T) {
	fit, refused := 0, map[string]int{}
	for range 100 { // of 100 states each
		rapid.Check(t, equalsBruteForce(&fit, refused))
	}
	for _, rule := range []string{"cordoned", "unknown", "pinned", "labels", "bridge", "fabric", "vf-ready", "vf-free", "ha", "numa-vcpus", "numa-memory", "numa-hugepages", "numa-vf", "bandwidth"} {
		if refused[rule] == 0 {
			t.Errorf("rule %s was never met: %v", rule, refused)
		}
	}
	if fit == 0 {
		t.Error("nothing ever fitted")
	}
}

func equalsBruteForce(fit *int, refused map[string]int) func(*rapid.T) {
	return func(t *rapid.T) {
		var hosts []*sched.Host
		for i := range rapid.IntRange(1, 3).Draw(t, "hosts") {
			hosts = append(hosts, drawHost(t, fmt.Sprintf("h%d", i)))
		}
		r := drawRequest(t)
		p, d := sched.Place(&r, hosts)
		why := d.Explanation()
		if len(why.Hosts) != len(hosts) || why.Fits != d.Fits() || why.Summary == "" {
			t.Fatalf("explanation = %+v", why)
		}
		for i, h := range hosts {
			want := newBrute(r, h).fits()
			v := why.Hosts[i]
			if v.Fits != want {
				t.Fatalf("host %s: fits = %t (%s: %s), brute force says %t", h.Name, v.Fits, v.Rule, v.Text, want)
			}
			if v.Text == "" || !v.Fits && (v.Rule == "" || v.Nearest == "") {
				t.Fatalf("verdict says too little: %+v", v)
			}
			if want {
				*fit++
			} else {
				refused[v.Rule]++
			}
		}
		if !d.Fits() {
			if why.Nearest == "" {
				t.Fatal("a refusal without a nearest change")
			}
			return
		}
		book(t, &r, p)
		again, _ := sched.Place(&r, []*sched.Host{hosts[len(hosts)-1], hosts[0]}[:min(2, len(hosts))])
		if len(hosts) <= 2 && again.Host != p.Host {
			t.Fatalf("the order of hosts decides: %s, %s", p.Host.Name, again.Host.Name)
		}
	}
}

// TestSettledHostsDecideTheSame: that hosts are passed over unjudged, because they can't be the best, never
// changes what is taken. A host that is not settled is always judged.
func TestSettledHostsDecideTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var settled, plain []*sched.Host
		for i := range rapid.IntRange(2, 12).Draw(t, "hosts") {
			h := drawHost(t, fmt.Sprintf("h%d", i))
			h.Settle()
			settled = append(settled, h)
			plain = append(plain, &sched.Host{Name: h.Name, Cordoned: h.Cordoned, Bridge: h.Bridge, Labels: h.Labels, Cells: h.Cells, PFs: h.PFs})
		}
		r := drawRequest(t)
		p, d := sched.Place(&r, settled)
		q, e := sched.Place(&r, plain)
		if d.Fits() != e.Fits() {
			t.Fatalf("settled: fits = %t, plain: %t", d.Fits(), e.Fits())
		}
		if diff := cmp.Diff(e.Explanation(), d.Explanation()); diff != "" {
			t.Fatal(diff)
		}
		if d.Fits() && p.Host.Name != q.Host.Name {
			t.Fatalf("settled hosts give %s, plain ones %s", p.Host.Name, q.Host.Name)
		}
	})
}

// book takes the decision on a copy and checks it against the request.
func book(t *rapid.T, r *sched.Request, p sched.Placement) {
	c := &sched.Claim{UID: "u", VFs: p.VFs, MinRate: int64(r.MinRate)}
	seen := map[int]bool{}
	for _, n := range p.Nodes {
		if seen[n] {
			t.Fatalf("two guest cells on node %d", n)
		}
		seen[n] = true
		c.Cells = append(c.Cells, sched.CellClaim{Node: n, VCPUs: r.VCPUs, Memory: int64(r.Memory), Page: sched.PageClass(r.Page)})
	}
	before := p.Host.Clone()
	before.Settle()
	h := before.Clone()
	if err := h.Take(c); err != nil {
		t.Fatal(err)
	}
	byKey := map[string]sched.PF{}
	for _, f := range h.PFs {
		byKey[f.Key] = f
		if r.MinRate > 0 && f.Min > f.Speed && contains(p.VFs, f.Key) {
			t.Fatalf("PF %s guarantees %d of %d", f.Key, f.Min, f.Speed)
		}
	}
	if len(p.VFs) != len(r.VFs) {
		t.Fatalf("%d VFs, want %d", len(p.VFs), len(r.VFs))
	}
	for k, v := range p.VFs {
		f := byKey[v.PF]
		if f.Fabric != r.VFs[k].Fabric || p.Met && f.Cell != p.Nodes[r.VFs[k].Cell] || r.Lag && !f.Lag {
			t.Fatalf("VF %d on PF %+v", k, f)
		}
		if q := byKey[p.VFs[k&^1].PF]; r.Pairs && k%2 == 1 && (q.Card != f.Card || q.Port == f.Port) {
			t.Fatalf("pair on %s and %s", q.Key, f.Key)
		}
	}
	if r.Strict && !p.Met {
		t.Fatal("required, but not met")
	}
	if err := h.Clone().Take(c); len(p.VFs) > 0 && err == nil {
		t.Fatal("the same VFs were taken twice")
	}
	h.Give(c)
	for i := range h.PFs {
		if h.PFs[i] != before.PFs[i] {
			t.Fatalf("give is not the inverse of take: %+v", h.PFs[i])
		}
	}
	for i := range h.Cells {
		if h.Cells[i] != p.Host.Cells[i] {
			t.Fatalf("give is not the inverse of take: %+v", h.Cells[i])
		}
	}
}

func contains(list []sched.VFClaim, key string) bool {
	for _, v := range list {
		if v.PF == key {
			return true
		}
	}
	return false
}
