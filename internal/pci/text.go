package pci

import (
	"fmt"
	"strconv"
	"strings"
)

// Speed is a link's transfer rate per lane in MT/s; 0 is unknown.
type Speed int

// speedOf reads the four bits that link capabilities and link status share.
func speedOf(reg uint16) Speed {
	switch reg & 0xf {
	case 1:
		return 2500
	case 2:
		return 5000
	case 3:
		return 8000
	case 4:
		return 16000
	case 5:
		return 32000
	case 6:
		return 64000
	}
	return 0
}

// String prints the speed as sysfs does.
func (s Speed) String() string {
	if s <= 0 {
		return "Unknown"
	}
	return fmt.Sprintf("%d.%d GT/s PCIe", int(s)/1000, int(s)%1000/100)
}

// ParseSpeed reads {current,max}_link_speed: "8.0 GT/s PCIe", before Linux 5.7 also "8 GT/s", and
// "Unknown" or "Unknown speed", which are 0.
func ParseSpeed(text string) (Speed, error) {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "Unknown") {
		return 0, nil
	}
	number, ok := strings.CutSuffix(strings.TrimSuffix(text, " PCIe"), " GT/s")
	whole, part, dotted := strings.Cut(number, ".")
	gts, err := strconv.ParseUint(whole, 10, 10)
	ok = ok && err == nil && (!dotted || len(part) == 1)
	var tenth uint64
	if ok && dotted {
		tenth, err = strconv.ParseUint(part, 10, 4)
		ok = err == nil
	}
	if !ok || gts == 0 && tenth == 0 {
		return 0, fmt.Errorf("%w: link speed %q, not like \"8.0 GT/s PCIe\"; the kernel may have a new form of it", ErrMalformed, text)
	}
	return Speed(gts*1000 + tenth*100), nil
}

// IsAddress reports whether the text is a function's address as sysfs names it,
// ^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$: domains behind a VMD have more than four digits.
func IsAddress(text string) bool {
	domain, rest, ok := strings.Cut(text, ":")
	if !ok || len(domain) < 4 || len(domain) > 8 || len(rest) != len("00:00.0") || rest[2] != ':' || rest[5] != '.' {
		return false
	}
	return hex(domain) && hex(rest[:2]) && hex(rest[3:5]) && rest[6] >= '0' && rest[6] <= '7'
}

func hex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }
