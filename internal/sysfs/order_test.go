package sysfs_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/verbena-cloud/verbena/internal/sysfs"
)

func TestNumeric(t *testing.T) {
	names := []string{"virtfn10", "virtfn2", "virtfn0", "vf", "virtfn02", "virtfn", "b1a10", "b1a9", "virtfn99999999999999999999999", "virtfn100000000000000000000000"}
	slices.SortFunc(names, sysfs.Numeric)
	want := "b1a9 b1a10 vf virtfn virtfn0 virtfn02 virtfn2 virtfn10 virtfn99999999999999999999999 virtfn100000000000000000000000"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestNumericIsAnOrder: equal means the same text, and the order has no circles.
func TestNumericIsAnOrder(t *testing.T) {
	name := rapid.StringMatching(`[a:0-2]{0,6}`)
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := name.Draw(t, "a"), name.Draw(t, "b"), name.Draw(t, "c")
		if (sysfs.Numeric(a, b) == 0) != (a == b) {
			t.Fatalf("%q and %q compare equal", a, b)
		}
		if sysfs.Numeric(a, b) != -sysfs.Numeric(b, a) {
			t.Fatalf("%q and %q have no order", a, b)
		}
		if sysfs.Numeric(a, b) < 0 && sysfs.Numeric(b, c) < 0 && sysfs.Numeric(a, c) >= 0 {
			t.Fatalf("%q < %q < %q, but not the first and the last", a, b, c)
		}
	})
}
