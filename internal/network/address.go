package network

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/store"
)

// Owner is the VM that holds an address or a MAC.
type Owner struct {
	UID string `json:"uid"`
	VM  string `json:"vm"` // TENANT/NAME
}

// pool is what makes taking the next address cheap: where to look next, and how many are held. Going
// round reuses an address as late as possible, which spares neighbours stale ARP and GID entries.
type pool struct {
	Next uint32 `json:"next"`
	Used int    `json:"used"`
}

func poolKey(tenant, network string) string {
	return strings.TrimSuffix(object.AddressPrefix(tenant, network), "/")
}

func loadPool(tx store.Tx, tenant, network string) (pool, error) {
	e := tx.Get(poolKey(tenant, network))
	if e == nil {
		return pool{}, nil
	}
	p, err := store.Peek[pool](e)
	if err != nil {
		return pool{}, err
	}
	return *p, nil
}

// at returns the address at an offset into the subnet.
func at(p netip.Prefix, offset uint32) netip.Addr {
	b := p.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+offset)
	return netip.AddrFrom4(b)
}

// TakeAddress gives the VM the fixed address, or the next free one if fixed is empty: never the network's,
// the broadcast or the gateway's address. Its faults speak of the value alone; the caller knows the path.
func TakeAddress(tx store.Tx, n *api.Network, fixed string, to Owner) (string, error) {
	p, err := netip.ParsePrefix(n.Spec.CIDR)
	if err != nil {
		return "", err
	}
	pl, err := loadPool(tx, n.Tenant, n.Name)
	if err != nil {
		return "", err
	}
	var ip netip.Addr
	if fixed != "" {
		ip, err = fixedAddress(tx, n, p, fixed)
	} else {
		ip, pl.Next, err = nextAddress(tx, n, p, pl)
	}
	if err != nil {
		return "", err
	}
	pl.Used++
	if err := store.Put(tx, object.AddressKey(n.Tenant, n.Name, ip.String()), &to); err != nil {
		return "", err
	}
	return ip.String(), store.Put(tx, poolKey(n.Tenant, n.Name), &pl)
}

// CheckAddress parses a fixed address and checks that a VM could have it, whether it is free or not.
func CheckAddress(n *api.Network, fixed string) (netip.Addr, error) {
	ip, err := netip.ParseAddr(fixed)
	if err != nil || !ip.Is4() {
		return ip, fault.New(fault.Invalid, "%s is no IPv4 address", object.Quote(fixed))
	}
	p, err := netip.ParsePrefix(n.Spec.CIDR)
	if err != nil {
		return ip, err
	}
	switch {
	case !p.Contains(ip):
		return ip, fault.New(fault.Invalid, "%s is not in %s of network %s", ip, p, n.Name)
	case ip == p.Addr():
		return ip, fault.New(fault.Invalid, "%s is the address of the network itself", ip)
	case ip == last(p):
		return ip, fault.New(fault.Invalid, "%s is the broadcast address of network %s", ip, n.Name)
	case ip.String() == n.Status.Gateway:
		return ip, fault.New(fault.Invalid, "%s is the gateway of network %s", ip, n.Name)
	}
	return ip, nil
}

func fixedAddress(tx store.Tx, n *api.Network, _ netip.Prefix, fixed string) (netip.Addr, error) {
	ip, err := CheckAddress(n, fixed)
	if err != nil {
		return ip, err
	}
	e := tx.Get(object.AddressKey(n.Tenant, n.Name, ip.String()))
	if e == nil {
		return ip, nil
	}
	owner, err := store.Peek[Owner](e)
	if err != nil {
		return ip, err
	}
	return ip, fault.New(fault.Conflict, "address %s of network %s is held by VM %s; choose another or leave it out", ip, n.Name, owner.VM)
}

func nextAddress(tx store.Tx, n *api.Network, p netip.Prefix, pl pool) (netip.Addr, uint32, error) {
	size := uint32(1)<<(32-p.Bits()) - 2 // host addresses are at the offsets 1 to size
	if pl.Used < int(size)-1 {
		for i := range size {
			offset := (max(pl.Next, 1)-1+i)%size + 1
			ip := at(p, offset)
			text := ip.String()
			if text != n.Status.Gateway && tx.Get(object.AddressKey(n.Tenant, n.Name, text)) == nil {
				return ip, offset%size + 1, nil
			}
		}
	}
	return netip.Addr{}, 0, fault.New(fault.Conflict, "network %s has no free address: all %d of %s are held; delete VMs or use a network with a larger subnet", n.Name, size-1, p)
}

