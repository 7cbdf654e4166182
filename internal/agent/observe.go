package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/rtnl"
	"github.com/verbena-cloud/verbena/internal/sriov"
	"github.com/verbena-cloud/verbena/internal/sysfs"
)

// function is a PF with what inventory tells of it beyond the facts that the rules need.
type function struct {
	sriov.PF
	RDMA, MAC, Serial, Card, Vendor, Device, Firmware string
	Port, Cell, MTU                                   int
	Speed                                             int64
	// err is why the facts are incomplete, with its errno: only "it is gone" is evidence of absence.
	err error
}

// kernel observes PFs and VFs. What can't change while a function exists is read once.
type kernel struct {
	tree  sysfs.Tree
	links rtnl.Links
	// permanent asks the driver for a link's burnt-in address; nil where nothing can.
	permanent func(ctx context.Context, link string) (string, error)

	mu    sync.Mutex
	still map[string]still        // by PCI address
	known map[string]bool         // functions that are no PFs
	done  map[string]groupOf      // VFs that were enumerated completely
	slot  map[string]roce.PCIAddr // address of a VF by its virtfn link
}

// groupOf remembers a VF's IOMMU group and the other functions in it, which only hotplug changes, and
// its override as it was last read.
type groupOf struct {
	group    string
	mates    []string
	override string
}

// still is what stays the same as long as the function exists.
type still struct {
	vendor, device, serial, key, slot string
	card                              string // by its RDMA device, once that was seen
	cell                              int
}

func newKernel(tree sysfs.Tree, links rtnl.Links) *kernel {
	return &kernel{tree: tree, links: links, still: map[string]still{}, known: map[string]bool{}, done: map[string]groupOf{}, slot: map[string]roce.PCIAddr{}}
}

// readTime bounds the reading of one PF: sriov_numvfs answers only after a change under way, and another
// PF must not wait for that.
const readTime = 5 * time.Second

// gone reports that a path does not exist, as opposed to everything else that reading can run into.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// functions lists the PCI addresses of all PFs that could serve VFs: network functions with SR-IOV, or
// without (its firmware may have it off) if match names them.
func (k *kernel) functions(ctx context.Context, prob *problems) ([]string, error) {
	all, err := k.tree.List(ctx, "bus/pci/devices")
	if err != nil {
		return nil, fmt.Errorf("list PCI functions: %w", err)
	}
	k.forget(all)
	var out []string
	for _, bdf := range all {
		if k.skip(bdf) {
			continue
		}
		ok, err := k.isPF(ctx, bdf)
		switch {
		case err != nil:
			prob.add(err)
		case ok:
			out = append(out, bdf)
		default:
			k.mu.Lock()
			k.known[bdf] = true
			k.mu.Unlock()
		}
	}
	return out, nil
}

func (k *kernel) skip(bdf string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.known[bdf]
}

// forget drops what is remembered of functions that are gone: another may come to their address.
func (k *kernel) forget(all []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for bdf := range k.known {
		if _, ok := slices.BinarySearch(all, bdf); !ok {
			delete(k.known, bdf)
		}
	}
	for bdf := range k.done {
		if _, ok := slices.BinarySearch(all, bdf); !ok {
			delete(k.done, bdf)
		}
	}
	for id, a := range k.slot {
		if _, ok := slices.BinarySearch(all, a.String()); !ok {
			delete(k.slot, id)
		}
	}
	for bdf := range k.still {
		if _, ok := slices.BinarySearch(all, bdf); !ok {
			delete(k.still, bdf)
		}
	}
}

// isPF reports whether the function is a network PF: PCI base class 02, no physfn.
func (k *kernel) isPF(ctx context.Context, bdf string) (bool, error) {
	if _, ok := k.remembered(bdf); ok {
		return true, nil
	}
	if _, err := roce.ParsePCI(bdf); err != nil {
		return false, err
	}
	dir := "bus/pci/devices/" + bdf
	class, err := k.tree.Read(ctx, dir+"/class")
	if err != nil {
		return false, err
	}
	if !strings.HasPrefix(class, "0x02") {
		return false, nil
	}
	names, err := k.tree.List(ctx, dir)
	if err != nil {
		return false, err
	}
	return !slices.Contains(names, "physfn"), nil
}

