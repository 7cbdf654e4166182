package demo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/hyper"
)

// hyperVF is a VF as a domain holds it.
type hyperVF = hyper.VF

// report is the story for programs.
type report struct {
	Simulated bool       `json:"simulated"`
	VMs       []vmReport `json:"vms"`
	Refusals  []refusal  `json:"refusals"`
	Scrubbed  *scrubbed  `json:"scrubbed"`
}

// MarshalJSON says that all of it is simulated, whatever the fields say.
func (r report) MarshalJSON() ([]byte, error) {
	type plain report
	p := plain(r)
	p.Simulated = true
	return json.Marshal(p)
}

// vmReport is a VM when it was Ready.
type vmReport struct {
	Name      string       `json:"name"`
	Tenant    string       `json:"tenant"`
	Host      string       `json:"host"`
	Simulated bool         `json:"simulated"`
	State     string       `json:"state"`
	Cells     []api.VMCell `json:"cells"`
	VFs       []vfReport   `json:"vfs"`
	IP        string       `json:"ip"`
	DomainXML int          `json:"domainXML"` // bytes of the domain that was made
}

// vfReport is a VF of a VM.
type vfReport struct {
	PF         string `json:"pf"`
	Index      int    `json:"index"`
	MAC        string `json:"mac"`
	VLAN       int    `json:"vlan"`
	QoS        int    `json:"qos"`
	SpoofCheck bool   `json:"spoofCheck"`
	NUMA       int    `json:"numa"`
	Cell       int    `json:"cell"`
	Generation int64  `json:"generation"`
	State      string `json:"state"`
	IP         string `json:"ip"`
	Network    string `json:"network"`
	GuestPCI   string `json:"guestPCI"`
	ReadBack   bool   `json:"readBack"` // the simulated hardware has what the API says
}

// refusal is a VM that could not be had.
type refusal struct {
	Name        string           `json:"name"`
	Tenant      string           `json:"tenant"`
	Code        string           `json:"code"`
	Detail      string           `json:"detail"`
	Explanation *api.Explanation `json:"explanation,omitempty"`
	Quota       []api.QuotaLine  `json:"quota,omitempty"`
}

// scrubbed is the VF of the deleted VM, as the hardware has it after.
type scrubbed struct {
	VM         string `json:"vm"`
	Tenant     string `json:"tenant"`
	Host       string `json:"host"`
	PF         string `json:"pf"`
	Index      int    `json:"index"`
	State      string `json:"state"`
	MAC        string `json:"mac"`
	VLAN       int    `json:"vlan"`
	QoS        int    `json:"qos"`
	SpoofCheck bool   `json:"spoofCheck"`
	Driver     string `json:"driver"`
	Resets     int    `json:"resets"` // since the delete
	Held       bool   `json:"held"`
}

func reportVM(v api.VM) vmReport {
	r := vmReport{Name: v.Name, Tenant: v.Tenant, Host: v.Status.Host, Simulated: v.Status.Simulated, State: v.Status.Phase, Cells: v.Status.Cells}
	for i, f := range v.Status.VFs {
		if i == 0 {
			r.IP = f.IP
		}
		r.VFs = append(r.VFs, vfReport{PF: f.PF, Index: f.Index, MAC: f.MAC, VLAN: f.VLAN, QoS: f.QoS, SpoofCheck: f.SpoofCheck, NUMA: f.HostCell,
			Cell: f.Cell, Generation: f.Generation, State: f.State, IP: f.IP, Network: f.Network, GuestPCI: f.GuestPCI})
	}
	return r
}

func decodeVM(raw []byte) (*api.VM, error) {
	vm := &api.VM{}
	if err := json.Unmarshal(raw, vm); err != nil {
		return nil, fmt.Errorf("read a VM: %w", err)
	}
	return vm, nil
}

// indented moves what commands write to the right.
type indented struct {
	w      io.Writer
	inLine bool
}

// Write writes with an indent before each line.
func (i *indented) Write(p []byte) (int, error) {
	var b bytes.Buffer
	for line := range bytes.Lines(p) {
		if !i.inLine && len(bytes.TrimSpace(line)) > 0 {
			b.WriteString("  ")
		}
		b.Write(line)
		i.inLine = !bytes.HasSuffix(line, []byte("\n"))
	}
	if _, err := i.w.Write(b.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// program is how the reader called us, so that commands to copy work.
func program() string {
	if name := os.Args[0]; strings.ContainsRune(name, filepath.Separator) {
		return name
	}
	return "verbena"
}
