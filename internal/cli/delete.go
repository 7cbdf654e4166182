package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/client"
	"github.com/verbena-cloud/verbena/internal/fault"
)

type deleteOptions struct {
	files          []string
	yes, dry, wait bool
	ignore         bool
	timeout        time.Duration
}

func (a *app) deleteCommand() *cobra.Command {
	var o deleteOptions
	c := &cobra.Command{
		Use:     "delete {KIND/NAME… | KIND NAME… | -f FILE}",
		Short:   a.tr("Delete objects, after saying what that affects"),
		Example: "  verbena delete vm/train-0\n  verbena delete -f examples/demo --yes",
		RunE: func(c *cobra.Command, args []string) error {
			return a.delete(c.Context(), args, o)
		},
		ValidArgsFunction: a.completeSubject,
	}
	c.Flags().StringSliceVarP(&o.files, "filename", "f", nil, a.tr("delete what these manifests name"))
	a.deleteFlags(c, &o)
	return c
}

func (a *app) deleteFlags(c *cobra.Command, o *deleteOptions) {
	f := c.Flags()
	f.BoolVarP(&o.yes, "yes", "y", false, a.tr("do not ask"))
	f.BoolVar(&o.dry, "dry-run", false, a.tr("say what would be done, but change nothing"))
	f.BoolVar(&o.ignore, "ignore-not-found", false, a.tr("what does not exist is no error"))
	a.waitFlags(c, &o.wait, &o.timeout)
}

func (a *app) delete(ctx context.Context, args []string, o deleteOptions) error {
	c, list, err := a.doomed(ctx, args, o)
	if err != nil || len(list) == 0 {
		return err
	}
	if !o.dry {
		if err := a.present(ctx, c, list, o); err != nil {
			return err
		}
		if err := a.confirm(o.yes, a.radius(ctx, c, list)); err != nil {
			return err
		}
	}
	return a.deleteAll(ctx, c, list, o)
}

// present says what does not exist before it asks whether to delete it.
func (a *app) present(ctx context.Context, c *connection, list []subject, o deleteOptions) error {
	if o.yes || o.ignore {
		return nil
	}
	for _, s := range list {
		if _, err := c.Raw(s.Type).Get(ctx, s.tenant, s.name); client.Is(err, string(fault.NotFound)) {
			return err
		}
	}
	return nil
}

// deleteAll deletes in order and, if asked to, waits until everything is gone.
func (a *app) deleteAll(ctx context.Context, c *connection, list []subject, o deleteOptions) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	var leaving []subject
	for i, s := range list {
		left, err := a.deleteOne(ctx, c, s, o)
		if o.dry && i > 0 && client.Is(err, string(fault.Conflict)) {
			// What uses it may be what stands before it in the list and was not really deleted.
			fmt.Fprintf(a.env.Stdout, "%s %s\n", s, a.tr("in use as things are (dry run): %s", printable(err.Error())))
			continue
		}
		if client.Is(err, string(fault.Conflict)) && len(leaving) > 0 {
			// What still uses it may be on its way out: the rest of the list has to wait for that.
			if err := a.gone(ctx, c, leaving); err != nil {
				return err
			}
			leaving = nil
			left, err = a.deleteOne(ctx, c, s, o)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
		if left {
			leaving = append(leaving, s)
		}
	}
	if !o.wait || o.dry {
		return nil
	}
	return a.gone(ctx, c, leaving)
}

// gone waits until the objects are.
func (a *app) gone(ctx context.Context, c *connection, list []subject) error {
	for _, s := range list {
		if err := a.await(ctx, c, s, deletedWhen); err != nil {
			return err
		}
		fmt.Fprintf(a.env.Stdout, "%s deleted\n", s)
	}
	return nil
}

// deleteOne asks for an object's end; leaving says that it stays until what it holds is proven free.
func (a *app) deleteOne(ctx context.Context, c *connection, s subject, o deleteOptions) (leaving bool, err error) {
	stop := a.busy(ctx, a.tr("waiting for %s", c.Server()))
	out, err := c.Raw(s.Type).Delete(ctx, s.tenant, s.name, client.Write{DryRun: o.dry})
	stop()
	switch {
	case client.Is(err, string(fault.NotFound)) && o.ignore:
		return false, nil
	case err != nil:
		return false, err
	case o.dry:
		fmt.Fprintf(a.env.Stdout, "%s deleted %s\n", s, a.tr("(dry run)"))
	case out != nil:
		if !o.wait {
			fmt.Fprintf(a.env.Stdout, "%s %s\n", s, "deleting")
			a.note("%s %s", a.arrow(), a.tr("it goes when its host has proven that what it held is free: verbena wait %s/%s --for deleted", s.Short, s.name))
		}
		return true, nil
	default:
		fmt.Fprintf(a.env.Stdout, "%s deleted\n", s)
	}
	return false, nil
}