func (k *kernel) remembered(bdf string) (still, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s, ok := k.still[bdf]
	return s, ok
}

// fn observes one PF. Of its VFs it learns index and address only; see detail.
func (k *kernel) fn(ctx context.Context, bdf string, prob *problems) function {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	f := function{}
	addr, err := roce.ParsePCI(bdf)
	if err != nil {
		f.fail(err)
		return f
	}
	f.PCI = addr
	var failed error
	r := reader{ctx: ctx, tree: k.tree, dir: "bus/pci/devices/" + bdf, prob: prob, err: &failed}
	names := r.names()
	f.Driver = r.link("driver")
	f.Supported = slices.Contains(names, "sriov_totalvfs") && slices.Contains(names, "sriov_numvfs")
	if f.Supported {
		f.Total = r.must("sriov_totalvfs")
		f.Count = r.must("sriov_numvfs")
		f.Autoprobe = r.text("sriov_drivers_autoprobe") == "1"
	}
	if slices.Contains(names, "net") {
		f.Netdev = k.netdev(r)
	}
	if slices.Contains(names, "infiniband") {
		k.rdma(r, &f)
	}
	if f.Netdev != "" {
		k.link(r, &f)
	}
	k.identify(r, &f)
	f.VFs = k.slots(r, names, f.Key)
	if failed != nil {
		f.fail(failed)
	}
	return f
}

func (f *function) fail(err error) {
	f.err = err
	f.Unread = text(err)
}

// netdev returns the function's first netdev. ConnectX-3 shows two under one function; the second
// port's has another dev_port and serves no VFs of its own here.
func (k *kernel) netdev(r reader) string {
	names := r.at(r.dir + "/net").names()
	if len(names) < 2 {
		if len(names) == 1 {
			return names[0]
		}
		return ""
	}
	for _, n := range names {
		if port, err := r.tree.Read(r.ctx, "class/net/"+n+"/dev_port"); err == nil && port == "0" {
			return n
		}
	}
	return names[0]
}

func (k *kernel) rdma(r reader, f *function) {
	names := r.at(r.dir + "/infiniband").names()
	if len(names) == 0 {
		return
	}
	f.RDMA = names[0]
	sub := r.at(r.dir + "/infiniband/" + f.RDMA)
	f.Firmware = sub.text("fw_ver")
	f.Card = sub.text("sys_image_guid")
}

// link reads the netdev's side. Speed and carrier answer EINVAL while the link is down.
func (k *kernel) link(r reader, f *function) {
	r = r.at("class/net/" + f.Netdev)
	flags, err := strconv.ParseUint(strings.TrimPrefix(r.text("flags"), "0x"), 16, 32)
	f.Up = err == nil && flags&1 != 0 // IFF_UP
	f.LinkUp = f.Up && r.text("carrier") == "1"
	if f.LinkUp {
		if mbit, err := strconv.ParseInt(r.text("speed"), 10, 64); err == nil && mbit > 0 && mbit < 1<<31 {
			f.Speed = mbit * 1_000_000
		}
	}
	f.MTU, _ = strconv.Atoi(r.text("mtu"))
	f.MAC = r.text("address")
	f.Bond = r.link("master")
}

