// Package dcb names what dcbnl tells and takes of a NIC port's priorities: flow control per priority (PFC),
// bandwidth per traffic class (ETS), which packets have which priority (APP, trust), buffers, and who
// owns all that (DCBX). Source: RTM_GETDCB and RTM_SETDCB, include/uapi/linux/dcbnl.h.
package dcb

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"syscall"
)

// Priorities is how many priorities (802.1Q PCP), traffic classes and buffers there are
// (IEEE_8021QAZ_MAX_TCS, DCBX_MAX_BUFFERS).
const Priorities = 8

// Mode says who runs DCBX on the port and in which dialect (DCB_CAP_DCBX_*).
type Mode uint8

// The kernel's bits.
const (
	Host   Mode = 0x01 // the host configures the port
	LLD    Mode = 0x02 // another entity does: firmware with its own LLDP agent
	CEE    Mode = 0x04
	IEEE   Mode = 0x08
	Static Mode = 0x10 // the other entity does not negotiate
)

// HostIEEE is the only mode in which every driver lets the host write (bnxt_en wants both bits).
const HostIEEE = Host | IEEE

// Writable reports whether the host may configure the port.
func (m Mode) Writable() bool { return m&Host != 0 && m&LLD == 0 }

// String names the bits as dcb(8) takes them; "firmware" is no bit at all, which mlx5 shows when its
// firmware negotiates.
func (m Mode) String() string {
	var out []string
	for _, b := range []struct {
		bit  Mode
		name string
	}{{Host, "host"}, {LLD, "lld-managed"}, {CEE, "cee"}, {IEEE, "ieee"}, {Static, "static"}} {
		if m&b.bit != 0 {
			out = append(out, b.name)
		}
	}
	if len(out) == 0 {
		return "firmware"
	}
	return strings.Join(out, " ")
}

// Set is a set of priorities, bit n for priority n.
type Set uint8

// Of is the set of these priorities.
func Of(prio ...int) Set {
	var s Set
	for _, p := range prio {
		s |= 1 << p
	}
	return s
}

// Has reports whether priority p is in the set.
func (s Set) Has(p int) bool { return p >= 0 && p < Priorities && s&(1<<p) != 0 }

// String lists the priorities, "none" for an empty set.
func (s Set) String() string {
	if s == 0 {
		return "none"
	}
	out := make([]string, 0, bits.OnesCount8(uint8(s)))
	for p := range Priorities {
		if s.Has(p) {
			out = append(out, strconv.Itoa(p))
		}
	}
	return strings.Join(out, ",")
}

// PFC is priority flow control (struct ieee_pfc).
type PFC struct {
	Cap     int    // how many priorities may have it at one time
	Enabled Set    // the priorities that have it
	MBC     bool   // the port can bypass MACsec
	Delay   uint16 // allowance for the link's delay: bit times by IEEE, cable length in m on mlx5; 0 = as it is
	// Requests and Indications count PFC frames of each priority since the driver started: sent and
	// received on mlx5, bnxt_en, ice and i40e, the other way round on ixgbe.
	Requests, Indications [Priorities]uint64
}

// TSA is the algorithm that picks packets of a traffic class.
type TSA uint8

// The kernel's values.
const (
	Strict TSA = 0
	Shaper TSA = 1 // credit based
	Shares TSA = 2 // ETS
	Vendor TSA = 255
)

// String names the algorithm as dcb(8) takes it.
func (a TSA) String() string {
	switch a {
	case Strict:
		return "strict"
	case Shaper:
		return "cb-shaper"
	case Shares:
		return "ets"
	case Vendor:
		return "vendor"
	}
	return fmt.Sprintf("tsa-%d", uint8(a))
}

