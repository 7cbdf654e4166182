package apply

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/verbena-cloud/verbena/internal/guestos"
	"github.com/verbena-cloud/verbena/internal/preflight"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/sysfs"
)

const pciDevices = "bus/pci/devices"

// fileMax bounds what is read of one file in /lib/modules.
const fileMax = 4 << 20

// look is one observation.
type look struct {
	*Machine
	ctx     context.Context //nolint:containedctx // lives for one observation, to keep the calls readable
	facts   guestos.Facts
	misfits map[string]string // what libibverbs can't use, by RDMA device
}

// Facts looks at everything. It never fails: what could not be seen is in Unseen.
func (m *Machine) Facts(ctx context.Context) guestos.Facts {
	l := &look{Machine: m, ctx: ctx, facts: guestos.Facts{Root: m.AsRoot, Sysctls: map[string]int{}}}
	l.facts.Kernel = l.proc("sys/kernel/osrelease")
	l.facts.Boot = l.proc("sys/kernel/random/boot_id")
	l.facts.CPUs = l.cpus(l.sys("devices/system/cpu/online"), "online CPUs")
	for _, n := range l.list("devices/system/node") {
		if _, err := strconv.Atoi(strings.TrimPrefix(n, "node")); err == nil {
			l.facts.Nodes++
		}
	}
	l.facts.Modules = l.modules()
	for _, name := range []string{guestos.BusyPoll, guestos.BusyRead} {
		if v, err := strconv.Atoi(l.proc(guestos.SysctlPath(name))); err == nil {
			l.facts.Sysctls[name] = v
		}
	}
	l.facts.Balancer = l.runs("irqbalance")
	l.nics()
	return l.facts
}

// unseen notes that something could not be read; that it is not there is an answer.
func (l *look) unseen(what string, err error) {
	if err == nil || sysfs.Absent(err) {
		return
	}
	line := fmt.Sprintf("%s: %v", what, err)
	if !slices.Contains(l.facts.Unseen, line) && len(l.facts.Unseen) < 64 {
		l.facts.Unseen = append(l.facts.Unseen, line)
	}
}

func (l *look) sys(name string) string { return l.text(l.Sys, "/sys/", name) }

func (l *look) proc(name string) string { return l.text(l.Proc, "/proc/", name) }

func (l *look) text(t sysfs.Tree, at, name string) string {
	v, err := t.Read(l.ctx, name)
	l.unseen(at+name, err)
	return v
}

func (l *look) number(name string, otherwise int) int {
	n, err := strconv.Atoi(l.sys(name))
	if err != nil {
		return otherwise
	}
	return n
}

func (l *look) list(name string) []string {
	names, err := l.Sys.List(l.ctx, name)
	l.unseen("/sys/"+name, err)
	slices.SortFunc(names, sysfs.Numeric)
	return names
}

func (l *look) link(name string) string {
	to, err := l.Sys.Link(l.ctx, name)
	l.unseen("/sys/"+name, err)
	return to
}

func (l *look) cpus(text, what string) []int {
	list, err := guestos.ParseCPUs(text)
	l.unseen(what, err)
	return list
}

// modules are those that /sys/module shows, and those built in that have nothing to show there.
func (l *look) modules() map[string]bool {
	out := map[string]bool{}
	for _, n := range l.list("module") {
		out[n] = true
	}
	if l.facts.Kernel == "" || strings.ContainsAny(l.facts.Kernel, "/\\") {
		return out
	}
	for line := range strings.Lines(l.file("lib/modules/" + l.facts.Kernel + "/modules.builtin")) {
		name, _, _ := strings.Cut(path.Base(strings.TrimSpace(line)), ".ko")
		out[strings.ReplaceAll(name, "-", "_")] = true
	}
	return out
}

func (l *look) file(name string) string {
	f, err := l.Root.Open(name)
	if err != nil {
		l.unseen("/"+name, err)
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, fileMax))
	l.unseen("/"+name, err)
	return string(b)
}

// runs reports whether a program of that name runs.
func (l *look) runs(program string) bool {
	entries, err := fs.ReadDir(l.Root, "proc")
	l.unseen("/proc", err)
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			return false
		}
		b, err := fs.ReadFile(l.Root, "proc/"+e.Name()+"/comm") // it may have ended meanwhile
		return err == nil && strings.TrimSpace(string(b)) == program
	})
}

// nics finds the network functions of the PCI bus.
func (l *look) nics() {
	var qps map[string]int64
	if l.QueuePairs != nil && l.facts.Modules["ib_core"] {
		var err error
		qps, err = l.QueuePairs(l.ctx)
		l.unseen("queue pairs", err)
	}
	if l.Verbs != nil && len(l.list("class/infiniband")) > 0 {
		text, err := l.Verbs(l.ctx)
		l.unseen("ibv_devices", err)
		l.misfits = preflight.Misfits(text)
	}
	for _, name := range l.list(pciDevices) {
		dir := pciDevices + "/" + name
		if strings.HasPrefix(l.sys(dir+"/class"), "0x02") {
			l.facts.NICs = append(l.facts.NICs, l.nic(name, dir, qps))
		}
	}
}

