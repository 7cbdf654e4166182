package guestos

import (
	"github.com/verbena-cloud/verbena/internal/guestreport"
	"github.com/verbena-cloud/verbena/internal/preflight"
)

// Report says the facts in the words for the host. Number and time are the caller's.
func Report(f Facts, version string) guestreport.Report {
	r := guestreport.Report{V: guestreport.Version, Kernel: f.Kernel, Agent: version}
	for _, n := range f.NICs {
		for _, d := range n.RDMA {
			out := guestreport.Device{Name: d.Name, PCI: n.PCI, MAC: n.MAC, Netdev: n.Netdev, Driver: n.Driver, Firmware: n.Firmware, NUMA: n.NUMA, QPCount: d.QPCount}
			if n.Channels != nil {
				out.Queues = n.Channels.Combined
			}
			for _, p := range d.Ports {
				x := guestreport.Port{Port: p.Number, State: p.State, GIDIndex: -1, ActiveMTU: preflight.RoCEMTU(n.MTU), Counters: p.Counters, Unread: p.Unread}
				if g, ok := p.Pick(n.Netdev); ok {
					x.GID, x.GIDIndex = g.Addr.String(), g.Index
				}
				out.Ports = append(out.Ports, x)
			}
			r.Devices = append(r.Devices, out)
		}
	}
	return r
}
