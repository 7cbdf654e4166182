package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// help writes all about a command to stdout: it was asked for.
func (a *app) help(c *cobra.Command) {
	w := a.env.Stdout
	text := first(c.Long, c.Short)
	if text != "" {
		fmt.Fprintf(w, "%s\n\n", strings.TrimSpace(text))
	}
	a.usageTo(w, c)
}

func (a *app) usage(c *cobra.Command) { a.usageTo(a.env.Stderr, c) }

func (a *app) usageTo(w io.Writer, c *cobra.Command) {
	fmt.Fprintf(w, "%s\n", a.tr("Usage:"))
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(w, "  %s %s\n", c.CommandPath(), a.tr("COMMAND [flags]"))
	} else {
		fmt.Fprintf(w, "  %s %s\n", strings.TrimSuffix(c.UseLine(), " [flags]"), "[flags]")
	}
	if c.Example != "" {
		fmt.Fprintf(w, "\n%s\n%s\n", a.tr("Examples:"), c.Example)
	}
	a.subcommands(w, c)
	a.flagsTo(w, a.tr("Flags:"), c.LocalNonPersistentFlags())
	if c.HasParent() {
		fmt.Fprintf(w, "\n%s\n", a.tr("Flags of all commands: verbena help flags"))
	} else {
		a.flagsTo(w, a.tr("Flags of all commands:"), c.PersistentFlags())
		fmt.Fprintf(w, "\n%s\n", a.tr("More: verbena COMMAND --help, verbena help exit-codes, verbena help environment"))
	}
}

func (a *app) subcommands(w io.Writer, c *cobra.Command) {
	list := func(title string, group string) {
		t := Table{Heads: []string{"", ""}, NoHeader: true, Indent: "  "}
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() && sub.GroupID == group {
				t.Rows = append(t.Rows, []string{sub.Name(), sub.Short})
			}
		}
		if len(t.Rows) > 0 {
			fmt.Fprintf(w, "\n%s\n", title)
			_ = t.Write(w) // a broken pipe ends the program elsewhere
		}
	}
	for _, g := range c.Groups() {
		list(g.Title, g.ID)
	}
	list(a.tr("Commands:"), "")
}

func (a *app) flagsTo(w io.Writer, title string, set *pflag.FlagSet) {
	t := Table{Heads: []string{"", "", ""}, NoHeader: true, Indent: "  "}
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "    --" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", --" + f.Name
		}
		value := f.Value.Type()
		if value == "bool" {
			value = " "
		}
		text := f.Usage
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" && f.DefValue != "0" {
			text += " " + a.tr("(default %s)", f.DefValue)
		}
		t.Rows = append(t.Rows, []string{name, strings.ReplaceAll(value, "stringSlice", "strings"), text})
	})
	if len(t.Rows) > 0 {
		fmt.Fprintf(w, "\n%s\n", title)
		_ = t.Write(w) // a broken pipe ends the program elsewhere
	}
}

// flagError explains a wrong flag in the reader's language.
func (a *app) flagError(c *cobra.Command, err error) error {
	text := err.Error()
	if name, ok := strings.CutPrefix(text, "unknown flag: --"); ok {
		var names []string
		c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := nearest(name, names); near != "" {
			return a.misuse("there is no flag --%s; do you mean --%s?", name, near)
		}
		return a.misuse("there is no flag --%s; see %s --help", name, c.CommandPath())
	}
	return a.misuse("%s; see %s --help", text, c.CommandPath())
}

func (a *app) unknownCommand(c *cobra.Command, name string) error {
	var names []string
	for _, sub := range c.Commands() {
		names = append(names, sub.Name())
	}
	if near := nearest(name, names); near != "" {
		return a.misuse("there is no command %s %s; do you mean %s?", c.CommandPath(), name, near)
	}
	return a.misuse("there is no command %s %s; see %s --help", c.CommandPath(), name, c.CommandPath())
}

// helpCommand shows a command's help, and the topics that belong to no command.
func (a *app) helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "help [COMMAND | exit-codes | environment | flags]",
		Short:  a.tr("Help about a command or a topic"),
		Hidden: true,
		RunE: func(c *cobra.Command, args []string) error {
			w := a.env.Stdout
			switch strings.Join(args, " ") {
			case "exit-codes":
				t := Table{Heads: []string{a.tr("CODE"), a.tr("MEANING")}}
				for _, m := range a.exitCodes() {
					t.Rows = append(t.Rows, []string{strconv.Itoa(m.code), m.text})
				}
				return t.Write(w)
			case "environment":
				t := Table{Heads: []string{a.tr("VARIABLE"), a.tr("MEANING")}}
				for _, v := range a.environment() {
					t.Rows = append(t.Rows, v[:])
				}
				return t.Write(w)
			case "flags":
				a.flagsTo(w, a.tr("Flags of all commands:"), c.Root().PersistentFlags())
				return nil
			}
			found, _, err := c.Root().Find(args)
			if err != nil || found == nil {
				return a.unknownCommand(c.Root(), strings.Join(args, " "))
			}
			return found.Help()
		},
	}
}

func (a *app) environment() [][2]string {
	return [][2]string{
		{"VERBENA_SERVER", a.tr("address of the server; goes before the context")},
		{"VERBENA_TOKEN", a.tr("token; goes before the context")},
		{"VERBENA_CA", a.tr("file with the CA to trust")},
		{"VERBENA_TENANT", a.tr("tenant to work in")},
		{"VERBENA_CONTEXT", a.tr("context to use")},
		{"VERBENA_CONFIG", a.tr("file of the contexts; default ~/.config/verbena/config.yaml")},
		{"VERBENA_DATA_DIR", a.tr("data directory of server, backup and restore")},
		{"VERBENA_JOIN_TOKEN", a.tr("join token of an agent")},
		{"VERBENA_DIFF", a.tr("program that verbena diff runs with two files")},
		{"LC_ALL, LC_MESSAGES, LANG", a.tr("language of texts: zh… is Chinese, all else English")},
		{"NO_COLOR", a.tr("no colours")},
	}
}
