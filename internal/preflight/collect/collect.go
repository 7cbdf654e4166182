// Package collect sees what preflight judges: /sys, /proc, dcbnl, devlink, the RDMA core and the packet filter of the
// host it runs on.
// What can't be read costs that fact alone and is told in Facts.Unseen.
package collect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/verbena-cloud/verbena/internal/dcb"
	"github.com/verbena-cloud/verbena/internal/devlink"
	"github.com/verbena-cloud/verbena/internal/pci"
	"github.com/verbena-cloud/verbena/internal/preflight"
	"github.com/verbena-cloud/verbena/internal/rdma"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/sysfs"
)

// Host is where facts come from.
type Host struct {
	Sys  sysfs.Tree
	Root fs.FS // the host's root; of it /proc, /dev and /lib/modules are read
	DCB  dcb.Links
	// Devlink and RDMA may be nil: what they alone tell is then not told.
	Devlink devlink.Devices
	RDMA    rdma.System
	// Addresses are those of a netdev and of the VLANs and bridges on it.
	Addresses func(link string) ([]netip.Addr, error)
	// Run runs a program and returns what it prints, its complaints last.
	Run func(ctx context.Context, program string, args ...string) (string, error)
	// Memlock is this process's limit.
	Memlock  preflight.Limit
	Priority int // of RoCE, for what is told by priority
	// PriorityOf is the priority on one port, where ports differ; nil = Priority.
	PriorityOf func(roce.PCIAddr) int
	AsRoot     bool
}

// fileMax bounds what is read of one file in /proc or /lib/modules.
const fileMax = 4 << 20

// collector is one run.
type collector struct {
	Host
	ctx   context.Context //nolint:containedctx // lives for one run, to keep the calls readable
	facts preflight.Facts
	route []string
}

// Facts looks at everything. It never fails: what could not be seen is in Unseen.
func (h Host) Facts(ctx context.Context) preflight.Facts {
	c := &collector{Host: h, ctx: ctx, facts: preflight.Facts{Root: h.AsRoot, Modules: map[string]bool{}, Nodes: map[string]bool{}}}
	c.kernel()
	c.modules()
	c.sharing()
	c.nodes()
	c.hugepages()
	c.programs()
	c.firewall()
	c.route = c.defaultRoute()
	c.devices()
	c.rdma()
	c.facts.Memlock = h.Memlock
	return c.facts
}

// unseen notes that something could not be read; that it is not there is an answer.
func (c *collector) unseen(what string, err error) {
	if err == nil || sysfs.Absent(err) || errors.Is(err, fs.ErrNotExist) {
		return
	}
	line := fmt.Sprintf("%s: %v", what, err)
	if !slices.Contains(c.facts.Unseen, line) && len(c.facts.Unseen) < 64 {
		c.facts.Unseen = append(c.facts.Unseen, line)
	}
}

// file reads a text that may be longer than a page.
func (c *collector) file(name string) string {
	f, err := c.Root.Open(name)
	if err != nil {
		c.unseen("/"+name, err)
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, fileMax+1))
	if err == nil && len(b) > fileMax {
		err = fmt.Errorf("longer than %d bytes: %w", fileMax, syscall.EFBIG)
	}
	if err != nil {
		c.unseen("/"+name, err)
		return ""
	}
	return string(b)
}

func (c *collector) exists(name string) bool {
	_, err := fs.Stat(c.Root, name)
	c.unseen("/"+name, err)
	return err == nil
}

// text reads an attribute, "" where it is missing or does not answer.
func (c *collector) text(path string) string {
	v, err := c.Sys.Read(c.ctx, path)
	// EINVAL is how drivers say that there is no value now: speed and carrier of a link that is down.
	if err != nil && !errors.Is(err, syscall.EINVAL) {
		c.unseen(path, err)
	}
	return v
}

func (c *collector) number(path string, otherwise int) int {
	n, err := strconv.Atoi(c.text(path))
	if err != nil {
		return otherwise
	}
	return n
}

func (c *collector) list(path string) []string {
	names, err := c.Sys.List(c.ctx, path)
	c.unseen(path, err)
	slices.SortFunc(names, sysfs.Numeric)
	return names
}

func (c *collector) link(path string) string {
	target, err := c.Sys.Link(c.ctx, path)
	c.unseen(path, err)
	return target
}

func (c *collector) kernel() {
	f := &c.facts
	f.Kernel = strings.TrimSpace(c.file("proc/sys/kernel/osrelease"))
	f.CommandLine = strings.Fields(c.file("proc/cmdline"))
	f.IOMMUGroups = len(c.list("kernel/iommu_groups"))
	if _, after, ok := strings.Cut(c.text("kernel/security/lockdown"), "["); ok {
		f.Lockdown, _, _ = strings.Cut(after, "]")
	}
	switch c.text("module/ib_core/parameters/netns_mode") {
	case "Y":
		f.NetnsShared = new(true)
	case "N":
		f.NetnsShared = new(false)
	}
}

// sharing asks the kernel how network namespaces share RDMA devices; its module's parameter is what it began with.
// Asking opens a socket, which may load ib_core, so nobody is asked before it is there.
func (c *collector) sharing() {
	if c.RDMA == nil || !c.facts.Modules["ib_core"] {
		return
	}
	mode, err := c.RDMA.Sharing(c.ctx)
	switch {
	case err == nil:
		c.facts.NetnsShared = new(mode == rdma.Shared)
	case !rdma.Absent(err):
		c.unseen("RDMA namespace mode", err)
	}
}

