package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/cli"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
)

const ticked = "✓"

// proof compares what the API says of every VF with what the simulated kernel and hypervisor have.
func (s *story) proof(ctx context.Context) error {
	s.chapter("Proof: what the simulated kernels and hypervisors hold themselves")
	s.say("Not what the API says, but what is read from the simulated hardware: each VF as it is programmed, and the\n" +
		"domain that holds it.")
	t := cli.Table{Heads: []string{"VM", "HOST", "PCI", "NUMA", "MAC", "VLAN", "QOS", "SPOOFCHK", "DRIVER", "DOMAIN", ""}, Indent: "  "}
	t.Heads[10] = s.words.Say("AS THE API SAYS")
	for i := range s.report.VMs {
		rows, err := s.prove(ctx, &s.report.VMs[i])
		if err != nil {
			return err
		}
		t.Rows = append(t.Rows, rows...)
	}
	fmt.Fprintln(s.out)
	if err := t.Write(s.out); err != nil {
		return err
	}
	return s.showXML(ctx)
}

// prove compares one VM and returns a row for each of its VFs.
func (s *story) prove(ctx context.Context, v *vmReport) ([][]string, error) {
	h := s.cloud.Host(v.Host)
	if h == nil {
		return nil, fmt.Errorf("VM %s is on %s, which is no host of ours", v.Name, v.Host)
	}
	dom, err := h.Domain(ctx, v.Tenant, v.Name)
	if err != nil {
		return nil, err
	}
	if dom == nil || dom.XML == "" {
		return nil, fmt.Errorf("host %s has no domain with XML for VM %s", v.Host, v.Name)
	}
	v.DomainXML = len(dom.XML)
	inv, err := s.c.Hosts().Get(ctx, "", v.Host)
	if err != nil {
		return nil, err
	}
	var rows [][]string
	for i := range v.VFs {
		f := &v.VFs[i]
		st, err := kernelVF(h, inv, f.PF, f.Index)
		if err != nil {
			return nil, err
		}
		if err := agree(f, st); err != nil {
			return nil, fmt.Errorf("VM %s, VF %d of %s: %w", v.Name, f.Index, f.PF, err)
		}
		addr, err := roce.ParsePCI(st.PCI)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(dom.VFs, func(d hyperVF) bool { return d.Host == addr }) {
			return nil, fmt.Errorf("the domain of VM %s does not hold VF %s", v.Name, st.PCI)
		}
		f.ReadBack = true
		rows = append(rows, []string{v.Tenant + "/" + v.Name, v.Host, st.PCI, strconv.Itoa(f.NUMA), st.Attr.MAC.String(), strconv.Itoa(st.Attr.VLAN),
			strconv.Itoa(st.Attr.QoS), onOff(st.Attr.SpoofCheck), st.Driver, string(dom.State), ticked})
	}
	return rows, nil
}

// kernelVF is a VF as the simulated hardware has it.
func kernelVF(h *Host, inv *api.Host, pf string, index int) (sysfstest.State, error) {
	for _, p := range inv.Status.Inventory.PFs {
		if p.Key == pf {
			return h.Kernel.VF(p.PCI, index)
		}
	}
	return sysfstest.State{}, fmt.Errorf("host %s has no PF %s", h.Name, pf)
}

// agree says what differs between the API's word and the hardware.
func agree(f *vfReport, st sysfstest.State) error {
	var errs []error
	differs := func(what string, want, have any) {
		if fmt.Sprint(want) != fmt.Sprint(have) {
			errs = append(errs, fmt.Errorf("%s is %v, the API says %v", what, have, want))
		}
	}
	differs("the MAC", f.MAC, st.Attr.MAC)
	differs("the VLAN", f.VLAN, st.Attr.VLAN)
	differs("the priority", f.QoS, st.Attr.QoS)
	differs("the spoof check", onOff(&f.SpoofCheck), onOff(st.Attr.SpoofCheck))
	differs("the driver", "vfio-pci", st.Driver)
	differs("being held by a process", true, st.Holder != 0)
	return errors.Join(errs...)
}

func onOff(b *bool) string {
	switch {
	case b == nil:
		return "?"
	case *b:
		return "on"
	}
	return "off"
}

// showXML shows the part of a domain that passes a VF through.
func (s *story) showXML(ctx context.Context) error {
	v := s.report.VMs[0]
	dom, err := s.cloud.Host(v.Host).Domain(ctx, v.Tenant, v.Name)
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(dom.XML, "<hostdev")
	part, _, ok := strings.Cut(rest, "</hostdev>")
	if !ok {
		return fmt.Errorf("the domain XML of VM %s passes no VF through", v.Name)
	}
	s.say("")
	s.say("The libvirt domain of VM %s (%d bytes of XML) passes its first VF through like this:", v.Name, len(dom.XML))
	fmt.Fprintln(s.out)
	w := &indented{w: s.out}
	fmt.Fprintf(w, "    <hostdev%s</hostdev>\n", part)
	return nil
}

