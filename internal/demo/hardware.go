package demo

import (
	"fmt"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
)

// model is the make of the NICs of a host, as departments have bought them over the years.
type model struct {
	driver string
	vfs    int // of each port
}

func models() []model {
	return []model{{"mlx5_core", 16}, {"bnxt_en", 32}, {"ice", 64}, {"mlx5_core", 32}}
}

// hardware is the i-th host of the demo: two sockets, a dual-port NIC on each, of one of three vendors.
func hardware(i int) sysfstest.Config {
	m := models()[i%len(models())]
	cfg := sysfstest.Host(i+1, 2, m.vfs)
	for k := range cfg.Cards {
		cfg.Cards[k].Driver = m.driver
		cfg.Cards[k].Serial = fmt.Sprintf("SIM%03d%02d", i+1, k)
	}
	return cfg
}

// commission says which PFs of a host serve which fabric: storage has one port on NUMA node 1, all the rest
// is for training.
func commission(inv *api.Inventory) []api.HostPF {
	var out []api.HostPF
	for _, p := range inv.PFs {
		fabric := "train"
		if p.Cell == 1 && p.Port == 0 {
			fabric = "store"
		}
		out = append(out, api.HostPF{Match: p.PCI, Fabric: fabric, VFs: p.TotalVFs})
	}
	return out
}
