package ethtool

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// memory is a module: what stands at each byte number of the standards' tables, by bus address, bank and
// page. The lower half is that of page 0.
type memory map[string]map[int]string

// read is the module's bus. A page that it does not have is an error, as on a real one.
func (m memory) read(at At) ([]byte, error) {
	key := fmt.Sprintf("%02x/%d/%02x", at.I2C, at.Bank, at.Page)
	fields, ok := m[key]
	if !ok {
		return nil, fmt.Errorf("no page %s: %w", key, syscall.EIO)
	}
	page := make([]byte, 256)
	for n, text := range fields {
		b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
		if literal, is := strings.CutPrefix(text, "'"); is {
			b, err = []byte(literal), nil
		}
		if err != nil {
			return nil, err
		}
		copy(page[n:], b)
	}
	return page[at.Offset : int(at.Offset)+int(at.Length)], nil
}

// sfp28 is a 25G SR module, its memory by SFF-8472 revision 12.4.
func sfp28() memory {
	return memory{
		"50/0/00": {
			0:  "03 04 07", // SFP, by two-wire interface, LC
			20: "'VENDOR          ",
			40: "'SFP28-SR        ", 56: "'A   ",
			68: "'S0001           ", 84: "'260131  ",
			92: "68 f0", // measures, calibrated inside, average power
		},
		"51/0/00": {
			0:  "4b00 fb00 4600 0000",      // 75, -5, 70, 0 °C
			8:  "8ca0 7530 8938 7918",      // 3.6, 3.0, 3.513, 3.1 V
			16: "1388 01f4 1194 03e8",      // 10, 1, 9, 2 mA
			24: "3dea 04eb 312d 0630",      // 1.585 … mW
			32: "3dea 0148 312d 0290",      //
			96: "1f80 80e8 0c1c 1a2b 0fa0", // 31.5 °C, 3.3 V, 6.2 mA, 0.6699 mW, 0.4 mW
			// byte 110: no signal
			110: "02",
		},
	}
}

func TestSFP(t *testing.T) {
	m, err := ReadModule(sfp28().read)
	if err != nil {
		t.Fatal(err)
	}
	want := Module{
		Form: "SFP", Standard: SFF8472, Vendor: "VENDOR", Part: "SFP28-SR", Revision: "A", Serial: "S0001", Date: "260131",
		Temperature: ptr(31500), Voltage: ptr(3300000), AveragePower: true,
		Lanes: []Lane{{Bias: ptr(6200), TxPower: ptr(669900), RxPower: ptr(400000), RxLost: true}},
		Limits: Limits{
			Temperature: &Range{75000, -5000, 70000, 0}, Voltage: &Range{3600000, 3000000, 3512800, 3100000},
			Bias: &Range{10000, 1000, 9000, 2000}, TxPower: &Range{1585000, 125900, 1258900, 158400}, RxPower: &Range{1585000, 32800, 1258900, 65600},
		},
	}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Errorf("module (-want +got):\n%s", diff)
	}
}

// TestSFPCalibrated: the numbers of an externally calibrated module are raw.
func TestSFPCalibrated(t *testing.T) {
	s := sfp28()
	s["50/0/00"][92] = "58"                                           // calibrated outside, average power
	s["51/0/00"][56] = "00000000 00000000 00000000 3f000000 41200000" // 0.5 × raw + 10
	s["51/0/00"][76] = "0200 0005  0080 fff6  0100 0100  0100 0000"   // bias 2x+5, power x/2-10, 1 °C more, as it is
	m, err := ReadModule(s.read)
	if err != nil {
		t.Fatal(err)
	}
	l := m.Lanes[0]
	if *m.Temperature != 32500 || *m.Voltage != 3300000 || *l.Bias != 2*(2*0x0c1c+5) || *l.TxPower != (0x1a2b/2-10)*100 || *l.RxPower != (4000/2+10)*100 {
		t.Errorf("%d m°C, %d µV, %d µA, %d nW, %d nW", *m.Temperature, *m.Voltage, *l.Bias, *l.TxPower, *l.RxPower)
	}
	s["51/0/00"][56] = "7fc00000"
	if m, err = ReadModule(s.read); err != nil || *m.Lanes[0].RxPower != 0 {
		t.Errorf("a coefficient that is no number: %v, %v", m.Lanes, err)
	}
}

