package nicqos

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/dcb"
)

// Report is the facts as a host's inventory has them.
func Report(h Have) *api.NICQoS {
	out := &api.NICQoS{LLDP: h.Agents, InUse: h.InUse, Files: h.Files, Refused: h.Refused}
	if h.Unread != "" {
		out.State, out.Reason = string(Unknown), h.Unread
		return out
	}
	if h.DCB == nil {
		out.State = string(Absent)
		return out
	}
	if h.DCB.Mode != nil {
		out.DCBX = h.DCB.Mode.String()
	}
	if h.DCB.PFC != nil {
		out.PFC = h.DCB.PFC.Enabled.String()
	}
	if h.DCB.Trust != nil {
		out.Trust = words(h.DCB.Trust)
	}
	for _, a := range h.DCB.Apps {
		out.Apps = append(out.Apps, a.String())
	}
	slices.Sort(out.Apps)
	return out
}

// Judge adds to the facts how they stand to what is wanted.
func Judge(out *api.NICQoS, p Plan) {
	out.State, out.Reason, out.Lacks = string(p.State), p.Reason, p.Lacks
	out.Steps, out.Held = Lines(p.Steps), Lines(p.Held)
}

// Lines prints steps.
func Lines(steps []Step) []string {
	var out []string
	for _, s := range steps {
		out = append(out, s.Line())
	}
	return out
}

// Facts takes the facts out of an inventory again, for a plan that is made elsewhere. What it can't read
// is left out.
func Facts(p *api.PF) Have {
	h := Have{Link: p.Netdev, Driver: p.Driver}
	q := p.QoS
	if q == nil {
		h.Unread = "the agent has not told the port's settings"
		return h
	}
	h.Agents, h.InUse, h.Files, h.Refused = q.LLDP, q.InUse, maps.Clone(q.Files), q.Refused
	switch {
	case q.State == string(Unknown):
		h.Unread = q.Reason
		return h
	case q.DCBX == "" && q.PFC == "" && q.Trust == "" && len(q.Apps) == 0:
		return h // no DCB at all
	}
	h.DCB = &dcb.State{Apps: []dcb.App{}}
	if q.DCBX != "" {
		h.DCB.Mode = new(mode(q.DCBX))
	}
	if q.PFC != "" {
		h.DCB.PFC = &dcb.PFC{Enabled: set(q.PFC)}
	}
	if q.Trust != "" {
		h.DCB.Trust = []dcb.Selector{}
		for w := range strings.FieldsSeq(q.Trust) {
			if s, ok := selector(w); ok {
				h.DCB.Trust = append(h.DCB.Trust, s)
			}
		}
	}
	for _, text := range q.Apps {
		if a, ok := parseApp(text); ok {
			h.DCB.Apps = append(h.DCB.Apps, a)
		}
	}
	return h
}

func mode(text string) dcb.Mode {
	var m dcb.Mode
	for w := range strings.FieldsSeq(text) {
		for _, b := range []dcb.Mode{dcb.Host, dcb.LLD, dcb.CEE, dcb.IEEE, dcb.Static} {
			if b.String() == w {
				m |= b
			}
		}
	}
	return m
}

func set(text string) dcb.Set {
	var s dcb.Set
	for w := range strings.SplitSeq(text, ",") {
		if p, err := strconv.Atoi(w); err == nil && p >= 0 && p < dcb.Priorities {
			s |= dcb.Of(p)
		}
	}
	return s
}

func selector(name string) (dcb.Selector, bool) {
	for _, s := range []dcb.Selector{dcb.EtherType, dcb.Stream, dcb.Datagram, dcb.AnyPort, dcb.DSCP, dcb.PCP} {
		if s.String() == name {
			return s, true
		}
	}
	return 0, false
}

// parseApp reads "dscp-prio 26:3".
func parseApp(text string) (dcb.App, bool) {
	kind, rest, _ := strings.Cut(text, "-prio ")
	s, ok := selector(kind)
	proto, prio, cut := strings.Cut(rest, ":")
	n, err1 := strconv.ParseUint(proto, 0, 16)
	p, err2 := strconv.ParseUint(prio, 10, 3)
	if !ok || !cut || err1 != nil || err2 != nil {
		return dcb.App{}, false
	}
	return dcb.App{Selector: s, Protocol: uint16(n), Priority: int(p)}, true
}
