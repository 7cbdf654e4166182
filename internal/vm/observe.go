package vm

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// Conditions of a VM.
const (
	CondPlaced   = "Placed"
	CondVerified = "VFsVerified" // every VF was read back as it was asked for
	CondReady    = "Ready"
)

func placedText(v *api.VM) string {
	var nodes []string
	for _, c := range v.Status.Cells {
		nodes = append(nodes, strconv.Itoa(c.Host))
	}
	return fmt.Sprintf("on host %s, NUMA node %s, with %d VFs", v.Status.Host, strings.Join(nodes, ", "), len(v.Status.VFs))
}

// waiting sets the conditions of a VM of which its agent has not reported yet.
func waiting(list []api.Condition, v *api.VM, now time.Time) []api.Condition {
	if len(v.Status.VFs) > 0 {
		list = object.SetCondition(list, api.Condition{Type: CondVerified, Status: "Unknown", Reason: "NotReported", Message: "the host's agent has not read them back yet", Since: now})
	}
	return object.SetCondition(list, api.Condition{Type: CondReady, Status: "False", Reason: api.PhaseScheduled, Message: v.Status.Message, Since: now})
}

// Observed merges what the host's agent reports of a VM. Reports of a host that does not hold the VM, of
// another UID or generation are ignored: an agent can only speak of what is its own, now. changed tells
// whether there was anything to store.
func Observed(tx store.Tx, host string, st wire.VMStatus, now time.Time) (changed bool, err error) {
	c, err := claimOf(tx, host, st.UID)
	if err != nil || c == nil || c.Generation != st.Generation {
		return false, err
	}
	stored, err := object.Peek[api.VM](tx, api.KindVM, c.Tenant, c.Name)
	if err != nil {
		return false, err
	}
	if stored.UID != st.UID {
		return false, nil
	}
	if !knownPhase(st.Phase) {
		return false, fault.New(fault.Invalid, "VM %s/%s: host %s reports the unknown phase %s", c.Tenant, c.Name, host, object.Quote(st.Phase))
	}
	v := *stored
	v.Status.VFs = slices.Clone(v.Status.VFs)
	wrong := merge(v.Status.VFs, st.VFs)
	v.Status.Phase, v.Status.Message, v.Status.Guest = st.Phase, clip(st.Message), guestOf(st.Guest)
	ready := api.Condition{Type: CondReady, Status: "False", Reason: st.Phase, Message: v.Status.Message, Since: now}
	if len(v.Status.VFs) > 0 {
		verified := api.Condition{Type: CondVerified, Status: "True", Reason: "ReadBack", Since: now}
		if len(wrong) > 0 {
			verified.Status, verified.Reason, verified.Message = "False", "NotAsWanted", strings.Join(wrong, "; ")
		}
		v.Status.Conditions = object.SetCondition(v.Status.Conditions, verified)
	}
	if st.Phase == api.PhaseReady {
		ready.Status, ready.Reason = "True", "Running"
		if len(wrong) > 0 {
			ready.Status, ready.Reason, ready.Message = "False", "VFsNotVerified", strings.Join(wrong, "; ")
			v.Status.Phase, v.Status.Message = api.PhaseStarting, "it runs, but not every VF was read back as wanted"
		}
	}
	if v.Deleting != nil {
		v.Status.Phase = api.PhaseDeleting
		ready.Status, ready.Reason = "False", "Deleting"
	}
	v.Status.Conditions = object.SetCondition(v.Status.Conditions, ready)
	if reflect.DeepEqual(v.Status, stored.Status) {
		return false, nil
	}
	return true, object.Save(tx, &v)
}

// guestOf bounds what a guest says through its host: either may be hostile.
func guestOf(g *api.GuestStatus) *api.GuestStatus {
	if g == nil {
		return nil
	}
	const ports = 16
	out := *g
	out.Tool, out.Kernel = word(g.Tool), word(g.Kernel)
	out.Ports = slices.Clone(g.Ports[:min(len(g.Ports), ports)])
	for i := range out.Ports {
		p := &out.Ports[i]
		for _, text := range []*string{&p.Device, &p.PCI, &p.Netdev, &p.Driver, &p.Firmware, &p.State, &p.GID} {
			*text = word(*text)
		}
	}
	return &out
}

// word bounds a short text.
func word(s string) string {
	const limit = 128
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}

func knownPhase(p string) bool {
	switch p {
	case api.PhaseScheduled, api.PhasePreparing, api.PhaseStarting, api.PhaseReady, api.PhaseStopping, api.PhaseStopped, api.PhaseDeleting, api.PhaseFailed, api.PhaseUnknown:
		return true
	default:
		return false
	}
}

// clip bounds an agent's text.
func clip(s string) string {
	const limit = 1024
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}

// merge fills in what was read back and says which VFs are not as they were asked for.
func merge(want []api.VMVF, got []wire.VFStatus) []string {
	var wrong []string
	for i := range want {
		w := &want[i]
		k := slices.IndexFunc(got, func(g wire.VFStatus) bool { return g.PF == w.PF && g.Index == w.Index })
		if k < 0 {
			wrong = append(wrong, fmt.Sprintf("VF %d of PF %s was not reported", w.Index, w.PF))
			continue
		}
		g := got[k]
		w.State, w.PCI = g.State, g.PCI
		if text := differs(w, g); text != "" {
			wrong = append(wrong, fmt.Sprintf("VF %d of PF %s: %s", w.Index, w.PF, text))
		}
	}
	return wrong
}

// differs names the first thing that was not read back as wanted, or "".
func differs(w *api.VMVF, g wire.VFStatus) string {
	switch {
	case g.State != api.VFVerified && g.State != api.VFAttached:
		text := "it is " + object.Quote(g.State)
		if g.Reason != "" {
			text += " (" + clip(g.Reason) + ")"
		}
		return text
	case g.Generation != w.Generation:
		return fmt.Sprintf("generation is %d, wanted %d", g.Generation, w.Generation)
	case !strings.EqualFold(g.MAC, w.MAC):
		return fmt.Sprintf("MAC is %s, wanted %s", object.Quote(g.MAC), w.MAC)
	case g.VLAN != w.VLAN:
		return fmt.Sprintf("VLAN is %d, wanted %d", g.VLAN, w.VLAN)
	case g.QoS != w.QoS:
		return fmt.Sprintf("VLAN priority is %d, wanted %d", g.QoS, w.QoS)
	case g.SpoofCheck != w.SpoofCheck:
		return fmt.Sprintf("spoof check is %t, wanted %t", g.SpoofCheck, w.SpoofCheck)
	default:
		return ""
	}
}
