package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/client"
)

const lastEvents = 20

func (a *app) describeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "describe KIND/NAME",
		Short: a.tr("Tell all about an object: spec, status, conditions, events"),
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			conn, s, err := a.subject(c.Context(), args)
			if err != nil {
				return err
			}
			return a.describe(c.Context(), conn, s)
		},
		ValidArgsFunction: a.completeSubject,
	}
}

func (a *app) describe(ctx context.Context, c *connection, s subject) error {
	defer a.busy(ctx, a.tr("waiting for %s", c.Server()))()
	raw, err := c.Raw(s.Type).Get(ctx, s.tenant, s.name)
	if err != nil {
		return err
	}
	w := a.env.Stdout
	switch s.Kind {
	case api.KindVM:
		err = describeAs(*raw, func(v *api.VM) { a.describeVM(w, v) })
	case api.KindHost:
		err = describeAs(*raw, func(h *api.Host) { a.describeHost(w, h) })
	case api.KindTenant:
		err = describeAs(*raw, func(t *api.Tenant) { a.describeTenant(w, t) })
	case api.KindSecurityGroup:
		err = describeAs(*raw, func(g *api.SecurityGroup) { a.describeGroup(w, g) })
	default:
		err = a.describeAny(w, s, *raw)
	}
	if err != nil {
		return err
	}
	if err := a.describeEvents(ctx, w, c, s); err != nil {
		return err
	}
	a.next(w, s, *raw)
	return nil
}

func describeAs[T any](raw json.RawMessage, tell func(*T)) error {
	o := new(T)
	if err := json.Unmarshal(raw, o); err != nil {
		return fmt.Errorf("read the object: %w", err)
	}
	tell(o)
	return nil
}

// heading begins a section.
func (a *app) heading(w io.Writer, text string) {
	fmt.Fprintf(w, "\n%s\n", a.paint(a.env.StdoutTTY, bold, text))
}

// facts are lines of "name  value"; empty values are left out.
func (a *app) facts(w io.Writer, lines [][2]string) {
	widest := 0
	for _, l := range lines {
		if l[1] != "" {
			widest = max(widest, width(l[0]))
		}
	}
	for _, l := range lines {
		if l[1] != "" {
			fmt.Fprintf(w, "  %s%s  %s\n", l[0], strings.Repeat(" ", widest-width(l[0])), printable(l[1]))
		}
	}
}

func (a *app) metaFacts(m api.Meta) [][2]string {
	lines := [][2]string{{a.tr("tenant"), m.Tenant}, {a.tr("labels"), pairs(m.Labels)}}
	if m.Created != nil {
		lines = append(lines, [2]string{a.tr("age"), age(m.Created, a.env.Now())})
	}
	if m.Deleting != nil {
		lines = append(lines, [2]string{a.tr("deleting for"), age(m.Deleting, a.env.Now())})
	}
	return append(lines, [2]string{a.tr("revision"), strconv.FormatInt(m.Revision, 10)})
}

func (a *app) title1(w io.Writer, s string, phase string) {
	line := a.paint(a.env.StdoutTTY, bold, s)
	if phase != "" {
		line += "  " + a.paint(a.env.StdoutTTY, stateColour(phase), phase)
	}
	fmt.Fprintln(w, line)
}

// describeAny tells of a kind without a form of its own: spec and status as YAML.
func (a *app) describeAny(w io.Writer, s subject, raw json.RawMessage) error {
	var o struct {
		api.Meta

		Spec   json.RawMessage `json:"spec"`
		Status json.RawMessage `json:"status"`
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		return fmt.Errorf("read %s: %w", s, err)
	}
	a.title1(w, string(o.Kind)+" "+o.Name, "")
	a.facts(w, a.metaFacts(o.Meta))
	for _, part := range []struct {
		name string
		raw  json.RawMessage
	}{{a.tr("Spec"), o.Spec}, {a.tr("Status"), o.Status}} {
		if len(part.raw) == 0 {
			continue
		}
		text, err := yaml.JSONToYAML(part.raw)
		if err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}
		a.heading(w, part.name)
		for line := range strings.Lines(string(text)) {
			fmt.Fprint(w, "  ", line)
		}
	}
	return nil
}

