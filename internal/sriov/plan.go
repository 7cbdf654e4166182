package sriov

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/rtnl"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// Busy says for every VF of a PF, by index, why it is not parked; parked ones are not in it.
type Busy map[int]string

// Count plans how a PF gets its number of VFs. It refuses, with the reason, whatever could take a VF
// from somebody: the kernel has no "remove one VF", so while one is not parked the count stays.
func Count(pf PF, want wire.PF, busy Busy) ([]Step, error) {
	if err := countable(pf, want); err != nil || !pf.Supported {
		return nil, err
	}
	var steps []Step
	if !pf.Up && pf.Netdev != "" && want.VFs > 0 { // bnxt_en refuses VFs while the PF is down
		steps = append(steps, Up{pf.Netdev})
	}
	if pf.Count == want.VFs {
		if Missing(pf, pf.Count) != "" {
			steps = append(steps, Await{PCIPath(pf.PCI), pf.Count})
		}
		return steps, nil
	}
	if pf.Count > 0 {
		if len(busy) > 0 {
			return steps, fault.New(fault.Unready, "PF %s has %d VFs and %d are wanted; the number can't change while %s", pf.Key, pf.Count, want.VFs, busy.first())
		}
		steps = append(steps, Write{PCIPath(pf.PCI) + "/sriov_numvfs", "0"}) // N to M is EBUSY (iov.c, sriov_numvfs_store)
	}
	if want.VFs == 0 {
		return steps, nil
	}
	if pf.Autoprobe { // only counts for VFs made afterwards: no netdev and IB device for each that is then torn down
		steps = append(steps, Write{PCIPath(pf.PCI) + "/sriov_drivers_autoprobe", "0"})
	}
	return append(steps,
		Write{PCIPath(pf.PCI) + "/sriov_numvfs", strconv.Itoa(want.VFs)},
		Await{PCIPath(pf.PCI), want.VFs}), nil
}

// countable refuses what can't or must not be done to the PF at all.
func countable(pf PF, want wire.PF) error {
	switch {
	case pf.Unread != "":
		return fault.New(fault.Unready, "PF %s could not be read completely, so nothing is changed: %s", pf.Key, pf.Unread)
	case !pf.Supported && want.VFs == 0:
		return nil
	case pf.Driver == "":
		return fault.New(fault.Unready, "PF %s at %s has no driver; load the driver of its vendor", pf.Key, pf.PCI)
	case !pf.Supported:
		return fault.New(fault.Unready, "PF %s at %s shows no sriov_numvfs: SR-IOV is off in BIOS or firmware, or driver %s can't do it", pf.Key, pf.PCI, pf.Driver)
	case pf.Management && !want.AllowManagement:
		return fault.New(fault.Unready, "PF %s (%s) carries the default route or the server session; set allowManagement on the host's PF if VFs shall be made on it all the same", pf.Key, pf.Netdev)
	case pf.Bond != "" && !want.AllowBond && want.VFs > 0 && want.VFs != pf.Count:
		return fault.New(fault.Unready, "PF %s (%s) is a port of %s: VFs end RoCE over the bond for whoever uses it on this host, and RDMA on them does not fail over; set allowBond on the host's PF if they shall be made all the same", pf.Key, pf.Netdev, pf.Bond)
	case want.VFs > pf.Total:
		return fault.New(fault.Invalid, "PF %s has room for %d VFs, %d are wanted", pf.Key, pf.Total, want.VFs)
	}
	return nil
}

// first names the busy VF of lowest index and how many more there are.
func (b Busy) first() string {
	low := -1
	for i := range b {
		if low < 0 || i < low {
			low = i
		}
	}
	if low < 0 {
		return ""
	}
	text := fmt.Sprintf("VF %d is not parked (%s)", low, b[low])
	if len(b) > 1 {
		text += fmt.Sprintf(" and %d more", len(b)-1)
	}
	return text
}

// Missing names the VFs that a PF with this count should show and does not, "" if none.
func Missing(pf PF, count int) string {
	there := map[int]bool{}
	for _, v := range pf.VFs {
		if v.Linked {
			there[v.Key.Index] = true
		}
	}
	var gone []string
	for i := range count {
		if !there[i] {
			gone = append(gone, strconv.Itoa(i))
		}
	}
	return strings.Join(gone, ", ")
}

