package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/client"
	"github.com/verbena-cloud/verbena/internal/fault"
)

// What apply did to an object; the words are API for scripts and not translated.
const (
	created    = "created"
	configured = "configured"
	unchanged  = "unchanged"
	failed     = "failed"
)

// result is what became of one document.
type result struct {
	Kind   api.Kind `json:"kind"`
	Tenant string   `json:"tenant,omitempty"`
	Name   string   `json:"name"`
	Result string   `json:"result"`
	DryRun bool     `json:"dryRun,omitempty"`
}

type applyOptions struct {
	files   []string
	dryRun  bool
	wait    bool
	timeout time.Duration
	form    string
}

func (a *app) applyCommand() *cobra.Command {
	var o applyOptions
	c := &cobra.Command{
		Use:   "apply -f FILE",
		Short: a.tr("Bring objects to what manifests say"),
		Long: a.tr(`Reads manifests (YAML with several documents, or JSON) from files, directories and stdin ("-"), checks all
of them, and then creates what is missing and replaces what differs, ordered so that what is referred to
comes first. Doing it again changes nothing.`),
		Example: "  verbena apply -f examples/demo\n  cat vm.yaml | verbena apply -t research -f - --dry-run",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !c.Flags().Changed("wait") {
				o.wait = false
			}
			return a.apply(c.Context(), o)
		},
	}
	f := c.Flags()
	f.StringSliceVarP(&o.files, "filename", "f", nil, a.tr("manifest: a file, a directory, or - for stdin; may be repeated"))
	f.BoolVar(&o.dryRun, "dry-run", false, a.tr("say what would be done, placement included, but change nothing"))
	f.StringVarP(&o.form, "output", "o", "table", a.tr("form of the answer: table, json or name"))
	a.waitFlags(c, &o.wait, &o.timeout)
	return c
}

func (a *app) waitFlags(c *cobra.Command, wait *bool, timeout *time.Duration) {
	c.Flags().BoolVar(wait, "wait", a.env.StdoutTTY, a.tr("wait until it is done (default on a terminal)"))
	c.Flags().DurationVar(timeout, "timeout", 5*time.Minute, a.tr("how long to wait"))
}

func (a *app) apply(ctx context.Context, o applyOptions) error {
	c, docs, err := a.manifests(o.files)
	if err != nil {
		return err
	}
	p := &applier{a: a, c: c, dry: o.dryRun}
	var results []result
	var first error
	for _, d := range docs {
		what, err := p.one(ctx, d)
		if err != nil {
			if first == nil {
				first = err
			}
			what = failed
			a.refused(d, err)
			if lost := errors.As(err, new(*client.ConnError)); lost || ctx.Err() != nil {
				return &coded{exitCode(err), ""}
			}
		}
		results = append(results, result{d.meta.Kind, d.meta.Tenant, d.meta.Name, what, o.dryRun})
		if o.form == "table" && what != failed {
			fmt.Fprintf(a.env.Stdout, "%s %s%s\n", d.title(), what, a.dryMark(o.dryRun))
		}
	}
	if err := a.writeResults(o.form, results); err != nil {
		return err
	}
	if first != nil {
		return silent(exitCode(first))
	}
	if o.wait && !o.dryRun {
		return p.settle(ctx, docs, o.timeout)
	}
	return nil
}

func (a *app) dryMark(dry bool) string {
	if dry {
		return " " + a.tr("(dry run)")
	}
	return ""
}

func (a *app) writeResults(form string, results []result) error {
	switch form {
	case "table":
		return nil
	case "name":
		for _, r := range results {
			fmt.Fprintln(a.env.Stdout, strings.ToLower(string(r.Kind))+"/"+r.Name)
		}
		return nil
	case "json":
		b, err := json.Marshal(results)
		if err != nil {
			return fmt.Errorf("encode the results: %w", err)
		}
		return writeJSON(a.env.Stdout, b)
	}
	return a.misuse("-o %s: there are %s", form, "table, json, name")
}

// manifests reads the files first: what is wrong in them is said without a server.
func (a *app) manifests(files []string) (*connection, []*document, error) {
	r, remoteErr := a.remote()
	docs, err := a.readManifests(files, r.Tenant)
	if err != nil {
		return nil, nil, err
	}
	if remoteErr != nil {
		return nil, nil, remoteErr
	}
	c, err := a.clientOf(r)
	if err != nil {
		return nil, nil, err
	}
	return &connection{c, r.Tenant}, docs, nil
}

// refused tells why a document was not taken, at the place in the manifest that is to blame.
func (a *app) refused(d *document, err error) {
	e, ok := errors.AsType[*client.Error](err)
	if !ok || len(e.Errors) == 0 {
		fmt.Fprintf(a.env.Stderr, "%s: ", d.title())
		a.complain(err)
		return
	}
	m := manifestError{head: d.title() + ": " + a.title(e.Code, e.Title)}
	for _, f := range e.Errors {
		path := strings.TrimPrefix(strings.TrimPrefix(f.Location, "body"), ".")
		text := f.Message
		if path != "" {
			text = path + ": " + text
		}
		m.faults = append(m.faults, wrong{d.source, d.at(path), text})
	}
	slices.SortStableFunc(m.faults, func(x, y wrong) int { return cmp.Compare(x.at.line, y.at.line) })
	a.complain(&m)
}

