package sysfstest

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/verbena-cloud/verbena/internal/roce"
)

// driver is a PCI driver.
type driver struct {
	name string
	dir  *node
	ids  map[string]bool // "vendor device"
}

func (k *Kernel) addDriver(name, module string, ids ...string) {
	d := k.drivers[name]
	if d == nil {
		d = &driver{name: name, dir: k.sys.dir("bus/pci/drivers/" + name), ids: map[string]bool{}}
		k.drivers[name] = d
		k.load(module)
		d.dir.link("module", k.sys.dir("module/"+strings.ReplaceAll(module, "-", "_")), 0)
		d.dir.file("bind", nil, func(v string) error { return k.bindWrite(d, v) })
		d.dir.file("unbind", nil, func(v string) error { return k.unbindWrite(d, v) })
		d.dir.file("new_id", nil, func(v string) error { return k.newID(d, v) })
	}
	for _, id := range ids {
		d.ids[id] = true
	}
}

// matches is pci_match_device: an override names the only driver that may have the function.
func (d *driver) matches(f *function) bool {
	if f.override != "" {
		return f.override == d.name
	}
	return d.ids[f.vendor+" "+f.device]
}

// mayProbe is pci_device_can_probe.
func (f *function) mayProbe() bool { return f.vf < 0 || f.port.autoprobe || f.override != "" }

func (k *Kernel) device(text string) (*function, error) {
	a, err := roce.ParsePCI(strings.TrimSpace(text))
	if err != nil {
		return nil, syscall.ENODEV
	}
	if f := k.functions[a]; f != nil {
		return f, nil
	}
	return nil, syscall.ENODEV
}

// bindWrite is bind_store of drivers/base/bus.c.
func (k *Kernel) bindWrite(d *driver, text string) error {
	f, err := k.device(text)
	if err != nil {
		return err
	}
	switch {
	case !d.matches(f):
		return syscall.ENODEV
	case f.driver != nil:
		return syscall.EBUSY
	case f.mayProbe():
		return k.attach(f, d)
	case k.cfg.OldBind:
		k.linkDriver(f, d)
		f.noProb = true
		return nil
	}
	return syscall.ENODEV
}

// unbindWrite is unbind_store; vfio-pci does not let go before its user does.
func (k *Kernel) unbindWrite(d *driver, text string) error {
	f, err := k.device(text)
	if err != nil {
		return err
	}
	if f.driver != d {
		return syscall.ENODEV
	}
	if f.pid != 0 {
		return held{k.freed}
	}
	k.detach(f)
	k.notify()
	return nil
}

// probeWrite is drivers_probe_store: it only says whether the device exists.
func (k *Kernel) probeWrite(text string) error {
	f, err := k.device(text)
	if err != nil {
		return err
	}
	if f.driver != nil {
		return nil
	}
	return k.probe(f)
}

// probe offers a function to all drivers. That none wants it, or one fails, is no error.
func (k *Kernel) probe(f *function) error {
	if !f.mayProbe() {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(k.drivers)) {
		d := k.drivers[name]
		if !d.matches(f) {
			continue
		}
		if err := k.attach(f, d); err != nil && !isErrno(err) {
			return err
		}
		return nil
	}
	return nil
}

func isErrno(err error) bool { return errors.As(err, new(syscall.Errno)) }

// newID is new_id_store: the driver takes every function of that id that has none.
func (k *Kernel) newID(d *driver, text string) error {
	w := strings.Fields(text)
	if len(w) < 2 {
		return syscall.EINVAL
	}
	id := "0x" + strings.TrimPrefix(w[0], "0x") + " 0x" + strings.TrimPrefix(w[1], "0x")
	if d.ids[id] {
		return syscall.EEXIST
	}
	d.ids[id] = true
	for _, f := range k.functions {
		if f.driver == nil && d.matches(f) && f.mayProbe() {
			if err := k.attach(f, d); err != nil && !isErrno(err) {
				return err
			}
		}
	}
	return nil
}

func (k *Kernel) linkDriver(f *function, d *driver) {
	f.driver = d
	f.dir.link("driver", d.dir, f.linksAfter)
	d.dir.link(f.addr.String(), f.dir, 0)
}

// attach is the driver's probe.
func (k *Kernel) attach(f *function, d *driver) error {
	if d.name == "vfio-pci" {
		if f.group == nil {
			return syscall.EINVAL
		}
		k.linkDriver(f, d)
		k.addVFIO(f)
		k.notify()
		return nil
	}
	k.linkDriver(f, d)
	switch {
	case f.port == nil:
	case f.vf < 0:
		k.addNetdev(f, f.port.cfg.Netdev)
		k.addRDMA(f)
	case f.port.cfg.Quirks.NoNetdev > 0:
		f.port.cfg.Quirks.NoNetdev--
		f.dir.dir("net")
	default:
		k.addNetdev(f, vfNetdev(f))
		k.addRDMA(f)
	}
	k.notify()
	return nil
}

// detach takes the driver and what it made from the function.
func (k *Kernel) detach(f *function) {
	if f.driver == nil {
		return
	}
	f.dir.remove("driver")
	f.driver.dir.remove(f.addr.String())
	k.removeVFIO(f)
	k.removeNetdev(f)
	k.removeRDMA(f)
	f.driver, f.noProb = nil, false
}
