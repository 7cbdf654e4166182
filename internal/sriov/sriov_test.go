package sriov

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/rtnl"
	"github.com/verbena-cloud/verbena/internal/wire"
)

func yes() *bool { v := true; return &v }
func no() *bool  { v := false; return &v }

// parked is a VF with everything that the pool demands.
func parked(index int) VF {
	k := Key{"02:00:00:00:00:aa-p0", index}
	return VF{Key: k, PCI: roce.PCIAddr{Bus: 0x81, Slot: 0x10}, Linked: true, Driver: Driver, Override: Driver, Group: "8", Node: true,
		Attr: &rtnl.VF{Index: index, MAC: ParkingMAC(k), SpoofCheck: yes(), Trust: no()}}
}

func pf(vfs ...VF) PF {
	return PF{Key: "02:00:00:00:00:aa-p0", PCI: roce.PCIAddr{Bus: 0x81}, Netdev: "ens1", Driver: "igb", Supported: true, Total: 7,
		Count: len(vfs), Autoprobe: true, Up: true, VFs: vfs}
}

func lines(steps []Step) string {
	var out []string
	for _, s := range steps {
		out = append(out, s.String())
	}
	return strings.Join(out, "\n")
}

func TestParkingMACs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pf := rapid.StringMatching(`([0-9a-f]{2}:){5}[0-9a-f]{2}-p[01]`).Draw(t, "pf")
		a, b := rapid.IntRange(0, 65535).Draw(t, "a"), rapid.IntRange(0, 65535).Draw(t, "b")
		x, y := ParkingMAC(Key{pf, a}), ParkingMAC(Key{pf, b})
		if !x.Unicast() || !x.Local() || x[0] == 0x02 {
			t.Errorf("%s is no parking address", x)
		}
		if (x == y) != (a == b) {
			t.Errorf("VFs %d and %d of %s get %s and %s", a, b, pf, x, y)
		}
	})
	seen := map[roce.MAC]string{}
	for i := range 2000 {
		k := fmt.Sprintf("b8:ce:f6:00:%02x:%02x-p0", i>>8, i&255)
		m := ParkingMAC(Key{k, 0})
		if by, ok := seen[m]; ok {
			t.Errorf("%s and %s both park at %s", by, k, m)
		}
		seen[m] = k
	}
}

func TestCount(t *testing.T) {
	two := []VF{parked(0), parked(1)}
	up := func(f func(*PF)) PF { p := pf(two...); f(&p); return p }
	const dir = "/sys/bus/pci/devices/0000:81:00.0/"
	for _, tt := range []struct {
		name string
		pf   PF
		want int
		busy Busy
		text string
		kind fault.Kind
	}{
		{"as it is", pf(two...), 2, nil, "", ""},
		{"as it is, whoever is busy", pf(two...), 2, Busy{0: "x"}, "", ""},
		{"from none", pf(), 4, nil, "echo 0 > " + dir + "sriov_drivers_autoprobe\necho 4 > " + dir + "sriov_numvfs\nwait for 4 VFs of " + strings.TrimSuffix(dir, "/"), ""},
		{"through zero", up(func(p *PF) { p.Autoprobe = false }), 4, nil, "echo 0 > " + dir + "sriov_numvfs\necho 4 > " + dir + "sriov_numvfs\nwait for 4 VFs of " + strings.TrimSuffix(dir, "/"), ""},
		{"to none", pf(two...), 0, nil, "echo 0 > " + dir + "sriov_numvfs", ""},
		{"down", up(func(p *PF) { p.Up = false }), 2, nil, "ip link set ens1 up", ""},
		{"one can't be seen", up(func(p *PF) { p.VFs = p.VFs[:1] }), 2, nil, "wait for 2 VFs of " + strings.TrimSuffix(dir, "/"), ""},
		{"busy", pf(two...), 4, Busy{1: "held by VM a/b"}, "", fault.Unready},
		{"busy, to none", pf(two...), 0, Busy{1: "held by VM a/b"}, "", fault.Unready},
		{"too many", pf(), 8, nil, "", fault.Invalid},
		{"management", up(func(p *PF) { p.Management = true }), 4, nil, "", fault.Unready},
		{"port of a bond", up(func(p *PF) { p.Bond = "bond0" }), 4, nil, "", fault.Unready},
		{"port of a bond, as it is", up(func(p *PF) { p.Bond = "bond0" }), 2, nil, "", ""},
		{"port of a bond, to none", up(func(p *PF) { p.Bond = "bond0" }), 0, nil, "echo 0 > " + dir + "sriov_numvfs", ""},
		{"unread", up(func(p *PF) { p.Unread = "x" }), 4, nil, "", fault.Unready},
		{"no driver", up(func(p *PF) { p.Driver = "" }), 4, nil, "", fault.Unready},
		{"off in firmware", up(func(p *PF) { p.Supported = false }), 4, nil, "", fault.Unready},
		{"off in firmware, none wanted", up(func(p *PF) { p.Supported = false }), 0, nil, "", ""},
	} {
		steps, err := Count(tt.pf, wire.PF{VFs: tt.want}, tt.busy)
		if tt.kind == "" && err != nil || tt.kind != "" && !fault.Is(err, tt.kind) {
			t.Errorf("%s: err = %v", tt.name, err)
		}
		if got := lines(steps); got != tt.text {
			t.Errorf("%s:\n%s\nwant\n%s", tt.name, got, tt.text)
		}
	}
}

