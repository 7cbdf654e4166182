package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/client"
)

type loginOptions struct {
	token, user, pin, bootstrap, name, ttl string
	stdin                                  bool
}

func (a *app) loginCommand() *cobra.Command {
	var o loginOptions
	c := &cobra.Command{
		Use:   "login URL",
		Short: a.tr("Log in to a server and remember it as a context"),
		Long: a.tr(`Proves the server first: by its CA (--ca FILE), by the CA's SHA-256 (--ca-hash), or, on a terminal, by
showing you the hash to compare with what the operator told you. Then proves you: by a token, or by user and
password. The configuration that remembers both is readable by you alone.`),
		Example: "  verbena login https://verbena.example:7443 --user ada\n  verbena login https://127.0.0.1:7443 --bootstrap /var/lib/verbena",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.login(c.Context(), args[0], o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.token, "token", "", a.tr("token, or - to read it from stdin"))
	f.StringVar(&o.user, "user", "", a.tr("user to log in as; the password is asked for"))
	f.BoolVar(&o.stdin, "password-stdin", false, a.tr("read the password from stdin"))
	f.StringVar(&o.pin, "ca-hash", "", a.tr("SHA-256 of the server's CA"))
	f.StringVar(&o.bootstrap, "bootstrap", "", a.tr("take CA and first token from the data directory of a server on this machine"))
	f.StringVar(&o.name, "name", "", a.tr("name of the context; default the server's host name"))
	f.StringVar(&o.ttl, "ttl", "", a.tr("how long the login is good, e.g. 12h"))
	return c
}

func (a *app) login(ctx context.Context, address string, o loginOptions) error {
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return a.misuse("%s is no address like https://HOST:7443", address)
	}
	r := remote{Server: strings.TrimRight(address, "/"), Tenant: a.flags.tenant}
	conf, err := a.config()
	if err != nil {
		return err
	}
	r.Name = first(o.name, conf.nameFor(r.Server, u))
	if o.bootstrap != "" {
		if err := a.bootstrap(&r, o.bootstrap); err != nil {
			return err
		}
	}
	if err := a.trust(ctx, &r, o.pin); err != nil {
		return err
	}
	if r.Token == "" {
		if r.Token, err = a.credential(ctx, r, o); err != nil {
			return err
		}
	}
	c, err := a.clientOf(r)
	if err != nil {
		return err
	}
	who, err := c.WhoAmI(ctx)
	if err != nil {
		return err
	}
	conf.put(r)
	conf.Current = r.Name
	if err := conf.save(); err != nil {
		return err
	}
	a.note("%s", a.tr("logged in to %s as %s; context %s is remembered in %s", r.Server, who.Name, r.Name, conf.path))
	a.overshadowed(r)
	return nil
}

// bootstrap takes what a fresh server left in its data directory.
func (a *app) bootstrap(r *remote, dir string) error {
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return fmt.Errorf("read the CA of the server: %w", err)
	}
	token, err := os.ReadFile(filepath.Join(dir, "bootstrap-token"))
	if errors.Is(err, os.ErrNotExist) {
		return &coded{exitAuth, a.tr("%s holds no bootstrap token any more: it was used. Log in as a user, or with a token that you have", dir)}
	}
	if err != nil {
		return fmt.Errorf("read the bootstrap token: %w", err)
	}
	r.CA, r.Token = string(ca), strings.TrimSpace(string(token))
	return nil
}

