package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/client"
	"github.com/verbena-cloud/verbena/internal/fault"
)

// Log says how a program that stays logs.
type Log struct {
	Level  string // debug, info, warn, error
	Format string // text or json
	W      io.Writer
}

// Etcd names an external etcd cluster; without URLs the embedded member is used.
type Etcd struct {
	URLs               []string
	CA, Cert, Key      string // files
	User, PasswordFile string
}

// ServerOptions are those of `verbena server`.
type ServerOptions struct {
	Data    string
	Listen  string
	Names   []string
	Memory  bool // keep nothing
	KeyFile string
	Etcd    Etcd
	Log     Log
	Notice  io.Writer // gets the bootstrap token, once
}

// AgentOptions are those of `verbena agent`.
type AgentOptions struct {
	Server    string
	JoinToken string
	State     string
	Host      string
	Libvirt   string // socket
	Emulate   bool
	GuestTool string // path of verbena-guest; "" = beside this program, if it is there
	Log       Log
}

// DemoOptions are those of `verbena demo`.
type DemoOptions struct {
	Hosts  int
	Once   bool
	JSON   bool
	Data   string // empty = a folder that is removed at the end
	Listen string
	Words  Words
	Stdout io.Writer
	Stderr io.Writer
	Colour bool
	Log    Log
}

// BackupOptions are those of `verbena backup`.
type BackupOptions struct {
	Data, File string
	Etcd       Etcd
	Log        Log
}

// RestoreOptions are those of `verbena restore`.
type RestoreOptions struct {
	File, Data string
	Etcd       Etcd
	Log        Log
}

var errNotBuiltIn = errors.New("this program is not built in")

func (a *app) logFlags(c *cobra.Command, l *Log) {
	l.W = a.env.Stderr
	c.Flags().StringVar(&l.Level, "log-level", "info", a.tr("what is logged: debug, info, warn or error"))
	c.Flags().StringVar(&l.Format, "log-format", "text", a.tr("form of the log: text or json"))
}

func (a *app) etcdFlags(c *cobra.Command, e *Etcd) {
	f := c.Flags()
	f.StringSliceVar(&e.URLs, "etcd", nil, a.tr("URLs of an external etcd cluster instead of the embedded member"))
	f.StringVar(&e.CA, "etcd-ca", "", a.tr("file with the CA of etcd"))
	f.StringVar(&e.Cert, "etcd-cert", "", a.tr("file with our certificate for etcd"))
	f.StringVar(&e.Key, "etcd-key", "", a.tr("file with the key of that certificate"))
}

// dataDir is where the server keeps its state unless told otherwise.
func (a *app) dataDir() string {
	return first(a.env.Getenv("VERBENA_DATA_DIR"), "/var/lib/verbena")
}

func (a *app) serverCommand() *cobra.Command {
	var o ServerOptions
	c := &cobra.Command{
		Use:   "server",
		Short: a.tr("Run the server: API, rules, scheduler"),
		Long: a.tr(`Keeps its state in an embedded etcd below --data, or in an external cluster (--etcd). At the first start it
makes its CA and the token of the first administrator, which it writes once to stderr and to the file
bootstrap-token in the data directory; the file goes when the token is first used.`),
		Example: "  verbena server --data /var/lib/verbena --listen :7443\n  verbena login https://127.0.0.1:7443 --bootstrap /var/lib/verbena",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if a.programs.Server == nil {
				return errNotBuiltIn
			}
			o.Notice = a.env.Stderr
			return ended(c.Context(), a.programs.Server(c.Context(), o))
		},
	}
	f := c.Flags()
	f.StringVar(&o.Data, "data", a.dataDir(), a.tr("directory of the state (VERBENA_DATA_DIR)"))
	f.StringVar(&o.Listen, "listen", "127.0.0.1:7443", a.tr("address to listen on"))
	f.StringSliceVar(&o.Names, "name", nil, a.tr("further names and addresses that people and agents reach the server by"))
	f.BoolVar(&o.Memory, "memory", false, a.tr("keep everything in memory: for tests, all is lost at the end"))
	f.StringVar(&o.KeyFile, "key-file", "", a.tr("file with the key that seals the CA in an external etcd"))
	a.etcdFlags(c, &o.Etcd)
	a.logFlags(c, &o.Log)
	return c
}