func (l *look) nic(name, dir string, qps map[string]int64) guestos.NIC {
	n := guestos.NIC{PCI: name, Driver: l.link(dir + "/driver"), Version: l.sys(dir + "/driver/module/version"), NUMA: l.number(dir+"/numa_node", -1)}
	n.CPUs = l.facts.CPUs
	if n.NUMA >= 0 {
		near := l.cpus(l.sys(dir+"/local_cpulist"), "/sys/"+dir+"/local_cpulist")
		near = slices.DeleteFunc(near, func(c int) bool { return !slices.Contains(l.facts.CPUs, c) })
		if len(near) > 0 { // a node of memory alone has none
			n.CPUs = near
		}
	}
	l.netdev(&n, dir)
	for _, d := range l.list("class/infiniband") {
		at := "class/infiniband/" + d
		// The software devices have no PCI function; rxe names its netdev instead.
		if l.link(at+"/device") != name && (n.Netdev == "" || l.sys(at+"/parent") != n.Netdev) {
			continue
		}
		if n.Firmware == "" {
			n.Firmware, n.Board = l.sys(at+"/fw_ver"), l.sys(at+"/board_id")
		}
		n.RDMA = append(n.RDMA, l.device(d, at, qps))
	}
	return n
}

// netdev reads the function's first netdev, which a virtio NIC has one level below, and the interrupts.
func (l *look) netdev(n *guestos.NIC, dir string) {
	links := l.list(dir + "/net")
	for _, sub := range l.list(dir) {
		if strings.HasPrefix(sub, "virtio") {
			links = append(links, l.list(dir+"/"+sub+"/net")...)
		}
	}
	if len(links) == 0 {
		return
	}
	n.Netdev = links[0]
	n.MAC, n.MTU = l.sys("class/net/"+n.Netdev+"/address"), l.number("class/net/"+n.Netdev+"/mtu", 0)
	if l.Links != nil {
		ch, err := l.Links.Channels(l.ctx, n.Netdev)
		if l.unseen("queues of "+n.Netdev, err); err == nil {
			n.Channels = &ch
		}
	}
	for _, number := range l.list(dir + "/msi_irqs") {
		q, err := strconv.Atoi(number)
		if err != nil {
			continue
		}
		text, err := l.Proc.Read(l.ctx, guestos.IRQPath(number))
		if err != nil { // a vector that nobody has asked for yet has no directory
			l.unseen("/proc/"+guestos.IRQPath(number), err)
			continue
		}
		if list := l.cpus(text, "/proc/"+guestos.IRQPath(number)); len(list) > 0 {
			n.IRQs = append(n.IRQs, guestos.IRQ{Number: q, CPUs: list})
		}
	}
}

func (l *look) device(name, dir string, qps map[string]int64) guestos.Device {
	d := guestos.Device{Name: name, Provider: l.misfits[name]}
	if guid, err := roce.ParseGUID(l.sys(dir + "/node_guid")); err == nil {
		d.NodeGUID = guid
	} else {
		l.unseen("/sys/"+dir+"/node_guid", errors.New("no GUID: "+err.Error()))
	}
	if count, ok := qps[name]; ok {
		d.QPCount = &count
	}
	for _, p := range l.list(dir + "/ports") {
		if number, err := strconv.Atoi(p); err == nil {
			d.Ports = append(d.Ports, l.port(dir+"/ports/"+p, number))
		}
	}
	return d
}

func (l *look) port(dir string, number int) guestos.Port {
	_, state, _ := strings.Cut(l.sys(dir+"/state"), ": ") // "4: ACTIVE"
	p := guestos.Port{Number: number, State: state, LinkLayer: l.sys(dir + "/link_layer"), Counters: map[string]uint64{}}
	for _, i := range l.list(dir + "/gids") {
		index, err := strconv.Atoi(i)
		addr, ok := parseGID(l.sys(dir + "/gids/" + i))
		if err != nil || !ok {
			continue
		}
		p.GIDs = append(p.GIDs, guestos.GID{Index: index, Addr: addr, V2: l.sys(dir+"/gid_attrs/types/"+i) == "RoCE v2", Link: l.sys(dir + "/gid_attrs/ndevs/" + i)})
	}
	for _, name := range l.list(dir + "/hw_counters") {
		if name == "lifespan" { // how long the kernel keeps the others, in ms
			continue
		}
		text, err := l.Sys.Read(l.ctx, dir+"/hw_counters/"+name)
		v, bad := strconv.ParseUint(text, 10, 64)
		if err != nil || bad != nil {
			p.Unread++
			if errors.Is(err, syscall.EACCES) {
				l.unseen("/sys/"+dir+"/hw_counters", syscall.EACCES)
			}
			continue
		}
		p.Counters[name] = v
	}
	return p
}

// parseGID reads an entry of a GID table; ok is false for an empty one.
func parseGID(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	if err != nil || strings.Contains(text, "%") || !a.Is6() || a == netip.IPv6Unspecified() {
		return netip.Addr{}, false
	}
	return a.Unmap(), true
}
