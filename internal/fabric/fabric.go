// Package fabric has the rules of lossless networks: what an operator may declare, the defaults, and the
// pool of VLANs from which tenant networks take theirs.
//
// A fabric is the key by which VFs are told apart: two VFs of equal cards on different fabrics are not
// interchangeable. Fabrics have one source of truth, the Fabric object; hosts and networks refer to it by name.
package fabric

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/sched"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/units"
)

// Defaults for what a fabric does not say. 4200 holds RoCE's largest MTU of 4096 with its headers;
// priority 3 with DSCP 26 and CNPs in DSCP 48 are what NIC and switch vendors ship.
const (
	DefaultMTU      = 4200
	DefaultPriority = 3
	DefaultDSCP     = 26
	DefaultCNPDSCP  = 48
	MinMTU          = 1280
	MaxMTU          = 9216
)

// Resolved is a fabric with every quantity parsed and every default filled in.
type Resolved struct {
	Name     string
	Speed    units.Rate
	MTU      int
	Priority int
	DSCP     int
	CNPDSCP  int
	SetNICs  bool // agents set the NIC ports, and do not just look
	Pool     Pool
}

// Resolve gives the typed form, or an Invalid fault that names every wrong place.
func Resolve(o *api.Fabric) (Resolved, error) {
	var f fault.Faults
	r := resolve(&f, o)
	return r, f.Err(object.Title(api.KindFabric, &o.Meta))
}

func resolve(f *fault.Faults, o *api.Fabric) Resolved {
	s := o.Spec
	r := Resolved{Name: o.Name, MTU: s.MTU, Priority: DefaultPriority, DSCP: DefaultDSCP, CNPDSCP: DefaultCNPDSCP}
	speed, err := units.ParseRate(s.Speed)
	f.Check("spec.speed", err)
	if err == nil && speed <= 0 {
		f.Add("spec.speed", "the speed of a link must be over 0")
	}
	r.Speed = speed
	switch {
	case s.MTU == 0:
		r.MTU = DefaultMTU
	case s.MTU < MinMTU || s.MTU > MaxMTU:
		f.Add("spec.mtu", "%d is not between %d and %d", s.MTU, MinMTU, MaxMTU)
	}
	number(f, "spec.priority", s.Priority, roce.MaxPriority, &r.Priority)
	number(f, "spec.dscp", s.DSCP, roce.MaxDSCP, &r.DSCP)
	number(f, "spec.cnpDSCP", s.CNPDSCP, roce.MaxDSCP, &r.CNPDSCP)
	if r.DSCP == r.CNPDSCP {
		f.Add("spec.cnpDSCP", "%d is the DSCP of RoCE traffic itself; congestion notifications need another, or they wait behind what they should slow down", r.CNPDSCP)
	}
	switch r.SetNICs = s.NICQoS == "apply"; s.NICQoS {
	case "", "observe", "apply":
	default:
		f.Add("spec.nicQoS", "%s is unknown; use observe or apply", object.Quote(s.NICQoS))
	}
	firmware(f, s.Firmware)
	r.Pool, err = ParsePool(s.VLANPool)
	f.Check("spec.vlanPool", err)
	if err == nil && len(r.Pool) == 0 {
		f.Add("spec.vlanPool", "a fabric needs VLAN ids for its tenant networks, for example [\"100-199\"]")
	}
	return r
}

// Bounds of a fabric's matrix of firmware and drivers.
const (
	maxPairs = 64
	maxBad   = 32
	maxText  = 128
)

func firmware(f *fault.Faults, pairs []api.FirmwarePair) {
	if len(pairs) > maxPairs {
		f.Add("spec.nicFirmware", "%d pairs are too many; at most %d may be", len(pairs), maxPairs)
		return
	}
	for i, p := range pairs {
		path := "spec.nicFirmware[" + strconv.Itoa(i) + "]"
		if p.Driver == "" {
			f.Add(path+".driver", "a driver's name is needed, such as mlx5_core")
		}
		if len(p.Bad) > maxBad {
			f.Add(path+".bad", "%d versions are too many; at most %d may be", len(p.Bad), maxBad)
			continue
		}
		for _, text := range append([]string{p.Driver, p.Board, p.Kernel, p.MinFirmware, p.MaxFirmware, p.MinVersion, p.Why}, p.Bad...) {
			if len(text) > maxText {
				f.Add(path, "a text of %d bytes is too long; at most %d may be", len(text), maxText)
			}
		}
	}
}

func number(f *fault.Faults, path string, v *int, limit int, out *int) {
	if v == nil {
		return
	}
	if *v < 0 || *v > limit {
		f.Add(path, "%d is not between 0 and %d", *v, limit)
	}
	*out = *v
}

// Create adds a fabric.
func Create(tx store.Tx, o *api.Fabric, by object.Who) error {
	var f fault.Faults
	object.CheckMeta(&f, api.KindFabric, &o.Meta)
	resolve(&f, o)
	if err := f.Err(object.Title(api.KindFabric, &o.Meta)); err != nil {
		return err
	}
	if err := object.Vacant(tx, api.KindFabric, &o.Meta); err != nil {
		return err
	}
	object.Born(&o.Meta, api.KindFabric, by)
	o.Status = api.FabricStatus{}
	saved := *o
	return object.Save(tx, &saved)
}

