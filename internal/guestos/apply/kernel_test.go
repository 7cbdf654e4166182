package apply

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing/fstest"

	"github.com/verbena-cloud/verbena/internal/guestos"
	"github.com/verbena-cloud/verbena/internal/sysfs"
)

// kernel is a guest in memory that reacts as Linux with mlx5 does: interrupts come and go with the queues.
type kernel struct {
	files  map[string]string // below the root: sys/…, proc/…
	links  map[string]string
	queues int
	max    int
	writes int
	// fail says what happens at a write: nothing, an error instead of it, or an error after it.
	fail func(n int) (instead, after error)
}

const vf = "sys/bus/pci/devices/0000:31:00.0"

func newKernel() *kernel {
	k := &kernel{files: map[string]string{}, links: map[string]string{}, queues: 2, max: 8}
	for name, v := range map[string]string{
		"proc/sys/kernel/osrelease": "6.12.0", "proc/sys/kernel/random/boot_id": "boot-1",
		"proc/sys/net/core/busy_poll": "0", "proc/sys/net/core/busy_read": "0",
		"sys/devices/system/cpu/online": "0-7", "sys/devices/system/node/node0/x": "", "sys/devices/system/node/node1/x": "",
		"sys/module/ib_core/x": "", "sys/module/mlx5_ib/x": "",
		vf + "/class": "0x020000", vf + "/numa_node": "1", vf + "/local_cpulist": "4-7", vf + "/net/rdma0/x": "", vf + "/config": "",
		"sys/bus/pci/devices/0000:00:01.0/class":              "0x030000",
		"sys/bus/pci/devices/0000:00:02.0/class":              "0x020000",
		"sys/bus/pci/devices/0000:00:02.0/numa_node":          "-1",
		"sys/bus/pci/devices/0000:00:02.0/virtio3/net/eth0/x": "",
		"sys/class/net/rdma0/address":                         "02:5a:10:00:00:07", "sys/class/net/rdma0/mtu": "4200",
		"sys/class/net/eth0/address": "02:5a:10:00:00:08", "sys/class/net/eth0/mtu": "1500",
	} {
		k.files[name] = v
	}
	k.links[vf+"/driver"] = "mlx5_core"
	k.links["sys/bus/pci/devices/0000:00:02.0/driver"] = "virtio-pci"
	ib := "sys/class/infiniband/mlx5_0"
	k.links[ib+"/device"] = "0000:31:00.0"
	for name, v := range map[string]string{
		"node_guid": "025a:10ff:fe00:0007", "fw_ver": "22.31.1014", "board_id": "MT_0000000359",
		"ports/1/state": "4: ACTIVE", "ports/1/link_layer": "Ethernet",
		"ports/1/gids/0": "fe80:0000:0000:0000:005a:10ff:fe00:0007", "ports/1/gid_attrs/types/0": "RoCE v2", "ports/1/gid_attrs/ndevs/0": "rdma0",
		"ports/1/gids/1": "0000:0000:0000:0000:0000:ffff:0a14:0005", "ports/1/gid_attrs/types/1": "RoCE v2", "ports/1/gid_attrs/ndevs/1": "rdma0",
		"ports/1/gids/2":               "0000:0000:0000:0000:0000:0000:0000:0000",
		"ports/1/hw_counters/lifespan": "10", "ports/1/hw_counters/out_of_sequence": "3", "ports/1/hw_counters/RNR sent": "9", "ports/1/hw_counters/odd": "N/A (no PMA)",
	} {
		k.files[ib+"/"+name] = v
	}
	k.interrupts()
	return k
}

// interrupts gives the VF one interrupt of its own and one per queue.
func (k *kernel) interrupts() {
	for n := 40; n < 60; n++ {
		msi, dir := fmt.Sprintf("%s/msi_irqs/%d", vf, n), fmt.Sprintf("proc/irq/%d/smp_affinity_list", n)
		_, had := k.files[msi]
		switch {
		case n > 40+k.queues:
			delete(k.files, msi)
			delete(k.files, dir)
		case !had:
			k.files[msi], k.files[dir] = "msix", "0-7"
		}
	}
}

