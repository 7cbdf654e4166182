package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/client"
	"github.com/verbena-cloud/verbena/internal/fault"
)

// commissionFlags say what a host's NICs shall be.
type commissionFlags struct {
	pfs                   []string
	fabric                string
	all, management, bond bool
	plan, apply           bool
	timeout               time.Duration
	output
}

func (a *app) commissionCommand() *cobra.Command {
	var o commissionFlags
	c := &cobra.Command{
		Use:     "commission NAME [--pf PF=COUNT]… [--plan | --apply]",
		Short:   a.tr("Make virtual functions of a host's NICs and set their ports up, or say what that takes"),
		Long:    a.tr("The plan is made by the rules that the host's agent goes by, from the facts that it told last: the number of\nvirtual functions, the guards that refuse it, drivers, parking, and the ports' PFC and DSCP. It changes nothing.\n--apply writes it into the host's spec and waits until the agent reports that all is so. Without --pf and --all\nthe plan is that of the spec as it is."),
		Example: "  verbena host commission hv-1 --all --fabric train\n  verbena host commission hv-1 --pf ens1f0=16 --pf ens1f1=16 --fabric train --apply",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.checkOutput(o.output); err != nil {
				return err
			}
			ask, err := a.commission(o)
			if err != nil {
				return err
			}
			conn, err := a.connect()
			if err != nil {
				return err
			}
			plan, err := conn.PlanHost(c.Context(), args[0], ask)
			if err != nil {
				return err
			}
			if !o.apply || plan.Refusals() > 0 {
				return a.showPlan(o, plan)
			}
			for try := 1; plan.Changed; try++ {
				if err = a.writePlan(c.Context(), conn, plan); err == nil {
					break
				}
				if !client.Is(err, string(fault.Precondition)) || try == 5 {
					return err
				}
				if plan, err = conn.PlanHost(c.Context(), args[0], ask); err != nil {
					return err
				}
				if plan.Refusals() > 0 {
					return a.showPlan(o, plan)
				}
			}
			return a.carryOut(c.Context(), conn, o, plan)
		},
		ValidArgsFunction: a.completeNames(api.KindHost),
	}
	f := c.Flags()
	f.StringArrayVar(&o.pfs, "pf", nil, a.tr("PF and its number of VFs: KEY=COUNT, PCI-ADDRESS=COUNT or NETDEV=COUNT; may be repeated"))
	f.BoolVar(&o.all, "all", false, a.tr("every PF that can have VFs and carries neither the default route nor a bond, with all its VFs"))
	f.StringVar(&o.fabric, "fabric", "", a.tr("fabric of PFs that the host's spec does not name yet"))
	f.BoolVar(&o.management, "allow-management", false, a.tr("for the PFs of --pf: also if one carries the default route or the server session"))
	f.BoolVar(&o.bond, "allow-bond", false, a.tr("for the PFs of --pf: also if one is a port of a bond"))
	f.BoolVar(&o.plan, "plan", false, a.tr("only say what would be done (default)"))
	f.BoolVar(&o.apply, "apply", false, a.tr("do it, and wait until the host reports it"))
	f.DurationVar(&o.timeout, "timeout", 5*time.Minute, a.tr("how long to wait"))
	_ = c.RegisterFlagCompletionFunc("fabric", a.completeNames(api.KindFabric))
	a.outputFlags(c, &o.output)
	return c
}

// commission is what the flags ask for.
func (a *app) commission(o commissionFlags) (api.CommissionRequest, error) {
	ask := api.CommissionRequest{All: o.all, Fabric: o.fabric}
	if o.plan && o.apply {
		return ask, a.misuse("--plan and --apply exclude each other")
	}
	for _, text := range o.pfs {
		match, count, ok := strings.Cut(text, "=")
		n, err := strconv.Atoi(count)
		if !ok || match == "" || err != nil || n < 0 {
			return ask, a.misuse("--pf %s is not PF=COUNT", text)
		}
		ask.PFs = append(ask.PFs, api.HostPF{Match: match, VFs: n, AllowManagement: o.management, AllowBond: o.bond})
	}
	if len(o.pfs) == 0 && (o.management || o.bond) {
		return ask, a.misuse("--allow-management and --allow-bond are for the PFs of --pf, and none is named")
	}
	return ask, nil
}

