package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/verbena-cloud/verbena/internal/preflight"
)

// PreflightOptions are those of `verbena preflight`.
type PreflightOptions struct {
	Config preflight.Config
	Root   string // of the host's file system
	Fix    bool
	Say    func(fix preflight.Fix, err error) // tells each step taken
}

func (a *app) preflightCommand() *cobra.Command {
	var o output
	opt := PreflightOptions{Config: preflight.Default()}
	var file string
	var all bool
	c := &cobra.Command{
		Use:   "preflight",
		Short: a.tr("Check whether this host can give VMs RDMA; no server is needed"),
		Long: a.tr(`Looks at cables, slots, firmware, SR-IOV, IOMMU, modules, PFC, GIDs and all else that RDMA of VMs stands on, and
says for each fault what was seen, what is expected and how to mend it. It changes nothing without --fix, and with
it only what is safe on a running host, each step printed. It runs on any Linux, as root or not.`),
		Example: "  verbena preflight\n  verbena preflight -o json --config site.yaml",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if a.programs.Preflight == nil {
				return errNotBuiltIn
			}
			if err := a.checkOutput(o); err != nil {
				return err
			}
			if file != "" {
				if err := readConfig(file, &opt.Config); err != nil {
					return err
				}
			}
			return a.preflight(c.Context(), o, opt, all)
		},
	}
	f := c.Flags()
	f.StringVar(&file, "config", "", a.tr("file with what the site expects: priority, dscp, minMTU, pairs of driver and firmware"))
	f.StringVar(&opt.Root, "root", "/", a.tr("root of the host's file system"))
	f.BoolVar(&opt.Fix, "fix", false, a.tr("take the steps that are safe on a running host, then check"))
	f.BoolVar(&all, "all", false, a.tr("list what is as it should be too"))
	a.outputFlags(c, &o)
	return c
}

// readConfig reads a site's expectations over the defaults; what it does not know is an error.
func readConfig(file string, c *preflight.Config) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the preflight configuration: %w", err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(text), yaml.DisallowUnknownField())
	if err := dec.Decode(c); err != nil {
		return fmt.Errorf("preflight configuration %s: %w", file, err)
	}
	return c.Validate()
}

func (a *app) preflight(ctx context.Context, o output, opt PreflightOptions, all bool) error {
	opt.Say = func(fix preflight.Fix, err error) {
		if err != nil {
			a.note("%s: %v", fix.Command(), err)
			return
		}
		a.note("%s", fix.Command())
	}
	report, err := func() (preflight.Report, error) {
		defer a.busy(ctx, a.tr("looking at this host"))()
		return a.programs.Preflight(ctx, opt)
	}()
	if err != nil {
		return err
	}
	raw, err := json.Marshal(report)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	ans := answer{raw: raw, view: view{{"LEVEL", false}, {"CHECK", false}, {"OBJECT", false}, {"SEEN", false}, {"EXPECTED", true}, {"FIX", true}, {"DOC", true}}}
	for _, f := range report.Findings {
		if !all && f.Level == preflight.OK && o.form != "csv" && o.form != "name" {
			continue
		}
		ans.names = append(ans.names, strings.TrimSuffix(f.Check+"/"+f.Object, "/"))
		ans.rows = append(ans.rows, row{string(f.Level), f.Check, f.Object, f.Seen, f.Expected, strings.Join(f.Fix, "; "), f.Doc})
	}
	if err := a.write(o, ans); err != nil {
		return err
	}
	if o.form == "table" && o.jq == "" {
		a.fixes(report)
	}
	a.note("%s", a.tr("%d ok, %d to know, %d unknown, %d warnings, %d failed", report.Count(preflight.OK), report.Count(preflight.Info),
		report.Count(preflight.Unknown), report.Count(preflight.Warning), report.Count(preflight.Failed)))
	if report.Failed() {
		return silent(exitChecks)
	}
	return nil
}

// fixes tells below the table how to mend what failed.
func (a *app) fixes(r preflight.Report) {
	w := a.env.Stdout
	for _, f := range r.Findings {
		if f.Level != preflight.Failed && f.Level != preflight.Warning {
			continue
		}
		fmt.Fprintf(w, "\n%s\n", printable(strings.TrimSpace(f.Check+" "+f.Object)))
		fmt.Fprintf(w, "  %s: %s\n", a.tr("found"), printable(f.Seen))
		if f.Expected != "" {
			fmt.Fprintf(w, "  %s: %s\n", a.tr("expected"), f.Expected)
		}
		for _, fix := range f.Fix {
			fmt.Fprintf(w, "  %s %s\n", a.arrow(), printable(fix))
		}
	}
}
