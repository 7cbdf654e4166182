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
)

// listOptions narrow a list.
type listOptions struct {
	output

	labels string
	all    bool // all tenants
	watch  bool
}

func (a *app) listFlags(c *cobra.Command, o *listOptions) {
	a.outputFlags(c, &o.output)
	f := c.Flags()
	f.StringVarP(&o.labels, "selector", "l", "", a.tr("only objects whose labels fit: a=b,c!=d,e,!f"))
	f.BoolVarP(&o.all, "all-tenants", "A", false, a.tr("of all tenants that you may see"))
	f.BoolVarP(&o.watch, "watch", "w", false, a.tr("go on and tell changes"))
}

func (a *app) getCommand() *cobra.Command {
	var o listOptions
	c := &cobra.Command{
		Use:   "get KIND [NAME…]",
		Short: a.tr("List objects of a kind, or show some"),
		Long:  a.tr("KIND is one of: %s.", strings.Join(shortNames(), ", ")),
		Example: "  verbena get vms -A -o wide --sort host\n  verbena get vm/train-0 -o yaml\n" +
			"  verbena get hosts -o json --jq '.items[] | select(.status.state != \"up\") | .name'",
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.checkOutput(o.output); err != nil {
				return err
			}
			kind, names := args[0], args[1:]
			if k, n, ok := strings.Cut(kind, "/"); ok {
				kind, names = k, append([]string{n}, names...)
			}
			t, err := a.typeNamed(kind)
			if err != nil {
				return err
			}
			if len(names) > 0 {
				return a.show(c.Context(), o.output, t, names)
			}
			return a.list(c.Context(), o, t)
		},
		ValidArgsFunction: a.completeSubject,
	}
	a.listFlags(c, &o)
	return c
}

func shortNames() []string {
	var out []string
	for _, t := range client.Types() {
		out = append(out, t.Short)
	}
	return out
}

// show writes objects by name.
func (a *app) show(ctx context.Context, o output, t client.Type, names []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer a.busy(ctx, a.tr("waiting for %s", c.Server()))()
	var items []json.RawMessage
	for _, name := range names {
		s, err := a.locate(ctx, c, t, name)
		if err != nil {
			return err
		}
		raw, err := c.Raw(t).Get(ctx, s.tenant, name)
		if err != nil {
			return err
		}
		items = append(items, *raw)
	}
	ans, err := a.answerOf(t, items)
	if err != nil {
		return err
	}
	if len(items) == 1 {
		ans.raw = items[0]
	}
	return a.write(o, ans)
}

// list writes all objects of a kind.
func (a *app) list(ctx context.Context, o listOptions, t client.Type) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	tenant := c.tenant
	if o.all || !t.Tenanted {
		tenant = ""
	}
	if o.watch {
		return a.follow(ctx, c, o, subject{t, tenant, ""})
	}
	stop := a.busy(ctx, a.tr("waiting for %s", c.Server()))
	list, err := c.Raw(t).List(ctx, tenant, client.Selection{Labels: o.labels})
	stop()
	if err != nil {
		return err
	}
	items := list.Items
	if t.Kind == api.KindAuditRecord {
		items = byAge(items)
	}
	ans, err := a.answerOf(t, items)
	if err != nil {
		return err
	}
	if ans.raw, err = json.Marshal(list); err != nil {
		return fmt.Errorf("encode the list: %w", err)
	}
	ans.empty = a.tr("there is no %s", t.Short)
	if tenant != "" {
		ans.empty = a.tr("there is no %s in tenant %s", t.Short, tenant)
	}
	return a.write(o.output, ans)
}

// byAge puts objects of all tenants into the order in which they were made.
func byAge(items []json.RawMessage) []json.RawMessage {
	created := func(raw json.RawMessage) time.Time {
		var m api.Meta
		if err := json.Unmarshal(raw, &m); err != nil || m.Created == nil {
			return time.Time{}
		}
		return *m.Created
	}
	out := slices.Clone(items)
	slices.SortStableFunc(out, func(x, y json.RawMessage) int { return created(x).Compare(created(y)) })
	return out
}

// answerOf makes the answer of some objects of one kind.
func (a *app) answerOf(t client.Type, items []json.RawMessage) (answer, error) {
	sh := a.shape(t.Kind)
	ans := answer{view: sh.view, objects: items}
	if items == nil {
		ans.objects = []json.RawMessage{}
	}
	for _, raw := range items {
		r, err := sh.row(raw)
		if err != nil {
			return ans, err
		}
		ans.rows = append(ans.rows, r)
		var m api.Meta
		if err := json.Unmarshal(raw, &m); err != nil {
			return ans, fmt.Errorf("read an object: %w", err)
		}
		ans.names = append(ans.names, t.Short+"/"+m.Name)
	}
	var err error
	ans.raw, err = json.Marshal(map[string]any{"items": ans.objects})
	if err != nil {
		return ans, fmt.Errorf("encode the objects: %w", err)
	}
	return ans, nil
}

// follow writes objects as they are and then each change, one line or document each.
func (a *app) follow(ctx context.Context, c *connection, o listOptions, s subject) error {
	f := &follower{a: a, o: o.output, sh: a.shape(s.Kind)}
	for change, err := range c.Raw(s.Type).Watch(ctx, s.tenant, client.Selection{Labels: o.labels}) {
		if err != nil {
			return err
		}
		if err := f.tell(change); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// follower writes changes. What there is at the beginning comes as one table; later lines keep its columns
// where their cells fit.
type follower struct {
	a      *app
	o      output
	sh     shape
	rows   Table // not yet written
	told   bool  // the beginning is written
	widths []int
}

func (f *follower) tell(change client.Change[json.RawMessage]) error {
	switch change.What {
	case client.Put, client.Deleted:
	case client.Synced:
		return f.flush()
	default:
		return nil
	}
	ans := answer{view: f.sh.view, raw: change.Object}
	if f.o.form == "json" || f.o.form == "yaml" || f.o.jq != "" {
		return f.a.write(f.o, ans)
	}
	r, err := f.sh.row(change.Object)
	if err != nil {
		return err
	}
	ans.rows = []row{r}
	t, err := f.a.table(f.o, ans)
	if err != nil {
		return err
	}
	f.rows.Heads = append([]string{"CHANGE"}, t.Heads...)
	f.rows.Rows = append(f.rows.Rows, append([]string{change.What}, t.Rows[0]...))
	if f.told {
		return f.flush()
	}
	return nil
}

// flush writes the rows that wait.
func (f *follower) flush() error {
	t := f.rows
	f.rows.Rows = nil
	if len(t.Rows) == 0 {
		f.told = true
		return nil
	}
	t.NoHeader = f.o.noHeader || f.widths != nil
	t.Least = f.widths
	f.widths, f.told = t.widths(), true
	return t.Write(f.a.env.Stdout)
}
