package collect

import (
	"net/netip"
	"strings"
)

// parseGID reads an entry of /sys/class/infiniband/*/ports/*/gids; ok is false for an empty one.
func parseGID(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	if err != nil || strings.Contains(text, "%") || !a.Is6() || a == netip.IPv6Unspecified() {
		return netip.Addr{}, false
	}
	return a.Unmap(), true
}
