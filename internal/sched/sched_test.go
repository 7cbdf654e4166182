package sched_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/verbena-cloud/verbena/internal/sched"
	"github.com/verbena-cloud/verbena/internal/units"
)

// rack returns n hosts of the given nodes; each has a dual-port card per node with vfs VFs on each port.
func rack(n, nodes, vfs int) []*sched.Host {
	var out []*sched.Host
	for i := range n {
		h := &sched.Host{Name: fmt.Sprintf("h%03d", i)}
		for c := range nodes {
			cell := sched.Cell{ID: c, VCPUs: 32}
			cell.Memory[sched.Normal].Total = 256 << 30
			h.Cells = append(h.Cells, cell)
			for port := range 2 {
				p := sched.PF{
					Key: fmt.Sprintf("%s-c%d-p%d", h.Name, c, port), Fabric: "a", Card: fmt.Sprintf("%s-c%d", h.Name, c), Port: port, Cell: c,
					Speed: 100e9, Caps: sched.CapQoS | sched.CapMinRate | sched.CapMaxRate, Ready: true, VFs: vfs,
				}
				for x := range vfs {
					p.Parked.Set(x)
				}
				h.PFs = append(h.PFs, p)
			}
		}
		out = append(out, h)
	}
	return out
}

func request(vfs int) *sched.Request {
	r := &sched.Request{Cells: 1, VCPUs: 4, Memory: 8 * units.GiB, Strict: true}
	for range vfs {
		r.VFs = append(r.VFs, sched.VF{Fabric: "a", QoS: true})
	}
	return r
}

func pfs(p sched.Placement) []string {
	var out []string
	for _, v := range p.VFs {
		out = append(out, fmt.Sprintf("%s/%d", v.PF, v.Index))
	}
	return out
}

func TestSingleSpreadsOverPFs(t *testing.T) {
	p, _ := sched.Place(request(4), rack(1, 1, 8))
	if diff := cmp.Diff([]string{"h000-c0-p0/0", "h000-c0-p1/0", "h000-c0-p0/1", "h000-c0-p1/1"}, pfs(p)); diff != "" {
		t.Error(diff)
	}
}

func TestPairsTakeBothPortsOfACard(t *testing.T) {
	hosts := rack(1, 1, 8)
	hosts[0].PFs = append(hosts[0].PFs, sched.PF{Key: "odd", Fabric: "a", Card: "other", Cell: 0, Speed: 100e9, Caps: 7, Ready: true, VFs: 8, Parked: hosts[0].PFs[0].Parked})
	r := request(4)
	r.Pairs = true
	p, _ := sched.Place(r, hosts)
	if diff := cmp.Diff([]string{"h000-c0-p0/0", "h000-c0-p1/0", "h000-c0-p0/1", "h000-c0-p1/1"}, pfs(p)); diff != "" {
		t.Error(diff)
	}
	hosts[0].PFs = hosts[0].PFs[1:] // a card of one port and another of one port are no pair
	_, d := sched.Place(r, hosts)
	if v := d.Explanation().Hosts[0]; v.Rule != "ha" || v.Have != 0 || v.Need != 4 || !strings.Contains(v.Nearest, "second port of a card") {
		t.Errorf("verdict = %+v", v)
	}
	hosts = rack(1, 1, 8)
	hosts[0].PFs[0].Parked = sched.Bits{} // the card is one of two ports, but one is used up
	if _, d = sched.Place(r, hosts); !strings.Contains(d.Explanation().Hosts[0].Nearest, "free a VF on both ports") {
		t.Errorf("verdict = %+v", d.Explanation().Hosts[0])
	}
}

