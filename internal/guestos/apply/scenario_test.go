package apply

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-cloud/verbena/internal/guestos"
	"github.com/verbena-cloud/verbena/internal/preflight"
	"github.com/verbena-cloud/verbena/internal/sysfs"
)

const port = "sys/class/infiniband/mlx5_0/ports/1/"

// TestT26_ProviderInTheGuest: programs find no device where the provider of the image does not go with its kernel.
func TestT26_ProviderInTheGuest(t *testing.T) {
	m := newKernel().machine()
	m.Verbs = func(context.Context) (string, error) {
		return "libibverbs: Warning: Driver mlx5 does not support the kernel ABI of 2 (supports 1 to 1) for device /sys/class/infiniband/mlx5_0\n", nil
	}
	list := guestos.Check(m.Facts(t.Context()), guestos.Default())
	if !slices.ContainsFunc(list, func(f preflight.Finding) bool {
		return f.Check == "guest.provider" && f.Level == preflight.Failed && f.Object == "mlx5_0" && strings.Contains(f.Seen, "kernel's driver has 2") && len(f.Fix) == 1
	}) {
		t.Errorf("%+v", list)
	}
	m.Verbs = func(context.Context) (string, error) { return "", errors.New("exit status 1") }
	if f := m.Facts(t.Context()); len(f.Unseen) != 1 || f.NICs[1].RDMA[0].Provider != "" {
		t.Errorf("%+v", f)
	}
}

// odd is a tree of which some files answer with an errno.
type odd struct {
	sysfs.Tree
	files map[string]syscall.Errno
}

func (o odd) Read(ctx context.Context, name string) (string, error) {
	if errno, ok := o.files[name]; ok {
		return "", &fs.PathError{Op: "read", Path: name, Err: errno}
	}
	return o.Tree.Read(ctx, name)
}

// TestT37_CountersThatAreNone: a counter that holds words, or can't be read, is counted as unread; the others and the
// port stay.
func TestT37_CountersThatAreNone(t *testing.T) {
	k := newKernel() // it has one of words already
	k.files[port+"hw_counters/VL15_dropped"], k.files[port+"hw_counters/minus"], k.files[port+"hw_counters/empty"] = "0", "-1", ""
	m := k.machine()
	m.Sys = odd{m.Sys, map[string]syscall.Errno{strings.TrimPrefix(port, "sys/") + "hw_counters/VL15_dropped": syscall.EINVAL}}
	f := m.Facts(t.Context())
	p := f.NICs[1].RDMA[0].Ports[0]
	if p.Unread != 4 || len(p.Counters) != 2 || p.Counters["out_of_sequence"] != 3 || p.State != "ACTIVE" || len(f.Unseen) != 0 {
		t.Errorf("%+v, unseen %q", p, f.Unseen)
	}
	if r := guestos.Report(f, "v1").Devices[0].Ports[0]; r.Unread != 4 || len(r.Counters) != 2 {
		t.Errorf("%+v", r)
	}
	// irdma has no such directory, and a guest without RDMA no class.
	for name := range k.files {
		if strings.HasPrefix(name, port+"hw_counters/") {
			delete(k.files, name)
		}
	}
	if f := m.Facts(t.Context()); len(f.Unseen) != 0 || f.NICs[1].RDMA[0].Ports[0].Unread != 0 {
		t.Errorf("%+v", f)
	}
	for name := range k.files {
		if strings.HasPrefix(name, "sys/class/infiniband/") {
			delete(k.files, name)
		}
	}
	delete(k.links, "sys/class/infiniband/mlx5_0/device")
	if f := m.Facts(t.Context()); len(f.Unseen) != 0 || len(f.NICs) != 2 {
		t.Errorf("%+v", f)
	}
}

// TestT38_IndexAfterAFlap: the link flaps, the entry of the IPv4 address comes back at another index, and that one is
// published.
func TestT38_IndexAfterAFlap(t *testing.T) {
	k := newKernel()
	index := func() int { return guestos.Report(k.machine().Facts(t.Context()), "v1").Devices[0].Ports[0].GIDIndex }
	if i := index(); i != 1 {
		t.Fatalf("at index %d", i)
	}
	for _, name := range []string{"gids/", "gid_attrs/types/", "gid_attrs/ndevs/"} {
		k.files[port+name+"5"] = k.files[port+name+"1"]
		delete(k.files, port+name+"1")
	}
	k.files[port+"gids/1"] = "0000:0000:0000:0000:0000:0000:0000:0000"
	if i := index(); i != 5 {
		t.Errorf("at index %d after the flap", i)
	}
	delete(k.files, port+"gids/5")
	if i := index(); i != -1 {
		t.Errorf("at index %d while there is none", i)
	}
}