// TestSFPWithoutMeasures: a passive cable has no second address.
func TestSFPWithoutMeasures(t *testing.T) {
	s := sfp28()
	delete(s, "51/0/00")
	s["50/0/00"][92], s["50/0/00"][8] = "00", "04"
	m, err := ReadModule(s.read)
	if err != nil || !m.Copper || m.Lanes != nil || m.Temperature != nil || m.Vendor != "VENDOR" {
		t.Errorf("%+v, %v", m, err)
	}
}

// qsfp28 is a 100G SR4 module, its memory by SFF-8636 revision 2.10a.
func qsfp28() memory {
	return memory{
		"50/0/00": {
			0:  "11 08 00 48 02", // QSFP28, paged; lane 4 hears nothing, lane 3 has nothing to say; lane 2 is broken
			22: "1e40", 26: "7f58",
			34: "1000 2000 3000 0000", 42: "0ed8 0ed9 0eda 0edb", 50: "2710 2711 2712 2713",
			128: "11", 130: "0c", 147: "00",
			148: "'VENDOR          ", 168: "'QSFP28-SR4      ", 184: "'B1", 196: "'S0002           ", 212: "'251231  ",
			220: "0c",
		},
		"50/0/03": {
			128: "4b00 fb00 4600 0000", 144: "8ca0 7530 8938 7918",
			176: "3dea 0148 312d 0290", 184: "1388 01f4 1194 03e8", 192: "3dea 04eb 312d 0630",
		},
	}
}

func TestQSFP(t *testing.T) {
	m, err := ReadModule(qsfp28().read)
	if err != nil {
		t.Fatal(err)
	}
	want := Module{
		Form: "QSFP28", Standard: SFF8636, Vendor: "VENDOR", Part: "QSFP28-SR4", Revision: "B1", Serial: "S0002", Date: "251231",
		Temperature: ptr(30250), Voltage: ptr(3260000), AveragePower: true,
		Lanes: []Lane{
			{RxPower: ptr(409600), Bias: ptr(7600), TxPower: ptr(1000000)},
			{RxPower: ptr(819200), Bias: ptr(7602), TxPower: ptr(1000100), TxFault: true},
			{RxPower: ptr(1228800), Bias: ptr(7604), TxPower: ptr(1000200), TxLost: true},
			{RxPower: ptr(0), Bias: ptr(7606), TxPower: ptr(1000300), RxLost: true},
		},
		Limits: Limits{
			Temperature: &Range{75000, -5000, 70000, 0}, Voltage: &Range{3600000, 3000000, 3512800, 3100000},
			Bias: &Range{10000, 1000, 9000, 2000}, TxPower: &Range{1585000, 125900, 1258900, 158400}, RxPower: &Range{1585000, 32800, 1258900, 65600},
		},
	}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Errorf("module (-want +got):\n%s", diff)
	}
	flat := qsfp28()
	flat["50/0/00"][0] = "11 08 04"
	delete(flat, "50/0/03")
	if m, err := ReadModule(flat.read); err != nil || m.Limits != (Limits{}) || len(m.Lanes) != 4 {
		t.Errorf("one page: %+v, %v", m, err)
	}
}

// TestQSFPCable: a passive cable has zero where others measure.
func TestQSFPCable(t *testing.T) {
	c := memory{"50/0/00": {0: "11 08 00", 128: "11", 130: "23", 147: "a0", 148: "'VENDOR          "}}
	m, err := ReadModule(c.read)
	if err != nil || !m.Copper || m.Temperature != nil || m.Voltage != nil || m.Lanes != nil || m.Limits != (Limits{}) {
		t.Errorf("%+v, %v", m, err)
	}
}

// osfp is an 800G module of 8 lanes, its memory by CMIS revision 5.2.
func osfp() memory {
	return memory{
		"50/0/00": {
			0: "19 52 00", 14: "37c0", 16: "80e8",
			86:  "51 11 88 01  4f 10 44 11  ff", // one of eight lanes, two of four
			129: "'VENDOR          ", 148: "'OSFP-2xDR4      ", 164: "'C ", 166: "'S0003           ", 182: "'260101  ",
			203: "0c", 212: "06",
		},
		"50/0/01": {142: "24", 151: "10", 159: "03 0f"}, // one bank; average power; temperature, voltage; all of a lane, bias doubled
		"50/0/02": {
			128: "4b00 fb00 4600 0000", 136: "8ca0 7530 8938 7918",
			176: "3dea 04eb 312d 0630", 184: "1388 01f4 1194 03e8", 192: "3dea 0148 312d 0290",
		},
		"50/0/11": {
			135: "02 04", 147: "80",
			154: "2710 2711 2712 2713 2714 2715 2716 2717", 170: "4e20 4e21 4e22 4e23 4e24 4e25 4e26 4e27", 186: "1000 1001 1002 1003 1004 1005 1006 0000",
		},
	}
}