func (a *app) conditions(w io.Writer, list []api.Condition) {
	if len(list) == 0 {
		return
	}
	a.heading(w, a.tr("Conditions"))
	t := Table{Heads: []string{"TYPE", "STATUS", "REASON", "SINCE", "MESSAGE"}, Indent: "  "}
	for _, c := range list {
		t.Rows = append(t.Rows, []string{c.Type, c.Status, c.Reason, age(&c.Since, a.env.Now()), c.Message})
	}
	a.put(w, t)
}

// put writes a table for people.
func (a *app) put(w io.Writer, t Table) {
	colour := a.colourOf(t.Heads)
	t.Colour = func(i int, value, cell string) string {
		if t.Heads[i] == "TYPE" {
			return cell
		}
		return colour(i, value, cell)
	}
	_ = t.Write(w) // a broken pipe ends the program elsewhere
}

func (a *app) describeVM(w io.Writer, v *api.VM) {
	s := v.Status
	a.title1(w, "VM "+v.Name, s.Phase)
	where := s.Host
	if s.Simulated {
		where += " " + a.tr("(SIMULATED: nothing real runs)")
	}
	lines := append([][2]string{{a.tr("message"), s.Message}, {a.tr("host"), where}, {a.tr("flavor"), v.Spec.Flavor}, {a.tr("image"), v.Spec.Image},
		{a.tr("power"), first(v.Spec.Power, "on")}, {a.tr("addresses"), addresses(s)}, {a.tr("security groups"), strings.Join(v.Spec.SecurityGroups, ",")},
		{"NUMA", s.NUMA}, {a.tr("generation"), strconv.FormatInt(s.Generation, 10)}}, a.metaFacts(v.Meta)...)
	a.facts(w, lines)
	if len(s.Cells) > 0 {
		a.heading(w, a.tr("NUMA cells"))
		t := Table{Heads: []string{"GUEST", "HOST", "VCPUS", "MEMORY", "HUGEPAGES"}, Indent: "  "}
		for _, c := range s.Cells {
			node := strconv.Itoa(c.Host)
			if c.Host < 0 {
				node = ""
			}
			t.Rows = append(t.Rows, []string{strconv.Itoa(c.Guest), node, strconv.Itoa(c.VCPUs), quantity(c.Memory, "B"), c.Hugepages})
		}
		a.put(w, t)
	}
	if len(s.VFs) > 0 {
		a.heading(w, a.tr("Virtual functions"))
		a.put(w, vfTable(s.VFs))
	}
	if len(s.NICs) > 0 {
		a.heading(w, a.tr("virtio NICs"))
		t := Table{Heads: []string{"NETWORK", "MAC", "IP", "VLAN"}, Indent: "  "}
		for _, n := range s.NICs {
			t.Rows = append(t.Rows, []string{n.Network, n.MAC, n.IP, strconv.Itoa(n.VLAN)})
		}
		a.put(w, t)
	}
	a.guestSays(w, s.Guest)
	a.conditions(w, s.Conditions)
}

func vfTable(vfs []api.VMVF) Table {
	t := Table{Heads: []string{"PF", "VF", "STATE", "PCI", "GUEST-PCI", "NUMA", "NETWORK", "IP", "MAC", "VLAN", "QOS", "SPOOFCHK", "RATE", "GEN"}, Indent: "  "}
	for _, f := range vfs {
		rate := strings.Trim(f.MinRate+"–"+f.MaxRate, "–")
		spoof := "off"
		if f.SpoofCheck {
			spoof = "on"
		}
		t.Rows = append(t.Rows, []string{f.PF, strconv.Itoa(f.Index), f.State, f.PCI, f.GuestPCI, strconv.Itoa(f.HostCell), f.Network, f.IP, f.MAC,
			strconv.Itoa(f.VLAN), strconv.Itoa(f.QoS), spoof, rate, strconv.FormatInt(f.Generation, 10)})
	}
	return t
}

