package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/client"
	"github.com/verbena-cloud/verbena/internal/fault"
)

// subject is one object.
type subject struct {
	client.Type

	tenant, name string
}

// String is how people call it.
func (s subject) String() string {
	if s.Tenanted && s.tenant != "" {
		return s.Short + "/" + s.name + " (" + s.tenant + ")"
	}
	return s.Short + "/" + s.name
}

// state is what may be waited for, of any kind.
type state struct {
	api.Meta

	Status struct {
		Phase      string          `json:"phase"`
		State      string          `json:"state"`
		Message    string          `json:"message"`
		Conditions []api.Condition `json:"conditions"`
	} `json:"status"`
	State string `json:"state"` // of operations
}

// words say in what state the object is now.
func (s *state) words() string {
	if s.Deleting != nil && s.Status.Phase == "" {
		return api.PhaseDeleting
	}
	return first(s.Status.Phase, s.Status.State, s.State)
}

// goal decides on an object as it is; o is nil when it does not exist.
type goal func(o *state) (done bool, never string)

func readyWhen(o *state) (done bool, never string) {
	if o == nil {
		return false, "it does not exist"
	}
	switch first(o.Status.Phase, o.Status.State, o.State) {
	case api.PhaseReady, api.HostUp, "done":
		return true, ""
	case api.PhaseFailed, "failed":
		return false, first(o.Status.Message, "it failed")
	case "":
		for _, c := range o.Status.Conditions {
			if c.Status == "False" {
				return false, ""
			}
		}
		return true, ""
	}
	return false, ""
}

func deletedWhen(o *state) (done bool, never string) { return o == nil, "" }

func phaseIs(phase string) goal {
	return func(o *state) (bool, string) {
		if o == nil {
			return false, "it does not exist"
		}
		if o.Status.Phase == api.PhaseFailed && phase != api.PhaseFailed {
			return false, first(o.Status.Message, "it failed")
		}
		return strings.EqualFold(o.words(), phase), ""
	}
}

func conditionIs(typ, status string) goal {
	return func(o *state) (bool, string) {
		if o == nil {
			return false, "it does not exist"
		}
		for _, c := range o.Status.Conditions {
			if strings.EqualFold(c.Type, typ) && strings.EqualFold(c.Status, status) {
				return true, ""
			}
		}
		return false, ""
	}
}

// parseGoal reads the value of --for.
func (a *app) parseGoal(text string) (goal, error) {
	if rest, ok := strings.CutPrefix(text, "condition="); ok {
		typ, status, given := strings.Cut(rest, "=")
		if !given {
			status = "True"
		}
		return conditionIs(typ, status), nil
	}
	if phase, ok := strings.CutPrefix(text, "phase="); ok {
		return phaseIs(phase), nil
	}
	switch strings.ToLower(text) {
	case "ready":
		return readyWhen, nil
	case "deleted", "delete":
		return deletedWhen, nil
	}
	return nil, a.misuse("--for %s: there are ready, deleted, phase=PHASE and condition=TYPE[=STATUS]", text)
}

func (a *app) waitCommand() *cobra.Command {
	var text string
	var timeout time.Duration
	c := &cobra.Command{
		Use:     "wait KIND/NAME",
		Short:   a.tr("Wait until an object is in a state"),
		Example: "  verbena wait vm/train-0 --for ready --timeout 5m\n  verbena wait vm/train-0 --for condition=VFsVerified",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			g, err := a.parseGoal(text)
			if err != nil {
				return err
			}
			conn, s, err := a.subject(c.Context(), args)
			if err != nil {
				if _, gone := g(nil); gone == "" && client.Is(err, string(fault.NotFound)) {
					return nil // what was to vanish is not there
				}
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), timeout)
			defer cancel()
			return a.await(ctx, conn, s, g)
		},
		ValidArgsFunction: a.completeSubject,
	}
	c.Flags().StringVar(&text, "for", "ready", a.tr("what to wait for: ready, deleted, phase=PHASE, condition=TYPE[=STATUS]"))
	_ = c.RegisterFlagCompletionFunc("for", cobra.FixedCompletions([]string{"ready", "deleted", "phase=", "condition="}, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace)) // of a flag that there is
	c.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, a.tr("how long to wait"))
	return c
}

// await follows an object until it reaches the goal, telling each change of its state on stderr.
func (a *app) await(ctx context.Context, c *connection, s subject, g goal) error {
	w := &waiter{a: a, s: s, goal: g, start: a.env.Now()}
	stop := a.busy(ctx, a.tr("waiting for %s", s))
	defer stop()
	changes := c.Raw(s.Type).Watch(ctx, s.tenant, client.Selection{})
	if s.Kind == api.KindHost {
		changes = glances(ctx, c, s)
	}
	for change, err := range changes {
		if err != nil {
			return err
		}
		done, err := w.take(change)
		if done || err != nil {
			return err
		}
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &coded{exitTimeout, a.tr("%s is not there yet after %s: it is %s", s, a.env.Now().Sub(w.start).Round(time.Second), first(w.last, a.tr("unknown")))}
	}
	return ctx.Err()
}