func TestState(t *testing.T) {
	owner := Owner{UID: "u1", Tenant: "hr", Name: "a", Generation: 2}
	want := Attrs{MAC: roce.MAC{2, 0, 0, 0, 0, 1}, VLAN: 101, QoS: 3, SpoofCheck: true}
	held := func(s Stage) *Claim { return &Claim{owner, s, want} }
	mine := func(f func(*VF)) VF {
		v := parked(0)
		v.Attr = &rtnl.VF{MAC: want.MAC, VLAN: 101, QoS: 3, SpoofCheck: yes()}
		f(&v)
		return v
	}
	run := Domain{Name: "hr.a", UID: "u1", Ours: true, Running: true}
	free := func(f func(*VF)) VF { v := parked(0); f(&v); return v }
	for _, tt := range []struct {
		name       string
		v          VF
		c          *Claim
		quarantine string
		want       string
	}{
		{"parked", free(func(*VF) {}), nil, "", api.VFParked},
		{"reserved", free(func(*VF) {}), held(Holding), "", api.VFReserved},
		{"programmed", mine(func(v *VF) { v.Driver, v.Node = "", false }), held(Holding), "", api.VFProgrammed},
		{"verified", mine(func(*VF) {}), held(Holding), "", api.VFVerified},
		{"attached", mine(func(v *VF) { v.Domain = run; v.Openers = []int{9} }), held(Holding), "", api.VFAttached},
		{"attached and changed", mine(func(v *VF) { v.Domain = run; v.Attr.VLAN = 5 }), held(Holding), "", api.VFReserved},
		{"in two domains", mine(func(v *VF) { v.Domain = Domain{UID: "u2", Running: true} }), held(Holding), "", api.VFProgrammed},
		{"draining", mine(func(v *VF) { v.Domain = run }), held(Draining), "", api.VFDraining},
		{"scrubbing", mine(func(*VF) {}), held(Scrubs), "", api.VFScrubbing},
		{"left behind", mine(func(*VF) {}), nil, "", api.VFScrubbing},
		{"quarantined", free(func(*VF) {}), nil, "reset failed", api.VFQuarantined},
		{"foreign domain", free(func(v *VF) { v.Domain = Domain{Name: "x", UID: "u9"} }), nil, "", api.VFForeign},
		{"ours without entry", free(func(v *VF) { v.Domain = run }), nil, "", api.VFForeign},
		{"open", free(func(v *VF) { v.Openers = []int{7} }), nil, "", api.VFForeign},
		{"netdev up", free(func(v *VF) { v.Driver, v.Netdev, v.NetdevUp = "igbvf", "eth9", true }), nil, "", api.VFForeign},
		{"another namespace", free(func(v *VF) { v.Driver = "igbvf" }), nil, "", api.VFForeign},
		{"fresh", free(func(v *VF) { v.Driver, v.Override, v.Node = "", "", false }), nil, "", api.VFScrubbing},
		{"shared group", free(func(v *VF) { v.Mates = []string{"0000:81:10.2"} }), nil, "", api.VFScrubbing},
		{"trust on", free(func(v *VF) { v.Attr.Trust = yes() }), nil, "", api.VFScrubbing},
		{"unread", free(func(v *VF) { v.Unread = "EIO" }), nil, "", api.VFScrubbing},
	} {
		got, reason := State(tt.v, tt.c, tt.quarantine)
		if got != tt.want {
			t.Errorf("%s: %s (%s), want %s", tt.name, got, reason, tt.want)
		}
		if settled := got == api.VFParked || got == api.VFVerified || got == api.VFAttached; settled != (Ready(tt.v, claimOr(tt.c, tt.v)) == "") && tt.c != nil && tt.c.Stage == Holding {
			t.Errorf("%s: Ready says %q", tt.name, Ready(tt.v, *tt.c))
		}
	}
}