func (a *app) describeTenant(w io.Writer, t *api.Tenant) {
	a.title1(w, "Tenant "+t.Name, "")
	a.facts(w, append([][2]string{{a.tr("display name"), t.Spec.DisplayName}}, a.metaFacts(t.Meta)...))
	a.heading(w, a.tr("Quota"))
	a.writeQuota(w, t.Status.Usage)
	if len(t.Spec.Members) > 0 {
		a.heading(w, a.tr("Members"))
		m := Table{Heads: []string{"USER", "ROLE"}, Indent: "  "}
		for _, x := range t.Spec.Members {
			m.Rows = append(m.Rows, []string{x.User, x.Role})
		}
		a.put(w, m)
	}
	a.conditions(w, t.Status.Conditions)
}

func (a *app) describeGroup(w io.Writer, g *api.SecurityGroup) {
	a.title1(w, "SecurityGroup "+g.Name, "")
	a.facts(w, append([][2]string{{a.tr("network"), g.Spec.Network}}, a.metaFacts(g.Meta)...))
	a.heading(w, a.tr("Rules in effect, in order; what none matches is denied"))
	t := Table{Heads: []string{"DIRECTION", "ACTION", "PROTOCOL", "PORTS", "REMOTE", "LOCKED", "DESCRIPTION"}, Indent: "  "}
	for _, r := range g.Status.Effective {
		t.Rows = append(t.Rows, []string{r.Direction, first(r.Action, "allow"), r.Protocol, r.Ports, r.Remote, yesNo(r.Locked), r.Description})
	}
	a.put(w, t)
	a.conditions(w, g.Status.Conditions)
}

// describeEvents tells the last events of the object.
func (a *app) describeEvents(ctx context.Context, w io.Writer, c *connection, s subject) error {
	list, err := a.eventsOf(ctx, c, s)
	if err != nil || len(list) == 0 {
		return err
	}
	a.heading(w, a.tr("Last events"))
	t := Table{Heads: []string{"LAST", "TYPE", "REASON", "COUNT", "MESSAGE"}, Indent: "  "}
	for _, e := range list[max(0, len(list)-lastEvents):] {
		t.Rows = append(t.Rows, []string{age(&e.Last, a.env.Now()), e.Type, e.Reason, strconv.Itoa(e.Count), e.Message})
	}
	_ = t.Write(w) // a broken pipe ends the program elsewhere
	return nil
}

func (a *app) eventsOf(ctx context.Context, c *connection, s subject) ([]api.Event, error) {
	tenant := s.tenant
	if s.Kind == api.KindTenant {
		tenant = s.name
	}
	all, err := c.Events().List(ctx, tenant, client.Selection{})
	if client.Is(err, "forbidden") || client.Is(err, "not-found") {
		return nil, nil // who may see the object need not see events
	}
	if err != nil {
		return nil, err
	}
	var out []api.Event
	for _, e := range all.Items {
		if e.Object.Kind == s.Kind && e.Object.Name == s.name {
			out = append(out, e)
		}
	}
	slices.SortStableFunc(out, func(x, y api.Event) int { return x.Last.Compare(y.Last) })
	return out, nil
}

// next says what one may want to do next.
func (a *app) next(w io.Writer, s subject, raw json.RawMessage) {
	in := ""
	if s.tenant != "" {
		in = " -t " + s.tenant
	}
	var lines []string
	switch s.Kind {
	case api.KindVM:
		lines = []string{"verbena vm explain " + s.name + in, "verbena events --for vm/" + s.name + in + " -w"}
	case api.KindHost:
		lines = []string{"verbena host vfs " + s.name, "verbena host cordon " + s.name}
		var h api.Host
		if err := json.Unmarshal(raw, &h); err == nil && h.Status.State == api.HostJoining {
			lines = []string{a.tr("no report of the host is here yet; the log of its agent (verbena agent) says what is in its way"), "verbena wait host/" + s.name + " --for ready"}
		}
	case api.KindTenant:
		lines = []string{"verbena get vms -t " + s.name, "verbena tenant usage " + s.name}
	default:
		return
	}
	fmt.Fprintf(w, "\n%s\n", a.tr("What next:"))
	for _, l := range lines {
		fmt.Fprintln(w, "  "+l)
	}
}

