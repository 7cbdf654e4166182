package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/client"
)

func (a *app) tenantCommand() *cobra.Command {
	c := a.nounCommand("tenant")
	c.Short = a.tr("Departments, their quota and use")
	c.AddCommand(a.usageCommand())
	return c
}

func (a *app) usageCommand() *cobra.Command {
	var o output
	c := &cobra.Command{
		Use:   "usage [NAME…]",
		Short: a.tr("Show what tenants hold of their quota"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.checkOutput(o); err != nil {
				return err
			}
			return a.usage1(c, args, o)
		},
		ValidArgsFunction: a.completeNames(api.KindTenant),
	}
	a.outputFlags(c, &o)
	return c
}

func (a *app) usage1(c *cobra.Command, names []string, o output) error {
	conn, err := a.connect()
	if err != nil {
		return err
	}
	list, err := a.tenants(c, conn, names)
	if err != nil {
		return err
	}
	type line struct {
		Tenant string `json:"tenant"`
		api.QuotaLine
	}
	lines := []line{}
	ans := answer{view: view{{"TENANT", false}, {"RESOURCE", false}, {"USED", false}, {"LIMIT", false}, {"FREE", false}, {"%", false}}, empty: a.tr("there is no tenant that you may see")}
	for _, t := range list {
		for _, l := range t.Status.Usage {
			lines = append(lines, line{t.Name, l})
			percent := ""
			if l.Limit > 0 {
				percent = strconv.FormatInt(100*l.Used/l.Limit, 10)
			}
			ans.rows = append(ans.rows, row{t.Name, l.Resource, quantity(l.Used, l.Unit), quantity(l.Limit, l.Unit), quantity(l.Limit-l.Used, l.Unit), percent})
			ans.names = append(ans.names, t.Name+"/"+l.Resource)
		}
	}
	if ans.raw, err = json.Marshal(lines); err != nil {
		return fmt.Errorf("encode the usage: %w", err)
	}
	return a.write(o, ans)
}

// tenants reads the named tenants, the one worked in, or all.
func (a *app) tenants(c *cobra.Command, conn *connection, names []string) ([]api.Tenant, error) {
	if len(names) == 0 && conn.tenant != "" {
		names = []string{conn.tenant}
	}
	if len(names) == 0 {
		list, err := conn.Tenants().List(c.Context(), "", client.Selection{})
		return list.Items, err
	}
	var out []api.Tenant
	for _, n := range slices.Compact(names) {
		t, err := conn.Tenants().Get(c.Context(), "", n)
		if err != nil {
			return nil, err
		}
		out = append(out, *t)
	}
	return out, nil
}

func (a *app) auditCommand() *cobra.Command {
	var o listOptions
	c := &cobra.Command{
		Use:   "audit",
		Short: a.tr("Who did what, with what result"),
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.checkOutput(o.output); err != nil {
				return err
			}
			t, err := a.typeNamed("audit")
			if err != nil {
				return err
			}
			return a.list(c.Context(), o, t)
		},
	}
	a.listFlags(c, &o)
	return c
}
