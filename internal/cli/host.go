package cli

import (
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-cloud/verbena/api"
)

func (a *app) hostCommand() *cobra.Command {
	c := a.nounCommand("host")
	c.Short = a.tr("Hypervisors")
	c.AddCommand(a.commissionCommand(), a.hostVFsCommand(), a.cordonCommand("cordon", "cordon"), a.cordonCommand("uncordon", "none"), a.joinTokenCommand())
	return c
}

func (a *app) hostVFsCommand() *cobra.Command {
	var o output
	c := &cobra.Command{
		Use:   "vfs NAME",
		Short: a.tr("List the virtual functions of a host with their states and owners"),
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.checkOutput(o); err != nil {
				return err
			}
			conn, err := a.connect()
			if err != nil {
				return err
			}
			h, err := conn.Hosts().Get(c.Context(), "", args[0])
			if err != nil {
				return err
			}
			if done, err := a.writeRaw(o, inventory(h).PFs); done || err != nil {
				return err
			}
			ans := answer{view: vfView(), empty: a.tr("%s has no VFs in the pool", h.Name)}
			for _, p := range inventory(h).PFs {
				for _, f := range p.VFs {
					ans.rows = append(ans.rows, vfRow(p, f))
					ans.names = append(ans.names, p.Key+"/"+strconv.Itoa(f.Index))
				}
			}
			return a.write(o, ans)
		},
		ValidArgsFunction: a.completeNames(api.KindHost),
	}
	a.outputFlags(c, &o)
	return c
}

func vfView() view {
	return view{{"PF", false}, {"NETDEV", false}, {"VF", false}, {"NUMA", false}, {"STATE", false}, {"VM", false}, {"MAC", false}, {"VLAN", false},
		{"QOS", false}, {"SPOOFCHK", false}, {"REASON", false}, {"PCI", true}, {"GROUP", true}, {"DRIVER", true}, {"TRUST", true}, {"MAXRATE", true}, {"GENERATION", true}, {"FABRIC", true}}
}

func vfRow(p api.PF, f api.VF) row {
	onOff := map[bool]string{true: "on", false: "off"}
	return row{p.Key, p.Netdev, strconv.Itoa(f.Index), strconv.Itoa(p.Cell), f.State, f.VM, f.MAC, strconv.Itoa(f.VLAN), strconv.Itoa(f.QoS),
		onOff[f.SpoofCheck], f.Reason, f.PCI, f.Group, f.Driver, onOff[f.Trust], quantity(f.MaxRate, "bps"), strconv.FormatInt(f.Generation, 10), p.Fabric}
}

func (a *app) cordonCommand(verb, mode string) *cobra.Command {
	short := a.tr("Let no new VMs onto a host")
	if mode == "none" {
		short = a.tr("Let new VMs onto a host again")
	}
	return &cobra.Command{Use: verb + " NAME", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			conn, s, err := a.subject(c.Context(), []string{"host", args[0]})
			if err != nil {
				return err
			}
			if err := a.edit(c.Context(), conn, s, func(spec map[string]any) { spec["maintenance"] = mode }); err != nil {
				return err
			}
			fmt.Fprintf(a.env.Stdout, "%s %sed\n", s, verb)
			return nil
		},
		ValidArgsFunction: a.completeNames(api.KindHost)}
}

func (a *app) joinTokenCommand() *cobra.Command {
	var ttl string
	var o output
	c := &cobra.Command{
		Use:   "join-token NAME",
		Short: a.tr("Make the one-time token by which a host's agent joins"),
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.checkOutput(o); err != nil {
				return err
			}
			conn, err := a.connect()
			if err != nil {
				return err
			}
			grant, err := conn.CreateJoinToken(c.Context(), api.JoinTokenRequest{Host: args[0], TTL: ttl})
			if err != nil {
				return err
			}
			if done, err := a.writeRaw(o, grant); done || err != nil {
				return err
			}
			fmt.Fprintln(a.env.Stdout, grant.Secret)
			a.note("%s", a.tr("It works once, for host %s, until %s. On that host:", grant.Host, grant.Expires.Local().Format(time.RFC3339)))
			a.note("  verbena agent --server %s --join-token FILE --state /var/lib/verbena-agent", a.seenFromHosts(conn.Server()))
			return nil
		},
		ValidArgsFunction: a.completeNames(api.KindHost),
	}
	c.Flags().StringVar(&ttl, "ttl", "", a.tr("how long it is good, e.g. 30m; default 1h, at most 24h"))
	a.outputFlags(c, &o)
	return c
}