func TestCMIS(t *testing.T) {
	m, err := ReadModule(osfp().read)
	if err != nil {
		t.Fatal(err)
	}
	want := Module{
		Form: "OSFP", Standard: CMIS, Vendor: "VENDOR", Part: "OSFP-2xDR4", Revision: "C", Serial: "S0003", Date: "260101",
		Temperature: ptr(55750), Voltage: ptr(3300000), AveragePower: true,
		Limits: Limits{
			Temperature: &Range{75000, -5000, 70000, 0}, Voltage: &Range{3600000, 3000000, 3512800, 3100000},
			Bias: &Range{20000, 2000, 18000, 4000}, TxPower: &Range{1585000, 125900, 1258900, 158400}, RxPower: &Range{1585000, 32800, 1258900, 65600},
		},
	}
	for i := range 8 {
		want.Lanes = append(want.Lanes, Lane{TxPower: ptr(1000000 + 100*i), Bias: ptr(80000 + 4*i), RxPower: ptr(409600 + 100*i)})
	}
	want.Lanes[7].RxPower, want.Lanes[7].RxLost = ptr(0), true
	want.Lanes[1].TxFault, want.Lanes[2].TxLost = true, true
	if diff := cmp.Diff(want, m); diff != "" {
		t.Errorf("module (-want +got):\n%s", diff)
	}
}

// TestCMISShapes: a module is asked for what it says it has.
func TestCMISShapes(t *testing.T) {
	read := func(change func(memory)) Module {
		t.Helper()
		o := osfp()
		change(o)
		m, err := ReadModule(o.read)
		if err != nil {
			t.Error(err)
		}
		return m
	}
	m := read(func(o memory) { o["50/0/01"][159] = "01 04" }) // temperature and receive power
	if m.Voltage != nil || m.Limits.Voltage != nil || m.Lanes[0].Bias != nil || m.Lanes[0].TxPower != nil || m.Lanes[0].RxPower == nil || m.Limits.Bias != nil {
		t.Errorf("few measures: %+v", m)
	}
	m = read(func(o memory) { o["50/0/00"][0], o["50/0/00"][212] = "19 52 80", "0a"; delete(o, "50/0/01") })
	if !m.Copper || m.Temperature != nil || m.Lanes != nil {
		t.Errorf("a passive cable: %+v", m)
	}
	m = read(func(o memory) { o["50/0/00"][86] = "4f 10 84 01 ff" }) // 400G-DR4: eight lanes of the host, four of the fibre
	if len(m.Lanes) != 4 {
		t.Errorf("DR4: %d lanes", len(m.Lanes))
	}
	m = read(func(o memory) { o["50/0/00"][0], o["50/0/00"][86] = "1e 40 00", "ff" })
	if m.Form != "QSFP" || len(m.Lanes) != 4 {
		t.Errorf("QSFP112: %s of %d lanes", m.Form, len(m.Lanes))
	}
	m = read(func(o memory) {
		o["50/0/01"][142], o["50/0/00"][86] = "25", "ff" // two banks, nothing said of lanes
		o["50/1/11"] = map[int]string{154: "0001"}
	})
	if len(m.Lanes) != 16 || *m.Lanes[8].TxPower != 100 {
		t.Errorf("two banks: %d lanes", len(m.Lanes))
	}
}