// trust finds the CA that the server must prove itself by.
func (a *app) trust(ctx context.Context, r *remote, pin string) error {
	if r.CA != "" || strings.HasPrefix(r.Server, "http://") {
		return nil
	}
	if path := first(a.flags.ca, a.env.Getenv("VERBENA_CA")); path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read the CA: %w", err)
		}
		r.CA = string(text)
		return nil
	}
	if pin == "" {
		// A certificate that this machine trusts anyway needs no question.
		c, err := a.clientOf(*r)
		if err != nil {
			return err
		}
		e, untrusted := errors.AsType[*client.ConnError](c.Healthy(ctx))
		if !untrusted {
			return nil
		}
		if !e.Trust {
			return e
		}
	}
	ca, err := client.FetchAuthority(ctx, r.Server, pin)
	if err != nil {
		return err
	}
	if pin == "" {
		question := a.tr("%s is proven by a CA that is not known here:\n  %s\n  SHA-256 %s\nTrust it? Compare the hash with what the operator says.", r.Server, ca.Name, ca.SHA256)
		if !a.env.StdinTTY {
			return &coded{exitUsage, question + "\n  " + a.arrow() + " " + a.tr("nobody can be asked here: say --ca FILE or --ca-hash %s", ca.SHA256)}
		}
		if err := a.confirm(false, question); err != nil {
			return err
		}
	}
	r.CA = string(ca.PEM)
	return nil
}

// credential gets a token: the one given, or one for a password. What the command line says goes before the
// environment: who names a user must not become somebody else by a token that a shell still holds.
func (a *app) credential(ctx context.Context, r remote, o loginOptions) (string, error) {
	if o.token != "" && o.user != "" {
		return "", a.misuse("either --user or --token, not both")
	}
	if o.token == "-" {
		return a.line(a.tr("token"))
	} else if o.token != "" {
		return o.token, nil
	}
	if o.user == "" && a.flags.token != "" {
		text, err := os.ReadFile(a.flags.token)
		if err != nil {
			return "", fmt.Errorf("read the token: %w", err)
		}
		return strings.TrimSpace(string(text)), nil
	}
	if o.user == "" {
		if token := a.env.Getenv("VERBENA_TOKEN"); token != "" {
			return token, nil
		}
		return "", a.misuse("say how to prove who you are: --user NAME, --token TOKEN or --bootstrap DIRECTORY")
	}
	password, err := a.password(o.stdin, a.tr("Password of %s: ", o.user))
	if err != nil {
		return "", err
	}
	c, err := a.clientOf(r)
	if err != nil {
		return "", err
	}
	grant, err := c.Login(ctx, api.LoginRequest{User: o.user, Password: password, TTL: o.ttl})
	return grant.Secret, err
}

func (a *app) line(what string) (string, error) {
	text, err := bufio.NewReader(a.env.Stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read the %s: %w", what, err)
	}
	if text = strings.TrimRight(text, "\r\n"); text == "" {
		return "", a.misuse("stdin holds no %s", what)
	}
	return text, nil
}

// password asks without echo, or reads stdin where nobody can be asked.
func (a *app) password(stdin bool, prompt string) (string, error) {
	if stdin {
		return a.line(a.tr("password"))
	}
	if !a.env.StdinTTY || a.env.ReadPassword == nil {
		return "", a.misuse("nobody can be asked for a password here: use --password-stdin")
	}
	fmt.Fprint(a.env.Stderr, prompt)
	text, err := a.env.ReadPassword()
	fmt.Fprintln(a.env.Stderr)
	if err != nil {
		return "", fmt.Errorf("read the password: %w", err)
	}
	return text, nil
}

func (a *app) whoamiCommand() *cobra.Command {
	var o output
	c := &cobra.Command{Use: "whoami", Short: a.tr("Say who you are to the server and what you may do"), Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.checkOutput(o); err != nil {
				return err
			}
			conn, err := a.connect()
			if err != nil {
				return err
			}
			who, err := conn.WhoAmI(c.Context())
			if err != nil {
				return err
			}
			if done, err := a.writeRaw(o, who); done || err != nil {
				return err
			}
			expires := ""
			if who.Expires != nil {
				expires = who.Expires.Local().Format(time.RFC3339)
			}
			a.title1(a.env.Stdout, who.Name, "")
			a.facts(a.env.Stdout, [][2]string{{a.tr("server"), conn.Server()}, {a.tr("roles"), strings.Join(who.Roles, ", ")},
				{a.tr("tenants"), pairs(who.Tenants)}, {a.tr("only in tenant"), who.Tenant}, {a.tr("scopes"), strings.Join(who.Scopes, ", ")}, {a.tr("expires"), expires}})
			return nil
		}}
	a.outputFlags(c, &o)
	return c
}

