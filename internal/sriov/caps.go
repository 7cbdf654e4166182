package sriov

import (
	"fmt"
	"strings"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/rtnl"
)

// Trial is one attribute to try on a parked VF: what to set, how it must read back, and which
// capability that proves. A driver that refuses lacks the capability; nobody's flavor may need it then.
type Trial struct {
	Attr  rtnl.Attr
	Reads func(rtnl.VF) bool
	Note  func(*api.PFCaps, bool)
}

// trialMAC is only ever on a VF that nobody holds, for as long as the trial takes.
func trialMAC(k Key) roce.MAC {
	m := ParkingMAC(k)
	m[1] = ^m[1]
	return m
}

// Trials returns the probe of a PF's driver, to be run on one parked VF, which is parked again after.
// The rates come last: with them some drivers answer EINVAL while the link is down.
func Trials(k Key) []Trial {
	mac := trialMAC(k)
	return []Trial{
		{rtnl.MAC(mac), func(v rtnl.VF) bool { return v.MAC == mac }, func(c *api.PFCaps, ok bool) { c.MAC = ok }},
		{rtnl.VLAN{ID: 2}, func(v rtnl.VF) bool { return v.VLAN == 2 }, func(c *api.PFCaps, ok bool) { c.VLAN = ok }},
		{rtnl.VLAN{ID: 2, QoS: 3}, func(v rtnl.VF) bool { return v.VLAN == 2 && v.QoS == 3 }, func(c *api.PFCaps, ok bool) { c.QoS = ok }},
		{rtnl.SpoofCheck(false), func(v rtnl.VF) bool { return v.SpoofCheck != nil && !*v.SpoofCheck }, func(c *api.PFCaps, ok bool) { c.SpoofCheck = ok }},
		{rtnl.SpoofCheck(true), func(v rtnl.VF) bool { return v.SpoofCheck != nil && *v.SpoofCheck }, func(c *api.PFCaps, ok bool) { c.SpoofCheck = c.SpoofCheck && ok }},
		{rtnl.Trust(true), func(v rtnl.VF) bool { return v.Trust != nil && *v.Trust }, func(c *api.PFCaps, ok bool) { c.Trust = ok }},
		{rtnl.State(rtnl.LinkDisable), func(v rtnl.VF) bool { return v.LinkState != nil && *v.LinkState == rtnl.LinkDisable }, func(c *api.PFCaps, ok bool) { c.LinkState = ok }},
		{rtnl.Rate{Max: 100}, func(v rtnl.VF) bool { return v.MaxRate == 100 }, func(c *api.PFCaps, ok bool) { c.MaxRate = ok }},
		{rtnl.Rate{Min: 50, Max: 100}, func(v rtnl.VF) bool { return v.MinRate == 50 }, func(c *api.PFCaps, ok bool) { c.MinRate = ok }},
	}
}

// Lacks names the mandatory capabilities that a PF's driver does not have, "" if none. A VLAN priority
// is mandatory only for who uses one, and is judged at placement; rates likewise.
func Lacks(c api.PFCaps) string {
	var out []string
	for _, m := range []struct {
		ok   bool
		name string
	}{{c.MAC, "MAC"}, {c.VLAN, "VLAN"}, {c.SpoofCheck, "spoof check"}} {
		if !m.ok {
			out = append(out, m.name)
		}
	}
	return strings.Join(out, ", ")
}

// Able says which attribute of want the PF's driver can't set, or "".
func Able(c api.PFCaps, want Attrs) string {
	switch {
	case Lacks(c) != "":
		return "its driver can't set: " + Lacks(c)
	case want.QoS > 0 && !c.QoS:
		return fmt.Sprintf("its driver can't set VLAN priority %d", want.QoS)
	case want.MinRate > 0 && !c.MinRate:
		return fmt.Sprintf("its driver can't guarantee a rate (%d Mb/s is wanted)", want.MinRate)
	case want.MaxRate > 0 && !c.MaxRate:
		return fmt.Sprintf("its driver can't limit the rate (to %d Mb/s)", want.MaxRate)
	case want.Trust && !c.Trust:
		return "its driver can't set trust"
	}
	return ""
}
