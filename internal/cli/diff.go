package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/client"
	"github.com/verbena-cloud/verbena/internal/fault"
)

func (a *app) diffCommand() *cobra.Command {
	var files []string
	c := &cobra.Command{
		Use:   "diff -f FILE",
		Short: a.tr("Show what apply would change"),
		Long: a.tr(`Compares manifests with the live objects, as a unified diff of YAML, and says where new VMs would go. Exits with
0 without differences and with 8 if there are some. $VERBENA_DIFF names a program to show them instead; it
gets two files.`),
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.diff(c.Context(), files) },
	}
	c.Flags().StringSliceVarP(&files, "filename", "f", nil, a.tr("manifest: a file, a directory, or - for stdin; may be repeated"))
	return c
}

func (a *app) diff(ctx context.Context, files []string) error {
	c, docs, err := a.manifests(files)
	if err != nil {
		return err
	}
	differs := false
	for _, d := range docs {
		old, mine, err := a.bothSides(ctx, c, d)
		if err != nil {
			return fmt.Errorf("%s: %w", d.title(), err)
		}
		if old == mine {
			continue
		}
		differs = true
		if err := a.showDiff(ctx, d, old, mine); err != nil {
			return err
		}
		if old == "" && d.kind.Kind == api.KindVM {
			a.foresee(ctx, c, d)
		}
	}
	if differs {
		return silent(exitChecks)
	}
	return nil
}

// bothSides are the live object and the manifest as YAML in one form; empty = does not exist.
func (a *app) bothSides(ctx context.Context, c *connection, d *document) (old, mine string, err error) {
	defer a.busy(ctx, a.tr("waiting for %s", c.Server()))()
	live, err := c.Raw(d.kind).Get(ctx, d.meta.Tenant, d.meta.Name)
	switch {
	case client.Is(err, string(fault.NotFound)):
	case err != nil:
		return "", "", err
	default:
		if old, err = yamlOf(d.kind.Kind, *live); err != nil {
			return "", "", err
		}
	}
	tree, err := json.Marshal(d.tree)
	if err != nil {
		return "", "", fmt.Errorf("encode %s: %w", d.title(), err)
	}
	mine, err = yamlOf(d.kind.Kind, tree)
	return old, mine, err
}

func yamlOf(k api.Kind, raw json.RawMessage) (string, error) {
	b, err := canonical(k, raw)
	if err != nil {
		return "", err
	}
	text, err := yaml.JSONToYAML(b)
	if err != nil {
		return "", fmt.Errorf("write YAML: %w", err)
	}
	return string(text), nil
}

// foresee says on stderr where a new VM would go; that it can't be said yet is no error of a diff.
func (a *app) foresee(ctx context.Context, c *connection, d *document) {
	b, err := json.Marshal(d.tree)
	if err != nil {
		return
	}
	vm := &api.VM{}
	if json.Unmarshal(b, vm) != nil {
		return
	}
	plan, err := c.PlanVM(ctx, d.meta.Tenant, vm)
	if err != nil {
		a.note("%s: %s", d.title(), a.tr("where it would go can't be said yet: %v", err))
		return
	}
	a.note("%s: %s", d.title(), plan.Explanation.Summary)
}

func (a *app) showDiff(ctx context.Context, d *document, old, mine string) error {
	name := filepath.Base(strings.ReplaceAll(d.title(), "/", "-"))
	if tool := a.env.Getenv("VERBENA_DIFF"); tool != "" {
		return a.externalDiff(ctx, tool, name, old, mine)
	}
	a.writeDiff(a.env.Stdout, d.title(), old, mine)
	return nil
}

// externalDiff runs the reader's own program on two files.
func (a *app) externalDiff(ctx context.Context, tool, name, old, mine string) error {
	dir, err := os.MkdirTemp("", "verbena-diff-*") // 0700: specs may hold user data
	if err != nil {
		return fmt.Errorf("make a folder for %s: %w", tool, err)
	}
	defer os.RemoveAll(dir)
	var paths []string
	for side, text := range map[string]string{"a-live": old, "b-manifest": mine} {
		p := filepath.Join(dir, side+"-"+name+".yaml")
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			return fmt.Errorf("write a file for %s: %w", tool, err)
		}
		paths = append(paths, p)
	}
	if paths[0] > paths[1] {
		paths[0], paths[1] = paths[1], paths[0]
	}
	words := strings.Fields(tool)
	cmd := exec.CommandContext(ctx, words[0], append(words[1:], paths...)...) //nolint:gosec // the reader's own choice
	cmd.Stdout, cmd.Stderr = a.own[0], a.own[1]                               // a terminal stays one
	if err := cmd.Run(); err != nil {
		if e, ok := errors.AsType[*exec.ExitError](err); ok && e.ExitCode() == 1 {
			return nil // as diff(1): there are differences
		}
		return fmt.Errorf("run %s: %w", tool, err)
	}
	return nil
}

