package api

import "time"

// Preflight is what a host's agent found when it looked whether the host can give VMs RDMA. It looks at its start,
// after changes, and every ten minutes.
type Preflight struct {
	Since    time.Time  `json:"since" doc:"Since when the findings are as they are"`
	Checked  *time.Time `json:"checked,omitempty" doc:"Last look, as the agent says while it lives; not durable"`
	Config   string     `json:"config" doc:"Digest of what was expected: which ports serve which fabric, and what these ask"`
	Outdated bool       `json:"outdated,omitempty" doc:"Something else is expected by now, and the agent has not looked since"`
	Counts   Findings   `json:"counts"`
	Findings []Finding  `json:"findings,omitempty" doc:"Those that are not ok, what matters most first; at most 40"`
	Omitted  int        `json:"omitted,omitempty" doc:"How many there are besides"`
}

// Findings counts findings by level.
type Findings struct {
	OK      int `json:"ok"`
	Info    int `json:"info"`
	Unknown int `json:"unknown"`
	Warning int `json:"warning"`
	Failed  int `json:"failed"`
}

// Finding is one check of one object that is not ok. A simulated host's begin with "simulated".
type Finding struct {
	Check    string   `json:"check" doc:"LAYER.NAME; docs/preflight.md has a section for each" example:"nic.pfc"`
	Object   string   `json:"object,omitempty" doc:"Link, device or PCI address; empty = the host"`
	Level    string   `json:"level" enum:"info,unknown,warning,failed"`
	Seen     string   `json:"seen"`
	Expected string   `json:"expected,omitempty"`
	Fix      []string `json:"fix,omitempty" doc:"Commands for the host, or sentences where no command can do it"`
	Doc      string   `json:"doc,omitempty"`
}

// HostPreflight is the preflight of one host.
type HostPreflight struct {
	Host      string     `json:"host"`
	State     string     `json:"state" doc:"Of the host"`
	Seen      *time.Time `json:"seen,omitempty" doc:"Last sign of life"`
	Preflight *Preflight `json:"preflight,omitempty" doc:"None = its agent never told"`
}
