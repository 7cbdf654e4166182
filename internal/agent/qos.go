package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/dcb"
	"github.com/verbena-cloud/verbena/internal/nicqos"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// portQoS is what the process remembers of a PF's port.
type portQoS struct {
	have   nicqos.Have
	failed string // what the driver said to a step that it must take
	at     time.Time
}

// refusals are the optional settings that a driver refused; another kernel, driver or firmware is asked again.
type refusals struct {
	Kernel string            `json:"kernel"`
	Driver string            `json:"driver"`
	FW     string            `json:"firmware,omitempty"`
	Said   map[string]string `json:"said"` // by command
}

const refusalsFile = "nicqos"

func (a *Agent) loadRefusals() error {
	data, err := a.d.Files.Read(refusalsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read what NIC drivers refused: %w", err)
	}
	if err := unseal(data, &a.refused); err != nil {
		a.refused = map[string]refusals{} // they are found out again
	}
	return nil
}

// refusedBy returns what the PF's driver is known to refuse.
func (a *Agent) refusedBy(f *function) map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.refused[f.Key]; r.Kernel == a.release && r.Driver == f.Driver && r.FW == f.Firmware {
		return r.Said
	}
	return nil
}

func (a *Agent) noteRefusal(f *function, command string, said error) error {
	known := maps.Clone(a.refusedBy(f))
	if known == nil {
		known = map[string]string{}
	}
	known[command] = errno(said)
	a.mu.Lock()
	defer a.mu.Unlock()
	next := maps.Clone(a.refused)
	next[f.Key] = refusals{Kernel: a.release, Driver: f.Driver, FW: f.Firmware, Said: known}
	data, err := seal(next)
	if err != nil {
		return err
	}
	if err := a.d.Files.Write(refusalsFile, data); err != nil {
		return fmt.Errorf("remember what the driver of PF %s refused: %w", f.Key, err)
	}
	a.refused = next
	return nil
}

// wantedQoS is what the PF's fabric asks of its port; a PF that serves none is looked at as the usual one
// would ask.
func wantedQoS(want *wire.PF) nicqos.Want {
	if want == nil || want.QoS == nil {
		return nicqos.For(usualPriority, usualDSCP, usualCNPDSCP)
	}
	return nicqos.For(want.QoS.Priority, want.QoS.DSCP, want.QoS.CNPDSCP)
}

// What NIC and switch vendors ship, and a fabric has if nobody says otherwise.
const (
	usualPriority = 3
	usualDSCP     = 26
	usualCNPDSCP  = 48
)

