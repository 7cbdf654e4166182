package cli

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/client"
	"github.com/verbena-cloud/verbena/internal/guestos"
	"github.com/verbena-cloud/verbena/internal/guestreport"
	"github.com/verbena-cloud/verbena/internal/preflight"
)

// Env is everything that a command touches besides its arguments and the server.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	// Which of the three are terminals.
	StdinTTY, StdoutTTY, StderrTTY bool
	// ReadPassword reads a line without echo; nil where there is no terminal.
	ReadPassword func() (string, error)
	Version      string
	Now          func() time.Time
	// Transport replaces the network, for tests.
	Transport http.RoundTripper
}

// Programs are the parts of the binary that the command line starts but does not contain.
type Programs struct {
	Server  func(context.Context, ServerOptions) error
	Agent   func(context.Context, AgentOptions) error
	Demo    func(context.Context, DemoOptions) error
	Backup  func(context.Context, BackupOptions) error
	Restore func(context.Context, RestoreOptions) error
	// Preflight looks at this host.
	Preflight func(context.Context, PreflightOptions) (preflight.Report, error)
	// Guest works on the VM that it runs in, GuestReport tells of it.
	Guest       func(context.Context, GuestOptions) (guestos.Outcome, error)
	GuestReport func(context.Context, GuestReportOptions) (guestreport.Report, error)
}

// Main runs the command that args name and returns its exit code.
func Main(ctx context.Context, env Env, args []string, programs Programs) int {
	if env.Now == nil {
		env.Now = time.Now
	}
	// What is told while work goes on comes from a goroutine of its own, and both outputs may be one file.
	lock := &sync.Mutex{}
	own := [2]io.Writer{env.Stdout, env.Stderr}
	env.Stdout, env.Stderr = &locked{lock, env.Stdout}, &locked{lock, env.Stderr}
	a := &app{env: env, own: own, programs: programs, words: NewWords(Language(args, env.Getenv), catalogue)}
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if ctx.Err() != nil && !errors.As(err, new(*client.Error)) {
		a.note("%s", a.tr("interrupted"))
		return exitInterrupted
	}
	a.complain(err)
	return exitCode(err)
}

// locked is a writer that several goroutines may use.
type locked struct {
	mu *sync.Mutex
	w  io.Writer
}

// Write writes all of p before anybody else's.
func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// app is one run of the command line.
type app struct {
	env      Env
	own      [2]io.Writer // stdout and stderr as they were given, for programs of others
	programs Programs
	words    Words
	flags    flags
	conf     *config // read on first use
}

// flags are those that every command takes.
type flags struct {
	server, token, ca, context, tenant, lang string
	timeout                                  time.Duration
	quiet, noColor                           bool
}

// tr is a text in the reader's language.
func (a *app) tr(text string, args ...any) string { return a.words.Say(text, args...) }

// root builds all commands.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "verbena",
		Short:         a.tr("RDMA for the virtual machines of a private cloud"),
		SilenceErrors: true, SilenceUsage: true,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return a.unknownCommand(c, args[0])
			}
			return c.Help()
		},
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetIn(a.env.Stdin)
	root.SetOut(a.env.Stdout)
	root.SetErr(a.env.Stderr)
	root.SetHelpFunc(func(c *cobra.Command, _ []string) { a.help(c) })
	root.SetUsageFunc(func(c *cobra.Command) error { a.usage(c); return nil })
	root.SetFlagErrorFunc(a.flagError)
	p := root.PersistentFlags()
	p.StringVar(&a.flags.server, "server", "", a.tr("address of the server, https://HOST:PORT (VERBENA_SERVER)"))
	p.StringVar(&a.flags.token, "token-file", "", a.tr("file with the token (VERBENA_TOKEN holds the token itself)"))
	p.StringVar(&a.flags.ca, "ca", "", a.tr("file with the CA to trust (VERBENA_CA)"))
	p.StringVar(&a.flags.context, "context", "", a.tr("context to use (VERBENA_CONTEXT)"))
	p.StringVarP(&a.flags.tenant, "tenant", "t", "", a.tr("tenant to work in (VERBENA_TENANT)"))
	p.StringVarP(&a.flags.tenant, "project", "p", "", a.tr("same as --tenant"))
	p.StringVar(&a.flags.lang, "lang", "", a.tr("language of texts: en or zh"))
	p.DurationVar(&a.flags.timeout, "request-timeout", 30*time.Second, a.tr("how long to wait for an answer of the server"))
	p.BoolVarP(&a.flags.quiet, "quiet", "q", false, a.tr("say nothing on stderr but errors"))
	p.BoolVar(&a.flags.noColor, "no-color", false, a.tr("no colours (NO_COLOR)"))
	if f := p.Lookup("project"); f != nil {
		f.Hidden = true
	}
	_ = root.RegisterFlagCompletionFunc("tenant", a.completeNames(api.KindTenant)) // of a flag that there is
	root.AddGroup(a.groups()...)
	root.AddCommand(a.commands()...)
	root.SetHelpCommand(a.helpCommand())
	a.checkArgs(root)
	return root
}

// checkArgs makes a wrong number of arguments a matter of usage, in every command.
func (a *app) checkArgs(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return a.misuse("the arguments do not fit: %s; see %s --help", strings.TrimSuffix(c.UseLine(), " [flags]"), c.CommandPath())
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		a.checkArgs(sub)
	}
}

const (
	groupObjects  = "objects"
	groupNouns    = "nouns"
	groupAccess   = "access"
	groupPrograms = "programs"
)

func (a *app) groups() []*cobra.Group {
	return []*cobra.Group{
		{ID: groupObjects, Title: a.tr("Objects of any kind:")},
		{ID: groupNouns, Title: a.tr("By noun:")},
		{ID: groupAccess, Title: a.tr("Access:")},
		{ID: groupPrograms, Title: a.tr("Programs:")},
	}
}

func (a *app) commands() []*cobra.Command {
	in := func(group string, list ...*cobra.Command) []*cobra.Command {
		for _, c := range list {
			c.GroupID = group
		}
		return list
	}
	all := in(groupObjects, a.applyCommand(), a.diffCommand(), a.getCommand(), a.describeCommand(),
		a.deleteCommand(), a.eventsCommand(), a.waitCommand(), a.explainCommand())
	all = append(all, in(groupNouns, a.vmCommand(), a.hostCommand(), a.tenantCommand(), a.nounCommand("network"),
		a.nounCommand("secgroup"), a.nounCommand("flavor"), a.nounCommand("image"), a.nounCommand("fabric"),
		a.nounCommand("operation"), a.auditCommand())...)
	all = append(all, in(groupAccess, a.loginCommand(), a.whoamiCommand(), a.contextCommand(), a.userCommand(), a.tokenCommand())...)
	all = append(all, in(groupPrograms, a.demoCommand(), a.preflightCommand(), a.guestCommand(), a.serverCommand(), a.agentCommand(), a.backupCommand(),
		a.restoreCommand(), a.statusCommand(), a.versionCommand(), a.completionCommand())...)
	return all
}
