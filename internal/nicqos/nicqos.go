package nicqos

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/verbena-cloud/verbena/internal/dcb"
	"github.com/verbena-cloud/verbena/internal/roce"
)

// Want is what a fabric asks of a port.
type Want struct {
	Priority    int // of RoCE
	DSCP        int // of RoCE
	CNPDSCP     int // of congestion notifications
	CNPPriority int
}

// For is what a fabric asks of its ports; it gives congestion notifications their priority.
func For(priority, dscp, cnpDSCP int) Want {
	w := Want{Priority: priority, DSCP: dscp, CNPDSCP: cnpDSCP, CNPPriority: cnpDSCP >> 3} // RFC 2474: class selector
	for w.CNPPriority == w.Priority {
		w.CNPPriority = roce.MaxPriority
		if w.Priority == roce.MaxPriority {
			w.CNPPriority--
		}
	}
	return w
}

// Have is what was observed of a port.
type Have struct {
	Link   string
	Driver string
	DCB    *dcb.State        // nil: driver or kernel has no dcbnl
	Files  map[string]string // of Files: those that are there
	Agents []string          // programs that set DCB by LLDP
	Guard  string            // why nothing may be changed here; "" = it may
	InUse  int               // VFs of the port that a process has open
	// Refused has, by command, what the driver said to an optional step.
	Refused map[string]string
	Unread  string // why nothing can be concluded
}

// State says how a port stands to what is wanted.
type State string

// The states.
const (
	OK      State = "ok"
	Drift   State = "drift"   // something differs
	Absent  State = "absent"  // there is nothing to set here, or not enough
	Refused State = "refused" // something differs, and nobody but people may change it
	Unknown State = "unknown" // it could not be read
)

// Step is one setting to change.
type Step struct {
	Link     string
	Change   dcb.Change // nil: a file
	Path     string     // below /sys
	Value    string
	Before   string
	Why      string
	Disrupts bool // takes the link down for a moment
	Optional bool // a driver may refuse it without harm
}

// String prints the step as dcb(8) or a shell would do it.
func (s Step) String() string {
	if s.Change == nil {
		return fmt.Sprintf("echo %s > /sys/%s", s.Value, s.Path)
	}
	return s.Change.Command(s.Link)
}

// Line prints the step with what it changes and why.
func (s Step) Line() string { return fmt.Sprintf("%s  # was %s: %s", s, s.Before, s.Why) }

// Plan is how a port gets as wanted.
type Plan struct {
	State  State
	Reason string   // what keeps it from being ok, and what to do
	Steps  []Step   // to do now, in order
	Held   []Step   // differ too, but wait or are for people to do
	Lacks  []string // what can't be set on this port at all
}

// File is a setting of mlx5's congestion control.
type File struct {
	Path  string // below /sys
	Value string
	Why   string
}

// Files are the settings of a port that are files: those of NVIDIA's driver package and those of the kernel's
// own driver (debugfs, which lockdown hides).
func Files(w Want, link, pci string) []File {
	p := strconv.Itoa(w.Priority)
	ofed, debug := "class/net/"+link+"/ecn/", "kernel/debug/mlx5/"+pci+"/cc_params/"
	return []File{
		{ofed + "roce_np/enable/" + p, "1", "answer ECN marks of RoCE with congestion notifications"},
		{ofed + "roce_rp/enable/" + p, "1", "slow down on congestion notifications"},
		{ofed + "roce_np/cnp_dscp", strconv.Itoa(w.CNPDSCP), "congestion notifications have the fabric's DSCP"},
		{ofed + "roce_np/cnp_802p_prio", strconv.Itoa(w.CNPPriority), "congestion notifications do not wait behind RoCE"},
		{debug + "np_cnp_dscp", strconv.Itoa(w.CNPDSCP), "congestion notifications have the fabric's DSCP"},
		{debug + "np_cnp_prio", strconv.Itoa(w.CNPPriority), "congestion notifications do not wait behind RoCE"},
	}
}

