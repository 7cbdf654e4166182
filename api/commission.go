package api

import "time"

// CommissionRequest asks what it takes to bring a host's NICs to what is said here, over what the host's
// spec says already. Nothing is changed by asking.
type CommissionRequest struct {
	PFs []HostPF `json:"pfs,omitempty" doc:"As in the host's spec; each takes the place of the entry for the same PF. The fabric may be empty where the entry has one"`
	All bool     `json:"all,omitempty" doc:"Every PF that can have VFs and is not guarded, with all the VFs that it can have, where pfs and the spec say nothing else"`
	// Fabric is that of PFs whose entry names none.
	Fabric string `json:"fabric,omitempty" doc:"Fabric of those whose entry names none"`
}

// CommissionPlan is what the host's agent would do, from the facts that it told last.
type CommissionPlan struct {
	Host    string     `json:"host"`
	State   string     `json:"state" doc:"Of the host; the plan of one that is not up is as old as its last report"`
	Seen    *time.Time `json:"seen,omitempty" doc:"Last sign of life"`
	PFs     []PFPlan   `json:"pfs"`
	Refused []string   `json:"refused,omitempty" doc:"What the server refuses of it as a whole"`
	// Revision is what the plan was made from.
	Revision int64    `json:"revision" doc:"Of the host, as the plan was made from it; If-Match of the write that carries it out"`
	Spec     []HostPF `json:"spec" doc:"spec.pfs of the host to have it so, PFs by their keys"`
	Changed  bool     `json:"changed" doc:"The spec differs from the host's"`
}

// Refusals counts what keeps the plan from being carried out.
func (p *CommissionPlan) Refusals() int {
	n := len(p.Refused)
	for i := range p.PFs {
		n += len(p.PFs[i].Refused)
	}
	return n
}

// PFPlan is what would be done to one PF.
type PFPlan struct {
	Match   string   `json:"match" doc:"As asked for"`
	Key     string   `json:"key,omitempty"`
	PCI     string   `json:"pci,omitempty"`
	Netdev  string   `json:"netdev,omitempty"`
	Fabric  string   `json:"fabric,omitempty"`
	NumVFs  int      `json:"numVFs" doc:"As it is"`
	WantVFs int      `json:"wantVFs" doc:"As it shall be"`
	Steps   []string `json:"steps,omitempty" doc:"In order"`
	Refused []string `json:"refused,omitempty" doc:"Guards that keep it from being done"`
	Waits   []string `json:"waits,omitempty" doc:"What waits until nobody uses the port"`
	Notes   []string `json:"notes,omitempty" doc:"What stays as it is, and why"`
}