func TestLagNeedsSwitchdevAndBond(t *testing.T) {
	hosts := rack(1, 1, 8)
	r := request(2)
	r.Lag = true
	_, d := sched.Place(r, hosts)
	if v := d.Explanation().Hosts[0]; v.Rule != "ha" {
		t.Errorf("verdict = %+v", v)
	}
	hosts[0].PFs[0].Lag, hosts[0].PFs[1].Lag = true, true
	if _, d := sched.Place(r, hosts); !d.Fits() {
		t.Errorf("explanation = %+v", d.Explanation())
	}
}

func TestCapabilitiesCountOnlyWhenAskedFor(t *testing.T) {
	hosts := rack(1, 1, 8)
	for i := range hosts[0].PFs {
		hosts[0].PFs[i].Caps = 0
	}
	plain := request(1)
	plain.VFs[0].QoS = false
	if _, d := sched.Place(plain, hosts); !d.Fits() {
		t.Errorf("explanation = %+v", d.Explanation())
	}
	for name, ask := range map[string]func(*sched.Request){
		"VLAN priority": func(r *sched.Request) { r.VFs[0].QoS = true },
		"minimum rate":  func(r *sched.Request) { r.MinRate = units.Gbps },
		"limit":         func(r *sched.Request) { r.MaxRate = units.Gbps },
	} {
		r := request(1)
		r.VFs[0].QoS = false
		ask(r)
		_, d := sched.Place(r, hosts)
		if v := d.Explanation().Hosts[0]; v.Rule != "vf-ready" {
			t.Errorf("%s: verdict = %+v", name, v)
		}
	}
}

func TestGuaranteedRatesStayBelowTheLink(t *testing.T) {
	hosts := rack(1, 1, 8)
	r := request(1)
	r.MinRate = 40 * units.Gbps
	for range 4 { // two on each port of 100 Gbps
		p, d := sched.Place(r, hosts)
		if !d.Fits() {
			t.Fatalf("explanation = %+v", d.Explanation())
		}
		if err := hosts[0].Take(&sched.Claim{VFs: p.VFs, MinRate: int64(r.MinRate)}); err != nil {
			t.Fatal(err)
		}
	}
	_, d := sched.Place(r, hosts)
	if v := d.Explanation().Hosts[0]; v.Rule != "bandwidth" || v.Need != 40e9 || v.Have != 0 {
		t.Errorf("verdict = %+v", v)
	}
}

func TestNearestIsTheHostThatLacksLeast(t *testing.T) {
	hosts := rack(3, 1, 4)
	hosts[0].Cordoned = true
	hosts[1].Cells[0].Used = 30
	hosts[2].Cells[0].Used = 31
	_, d := sched.Place(request(1), hosts)
	why := d.Explanation()
	if why.Nearest != "host h001: free 2 vCPUs on node 0" {
		t.Errorf("nearest = %q", why.Nearest)
	}
	if why.Summary != "no host fits: of 3, 2 by numa-vcpus, 1 by cordoned" {
		t.Errorf("summary = %q", why.Summary)
	}
}

// TestCellsNeedNodesOfTheirOwn: a node with room enough is not said to lack it, when the reason is that each
// guest cell takes a node.
func TestCellsNeedNodesOfTheirOwn(t *testing.T) {
	hosts := rack(1, 2, 4)
	for i := range hosts[0].PFs {
		if hosts[0].PFs[i].Cell == 0 {
			hosts[0].PFs[i].Fabric = "b"
		}
	}
	r := request(2)
	r.Cells, r.VFs[1].Cell = 2, 1
	_, d := sched.Place(r, hosts)
	v := d.Explanation().Hosts[0]
	if v.Rule != "numa-vf" || !strings.Contains(v.Text, "can back only one of the 2 cells") || strings.Contains(v.Text, "not 4 and") {
		t.Errorf("%s: %s", v.Rule, v.Text)
	}
	if v.Nearest != "use a flavor with fewer cells, or one with numa preferred" {
		t.Errorf("nearest = %q", v.Nearest)
	}
}