// Make plans how the port gets as wanted. It is idempotent: a port that is as the steps make it needs none.
func Make(w Want, pci string, h Have) Plan {
	if h.Unread != "" {
		return Plan{State: Unknown, Reason: h.Unread}
	}
	if h.DCB == nil {
		return Plan{State: Absent, Lacks: []string{"PFC", "priorities by DSCP"}, Reason: fmt.Sprintf("driver %s has no DCB here, so the port can't be made lossless; its VFs work, but RoCE on them is not protected", h.Driver)}
	}
	p := Plan{State: OK}
	all := slices.Concat(p.flow(w, h), p.files(w, pci, h), p.classes(w, h))
	if h.DCB.PFC == nil && h.DCB.Apps == nil {
		return Plan{State: Absent, Lacks: p.Lacks, Reason: fmt.Sprintf("driver %s tells neither PFC nor priorities by DSCP, so the port can't be made lossless; its VFs work, but RoCE on them is not protected", h.Driver)}
	}
	dcbnl := slices.ContainsFunc(all, func(s Step) bool { return s.Change != nil }) // who owns DCB matters only to who changes it
	if m := h.DCB.Mode; dcbnl && m != nil && m.Writable() && *m&dcb.IEEE == 0 {
		all = slices.Insert(all, 0, Step{Link: h.Link, Change: dcb.SetMode(dcb.HostIEEE), Before: m.String(), Why: "the host configures the port, by IEEE 802.1Qaz", Disrupts: true})
	}
	if len(all) == 0 {
		if len(h.Agents) > 0 {
			p.Reason = fmt.Sprintf("as wanted, but %s runs and may change it at any time", strings.Join(h.Agents, ", "))
		}
		return p
	}
	if why := refusal(h, dcbnl); why != "" {
		p.State, p.Reason, p.Held = Refused, why, all
		return p
	}
	p.share(h, all)
	return p
}

// share parts the steps into those for now and those that wait for the port's users.
func (p *Plan) share(h Have, all []Step) {
	p.State, p.Reason = Drift, fmt.Sprintf("%d settings differ: %s", len(all), all[0].Why)
	if h.InUse == 0 {
		p.Steps = all
		return
	}
	_, mode := all[0].Change.(dcb.SetMode)
	for _, s := range all {
		if s.Disrupts || (mode && s.Change != nil) { // nothing goes without the mode
			p.Held = append(p.Held, s)
		} else {
			p.Steps = append(p.Steps, s)
		}
	}
	if len(p.Held) > 0 {
		p.Reason = fmt.Sprintf("%s waits, since it takes the link down for a moment and %d VFs of the port are in use; stop these VMs, or do it by hand", p.Held[0], h.InUse)
	}
}

// flow plans flow control.
func (p *Plan) flow(w Want, h Have) []Step {
	if h.DCB.PFC == nil {
		p.Lacks = append(p.Lacks, "PFC")
		return nil
	}
	on := dcb.Of(w.Priority)
	if h.DCB.PFC.Enabled == on {
		return nil
	}
	return []Step{{Link: h.Link, Change: dcb.SetPFC{Enabled: on}, Before: h.DCB.PFC.Enabled.String(), Why: fmt.Sprintf("RoCE's priority %d, and no other, is lossless", w.Priority), Disrupts: true}}
}

func (p *Plan) files(w Want, pci string, h Have) []Step {
	var out []Step
	cnp := false
	for _, f := range Files(w, h.Link, pci) {
		now, there := h.Files[f.Path]
		cnp = cnp || (there && strings.Contains(f.Path, "cnp_dscp"))
		if there && now != f.Value {
			out = append(out, optional(h, Step{Path: f.Path, Value: f.Value, Before: now, Why: f.Why, Optional: true}, &p.Lacks)...)
		}
	}
	if !cnp {
		p.Lacks = append(p.Lacks, "DSCP of congestion notifications")
	}
	return out
}

