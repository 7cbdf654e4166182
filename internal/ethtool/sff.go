package ethtool

import (
	"encoding/binary"
	"errors"
	"math"
	"syscall"
)

// beyond says that a driver does not read as far into a module as the module has memory.
func beyond(err error) bool { return Unsupported(err) || errors.Is(err, syscall.EINVAL) }

// sfp reads an SFF-8472 module: its identity is at one bus address, its measures are at another.
func (r reader) sfp(m *Module, id []byte) error {
	m.Vendor, m.Part, m.Revision = name(id[20:36]), name(id[40:56]), name(id[56:60])
	m.Serial, m.Date = name(id[68:84]), name(id[84:90])
	m.Copper = bit(id[8], 2)
	kind := id[92]
	if !bit(kind, 6) || bit(kind, 2) { // no measures, or only after the module's address was changed
		return nil
	}
	d, err := r.lower(I2CDiagnostics)
	if beyond(err) {
		return nil
	}
	if err != nil {
		return err
	}
	m.AveragePower = bit(kind, 3)
	temp, volt, cur, tx, rx := unit(temperature), unit(voltage), unit(bias), unit(power), unit(power)
	if bit(kind, 4) { // the numbers are raw
		temp, volt = calibrated(d[84:], temperature, true), calibrated(d[88:], voltage, false)
		cur, tx, rx = calibrated(d[76:], bias, false), calibrated(d[80:], power, false), received(d[56:])
	}
	m.Temperature, m.Voltage = ptr(temp(d[96:])), ptr(volt(d[98:]))
	m.Limits = Limits{Temperature: limits(d, temp), Voltage: limits(d[8:], volt)}
	if m.Copper {
		return nil
	}
	m.Lanes = []Lane{{Bias: ptr(cur(d[100:])), TxPower: ptr(tx(d[102:])), RxPower: ptr(rx(d[104:])), RxLost: bit(d[110], 1), TxFault: bit(d[110], 2)}}
	m.Limits.Bias, m.Limits.TxPower, m.Limits.RxPower = limits(d[16:], cur), limits(d[24:], tx), limits(d[32:], rx)
	return nil
}

// calibrated is a unit of a module that leaves a slope (1/256) and an offset to its reader.
func calibrated(constants []byte, u unit, signed bool) unit {
	slope := int64(binary.BigEndian.Uint16(constants))
	offset := int64(int16(binary.BigEndian.Uint16(constants[2:])))
	return func(b []byte) int {
		raw, least, most := int64(binary.BigEndian.Uint16(b)), int64(0), int64(math.MaxUint16)
		if signed {
			raw, least, most = int64(int16(raw)), math.MinInt16, math.MaxInt16
		}
		v := min(max(raw*slope/256+offset, least), most)
		return u(binary.BigEndian.AppendUint16(nil, uint16(v)))
	}
}

// received is receive power as a polynomial of the raw number, its five coefficients highest first.
func received(constants []byte) unit {
	return func(b []byte) int {
		raw, v := float64(binary.BigEndian.Uint16(b)), 0.0
		for i := range 5 {
			v = v*raw + float64(math.Float32frombits(binary.BigEndian.Uint32(constants[4*i:])))
		}
		if !(v > 0) { // NaN too
			return 0
		}
		return int(min(v, math.MaxUint16) * 100)
	}
}

// qsfp reads an SFF-8636 module.
func (r reader) qsfp(m *Module, low []byte) error {
	id, err := r.upper(0, 0)
	if err != nil {
		return err
	}
	m.Vendor, m.Part, m.Revision = name(id.from(148, 163)), name(id.from(168, 183)), name(id.from(184, 185))
	m.Serial, m.Date = name(id.from(196, 211)), name(id.from(212, 217))
	m.Copper = id.at(147)>>4 >= 0xa
	m.AveragePower = bit(id.at(220), 3)
	if low[22]|low[23]|low[26]|low[27] != 0 { // a cable that measures nothing has zero
		m.Temperature, m.Voltage = ptr(temperature(low[22:])), ptr(voltage(low[26:]))
	}
	if !m.Copper {
		for i := range 4 {
			l := Lane{RxPower: ptr(power(low[34+2*i:])), Bias: ptr(bias(low[42+2*i:])), RxLost: bit(low[3], i), TxLost: bit(low[3], 4+i), TxFault: bit(low[4], i)}
			if bit(id.at(220), 2) {
				l.TxPower = ptr(power(low[50+2*i:]))
			}
			m.Lanes = append(m.Lanes, l)
		}
	}
	if bit(low[2], 2) || m.Temperature == nil && m.Copper { // no page but the first, or nothing to compare
		return nil
	}
	t, err := r.upper(0, 3)
	if beyond(err) {
		return nil
	}
	if err != nil {
		return err
	}
	m.Limits = Limits{Temperature: limits(t.from(128, 135), temperature), Voltage: limits(t.from(144, 151), voltage)}
	if !m.Copper {
		m.Limits.RxPower, m.Limits.Bias, m.Limits.TxPower = limits(t.from(176, 183), power), limits(t.from(184, 191), bias), limits(t.from(192, 199), power)
	}
	return nil
}
