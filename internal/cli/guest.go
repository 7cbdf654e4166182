package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/guestos"
	"github.com/verbena-cloud/verbena/internal/guestreport"
	"github.com/verbena-cloud/verbena/internal/preflight"
)

// GuestOptions are those of `verbena guest plan`, tune and undo.
type GuestOptions struct {
	Verb   guestos.Verb
	Root   string // of the guest's file system
	State  string // directory of the undo journal
	Config guestos.Config
	Say    func(guestos.Step) // hears each step when it was taken
}

// GuestReportOptions are those of `verbena guest report`.
type GuestReportOptions struct {
	Root  string
	Port  string        // where it is sent; "" = nowhere
	Every time.Duration // 0 = once
	Log   func(error)   // hears when sending begins to fail
}

func (a *app) guestCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "guest",
		Short: a.tr("Inside a VM: set it up for RDMA, undo that, report to the host"),
		Long: a.tr(`Works on the machine that it runs in, which is a VM: queues, interrupts, busy polling and modules. No server and
no network is needed. In VMs of Verbena the small program verbena-guest does the same at each boot.`),
	}
	c.AddCommand(a.guestVerb(guestos.Show, a.tr("Show what tune would set, with the values before and after; changes nothing")),
		a.guestVerb(guestos.Tune, a.tr("Set what differs; each first value is kept for undo")),
		a.guestVerb(guestos.Back, a.tr("Bring everything back to what it was before the first tune of this boot")),
		a.guestReportCommand())
	return c
}

func (a *app) guestVerb(verb guestos.Verb, short string) *cobra.Command {
	var o output
	opt := GuestOptions{Verb: verb, Root: "/", Config: guestos.Default()}
	var file string
	busy := opt.Config.BusyPoll
	c := &cobra.Command{
		Use:     string(verb),
		Short:   short,
		Example: "  verbena guest " + string(verb) + " -o json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if a.programs.Guest == nil {
				return errNotBuiltIn
			}
			if err := a.checkOutput(o); err != nil {
				return err
			}
			if file != "" {
				if err := readGuestConfig(file, &opt.Config); err != nil {
					return err
				}
			}
			if c.Flags().Changed("busy-poll") {
				opt.Config.BusyPoll = busy
			}
			return a.guest(c.Context(), o, opt)
		},
	}
	f := c.Flags()
	if verb == guestos.Show {
		f.StringVar(&opt.Root, "root", opt.Root, a.tr("root of the guest's file system"))
	}
	if verb != guestos.Back {
		f.IntVar(&busy, "busy-poll", busy, a.tr("microseconds that sockets look for packets before they sleep; 0 = off, -1 = leave it"))
	}
	if verb != guestos.Show {
		f.StringVar(&opt.State, "state", "/var/lib/verbena-guest", a.tr("directory of the undo journal"))
	}
	f.StringVar(&file, "config", "", a.tr("file with what the VM's owner wants: busyPoll, minMTU, pairs of driver and firmware"))
	a.outputFlags(c, &o)
	return c
}

// readGuestConfig reads an owner's wishes over the defaults; what it does not know is an error.
func readGuestConfig(file string, c *guestos.Config) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the guest configuration: %w", err)
	}
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.DisallowUnknownField()).Decode(c); err != nil {
		return fmt.Errorf("guest configuration %s: %w", file, err)
	}
	return c.Validate()
}

func (a *app) guest(ctx context.Context, o output, opt GuestOptions) error {
	out, err := func() (guestos.Outcome, error) {
		defer a.busy(ctx, a.tr("looking at this machine"))()
		return a.programs.Guest(ctx, opt)
	}()
	if err != nil && len(out.Steps) == 0 {
		return err
	}
	// What was done before an error is told all the same.
	if werr := a.guestOutcome(o, opt.Verb, out); werr != nil {
		return werr
	}
	if err != nil {
		return err
	}
	a.note("%s", a.tr("%d settings to make, %d done, %d failed", out.Count(guestos.Planned), out.Count(guestos.Done), out.Count(guestos.Failed)))
	if out.Failed() {
		return silent(exitChecks)
	}
	return nil
}

func (a *app) guestOutcome(o output, verb guestos.Verb, out guestos.Outcome) error {
	raw, err := json.Marshal(out)
	if err != nil {
		return fmt.Errorf("write the outcome: %w", err)
	}
	ans := answer{raw: raw, empty: a.tr("all is as it should be"), view: view{{"RESULT", false}, {"SETTING", false}, {"OBJECT", false},
		{"BEFORE", false}, {"AFTER", false}, {"NOW", true}, {"HOW", true}, {"ERROR", true}}}
	if verb == guestos.Back {
		ans.empty = a.tr("nothing to undo")
	}
	for _, s := range out.Steps {
		ans.names = append(ans.names, s.ID())
		ans.rows = append(ans.rows, row{s.Result, string(s.Kind), s.Object, s.Before, s.After, s.Now, s.How, s.Error})
	}
	if err := a.write(o, ans); err != nil || o.form != "table" || o.jq != "" {
		return err
	}
	for _, s := range out.Steps {
		if s.Error != "" {
			fmt.Fprintf(a.env.Stdout, "\n%s\n  %s %s\n", printable(s.How), a.arrow(), printable(s.Error))
		}
	}
	a.fixes(preflight.Report{Findings: out.Findings})
	return nil
}