// modules are those that are loaded (/proc/modules, live only), and those that the kernel has built in.
func (c *collector) modules() {
	for line := range strings.Lines(c.file("proc/modules")) {
		if w := strings.Fields(line); len(w) >= 5 && w[4] == "Live" {
			c.facts.Modules[underscored(w[0])] = true
		}
	}
	if c.facts.Kernel == "" || strings.ContainsAny(c.facts.Kernel, "/\\") {
		return
	}
	for line := range strings.Lines(c.file("lib/modules/" + c.facts.Kernel + "/modules.builtin")) {
		name := line[strings.LastIndexByte(line, '/')+1:]
		name, _, _ = strings.Cut(strings.TrimSpace(name), ".ko")
		c.facts.Modules[underscored(name)] = true
	}
}

func underscored(name string) string { return strings.ReplaceAll(name, "-", "_") }

func (c *collector) nodes() {
	for _, n := range []string{"/dev/vfio/vfio", "/dev/infiniband/rdma_cm"} {
		c.facts.Nodes[n] = c.exists(n[1:])
	}
	for _, u := range c.list("class/infiniband_verbs") {
		if strings.HasPrefix(u, "uverbs") {
			c.facts.Nodes["/dev/infiniband/"+u] = c.exists("dev/infiniband/" + u)
		}
	}
}

func (c *collector) hugepages() {
	for _, node := range c.list("devices/system/node") {
		n, err := strconv.Atoi(strings.TrimPrefix(node, "node"))
		if err != nil || !strings.HasPrefix(node, "node") {
			continue
		}
		dir := "devices/system/node/" + node + "/hugepages"
		for _, size := range c.list(dir) {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(size, "hugepages-"), "kB"), 10, 54)
			if err != nil {
				continue
			}
			at := dir + "/" + size
			c.facts.Hugepages = append(c.facts.Hugepages, preflight.Hugepages{Node: n, Size: kb << 10, Total: int64(c.number(at+"/nr_hugepages", 0)), Free: int64(c.number(at+"/free_hugepages", 0))})
		}
	}
}

// programs looks for those that speak LLDP and set DCB.
func (c *collector) programs() {
	entries, err := fs.ReadDir(c.Root, "proc")
	c.unseen("/proc", err)
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		b, err := fs.ReadFile(c.Root, "proc/"+e.Name()+"/comm")
		if err != nil { // it ended meanwhile
			continue
		}
		if name := strings.TrimSpace(string(b)); (name == "lldpad" || name == "openlldpd") && !slices.Contains(c.facts.LLDPAgents, name) {
			c.facts.LLDPAgents = append(c.facts.LLDPAgents, name)
		}
	}
}

// defaultRoute are the netdevs of IPv4 default routes (/proc/net/route: Iface Destination … Mask).
func (c *collector) defaultRoute() []string {
	var out []string
	for line := range strings.Lines(c.file("proc/net/route")) {
		if w := strings.Fields(line); len(w) >= 8 && w[1] == "00000000" && w[7] == "00000000" {
			out = append(out, w[0])
		}
	}
	return out
}

// firewall asks nft and the old iptables for rules that drop RoCE v2. nft lists what iptables-nft made too.
func (c *collector) firewall() {
	if c.Run == nil {
		return
	}
	asked := false
	for _, tool := range [][]string{{"nft", "list", "ruleset"}, {"iptables-legacy-save"}, {"ip6tables-legacy-save"}} {
		text, err := c.Run(c.ctx, tool[0], tool[1:]...)
		switch {
		case err == nil:
			asked = true
			c.facts.Firewall.Drops = append(c.facts.Firewall.Drops, drops(text)...)
		case tool[0] == "nft" && !errors.Is(err, fs.ErrNotExist):
			c.unseen("nft list ruleset", err)
			return
		}
	}
	// Without any of the programs the kernel may still hold rules; only their modules' absence says that it does not.
	c.facts.Firewall.Known = asked || !c.facts.Modules["nf_tables"] && !c.facts.Modules["ip_tables"]
}

// drops finds the rules that name UDP 4791 and end it.
func drops(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		words := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' || r == '\n' || r == ',' || r == '{' || r == '}' })
		named := slices.Contains(words, "4791")
		for _, w := range words {
			if lo, hi, ok := strings.Cut(w, "-"); ok {
				a, errA := strconv.Atoi(lo)
				b, errB := strconv.Atoi(hi)
				named = named || errA == nil && errB == nil && a <= 4791 && 4791 <= b
			}
		}
		udp := slices.Contains(words, "udp") || !slices.Contains(words, "tcp")
		ends := slices.ContainsFunc(words, func(w string) bool {
			w = strings.ToLower(w)
			return w == "drop" || w == "reject"
		})
		if named && udp && ends {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

// gts reads "8.0 GT/s PCIe", 0 for Unknown.
func gts(text string) float64 {
	v, err := pci.ParseSpeed(text)
	if err != nil {
		return 0
	}
	return float64(v) / 1000
}