func TestReadModuleFails(t *testing.T) {
	for what, m := range map[string]memory{"unknown": {"50/0/00": {0: "7e"}}, "no module": {}} {
		if _, err := ReadModule(m.read); !errors.Is(err, ErrModule) && !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, m := range []memory{sfp28(), qsfp28(), osfp()} {
		for missing := range m { // each page in turn is cut short
			_, err := ReadModule(func(at At) ([]byte, error) {
				b, err := m.read(at)
				if fmt.Sprintf("%02x/%d/%02x", at.I2C, at.Bank, at.Page) == missing && err == nil {
					b = b[:100]
				}
				return b, err
			})
			if !errors.Is(err, ErrModule) || !strings.Contains(err.Error(), "100 bytes of page") {
				t.Errorf("page %s cut: %v", missing, err)
			}
		}
	}
}

// TestShortReach: drivers that read only the first page of a module tell the rest of it.
func TestShortReach(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EINVAL, syscall.EOPNOTSUPP} {
		reach := func(m memory) func(At) ([]byte, error) {
			return func(at At) ([]byte, error) {
				if at.Page > 0 || at.I2C != I2CID {
					return nil, errno
				}
				return m.read(at)
			}
		}
		m, err := ReadModule(reach(qsfp28()))
		if err != nil || len(m.Lanes) != 4 || m.Limits != (Limits{}) {
			t.Errorf("QSFP28, %v: %+v, %v", errno, m, err)
		}
		m, err = ReadModule(reach(sfp28()))
		if err != nil || m.Lanes != nil || m.Vendor != "VENDOR" {
			t.Errorf("SFP28, %v: %+v, %v", errno, m, err)
		}
	}
}

func TestLevel(t *testing.T) {
	r := &Range{HighAlarm: 75, LowAlarm: -5, HighWarning: 70, LowWarning: 0}
	for v, want := range map[int]Level{76: Alarm, 75: Warning, 71: Warning, 70: Normal, 0: Normal, -1: Warning, -6: Alarm} {
		if got := r.Level(v); got != want {
			t.Errorf("%d is %s, want %s", v, got, want)
		}
	}
	if (*Range)(nil).Level(1000) != Normal {
		t.Error("no thresholds, yet an alarm")
	}
	if limits(make([]byte, 8), power) != nil || limits([]byte(strings.Repeat("\xff", 8)), power) != nil {
		t.Error("thresholds of an empty page")
	}
	if d := DBm(1000000); d != 0 || !math.IsInf(DBm(0), -1) || math.Abs(DBm(500000)+3.0103) > 0.001 {
		t.Errorf("1 mW is %v dBm, 0.5 mW %v, none %v", d, DBm(500000), DBm(0))
	}
}

func TestWords(t *testing.T) {
	if TwistedPair.String() != "tp" || Port(9).String() != "port-0x9" || Full.String() != "full" || Duplex(7).String() != "unknown" {
		t.Error(TwistedPair, Port(9), Full, Duplex(7))
	}
	if !Unsupported(fmt.Errorf("x: %w", syscall.EOPNOTSUPP)) || Unsupported(syscall.EIO) {
		t.Error("what is unsupported")
	}
}

// FuzzReadModule: whatever a module's memory holds is read or refused. The bytes fill half after half.
func FuzzReadModule(f *testing.F) {
	for _, m := range []memory{sfp28(), qsfp28(), osfp()} {
		var b []byte
		for _, at := range []At{{I2C: I2CID}, {I2C: I2CDiagnostics}, {I2C: I2CID, Offset: half}, {I2C: I2CID, Page: 1, Offset: half}, {I2C: I2CID, Page: 2, Offset: half}, {I2C: I2CID, Page: 3, Offset: half}, {I2C: I2CID, Page: 0x11, Offset: half}} {
			at.Length = half
			if page, err := m.read(at); err == nil {
				b = append(b, page...)
			}
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		reads := 0
		m, err := ReadModule(func(at At) ([]byte, error) {
			if reads++; reads > 8 {
				t.Fatal("more pages are read than a module has")
			}
			if at.Length != half || at.Offset%half != 0 || at.Page > 0 && at.Offset < half {
				t.Fatalf("the kernel refuses %+v", at)
			}
			n := min(half, len(b))
			out := b[:n]
			b = b[n:]
			return out, nil
		})
		if err != nil {
			if !errors.Is(err, ErrModule) {
				t.Fatal(err)
			}
			return
		}
		if len(m.Lanes) > 4*perBank {
			t.Fatalf("%d lanes", len(m.Lanes))
		}
		for _, l := range m.Lanes {
			for _, v := range []*int{l.TxPower, l.RxPower, l.Bias} {
				if v != nil && (*v < 0 || *v > math.MaxUint16*100) {
					t.Fatalf("a lane measures %d", *v)
				}
			}
		}
	})
}