// doomed lists what shall be deleted, users before what they use.
func (a *app) doomed(ctx context.Context, args []string, o deleteOptions) (*connection, []subject, error) {
	if len(o.files) > 0 {
		if len(args) > 0 {
			return nil, nil, a.misuse("either -f or names, not both")
		}
		c, docs, err := a.manifests(o.files)
		if err != nil {
			return nil, nil, err
		}
		var list []subject
		for _, d := range slices.Backward(docs) {
			list = append(list, subject{d.kind, d.meta.Tenant, d.meta.Name})
		}
		return c, list, nil
	}
	if len(args) == 0 {
		return nil, nil, a.misuse("say what to delete: KIND/NAME, or -f FILE")
	}
	c, err := a.connect()
	if err != nil {
		return nil, nil, err
	}
	names, err := a.named(args)
	if err != nil {
		return nil, nil, err
	}
	var list []subject
	for _, n := range names {
		s, err := a.locate(ctx, c, n.Type, n.name)
		if client.Is(err, string(fault.NotFound)) && o.ignore {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		list = append(list, s)
	}
	return c, list, nil
}

// named reads "KIND NAME…" and "KIND/NAME…".
func (a *app) named(args []string) ([]subject, error) {
	var list []subject
	if !strings.Contains(args[0], "/") {
		t, err := a.typeNamed(args[0])
		if err != nil {
			return nil, err
		}
		if len(args) == 1 {
			return nil, a.misuse("say which %s: %s NAME", t.Kind, t.Short)
		}
		for _, name := range args[1:] {
			list = append(list, subject{t, "", name})
		}
		return list, nil
	}
	for _, arg := range args {
		kind, name, ok := strings.Cut(arg, "/")
		if !ok || name == "" {
			return nil, a.misuse("%s is not KIND/NAME", arg)
		}
		t, err := a.typeNamed(kind)
		if err != nil {
			return nil, err
		}
		list = append(list, subject{t, "", name})
	}
	return list, nil
}

// radius is the question before a delete: what goes, and what hangs on it.
func (a *app) radius(ctx context.Context, c *connection, list []subject) string {
	var b strings.Builder
	if len(list) == 1 {
		b.WriteString(a.tr("Delete %s?", list[0]))
	} else {
		b.WriteString(a.tr("Delete %d objects?", len(list)))
		for _, s := range list {
			b.WriteString("\n  " + s.String())
		}
	}
	vms, err := c.VMs().List(ctx, "", client.Selection{})
	if err != nil {
		return b.String() // the question stands even if its consequences can't be told
	}
	for _, s := range list {
		if text := a.affected(s, vms.Items); text != "" {
			b.WriteString("\n  " + text)
		}
	}
	b.WriteString("\n")
	return strings.TrimSuffix(b.String(), "\n")
}

// affected says in a sentence what hangs on an object.
func (a *app) affected(s subject, vms []api.VM) string {
	if s.Kind == api.KindVM {
		for _, v := range vms {
			if v.Name == s.name && v.Tenant == s.tenant {
				return a.tr("%s is %s on %s; its disk is lost, and its %d VFs and its addresses (%s) are given back", s, v.Status.Phase, v.Status.Host, len(v.Status.VFs), first(addresses(v.Status), "-"))
			}
		}
		return ""
	}
	var users []string
	for _, v := range vms {
		if uses(v, s) {
			users = append(users, v.Tenant+"/"+v.Name)
		}
	}
	if len(users) == 0 {
		return ""
	}
	some := strings.Join(users[:min(len(users), 5)], ", ")
	if len(users) > 5 {
		some += ", …"
	}
	return a.tr("%d VMs use %s: %s", len(users), s, some)
}

func uses(v api.VM, s subject) bool {
	switch s.Kind {
	case api.KindTenant:
		return v.Tenant == s.name
	case api.KindNetwork:
		return v.Tenant == s.tenant && slices.ContainsFunc(v.Spec.Networks, func(n api.VMNetwork) bool { return n.Network == s.name })
	case api.KindSecurityGroup:
		return v.Tenant == s.tenant && slices.Contains(v.Spec.SecurityGroups, s.name)
	case api.KindFlavor:
		return v.Spec.Flavor == s.name
	case api.KindImage:
		return v.Spec.Image == s.name
	case api.KindHost:
		return v.Status.Host == s.name
	case api.KindFabric:
		return slices.ContainsFunc(v.Status.VFs, func(f api.VMVF) bool { return f.Fabric == s.name })
	}
	return false
}

// edit changes one object's spec, against whatever else happens to it meanwhile.
func (a *app) edit(ctx context.Context, c *connection, s subject, change func(spec map[string]any)) error {
	objects := c.Raw(s.Type)
	for try := 1; ; try++ {
		raw, err := objects.Get(ctx, s.tenant, s.name)
		if err != nil {
			return err
		}
		tree, revision, err := decodeTree(*raw)
		if err != nil {
			return fmt.Errorf("read %s: %w", s, err)
		}
		spec, ok := tree["spec"].(map[string]any)
		if !ok {
			spec = map[string]any{}
			tree["spec"] = spec
		}
		change(spec)
		b, err := json.Marshal(tree)
		if err != nil {
			return fmt.Errorf("encode %s: %w", s, err)
		}
		in := json.RawMessage(b)
		_, err = objects.Replace(ctx, s.tenant, s.name, &in, client.Write{Revision: revision})
		if client.Is(err, string(fault.Precondition)) && try < 5 {
			continue
		}
		return err
	}
}
