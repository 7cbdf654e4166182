package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/client"
)

func (a *app) userCommand() *cobra.Command {
	c := a.nounCommand("user")
	c.Short = a.tr("Local users")
	var u api.User
	var stdin bool
	create := &cobra.Command{
		Use:     "create NAME",
		Short:   a.tr("Create a user; the password is asked for"),
		Example: "  verbena user create ada --role operator",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			conn, err := a.connect()
			if err != nil {
				return err
			}
			u.Kind, u.Name = api.KindUser, args[0]
			if u.Spec.Password, err = a.password(stdin, a.tr("Password of %s: ", u.Name)); err != nil {
				return err
			}
			if _, err := conn.Users().Create(c.Context(), "", &u, client.Write{}); err != nil {
				return err
			}
			fmt.Fprintf(a.env.Stdout, "user/%s created\n", u.Name)
			return nil
		},
	}
	f := create.Flags()
	f.StringSliceVar(&u.Spec.Roles, "role", nil, a.tr("role over the platform: platform-admin, operator, auditor, viewer; roles in a tenant are in its members"))
	f.StringVar(&u.Spec.DisplayName, "display-name", "", a.tr("name for people"))
	f.BoolVar(&stdin, "password-stdin", false, a.tr("read the password from stdin"))
	_ = create.RegisterFlagCompletionFunc("role", cobra.FixedCompletions([]string{"platform-admin", "operator", "auditor", "viewer"}, cobra.ShellCompDirectiveNoFileComp))
	c.AddCommand(create, a.passwordCommand())
	return c
}

func (a *app) passwordCommand() *cobra.Command {
	return &cobra.Command{Use: "password", Short: a.tr("Change your own password; all your other sessions end"), Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			conn, err := a.connect()
			if err != nil {
				return err
			}
			old, err := a.password(false, a.tr("Old password: "))
			if err != nil {
				return err
			}
			next, err := a.password(false, a.tr("New password: "))
			if err != nil {
				return err
			}
			if err := conn.ChangePassword(c.Context(), api.PasswordChange{Old: old, New: next}); err != nil {
				return err
			}
			a.note("%s", a.tr("the password is changed"))
			return nil
		}}
}

func (a *app) tokenCommand() *cobra.Command {
	c := &cobra.Command{Use: "token", Short: a.tr("Tokens for programs"), Args: cobra.ArbitraryArgs, RunE: a.parent}
	c.AddCommand(a.tokenCreateCommand(), a.tokenListCommand(), &cobra.Command{
		Use: "delete NAME", Short: a.tr("End a token at once, by name or id"), Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			conn, err := a.connect()
			if err != nil {
				return err
			}
			if err := conn.DeleteToken(c.Context(), args[0]); err != nil {
				return err
			}
			fmt.Fprintf(a.env.Stdout, "token/%s deleted\n", args[0])
			return nil
		},
	})
	return c
}

func (a *app) tokenCreateCommand() *cobra.Command {
	var r api.TokenRequest
	var o output
	c := &cobra.Command{
		Use:     "create NAME",
		Short:   a.tr("Make a token; its secret is shown once, on stdout"),
		Example: "  verbena token create ci --tenant research --scope 'vm.*' --scope network.read --ttl 720h >token",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.checkOutput(o); err != nil {
				return err
			}
			conn, err := a.connect()
			if err != nil {
				return err
			}
			r.Name, r.InTenant = args[0], a.flags.tenant
			grant, err := conn.CreateToken(c.Context(), r)
			if err != nil {
				return err
			}
			if done, err := a.writeRaw(o, grant); done || err != nil {
				return err
			}
			fmt.Fprintln(a.env.Stdout, grant.Secret)
			a.note("%s", a.tr("token %s of %s, good until %s; this is the only time that it is shown", grant.Token.Name, grant.Token.User, grant.Token.Expires.Local().Format(time.RFC3339)))
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&r.User, "user", "", a.tr("for this user (platform-admins); default yourself"))
	f.StringSliceVar(&r.Scopes, "scope", nil, a.tr("cut down to this permission, e.g. vm.read or vm.*; may be repeated"))
	f.StringVar(&r.TTL, "ttl", "", a.tr("how long it is good, e.g. 24h; default 720h"))
	a.outputFlags(c, &o)
	return c
}

func (a *app) tokenListCommand() *cobra.Command {
	var o output
	var user string
	c := &cobra.Command{Use: "list", Short: a.tr("List tokens, without their secrets"), Args: cobra.NoArgs, Aliases: []string{"ls"},
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.checkOutput(o); err != nil {
				return err
			}
			return a.tokens(c.Context(), o, user)
		}}
	c.Flags().StringVar(&user, "user", "", a.tr("of this user (platform-admins); default yourself"))
	a.outputFlags(c, &o)
	return c
}

func (a *app) tokens(ctx context.Context, o output, user string) error {
	conn, err := a.connect()
	if err != nil {
		return err
	}
	list, err := conn.Tokens(ctx, user)
	if err != nil {
		return err
	}
	var items []json.RawMessage
	for _, t := range list.Items {
		b, err := json.Marshal(t)
		if err != nil {
			return fmt.Errorf("encode a token: %w", err)
		}
		items = append(items, b)
	}
	ans, err := a.answerOf(client.Type{Kind: api.KindToken, Short: "token"}, items)
	if err != nil {
		return err
	}
	ans.empty = a.tr("there is no token")
	return a.write(o, ans)
}