// applier works through documents.
type applier struct {
	a   *app
	c   *connection
	dry bool
	// missing counts what a dry run would have created: what refers to it can't be checked by the server.
	missing int
}

// one brings one object to what its document says.
func (p *applier) one(ctx context.Context, d *document) (string, error) {
	defer p.a.busy(ctx, p.a.tr("waiting for %s", p.c.Server()))()
	objects := p.c.Raw(d.kind)
	live, err := objects.Get(ctx, d.meta.Tenant, d.meta.Name)
	switch {
	case client.Is(err, string(fault.NotFound)):
		return created, p.create(ctx, d)
	case err != nil:
		return failed, err
	}
	same, revision, err := d.same(*live)
	if err != nil {
		return failed, err
	}
	if same {
		return unchanged, nil
	}
	body, err := json.Marshal(d.tree)
	if err != nil {
		return failed, fmt.Errorf("encode %s: %w", d.title(), err)
	}
	in := json.RawMessage(body)
	_, err = objects.Replace(ctx, d.meta.Tenant, d.meta.Name, &in, client.Write{DryRun: p.dry, Revision: revision})
	return configured, err
}

func (p *applier) create(ctx context.Context, d *document) error {
	body, err := json.Marshal(d.tree)
	if err != nil {
		return fmt.Errorf("encode %s: %w", d.title(), err)
	}
	in := json.RawMessage(body)
	out, err := p.c.Raw(d.kind).Create(ctx, d.meta.Tenant, &in, client.Write{DryRun: p.dry})
	if !p.dry {
		return err
	}
	if err != nil && p.missing > 0 && (client.Is(err, string(fault.NotFound)) || client.Is(err, string(fault.Invalid))) {
		p.a.note("%s: %s", d.title(), p.a.tr("can't be checked before what it refers to exists: %v", err))
		err = nil
	}
	p.missing++
	if err != nil || d.kind.Kind != api.KindVM || out == nil || len(*out) == 0 {
		return err
	}
	var plan api.VMPlan
	if err := json.Unmarshal(*out, &plan); err != nil {
		return fmt.Errorf("read the plan of %s: %w", d.title(), err)
	}
	return p.a.planned(d.title(), plan)
}

// planned tells where a VM would go; one that fits nowhere is an error.
func (a *app) planned(title string, plan api.VMPlan) error {
	if plan.Explanation.Fits {
		a.note("%s: %s", title, plan.Explanation.Summary)
		return nil
	}
	return a.refusal(plan.Explanation)
}

// refusal is the error of an explanation that says no, as a create would give it.
func (a *app) refusal(x api.Explanation) error {
	code := fault.NoCapacity
	for _, l := range x.Quota {
		if l.Exceeded {
			code = fault.Quota
		}
	}
	return &client.Error{Problem: api.Problem{Code: string(code), Title: string(code), Detail: x.Summary, Explanation: &x}}
}

// same compares what people write of an object, labels and spec, with the live one. Both go through the
// kind's type, so that an empty field equals a missing one.
func (d *document) same(live json.RawMessage) (same bool, revision int64, err error) {
	var meta api.Meta
	if err := json.Unmarshal(live, &meta); err != nil {
		return false, 0, fmt.Errorf("read %s: %w", d.title(), err)
	}
	mine, err := json.Marshal(d.tree)
	if err != nil {
		return false, 0, fmt.Errorf("encode %s: %w", d.title(), err)
	}
	x, err := canonical(d.kind.Kind, mine)
	if err != nil {
		return false, 0, err
	}
	y, err := canonical(d.kind.Kind, live)
	if err != nil {
		return false, 0, err
	}
	return bytes.Equal(x, y), meta.Revision, nil
}

// canonical is what people write of an object, as JSON in one form.
func canonical(k api.Kind, raw json.RawMessage) ([]byte, error) {
	o := reflect.New(typeOf(k))
	if err := json.Unmarshal(raw, o.Interface()); err != nil {
		return nil, fmt.Errorf("read a %s: %w", k, err)
	}
	if u, ok := o.Interface().(*api.User); ok {
		u.Spec.Password = "" // never told by the server, so it can't be compared
	}
	meta, ok := o.Interface().(interface{ ObjectMeta() *api.Meta })
	if !ok {
		return nil, fmt.Errorf("a %s has no meta", k)
	}
	m := meta.ObjectMeta()
	part := struct {
		Kind   api.Kind          `json:"kind"`
		Name   string            `json:"name"`
		Tenant string            `json:"tenant,omitempty"`
		Labels map[string]string `json:"labels,omitempty"`
		Spec   any               `json:"spec"`
	}{k, m.Name, m.Tenant, m.Labels, o.Elem().FieldByName("Spec").Interface()}
	if len(part.Labels) == 0 {
		part.Labels = nil
	}
	b, err := json.Marshal(part)
	if err != nil {
		return nil, fmt.Errorf("encode a %s: %w", k, err)
	}
	return b, nil
}

// settle waits until every VM of the documents is as asked for.
func (p *applier) settle(ctx context.Context, docs []*document, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for _, d := range docs {
		if d.kind.Kind != api.KindVM {
			continue
		}
		spec, _ := d.tree["spec"].(map[string]any)
		want := readyWhen
		if spec["power"] == "off" {
			want = phaseIs(api.PhaseStopped)
		}
		if err := p.a.await(ctx, p.c, subject{d.kind, d.meta.Tenant, d.meta.Name}, want); err != nil {
			return err
		}
	}
	return nil
}
