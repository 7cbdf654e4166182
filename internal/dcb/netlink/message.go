package netlink

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/verbena-cloud/verbena/internal/dcb"
	"github.com/verbena-cloud/verbena/internal/nlmsg"
)

// Commands and attributes (include/uapi/linux/dcbnl.h).
const (
	cmdIEEESet = 20
	cmdIEEEGet = 21
	cmdGetDCBX = 22
	cmdSetDCBX = 23
	cmdIEEEDel = 27

	attrIfname = 1
	attrIEEE   = 13
	attrDCBX   = 14

	ieeeETS        = 1
	ieeePFC        = 2
	ieeeAppTable   = 3
	ieeePeerETS    = 4
	ieeePeerPFC    = 5
	ieeePeerApps   = 6
	ieeeMaxRate    = 7
	dcbBuffer      = 10
	dcbTrustTable  = 11
	ieeeApp        = 1
	dcbApp         = 2 // of selectors that IEEE does not know
	headerSize     = 4 // struct dcbmsg
	pfcSize        = 136
	etsSize        = 59
	appSize        = 4
	maxRateSize    = 64
	bufferSize     = 44
	pfcRequests    = 8  // offset, behind the padding of delay
	pfcIndications = 72 // offset
)

// request is the body of a dcbnl message about a link: struct dcbmsg, the name, and attributes.
func request(cmd uint8, link string, attrs []byte) []byte {
	b := []byte{unix.AF_UNSPEC, cmd, 0, 0}
	return append(nlmsg.AppendString(b, attrIfname, link), attrs...)
}

// encode gives the command and attributes of a change. What a struct holds beside the change stays as it
// was in before.
func encode(c dcb.Change, before dcb.State) (cmd uint8, attrs []byte, err error) {
	nested := func(kind uint16, data []byte) []byte {
		return nlmsg.Append(nil, attrIEEE|unix.NLA_F_NESTED, nlmsg.Append(nil, kind, data))
	}
	switch c := c.(type) {
	case dcb.SetMode:
		return cmdSetDCBX, nlmsg.Append(nil, attrDCBX, []byte{byte(c)}), nil
	case dcb.SetPFC:
		return cmdIEEESet, nested(ieeePFC, encodePFC(c, before.PFC)), nil
	case dcb.SetETS:
		return cmdIEEESet, nested(ieeeETS, encodeETS(c, before.ETS)), nil
	case dcb.AddApp:
		return cmdIEEESet, nested(ieeeAppTable|unix.NLA_F_NESTED, encodeApp(dcb.App(c))), nil
	case dcb.DelApp:
		return cmdIEEEDel, nested(ieeeAppTable|unix.NLA_F_NESTED, encodeApp(dcb.App(c))), nil
	case dcb.SetTrust:
		var list []byte
		for _, s := range c {
			list = nlmsg.Append(list, appKind(s), []byte{byte(s)})
		}
		return cmdIEEESet, nested(dcbTrustTable|unix.NLA_F_NESTED, list), nil
	case dcb.SetMaxRate:
		var b []byte
		for _, v := range c {
			b = binary.NativeEndian.AppendUint64(b, v)
		}
		return cmdIEEESet, nested(ieeeMaxRate, b), nil
	case dcb.SetBuffer:
		b := append([]byte(nil), c.Prio[:]...)
		for _, v := range c.Size {
			b = binary.NativeEndian.AppendUint32(b, v)
		}
		return cmdIEEESet, nested(dcbBuffer, binary.NativeEndian.AppendUint32(b, 0)), nil
	}
	return 0, nil, fmt.Errorf("no encoding of change %T", c)
}

// encodePFC is struct ieee_pfc; the kernel ignores the counters.
func encodePFC(c dcb.SetPFC, before *dcb.PFC) []byte {
	b := make([]byte, pfcSize)
	delay := c.Delay
	if before != nil {
		b[0], b[2] = byte(before.Cap), flag(before.MBC)
		if delay == 0 {
			delay = before.Delay
		}
	}
	b[1] = byte(c.Enabled)
	binary.NativeEndian.PutUint16(b[4:], delay)
	return b
}

