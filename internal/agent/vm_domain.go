package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// guestPort is the virtio-serial port that the program in the guest talks through.
const guestPort = "org.verbena.guest.0"

// fileName names a VM's files: a rebuild gets new ones.
func fileName(e *entry) string { return fmt.Sprintf("%s-%d", e.Owner.UID, e.Owner.Generation) }

// files makes the VM's disk and seed, if they are not there.
func (a *Agent) files(ctx context.Context, p *progress) (hyper.Disk, string, error) {
	img, err := a.image(p.want.Image)
	if err != nil {
		return hyper.Disk{}, "", err
	}
	disk, err := a.d.Disk.Ensure(ctx, fileName(p.entry), img, p.want.Disk)
	if err != nil {
		return hyper.Disk{}, "", fmt.Errorf("make the disk: %w", err)
	}
	iso, err := a.d.Seed(p.want.Seed, p.want.Instance)
	if err != nil {
		return hyper.Disk{}, "", fmt.Errorf("make the cloud-init seed: %w", err)
	}
	seed, err := a.d.Disk.Seed(ctx, fileName(p.entry), iso)
	if err != nil {
		return hyper.Disk{}, "", fmt.Errorf("store the cloud-init seed: %w", err)
	}
	return disk, seed, nil
}

func (a *Agent) image(name string) (wire.Image, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, i := range a.desired.Images {
		if i.Name == name {
			return i, nil
		}
	}
	return wire.Image{}, fault.New(fault.Unready, "the server has not said where image %s is", name)
}

// define gives the hypervisor the domain's description, if it has another. The hash of what it took is
// in the journal, so that an agent that starts again defines nothing twice.
func (a *Agent) define(ctx context.Context, p *progress, seen *hyper.Seen, disk hyper.Disk, seed string) error {
	d, err := a.domain(ctx, p, disk, seed)
	if err != nil {
		return err
	}
	body, err := json.Marshal(d)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(body)
	hash := hex.EncodeToString(sum[:])
	if seen != nil && p.entry.Defined == hash && seen.Owner == d.Owner {
		return nil
	}
	err = a.d.Hyper.Define(ctx, d)
	a.hv.changed()
	if err != nil {
		return fmt.Errorf("define domain %s: %w", d.Name, err)
	}
	e := *p.entry
	e.Defined = hash
	if err := a.j.put(e); err != nil {
		return err
	}
	p.entry = a.j.get(p.uid)
	return nil
}

// domain builds the whole description from what the server resolved and what was observed here.
func (a *Agent) domain(ctx context.Context, p *progress, disk hyper.Disk, seed string) (hyper.Domain, error) {
	w := p.want
	dom, err := a.domains(ctx, false)
	if err != nil {
		return hyper.Domain{}, err
	}
	d := hyper.Domain{UUID: w.UID, Name: w.Tenant + "." + w.Name, Type: "qemu", Disk: disk, Seed: seed,
		Owner: hyper.Owner{Tenant: w.Tenant, VM: w.Name, Generation: w.Generation}, GuestPorts: []string{guestPort}}
	if dom.host.KVM && !a.cfg.Emulate {
		d.Type = "kvm"
	}
	var near []int
	byID := map[int][]int{}
	for _, c := range cells(ctx, a.d.Tree, &problems{}) {
		byID[c.ID], _ = parseCPUs(c.CPUs)
	}
	for i, c := range w.Cells {
		h := hyper.Cell{ID: c.Guest, HostNode: c.Host, VCPUs: c.VCPUs, Memory: c.Memory, Hugepage: c.Hugepage, Strict: c.Strict}
		if i < len(p.entry.Pins) && len(p.entry.Pins[i]) == c.VCPUs && !slices.Contains(p.entry.Pins[i], "") {
			h.CPUs = p.entry.Pins[i]
		}
		near = append(near, byID[c.Host]...)
		d.Cells = append(d.Cells, h)
	}
	slices.Sort(near)
	d.Emulator = formatCPUs(slices.Compact(near))
	if d.VFs, err = a.hostdevs(ctx, w); err != nil {
		return d, err
	}
	if d.NICs, err = a.nics(w); err != nil {
		return d, err
	}
	return d, nil
}

// hostdevs resolves each VF's PCI address as it is now: it changes over boots.
func (a *Agent) hostdevs(ctx context.Context, w *wire.VM) ([]hyper.VF, error) {
	var out []hyper.VF
	for i, v := range w.VFs {
		h, err := holdOf(v)
		if err != nil {
			return nil, err
		}
		guest, err := roce.ParsePCI(v.GuestPCI)
		if err != nil {
			return nil, fault.New(fault.Invalid, "%s: guest %s", h.Key, err)
		}
		f, err := a.glance(ctx, h.Key.PF)
		if err != nil {
			return nil, err
		}
		_, now, err := f.pick(h.Key)
		if err != nil {
			return nil, err
		}
		out = append(out, hyper.VF{Alias: fmt.Sprintf("rdma%d", i), Host: now.PCI, Cell: v.Cell,
			MAC: h.Want.MAC, VLAN: v.VLAN, QoS: v.QoS, Guest: guest})
	}
	return out, nil
}

func (a *Agent) nics(w *wire.VM) ([]hyper.NIC, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []hyper.NIC
	for _, n := range w.NICs {
		mac, err := roce.ParseMAC(n.MAC)
		if err != nil {
			return nil, fault.New(fault.Invalid, "NIC on network %s: %s", n.Network, err)
		}
		if a.desired.Bridge == "" {
			return nil, fault.New(fault.Unready, "the VM has a NIC on network %s, but the host has no bridge; set spec.bridge of host %s", n.Network, a.cfg.Host)
		}
		out = append(out, hyper.NIC{Bridge: a.desired.Bridge, MAC: mac, VLAN: n.VLAN, MTU: n.MTU})
	}
	return out, nil
}