// change runs one write, as fail lets it.
func (k *kernel) change(do func() error) error {
	k.writes++
	var after error
	if k.fail != nil {
		var instead error
		if instead, after = k.fail(k.writes); instead != nil {
			return instead
		}
	}
	if err := do(); err != nil {
		return err
	}
	return after
}

// settings are what may be set, for comparing.
func (k *kernel) settings() map[string]string {
	out := map[string]string{"queues": strconv.Itoa(k.queues)}
	for name, v := range k.files {
		if strings.HasPrefix(name, "proc/irq/") || strings.HasPrefix(name, "proc/sys/net/") {
			out[name] = v
		}
		if m, ok := strings.CutPrefix(name, "sys/module/"); ok {
			out["module "+path.Dir(m)] = "loaded"
		}
	}
	return out
}

// tree is the part of the kernel below a directory.
type tree struct {
	*kernel
	at string
}

var _ sysfs.Tree = tree{}

func absent(op, name string) error { return &fs.PathError{Op: op, Path: name, Err: syscall.ENOENT} }

func (t tree) Read(_ context.Context, name string) (string, error) {
	v, ok := t.files[t.at+"/"+name]
	if !ok {
		return "", absent("read", name)
	}
	return v, nil
}

func (t tree) Write(_ context.Context, name, value string) error {
	return t.change(func() error {
		if _, ok := t.files[t.at+"/"+name]; !ok {
			return absent("write", name)
		}
		t.files[t.at+"/"+name] = value
		return nil
	})
}

func (t tree) List(_ context.Context, name string) ([]string, error) {
	names := map[string]bool{}
	for _, all := range []map[string]string{t.files, t.links} {
		for f := range all {
			if below, ok := strings.CutPrefix(f, t.at+"/"+name+"/"); ok {
				first, _, _ := strings.Cut(below, "/")
				names[first] = true
			}
		}
	}
	if len(names) == 0 {
		return nil, absent("list", name)
	}
	return slices.Sorted(maps.Keys(names)), nil
}

func (t tree) Link(_ context.Context, name string) (string, error) {
	v, ok := t.links[t.at+"/"+name]
	if !ok {
		return "", absent("readlink", name)
	}
	return v, nil
}

// Channels and SetChannels make the kernel a Links.
func (k *kernel) Channels(_ context.Context, link string) (guestos.Channels, error) {
	if link != "rdma0" {
		return guestos.Channels{}, syscall.EOPNOTSUPP
	}
	return guestos.Channels{Combined: k.queues, Max: k.max}, nil
}

func (k *kernel) SetChannels(_ context.Context, _ string, n int) error {
	return k.change(func() error {
		if n < 1 || n > k.max {
			return syscall.EINVAL
		}
		k.queues = n
		k.interrupts()
		return nil
	})
}

func (k *kernel) modprobe(_ context.Context, args ...string) error {
	return k.change(func() error {
		if args[0] == "-r" {
			delete(k.files, "sys/module/"+args[1]+"/x")
			return nil
		}
		k.files["sys/module/"+args[0]+"/x"] = ""
		return nil
	})
}

func (k *kernel) machine() *Machine {
	return &Machine{
		Sys: tree{k, "sys"}, Proc: tree{k, "proc"}, Links: k, Modprobe: k.modprobe, AsRoot: true,
		Root:       fstest.MapFS{"proc/1/comm": {Data: []byte("init\n")}, "lib/modules/6.12.0/modules.builtin": {Data: []byte("kernel/drivers/x/rdma-ucm.ko\n")}},
		QueuePairs: func(context.Context) (map[string]int64, error) { return map[string]int64{"mlx5_0": 5}, nil },
	}
}

// memory is a journal whose writes can fail as the kernel's do.
type memory struct {
	k    *kernel
	text []byte
}

func (m *memory) Load() ([]byte, error) {
	if m.text == nil {
		return nil, fs.ErrNotExist
	}
	return m.text, nil
}

func (m *memory) Save(text []byte) error {
	return m.k.change(func() error {
		m.text = text
		return nil
	})
}
