package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/client"
)

func (a *app) vmCommand() *cobra.Command {
	c := a.nounCommand("vm")
	c.Short = a.tr("Virtual machines")
	c.AddCommand(a.vmCreateCommand(), a.vmPlanCommand(), a.vmPowerCommand("start", "on"), a.vmPowerCommand("stop", "off"),
		a.vmRebuildCommand(), a.vmDeleteCommand(), a.vmExplainCommand())
	return c
}

// nounCommand has the commands that every kind has.
func (a *app) nounCommand(noun string) *cobra.Command {
	t, _ := client.TypeOf(noun)
	c := &cobra.Command{Use: noun, Short: a.tr("List and show objects of kind %s", t.Kind), Args: cobra.ArbitraryArgs, RunE: a.parent}
	var lo listOptions
	list := &cobra.Command{Use: "list", Short: a.tr("List them"), Args: cobra.NoArgs, Aliases: []string{"ls"},
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.checkOutput(lo.output); err != nil {
				return err
			}
			return a.list(c.Context(), lo, t)
		}}
	a.listFlags(list, &lo)
	var so output
	show := &cobra.Command{Use: "show NAME", Short: a.tr("Tell all about one"), Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.checkOutput(so); err != nil {
				return err
			}
			if c.Flags().Changed("output") || so.jq != "" {
				return a.show(c.Context(), so, t, args)
			}
			conn, s, err := a.subject(c.Context(), []string{t.Short, args[0]})
			if err != nil {
				return err
			}
			return a.describe(c.Context(), conn, s)
		},
		ValidArgsFunction: a.completeNames(t.Kind)}
	a.outputFlags(show, &so)
	c.AddCommand(list, show)
	return c
}

// parent is what a command with subcommands does when none of them is called.
func (a *app) parent(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return a.unknownCommand(c, args[0])
	}
	return c.Help()
}

// vmFlags describe a VM on the command line.
type vmFlags struct {
	file, flavor, image, userData, host, power string
	networks, keys, groups, labels, hostLabels []string
}

func (a *app) vmFlags(c *cobra.Command, v *vmFlags) {
	f := c.Flags()
	f.StringVarP(&v.file, "filename", "f", "", a.tr("take it from this manifest of one VM"))
	f.StringVar(&v.flavor, "flavor", "", a.tr("size and RDMA"))
	f.StringVar(&v.image, "image", "", a.tr("disk image"))
	f.StringSliceVar(&v.networks, "network", nil, a.tr("network, or NETWORK=ADDRESS; may be repeated"))
	f.StringSliceVar(&v.groups, "security-group", nil, a.tr("security group; may be repeated"))
	f.StringArrayVar(&v.keys, "ssh-key", nil, a.tr("file with a public key; may be repeated"))
	f.StringVar(&v.userData, "user-data", "", a.tr("file with cloud-init user data"))
	f.StringVar(&v.host, "host", "", a.tr("only on this host (operators)"))
	f.StringSliceVar(&v.hostLabels, "host-label", nil, a.tr("only on hosts with the label KEY=VALUE"))
	f.StringSliceVar(&v.labels, "label", nil, a.tr("label KEY=VALUE; may be repeated"))
	f.StringVar(&v.power, "power", "", a.tr("on or off"))
	for flag, kind := range map[string]api.Kind{"flavor": api.KindFlavor, "image": api.KindImage, "network": api.KindNetwork,
		"security-group": api.KindSecurityGroup, "host": api.KindHost} {
		_ = c.RegisterFlagCompletionFunc(flag, a.completeNames(kind))
	}
}

// vm makes the VM that the flags describe.
func (a *app) vm(v vmFlags, args []string, tenant string) (*api.VM, error) {
	if v.file != "" {
		return a.vmFromFile(v, args, tenant)
	}
	if len(args) == 0 {
		return nil, a.misuse("say how the VM is called, or give a manifest: -f FILE")
	}
	vm := &api.VM{Meta: api.Meta{Kind: api.KindVM, Name: args[0], Tenant: tenant}}
	vm.Spec = api.VMSpec{Flavor: v.flavor, Image: v.image, SecurityGroups: v.groups, Host: v.host, Power: v.power}
	for _, n := range v.networks {
		name, ip, _ := strings.Cut(n, "=")
		vm.Spec.Networks = append(vm.Spec.Networks, api.VMNetwork{Network: name, IP: ip})
	}
	if v.flavor == "" || v.image == "" || len(vm.Spec.Networks) == 0 {
		return nil, a.misuse("a VM needs --flavor, --image and --network")
	}
	var err error
	if vm.Labels, err = a.labelled(v.labels); err != nil {
		return nil, err
	}
	if vm.Spec.HostLabels, err = a.labelled(v.hostLabels); err != nil {
		return nil, err
	}
	return vm, a.vmFiles(vm, v)
}

