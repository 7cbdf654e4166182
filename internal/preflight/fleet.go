package preflight

import (
	"cmp"
	"slices"
	"unicode/utf8"
)

// Expect is what is expected of one port.
type Expect struct {
	Config
	// Spare says that VMs get nothing of the port, while they do of others: what is wrong with it is good to
	// know and no more.
	Spare bool
}

// spare is said of what was found on a port that VMs get nothing of.
const spare = " (the port serves no fabric)"

// CheckEach judges the facts, each port by what is expected of it.
func CheckEach(f Facts, of func(PF) Expect) []Finding {
	b := &book{}
	b.nics(f)
	for _, p := range f.PFs {
		e, from := of(p), len(b.list)
		b.conf = e.Config
		b.each(f, p)
		if e.Spare {
			lower(b.list[from:])
		}
	}
	b.kernel(f)
	b.iommu(f)
	b.memory(f)
	b.network(f)
	for _, d := range f.RDMA {
		from := len(b.list)
		b.device(f, d)
		if p, ok := f.portOf(d); ok && of(p).Spare {
			lower(b.list[from:])
		}
	}
	for _, u := range f.Unseen {
		b.add(Unknown, "host.unseen", "", u).want("", "run it as root, or look at the cause")
	}
	return b.list
}

// portOf is the PF that an RDMA device is of, itself or by one of its VFs.
func (f Facts) portOf(d RDMADevice) (PF, bool) {
	if d.Address == nil {
		return PF{}, false
	}
	i := slices.IndexFunc(f.PFs, func(p PF) bool {
		return p.Address == *d.Address || slices.ContainsFunc(p.VFs, func(v VF) bool { return v.Address == *d.Address })
	})
	if i < 0 {
		return PF{}, false
	}
	return f.PFs[i], true
}

// lower makes of findings what is good to know.
func lower(list []Finding) {
	for i := range list {
		if l := list[i].Level; l == Failed || l == Warning || l == Unknown {
			list[i].Level, list[i].Seen = Info, list[i].Seen+spare
		}
	}
}

// rank puts what matters most first.
func rank(l Level) int {
	return slices.Index([]Level{Failed, Warning, Unknown, Info, OK}, l)
}

// Bounds of what one host tells of itself, so that a fleet's findings stay small.
const (
	MaxFindings = 40  // of one host
	MaxSeen     = 300 // bytes of what was seen, expected, or of one step
	MaxSteps    = 4   // of one finding
)

// Worst are the findings that are not ok, those that matter most first, as many and as long as the bounds allow, and
// how many there were besides.
func Worst(list []Finding) (out []Finding, omitted int) {
	for _, f := range list {
		if f.Level == OK {
			continue
		}
		f.Object, f.Seen, f.Expected = Clip(f.Object), Clip(f.Seen), Clip(f.Expected)
		f.Fix = slices.Clone(f.Fix[:min(len(f.Fix), MaxSteps)])
		for i := range f.Fix {
			f.Fix[i] = Clip(f.Fix[i])
		}
		out = append(out, f)
	}
	slices.SortStableFunc(out, func(a, b Finding) int { return cmp.Compare(rank(a.Level), rank(b.Level)) })
	kept := out[:min(len(out), MaxFindings)]
	return kept, len(out) - len(kept)
}

// Clip shortens a text to MaxSeen bytes, at the end of a character.
func Clip(s string) string {
	if len(s) <= MaxSeen {
		return s
	}
	const more = "…"
	n := MaxSeen - len(more)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + more
}