// identify finds the PF's stable key: its permanent MAC, from the bond's notes if it is in one (a slave
// wears the bond's address), else the card's serial number. What was found once holds as long as the
// function exists, since a MAC set by hand is not permanent; but a serial number that stands in for the MAC
// of a netdev that is still to come, or can't be read now, must not become the key for good.
func (k *kernel) identify(r reader, f *function) {
	s, ok := k.remembered(f.PCI.String())
	if !ok {
		s = still{vendor: r.text("vendor"), device: r.text("device"), cell: r.number("numa_node", -1)}
		s.serial = k.serial(r)
		s.slot = fmt.Sprintf("%04x:%02x:%02x", f.PCI.Domain, f.PCI.Bus, f.PCI.Slot)
	}
	f.Vendor, f.Device, f.Serial, f.Cell = s.vendor, s.device, s.serial, s.cell
	f.Port = int(f.PCI.Function)
	f.Key = s.key
	if s.key == "" {
		if f.Key = k.key(r, f); f.Netdev != "" {
			s.key = f.Key
		}
	}
	if f.Card != "" {
		s.card = f.Card
	}
	f.Card = s.card // the ports of one card are told by it, also while one of them has no RDMA device
	if f.Card == "" {
		f.Card = s.serial
	}
	if f.Card == "" {
		f.Card = s.slot
	}
	if f.Key == "" {
		if *r.err == nil {
			r.prob.addf("PF %s has no permanent MAC and no serial number, so it can't be told from another after a reboot: it is left alone", f.PCI)
		}
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.still[f.PCI.String()] = s
}

// netAddrPermanent is NET_ADDR_PERM of include/uapi/linux/netdevice.h.
const netAddrPermanent = "0"

func (k *kernel) key(r reader, f *function) string {
	port := int(f.PCI.Function)
	if f.Netdev != "" {
		r = r.at("class/net/" + f.Netdev)
		if n := r.number("dev_port", 0); n > 0 {
			port = n
		}
		mac := f.MAC
		if r.sure("addr_assign_type") != netAddrPermanent {
			mac = ""
		}
		if f.Bond != "" {
			if perm := r.sure("bonding_slave/perm_hwaddr"); perm != "" {
				mac = perm
			}
		}
		if mac == "" && k.permanent != nil {
			var err error
			if mac, err = k.permanent(r.ctx, f.Netdev); err != nil {
				r.fail(err)
			}
		}
		if m, err := roce.ParseMAC(mac); err == nil && m.Unicast() {
			return fmt.Sprintf("%s-p%d", m, port)
		}
	}
	if *r.err == nil && f.Serial != "" && safeName.MatchString(f.Serial) {
		return fmt.Sprintf("%s-p%d", f.Serial, port)
	}
	return ""
}

// serial reads the serial number from the card's vital product data; most virtual NICs have none.
func (k *kernel) serial(r reader) string {
	raw, err := r.tree.Read(r.ctx, r.dir+"/vpd")
	if err != nil {
		return ""
	}
	return vpdSerial([]byte(raw))
}

// slots lists the VFs that the PF shows, from its virtfn links, in numeric order.
func (k *kernel) slots(r reader, names []string, key string) []sriov.VF {
	var indexes []int
	for _, n := range names {
		if digits, ok := strings.CutPrefix(n, "virtfn"); ok {
			if i, err := strconv.Atoi(digits); err == nil {
				indexes = append(indexes, i)
			}
		}
	}
	slices.Sort(indexes)
	out := make([]sriov.VF, 0, len(indexes))
	for _, i := range indexes {
		var err error
		v := sriov.VF{Key: sriov.Key{PF: key, Index: i}}
		v.PCI, err = k.address(r, "virtfn"+strconv.Itoa(i))
		if gone(err) {
			continue // it vanished between the two calls
		}
		if err != nil {
			v.Unread = text(err)
		}
		out = append(out, v)
	}
	return out
}

// address returns where a virtfn link leads. The kernel derives it from the PF's address and the index
// (pci_iov_virtfn_bus, pci_iov_virtfn_devfn), so it holds as long as the PF stays in its place.
func (k *kernel) address(r reader, virtfn string) (roce.PCIAddr, error) {
	id := r.dir + "/" + virtfn
	k.mu.Lock()
	a, ok := k.slot[id]
	k.mu.Unlock()
	if ok {
		return a, nil
	}
	target, err := r.tree.Link(r.ctx, id)
	if err != nil {
		return a, err
	}
	if a, err = roce.ParsePCI(target); err != nil {
		return a, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.slot[id] = a
	return a, nil
}
