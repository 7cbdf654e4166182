package guestos

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxCPU bounds the numbers in a CPU list, as the kernel's own limit does (NR_CPUS).
const MaxCPU = 8191

// ParseCPUs reads the kernel's list format, such as 0-3,8; the result is sorted.
func ParseCPUs(list string) ([]int, error) {
	var out []int
	list = strings.TrimSpace(list)
	if list == "" {
		return nil, nil
	}
	seen := [MaxCPU + 1]bool{}
	for part := range strings.SplitSeq(list, ",") {
		low, high, ranged := strings.Cut(part, "-")
		a, err := cpu(low)
		b := a
		if err == nil && ranged {
			b, err = cpu(high)
		}
		if err != nil || b < a {
			return nil, fmt.Errorf("CPU list %.60q: %.20q is no CPU and no range up to %d", list, part, MaxCPU)
		}
		for c := a; c <= b; c++ {
			if !seen[c] {
				seen[c] = true
				out = append(out, c)
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

func cpu(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err == nil && n > MaxCPU {
		err = strconv.ErrRange
	}
	return int(n), err
}

// FormatCPUs is the inverse of ParseCPUs for a sorted list.
func FormatCPUs(list []int) string {
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
