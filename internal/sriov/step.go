package sriov

import (
	"fmt"

	"github.com/verbena-cloud/verbena/internal/rtnl"
)

// Step is one change of the kernel's state, or a wait for it. String is what a dry run prints.
type Step interface {
	fmt.Stringer
	step()
}

// The steps.
type (
	// Write gives a sysfs attribute a value.
	Write struct{ Path, Value string }
	// Set gives one attribute of one VF a value through its PF's link.
	Set struct {
		Link string
		VF   int
		Attr rtnl.Attr
	}
	// Up sets a link administratively up.
	Up struct{ Link string }
	// Load loads a kernel module, if it is not there.
	Load struct{ Module string }
	// Await waits until the kernel shows that many VFs of the PF, completely.
	Await struct {
		PF    string // its directory
		Count int
	}
	// Reset resets a function through its sysfs file; a VF that can't be reset may carry its last
	// owner's state, so the failure of this step quarantines the VF.
	Reset struct{ Path string }
)

func (Write) step() {}
func (Set) step()   {}
func (Up) step()    {}
func (Load) step()  {}
func (Await) step() {}
func (Reset) step() {}

// String prints the step as a shell would do it.
func (s Write) String() string { return fmt.Sprintf("echo %s > /sys/%s", s.Value, s.Path) }

// String prints the step as a shell would do it.
func (s Set) String() string { return fmt.Sprintf("ip link set %s vf %d %s", s.Link, s.VF, s.Attr) }

// String prints the step as a shell would do it.
func (s Up) String() string { return fmt.Sprintf("ip link set %s up", s.Link) }

// String prints the step as a shell would do it.
func (s Load) String() string { return "modprobe " + s.Module }

// String says what is waited for.
func (s Await) String() string { return fmt.Sprintf("wait for %d VFs of /sys/%s", s.Count, s.PF) }

// String prints the step as a shell would do it.
func (s Reset) String() string { return fmt.Sprintf("echo 1 > /sys/%s", s.Path) }
