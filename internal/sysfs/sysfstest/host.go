package sysfstest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/verbena-cloud/verbena/internal/roce"
)

// boot builds the whole tree anew.
func (k *Kernel) boot() error {
	if k.sys != nil {
		k.sys.bury()
	}
	k.boots++
	k.sys = newDir()
	k.cards, k.functions, k.drivers = nil, map[roce.PCIAddr]*function{}, map[string]*driver{}
	k.modules, k.groups, k.rdma, k.ifindex = map[string]bool{}, map[int]*group{}, map[string]bool{}, 1
	k.netdevs = map[string]*netdev{}
	for _, d := range []string{"bus/pci/devices", "bus/pci/drivers", "class/net", "kernel/iommu_groups", "module", "devices/virtual/net/lo"} {
		k.sys.dir(d)
	}
	k.sys.dir("bus/pci").file("drivers_probe", nil, k.probeWrite)
	k.sys.dir("kernel/security").text("lockdown", "[none] integrity confidentiality")
	k.loopback()
	k.cells()
	for _, m := range k.cfg.Modules {
		k.load(m)
	}
	for i := range k.cfg.Cards {
		if err := k.addCard(&k.cfg.Cards[i]); err != nil {
			return err
		}
	}
	return nil
}

func (k *Kernel) loopback() {
	lo := k.sys.dir("devices/virtual/net/lo")
	for _, a := range [][2]string{{"address", "00:00:00:00:00:00"}, {"addr_assign_type", "0"}, {"mtu", "65536"}, {"type", "772"}, {"ifindex", "1"},
		{"operstate", "unknown"}, {"carrier", "1"}, {"flags", "0x9"}, {"dev_port", "0"}} {
		lo.text(a[0], a[1])
	}
	lo.fails("speed", syscall.EINVAL)
	k.sys.dir("class/net").link("lo", lo, 0)
}

// cells makes /sys/devices/system/{node,cpu}.
func (k *Kernel) cells() {
	top := k.sys.dir("devices/system/node")
	var all []string
	for i, c := range k.cfg.Cells {
		d := top.dir(fmt.Sprintf("node%d", i))
		d.text("cpulist", c.CPUs)
		used := c.Huge2M<<11 + c.Huge1G<<20 // KiB
		d.text("meminfo", fmt.Sprintf("Node %d MemTotal:       %d kB\nNode %d MemFree:        %d kB\nNode %d MemUsed:        %d kB\nNode %d HugePages_Total: %d\nNode %d HugePages_Free:  %d\n",
			i, c.Memory>>10, i, (c.Memory>>10-used)*9/10, i, used, i, c.Huge2M, i, c.Huge2M))
		for _, h := range []struct {
			dir string
			n   int64
		}{{"hugepages-2048kB", c.Huge2M}, {"hugepages-1048576kB", c.Huge1G}} {
			p := d.dir("hugepages/" + h.dir)
			p.text("nr_hugepages", strconv.FormatInt(h.n, 10))
			p.text("free_hugepages", strconv.FormatInt(h.n, 10))
			p.text("surplus_hugepages", "0")
		}
		dist := make([]string, len(k.cfg.Cells))
		for j := range dist {
			dist[j] = "21"
		}
		dist[i] = "10"
		d.text("distance", strings.Join(dist, " "))
		all = append(all, c.CPUs)
	}
	top.text("online", span(len(k.cfg.Cells)))
	k.sys.dir("devices/system/cpu").text("online", strings.Join(all, ","))
}

func span(n int) string {
	if n == 1 {
		return "0"
	}
	return fmt.Sprintf("0-%d", n-1)
}

// load makes a module be there, with what it brings along. Names are equal in - and _.
func (k *Kernel) load(module string) {
	name := strings.ReplaceAll(module, "-", "_")
	if k.modules[name] {
		return
	}
	k.modules[name] = true
	d := k.sys.dir("module/" + name)
	d.text("initstate", "live")
	d.text("refcnt", "0")
	switch name {
	case "vfio_pci":
		k.load("vfio_iommu_type1")
		k.addDriver("vfio-pci", name)
		k.sys.dir("class/vfio")
		k.sys.dir("devices/virtual/vfio")
	case "mlx5_ib", "bnxt_re", "irdma":
		for _, m := range []string{"ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm"} {
			k.load(m)
		}
		k.sys.dir("class/infiniband")
		k.sys.dir("class/infiniband_verbs").text("abi_version", "6")
	}
}

// Modprobe loads a module, as modprobe(8) does; one that this kernel does not have is an error.
func (k *Kernel) Modprobe(ctx context.Context, module string) error {
	name := strings.ReplaceAll(module, "-", "_")
	if _, err := profileOf(name); err != nil && !slices.Contains([]string{"vfio_pci", "vfio_iommu_type1", "vfio", "iavf", "igbvf", "mlx5_ib", "bnxt_re", "irdma", "ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm"}, name) {
		return fmt.Errorf("modprobe: FATAL: Module %s not found in directory /lib/modules/%s", module, k.cfg.Release)
	}
	if k.Loaded(module) {
		return k.Alive()
	}
	return k.change(ctx, "load module", "module/"+name, "modprobe "+module, func() error {
		if err := k.meet("module/" + name); err != nil {
			return err
		}
		k.load(name)
		return nil
	})
}

// Loaded reports whether a module is loaded.
func (k *Kernel) Loaded(module string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.modules[strings.ReplaceAll(module, "-", "_")]
}

// Proc reads a file below /proc: sys/kernel/random/boot_id, sys/kernel/osrelease, cmdline, modules,
// net/route, net/ipv6_route, uptime is not among them.
func (k *Kernel) Proc(name string) ([]byte, error) {
	if err := k.Alive(); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls++
	k.reads++
	switch name {
	case "sys/kernel/random/boot_id":
		return fmt.Appendf(nil, "5174a7ed-0000-4000-8000-%012x\n", k.boots), nil
	case "sys/kernel/osrelease":
		return []byte(k.cfg.Release + "\n"), nil
	case "cmdline":
		if k.cfg.NoIOMMU {
			return []byte("BOOT_IMAGE=/vmlinuz root=/dev/vda1 ro\n"), nil
		}
		return []byte("BOOT_IMAGE=/vmlinuz root=/dev/vda1 ro intel_iommu=on iommu=pt\n"), nil
	case "modules":
		return k.procModules(), nil
	case "net/route":
		out := "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
		if k.cfg.Route != "" {
			out += k.cfg.Route + "\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
		}
		return []byte(out), nil
	case "net/ipv6_route":
		return []byte("00000000000000000000000000000001 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000002 00000000 80200001       lo\n"), nil
	}
	return nil, pathError("open", "/proc/"+name, syscall.ENOENT)
}

func (k *Kernel) procModules() []byte {
	names := make([]string, 0, len(k.modules))
	for m := range k.modules {
		names = append(names, m)
	}
	slices.Sort(names)
	var out []byte
	for _, m := range names {
		out = fmt.Appendf(out, "%s 16384 0 - Live 0x0000000000000000\n", m)
	}
	return out
}

// BootID is the id of this boot.
func (k *Kernel) BootID() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return fmt.Sprintf("5174a7ed-0000-4000-8000-%012x", k.boots)
}