func (a *app) guestReportCommand() *cobra.Command {
	var o output
	opt := GuestReportOptions{Root: "/"}
	c := &cobra.Command{
		Use:   "report",
		Short: a.tr("Show RDMA devices, GIDs, MTU, queue pairs and counters, or send them to the host"),
		Long: a.tr(`Shows what the host is told. With --port it is sent through that virtio-serial port as one line of JSON, for which
no network is needed; with --every again and again, until it is interrupted.`),
		Example: "  verbena guest report\n  verbena guest report --port " + guestreport.Channel + " --every 30s",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if a.programs.GuestReport == nil {
				return errNotBuiltIn
			}
			if err := a.checkOutput(o); err != nil {
				return err
			}
			if opt.Every < 0 || opt.Every > 0 && (opt.Port == "" || opt.Every < time.Second) {
				return a.misuse("--every needs a --port and at least 1s")
			}
			opt.Log = func(err error) { a.note("%v", err) }
			r, err := a.programs.GuestReport(c.Context(), opt)
			if err != nil || opt.Port != "" {
				return err
			}
			return a.guestReport(o, r)
		},
	}
	f := c.Flags()
	f.StringVar(&opt.Root, "root", opt.Root, a.tr("root of the guest's file system"))
	f.StringVar(&opt.Port, "port", "", a.tr("virtio-serial port to send it through"))
	f.DurationVar(&opt.Every, "every", 0, a.tr("send it again after this time, without end"))
	a.outputFlags(c, &o)
	return c
}

func (a *app) guestReport(o output, r guestreport.Report) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	ans := answer{raw: raw, empty: a.tr("this machine has no RDMA device"), view: view{{"DEVICE", false}, {"PORT", false}, {"STATE", false}, {"NETDEV", false},
		{"GID", false}, {"INDEX", false}, {"MTU", false}, {"QUEUES", false}, {"QPS", false}, {"NUMA", true}, {"PCI", true}, {"DRIVER", true}, {"FIRMWARE", true}}}
	for _, d := range r.Devices {
		qps := ""
		if d.QPCount != nil {
			qps = strconv.FormatInt(*d.QPCount, 10)
		}
		for _, p := range d.Ports {
			ans.names = append(ans.names, d.Name+"/"+strconv.Itoa(p.Port))
			ans.rows = append(ans.rows, row{d.Name, strconv.Itoa(p.Port), p.State, d.Netdev, p.GID, from(0, p.GIDIndex), from(1, p.ActiveMTU), from(1, d.Queues),
				qps, from(0, d.NUMA), d.PCI, d.Driver, strings.TrimSpace(d.Firmware)})
		}
	}
	return a.write(o, ans)
}

// from is a number, or nothing where it is below the least that means something.
func from(least, n int) string {
	if n < least {
		return ""
	}
	return strconv.Itoa(n)
}

// guestSays writes what the program inside a VM reports, as such: the VM's owner may make it say anything.
func (a *app) guestSays(w io.Writer, g *api.GuestStatus) {
	if g == nil {
		return
	}
	a.heading(w, a.tr("Guest (as it says itself)"))
	facts := [][2]string{{a.tr("last heard"), a.tr("%s ago", ago(a.env.Now().Sub(g.Seen)))}, {"verbena-guest", g.Tool}, {a.tr("kernel"), g.Kernel}}
	if g.BadLines > 0 {
		facts = append(facts, [2]string{a.tr("lines that could not be read"), strconv.FormatInt(g.BadLines, 10)})
	}
	a.facts(w, facts)
	t := Table{Heads: []string{"DEVICE", "PORT", "STATE", "NETDEV", "GID", "INDEX", "MTU", "QUEUES", "QPS", "NUMA", "DRIVER", "FIRMWARE"}, Indent: "  "}
	for _, p := range g.Ports {
		t.Rows = append(t.Rows, []string{p.Device, strconv.Itoa(p.Port), p.State, p.Netdev, p.GID, known(p.GIDIndex), from(1, p.MTU), from(1, p.Queues), known(p.QPCount), known(p.NUMA), p.Driver, p.Firmware})
	}
	if len(t.Rows) > 0 {
		a.put(w, t)
	}
}

// known is a number, or nothing for one that is not told.
func known[T int | int64](n *T) string {
	if n == nil {
		return ""
	}
	return strconv.FormatInt(int64(*n), 10)
}