func claimOr(c *Claim, v VF) Claim {
	if c != nil {
		return *c
	}
	return Claim{Want: Parking(v.Key)}
}

func TestPlansOfOneVF(t *testing.T) {
	fresh := parked(1)
	fresh.Driver, fresh.Override, fresh.Node = "", "", false
	fresh.Attr = &rtnl.VF{Index: 1, SpoofCheck: yes(), Trust: no()}
	used := parked(1)
	used.Attr = &rtnl.VF{Index: 1, MAC: roce.MAC{2, 0, 0, 0, 0, 1}, VLAN: 101, QoS: 3, SpoofCheck: yes(), Trust: no(), MaxRate: 500}
	p := pf(parked(0), fresh)
	steps, err := Park(p, fresh)
	if err != nil || lines(steps) != "ip link set ens1 vf 1 mac "+ParkingMAC(fresh.Key).String()+"\nmodprobe vfio-pci\necho vfio-pci > /sys/bus/pci/devices/0000:81:10.0/driver_override\necho 0000:81:10.0 > /sys/bus/pci/drivers_probe" {
		t.Errorf("park a fresh one: %v\n%s", err, lines(steps))
	}
	steps, err = Park(p, used)
	text := lines(steps)
	if err != nil || !strings.HasPrefix(text, "echo 1 > /sys/bus/pci/devices/0000:81:10.0/reset\n") || !strings.HasSuffix(text, "mac "+ParkingMAC(used.Key).String()) {
		t.Errorf("park a used one: reset first, MAC last: %v\n%s", err, text)
	}
	want := Attrs{MAC: roce.MAC{2, 0, 0, 0, 0, 7}, VLAN: 7, QoS: 3, SpoofCheck: true, MinRate: 1, MaxRate: 9}
	steps, err = Program(p, parked(1), want)
	if err != nil || lines(steps) != "ip link set ens1 vf 1 mac 02:00:00:00:00:07\nip link set ens1 vf 1 vlan 7 qos 3\nip link set ens1 vf 1 min_tx_rate 1 max_tx_rate 9" {
		t.Errorf("program, MAC first: %v\n%s", err, lines(steps))
	}
	if steps, err := Park(p, parked(1)); err != nil || len(steps) != 0 {
		t.Errorf("park a parked one: %v, %s", err, lines(steps))
	}
	for _, s := range Reapply(p, used, want) {
		if _, ok := s.(Set); !ok {
			t.Errorf("a running guest's function would get: %s", s)
		}
	}
}