func (a *app) contextCommand() *cobra.Command {
	c := &cobra.Command{Use: "context", Short: a.tr("Servers that you are logged in to"), Args: cobra.ArbitraryArgs, RunE: a.parent}
	c.AddCommand(a.contextListCommand(),
		&cobra.Command{Use: "use NAME", Short: a.tr("Work with this context from now on"), Args: cobra.ExactArgs(1),
			RunE: func(_ *cobra.Command, args []string) error {
				return a.changeContext(args[0], func(conf *config, r *remote) {
					conf.Current = r.Name
					a.overshadowed(*r)
				})
			}, ValidArgsFunction: a.completeContexts},
		&cobra.Command{Use: "set", Short: a.tr("Set the tenant of the current context: --tenant NAME"), Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				if !c.Flags().Changed("tenant") && !c.Flags().Changed("project") {
					return a.misuse("say what to set: --tenant NAME")
				}
				conf, err := a.config()
				if err != nil {
					return err
				}
				name := first(a.flags.context, conf.Current)
				if err := a.changeContext(name, func(_ *config, r *remote) { r.Tenant = a.flags.tenant }); err != nil {
					return err
				}
				a.note("%s", a.tr("context %s: tenant %s", name, first(a.flags.tenant, "-")))
				return nil
			}},
		&cobra.Command{Use: "delete NAME", Short: a.tr("Forget a context and its token"), Args: cobra.ExactArgs(1),
			RunE: func(_ *cobra.Command, args []string) error {
				return a.changeContext(args[0], func(conf *config, r *remote) {
					name := r.Name
					var rest []remote
					for _, x := range conf.Contexts {
						if x.Name != name {
							rest = append(rest, x)
						}
					}
					conf.Contexts = rest
					if conf.Current == name {
						conf.Current = ""
					}
				})
			}, ValidArgsFunction: a.completeContexts})
	return c
}

func (a *app) changeContext(name string, change func(*config, *remote)) error {
	conf, err := a.config()
	if err != nil {
		return err
	}
	r := conf.find(name)
	if r == nil {
		return a.misuse("there is no context %s; see verbena context list", name)
	}
	change(conf, r)
	return conf.save()
}

func (a *app) contextListCommand() *cobra.Command {
	var o output
	c := &cobra.Command{Use: "list", Short: a.tr("List them"), Args: cobra.NoArgs, Aliases: []string{"ls"},
		RunE: func(*cobra.Command, []string) error {
			if err := a.checkOutput(o); err != nil {
				return err
			}
			conf, err := a.config()
			if err != nil {
				return err
			}
			type shownContext struct {
				Name    string `json:"name"`
				Server  string `json:"server"`
				Tenant  string `json:"tenant,omitempty"`
				Current bool   `json:"current"`
			}
			list := []shownContext{} // without the tokens
			ans := answer{view: view{{"CURRENT", false}, {"NAME", false}, {"SERVER", false}, {"TENANT", false}}, empty: a.tr("no context yet; log in: verbena login https://HOST:7443")}
			for _, r := range conf.Contexts {
				mark := ""
				if r.Name == conf.Current {
					mark = "*"
				}
				list = append(list, shownContext{r.Name, r.Server, r.Tenant, mark != ""})
				ans.rows = append(ans.rows, row{mark, r.Name, r.Server, r.Tenant})
				ans.names = append(ans.names, r.Name)
			}
			if done, err := a.writeRaw(o, list); done || err != nil {
				return err
			}
			return a.write(o, ans)
		}}
	a.outputFlags(c, &o)
	return c
}
