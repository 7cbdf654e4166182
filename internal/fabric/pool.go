package fabric

import (
	"slices"
	"strconv"
	"strings"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/roce"
)

// Range is a run of VLAN ids, both ends included.
type Range struct{ First, Last int }

// Pool is a sorted list of ranges that neither overlap nor touch.
type Pool []Range

// ParsePool reads "100" and "100-199" items into one pool; items may come in any order and overlap.
func ParsePool(items []string) (Pool, error) {
	if len(items) > roce.MaxVLAN {
		return nil, fault.New(fault.Invalid, "%d items are too many for %d VLAN ids", len(items), roce.MaxVLAN)
	}
	var p Pool
	for _, item := range items {
		r, err := parseRange(item)
		if err != nil {
			return nil, err
		}
		p = append(p, r)
	}
	slices.SortFunc(p, func(a, b Range) int { return a.First - b.First })
	var out Pool
	for _, r := range p {
		if n := len(out); n > 0 && r.First <= out[n-1].Last+1 {
			out[n-1].Last = max(out[n-1].Last, r.Last)
			continue
		}
		out = append(out, r)
	}
	return out, nil
}

func parseRange(s string) (Range, error) {
	from, to, isRange := strings.Cut(s, "-")
	if !isRange {
		to = from
	}
	a, errA := vid(from)
	b, errB := vid(to)
	if errA != nil || errB != nil {
		return Range{}, fault.New(fault.Invalid, "%s is no VLAN id or range; write for example 100 or 100-199, within %d-%d", object.Quote(s), roce.MinVLAN, roce.MaxVLAN)
	}
	if a > b {
		return Range{}, fault.New(fault.Invalid, "VLAN range %s runs backwards; write %d-%d", object.Quote(s), b, a)
	}
	return Range{a, b}, nil
}

// vid reads decimal digits only: no sign, no space, no leading zero that might mean octal.
func vid(s string) (int, error) {
	if s == "" || len(s) > 4 || s[0] == '0' || s[0] == '+' {
		return 0, strconv.ErrSyntax
	}
	v, err := strconv.Atoi(s)
	if err != nil {
		return 0, err
	}
	if v < roce.MinVLAN || v > roce.MaxVLAN {
		return 0, strconv.ErrRange
	}
	return v, nil
}

// Has reports whether the pool holds a VLAN id.
func (p Pool) Has(id int) bool {
	for _, r := range p {
		if id >= r.First && id <= r.Last {
			return true
		}
	}
	return false
}

// Size returns how many ids the pool holds.
func (p Pool) Size() int {
	n := 0
	for _, r := range p {
		n += r.Last - r.First + 1
	}
	return n
}

// String returns the pool as it would be written.
func (p Pool) String() string {
	var parts []string
	for _, r := range p {
		if r.First == r.Last {
			parts = append(parts, strconv.Itoa(r.First))
		} else {
			parts = append(parts, strconv.Itoa(r.First)+"-"+strconv.Itoa(r.Last))
		}
	}
	return strings.Join(parts, ",")
}