// showPlan tells the plan. One that is refused ends with the code of checks.
func (a *app) showPlan(o commissionFlags, plan *api.CommissionPlan) error {
	end := error(nil)
	if plan.Refusals() > 0 {
		end = silent(exitChecks)
	}
	if done, err := a.writeRaw(o.output, plan); done || err != nil {
		return errors.Join(err, end)
	}
	w := a.env.Stdout
	a.title1(w, "Host "+plan.Host, plan.State)
	if plan.State != api.HostUp {
		a.note("%s", a.tr("the facts are old: the agent of %s was last heard %s", plan.Host, first(ageAgo(a, plan.Seen), a.tr("before the server started"))))
	}
	for _, r := range plan.Refused {
		fmt.Fprintln(w, "  "+a.tr("refused: %s", printable(r)))
	}
	for i := range plan.PFs {
		a.planOf(w, &plan.PFs[i])
	}
	switch {
	case len(plan.PFs) == 0:
		a.note("%s", a.tr("no PF is to serve VMs; name some with --pf or --all"))
	case plan.Refusals() > 0:
		a.note("%s", a.tr("%d refused; nothing was changed", plan.Refusals()))
	default:
		a.note("%s", a.tr("nothing was changed; --apply does it"))
	}
	return end
}

func (a *app) planOf(w io.Writer, p *api.PFPlan) {
	name := first(p.Key, p.Match)
	if where := slices.DeleteFunc([]string{p.Netdev, p.PCI}, func(s string) bool { return s == "" }); len(where) > 0 {
		name += " (" + strings.Join(where, ", ") + ")"
	}
	a.heading(w, fmt.Sprintf("PF %s: %s", name, a.tr("%d → %d VFs on fabric %s", p.NumVFs, p.WantVFs, first(p.Fabric, "?"))))
	for i, s := range p.Steps {
		fmt.Fprintf(w, "  %d. %s\n", i+1, printable(s))
	}
	for _, s := range p.Refused {
		fmt.Fprintln(w, "  "+a.tr("refused: %s", printable(s)))
	}
	for _, s := range p.Waits {
		fmt.Fprintln(w, "  "+a.tr("later, when nobody uses the port: %s", printable(s)))
	}
	for _, s := range p.Notes {
		fmt.Fprintln(w, "  "+a.tr("note: %s", printable(s)))
	}
	if len(p.Steps)+len(p.Refused)+len(p.Waits) == 0 {
		fmt.Fprintln(w, "  "+a.tr("nothing is to be done"))
	}
}

// writePlan makes the plan the host's spec, if the host is still the one that it was made from.
func (a *app) writePlan(ctx context.Context, conn *connection, plan *api.CommissionPlan) error {
	t, _ := client.TypeOf(string(api.KindHost))
	raw, err := conn.Raw(t).Get(ctx, "", plan.Host)
	if err != nil {
		return err
	}
	tree, _, err := decodeTree(*raw)
	if err != nil {
		return fmt.Errorf("read host %s: %w", plan.Host, err)
	}
	spec, ok := tree["spec"].(map[string]any)
	if !ok {
		spec = map[string]any{}
		tree["spec"] = spec
	}
	spec["pfs"] = plan.Spec
	b, err := json.Marshal(tree)
	if err != nil {
		return fmt.Errorf("encode host %s: %w", plan.Host, err)
	}
	in := json.RawMessage(b)
	if _, err := conn.Raw(t).Replace(ctx, "", plan.Host, &in, client.Write{Revision: plan.Revision}); err != nil {
		return err
	}
	a.note("%s", a.tr("host %s has its new spec; its agent works on it", plan.Host))
	return nil
}

// carryOut waits until the agent has done what the plan says.
func (a *app) carryOut(ctx context.Context, conn *connection, o commissionFlags, plan *api.CommissionPlan) error {
	set, err := applied(ctx, conn, plan)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	h, err := a.awaitCommission(ctx, conn, plan, set)
	if err != nil {
		return err
	}
	return a.showCommissioned(o, h, plan, set)
}

// applied tells of which fabrics the agents set ports.
func applied(ctx context.Context, conn *connection, plan *api.CommissionPlan) (map[string]bool, error) {
	set := map[string]bool{}
	for _, p := range plan.Spec {
		if _, known := set[p.Fabric]; known {
			continue
		}
		f, err := conn.Fabrics().Get(ctx, "", p.Fabric)
		if err != nil {
			return nil, err
		}
		set[p.Fabric] = f.Spec.NICQoS == "apply"
	}
	return set, nil
}

