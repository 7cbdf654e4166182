// Package hwmon reads the temperatures that a PCI device's driver tells (Documentation/hwmon/sysfs-interface.rst,
// Documentation/ABI/testing/sysfs-class-hwmon): those of a NIC, and on mlx5 of the module in its port.
package hwmon

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/sysfs"
)

// Sensor is one temperature, in m°C. A nil pointer means that the driver does not tell that.
type Sensor struct {
	Chip  string // the driver's name for itself: "mlx5", "bnxt_en", "ice"
	Index int    // of the chip's sensors, from 1
	Label string // "" where the driver has none: bnxt_en and ice
	Now   int
	Fault bool // the driver says that the sensor is broken, so Now means nothing

	Max, Critical, Emergency *int // what the device calls too warm, dangerous, and its end
	Highest                  *int // since the driver started
}

// Bounds of what is believed: more than any driver has, and more than any device lives through.
const (
	chipsMax   = 16
	sensorsMax = 256
	coldest    = -273150
	hottest    = 1000000
)

// Temperatures returns the sensors of a PCI device by chip and index. A device without any, as a VF or a NIC
// whose driver has none, is no error. What can't be read costs that value alone, or its sensor if it is the
// temperature itself, and is in problems; only the end of ctx or a tree that can't be listed is an error.
func Temperatures(ctx context.Context, tree sysfs.Tree, dev roce.PCIAddr) (sensors []Sensor, problems []error, err error) {
	r := reader{ctx: ctx, tree: tree}
	at := "bus/pci/devices/" + dev.String() + "/hwmon"
	chips, err := r.list(at, chipsMax, func(name string) bool { return strings.HasPrefix(name, "hwmon") })
	for _, chip := range chips {
		if err = r.chip(at + "/" + chip); err != nil {
			break
		}
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("temperatures of %s: %w", dev, err)
	}
	return r.sensors, r.problems, nil
}

// reader is one run.
type reader struct {
	ctx      context.Context //nolint:containedctx // lives for one run, to keep the calls readable
	tree     sysfs.Tree
	sensors  []Sensor
	problems []error
}

// list returns the names in a directory that are wanted, none if there is no such directory.
func (r *reader) list(dir string, most int, want func(string) bool) ([]string, error) {
	names, err := r.tree.List(r.ctx, dir)
	if sysfs.Absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !want(n) })
	slices.SortFunc(names, sysfs.Numeric)
	if len(names) > most {
		r.problems = append(r.problems, fmt.Errorf("%s: %d entries, only %d are looked at: %w", dir, len(names), most, syscall.E2BIG))
		names = names[:most]
	}
	return names, nil
}

// chip reads the sensors of one directory.
func (r *reader) chip(dir string) error {
	inputs, err := r.list(dir, sensorsMax, func(name string) bool { _, ok := index(name); return ok })
	if err != nil || len(inputs) == 0 {
		return err
	}
	name := r.text(dir + "/name")
	for _, input := range inputs {
		i, _ := index(input)
		sensor := dir + "/" + strings.TrimSuffix(input, "input")
		now := r.number(sensor + "input")
		fault := r.number(sensor + "fault")
		broken := fault != nil && *fault != 0
		if now == nil && !broken {
			continue
		}
		s := Sensor{
			Chip: name, Index: i, Label: r.text(sensor + "label"), Fault: broken,
			Max: r.degrees(sensor + "max"), Critical: r.degrees(sensor + "crit"), Emergency: r.degrees(sensor + "emergency"), Highest: r.degrees(sensor + "highest"),
		}
		switch {
		case now == nil:
		case broken || plausible(*now):
			s.Now = *now
		default:
			r.implausible(sensor+"input", *now)
			continue
		}
		r.sensors = append(r.sensors, s)
	}
	return nil
}

// index returns the number in the name of a temperature's file: 12 of temp12_input.
func index(name string) (int, bool) {
	digits, ok := strings.CutPrefix(name, "temp")
	if !ok {
		return 0, false
	}
	if digits, ok = strings.CutSuffix(digits, "_input"); !ok {
		return 0, false
	}
	i, err := strconv.ParseUint(digits, 10, 16)
	return int(i), err == nil && digits == strconv.FormatUint(i, 10)
}

func plausible(v int) bool { return v >= coldest && v <= hottest }

func (r *reader) implausible(path string, v int) {
	r.problems = append(r.problems, fmt.Errorf("%s: %d m°C is not the temperature of anything: %w", path, v, syscall.ERANGE))
}

// degrees reads a temperature, nil where there is none.
func (r *reader) degrees(path string) *int {
	v := r.number(path)
	if v != nil && !plausible(*v) {
		r.implausible(path, *v)
		return nil
	}
	return v
}

func (r *reader) number(path string) *int {
	text, ok := r.read(path)
	if !ok {
		return nil
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		r.problems = append(r.problems, fmt.Errorf("%s: %w", path, err))
		return nil
	}
	n := int(v)
	return &n
}

func (r *reader) text(path string) string {
	text, _ := r.read(path)
	return text
}

func (r *reader) read(path string) (string, bool) {
	if r.ctx.Err() != nil {
		return "", false
	}
	text, err := r.tree.Read(r.ctx, path)
	if err != nil && !sysfs.Absent(err) {
		r.problems = append(r.problems, err)
	}
	return text, err == nil
}
