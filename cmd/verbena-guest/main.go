// Command verbena-guest is the small program inside a VM: what `verbena guest` does, without the rest. The
// cloud-init seed of a VM brings it; internal/guestos/DESIGN.md says why it is a program of its own.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/verbena-cloud/verbena/internal/guestos"
	"github.com/verbena-cloud/verbena/internal/guestos/apply"
	"github.com/verbena-cloud/verbena/internal/guestreport"
	"github.com/verbena-cloud/verbena/internal/preflight"
)

// version is set by the linker.
var version = "dev" //nolint:gochecknoglobals // -ldflags -X needs a variable

// Exit codes, those of verbena.
const (
	exitError  = 1
	exitUsage  = 2
	exitChecks = 8 // a setting failed
)

const usage = `verbena-guest sets a VM up for RDMA and tells its host about it. No network is needed.

  verbena-guest plan      show what tune would set, with the values before and after
  verbena-guest tune      set it; each first value is kept for undo
  verbena-guest undo      bring everything back to what it was before the first tune of this boot
  verbena-guest report    show RDMA devices, GIDs, MTU, queue pairs and counters, or send them (--port, --every)
  verbena-guest version

Each has --help. Exit codes: 0 done, 1 error, 2 wrong usage, 8 a setting failed.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	verb := ""
	if len(args) > 0 {
		verb = args[0]
	}
	var err error
	switch verb {
	case "plan", "tune", "undo":
		var out guestos.Outcome
		if out, err = work(ctx, guestos.Verb(verb), args[1:], stdout, stderr); err == nil && out.Failed() {
			return exitChecks
		}
	case "report":
		err = report(ctx, args[1:], stdout, stderr)
	case "version":
		fmt.Fprintln(stdout, version)
	case "", "help", "-h", "--help":
		fmt.Fprint(stdout, usage)
	default:
		fmt.Fprintf(stderr, "verbena-guest: there is no %q\n\n%s", verb, usage)
		return exitUsage
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, new(misuse)):
		return exitUsage // package flag has said what is wrong
	case err != nil:
		fmt.Fprintf(stderr, "verbena-guest: %v\n", err)
		return exitError
	}
	return 0
}

// misuse is an error of how the program was called.
type misuse struct{ error }

// parse reads flags, and takes nothing else.
func parse(f *flag.FlagSet, args []string, stderr io.Writer) error {
	f.SetOutput(stderr)
	err := f.Parse(args)
	if err == nil && f.NArg() > 0 {
		err = fmt.Errorf("%q is not understood", f.Arg(0))
		fmt.Fprintf(stderr, "verbena-guest: %v\n", err)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		return misuse{err}
	}
	return err
}

func work(ctx context.Context, verb guestos.Verb, args []string, stdout, stderr io.Writer) (guestos.Outcome, error) {
	o := apply.Options{Verb: verb, Root: "/", Config: guestos.Default()}
	f := flag.NewFlagSet(string(verb), flag.ContinueOnError)
	busy := f.Int("busy-poll", o.Config.BusyPoll, "microseconds that sockets look for packets before they sleep; 0 = off, -1 = leave it")
	file := f.String("config", "", "JSON `file` with what the VM's owner wants: busyPoll, minMTU, pairs of driver and firmware")
	asJSON := f.Bool("json", false, "write the outcome as JSON")
	f.StringVar(&o.State, "state", apply.StateDir, "`directory` of the undo journal")
	if err := parse(f, args, stderr); err != nil {
		return guestos.Outcome{}, err
	}
	if *file != "" {
		if err := readConfig(*file, &o.Config); err != nil {
			return guestos.Outcome{}, err
		}
	}
	f.Visit(func(x *flag.Flag) {
		if x.Name == "busy-poll" {
			o.Config.BusyPoll = *busy
		}
	})
	if !*asJSON {
		o.Say = func(s guestos.Step) { fmt.Fprintln(stdout, line(s)) }
	}
	out, err := apply.Work(ctx, o)
	if *asJSON {
		return out, errors.Join(err, encode(stdout, out))
	}
	if verb == guestos.Show {
		for _, s := range out.Steps {
			fmt.Fprintln(stdout, line(s))
		}
	}
	for _, x := range out.Findings {
		if x.Level != preflight.OK {
			fmt.Fprintln(stdout, finding(x))
		}
	}
	switch {
	case err != nil || len(out.Steps) > 0:
	case verb == guestos.Back:
		fmt.Fprintln(stdout, "nothing to undo")
	default:
		fmt.Fprintln(stdout, "all is as it should be, nothing to set")
	}
	return out, err
}

func readConfig(file string, c *guestos.Config) error {
	text, err := os.ReadFile(file) //nolint:gosec // who runs the program names the file
	if err != nil {
		return fmt.Errorf("read the guest configuration: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(c); err != nil {
		return fmt.Errorf("guest configuration %s: %w", file, err)
	}
	return nil
}

// line tells a setting with its values and how a shell would make it.
func line(s guestos.Step) string {
	text := fmt.Sprintf("%-8s %s %s: %s -> %s  (%s)", s.Result, s.Kind, s.Object, s.Before, s.After, s.How)
	if s.Error != "" {
		text += ": " + s.Error
	}
	return text
}

func finding(f preflight.Finding) string {
	text := fmt.Sprintf("%-8s %s %s: %s", f.Level, f.Check, f.Object, f.Seen)
	if f.Expected != "" {
		text += "; expected: " + f.Expected
	}
	if len(f.Fix) > 0 {
		text += "; fix: " + strings.Join(f.Fix, "; ")
	}
	return text
}

func encode(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func report(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	f := flag.NewFlagSet("report", flag.ContinueOnError)
	port := f.String("port", "", "virtio-serial `port` to send it through, "+guestreport.Channel+"; without one it is shown as JSON")
	every := f.Duration("every", 0, "send it again after this `time`, without end")
	if err := parse(f, args, stderr); err != nil {
		return err
	}
	if *every < 0 || *every > 0 && (*port == "" || *every < time.Second) {
		err := errors.New("--every needs a --port and at least 1s")
		fmt.Fprintf(stderr, "verbena-guest: %v\n", err)
		return misuse{err}
	}
	m, done, err := apply.Open("/")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	if *port == "" {
		return encode(stdout, guestos.Report(m.Facts(ctx), version))
	}
	r := apply.Reporter{Machine: m, Version: version, Open: func() (apply.Port, error) { return apply.OpenPort(*port) },
		Log: func(err error) { fmt.Fprintf(stderr, "verbena-guest: %v\n", err) }}
	if *every == 0 {
		return r.Once(ctx)
	}
	r.Every(ctx, *every)
	return nil
}