// optional leaves out a step that the driver is known to refuse.
func optional(h Have, s Step, lacks *[]string) []Step {
	if said, ok := h.Refused[s.String()]; ok {
		*lacks = append(*lacks, fmt.Sprintf("%s (%s)", s, said))
		return nil
	}
	return []Step{s}
}

// classes plans which packets have which priority.
func (p *Plan) classes(w Want, h Have) []Step {
	if h.DCB.Apps == nil {
		p.Lacks = append(p.Lacks, "priorities by DSCP")
		return nil
	}
	port := dcb.App{Selector: dcb.Datagram, Protocol: roce.Port, Priority: w.Priority}
	cnp := dcb.App{Selector: dcb.DSCP, Protocol: uint16(w.CNPDSCP), Priority: w.CNPPriority}
	own := dcb.App{Selector: dcb.DSCP, Protocol: uint16(w.DSCP), Priority: w.Priority}
	var out []Step
	for _, e := range []struct {
		app      dcb.App
		why      string
		optional bool
	}{
		{port, "RoCE v2's UDP port has RoCE's priority", true},
		{cnp, "congestion notifications do not wait behind RoCE", false},
		{own, "RoCE's DSCP has RoCE's priority", false},
	} {
		s := Step{Link: h.Link, Change: dcb.AddApp(e.app), Before: entry(h.DCB.Apps, e.app), Why: e.why, Optional: e.optional}
		switch {
		case slices.Contains(h.DCB.Apps, e.app):
		case e.optional:
			out = append(out, optional(h, s, &p.Lacks)...)
		default:
			out = append(out, s)
		}
	}
	for _, a := range h.DCB.Apps {
		for _, right := range []dcb.App{port, cnp, own} {
			if a.Selector == right.Selector && a.Protocol == right.Protocol && a.Priority != right.Priority {
				out = append(out, Step{Link: h.Link, Change: dcb.DelApp(a), Before: a.String(), Why: "it contradicts " + right.String()})
			}
		}
	}
	if t := h.DCB.Trust; t != nil && (len(t) == 0 || t[0] != dcb.DSCP) {
		order := append(dcb.SetTrust{dcb.DSCP}, slices.DeleteFunc(slices.Clone(t), func(s dcb.Selector) bool { return s == dcb.DSCP })...)
		out = append(out, Step{Link: h.Link, Change: order, Before: words(t), Why: "the port trusts DSCP, which routed packets keep"})
	}
	return out
}

// entry says what priority the protocol has now.
func entry(apps []dcb.App, want dcb.App) string {
	for _, a := range apps {
		if a.Selector == want.Selector && a.Protocol == want.Protocol {
			return "priority " + strconv.Itoa(a.Priority)
		}
	}
	return "no entry"
}

func words(list []dcb.Selector) string {
	if len(list) == 0 {
		return "none"
	}
	out := make([]string, 0, len(list))
	for _, s := range list {
		out = append(out, s.String())
	}
	return strings.Join(out, " ")
}

// refusal says why the port's settings are not for us to change, and who can.
func refusal(h Have, dcbnl bool) string {
	switch m := h.DCB.Mode; {
	case h.Guard != "":
		return h.Guard
	case !dcbnl:
		return ""
	case len(h.Agents) > 0:
		return fmt.Sprintf("%s runs and would set its own values back; stop it for good: systemctl disable --now %s", strings.Join(h.Agents, ", "), h.Agents[0])
	case m != nil && !m.Writable():
		return fmt.Sprintf("the host does not own DCB of %s (DCBX mode: %s): %s", h.Link, m, release(h))
	}
	return ""
}

// release is how the owner of a port's DCB is made to let go.
func release(h Have) string {
	switch h.Driver {
	case "ice":
		return "turn the firmware's LLDP agent off: ethtool --set-priv-flags " + h.Link + " fw-lldp-agent off"
	case "i40e":
		return "turn the firmware's LLDP agent off: ethtool --set-priv-flags " + h.Link + " disable-fw-lldp on"
	}
	return "give it to the host: " + dcb.SetMode(dcb.HostIEEE).Command(h.Link)
}