func TestFullHostsFillFirst(t *testing.T) {
	hosts := rack(3, 2, 16)
	hosts[1].Cells[1].Used, hosts[1].Cells[1].Memory[sched.Normal].Used = 16, 128<<30
	p, _ := sched.Place(request(1), hosts)
	if p.Host.Name != "h001" || p.Nodes[0] != 1 {
		t.Errorf("placed on %s node %v", p.Host.Name, p.Nodes)
	}
}

func TestPreferredGivesWayLast(t *testing.T) {
	hosts := rack(2, 2, 4)
	for _, h := range hosts[:1] { // on h000 only node 0 has room and only node 1 has VFs
		h.Cells[1].Used = 32
		h.PFs[0].Ready, h.PFs[1].Ready = false, false
	}
	r := request(1)
	r.Strict = false
	p, _ := sched.Place(r, hosts)
	if p.Host.Name != "h001" || !p.Met {
		t.Errorf("placed on %s, met %t", p.Host.Name, p.Met)
	}
	p, d := sched.Place(r, hosts[:1])
	if !d.Fits() || p.Met || p.Nodes[0] != 0 || p.Local[0] != 1 {
		t.Errorf("placement = %+v", p)
	}
}

func TestBitsKeepTheirText(t *testing.T) {
	for _, set := range [][]int{nil, {0}, {63, 64}, {255}, {1, 100, 200}} {
		var b, back sched.Bits
		for _, i := range set {
			b.Set(i)
		}
		b.Set(-1)
		b.Set(256)
		text, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &back); err != nil || back != b || b.Count() != len(set) {
			t.Errorf("%v: %s, %v", set, text, err)
		}
		var got []int
		for i := range b.All {
			got = append(got, i)
		}
		if diff := cmp.Diff(set, got); diff != "" {
			t.Error(diff)
		}
	}
	var b sched.Bits
	if b.UnmarshalText([]byte("1.2.3.4.5")) == nil || b.UnmarshalText([]byte("x")) == nil {
		t.Error("nonsense was taken")
	}
}

// TestF74_SixteenNodes: eight guest cells over sixteen nodes is a matching, not a search.
func TestF74_SixteenNodes(t *testing.T) {
	hosts := rack(1, 16, 2)
	for c := range hosts[0].Cells {
		if c%2 == 0 {
			hosts[0].Cells[c].Used = 32
		}
	}
	r := &sched.Request{Cells: 8, VCPUs: 32, Memory: units.GiB, Strict: true}
	for g := range 8 {
		r.VFs = append(r.VFs, sched.VF{Cell: g, Fabric: "a"})
	}
	p, d := sched.Place(r, hosts)
	if !d.Fits() || len(p.VFs) != 8 {
		t.Fatalf("explanation = %+v", d.Explanation())
	}
	hosts[0].PFs[31].Ready, hosts[0].PFs[30].Ready = false, false
	if _, d := sched.Place(r, hosts); d.Fits() {
		t.Error("eight cells fit on seven nodes with VFs")
	}
}

func BenchmarkPlace(b *testing.B) {
	for _, bc := range []struct{ hosts, nodes, vfs int }{{4, 2, 32}, {4, 16, 4}, {256, 2, 32}} {
		b.Run(fmt.Sprintf("%dx%d", bc.hosts, bc.nodes), func(b *testing.B) {
			hosts, r := rack(bc.hosts, bc.nodes, bc.vfs), request(2)
			for _, h := range hosts {
				h.Settle()
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, d := sched.Place(r, hosts); !d.Fits() {
					b.Fatal(d.Explanation())
				}
			}
		})
	}
}

func BenchmarkExplain(b *testing.B) {
	hosts, r := rack(256, 2, 32), request(2)
	for _, h := range hosts {
		h.Cells[0].Used, h.Cells[1].Used = 30, 30
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, d := sched.Place(r, hosts); len(d.Explanation().Hosts) != 256 {
			b.Fatal("hosts are missing")
		}
	}
}
