package server

import (
	"regexp"
	"testing"
)

func TestUIDIsAUUIDAsLibvirtWritesIt(t *testing.T) {
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := map[string]bool{}
	for range 64 {
		u := randomUID()
		if !form.MatchString(u) {
			t.Fatalf("UID %q is no UUID of version 4 in canonical form", u)
		}
		if seen[u] {
			t.Fatalf("UID %q came twice", u)
		}
		seen[u] = true
	}
}