// readQoS observes the port of a PF.
func (a *Agent) readQoS(ctx context.Context, f *function, lldp []string) nicqos.Have {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	want := a.commissioned(f.PF)
	h := nicqos.Have{Link: f.Netdev, Driver: f.Driver, Agents: lldp}
	s, err := a.d.DCB.Get(ctx, f.Netdev)
	switch {
	case dcb.Unsupported(err):
	case err != nil:
		h.Unread = text(err)
	default:
		h.DCB = &s
	}
	for _, file := range nicqos.Files(wantedQoS(want), f.Netdev, f.PCI.String()) {
		if v, err := a.d.Tree.Read(ctx, file.Path); err == nil { // vendor files: whatever can't be read is not there
			if h.Files == nil {
				h.Files = map[string]string{}
			}
			h.Files[file.Path] = v
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.ports[f.Key]
	if m == nil {
		m = &portQoS{}
		a.ports[f.Key] = m
	}
	m.have = h
	return h
}

// readPorts observes the ports of all PFs, at the slow period: nothing tells of a change.
func (a *Agent) readPorts(ctx context.Context, snap *snapshot, prob *problems) {
	if a.d.DCB == nil {
		return
	}
	lldp, err := a.d.LLDPAgents(ctx)
	if err != nil {
		prob.add(err)
	}
	for i := range snap.functions {
		if f := &snap.functions[i]; f.Key != "" && f.Netdev != "" {
			if h := a.readQoS(ctx, f, lldp); h.Unread != "" {
				prob.addf("%s", h.Unread)
			}
		}
	}
}

// qosHave is the remembered observation with what f shows of the port's users; false = it was never read.
func (a *Agent) qosHave(f *function, want *wire.PF) (nicqos.Have, bool) {
	refused := a.refusedBy(f)
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.ports[f.Key]
	if m == nil || f.Netdev == "" {
		return nicqos.Have{}, false
	}
	h := m.have
	h.Refused = refused
	for _, v := range f.VFs {
		if v.Domain.Running || len(v.Openers) > 0 {
			h.InUse++
		}
	}
	if f.Management && want != nil && !want.AllowManagement {
		h.Guard = "the port carries the default route or the server session; set allowManagement on the host's PF if its settings shall be changed all the same"
	}
	return h, true
}

// qosPlan says how the port of a PF gets as its fabric wants; false if that does not matter.
func (a *Agent) qosPlan(f *function, want *wire.PF) (nicqos.Plan, bool) {
	if want == nil || want.QoS == nil || want.VFs == 0 {
		return nicqos.Plan{}, false
	}
	h, ok := a.qosHave(f, want)
	if !ok {
		return nicqos.Plan{}, false
	}
	p := nicqos.Make(wantedQoS(want), f.PCI.String(), h)
	a.mu.Lock()
	defer a.mu.Unlock()
	if m := a.ports[f.Key]; m.failed != "" && p.State == nicqos.Drift && len(p.Steps) > 0 {
		p.Reason = m.failed
	}
	return p, true
}

// qosDue reports whether settings of the PF's port are to be changed now.
func (a *Agent) qosDue(f *function, want *wire.PF) bool {
	p, ok := a.qosPlan(f, want)
	if !ok || !want.QoS.Apply || len(p.Steps) == 0 {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.ports[f.Key]
	return m.failed == "" || a.d.Now().Sub(m.at) >= recheck
}

// quality brings the port of a PF to what its fabric wants. What a driver refuses for good is told of and
// no error: it must not keep VFs out of the pool, nor be tried over and over.
func (a *Agent) quality(ctx context.Context, f *function, want *wire.PF) error {
	if a.d.DCB == nil || want.QoS == nil || want.VFs == 0 || f.Netdev == "" {
		return nil
	}
	lldp, err := a.d.LLDPAgents(ctx)
	if err != nil {
		return err
	}
	a.readQoS(ctx, f, lldp)
	if !a.qosDue(f, want) {
		return nil
	}
	p, _ := a.qosPlan(f, want)
	err = a.setQoS(ctx, f, p.Steps)
	a.readQoS(ctx, f, lldp)
	nudge(a.checks.due)
	if err != nil && !final(err) {
		return fmt.Errorf("set up the port of PF %s: %w", f.Key, err)
	}
	failed := ""
	if err != nil {
		failed = text(err)
	} else if after, _ := a.qosPlan(f, want); len(after.Steps) > 0 {
		failed = fmt.Sprintf("it was set, but reads back differently: %s", after.Steps[0].Line())
	}
	a.mu.Lock()
	m := a.ports[f.Key]
	told := m.failed == failed
	m.failed, m.at = failed, a.d.Now()
	a.mu.Unlock()
	switch {
	case failed == "":
		a.events.add(a.hostRef(), normal, "NICQoSSet", fmt.Sprintf("the port of PF %s was set up for fabric %s: %s", f.Key, want.Fabric, strings.Join(nicqos.Lines(p.Steps), "; ")))
	case !told:
		a.events.add(a.hostRef(), warning, "NICQoSRefused", fmt.Sprintf("the port of PF %s is not as fabric %s wants: %s", f.Key, want.Fabric, failed))
	}
	return nil
}

// final reports that a driver's answer would be the same again.
func final(err error) bool {
	return refused(err) || errors.Is(err, dcb.ErrOwned) || errors.Is(err, dcb.ErrNotTaken)
}

func (a *Agent) setQoS(ctx context.Context, f *function, steps []nicqos.Step) error {
	for _, s := range steps {
		a.log.Debug("apply", "step", s.String())
		a.writes.Add(1)
		err := a.setPort(ctx, s)
		if err == nil {
			continue
		}
		if !s.Optional || !final(err) {
			return fmt.Errorf("%s: %w", s, err)
		}
		if err := a.noteRefusal(f, s.String(), err); err != nil {
			return err
		}
	}
	return nil
}

func (a *Agent) setPort(ctx context.Context, s nicqos.Step) error {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.WriteDeadline)
	defer cancel()
	if s.Change != nil {
		return a.d.DCB.Set(ctx, s.Link, s.Change)
	}
	return a.d.Tree.Write(ctx, s.Path, s.Value)
}

// qosStatus is what the server is told of the PF's port.
func (a *Agent) qosStatus(f *function, want *wire.PF) *api.NICQoS {
	h, ok := a.qosHave(f, want)
	if !ok {
		return nil
	}
	out := nicqos.Report(h)
	if p, ok := a.qosPlan(f, want); ok {
		a.mu.Lock()
		if a.ports[f.Key].failed != "" { // the driver won't: it is for people to do
			p.Held, p.Steps = append(p.Steps, p.Held...), nil
		}
		a.mu.Unlock()
		nicqos.Judge(out, p)
	}
	return out
}

// lldpAgents looks for programs that set DCB of NICs by LLDP (lldpad is of open-lldp).
func lldpAgents(proc string) func(context.Context) ([]string, error) {
	return func(ctx context.Context) ([]string, error) {
		entries, err := os.ReadDir(proc)
		if err != nil {
			return nil, fmt.Errorf("look for LLDP agents: %w", err)
		}
		var out []string
		for _, e := range entries {
			if _, err := strconv.Atoi(e.Name()); err != nil {
				continue
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			b, err := os.ReadFile(filepath.Join(proc, e.Name(), "comm")) // it may have ended meanwhile
			if name := strings.TrimSpace(string(b)); err == nil && name == "lldpad" && !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
		return out, nil
	}
}