// seenFromHosts is a server's address for other machines: that of the loopback is none.
func (a *app) seenFromHosts(server string) string {
	u, err := url.Parse(server)
	if err != nil {
		return server
	}
	if ip, err := netip.ParseAddr(u.Hostname()); u.Hostname() != "localhost" && (err != nil || !ip.IsLoopback()) {
		return server
	}
	u.Host = a.tr("NAME-OF-THIS-SERVER") + ":" + first(u.Port(), "443")
	return u.Scheme + "://" + u.Host
}

func (a *app) describeHost(w io.Writer, h *api.Host) {
	s, inv := h.Status, inventory(h)
	a.title1(w, "Host "+h.Name, s.State)
	mark := ""
	if inv.Simulated {
		mark = a.tr("SIMULATED: no real kernel is behind it")
	}
	a.facts(w, append([][2]string{{a.tr("nature"), mark}, {a.tr("seen"), ageAgo(a, s.Seen)}, {a.tr("maintenance"), first(h.Spec.Maintenance, "none")}, {a.tr("rack"), h.Spec.Rack},
		{a.tr("kernel"), inv.Kernel}, {a.tr("hypervisor"), inv.Hypervisor}, {a.tr("agent"), inv.Agent}, {"IOMMU", yesNo(inv.IOMMU)}, {"VMs", strconv.Itoa(s.VMs)}}, a.metaFacts(h.Meta)...))
	if len(inv.Cells) > 0 {
		a.heading(w, a.tr("NUMA cells"))
		a.put(w, cellTable(h))
	}
	if len(inv.PFs) > 0 {
		a.heading(w, a.tr("Physical functions"))
		t := Table{Heads: []string{"PF", "PCI", "NETDEV", "NUMA", "FABRIC", "READY", "LINK", "VFS", "PARKED", "ATTACHED", "DRIVER", "QOS", "REASON"}, Indent: "  "}
		for _, p := range inv.PFs {
			link := "down"
			if p.LinkUp {
				link = quantity(p.Speed, "bps")
			}
			qos, reason := "", p.Reason
			if p.QoS != nil {
				qos, reason = p.QoS.State, first(reason, p.QoS.Reason)
			}
			t.Rows = append(t.Rows, []string{p.Key, p.PCI, p.Netdev, strconv.Itoa(p.Cell), p.Fabric, yesNo(p.Ready), link,
				fmt.Sprintf("%d/%d", p.NumVFs, p.WantVFs), strconv.Itoa(countVFs(p, api.VFParked)), strconv.Itoa(countVFs(p, api.VFAttached)), p.Driver, qos, reason})
		}
		a.put(w, t)
	}
	if len(inv.Problems) > 0 {
		a.heading(w, a.tr("What could not be read"))
		for _, p := range inv.Problems {
			fmt.Fprintln(w, "  "+printable(p))
		}
	}
	a.conditions(w, s.Conditions)
}

func ageAgo(a *app, t *time.Time) string {
	if t == nil {
		return ""
	}
	return a.tr("%s ago", age(t, a.env.Now()))
}

func countVFs(p api.PF, state string) int {
	n := 0
	for _, f := range p.VFs {
		if f.State == state {
			n++
		}
	}
	return n
}

// cellTable shows what each node has and what VMs hold of it.
func cellTable(h *api.Host) Table {
	t := Table{Heads: []string{"NODE", "CPUS", "VCPUS", "MEMORY", "HUGEPAGES", "VFS-USED"}, Indent: "  "}
	for _, c := range inventory(h).Cells {
		var u api.CellUse
		for _, x := range h.Status.Used {
			if x.Cell == c.ID {
				u = x
			}
		}
		var huge []string
		for _, p := range c.Hugepages {
			huge = append(huge, fmt.Sprintf("%s×%d", p.Size, p.Total))
		}
		t.Rows = append(t.Rows, []string{strconv.Itoa(c.ID), c.CPUs, fmt.Sprintf("%d/%d", u.VCPUs, c.VCPUs),
			roughly(u.Memory) + "/" + roughly(c.Memory), strings.Join(huge, ","), strconv.Itoa(u.VFs)})
	}
	return t
}

// roughly is an amount of memory that is rarely round, to a tenth of a GiB.
func roughly(b int64) string {
	if b == 0 {
		return "0"
	}
	return strconv.FormatFloat(float64(b)/(1<<30), 'f', 1, 64) + "GiB"
}