// Update changes a fabric. The VLAN pool can't lose an id that a network holds, and the MTU can't fall
// below a network's: both would break what already runs.
func Update(tx store.Tx, old, o *api.Fabric, _ object.Who) error {
	object.Carry(&o.Meta, &old.Meta)
	var f fault.Faults
	object.CheckMeta(&f, api.KindFabric, &o.Meta)
	r := resolve(&f, o)
	if err := f.Err(object.Title(api.KindFabric, &o.Meta)); err != nil {
		return err
	}
	lost := lostVLANs(tx, o.Name, r.Pool)
	if len(lost) > 0 {
		return fault.New(fault.Conflict, "fabric %s: the VLAN pool %s would lose ids that networks hold: %s; delete those networks first", o.Name, r.Pool, strings.Join(lost, ", "))
	}
	for n, err := range object.All[api.Network](tx, api.KindNetwork, "") {
		if err != nil {
			return err
		}
		if n.Spec.Fabric == o.Name && n.Spec.MTU > r.MTU {
			return fault.New(fault.Conflict, "fabric %s: network %s of tenant %s has MTU %d, over the new %d; lower it there first", o.Name, n.Name, n.Tenant, n.Spec.MTU, r.MTU)
		}
	}
	if err := keepRates(tx, o.Name, r.Speed); err != nil {
		return err
	}
	o.Status = api.FabricStatus{}
	saved := *o
	return object.Save(tx, &saved)
}

// keepRates refuses a speed below what flavors that name the fabric promise.
func keepRates(tx store.Tx, name string, speed units.Rate) error {
	for fl, err := range object.All[api.Flavor](tx, api.KindFlavor, "") {
		if err != nil {
			return err
		}
		if !fl.Spec.RDMA.Wanted() || fl.Spec.RDMA.Fabric != name {
			continue
		}
		for _, text := range []string{fl.Spec.RDMA.MinRate, fl.Spec.RDMA.MaxRate} {
			if rate, err := units.ParseRate(text); err == nil && rate > speed {
				return fault.New(fault.Conflict, "fabric %s: flavor %s promises %s, over the new speed %s; change the flavor first", name, fl.Name, rate, speed)
			}
		}
	}
	return nil
}

func lostVLANs(tx store.Tx, name string, p Pool) []string {
	var lost []string
	for e := range tx.Scan(object.VLANPrefix(name), "") {
		id, err := strconv.Atoi(strings.TrimPrefix(e.Key, object.VLANPrefix(name)))
		if err == nil && !p.Has(id) {
			lost = append(lost, strconv.Itoa(id))
		}
	}
	return lost
}

// Delete removes a fabric that nothing refers to any more.
func Delete(tx store.Tx, o *api.Fabric, _ object.Who) error {
	users, err := users(tx, o.Name)
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return fault.New(fault.Conflict, "fabric %s is used by %s; remove that first", o.Name, strings.Join(users, ", "))
	}
	object.Remove(tx, api.KindFabric, "", o.Name)
	return nil
}

// users names what refers to the fabric, at most a few of each kind.
func users(tx store.Tx, name string) ([]string, error) {
	seen := map[string]bool{}
	for n, err := range object.All[api.Network](tx, api.KindNetwork, "") {
		if err != nil {
			return nil, err
		}
		if n.Spec.Fabric == name {
			seen[fmt.Sprintf("network %s/%s", n.Tenant, n.Name)] = true
		}
	}
	for h, err := range object.All[api.Host](tx, api.KindHost, "") {
		if err != nil {
			return nil, err
		}
		for _, p := range h.Spec.PFs {
			if p.Fabric == name {
				seen["host "+h.Name] = true
			}
		}
	}
	for fl, err := range object.All[api.Flavor](tx, api.KindFlavor, "") {
		if err != nil {
			return nil, err
		}
		if fl.Spec.RDMA.Wanted() && fl.Spec.RDMA.Fabric == name {
			seen["flavor "+fl.Name] = true
		}
	}
	out := slices.Sorted(maps.Keys(seen))
	if len(out) > 8 {
		out = append(out[:8], fmt.Sprintf("%d more", len(out)-8))
	}
	return out, nil
}

// Fill derives the status: what is left of the VLAN pool and of the VFs of all hosts.
func Fill(tx store.Tx, o *api.Fabric) error {
	r, err := Resolve(o)
	if err != nil {
		return err
	}
	free := r.Pool.Size()
	for range tx.Scan(object.VLANPrefix(o.Name), "") {
		free--
	}
	o.Status.VLANsFree, o.Status.VFs, o.Status.VFsFree = free, 0, 0
	for e := range tx.Scan(object.LedgerPrefix(), "") {
		h, err := store.Peek[sched.Host](e)
		if err != nil {
			return err
		}
		for i := range h.PFs {
			if p := &h.PFs[i]; p.Fabric == o.Name {
				o.Status.VFs += p.VFs
				if p.Ready {
					o.Status.VFsFree += p.Free()
				}
			}
		}
	}
	return nil
}
