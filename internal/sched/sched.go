// Package sched decides which host, which NUMA nodes and which VFs a VM gets, and says why not.
//
// Rules are asked in a fixed order and the first that says no is the host's answer: cordoned, unknown,
// pinned, labels, bridge; then VFs (fabric, vf-ready, vf-free, ha); then NUMA (numa-vcpus, numa-memory or
// numa-hugepages, numa-vf); then bandwidth. A guest cell is backed by one host node, and two guest cells
// never share one: the guest's view of distance would be a lie. Under the policy "required" the VFs of a
// cell sit on its node; under "preferred" that is tried first and given up before the host is.
//
// Among the hosts that fit the fullest is taken (least waste, so that large requests stay placeable);
// VMs without RDMA keep away from hosts and nodes with VFs. Equal hosts are told apart by name: the same
// state always gives the same decision.
package sched

import (
	"math"
	"slices"
	"strings"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/units"
)

// Request is what a VM needs.
type Request struct {
	Cells   int         // guest cells, at least 1
	VCPUs   int         // of each cell
	Memory  units.Bytes // of each cell
	Page    units.Bytes // page size; 0 = normal pages
	VFs     []VF
	Pairs   bool // VFs 2i and 2i+1 come from two ports of one card
	Lag     bool // only PFs in switchdev mode and a bond
	Bridge  bool // virtio NICs, which need a bridge on the host
	Strict  bool // NUMA policy required
	MinRate units.Rate
	MaxRate units.Rate
	Host    string            // pinned to it, if not empty
	Labels  map[string]string // the host must have
	Alive   func(host string) bool
}

// VF is one virtual function of a request.
type VF struct {
	Cell   int // guest cell
	Fabric string
	QoS    bool // a VLAN priority must be set
}

// Placement is the decision.
type Placement struct {
	Host  *Host // shared: Clone before changing it
	Nodes []int // host node of each guest cell
	VFs   []VFClaim
	Local []int // NUMA node of each VF's PF
	Met   bool  // every VF is on the node of its cell
}

// Rule is the name of a rule as explanations show it.
type Rule uint8

// The rules, in the order in which they are asked; the later one fails, the nearer is the host.
const (
	fits Rule = iota
	cordoned
	unknown
	pinned
	labels
	bridge
	fabricRule
	vfReady
	vfFree
	haRule
	numaVCPUs
	numaMemory
	numaHugepages
	numaVF
	bandwidth
)

// String returns the name that the API shows.
func (r Rule) String() string {
	return [...]string{"", "cordoned", "unknown", "pinned", "labels", "bridge", "fabric", "vf-ready", "vf-free", "ha", "numa-vcpus", "numa-memory", "numa-hugepages", "numa-vf", "bandwidth"}[r]
}

// verdict is a host's answer before it is put into words.
type verdict struct {
	host   *Host
	rule   Rule
	need   int64
	have   int64
	node   int    // the best node under a NUMA rule
	fabric string // under a VF rule
	met    bool
	score  float64
}

// Decision is the answer of one placement. The other hosts are judged, and everything is put into words,
// only when somebody reads it.
type Decision struct {
	req   *Request
	hosts []*Host
	taken verdict // its score is -Inf while there is none
	best  int     // index of the host taken, -1 = none fits
}

// Place decides. hosts may come in any order and are not changed.
func Place(req *Request, hosts []*Host) (Placement, Decision) {
	d := Decision{req: req, hosts: hosts, taken: verdict{score: math.Inf(-1)}, best: -1}
	t := newTrial(req)
	tops, first := t.ceilings(hosts)
	try := func(i int) {
		v := t.judge(hosts[i])
		if v.rule == fits && (d.best < 0 || better(v, d.taken)) {
			d.best, d.taken = i, v
		}
	}
	if first >= 0 {
		try(first) // the likeliest: it saves judging most of the others
	}
	for i, top := range tops {
		if i != first && top >= d.taken.score && !math.IsInf(top, -1) {
			try(i)
		}
	}
	if d.best < 0 {
		return Placement{}, d
	}
	return t.build(hosts[d.best]), d
}

func better(a, b verdict) bool {
	if a.score > b.score || a.score < b.score {
		return a.score > b.score
	}
	return a.host.Name < b.host.Name
}

// verdicts returns every host's, in the order of the hosts.
func (d *Decision) verdicts() []verdict {
	t := newTrial(d.req)
	out := make([]verdict, 0, len(d.hosts))
	for i, h := range d.hosts {
		if i == d.best {
			out = append(out, d.taken)
			continue
		}
		out = append(out, t.judge(h))
	}
	return out
}

// Fits reports whether a host was found.
func (d *Decision) Fits() bool { return d.best >= 0 }

// Taken answers with the host that was taken only.
func (d *Decision) Taken() api.Explanation {
	name := d.taken.host.Name
	return api.Explanation{Fits: true, Host: name, Summary: "fits on host " + name, Hosts: []api.HostVerdict{d.words(d.taken)}}
}

// Explanation answers with every host's verdict, hosts in the order of their names.
func (d *Decision) Explanation() api.Explanation {
	all := d.verdicts()
	out := api.Explanation{Fits: d.best >= 0, Hosts: make([]api.HostVerdict, 0, len(all))}
	for _, v := range all {
		out.Hosts = append(out.Hosts, d.words(v))
	}
	slices.SortFunc(out.Hosts, func(a, b api.HostVerdict) int { return strings.Compare(a.Host, b.Host) })
	if out.Fits {
		out.Host = d.taken.host.Name
	} else {
		out.Nearest = d.nearest(all)
	}
	out.Summary = d.summary(all)
	return out
}
