package preflight

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/roce"
)

// Config is what a site expects of its hosts.
type Config struct {
	Priority int    `json:"priority"` // PFC priority of RoCE, 0–7
	DSCP     int    `json:"dscp"`     // of RoCE packets, 0–63
	MinMTU   int    `json:"minMTU"`   // RoCE payload bytes: 256, 512, 1024, 2048 or 4096
	Pairs    []Pair `json:"pairs"`    // which firmware goes with which driver
}

// Pair is one line of the firmware and driver matrix. Empty fields match anything.
type Pair struct {
	Driver string `json:"driver"`
	Board  string `json:"board,omitempty"`  // PSID or board id
	Kernel string `json:"kernel,omitempty"` // release or its beginning
	// What must hold where the three above match.
	MinFirmware string   `json:"minFirmware,omitempty"`
	MaxFirmware string   `json:"maxFirmware,omitempty"`
	MinVersion  string   `json:"minVersion,omitempty"` // of a driver from outside the kernel
	Bad         []string `json:"bad,omitempty"`        // firmware versions known as broken
	Why         string   `json:"why,omitempty"`
}

// Default is what Verbena assumes where a site says nothing: PFC on priority 3, DSCP 26 and a RoCE MTU of 2048, as the
// vendors' RoCE guides recommend, and no firmware matrix, since that is a site's own knowledge.
func Default() Config { return Config{Priority: 3, DSCP: 26, MinMTU: 2048} }

// Validate names every wrong value.
func (c Config) Validate() error {
	var f fault.Faults
	if c.Priority < 0 || c.Priority > roce.MaxPriority {
		f.Add("priority", "%d is not in 0–%d", c.Priority, roce.MaxPriority)
	}
	if c.DSCP < 0 || c.DSCP > roce.MaxDSCP {
		f.Add("dscp", "%d is not in 0–%d", c.DSCP, roce.MaxDSCP)
	}
	if RoCEMTU(c.MinMTU+headers) != c.MinMTU {
		f.Add("minMTU", "%d is no RoCE MTU: 256, 512, 1024, 2048 or 4096", c.MinMTU)
	}
	for i, p := range c.Pairs {
		if p.Driver == "" {
			f.Add("pairs["+strconv.Itoa(i)+"].driver", "a driver's name is needed, such as mlx5_core")
		}
	}
	return f.Err("preflight configuration")
}

// headers are what the kernel takes off a netdev's MTU before it looks for the RoCE MTU that fits
// (iboe_get_mtu in include/rdma/ib_addr.h): GRH 40, UDP 8, BTH 12, XRC 4, AtomicETH 28, ICRC 4.
const headers = 96

// RoCEMTU is the active MTU of a RoCE port on a netdev with this MTU, 0 where none fits.
func RoCEMTU(mtu int) int {
	for _, m := range []int{4096, 2048, 1024, 512, 256} {
		if mtu-headers >= m {
			return m
		}
	}
	return 0
}

// Versions compares dotted versions part by part, numbers by value: 22.9 is before 22.31.
func Versions(a, b string) int {
	split := func(s string) []string {
		return strings.FieldsFunc(s, func(r rune) bool { return r == '.' || r == '-' || r == '/' || r == ' ' || r == '_' })
	}
	x, y := split(a), split(b)
	for i := range max(len(x), len(y)) {
		var p, q string
		if i < len(x) {
			p = x[i]
		}
		if i < len(y) {
			q = y[i]
		}
		m, errM := strconv.ParseUint(cmp.Or(p, "0"), 10, 64)
		n, errN := strconv.ParseUint(cmp.Or(q, "0"), 10, 64)
		c := cmp.Compare(m, n)
		if errM != nil || errN != nil {
			c = cmp.Compare(p, q)
		}
		if c != 0 {
			return c
		}
	}
	return 0
}