// ended makes an ordered end a success.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)) {
		return nil
	}
	return err
}

func (a *app) agentCommand() *cobra.Command {
	var o AgentOptions
	c := &cobra.Command{
		Use:   "agent",
		Short: a.tr("Run the agent of a hypervisor"),
		Long: a.tr(`Brings the host's VFs and VMs to what the server says and reports what it read back. It joins once by a token
of verbena host join-token and renews its certificate by itself; running VMs do not notice when agent or
server are away.`),
		Example: "  verbena agent --server https://verbena.example:7443 --join-token /run/join-token --state /var/lib/verbena-agent",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if a.programs.Agent == nil {
				return errNotBuiltIn
			}
			var err error
			o.Server = first(a.flags.server, a.env.Getenv("VERBENA_SERVER"))
			from := o.JoinToken
			if o.JoinToken, err = a.joinToken(from); err != nil {
				return err
			}
			err = ended(c.Context(), a.programs.Agent(c.Context(), o))
			if from != "" && o.JoinToken == "" && fault.Is(err, fault.Unauthenticated) {
				return fmt.Errorf("%w; %s", err, a.tr("there is no token in %s", from))
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&o.JoinToken, "join-token", "", a.tr("token to join by, or a file with it (VERBENA_JOIN_TOKEN); needed once"))
	f.StringVar(&o.State, "state", "/var/lib/verbena-agent", a.tr("directory of the agent's papers, journal, disks"))
	f.StringVar(&o.Host, "host", "", a.tr("name that this host must have; default as the token says"))
	f.StringVar(&o.Libvirt, "libvirt", "", a.tr("socket of libvirt; default the system's"))
	f.BoolVar(&o.Emulate, "emulate", false, a.tr("emulate the CPU even where KVM works"))
	f.StringVar(&o.GuestTool, "guest-tool", "", a.tr("program for guests with RDMA, brought by their cloud-init seed; default verbena-guest beside this program, none = no such program"))
	a.logFlags(c, &o.Log)
	return c
}

// joinToken takes the token itself or reads the file that holds it: a command line can be seen by others.
func (a *app) joinToken(text string) (string, error) {
	text = first(text, a.env.Getenv("VERBENA_JOIN_TOKEN"))
	if text == "" || strings.HasPrefix(text, "verbena_join_") {
		return text, nil
	}
	if text == "-" {
		return a.line(a.tr("token"))
	}
	b, err := os.ReadFile(text)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil // used and removed: the papers in the state directory count
	}
	if err != nil {
		return "", fmt.Errorf("read the join token: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

func (a *app) demoCommand() *cobra.Command {
	var o DemoOptions
	var form string
	c := &cobra.Command{
		Use:   "demo",
		Short: a.tr("See the whole system work on simulated hypervisors"),
		Long: a.tr(`Runs server and agents in one process, on simulated kernels and hypervisors, with the same code as in production
above them: from manifests to running VMs with RDMA NICs, two refusals with their reasons, and a VF that is
given back. Without --once it stays up for you to try things.`),
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if a.programs.Demo == nil {
				return errNotBuiltIn
			}
			switch form {
			case "table":
			case "json":
				o.JSON = true
			default:
				return a.misuse("-o %s: there are %s", form, "table, json")
			}
			o.Words, o.Stdout, o.Stderr = a.words, a.env.Stdout, a.env.Stderr
			o.Colour = a.paint(a.env.StdoutTTY, bold, "x") != "x"
			return ended(c.Context(), a.programs.Demo(c.Context(), o))
		},
	}
	f := c.Flags()
	f.IntVar(&o.Hosts, "hosts", 4, a.tr("number of simulated hypervisors, 1 to 64"))
	f.BoolVar(&o.Once, "once", false, a.tr("end after the story"))
	f.StringVarP(&form, "output", "o", "table", a.tr("form of the answer: table or json"))
	f.StringVar(&o.Data, "data", "", a.tr("directory of the state; default one that is removed at the end"))
	f.StringVar(&o.Listen, "listen", "127.0.0.1:0", a.tr("address to listen on"))
	a.logFlags(c, &o.Log)
	_ = f.Set("log-level", "error")
	return c
}

func (a *app) backupCommand() *cobra.Command {
	var o BackupOptions
	c := &cobra.Command{Use: "backup FILE", Short: a.tr("Write the whole state of a server to a file"), Args: cobra.ExactArgs(1),
		Long: a.tr(`Asks the running server, or reads the data directory of a server that is stopped (--data), or an external etcd
cluster (--etcd). The file holds everything, secrets too: keep it safe. An existing file is not overwritten.`),
		RunE: func(c *cobra.Command, args []string) error {
			o.File = args[0]
			defer a.busy(c.Context(), a.tr("writing %s", o.File))()
			if err := a.backup(c.Context(), o, c.Flags().Changed("data") || len(o.Etcd.URLs) > 0); err != nil {
				return err
			}
			fmt.Fprintf(a.env.Stdout, "%s\n", o.File)
			return nil
		}}
	c.Flags().StringVar(&o.Data, "data", a.dataDir(), a.tr("directory of the state (VERBENA_DATA_DIR)"))
	a.etcdFlags(c, &o.Etcd)
	a.logFlags(c, &o.Log)
	return c
}

// backup reads the store itself, or asks the server for it.
func (a *app) backup(ctx context.Context, o BackupOptions, direct bool) (err error) {
	if direct {
		if a.programs.Backup == nil {
			return errNotBuiltIn
		}
		return a.programs.Backup(ctx, o)
	}
	conn, err := a.connect()
	if err != nil {
		return err
	}
	if _, err := os.Lstat(o.File); err == nil {
		return &coded{exitConflict, a.tr("%s exists already; nothing is overwritten", o.File)}
	}
	part, err := os.CreateTemp(filepath.Dir(o.File), ".backup-*") // made 0600
	if err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	defer os.Remove(part.Name()) // after the link the name is no longer needed
	err = conn.Backup(ctx, part)
	if err == nil {
		err = part.Sync()
	}
	if e := part.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	// Unlike a rename, a link never replaces what has come to be there meanwhile.
	if err := os.Link(part.Name(), o.File); err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	return nil
}

func (a *app) restoreCommand() *cobra.Command {
	var o RestoreOptions
	c := &cobra.Command{Use: "restore FILE", Short: a.tr("Make a server's state from a backup; nothing that exists is overwritten"), Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if a.programs.Restore == nil {
				return errNotBuiltIn
			}
			o.File = args[0]
			defer a.busy(c.Context(), a.tr("reading %s", o.File))()
			if err := a.programs.Restore(c.Context(), o); err != nil {
				return err
			}
			fmt.Fprintf(a.env.Stdout, "%s\n", first(strings.Join(o.Etcd.URLs, ","), o.Data))
			return nil
		}}
	c.Flags().StringVar(&o.Data, "data", a.dataDir(), a.tr("directory of the state (VERBENA_DATA_DIR)"))
	a.etcdFlags(c, &o.Etcd)
	a.logFlags(c, &o.Log)
	return c
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{Use: "version", Short: a.tr("Say the version, with --server URL also the server's"), Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			fmt.Fprintf(a.env.Stdout, "verbena %s\n", a.env.Version)
			if a.flags.server == "" {
				return nil
			}
			conn, err := a.connect()
			if err != nil {
				return err
			}
			s, err := conn.Status(c.Context())
			switch {
			case err == nil:
				fmt.Fprintf(a.env.Stdout, "server %s %s\n", conn.Server(), s.Version)
			case client.Is(err, string(fault.Unauthenticated)) || client.Is(err, string(fault.Forbidden)):
				fmt.Fprintf(a.env.Stdout, "server %s\n", conn.Server()) // it answers; its version is for those who may know
			default:
				return err
			}
			return nil
		}}
}