func (a *app) labelled(list []string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil //nolint:nilnil // no labels are no map
	}
	out := map[string]string{}
	for _, l := range list {
		k, v, ok := strings.Cut(l, "=")
		if !ok || k == "" {
			return nil, a.misuse("label %s is not KEY=VALUE", l)
		}
		out[k] = v
	}
	return out, nil
}

// vmFiles reads what is given as files.
func (a *app) vmFiles(vm *api.VM, v vmFlags) error {
	for _, path := range v.keys {
		text, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read the SSH key: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
				vm.Spec.SSHKeys = append(vm.Spec.SSHKeys, line)
			}
		}
	}
	if v.userData == "" {
		return nil
	}
	text, err := os.ReadFile(v.userData)
	if err != nil {
		return fmt.Errorf("read the user data: %w", err)
	}
	vm.Spec.UserData = string(text)
	return nil
}

func (a *app) vmFromFile(v vmFlags, args []string, tenant string) (*api.VM, error) {
	docs, err := a.readManifests([]string{v.file}, tenant)
	if err != nil {
		return nil, err
	}
	var found []*document
	for _, d := range docs {
		if d.kind.Kind == api.KindVM && (len(args) == 0 || d.meta.Name == args[0]) {
			found = append(found, d)
		}
	}
	if len(found) != 1 {
		return nil, a.misuse("%s holds %d VMs, name the one that is meant", v.file, len(found))
	}
	b, err := json.Marshal(found[0].tree)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", found[0].title(), err)
	}
	vm := &api.VM{}
	if err := json.Unmarshal(b, vm); err != nil {
		return nil, fmt.Errorf("read %s: %w", found[0].title(), err)
	}
	return vm, nil
}

func (a *app) vmCreateCommand() *cobra.Command {
	var v vmFlags
	var o output
	var dry, wait bool
	var timeout time.Duration
	c := &cobra.Command{
		Use:     "create NAME --flavor F --image I --network N",
		Short:   a.tr("Create a VM"),
		Example: "  verbena vm create train-0 -t research --flavor rdma-small --image debian13 --network train",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.checkOutput(o); err != nil {
				return err
			}
			if dry {
				return a.planVM(c.Context(), v, args, o)
			}
			conn, vm, err := a.newVM(v, args)
			if err != nil {
				return err
			}
			return a.createVM(c.Context(), conn, vm, created1{o, wait, timeout})
		},
	}
	a.vmFlags(c, &v)
	a.outputFlags(c, &o)
	c.Flags().BoolVar(&dry, "dry-run", false, a.tr("only say where it would go and what it would get"))
	a.waitFlags(c, &wait, &timeout)
	return c
}

// created1 is what happens after a create.
type created1 struct {
	output

	wait    bool
	timeout time.Duration
}

func (a *app) newVM(v vmFlags, args []string) (*connection, *api.VM, error) {
	c, err := a.connect()
	if err != nil {
		return nil, nil, err
	}
	if v.file == "" {
		if _, err := a.inTenant(c); err != nil {
			return nil, nil, err
		}
	}
	vm, err := a.vm(v, args, c.tenant)
	return c, vm, err
}

func (a *app) createVM(ctx context.Context, c *connection, vm *api.VM, o created1) error {
	stop := a.busy(ctx, a.tr("waiting for %s", c.Server()))
	_, err := c.VMs().Create(ctx, vm.Tenant, vm, client.Write{})
	stop()
	if err != nil {
		return err
	}
	t, _ := client.TypeOf(string(api.KindVM))
	s := subject{t, vm.Tenant, vm.Name}
	if o.wait {
		ctx, cancel := context.WithTimeout(ctx, o.timeout)
		defer cancel()
		want := readyWhen
		if vm.Spec.Power == "off" {
			want = phaseIs(api.PhaseStopped)
		}
		if err := a.await(ctx, c, s, want); err != nil {
			return err
		}
	}
	raw, err := c.Raw(t).Get(ctx, s.tenant, s.name)
	if err != nil {
		return err
	}
	ans, err := a.answerOf(t, []json.RawMessage{*raw})
	if err != nil {
		return err
	}
	ans.raw = *raw
	return a.write(o.output, ans)
}

func (a *app) vmPlanCommand() *cobra.Command {
	var v vmFlags
	var o output
	c := &cobra.Command{
		Use:   "plan NAME --flavor F --image I --network N",
		Short: a.tr("Say where a VM would go, what it would get, and why not elsewhere"),
		Args:  cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.checkOutput(o); err != nil {
				return err
			}
			return a.planVM(c.Context(), v, args, o)
		},
	}
	a.vmFlags(c, &v)
	a.outputFlags(c, &o)
	return c
}