const around = 3 // lines of context

// writeDiff writes a unified diff (POSIX diff -u).
func (a *app) writeDiff(w io.Writer, title, old, mine string) {
	x, y := lines(old), lines(mine)
	ops := compareLines(x, y)
	from, to := "live/"+title, "manifest/"+title
	if old == "" {
		from = "/dev/null"
	}
	fmt.Fprintln(w, a.paint(a.env.StdoutTTY, bold, "--- "+from))
	fmt.Fprintln(w, a.paint(a.env.StdoutTTY, bold, "+++ "+to))
	for _, h := range hunks(ops) {
		fmt.Fprintf(w, "@@ -%s +%s @@\n", span(h.from, h.olds()), span(h.to, h.news()))
		for _, op := range h.ops {
			line := string(op.sign) + op.text
			switch op.sign {
			case '-':
				line = a.paint(a.env.StdoutTTY, red, line)
			case '+':
				line = a.paint(a.env.StdoutTTY, green, line)
			}
			fmt.Fprintln(w, line)
		}
	}
}

func lines(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(s, "\n"), "\n")
}

// op is a line of a diff: ' ' kept, '-' gone, '+' new.
type op struct {
	sign byte
	text string
}

// compareLines finds a longest common subsequence. Manifests are short: the square of their length is no
// matter, and beyond that all is told as changed.
func compareLines(x, y []string) []op {
	const most = 4_000_000
	if len(x)*len(y) > most {
		return append(signed('-', x), signed('+', y)...)
	}
	common := make([][]int, len(x)+1)
	for i := range common {
		common[i] = make([]int, len(y)+1)
	}
	for i := len(x) - 1; i >= 0; i-- {
		for j := len(y) - 1; j >= 0; j-- {
			common[i][j] = max(common[i+1][j], common[i][j+1])
			if x[i] == y[j] {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	var out []op
	i, j := 0, 0
	for i < len(x) && j < len(y) {
		switch {
		case x[i] == y[j]:
			out = append(out, op{' ', x[i]})
			i, j = i+1, j+1
		case common[i+1][j] >= common[i][j+1]:
			out = append(out, op{'-', x[i]})
			i++
		default:
			out = append(out, op{'+', y[j]})
			j++
		}
	}
	return append(append(out, signed('-', x[i:])...), signed('+', y[j:])...)
}

func signed(sign byte, list []string) []op {
	var out []op
	for _, s := range list {
		out = append(out, op{sign, s})
	}
	return out
}

// hunk is a stretch of changes with the lines around them.
type hunk struct {
	from, to int // first lines, from 1
	ops      []op
}

func (h hunk) olds() int { return h.count('+') }
func (h hunk) news() int { return h.count('-') }

// count is the number of lines without those of a sign.
func (h hunk) count(without byte) int {
	n := 0
	for _, o := range h.ops {
		if o.sign != without {
			n++
		}
	}
	return n
}

func span(first, n int) string {
	if n == 0 {
		first--
	}
	if n == 1 {
		return strconv.Itoa(first)
	}
	return fmt.Sprintf("%d,%d", first, n)
}

func hunks(ops []op) []hunk {
	var out []hunk
	end := 0 // of the last hunk, in ops
	old, mine := 1, 1
	starts := make([][2]int, len(ops)+1) // line numbers of both sides at each op
	for i, o := range ops {
		starts[i] = [2]int{old, mine}
		if o.sign != '+' {
			old++
		}
		if o.sign != '-' {
			mine++
		}
	}
	for i, o := range ops {
		if o.sign == ' ' {
			continue
		}
		begin := max(0, i-around)
		if len(out) == 0 || begin > end {
			out = append(out, hunk{from: starts[begin][0], to: starts[begin][1]})
			end = begin
		}
		h := &out[len(out)-1]
		next := min(len(ops), i+around+1)
		h.ops = append(h.ops, ops[end:next]...)
		end = next
	}
	return out
}