func (a *app) statusCommand() *cobra.Command {
	var o output
	var reclaim bool
	c := &cobra.Command{Use: "status", Short: a.tr("Say how the server and its store are"), Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.checkOutput(o); err != nil {
				return err
			}
			conn, err := a.connect()
			if err != nil {
				return err
			}
			defer a.busy(c.Context(), a.tr("waiting for %s", conn.Server()))()
			ask := conn.Status
			if reclaim {
				ask = conn.Reclaim
			}
			s, err := ask(c.Context())
			if err != nil {
				return err
			}
			if done, err := a.writeRaw(o, s); done || err != nil {
				return err
			}
			a.title1(a.env.Stdout, conn.Server(), "")
			size := fmt.Sprintf("%d MiB", s.Size>>20)
			if s.Limit > 0 {
				size += fmt.Sprintf(" / %d MiB", s.Limit>>20)
			}
			a.facts(a.env.Stdout, [][2]string{{a.tr("version"), s.Version}, {a.tr("engine"), s.Engine}, {a.tr("revision"), strconv.FormatInt(s.Revision, 10)}, {a.tr("size"), size}})
			a.conditions(a.env.Stdout, s.Conditions)
			for _, x := range s.Conditions {
				if x.Status == "False" {
					return silent(exitChecks)
				}
			}
			return nil
		}}
	a.outputFlags(c, &o)
	c.Flags().BoolVar(&reclaim, "reclaim", false, a.tr("first compact and defragment the store and lift its space alarm"))
	return c
}

