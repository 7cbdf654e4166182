package agent

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/sysfs"
)

const nodeDir = "devices/system/node"

// cells reads the host's NUMA nodes; a kernel without NUMA is one node with all CPUs.
func cells(ctx context.Context, tree sysfs.Tree, prob *problems) []api.Cell {
	var failed error
	r := reader{ctx: ctx, tree: tree, dir: nodeDir, prob: prob, err: &failed}
	names, err := tree.List(ctx, nodeDir)
	if err != nil && !sysfs.Absent(err) {
		prob.add(err)
		return nil
	}
	var out []api.Cell
	for _, n := range names {
		id, err := strconv.Atoi(strings.TrimPrefix(n, "node"))
		if err != nil || !strings.HasPrefix(n, "node") {
			continue
		}
		out = append(out, cell(r.at(nodeDir+"/"+n), id))
	}
	if len(out) == 0 {
		c := api.Cell{CPUs: r.at("devices/system/cpu").text("online")}
		list, err := parseCPUs(c.CPUs)
		if err != nil {
			prob.add(err)
		}
		c.VCPUs = len(list)
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b api.Cell) int { return a.ID - b.ID })
	return out
}

func cell(r reader, id int) api.Cell {
	c := api.Cell{ID: id, CPUs: r.text("cpulist")}
	list, err := parseCPUs(c.CPUs)
	if err != nil {
		r.prob.add(err)
	}
	c.VCPUs = len(list)
	c.Memory = memTotal(r.text("meminfo"))
	for _, h := range []struct {
		size, dir string
		bytes     int64
	}{{"2MiB", "hugepages-2048kB", 2 << 20}, {"1GiB", "hugepages-1048576kB", 1 << 30}} {
		total := r.number("hugepages/"+h.dir+"/nr_hugepages", 0)
		if total <= 0 {
			continue
		}
		c.Hugepages = append(c.Hugepages, api.Hugepages{Size: h.size, Total: int64(total),
			Free: int64(r.number("hugepages/"+h.dir+"/free_hugepages", 0))})
		c.Memory -= int64(total) * h.bytes
	}
	c.Memory = max(c.Memory, 0)
	return c
}

// memTotal finds "Node 0 MemTotal:       32768 kB" and returns bytes.
func memTotal(meminfo string) int64 {
	for line := range strings.Lines(meminfo) {
		f := strings.Fields(line)
		for i, w := range f {
			if w != "MemTotal:" || i+1 >= len(f) {
				continue
			}
			kib, err := strconv.ParseInt(f[i+1], 10, 64)
			if err != nil || kib < 0 || kib > 1<<52 {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}