// wayBack deletes a VM and proves that its VF is scrubbed and in the pool again.
func (s *story) wayBack(ctx context.Context) error {
	s.chapter("A VM is deleted; its VF is scrubbed and goes back to the pool")
	i := slices.IndexFunc(s.report.VMs, func(v vmReport) bool { return v.Name == leaving && v.Tenant == payments })
	if i < 0 {
		return fmt.Errorf("there is no VM %s", leaving)
	}
	v := s.report.VMs[i]
	f, h := v.VFs[0], s.cloud.Host(v.Host)
	inv, err := s.c.Hosts().Get(ctx, "", v.Host)
	if err != nil {
		return err
	}
	before, err := kernelVF(h, inv, f.PF, f.Index)
	if err != nil {
		return err
	}
	if err := s.must(ctx, "vm", "delete", v.Name, "-t", v.Tenant, "--yes", "--wait", "--timeout", "3m"); err != nil {
		return err
	}
	var told api.VF
	err = until(ctx, s.c.Hosts(), "", v.Host, func(o *api.Host) (bool, error) {
		told, err = toldVF(o, f.PF, f.Index)
		return told.State == api.VFParked && told.Owner == "", err
	})
	if err != nil {
		return fmt.Errorf("wait until the VF is parked: %w", err)
	}
	after, err := kernelVF(h, inv, f.PF, f.Index)
	if err != nil {
		return err
	}
	if err := clean(before, after); err != nil {
		return err
	}
	s.say("")
	s.say("VF %d of PF %s on %s, read from the simulated hardware:", f.Index, f.PF, v.Host)
	t := cli.Table{Heads: []string{"", "MAC", "VLAN", "QOS", "SPOOFCHK", "TRUST", "RATE", "HOLDER", "RESETS", "DRIVER"}, Indent: "  "}
	t.Heads[0] = s.words.Say("WHEN")
	t.Rows = [][]string{vfState(s.words.Say("held by %s", v.Name), before), vfState(s.words.Say("parked again"), after)}
	fmt.Fprintln(s.out)
	if err := t.Write(s.out); err != nil {
		return err
	}
	s.report.Scrubbed = &scrubbed{VM: v.Name, Tenant: v.Tenant, Host: v.Host, PF: f.PF, Index: f.Index, State: told.State, MAC: after.Attr.MAC.String(),
		VLAN: after.Attr.VLAN, QoS: after.Attr.QoS, SpoofCheck: after.Attr.SpoofCheck != nil && *after.Attr.SpoofCheck, Driver: after.Driver,
		Resets: after.Resets - before.Resets, Held: after.Holder != 0}
	return nil
}

func vfState(when string, st sysfstest.State) []string {
	holder := ""
	if st.Holder != 0 {
		holder = strconv.Itoa(st.Holder)
	}
	return []string{when, st.Attr.MAC.String(), strconv.Itoa(st.Attr.VLAN), strconv.Itoa(st.Attr.QoS), onOff(st.Attr.SpoofCheck), onOff(st.Attr.Trust),
		strconv.Itoa(int(st.Attr.MaxRate)), holder, strconv.Itoa(st.Resets), st.Driver}
}

// toldVF is a VF as the API has it.
func toldVF(o *api.Host, pf string, index int) (api.VF, error) {
	if o == nil || o.Status.Inventory == nil {
		return api.VF{}, errors.New("the host is gone")
	}
	for _, p := range o.Status.Inventory.PFs {
		for _, f := range p.VFs {
			if p.Key == pf && f.Index == index {
				return f, nil
			}
		}
	}
	return api.VF{}, nil
}

// clean says what of a former tenant is left in a VF.
func clean(before, after sysfstest.State) error {
	var errs []error
	must := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New("after the delete "+what))
		}
	}
	must(after.Holder == 0, "a process still holds the VF")
	must(!after.Dirty && after.Resets > before.Resets, "the VF was not reset")
	must(after.Attr.MAC != before.Attr.MAC && after.Attr.MAC != roce.MAC{}, "the VF has no parking MAC")
	must(after.Attr.VLAN == 0 && after.Attr.QoS == 0, "the VF has a VLAN")
	must(after.Attr.SpoofCheck != nil && *after.Attr.SpoofCheck, "the spoof check is off")
	must(after.Attr.Trust == nil || !*after.Attr.Trust, "the VF is trusted")
	must(after.Attr.MaxRate == 0 && after.Attr.MinRate == 0, "the VF has a rate")
	must(after.Driver == "vfio-pci", "the VF is not on vfio-pci")
	return errors.Join(errs...)
}

// vmOf reads a manifest of one VM for the API's own types.
func vmOf(_, path string) (*api.VM, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read a manifest: %w", err)
	}
	raw, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return decodeVM(raw)
}