// writeQuota writes a quota sheet.
func (a *app) writeQuota(w io.Writer, lines []api.QuotaLine) {
	t := Table{Heads: []string{"RESOURCE", "USED", "ASKED", "LIMIT", "FREE", ""}, Indent: "  "}
	for _, l := range lines {
		mark, asked := " ", ""
		if l.Exceeded {
			mark = a.tr("← exceeded")
		}
		if l.Asked != 0 {
			asked = "+" + quantity(l.Asked, l.Unit)
		}
		t.Rows = append(t.Rows, []string{l.Resource, quantity(l.Used, l.Unit), asked, quantity(l.Limit, l.Unit), quantity(l.Limit-l.Used, l.Unit), mark})
	}
	t.Heads[5] = " "
	_ = t.Write(w) // a broken pipe ends the program elsewhere
}

// narrow is how long a reason may be for the hosts to fit into a table; longer ones get a paragraph each.
const narrow = 64

// writeExplanation tells people host by host what is possible and what would help.
func (a *app) writeExplanation(w io.Writer, x api.Explanation) {
	if slices.ContainsFunc(x.Hosts, func(h api.HostVerdict) bool { return width(h.Text) > narrow }) {
		a.verdicts(w, x.Hosts)
	} else if len(x.Hosts) > 0 {
		a.verdictTable(w, x.Hosts)
	}
	if len(x.Quota) > 0 {
		fmt.Fprintf(w, "\n  %s\n", a.tr("Quota of the tenant:"))
		a.writeQuota(w, x.Quota)
	}
	if x.Nearest != "" {
		fmt.Fprintf(w, "\n  %s %s\n", a.arrow(), a.tr("nearest change that would help: %s", x.Nearest))
	}
}

func (a *app) verdictTable(w io.Writer, hosts []api.HostVerdict) {
	t := Table{Heads: []string{"HOST", "FITS", "RULE", "NEED", "HAVE", "WHY", "NEAREST CHANGE"}, Indent: "  "}
	for _, h := range hosts {
		need, have := needHave(h)
		t.Rows = append(t.Rows, []string{h.Host, yesNo(h.Fits), h.Rule, need, have, h.Text, h.Nearest})
	}
	t.Colour = func(i int, value, cell string) string {
		if i != 1 {
			return cell
		}
		return a.paint(a.env.StdoutTTY && w == a.env.Stdout, stateColour(value), cell)
	}
	_ = t.Write(w) // a broken pipe ends the program elsewhere
}

func needHave(h api.HostVerdict) (need, have string) {
	switch {
	case h.Fits || (h.Need == 0 && h.Have == 0):
		return "", ""
	case strings.Contains(h.Rule, "memory"), strings.Contains(h.Rule, "hugepages"):
		return quantity(h.Need, "B"), quantity(h.Have, "B")
	}
	return strconv.FormatInt(h.Need, 10), strconv.FormatInt(h.Have, 10)
}

// verdicts tells each host in a paragraph of its own.
func (a *app) verdicts(w io.Writer, hosts []api.HostVerdict) {
	for _, h := range hosts {
		answer := a.paint(a.env.StdoutTTY && w == a.env.Stdout, green, a.tr("fits"))
		if !h.Fits {
			answer = a.paint(a.env.StdoutTTY && w == a.env.Stdout, red, a.tr("no, by rule %s", h.Rule))
		}
		line := "  " + h.Host + ": " + answer
		if need, have := needHave(h); need != "" {
			line += " (" + a.tr("needs %s, has %s", need, have) + ")"
		}
		fmt.Fprintln(w, line)
		for _, l := range wrap(printable(h.Text), 100) {
			fmt.Fprintln(w, "      "+l)
		}
		if h.Nearest != "" {
			fmt.Fprintln(w, "    "+a.arrow()+" "+printable(h.Nearest))
		}
	}
}

// wrap breaks a text at spaces into lines of at most so many columns, if its words allow.
func wrap(text string, columns int) []string {
	var out []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && width(line)+1+width(word) > columns {
			out = append(out, line)
			line = ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	if line != "" {
		out = append(out, line)
	}
	return out
}
