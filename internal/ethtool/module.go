package ethtool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
)

// ErrModule is in the error of a module whose memory does not hold what its standard says.
var ErrModule = errors.New("malformed module memory")

// At is a place in a module's memory of at most half a page: offset 0–127 is the lower half, that all pages
// share, 128–255 the upper half of Page.
type At struct {
	I2C    uint8 // address on the bus: I2CID, or I2CDiagnostics of an SFP
	Bank   uint8 // of CMIS: 8 lanes each
	Page   uint8
	Offset uint8
	Length uint8
}

// Addresses of a module on its bus.
const (
	I2CID          uint8 = 0x50
	I2CDiagnostics uint8 = 0x51 // SFF-8472 says A2h, which has the bit for reading in it
)

// half is the length of half a page.
const half = 128

// Standard is the layout of a module's memory.
type Standard string

// The standards.
const (
	SFF8472 Standard = "SFF-8472" // SFP and its successors of one lane
	SFF8636 Standard = "SFF-8636" // QSFP+ and QSFP28, four lanes
	CMIS    Standard = "CMIS"     // QSFP-DD, OSFP and what came after
)

// Module is what a transceiver or cable tells of itself. A nil pointer means that the module does not
// measure that, which is not the same as zero.
type Module struct {
	Form     string // "QSFP28"
	Standard Standard
	Vendor   string
	Part     string
	Revision string
	Serial   string
	Date     string // of its making, YYMMDD
	Copper   bool   // a cable without light in it

	Temperature  *int // m°C
	Voltage      *int // µV
	Lanes        []Lane
	AveragePower bool // receive power is an average, not the modulation's amplitude (OMA)
	Limits       Limits
}

// Lane is one laser and its receiver; a copper cable has none.
type Lane struct {
	TxPower, RxPower *int // nW
	Bias             *int // µA
	// What the module saw since it was read last: no light, no signal from the host, a fault of the laser.
	RxLost, TxLost, TxFault bool
}

// Limits are a module's own thresholds; nil where it has none.
type Limits struct {
	Temperature      *Range // m°C
	Voltage          *Range // µV
	TxPower, RxPower *Range // nW
	Bias             *Range // µA
}

// Range is the thresholds of one measure.
type Range struct{ HighAlarm, LowAlarm, HighWarning, LowWarning int }

// Level is how a value lies to its thresholds.
type Level string

// The levels.
const (
	Normal  Level = "normal"
	Warning Level = "warning"
	Alarm   Level = "alarm"
)

// Level returns how v lies to the thresholds; without any it is Normal.
func (r *Range) Level(v int) Level {
	switch {
	case r == nil:
		return Normal
	case v > r.HighAlarm || v < r.LowAlarm:
		return Alarm
	case v > r.HighWarning || v < r.LowWarning:
		return Warning
	}
	return Normal
}

// DBm converts a power of light from nW; no light is minus infinity.
func DBm(nW int) float64 { return 10 * math.Log10(float64(nW)/1e6) }

// ReadModule reads a module through read, which returns a place's bytes. It asks only for places that the
// module says it has.
func ReadModule(read func(At) ([]byte, error)) (Module, error) {
	r := reader(read)
	low, err := r.lower(I2CID)
	if err != nil {
		return Module{}, err
	}
	form, std := identify(low[0])
	m := Module{Form: form, Standard: std}
	switch std {
	case SFF8472:
		err = r.sfp(&m, low)
	case SFF8636:
		err = r.qsfp(&m, low)
	case CMIS:
		err = r.cmis(&m, low)
	default:
		err = fmt.Errorf("%w: no known kind of module has identifier %#02x", ErrModule, low[0])
	}
	if err != nil {
		return Module{}, err
	}
	return m, nil
}

// identify returns a module's form and standard by its identifier (SFF-8024, table 4-1).
func identify(id byte) (string, Standard) {
	switch id {
	case 0x03:
		return "SFP", SFF8472
	case 0x0b:
		return "DWDM-SFP", SFF8472
	case 0x0c:
		return "QSFP", SFF8636
	case 0x0d:
		return "QSFP+", SFF8636
	case 0x11:
		return "QSFP28", SFF8636
	case 0x18:
		return "QSFP-DD", CMIS
	case 0x19:
		return "OSFP", CMIS
	case 0x1b:
		return "DSFP", CMIS
	case 0x1e:
		return "QSFP", CMIS
	case 0x1f:
		return "SFP-DD", CMIS
	case 0x20:
		return "SFP", CMIS
	}
	return "", ""
}

// reader reads halves of pages.
type reader func(At) ([]byte, error)

// lower is the first half of a bus address's memory.
func (r reader) lower(i2c uint8) ([]byte, error) {
	return r.half(At{I2C: i2c, Length: half})
}

// upper is the second half of a page: byte n of the standard's tables is n-128 in it.
func (r reader) upper(bank, page uint8) (upper, error) {
	return r.half(At{I2C: I2CID, Bank: bank, Page: page, Offset: half, Length: half})
}

func (r reader) half(at At) ([]byte, error) {
	b, err := r(at)
	if err != nil {
		return nil, fmt.Errorf("page %#02x of bank %d from byte %d: %w", at.Page, at.Bank, at.Offset, err)
	}
	if len(b) < half {
		return nil, fmt.Errorf("%w: %d bytes of page %#02x of bank %d from byte %d", ErrModule, len(b), at.Page, at.Bank, at.Offset)
	}
	return b[:half], nil
}

// upper is the upper half of a page, in which bytes have the numbers of the standards' tables.
type upper []byte

func (u upper) at(n int) byte { return u[n-half] }

func (u upper) from(n, to int) []byte { return u[n-half : to-half+1] }

// name reads a text that is filled with spaces.
func name(b []byte) string {
	var s strings.Builder
	for _, c := range b {
		switch {
		case c == 0:
			s.WriteByte(' ')
		case c < ' ' || c > '~':
			s.WriteByte('?')
		default:
			s.WriteByte(c)
		}
	}
	return strings.TrimSpace(s.String())
}

// unit converts two bytes of memory.
type unit func(b []byte) int

// The units that all standards have.
func temperature(b []byte) int { return int(int16(binary.BigEndian.Uint16(b))) * 1000 / 256 } // 1/256 °C
func voltage(b []byte) int     { return int(binary.BigEndian.Uint16(b)) * 100 }               // 100 µV
func power(b []byte) int       { return int(binary.BigEndian.Uint16(b)) * 100 }               // 0.1 µW
func bias(b []byte) int        { return int(binary.BigEndian.Uint16(b)) * 2 }                 // 2 µA

// limits reads four thresholds, nil if the module left them empty.
func limits(b []byte, u unit) *Range {
	if v := binary.BigEndian.Uint64(b); v == 0 || v == math.MaxUint64 {
		return nil
	}
	return &Range{HighAlarm: u(b), LowAlarm: u(b[2:]), HighWarning: u(b[4:]), LowWarning: u(b[6:])}
}

func bit(b byte, n int) bool { return b>>n&1 != 0 }

func ptr(v int) *int { return &v }
