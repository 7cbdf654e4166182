package agent

import (
	"context"
	"slices"
	"strings"

	"github.com/verbena-cloud/verbena/internal/sysfs"
)

// Proc reads a file below /proc, by its name there ("net/route").
type Proc func(name string) ([]byte, error)

// defaultDevices returns the netdevs of all default routes: /proc/net/route lists IPv4 (destination and
// mask in hex), /proc/net/ipv6_route IPv6 (destination and prefix length in hex, device last).
func defaultDevices(proc Proc, prob *problems) []string {
	var out []string
	take := func(name string, parse func(string) string) {
		data, err := proc(name)
		if err != nil {
			if !sysfs.Absent(err) {
				prob.add(err)
			}
			return
		}
		for line := range strings.Lines(string(data)) {
			if dev := parse(line); dev != "" && dev != "lo" && !slices.Contains(out, dev) {
				out = append(out, dev)
			}
		}
	}
	take("net/route", route4)
	take("net/ipv6_route", route6)
	slices.Sort(out)
	return out
}

func route4(line string) string {
	f := strings.Fields(line)
	if len(f) >= 8 && f[1] == "00000000" && f[7] == "00000000" {
		return f[0]
	}
	return ""
}

func route6(line string) string {
	f := strings.Fields(line)
	const zero = "00000000000000000000000000000000"
	if len(f) >= 10 && f[0] == zero && f[1] == "00" && f[4] != zero { // with a next hop: not the kernel's own reject route
		return f[9]
	}
	return ""
}

// carriers returns devs and everything below them: the ports of bridges and bonds, the parents of VLANs,
// as sysfs shows them in lower_* links. Whatever carries the way to the server is not for the VF pool.
func carriers(ctx context.Context, tree sysfs.Tree, devs []string, prob *problems) map[string]bool {
	out := map[string]bool{}
	for len(devs) > 0 {
		dev := devs[0]
		devs = devs[1:]
		if out[dev] || !plainNetdev(dev) {
			continue
		}
		out[dev] = true
		names, err := tree.List(ctx, "class/net/"+dev)
		if err != nil {
			prob.add(err)
			continue
		}
		for _, n := range names {
			if low, ok := strings.CutPrefix(n, "lower_"); ok {
				devs = append(devs, low)
			}
		}
	}
	return out
}

// plainNetdev keeps a damaged route table from naming paths.
func plainNetdev(s string) bool {
	return s != "" && len(s) < 16 && !strings.ContainsAny(s, "/ ") && s != "." && s != ".."
}