// completing bounds what a press of the tab key may take.
const completing = 2 * time.Second

// completeNames proposes the names of a kind's objects.
func (a *app) completeNames(k api.Kind) cobra.CompletionFunc {
	return func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		t, _ := client.TypeOf(string(k))
		return a.names(c.Context(), t), cobra.ShellCompDirectiveNoFileComp
	}
}

func (a *app) names(ctx context.Context, t client.Type) []string {
	if ctx == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, completing)
	defer cancel()
	conn, err := a.connect()
	if err != nil {
		return nil
	}
	list, err := client.Of[api.Meta](conn.Client, t).List(ctx, conn.tenant, client.Selection{Limit: 500})
	if err != nil {
		return nil
	}
	var out []string
	for _, m := range list.Items {
		out = append(out, m.Name)
	}
	return out
}

// completeSubject proposes kinds, KIND/NAME, and names after a kind.
func (a *app) completeSubject(c *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		if t, ok := client.TypeOf(args[0]); ok {
			return a.names(c.Context(), t), cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if kind, _, ok := strings.Cut(text, "/"); ok {
		t, known := client.TypeOf(kind)
		if !known {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var out []string
		for _, n := range a.names(c.Context(), t) {
			out = append(out, kind+"/"+n)
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
	return shortNames(), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

func (a *app) completeContexts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	conf, err := a.config()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, r := range conf.Contexts {
		out = append(out, r.Name)
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeField proposes the fields after a path.
func (a *app) completeField(_ *cobra.Command, _ []string, text string) ([]string, cobra.ShellCompDirective) {
	cut := strings.LastIndexByte(text, '.')
	if cut < 0 {
		return shortNames(), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	d, err := a.find(text[:cut])
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for name := range fieldsOf(inner(d.typ)) {
		out = append(out, text[:cut+1]+name)
	}
	return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

func (a *app) completionCommand() *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use:       "completion SHELL",
		Short:     a.tr("Write the completion script of a shell: bash, zsh, fish, powershell"),
		Example:   "  source <(verbena completion bash)\n  verbena completion zsh >\"${fpath[1]}/_verbena\"",
		Args:      cobra.ExactArgs(1),
		ValidArgs: shells,
		RunE: func(c *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				return c.Root().GenBashCompletionV2(a.env.Stdout, true)
			case "zsh":
				return c.Root().GenZshCompletion(a.env.Stdout)
			case "fish":
				return c.Root().GenFishCompletion(a.env.Stdout, true)
			case "powershell":
				return c.Root().GenPowerShellCompletionWithDesc(a.env.Stdout)
			}
			return a.misuse("there is no completion for %s; there are %s", args[0], strings.Join(shells, ", "))
		},
	}
}
