package fault_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/verbena-cloud/verbena/internal/fault"
)

func TestKindSurvivesWrapping(t *testing.T) {
	err := fmt.Errorf("create vm a: %w", fault.New(fault.Quota, "p1 may hold 8 VFs, has 8"))
	if fault.KindOf(err) != fault.Quota || !fault.Is(err, fault.Quota) {
		t.Errorf("kind = %v", fault.KindOf(err))
	}
	if fault.Is(nil, fault.Internal) {
		t.Error("no error has no kind")
	}
}

// TestTextHidesWhatIsUnclassified: the words of an unknown error may hold secrets.
func TestTextHidesWhatIsUnclassified(t *testing.T) {
	secret := errors.New("password=hunter2")
	for _, err := range []error{secret, fault.Wrap(secret, fault.Internal, "hunter2"), fault.Wrap(secret, fault.Unready, "host a is not ready")} {
		if strings.Contains(fault.Text(err), "hunter2") {
			t.Errorf("%v shows its cause: %s", err, fault.Text(err))
		}
	}
	if err := fault.Wrap(secret, fault.Unready, "host a is not ready"); !strings.Contains(err.Error(), "hunter2") || !errors.Is(err, secret) {
		t.Error("the log needs the cause")
	}
}

func TestFaultsCollectsAll(t *testing.T) {
	var f fault.Faults
	if f.Err("vm a") != nil {
		t.Error("no fault is no error")
	}
	f.Check("spec.memory", nil)
	f.Check("spec.memory", errors.New(`"16" has no unit`))
	f.Check("spec.flavor", fault.New(fault.NotFound, "Flavor x does not exist"))
	err := f.Err("vm a")
	var e *fault.Error
	if !errors.As(err, &e) || e.Kind != fault.Invalid || len(e.Fields) != 2 {
		t.Fatalf("err = %#v", err)
	}
	if !strings.Contains(e.Text, "2 faults") || !strings.Contains(e.Text, "spec.memory") {
		t.Errorf("text = %q", e.Text)
	}
}
