package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/itchyny/gojq"
	"github.com/spf13/cobra"
)

// output is how an answer is written: the flags -o, -c, --sort, --no-header and --jq.
type output struct {
	form     string
	columns  []string
	sort     string
	noHeader bool
	jq       string
}

func forms() []string { return []string{"table", "wide", "json", "yaml", "csv", "name"} }

// outputFlags gives a command the flags of an answer.
func (a *app) outputFlags(c *cobra.Command, o *output) {
	f := c.Flags()
	f.StringVarP(&o.form, "output", "o", "table", a.tr("form of the answer: table, wide, json, yaml, csv or name"))
	f.StringSliceVarP(&o.columns, "columns", "c", nil, a.tr("only these columns, in this order"))
	f.StringVar(&o.sort, "sort", "", a.tr("sort by this column; -COLUMN downwards"))
	f.BoolVar(&o.noHeader, "no-header", false, a.tr("no headings"))
	f.StringVar(&o.jq, "jq", "", a.tr("filter the JSON of the answer by a jq expression"))
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(forms(), cobra.ShellCompDirectiveNoFileComp))
}

// check refuses what can't be written before anything is asked.
func (a *app) checkOutput(o output) error {
	if !slices.Contains(forms(), o.form) {
		return a.misuse("-o %s: there are %s", o.form, strings.Join(forms(), ", "))
	}
	if o.jq != "" {
		if _, err := gojq.Parse(o.jq); err != nil {
			return a.misuse("--jq: %v", err)
		}
	}
	return nil
}

// answer is what a command has to tell: the JSON as the server sent it, and how it looks as a table.
type answer struct {
	raw     json.RawMessage   // for json, yaml and jq
	objects []json.RawMessage // one by one, for yaml of lists
	names   []string          // KIND/NAME
	view    view
	rows    []row
	empty   string // what is said on stderr when there are no rows
}

// write writes the answer in the form that was asked for.
func (a *app) write(o output, ans answer) error {
	w := a.env.Stdout
	if o.jq != "" {
		return a.query(w, o.jq, ans.raw)
	}
	switch o.form {
	case "json":
		return writeJSON(w, ans.raw)
	case "yaml":
		return writeYAML(w, ans)
	case "name":
		for _, n := range ans.names {
			fmt.Fprintln(w, n)
		}
		return nil
	}
	t, err := a.table(o, ans)
	if err != nil {
		return err
	}
	if o.form == "csv" {
		return t.CSV(w)
	}
	if len(ans.rows) == 0 {
		a.note("%s", ans.empty)
		return nil
	}
	t.Colour = a.colourOf(t.Heads)
	return t.Write(w)
}

func writeJSON(w io.Writer, raw json.RawMessage) error {
	var b bytes.Buffer
	if err := json.Indent(&b, bytes.TrimSpace(raw), "", "  "); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	b.WriteByte('\n')
	_, err := b.WriteTo(w)
	return err
}

func writeYAML(w io.Writer, ans answer) error {
	docs := ans.objects
	if docs == nil {
		docs = []json.RawMessage{ans.raw}
	}
	for i, raw := range docs {
		text, err := yaml.JSONToYAML(raw)
		if err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}
		if i > 0 {
			fmt.Fprintln(w, "---")
		}
		if _, err := w.Write(text); err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}
	}
	return nil
}

// query filters by jq: strings are written bare, as scripts want them.
func (a *app) query(w io.Writer, text string, raw json.RawMessage) error {
	q, err := gojq.Parse(text)
	if err != nil {
		return a.misuse("--jq: %v", err)
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber() // large numbers stay exact
	if err := d.Decode(&v); err != nil {
		return fmt.Errorf("read the answer for --jq: %w", err)
	}
	for iter := q.Run(v); ; {
		out, ok := iter.Next()
		if !ok {
			return nil
		}
		if err, ok := out.(error); ok {
			if h, ok := errors.AsType[*gojq.HaltError](err); ok && h.Value() == nil {
				return nil
			}
			return a.misuse("--jq: %v", err)
		}
		if s, ok := out.(string); ok {
			fmt.Fprintln(w, s)
			continue
		}
		b, err := gojq.Marshal(out)
		if err != nil {
			return fmt.Errorf("write the answer of --jq: %w", err)
		}
		fmt.Fprintf(w, "%s\n", b)
	}
}

// row is the cells of one object, one for each column of the view.
type row []string

// view names the columns of a kind. Those that are wide show with -o wide or when asked for.
type view []head

type head struct {
	name string
	wide bool
}

func (a *app) table(o output, ans answer) (Table, error) {
	var at []int
	all := o.form == "wide" || o.form == "csv"
	if len(o.columns) == 0 {
		for i, h := range ans.view {
			if all || !h.wide {
				at = append(at, i)
			}
		}
	}
	for _, name := range o.columns {
		i, err := a.column(ans.view, name)
		if err != nil {
			return Table{}, err
		}
		at = append(at, i)
	}
	full := Table{}
	for _, r := range ans.rows {
		full.Rows = append(full.Rows, r)
	}
	if name, down := strings.CutPrefix(o.sort, "-"); o.sort != "" {
		i, err := a.column(ans.view, name)
		if err != nil {
			return Table{}, err
		}
		full.sort(i, down)
	}
	t := Table{NoHeader: o.noHeader}
	for _, i := range at {
		t.Heads = append(t.Heads, ans.view[i].name)
	}
	for _, r := range full.Rows {
		cells := make([]string, len(at))
		for j, i := range at {
			cells[j] = r[i]
		}
		t.Rows = append(t.Rows, cells)
	}
	return t, nil
}

func (a *app) column(v view, name string) (int, error) {
	var names []string
	for i, h := range v {
		if strings.EqualFold(h.name, name) {
			return i, nil
		}
		names = append(names, strings.ToLower(h.name))
	}
	return 0, a.misuse("there is no column %s; there are %s", name, strings.Join(names, ", "))
}

// colourOf paints states, so that an eye finds what is wrong.
func (a *app) colourOf(heads []string) func(int, string, string) string {
	return func(column int, value, padded string) string {
		switch heads[column] {
		case "PHASE", "STATE", "STATUS", "READY", "TYPE", "RESULT", "FITS":
			return a.paint(a.env.StdoutTTY, stateColour(value), padded)
		}
		return padded
	}
}

func stateColour(value string) string {
	switch value {
	case "Ready", "up", "True", "parked", "attached", "done", "ok", "yes", "Normal":
		return green
	case "Failed", "failed", "quarantined", "Warning", "refused", "no":
		return red
	case "Stopped", "-":
		return dim
	}
	return yellow
}