// TestPlansArrive applies plans to any VF: it must end parked, or programmed, and the next plan be empty.
func TestPlansArrive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := parked(rapid.IntRange(0, 6).Draw(t, "index"))
		v.Driver = rapid.SampledFrom([]string{"", Driver, "igbvf"}).Draw(t, "driver")
		v.Override = rapid.SampledFrom([]string{"", Driver, "none"}).Draw(t, "override")
		v.Node = v.Driver == Driver && rapid.Bool().Draw(t, "node")
		v.Attr.VLAN, v.Attr.QoS = rapid.SampledFrom([]int{0, 5, 4095}).Draw(t, "vlan"), 0
		v.Attr.MaxRate = rapid.SampledFrom([]uint32{0, 500}).Draw(t, "rate")
		v.Attr.SpoofCheck = rapid.SampledFrom([]*bool{yes(), no()}).Draw(t, "spoof")
		v.Attr.Trust = rapid.SampledFrom([]*bool{yes(), no(), nil}).Draw(t, "trust")
		if rapid.Bool().Draw(t, "other MAC") {
			v.Attr.MAC = roce.MAC{2, 0, 0, 0, 0, 9}
		}
		p := pf(v)
		steps, err := Park(p, v)
		if err != nil {
			t.Fatal(err)
		}
		v = obey(v, steps)
		if missing, ok := Parked(v); !ok {
			t.Fatalf("after\n%s\n%s", lines(steps), missing)
		}
		want := Attrs{MAC: roce.MAC{2, 0, 0, 0, 0, 7}, VLAN: 7, QoS: 3, SpoofCheck: true, MaxRate: 9}
		steps, err = Program(p, v, want)
		if err != nil {
			t.Fatal(err)
		}
		for i := range steps { // from the first step on it never looks parked
			if _, ok := Parked(obey(v, steps[:i+1])); ok {
				t.Fatalf("looks parked after\n%s", lines(steps[:i+1]))
			}
		}
		v = obey(v, steps)
		if wrong := Ready(v, Claim{Want: want}); wrong != "" {
			t.Fatalf("after\n%s\n%s", lines(steps), wrong)
		}
		steps, err = Clean(p, v)
		if err != nil {
			t.Fatal(err)
		}
		for i := range len(steps) - 1 { // and on the way back only after the last
			if _, ok := Parked(obey(v, steps[:i+1])); ok {
				t.Fatalf("looks parked already after\n%s", lines(steps[:i+1]))
			}
		}
		if _, ok := Parked(obey(v, steps)); !ok {
			t.Fatalf("not parked after\n%s", lines(steps))
		}
	})
}

// obey is a kernel that does what it is told.
func obey(v VF, steps []Step) VF {
	attr := *v.Attr
	v.Attr = &attr
	for _, s := range steps {
		switch s := s.(type) {
		case Set:
			set(v.Attr, s.Attr)
		case Write:
			switch {
			case strings.HasSuffix(s.Path, "/unbind"):
				v.Driver, v.Node = "", false
			case strings.HasSuffix(s.Path, "/driver_override"):
				v.Override = s.Value
			case strings.HasSuffix(s.Path, "/drivers_probe") && v.Driver == "":
				v.Driver, v.Node = v.Override, v.Override == Driver
			}
		}
	}
	return v
}

func set(v *rtnl.VF, a rtnl.Attr) {
	switch a := a.(type) {
	case rtnl.MAC:
		v.MAC = roce.MAC(a)
	case rtnl.VLAN:
		v.VLAN, v.QoS = a.ID, a.QoS
	case rtnl.SpoofCheck:
		v.SpoofCheck = (*bool)(&a)
	case rtnl.Trust:
		v.Trust = (*bool)(&a)
	case rtnl.Rate:
		v.MinRate, v.MaxRate = a.Min, a.Max
	}
}

func TestAble(t *testing.T) {
	all := api.PFCaps{MAC: true, VLAN: true, SpoofCheck: true}
	for _, tt := range []struct {
		want Attrs
		text string
	}{
		{Attrs{}, ""}, {Attrs{QoS: 3}, "VLAN priority 3"}, {Attrs{MinRate: 5}, "guarantee"}, {Attrs{MaxRate: 5}, "limit"}, {Attrs{Trust: true}, "trust"},
	} {
		if got := Able(all, tt.want); (tt.text == "") != (got == "") || !strings.Contains(got, tt.text) {
			t.Errorf("%+v: %q, want %q", tt.want, got, tt.text)
		}
	}
	if got := Lacks(api.PFCaps{VLAN: true}); got != "MAC, spoof check" {
		t.Errorf("lacks %q", got)
	}
	var names []string
	for _, tr := range Trials(Key{"x", 0}) {
		names = append(names, tr.Attr.String())
	}
	if !strings.HasPrefix(names[0], "mac ") || slices.Index(names, rtnl.Rate{Max: 100}.String()) < slices.Index(names, rtnl.Trust(true).String()) {
		t.Errorf("trials %q: the rates come last", names)
	}
}