// GiveAddress takes the address back from the VM. It does nothing if the VM does not hold it.
func GiveAddress(tx store.Tx, tenant, network, ip, uid string) error {
	key := object.AddressKey(tenant, network, ip)
	mine, err := held(tx, key, uid)
	if err != nil || !mine {
		return err
	}
	pl, err := loadPool(tx, tenant, network)
	if err != nil {
		return err
	}
	pl.Used--
	tx.Delete(key)
	return store.Put(tx, poolKey(tenant, network), &pl)
}

func held(tx store.Tx, key, uid string) (bool, error) {
	e := tx.Get(key)
	if e == nil {
		return false, nil
	}
	o, err := store.Peek[Owner](e)
	if err != nil {
		return false, err
	}
	return o.UID == uid, nil
}

// macPrefix marks MACs that Verbena derives: locally administered unicast (IEEE 802c, bit 1 set, bit 0 clear).
const macPrefix = "\x02\x76"

// deriveMAC returns the try-th MAC of the VM's index-th interface. It depends on nothing else, so a rebuild
// or a repeated transaction finds the same.
func deriveMAC(uid string, index, try int) roce.MAC {
	var in []byte
	in = append(in, uid...)
	in = binary.BigEndian.AppendUint32(in, uint32(index))
	in = binary.BigEndian.AppendUint32(in, uint32(try))
	sum := sha256.Sum256(in)
	return roce.MAC([]byte(macPrefix + string(sum[:4])))
}

// maxTries bounds the search for a free MAC; with 2^32 of them the chance to need even ten is nil.
const maxTries = 1000

// TakeMAC gives the VM's index-th interface the fixed MAC, or a derived one that nobody holds. MACs are
// unique over all fabrics.
func TakeMAC(tx store.Tx, fixed string, index int, to Owner) (string, error) {
	if fixed != "" {
		m, err := CheckMAC(fixed)
		if err != nil {
			return "", err
		}
		if tx.Get(object.MACKey(m.String())) != nil {
			return "", fault.New(fault.Conflict, "MAC %s is in use; choose another or leave it out", m)
		}
		return m.String(), store.Put(tx, object.MACKey(m.String()), &to)
	}
	for try := range maxTries {
		m := deriveMAC(to.UID, index, try).String()
		if tx.Get(object.MACKey(m)) == nil {
			return m, store.Put(tx, object.MACKey(m), &to)
		}
	}
	return "", fault.New(fault.Conflict, "no free MAC found in %d tries; give a fixed one", maxTries)
}

// parkedNibble ends the first octet of the MACs that agents give to parked VFs; no VM may have such a one.
const parkedNibble = 0x0e

// CheckMAC parses a fixed MAC: it must be a unicast address that no parked VF can have.
func CheckMAC(s string) (roce.MAC, error) {
	m, err := roce.ParseMAC(s)
	if err != nil {
		return m, fault.New(fault.Invalid, "%s is no MAC; write for example 02:5a:10:00:00:07", object.Quote(s))
	}
	if m.IsZero() {
		return m, fault.New(fault.Invalid, "the zero MAC names no interface; a VF with it has node GUID 0 and breaks RDMA connections")
	}
	if !m.Unicast() {
		return m, fault.New(fault.Invalid, "%s is a multicast MAC; the first octet must be even, for example 02:…", m)
	}
	if m[0]&0x0f == parkedNibble {
		return m, fault.New(fault.Invalid, "%s may be the MAC of a parked VF: those have a first octet that ends in e; choose another, for example 02:…", m)
	}
	return m, nil
}

// GiveMAC takes the MAC back from the VM. It does nothing if the VM does not hold it.
func GiveMAC(tx store.Tx, mac, uid string) error {
	key := object.MACKey(mac)
	mine, err := held(tx, key, uid)
	if err != nil || !mine {
		return err
	}
	tx.Delete(key)
	return nil
}