func (a *app) planVM(ctx context.Context, v vmFlags, args []string, o output) error {
	c, vm, err := a.newVM(v, args)
	if err != nil {
		return err
	}
	plan, err := c.PlanVM(ctx, vm.Tenant, vm)
	if err != nil {
		return err
	}
	if done, err := a.writeRaw(o, plan); done || err != nil {
		if err == nil && !plan.Explanation.Fits {
			return silent(exitCode(a.refusal(plan.Explanation)))
		}
		return err
	}
	w := a.env.Stdout
	fmt.Fprintln(w, plan.Explanation.Summary)
	fmt.Fprintln(w)
	a.writeExplanation(w, plan.Explanation)
	if !plan.Explanation.Fits {
		return silent(exitCode(a.refusal(plan.Explanation)))
	}
	if len(plan.VM.Status.VFs) > 0 {
		a.heading(w, a.tr("Virtual functions it would get"))
		a.put(w, vfTable(plan.VM.Status.VFs))
	}
	a.heading(w, a.tr("Steps"))
	for i, s := range plan.Steps {
		fmt.Fprintf(w, "  %d. %s\n", i+1, s)
	}
	return nil
}

// writeRaw writes a value for programs, if that is the form asked for.
func (a *app) writeRaw(o output, v any) (done bool, err error) {
	if o.jq == "" && o.form != "json" && o.form != "yaml" {
		return false, nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		return true, fmt.Errorf("encode the answer: %w", err)
	}
	return true, a.write(o, answer{raw: b})
}

func (a *app) vmExplainCommand() *cobra.Command {
	var o output
	c := &cobra.Command{
		Use:   "explain NAME",
		Short: a.tr("Say host by host why a VM fits or not, with numbers and the nearest change"),
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.checkOutput(o); err != nil {
				return err
			}
			conn, s, err := a.subject(c.Context(), []string{"vm", args[0]})
			if err != nil {
				return err
			}
			x, err := conn.ExplainVM(c.Context(), s.tenant, s.name)
			if err != nil {
				return err
			}
			if done, err := a.writeRaw(o, x); done || err != nil {
				return err
			}
			fmt.Fprintf(a.env.Stdout, "%s\n\n", x.Summary)
			a.writeExplanation(a.env.Stdout, x)
			return nil
		},
		ValidArgsFunction: a.completeNames(api.KindVM),
	}
	a.outputFlags(c, &o)
	return c
}

func (a *app) vmPowerCommand(verb, power string) *cobra.Command {
	var wait bool
	var timeout time.Duration
	short := a.tr("Start a VM")
	if power == "off" {
		short = a.tr("Stop a VM; it keeps its VFs and addresses")
	}
	c := &cobra.Command{Use: verb + " NAME", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			conn, s, err := a.subject(c.Context(), []string{"vm", args[0]})
			if err != nil {
				return err
			}
			if err := a.edit(c.Context(), conn, s, func(spec map[string]any) { spec["power"] = power }); err != nil {
				return err
			}
			fmt.Fprintf(a.env.Stdout, "%s power %s\n", s, power)
			if !wait {
				return nil
			}
			want := readyWhen
			if power == "off" {
				want = phaseIs(api.PhaseStopped)
			}
			ctx, cancel := context.WithTimeout(c.Context(), timeout)
			defer cancel()
			return a.await(ctx, conn, s, want)
		},
		ValidArgsFunction: a.completeNames(api.KindVM)}
	a.waitFlags(c, &wait, &timeout)
	return c
}

func (a *app) vmRebuildCommand() *cobra.Command {
	var wait, yes bool
	var timeout time.Duration
	c := &cobra.Command{Use: "rebuild NAME", Short: a.tr("Make a VM anew from its image, with the same VFs and addresses"), Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			conn, s, err := a.subject(c.Context(), []string{"vm", args[0]})
			if err != nil {
				return err
			}
			if err := a.confirm(yes, a.tr("Rebuild %s? Everything on its disk is lost.", s)); err != nil {
				return err
			}
			vm, err := conn.RebuildVM(c.Context(), s.tenant, s.name)
			if err != nil {
				return err
			}
			fmt.Fprintf(a.env.Stdout, "%s rebuilding generation %d\n", s, vm.Status.Generation)
			if !wait {
				return nil
			}
			ctx, cancel := context.WithTimeout(c.Context(), timeout)
			defer cancel()
			return a.await(ctx, conn, s, readyWhen)
		},
		ValidArgsFunction: a.completeNames(api.KindVM)}
	c.Flags().BoolVarP(&yes, "yes", "y", false, a.tr("do not ask"))
	a.waitFlags(c, &wait, &timeout)
	return c
}

func (a *app) vmDeleteCommand() *cobra.Command {
	var o deleteOptions
	c := &cobra.Command{Use: "delete NAME…", Short: a.tr("Delete VMs; their VFs are scrubbed and go back to the pool"), Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.delete(c.Context(), append([]string{"vm"}, args...), o)
		},
		ValidArgsFunction: a.completeNames(api.KindVM)}
	a.deleteFlags(c, &o)
	return c
}
