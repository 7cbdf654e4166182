package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/client"
)

func (a *app) eventsCommand() *cobra.Command {
	var o listOptions
	var about string
	c := &cobra.Command{
		Use:     "events",
		Short:   a.tr("Tell what happened"),
		Example: "  verbena events --for vm/train-0 -w\n  verbena events -A -o json --jq '.items[] | select(.type == \"Warning\") | .message'",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.checkOutput(o.output); err != nil {
				return err
			}
			return a.events(c.Context(), o, about)
		},
	}
	a.listFlags(c, &o)
	c.Flags().StringVar(&about, "for", "", a.tr("only of this object: KIND/NAME"))
	return c
}

func (a *app) events(ctx context.Context, o listOptions, about string) error {
	t, err := a.typeNamed("event")
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	tenant := c.tenant
	if o.all {
		tenant = ""
	}
	keep := func(api.Event) bool { return true }
	if about != "" {
		_, s, err := a.subject(ctx, []string{about})
		if err != nil {
			return err
		}
		tenant = s.tenant
		keep = func(e api.Event) bool { return e.Object.Kind == s.Kind && e.Object.Name == s.name }
	}
	if o.watch {
		return a.followEvents(ctx, c, o, tenant, keep)
	}
	list, err := c.Raw(t).List(ctx, tenant, client.Selection{Labels: o.labels})
	if err != nil {
		return err
	}
	kept, err := sortedEvents(list.Items, keep)
	if err != nil {
		return err
	}
	ans, err := a.answerOf(t, kept)
	if err != nil {
		return err
	}
	ans.empty = a.tr("there are no events")
	return a.write(o.output, ans)
}

// sortedEvents keeps some events, oldest first.
func sortedEvents(items []json.RawMessage, keep func(api.Event) bool) ([]json.RawMessage, error) {
	type timed struct {
		raw json.RawMessage
		e   api.Event
	}
	var list []timed
	for _, raw := range items {
		x := timed{raw: raw}
		if err := json.Unmarshal(raw, &x.e); err != nil {
			return nil, fmt.Errorf("read an event: %w", err)
		}
		if keep(x.e) {
			list = append(list, x)
		}
	}
	slices.SortStableFunc(list, func(x, y timed) int { return x.e.Last.Compare(y.e.Last) })
	out := make([]json.RawMessage, len(list))
	for i, x := range list {
		out[i] = x.raw
	}
	return out, nil
}

func (a *app) followEvents(ctx context.Context, c *connection, o listOptions, tenant string, keep func(api.Event) bool) error {
	t, err := a.typeNamed("event")
	if err != nil {
		return err
	}
	f := &follower{a: a, o: o.output, sh: a.shape(t.Kind)}
	for change, err := range c.Raw(t).Watch(ctx, tenant, client.Selection{Labels: o.labels}) {
		if err != nil {
			return err
		}
		if change.What == client.Deleted {
			continue // it was told when it happened
		}
		if change.What == client.Put {
			var e api.Event
			if err := json.Unmarshal(change.Object, &e); err != nil {
				return fmt.Errorf("read an event: %w", err)
			}
			if !keep(e) {
				continue
			}
		}
		if err := f.tell(change); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// decodeTree is an object as a tree that can be sent back, without what only the system writes.
func decodeTree(raw json.RawMessage) (tree map[string]any, revision int64, err error) {
	var m api.Meta
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, 0, err
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber() // large numbers stay exact
	if err := d.Decode(&tree); err != nil {
		return nil, 0, err
	}
	for _, written := range []string{"status", "uid", "created", "deleting", "revision"} {
		delete(tree, written)
	}
	return tree, m.Revision, nil
}
