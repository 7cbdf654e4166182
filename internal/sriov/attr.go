package sriov

import (
	"crypto/sha256"
	"fmt"

	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/rtnl"
)

// noVLAN is what mlx4 reports for a VF without a VLAN.
const noVLAN = 4095

// Parking returns the attributes of a parked VF: an address of its own, no VLAN, no rates, spoof check on.
func Parking(k Key) Attrs { return Attrs{MAC: ParkingMAC(k), SpoofCheck: true} }

// ParkingMAC derives the address that a VF has while nobody holds it: a zero MAC would leave its RoCE
// node GUID zero, and rdma_cm crashes on that. It is locally administered unicast (IEEE 802c; the low
// nibble e keeps it apart from addresses given to VMs, which start with 02), the same over boots, and
// different for every VF of a PF; between PFs 36 bits of a hash keep it apart.
func ParkingMAC(k Key) roce.MAC {
	h := sha256.Sum256([]byte("verbena parking " + k.PF))
	return roce.MAC{h[0]&0xf0 | 0x0e, h[1], h[2], h[3], h[4] ^ byte(k.Index>>8), byte(k.Index)}
}

// Diff names every attribute that was not read back as wanted, none if they agree. A driver that does
// not report trust has none to give; one that does not report the spoof check can't prove it.
func Diff(have rtnl.VF, want Attrs) []string {
	if agrees(have, want) {
		return nil
	}
	var out []string
	note := func(same bool, format string, args ...any) {
		if !same {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	vlan, qos := tag(have)
	note(have.MAC == want.MAC, "MAC %s instead of %s", have.MAC, want.MAC)
	note(vlan == want.VLAN, "VLAN %d instead of %d", vlan, want.VLAN)
	note(qos == want.QoS, "VLAN priority %d instead of %d", qos, want.QoS)
	if have.SpoofCheck == nil {
		note(!want.SpoofCheck, "no spoof check state instead of on")
	} else {
		note(*have.SpoofCheck == want.SpoofCheck, "spoof check %s instead of %s", onOff(*have.SpoofCheck), onOff(want.SpoofCheck))
	}
	trust := have.Trust != nil && *have.Trust
	note(trust == want.Trust, "trust %s instead of %s", onOff(trust), onOff(want.Trust))
	note(have.MinRate == want.MinRate, "min rate %d Mb/s instead of %d", have.MinRate, want.MinRate)
	note(have.MaxRate == want.MaxRate, "max rate %d Mb/s instead of %d", have.MaxRate, want.MaxRate)
	note(have.LinkState == nil || *have.LinkState == rtnl.LinkAuto, "link state forced instead of auto")
	return out
}

// agrees is Diff without words: it runs for every VF in every reading of the host.
func agrees(have rtnl.VF, want Attrs) bool {
	vlan, qos := tag(have)
	return have.MAC == want.MAC && vlan == want.VLAN && qos == want.QoS &&
		(have.SpoofCheck != nil && *have.SpoofCheck) == want.SpoofCheck &&
		(have.Trust != nil && *have.Trust) == want.Trust &&
		have.MinRate == want.MinRate && have.MaxRate == want.MaxRate &&
		(have.LinkState == nil || *have.LinkState == rtnl.LinkAuto)
}

func tag(have rtnl.VF) (vlan, qos int) {
	if have.VLAN == noVLAN {
		return 0, 0
	}
	return have.VLAN, have.QoS
}

// changes returns the attributes to set, without the MAC: what is right already is not written, since
// many drivers refuse what they can't do even when it would change nothing.
func changes(have rtnl.VF, want Attrs) []rtnl.Attr {
	var out []rtnl.Attr
	if vlan, qos := tag(have); vlan != want.VLAN || qos != want.QoS {
		out = append(out, rtnl.VLAN{ID: want.VLAN, QoS: want.QoS})
	}
	if have.SpoofCheck == nil || *have.SpoofCheck != want.SpoofCheck {
		out = append(out, rtnl.SpoofCheck(want.SpoofCheck))
	}
	if trust := have.Trust != nil && *have.Trust; trust != want.Trust {
		out = append(out, rtnl.Trust(want.Trust))
	}
	if have.MinRate != want.MinRate || have.MaxRate != want.MaxRate {
		out = append(out, rtnl.Rate{Min: want.MinRate, Max: want.MaxRate})
	}
	if have.LinkState != nil && *have.LinkState != rtnl.LinkAuto {
		out = append(out, rtnl.State(rtnl.LinkAuto))
	}
	return out
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}
