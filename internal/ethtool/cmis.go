package ethtool

import (
	"encoding/binary"
	"math/bits"
)

// cmis reads a module of the Common Management Interface Specification, revision 4 or 5.
func (r reader) cmis(m *Module, low []byte) error {
	id, err := r.upper(0, 0)
	if err != nil {
		return err
	}
	m.Vendor, m.Part, m.Revision = name(id.from(129, 144)), name(id.from(148, 163)), name(id.from(164, 165))
	m.Serial, m.Date = name(id.from(166, 181)), name(id.from(182, 187))
	m.Copper = id.at(212) >= 0xa && id.at(212) <= 0xf
	if bit(low[2], 7) { // only the first page, as of a passive cable
		return nil
	}
	has, err := r.upper(0, 1)
	if err != nil {
		return err
	}
	if bit(has.at(159), 0) {
		m.Temperature = ptr(temperature(low[14:]))
	}
	if bit(has.at(159), 1) {
		m.Voltage = ptr(voltage(low[16:]))
	}
	m.AveragePower = bit(has.at(151), 4)
	if err := r.cmisLimits(m, has); err != nil || m.Copper {
		return err
	}
	return r.cmisLanes(m, has, lanes(m.Form, low, has))
}

func (r reader) cmisLimits(m *Module, has upper) error {
	t, err := r.upper(0, 2)
	if err != nil {
		return err
	}
	if m.Temperature != nil {
		m.Limits.Temperature = limits(t.from(128, 135), temperature)
	}
	if m.Voltage != nil {
		m.Limits.Voltage = limits(t.from(136, 143), voltage)
	}
	if m.Copper {
		return nil
	}
	kinds := has.at(160)
	if bit(kinds, 1) {
		m.Limits.TxPower = limits(t.from(176, 183), power)
	}
	if bit(kinds, 0) {
		m.Limits.Bias = limits(t.from(184, 191), scaled(kinds))
	}
	if bit(kinds, 2) {
		m.Limits.RxPower = limits(t.from(192, 199), power)
	}
	return nil
}

// scaled is the unit of bias current: 2 µA, doubled as often as the module says.
func scaled(kinds byte) unit {
	double := int(kinds >> 3 & 3)
	return func(b []byte) int { return int(binary.BigEndian.Uint16(b)) * 2 << double }
}

// perBank is how many lanes a bank has.
const perBank = 8

func (r reader) cmisLanes(m *Module, has upper, n int) error {
	kinds := has.at(160)
	for bank := range (n + perBank - 1) / perBank {
		p, err := r.upper(uint8(bank), 0x11)
		if err != nil {
			return err
		}
		for i := range min(n-bank*perBank, perBank) {
			l := Lane{TxFault: bit(p.at(135), i), TxLost: bit(p.at(136), i), RxLost: bit(p.at(147), i)}
			if bit(kinds, 1) {
				l.TxPower = ptr(power(p.from(154+2*i, 155+2*i)))
			}
			if bit(kinds, 0) {
				l.Bias = ptr(scaled(kinds)(p.from(170+2*i, 171+2*i)))
			}
			if bit(kinds, 2) {
				l.RxPower = ptr(power(p.from(186+2*i, 187+2*i)))
			}
			m.Lanes = append(m.Lanes, l)
		}
	}
	return nil
}

// lanes is how many lanes of the medium a module uses at most: those of its applications, each as often as
// it can be had side by side, but no more than its form has.
func lanes(form string, low []byte, has upper) int {
	room := perBank << min(has.at(142)&3, 2)
	switch form {
	case "SFP":
		room = 1
	case "SFP-DD", "DSFP":
		room = 2
	case "QSFP":
		room = 4
	}
	n := 0
	for a := 86; a+4 <= 118 && low[a] != 0xff; a += 4 {
		n = max(n, int(low[a+2]&0xf)*bits.OnesCount8(low[a+3]))
	}
	if n == 0 || n > room {
		return room
	}
	return n
}