// ETS is enhanced transmission selection (struct ieee_ets). Shares are percent of the link's bandwidth and
// make 100 over the classes whose algorithm is Shares.
type ETS struct {
	Willing bool // takes the peer's recommendation
	Cap     int  // how many traffic classes there are
	CBS     bool // credit based shaper supported
	TxBW    [Priorities]uint8
	RxBW    [Priorities]uint8
	TSA     [Priorities]TSA
	PrioTC  [Priorities]uint8 // traffic class of each priority
	// Reco is what the port recommends its peer.
	RecoBW     [Priorities]uint8
	RecoTSA    [Priorities]TSA
	RecoPrioTC [Priorities]uint8
}

// Selector says what App.Protocol is (IEEE_8021QAZ_APP_SEL_*).
type Selector uint8

// The kernel's values.
const (
	EtherType Selector = 1
	Stream    Selector = 2 // TCP or SCTP port
	Datagram  Selector = 3 // UDP or DCCP port
	AnyPort   Selector = 4
	DSCP      Selector = 5   // Linux 4.17
	PCP       Selector = 255 // 8 × DEI + PCP of the tag; not of IEEE; Linux 6.2
)

// name is that of dcb(8) for an entry of the APP table; dcb(8) trusts by "dscp" and "pcp".
func (s Selector) name() string {
	switch s {
	case EtherType:
		return "ethtype"
	case Stream:
		return "stream-port"
	case Datagram:
		return "dgram-port"
	case AnyPort:
		return "port"
	case DSCP:
		return "dscp"
	case PCP:
		return "pcp"
	}
	return fmt.Sprintf("selector-%d", uint8(s))
}

// String names the selector as dcb(8) does.
func (s Selector) String() string { return s.name() }

// App gives packets of one protocol a priority (struct dcb_app). One protocol may stand in the table
// with several priorities.
type App struct {
	Selector Selector
	Protocol uint16 // an EtherType, a port or a DSCP, in host byte order
	Priority int    // 0–7
}

// String is the entry as dcb(8) takes it.
func (a App) String() string {
	if a.Selector == EtherType {
		return fmt.Sprintf("%s-prio %#04x:%d", a.Selector, a.Protocol, a.Priority)
	}
	return fmt.Sprintf("%s-prio %d:%d", a.Selector, a.Protocol, a.Priority)
}

// Buffer is the port's receive buffers (struct dcbnl_buffer). Sizes are bytes.
type Buffer struct {
	Prio  [Priorities]uint8 // buffer of each priority
	Size  [Priorities]uint32
	Total uint32 // of all, read only
}

// State is what the driver of a port tells. A nil pointer or slice means that it does not tell that part,
// which is not the same as nothing being set.
type State struct {
	Mode    *Mode
	PFC     *PFC
	ETS     *ETS
	Apps    []App               // ordered; an empty table is not nil
	Trust   []Selector          // which APP entries count, the first most (Linux 6.2, few drivers)
	MaxRate *[Priorities]uint64 // kbit/s of each traffic class, 0 = no limit
	Buffer  *Buffer
	// What the switch told by LLDP, where somebody negotiates.
	PeerPFC  *PFC
	PeerETS  *ETS
	PeerApps []App
}

// Links reads and configures ports. link is a netdev name as sysfs shows it now; callers look it up each
// time, since names change. Errors hold a syscall.Errno: ENODEV means that the link is gone; see Unsupported
// and ErrOwned for the others that matter.
type Links interface {
	// Get returns all that the driver tells in one request; it is Unsupported where the driver has no DCB.
	Get(ctx context.Context, link string) (State, error)
	// Set makes one change and reads it back. The kernel drops what a driver has no function for and
	// reports success, so a change that can't be read back is an error: Unsupported, or ErrNotTaken.
	Set(ctx context.Context, link string, c Change) error
}

// ErrOwned is in the error of a change that the driver refuses while firmware or another LLDP agent owns
// the port's DCB.
var ErrOwned = errors.New("the host does not own DCB on this port")

// ErrNotTaken is in the error of a change that was accepted and reads back as something else.
var ErrNotTaken = errors.New("accepted, but it reads back differently")

// Unsupported reports that the driver has no function for what was asked, as opposed to a failure.
func Unsupported(err error) bool { return errors.Is(err, syscall.EOPNOTSUPP) }
