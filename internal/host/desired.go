package host

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fabric"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/flavor"
	"github.com/verbena-cloud/verbena/internal/image"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/sched"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/units"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// Desired returns everything that the host must be. It follows the claims: a VM that holds anything of the
// host is in it, until the release was proven.
func Desired(tx store.Tx, name string) (*wire.Desired, error) {
	o, err := object.Peek[api.Host](tx, api.KindHost, "", name)
	if err != nil {
		return nil, err
	}
	d := &wire.Desired{Host: name, Revision: tx.Rev(), Bridge: o.Spec.Bridge, PFs: []wire.PF{}, VMs: []wire.VM{}}
	for _, p := range o.Spec.PFs {
		q, err := quality(tx, p.Fabric)
		if err != nil {
			return nil, err
		}
		d.PFs = append(d.PFs, wire.PF{Match: p.Match, Fabric: p.Fabric, VFs: p.VFs, AllowManagement: p.AllowManagement, AllowBond: p.AllowBond, QoS: q})
	}
	if d.Preflight, err = expected(tx, o.Spec.PFs); err != nil {
		return nil, err
	}
	images := map[string]bool{}
	for e := range tx.Scan(object.ClaimPrefix(name), "") {
		c, err := store.Peek[sched.Claim](e)
		if err != nil {
			return nil, err
		}
		v, err := desiredVM(tx, c)
		if err != nil {
			return nil, fmt.Errorf("desired state of VM %s/%s on host %s: %w", c.Tenant, c.Name, name, err)
		}
		d.VMs = append(d.VMs, v)
		images[v.Image] = true
	}
	for i := range images {
		img, err := object.Peek[api.Image](tx, api.KindImage, "", i)
		if err != nil {
			return nil, err
		}
		d.Images = append(d.Images, wire.Image{Name: i, Source: img.Spec.Source, SHA256: img.Spec.SHA256, Format: image.Format(img.Spec)})
	}
	slices.SortFunc(d.Images, func(a, b wire.Image) int { return strings.Compare(a.Name, b.Name) })
	return d, nil
}

// quality is what a fabric asks of its NIC ports, nil if there is no such fabric.
func quality(tx store.Tx, name string) (*wire.QoS, error) {
	o, err := object.Peek[api.Fabric](tx, api.KindFabric, "", name)
	if fault.Is(err, fault.NotFound) {
		return nil, nil //nolint:nilnil // nothing is asked
	}
	if err != nil {
		return nil, err
	}
	r, err := fabric.Resolve(o)
	if err != nil {
		return nil, err
	}
	return &wire.QoS{Priority: r.Priority, DSCP: r.DSCP, CNPDSCP: r.CNPDSCP, Apply: r.SetNICs}, nil
}

func desiredVM(tx store.Tx, c *sched.Claim) (wire.VM, error) {
	key := object.Key(api.KindVM, c.Tenant, c.Name)
	o, err := object.Peek[api.VM](tx, api.KindVM, c.Tenant, c.Name)
	if err != nil {
		return wire.VM{}, err
	}
	fl, err := object.Peek[api.Flavor](tx, api.KindFlavor, "", o.Spec.Flavor)
	if err != nil {
		return wire.VM{}, err
	}
	size, err := flavor.Resolve(fl)
	if err != nil {
		return wire.VM{}, err
	}
	v := wire.VM{
		UID: o.UID, Tenant: o.Tenant, Name: o.Name, Generation: o.Status.Generation, Absent: o.Deleting != nil,
		Power: o.Spec.Power, Image: o.Spec.Image, Disk: int64(size.Disk), Revision: tx.Get(key).Rev,
		Instance: fmt.Sprintf("%s-%d", o.UID, o.Status.Generation),
		Seed:     wire.Seed{Hostname: o.Name, SSHKeys: o.Spec.SSHKeys, UserData: o.Spec.UserData, Interfaces: []wire.SeedLink{}},
	}
	if v.Power == "" {
		v.Power = "on"
	}
	for _, cell := range o.Status.Cells {
		page, _ := units.ParseBytes(cell.Hugepages) // "" gives 0: normal pages
		v.Cells = append(v.Cells, wire.Cell{Guest: cell.Guest, Host: cell.Host, VCPUs: cell.VCPUs, Memory: cell.Memory, Hugepage: int64(page), Strict: len(o.Status.VFs) > 0})
	}
	if err := links(tx, o, &v); err != nil {
		return wire.VM{}, err
	}
	return v, nil
}

// links fills in VFs, NICs and the guest's configuration of both. Only the first interface gets the
// gateway: two default routes would send answers out of the wrong port.
func links(tx store.Tx, o *api.VM, v *wire.VM) error {
	add := func(name, mac, ip, network string, rdma bool) (*api.Network, error) {
		n, err := object.Peek[api.Network](tx, api.KindNetwork, o.Tenant, network)
		if err != nil {
			return nil, err
		}
		p, err := netip.ParsePrefix(n.Spec.CIDR)
		if err != nil {
			return nil, err
		}
		l := wire.SeedLink{Name: name, MAC: mac, Address: fmt.Sprintf("%s/%d", ip, p.Bits()), MTU: n.Status.MTU, RDMA: rdma}
		if len(v.Seed.Interfaces) == 0 {
			l.Gateway, l.DNS = n.Status.Gateway, n.Spec.DNS
		}
		v.Seed.Interfaces = append(v.Seed.Interfaces, l)
		return n, nil
	}
	for i, f := range o.Status.VFs {
		if _, err := add(fmt.Sprintf("rdma%d", i), f.MAC, f.IP, f.Network, true); err != nil {
			return err
		}
		v.VFs = append(v.VFs, wire.VF{
			PF: f.PF, Index: f.Index, Cell: f.Cell, GuestPCI: f.GuestPCI, MAC: f.MAC, VLAN: f.VLAN, QoS: f.QoS,
			SpoofCheck: f.SpoofCheck, MinRate: mbps(f.MinRate), MaxRate: mbps(f.MaxRate), Network: f.Network,
		})
	}
	for i, n := range o.Status.NICs {
		net, err := add(fmt.Sprintf("eth%d", i), n.MAC, n.IP, n.Network, false)
		if err != nil {
			return err
		}
		v.NICs = append(v.NICs, wire.NIC{MAC: n.MAC, VLAN: n.VLAN, MTU: net.Status.MTU, Network: n.Network})
	}
	return nil
}

func mbps(text string) uint32 {
	r, err := units.ParseRate(text)
	if err != nil {
		return 0
	}
	return r.Mbps()
}