// awaitCommission looks at the host until all PFs are as planned, and tells each change.
func (a *app) awaitCommission(ctx context.Context, conn *connection, plan *api.CommissionPlan, set map[string]bool) (*api.Host, error) {
	defer a.busy(ctx, a.tr("waiting for %s", "host/"+plan.Host))()
	start, told := a.env.Now(), map[string]string{}
	var missing string
	for {
		h, err := conn.Hosts().Get(ctx, "", plan.Host)
		if err != nil && ctx.Err() == nil {
			return nil, err
		}
		if err == nil {
			missing = ""
			for _, want := range plan.Spec {
				line, done := a.progressOf(h, want, set[want.Fabric])
				if line != told[want.Match] {
					a.note("PF %s: %s", want.Match, line)
					told[want.Match] = line
				}
				if !done && missing == "" {
					missing = fmt.Sprintf("PF %s: %s", want.Match, line)
				}
			}
			if missing == "" {
				return h, nil
			}
		}
		t := time.NewTimer(time.Second)
		select {
		case <-t.C:
			continue
		case <-ctx.Done():
			t.Stop()
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, &coded{exitTimeout, a.tr("host %s is not commissioned after %s: %s", plan.Host, a.env.Now().Sub(start).Round(time.Second), missing)}
		}
		return nil, ctx.Err()
	}
}

// progressOf says how far a PF is.
func (a *app) progressOf(h *api.Host, want api.HostPF, set bool) (line string, done bool) {
	p := pfOf(h, want.Match)
	switch {
	case h.Status.State != api.HostUp:
		return a.tr("the agent of %s does not answer", h.Name), false
	case p == nil:
		return a.tr("the agent does not report it"), false
	case p.WantVFs != want.VFs || (p.Fabric != want.Fabric && want.VFs > 0):
		return a.tr("the agent has not taken the new spec yet"), false
	case want.VFs == 0:
		return a.tr("%d of %d VFs, %d parked%s", p.NumVFs, 0, 0, a.because(p.Reason)), p.NumVFs == 0
	}
	line = a.tr("%d of %d VFs, %d parked%s", p.NumVFs, want.VFs, countVFs(*p, api.VFParked), a.because(p.Reason))
	pending := set && p.QoS != nil && len(p.QoS.Steps) > 0
	if pending {
		line += "; " + a.tr("its port is being set up")
	}
	return line, p.Ready && p.NumVFs == want.VFs && !pending
}

func pfOf(h *api.Host, match string) *api.PF {
	for i, p := range inventory(h).PFs {
		if p.Key == match || p.PCI == match || p.Netdev == match {
			return &inventory(h).PFs[i]
		}
	}
	return nil
}

// showCommissioned tells how the PFs are now. Ports that are not as their fabric wants end with the code of
// checks: VMs run on them, but RoCE is not protected.
func (a *app) showCommissioned(o commissionFlags, h *api.Host, plan *api.CommissionPlan, set map[string]bool) error {
	ans := answer{view: view{{"PF", false}, {"NETDEV", false}, {"FABRIC", false}, {"VFS", false}, {"PARKED", false}, {"QOS", false}, {"REASON", false}, {"PCI", true}, {"DRIVER", true}}}
	pfs, end := []api.PF{}, error(nil)
	for _, want := range plan.Spec {
		p := pfOf(h, want.Match)
		if p == nil {
			continue
		}
		qos, reason := "", p.Reason
		if p.QoS != nil {
			qos, reason = p.QoS.State, first(reason, p.QoS.Reason)
			if set[want.Fabric] && qos != "ok" && qos != "absent" && want.VFs > 0 {
				end = silent(exitChecks)
			}
		}
		pfs = append(pfs, *p)
		ans.names = append(ans.names, p.Key)
		ans.rows = append(ans.rows, row{p.Key, p.Netdev, p.Fabric, strconv.Itoa(p.NumVFs), strconv.Itoa(countVFs(*p, api.VFParked)), qos, reason, p.PCI, p.Driver})
	}
	if done, err := a.writeRaw(o.output, pfs); done || err != nil {
		return errors.Join(err, end)
	}
	if err := a.write(o.output, ans); err != nil {
		return err
	}
	return end
}