// Park plans how a VF that nobody holds gets parked; no steps if it is. The caller has made sure with
// Foreign that it is free. A function that was on vfio-pci with other attributes has an unknown past,
// so it is reset first; the MAC is set last, so that a VF half way never looks parked.
func Park(pf PF, v VF) ([]Step, error) {
	if _, ok := Parked(v); ok {
		return nil, nil
	}
	if err := bindable(pf, v); err != nil {
		return nil, err
	}
	want := Parking(v.Key)
	var steps []Step
	if v.Driver != "" && v.Driver != Driver {
		steps = append(steps, unbind(v))
	}
	dirty := len(Diff(*v.Attr, want)) > 0
	if dirty && v.Driver == Driver {
		steps = append(steps, Reset{PCIPath(v.PCI) + "/reset"})
	}
	if dirty {
		steps = append(steps, clean(pf.Netdev, v, want)...)
	}
	return append(steps, Bind(v)...), nil
}

// Clean plans the attributes of a VF after its owner: reset always, since the guest had the function,
// then what differs from parking, the MAC last.
func Clean(pf PF, v VF) ([]Step, error) {
	if err := bindable(pf, v); err != nil {
		return nil, err
	}
	var steps []Step
	if v.Driver != "" && v.Driver != Driver {
		steps = append(steps, unbind(v))
	}
	steps = append(steps, Reset{PCIPath(v.PCI) + "/reset"})
	steps = append(steps, clean(pf.Netdev, v, Parking(v.Key))...)
	return append(steps, Bind(v)...), nil
}

// Program plans the attributes of a VF for its owner, the MAC first, so that it stops to look parked
// before anything of the tenant is on it, and the bind that must follow a new admin MAC comes last.
func Program(pf PF, v VF, want Attrs) ([]Step, error) {
	if err := bindable(pf, v); err != nil {
		return nil, err
	}
	var steps []Step
	if v.Driver != "" && v.Driver != Driver {
		steps = append(steps, unbind(v))
	}
	if v.Attr.MAC != want.MAC {
		steps = append(steps, Set{pf.Netdev, v.Key.Index, rtnl.MAC(want.MAC)})
	}
	for _, a := range changes(*v.Attr, want) {
		steps = append(steps, Set{pf.Netdev, v.Key.Index, a})
	}
	return append(steps, Bind(v)...), nil
}

// Reapply plans only the attributes: a running guest's function is never unbound or reset.
func Reapply(pf PF, v VF, want Attrs) []Step {
	if v.Attr == nil || pf.Netdev == "" {
		return nil
	}
	var steps []Step
	for _, a := range changes(*v.Attr, want) {
		steps = append(steps, Set{pf.Netdev, v.Key.Index, a})
	}
	if v.Attr.MAC != want.MAC {
		steps = append(steps, Set{pf.Netdev, v.Key.Index, rtnl.MAC(want.MAC)})
	}
	return steps
}

func clean(link string, v VF, want Attrs) []Step {
	var steps []Step
	for _, a := range changes(*v.Attr, want) {
		steps = append(steps, Set{link, v.Key.Index, a})
	}
	if v.Attr.MAC != want.MAC {
		steps = append(steps, Set{link, v.Key.Index, rtnl.MAC(want.MAC)})
	}
	return steps
}

// bindable refuses a VF that no step can help now.
func bindable(pf PF, v VF) error {
	switch {
	case v.Unread != "":
		return fault.New(fault.Unready, "%s could not be read: %s", v.Key, v.Unread)
	case !v.Linked:
		return fault.New(fault.Unready, "%s: the kernel has not finished to set it up", v.Key)
	case pf.Netdev == "":
		return fault.New(fault.Unready, "%s: its PF has no netdev, so its attributes can't be set", v.Key)
	case v.Attr == nil:
		return fault.New(fault.Unready, "%s: the driver of its PF does not report it", v.Key)
	case v.Group == "" || len(v.Mates) > 0:
		missing, _ := Parked(v)
		return fault.New(fault.Unready, "%s: %s", v.Key, missing)
	}
	return nil
}

// Bind plans how a VF gets on vfio-pci and stays there: override, then probe. new_id would take every
// function with that id, and bind without an override is ENODEV when autoprobe is off.
func Bind(v VF) []Step {
	var steps []Step
	bind := v.Driver != Driver
	if !bind && !v.Node { // bound, but without effect: unbind, and do it again
		steps, bind = append(steps, unbind(v)), true
	}
	if bind {
		steps = append(steps, Load{Driver})
	}
	if v.Override != Driver {
		steps = append(steps, Write{PCIPath(v.PCI) + "/driver_override", Driver})
	}
	if bind {
		steps = append(steps, Write{"bus/pci/drivers_probe", v.PCI.String()})
	}
	return steps
}

func unbind(v VF) Step {
	return Write{"bus/pci/drivers/" + v.Driver + "/unbind", v.PCI.String()}
}