// glances looks at a host again and again: whether it is up is held in memory, so no watch tells of it.
func glances(ctx context.Context, c *connection, s subject) iter.Seq2[client.Change[json.RawMessage], error] {
	return func(yield func(client.Change[json.RawMessage], error) bool) {
		for ctx.Err() == nil {
			raw, err := c.Raw(s.Type).Get(ctx, s.tenant, s.name)
			change := client.Change[json.RawMessage]{What: client.Put}
			switch {
			case client.Is(err, string(fault.NotFound)):
				change.What, err = client.Synced, nil
			case err == nil:
				change.Object = *raw
			}
			if ctx.Err() != nil || !yield(change, err) || err != nil {
				return
			}
			t := time.NewTimer(time.Second)
			select {
			case <-ctx.Done():
				t.Stop()
			case <-t.C:
			}
		}
	}
}

type waiter struct {
	a     *app
	s     subject
	goal  goal
	start time.Time
	last  string // state that was told last
	there bool
}

func (w *waiter) take(c client.Change[json.RawMessage]) (done bool, err error) {
	switch c.What {
	case client.Reset:
		w.there = false
		return false, nil
	case client.Synced:
		if !w.there || w.s.Kind == api.KindHost {
			return w.judge(nil)
		}
		return false, nil
	}
	var o state
	if err := json.Unmarshal(c.Object, &o); err != nil {
		return false, fmt.Errorf("read %s: %w", w.s, err)
	}
	if o.Name != w.s.name || (w.s.tenant != "" && o.Tenant != w.s.tenant) {
		return false, nil
	}
	if c.What == client.Deleted {
		return w.judge(nil)
	}
	w.there = true
	if now := o.words(); now != w.last && now != "" {
		w.last = now
		w.a.note("%s: %s%s", w.s, now, w.a.because(o.Status.Message))
	}
	return w.judge(&o)
}

func (a *app) because(message string) string {
	if message == "" {
		return ""
	}
	return " – " + printable(message)
}

func (w *waiter) judge(o *state) (bool, error) {
	done, never := w.goal(o)
	switch {
	case done:
		return true, nil
	case never == "":
		return false, nil
	case o == nil:
		return true, &coded{exitNotFound, w.a.tr("%s does not exist", w.s)}
	}
	return true, &coded{exitChecks, w.a.tr("%s will not get there: %s", w.s, never)}
}

// subject finds the object that KIND/NAME or KIND NAME names. Without a tenant it is looked for in all that
// one sees.
func (a *app) subject(ctx context.Context, args []string) (*connection, subject, error) {
	kind, name := args[0], ""
	if len(args) > 1 {
		name = args[1]
	} else if k, n, ok := strings.Cut(kind, "/"); ok {
		kind, name = k, n
	}
	t, err := a.typeNamed(kind)
	if err != nil {
		return nil, subject{}, err
	}
	if name == "" {
		return nil, subject{}, a.misuse("say which %s: %s NAME", t.Kind, t.Short)
	}
	c, err := a.connect()
	if err != nil {
		return nil, subject{}, err
	}
	s, err := a.locate(ctx, c, t, name)
	return c, s, err
}

func (a *app) typeNamed(name string) (client.Type, error) {
	if t, ok := client.TypeOf(name); ok {
		return t, nil
	}
	var names []string
	for _, t := range client.Types() {
		names = append(names, t.Short)
	}
	if near := nearest(name, names); near != "" {
		return client.Type{}, a.misuse("there is no kind %s; do you mean %s?", name, near)
	}
	return client.Type{}, a.misuse("there is no kind %s; there are %s", name, strings.Join(names, ", "))
}

// locate finds the tenant of an object when nobody said it.
func (a *app) locate(ctx context.Context, c *connection, t client.Type, name string) (subject, error) {
	s := subject{t, "", name}
	if !t.Tenanted {
		return s, nil
	}
	if s.tenant = c.tenant; s.tenant != "" {
		return s, nil
	}
	all, err := client.Of[api.Meta](c.Client, t).List(ctx, "", client.Selection{})
	if err != nil {
		return s, err
	}
	var in []string
	for _, m := range all.Items {
		if m.Name == name {
			in = append(in, m.Tenant)
		}
	}
	switch len(in) {
	case 0:
		return s, &client.Error{Problem: api.Problem{Code: string(fault.NotFound), Detail: a.tr("there is no %s %s in any tenant that you may see", t.Short, name)}}
	case 1:
		s.tenant = in[0]
		return s, nil
	}
	return s, a.misuse("%s %s exists in the tenants %s: say --tenant", t.Short, name, strings.Join(in, ", "))
}
