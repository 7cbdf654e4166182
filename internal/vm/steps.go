package vm

import (
	"fmt"
	"strings"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/units"
)

// Steps returns what server and agent do for a placed VM, in order, for people to read before it happens.
func Steps(o *api.VM) []string {
	st := o.Status
	vcpus, memory := 0, int64(0)
	for _, c := range st.Cells {
		vcpus += c.VCPUs
		memory += c.Memory
	}
	out := []string{fmt.Sprintf("server: charge tenant %s: 1 VM, %d vCPUs, %s memory, %d VFs", o.Tenant, vcpus, units.Bytes(memory), len(st.VFs))}
	for _, c := range st.Cells {
		page := "memory"
		if c.Hugepages != "" {
			page = "in pages of " + c.Hugepages
		}
		out = append(out, fmt.Sprintf("server: claim node %d of host %s for guest cell %d: %d vCPUs, %s %s", c.Host, st.Host, c.Guest, c.VCPUs, units.Bytes(c.Memory), page))
	}
	for _, f := range st.VFs {
		out = append(out, fmt.Sprintf("server: claim VF %d of PF %s on host %s (node %d, fabric %s)", f.Index, f.PF, st.Host, f.HostCell, f.Fabric),
			fmt.Sprintf("server: take address %s and MAC %s of network %s", f.IP, f.MAC, f.Network))
	}
	for _, n := range st.NICs {
		out = append(out, fmt.Sprintf("server: take address %s and MAC %s of network %s", n.IP, n.MAC, n.Network))
	}
	for _, f := range st.VFs {
		out = append(out, fmt.Sprintf("agent on %s: program VF %d of PF %s: %s; read it back", st.Host, f.Index, f.PF, settings(f)))
	}
	out = append(out,
		fmt.Sprintf("agent on %s: make the disk from image %s and the cloud-init seed", st.Host, o.Spec.Image),
		fmt.Sprintf("agent on %s: define domain %s.%s with %d guest cells%s", st.Host, o.Tenant, o.Name, len(st.Cells), guestAddresses(st.VFs)))
	if o.Spec.Power != "off" {
		out = append(out, fmt.Sprintf("agent on %s: start the domain", st.Host))
	}
	return out
}

func settings(f api.VMVF) string {
	parts := []string{"MAC " + f.MAC, fmt.Sprintf("VLAN %d priority %d", f.VLAN, f.QoS)}
	if f.SpoofCheck {
		parts = append(parts, "spoof check on")
	}
	if f.MinRate != "" {
		parts = append(parts, "at least "+f.MinRate)
	}
	if f.MaxRate != "" {
		parts = append(parts, "at most "+f.MaxRate)
	}
	return strings.Join(parts, ", ")
}

func guestAddresses(vfs []api.VMVF) string {
	if len(vfs) == 0 {
		return ""
	}
	var at []string
	for _, f := range vfs {
		at = append(at, f.GuestPCI)
	}
	return ", VFs at " + strings.Join(at, ", ")
}
