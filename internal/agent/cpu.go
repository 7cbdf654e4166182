package agent

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxCPU bounds a CPU number, so that a damaged list can't ask for gigabytes.
const maxCPU = 1 << 16

// parseCPUs reads the kernel's list format ("0-15,32-47"; Documentation/admin-guide/cputopology.rst).
func parseCPUs(list string) ([]int, error) {
	var out []int
	list = strings.TrimSpace(list)
	if list == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(list, ",") {
		low, high, ranged := strings.Cut(strings.TrimSpace(part), "-")
		a, err := strconv.ParseUint(low, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("CPU list %.60q: %q is no number", list, low)
		}
		b := a
		if ranged {
			if b, err = strconv.ParseUint(high, 10, 16); err != nil || b < a {
				return nil, fmt.Errorf("CPU list %.60q: %q is no range", list, part)
			}
		}
		for c := a; c <= b && len(out) <= maxCPU; c++ {
			out = append(out, int(c))
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// formatCPUs is the inverse of parseCPUs for a sorted list.
func formatCPUs(list []int) string {
	var b strings.Builder
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(list[i]))
		if j > i {
			b.WriteString("-" + strconv.Itoa(list[j]))
		}
		i = j + 1
	}
	return b.String()
}

// pin chooses host CPUs for n vCPUs of a guest cell: one CPU each out of those that no other domain is
// pinned to, and if there are too few of them, all vCPUs on the whole cell, so that the kernel balances.
func pin(n int, cell []int, taken map[int]bool) []cpus {
	var free []int
	for _, c := range cell {
		if !taken[c] {
			free = append(free, c)
		}
	}
	out := make([]cpus, n)
	for i := range out {
		if len(free) >= n {
			out[i] = strconv.Itoa(free[i])
		} else {
			out[i] = formatCPUs(cell)
		}
	}
	return out
}