// encodeETS is struct ieee_ets, not willing, with what the port does as its recommendation.
func encodeETS(c dcb.SetETS, before *dcb.ETS) []byte {
	b := make([]byte, 3, etsSize)
	if before != nil {
		b[1], b[2] = byte(before.Cap), flag(before.CBS)
	}
	tsa := make([]byte, 0, dcb.Priorities)
	for _, a := range c.TSA {
		tsa = append(tsa, byte(a))
	}
	for _, part := range [][]byte{c.TxBW[:], c.TxBW[:], tsa, c.PrioTC[:], c.TxBW[:], tsa, c.PrioTC[:]} {
		b = append(b, part...)
	}
	return b
}

// encodeApp is struct dcb_app in the attribute of its selector.
func encodeApp(a dcb.App) []byte {
	b := binary.NativeEndian.AppendUint16([]byte{byte(a.Selector), byte(a.Priority)}, a.Protocol)
	return nlmsg.Append(nil, appKind(a.Selector), b)
}

// appKind is the attribute for a selector; the kernel refuses one in the other's.
func appKind(s dcb.Selector) uint16 {
	if s == dcb.PCP {
		return dcbApp
	}
	return ieeeApp
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// result reads what the driver said to a change: 0, or a negative errno in one byte (DCB_ATTR_IEEE), or
// for a mode anything but 0 for a refusal (DCB_ATTR_DCBX).
func result(cmd uint8, body []byte) error {
	if len(body) < headerSize {
		return fmt.Errorf("%w: an answer of %d bytes", nlmsg.ErrMalformed, len(body))
	}
	for a, err := range nlmsg.Attributes(body[headerSize:]) {
		if err != nil {
			return err
		}
		switch {
		case cmd == cmdSetDCBX && a.Kind == attrDCBX:
			v, err := a.Uint8()
			if err == nil && v != 0 {
				err = unix.EINVAL
			}
			return err
		case cmd != cmdSetDCBX && a.Kind == attrIEEE:
			v, err := a.Uint8()
			if err != nil {
				return err
			}
			return errnoOf(v)
		}
	}
	return fmt.Errorf("%w: an answer without a result", nlmsg.ErrMalformed)
}

// errnoOf reads a negative errno of which one byte is left.
func errnoOf(v uint8) error {
	switch no := unix.Errno(256 - int(v)); {
	case v == 0:
		return nil
	case v < 128: // ice answers 1 for "no change" in places
		return fmt.Errorf("the driver answers %d: %w", v, unix.EINVAL)
	case no == unix.ENOMEM: // -524 and -12 are the same byte
		return fmt.Errorf("no memory, or the driver can't do this (ENOTSUPP looks the same here): %w", errors.Join(unix.ENOMEM, unix.EOPNOTSUPP))
	default:
		return no
	}
}

// decodeState reads the answer to DCB_CMD_IEEE_GET or DCB_CMD_GDCBX.
func decodeState(body []byte) (dcb.State, error) {
	var s dcb.State
	if len(body) < headerSize {
		return s, fmt.Errorf("%w: an answer of %d bytes", nlmsg.ErrMalformed, len(body))
	}
	for a, err := range nlmsg.Attributes(body[headerSize:]) {
		if err != nil {
			return s, err
		}
		switch a.Kind {
		case attrDCBX:
			v, err := a.Uint8()
			if err != nil {
				return s, err
			}
			m := dcb.Mode(v)
			s.Mode = &m
		case attrIEEE:
			for part, err := range nlmsg.Attributes(a.Data) {
				if err == nil {
					err = decodePart(&s, part)
				}
				if err != nil {
					return s, err
				}
			}
		}
	}
	return s, nil
}

// decodePart reads one attribute of DCB_ATTR_IEEE into s; unknown ones are of newer kernels.
func decodePart(s *dcb.State, a nlmsg.Attribute) (err error) {
	switch a.Kind {
	case ieeeETS:
		s.ETS, err = decodeETS(a.Data)
	case ieeePeerETS:
		s.PeerETS, err = decodeETS(a.Data)
	case ieeePFC:
		s.PFC, err = decodePFC(a.Data)
	case ieeePeerPFC:
		s.PeerPFC, err = decodePFC(a.Data)
	case ieeeAppTable:
		s.Apps, err = decodeApps(a.Data)
	case ieeePeerApps:
		s.PeerApps, err = decodeApps(a.Data)
	case dcbTrustTable:
		s.Trust, err = decodeTrust(a.Data)
	case ieeeMaxRate:
		if err = size(a.Data, maxRateSize, "ieee_maxrate"); err == nil {
			s.MaxRate = new([dcb.Priorities]uint64)
			counters(a.Data, s.MaxRate)
		}
	case dcbBuffer:
		s.Buffer, err = decodeBuffer(a.Data)
	}
	return err
}

func size(b []byte, want int, name string) error {
	if len(b) < want {
		return fmt.Errorf("%w: struct %s of %d bytes, not %d", nlmsg.ErrMalformed, name, len(b), want)
	}
	return nil
}

func counters(b []byte, to *[dcb.Priorities]uint64) {
	for i := range to {
		to[i] = binary.NativeEndian.Uint64(b[8*i:])
	}
}

func decodePFC(b []byte) (*dcb.PFC, error) {
	if err := size(b, pfcSize, "ieee_pfc"); err != nil {
		return nil, err
	}
	p := &dcb.PFC{Cap: int(b[0]), Enabled: dcb.Set(b[1]), MBC: b[2] != 0, Delay: binary.NativeEndian.Uint16(b[4:])}
	counters(b[pfcRequests:], &p.Requests)
	counters(b[pfcIndications:], &p.Indications)
	return p, nil
}

func decodeETS(b []byte) (*dcb.ETS, error) {
	if err := size(b, etsSize, "ieee_ets"); err != nil {
		return nil, err
	}
	e := &dcb.ETS{Willing: b[0] != 0, Cap: int(b[1]), CBS: b[2] != 0}
	eight := func(n int) []byte { return b[3+dcb.Priorities*n:] }
	copy(e.TxBW[:], eight(0))
	copy(e.RxBW[:], eight(1))
	copy(e.PrioTC[:], eight(3))
	copy(e.RecoBW[:], eight(4))
	copy(e.RecoPrioTC[:], eight(6))
	for i := range dcb.Priorities {
		e.TSA[i], e.RecoTSA[i] = dcb.TSA(eight(2)[i]), dcb.TSA(eight(5)[i])
	}
	return e, nil
}

// decodeApps reads a table of struct dcb_app.
func decodeApps(b []byte) ([]dcb.App, error) {
	out := []dcb.App{}
	for a, err := range nlmsg.Attributes(b) {
		if err != nil {
			return nil, err
		}
		if a.Kind != ieeeApp && a.Kind != dcbApp {
			continue
		}
		if err := size(a.Data, appSize, "dcb_app"); err != nil {
			return nil, err
		}
		out = append(out, dcb.App{Selector: dcb.Selector(a.Data[0]), Protocol: binary.NativeEndian.Uint16(a.Data[2:]), Priority: int(a.Data[1])})
	}
	slices.SortFunc(out, func(a, b dcb.App) int {
		return cmp.Or(cmp.Compare(a.Selector, b.Selector), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Priority, b.Priority))
	})
	return out, nil
}

func decodeTrust(b []byte) ([]dcb.Selector, error) {
	out := []dcb.Selector{}
	for a, err := range nlmsg.Attributes(b) {
		if err != nil {
			return nil, err
		}
		v, err := a.Uint8()
		if err != nil {
			return nil, err
		}
		out = append(out, dcb.Selector(v))
	}
	return out, nil
}

func decodeBuffer(b []byte) (*dcb.Buffer, error) {
	if err := size(b, bufferSize, "dcbnl_buffer"); err != nil {
		return nil, err
	}
	out := &dcb.Buffer{Total: binary.NativeEndian.Uint32(b[40:])}
	copy(out.Prio[:], b)
	for i := range out.Size {
		out.Size[i] = binary.NativeEndian.Uint32(b[8+4*i:])
	}
	return out, nil
}
