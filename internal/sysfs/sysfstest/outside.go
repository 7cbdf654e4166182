package sysfstest

import (
	"fmt"
	"syscall"

	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/rtnl"
)

// Move is a PF that another address has after a reboot, since a card was put in beside it.
type Move struct{ From, To string }

// Reboot starts the host anew: no VFs, nothing bound by hand, modules and links as at first, other IOMMU
// group numbers; whoever held a device is dead. Quirks stay, and so do cables. What hangs at a path, or is
// broken there, is forgotten.
func (k *Kernel) Reboot(moves ...Move) error {
	k.mu.Lock()
	err := k.reboot(moves)
	hooks := k.onBoot
	k.mu.Unlock()
	if err != nil {
		return err
	}
	for _, f := range hooks {
		f()
	}
	return nil
}

func (k *Kernel) reboot(moves []Move) error {
	for _, m := range moves {
		p, err := k.port(m.From)
		if err != nil {
			return fmt.Errorf("move %s: %w", m.From, err)
		}
		p.cfg.PCI = m.To
	}
	for _, t := range k.trouble {
		if t.hang != nil {
			close(t.hang)
		}
	}
	k.trouble = map[string]*trouble{}
	err := k.boot()
	close(k.freed)
	k.freed = make(chan struct{})
	k.notify()
	return err
}

// OnReboot makes f be called after each reboot.
func (k *Kernel) OnReboot(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.onBoot = append(k.onBoot, f)
}

// Unplug takes a PF with its VFs away, whoever holds them.
func (k *Kernel) Unplug(pci string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	p, err := k.port(pci)
	if err != nil {
		return fmt.Errorf("unplug %s: %w", pci, err)
	}
	for _, f := range p.vfs {
		f.pid = 0
		k.drop(f)
	}
	p.vfs, p.attrs = nil, nil
	k.drop(p.fn)
	close(k.freed)
	k.freed = make(chan struct{})
	k.notify()
	return nil
}

// Rename gives a netdev another name, as udev and firmware updates do.
func (k *Kernel) Rename(link, name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.netdevs[link]
	if n == nil {
		return fmt.Errorf("rename %s: %w", link, syscall.ENODEV)
	}
	if k.netdevs[name] != nil {
		return fmt.Errorf("rename %s to %s: %w", link, name, syscall.EEXIST)
	}
	class := k.sys.dir("class/net")
	delete(class.kids, n.name)
	delete(k.netdevs, n.name)
	k.netdevs[name] = n
	delete(n.dir.parent.kids, n.name)
	n.name = name
	n.dir.parent.put(name, n.dir)
	class.link(name, n.dir, 0)
	if n.fn.vf < 0 {
		n.fn.port.cfg.Netdev = name
	}
	k.notify()
	return nil
}

// Cable plugs a PF's cable in or pulls it.
func (k *Kernel) Cable(pci string, in bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	p, err := k.port(pci)
	if err != nil {
		return fmt.Errorf("cable of %s: %w", pci, err)
	}
	p.cfg.NoCable = !in
	k.notify()
	return nil
}

// State is a function as the hardware has it, for a test to judge.
type State struct {
	PCI      string
	Driver   string // "" = none
	Override string
	Group    int // -1 = none
	Holder   int // process that has it open
	Resets   int
	Dirty    bool // a guest had it and it was not reset since
	Attr     rtnl.VF
}

// VF returns VF number i of the PF at pci.
func (k *Kernel) VF(pci string, i int) (State, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p, err := k.port(pci)
	if err != nil {
		return State{}, err
	}
	if i < 0 || i >= len(p.vfs) {
		return State{}, fmt.Errorf("VF %d of %s: it has %d: %w", i, pci, len(p.vfs), syscall.ENODEV)
	}
	f := p.vfs[i]
	s := State{PCI: f.addr.String(), Override: f.override, Group: -1, Holder: f.pid, Resets: f.resets, Dirty: f.dirty, Attr: p.attrs[i]}
	if f.driver != nil {
		s.Driver = f.driver.name
	}
	if f.group != nil {
		s.Group = f.group.id
	}
	s.Attr.SpoofCheck, s.Attr.Trust, s.Attr.LinkState = dup(s.Attr.SpoofCheck), dup(s.Attr.Trust), dup(s.Attr.LinkState)
	return s, nil
}

// Driver returns the driver of the function at pci, "" if it has none, and whether it is there.
func (k *Kernel) Driver(pci roce.PCIAddr) (string, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.functions[pci]
	if f == nil {
		return "", false
	}
	if f.driver == nil {
		return "", true
	}
	return f.driver.name, true
}
