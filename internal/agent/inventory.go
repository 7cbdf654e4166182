package agent

import (
	"fmt"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/sriov"
	"github.com/verbena-cloud/verbena/internal/units"
)

// inventory makes the last reading into what the server is told.
func (a *Agent) inventory() *api.Inventory {
	a.mu.Lock()
	snap := a.snap
	a.mu.Unlock()
	if snap == nil {
		return nil
	}
	out := &api.Inventory{Simulated: a.cfg.Simulated, Agent: a.cfg.Version, Kernel: a.release, BootID: a.boot,
		IOMMU: snap.iommu, Cells: snap.cells, Problems: snap.problems, PFs: []api.PF{}}
	if snap.dom != nil {
		out.Hypervisor = snap.dom.host.Version
	}
	for i := range snap.functions {
		out.PFs = append(out.PFs, a.pfStatus(&snap.functions[i]))
	}
	return out
}

func (a *Agent) pfStatus(f *function) api.PF {
	caps, _ := a.capabilities(f)
	out := api.PF{Key: f.Key, PCI: f.PCI.String(), Netdev: f.Netdev, RDMADevice: f.RDMA, MAC: f.MAC, Serial: f.Serial,
		Card: f.Card, Port: f.Port, Vendor: f.Vendor, Device: f.Device, Driver: f.Driver, Firmware: f.Firmware,
		Cell: f.Cell, Speed: f.Speed, LinkUp: f.LinkUp, MTU: f.MTU, Bond: f.Bond, Management: f.Management,
		TotalVFs: f.Total, NumVFs: f.Count, Caps: caps}
	want := a.commissioned(f.PF)
	if want != nil {
		out.Fabric, out.WantVFs = want.Fabric, want.VFs
	}
	out.QoS = a.qosStatus(f, want)
	out.Ready, out.Reason = a.pfReady(f, want != nil, out)
	for _, v := range f.VFs {
		out.VFs = append(out.VFs, a.vfStatus(v, want != nil))
	}
	return out
}

// pfReady says whether VFs of the PF may be given out, and why not.
func (a *Agent) pfReady(f *function, commissioned bool, s api.PF) (ready bool, reason string) {
	a.mu.Lock()
	if m := a.pfs[f.Key]; m != nil {
		reason = m.reason
	}
	a.mu.Unlock()
	switch {
	case f.Key == "":
		return false, "it has no permanent MAC and no serial number to know it by"
	case !commissioned:
		return false, "it is not commissioned for the pool"
	case f.Unread != "":
		return false, f.Unread
	case s.WantVFs == 0:
		return false, reason
	case s.NumVFs < s.WantVFs && reason == "":
		return false, fmt.Sprintf("it has %d of %d VFs", s.NumVFs, s.WantVFs)
	case s.NumVFs != s.WantVFs:
		return false, reason
	}
	if missing := sriov.Missing(f.PF, f.Count); missing != "" {
		return false, "VF " + missing + " can't be seen yet"
	}
	if lacks := sriov.Lacks(s.Caps); lacks != "" {
		if _, known := a.capabilities(f); known {
			return false, "its driver can't set: " + lacks
		}
		if reason == "" {
			reason = "what its driver can do is not known yet"
		}
		return false, reason
	}
	return a.usable(f, reason)
}

// usable says no when every VF of the PF is in quarantine: then it is the PF or the host, not a VF.
func (a *Agent) usable(f *function, reason string) (bool, string) {
	last := ""
	for _, v := range f.VFs {
		st, why := a.state(v)
		if st != api.VFQuarantined {
			return true, reason
		}
		last = why
	}
	return false, "all its VFs are in quarantine: " + last
}

func (a *Agent) vfStatus(v sriov.VF, commissioned bool) api.VF {
	st, reason := a.state(v)
	if !commissioned && st == api.VFScrubbing {
		st, reason = api.VFForeign, "its PF is not commissioned for the pool"
	}
	out := api.VF{Index: v.Key.Index, PCI: v.PCI.String(), Group: v.Group, Driver: v.Driver, State: st, Reason: reason}
	if v.Attr != nil {
		out.MAC, out.VLAN, out.QoS = v.Attr.MAC.String(), v.Attr.VLAN, v.Attr.QoS
		out.SpoofCheck = v.Attr.SpoofCheck != nil && *v.Attr.SpoofCheck
		out.Trust = v.Attr.Trust != nil && *v.Attr.Trust
		out.MinRate, out.MaxRate = int64(v.Attr.MinRate)*int64(units.Mbps), int64(v.Attr.MaxRate)*int64(units.Mbps)
	}
	if c := a.j.claim(v.Key); c != nil {
		out.Owner, out.VM, out.Generation = c.Owner.UID, c.Owner.VM(), c.Owner.Generation
	}
	return out
}
