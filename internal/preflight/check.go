package preflight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Level is how much a check matters.
type Level string

// The levels.
const (
	OK      Level = "ok"
	Info    Level = "info"    // good to know
	Unknown Level = "unknown" // could not be seen
	Warning Level = "warning" // works, but not as well or not for long
	Failed  Level = "failed"  // VMs on this host get no working RDMA
)

// Finding is one check of one object.
type Finding struct {
	Check    string   `json:"check"`            // LAYER.NAME, stable
	Object   string   `json:"object,omitempty"` // PCI address, link or device; empty for the host
	Level    Level    `json:"level"`
	Seen     string   `json:"seen"`
	Expected string   `json:"expected,omitempty"`
	Fix      []string `json:"fix,omitempty"` // commands, or sentences where no command can do it
	Doc      string   `json:"doc,omitempty"` // page of the documentation
}

// Report is what preflight says of a host.
type Report struct {
	Host     string    `json:"host"`
	Kernel   string    `json:"kernel"`
	Findings []Finding `json:"findings"`
}

// Failed reports whether a finding says that the host can't do its work.
func (r Report) Failed() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Level == Failed })
}

// Count is the number of findings of a level.
func (r Report) Count(l Level) int {
	n := 0
	for _, f := range r.Findings {
		if f.Level == l {
			n++
		}
	}
	return n
}

// doc is the page that explains all checks; each has an anchor of its name.
const doc = "docs/preflight.md#"

// book collects findings.
type book struct {
	conf Config
	list []Finding
}

func (b *book) add(level Level, check, object, seen string) *Finding {
	b.list = append(b.list, Finding{Check: check, Object: object, Level: level, Seen: seen, Doc: doc + strings.ReplaceAll(check, ".", "")})
	return &b.list[len(b.list)-1]
}

func (b *book) ok(check, object, format string, args ...any) {
	f := b.add(OK, check, object, fmt.Sprintf(format, args...))
	f.Doc = ""
}

// want adds what was expected and how to get there.
func (f *Finding) want(expected string, fix ...string) {
	f.Expected, f.Fix = expected, fix
}

// Check judges the facts, in the order in which things are to be mended.
func Check(f Facts, c Config) []Finding {
	return CheckEach(f, func(PF) Expect { return Expect{Config: c} })
}

// each checks all that belongs to a port.
func (b *book) each(f Facts, p PF) {
	b.physical(p)
	b.sriov(f, p)
	b.eswitch(p)
	b.firmware(f, p)
	b.place(p)
	b.lossless(p)
}

// Modules are what a host needs; rdma_ucm and the vfio ones can be loaded at any time.
func modules() []string {
	return []string{"ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm", "vfio_pci", "vfio_iommu_type1"}
}

// Fix is one step that is safe to take on a running host.
type Fix struct {
	Module string // to load
}

// Command prints the step as a shell would do it.
func (f Fix) Command() string { return "modprobe " + f.Module }

// Fixes are the safe steps for these facts, in order; doing them again does nothing. Whatever may take a link
// down or needs a restart is in the findings only.
func Fixes(f Facts) []Fix {
	var out []Fix
	for _, m := range modules() {
		if !f.Modules[m] {
			out = append(out, Fix{Module: m})
		}
	}
	return out
}

func join(list []string) string { return cmp.Or(strings.Join(list, ", "), "none") }
