package preflight

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/verbena-cloud/verbena/internal/dcb"
	"github.com/verbena-cloud/verbena/internal/roce"
)

// twin is a good host with a second port, of another fabric.
func twin() (Facts, func(PF) Expect) {
	f := good()
	second := f.PFs[0]
	second.Address, second.Link, second.VFs = roce.PCIAddr{Bus: 0x3b, Function: 1}, "ens1f1", nil
	second.SRIOV.Num = 0
	f.PFs = append(f.PFs, second)
	return f, func(p PF) Expect {
		e := Expect{Config: Default()}
		if p.Link == "ens1f1" {
			e.Priority, e.DSCP, e.MinMTU, e.Pairs = 5, 40, 4096, []Pair{{Driver: "mlx5_core", MinFirmware: "22.40"}}
		}
		return e
	}
}

// TestEachPortByItsFabric: ports of two fabrics are judged apart, and one that VMs get nothing of fails nothing.
func TestEachPortByItsFabric(t *testing.T) {
	f, of := twin()
	f.PFs[1].MTU = 4000
	wrong := map[string]Level{}
	for _, x := range CheckEach(f, of) {
		if x.Level != OK {
			wrong[x.Check+" "+x.Object] = x.Level
		}
	}
	want := map[string]Level{"nic.pfc ens1f1": Failed, "nic.trust ens1f1": Failed, "link.mtu ens1f1": Failed, "nic.firmware ens1f1": Failed, "sriov.vfs ens1f1": Info}
	if fmt.Sprint(wrong) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", wrong, want)
	}
	spared := CheckEach(f, func(p PF) Expect {
		e := of(p)
		e.Spare = p.Link == "ens1f1"
		return e
	})
	for _, x := range spared {
		if x.Level != OK && x.Level != Info {
			t.Errorf("a spare port gives %+v", x)
		}
		if x.Check == "link.mtu" && x.Object == "ens1f1" && !strings.HasSuffix(x.Seen, spare) {
			t.Errorf("%q does not say why it is no fault", x.Seen)
		}
	}
}

// TestSpareRDMADevice: a device counts as its port does, also one of a VF.
func TestSpareRDMADevice(t *testing.T) {
	f := good()
	f.PFs[0].VFs[0].Address = roce.PCIAddr{Bus: 0x3b, Function: 2}
	f.RDMA[0].NodeGUID = 0
	vf := f.RDMA[0]
	vf.Name, vf.Address, vf.Virtual = "mlx5_1", &f.PFs[0].VFs[0].Address, true
	f.RDMA = append(f.RDMA, vf, RDMADevice{Name: "rxe0", Uverbs: "uverbs0"})
	levels := map[string]Level{}
	for _, x := range CheckEach(f, func(PF) Expect { return Expect{Config: Default(), Spare: true} }) {
		if x.Check == "rdma.guid" {
			levels[x.Object] = x.Level
		}
	}
	if levels["mlx5_0"] != Info || levels["mlx5_1"] != Info || levels["rxe0"] != Failed {
		t.Errorf("%v", levels)
	}
}

// TestWorst: what a host tells is bounded, and the worst is never what is left out.
func TestWorst(t *testing.T) {
	var list []Finding
	for i := range 3 * MaxFindings {
		list = append(list, Finding{Check: "a.b", Object: fmt.Sprint(i), Level: []Level{OK, Info, Warning}[i%3], Seen: strings.Repeat("é", MaxSeen), Fix: make([]string, 9)})
	}
	list = append(list, Finding{Check: "c.d", Level: Failed, Seen: "x", Fix: []string{strings.Repeat("y", 2*MaxSeen)}})
	out, omitted := Worst(list)
	if len(out) != MaxFindings || omitted != 2*MaxFindings+1-MaxFindings || out[0].Check != "c.d" || out[1].Level != Warning {
		t.Errorf("%d findings, %d omitted, the first %+v", len(out), omitted, out[0])
	}
	for _, f := range out {
		if len(f.Seen) > MaxSeen || !utf8.ValidString(f.Seen) || len(f.Fix) > MaxSteps || f.Fix != nil && len(f.Fix[0]) > MaxSeen {
			t.Fatalf("unbounded: %+v", f)
		}
	}
	if len(list[len(list)-1].Fix[0]) != 2*MaxSeen {
		t.Error("the list itself was changed")
	}
	if out, omitted := Worst(nil); len(out) != 0 || omitted != 0 {
		t.Errorf("of nothing: %v, %d", out, omitted)
	}
}

// TestCheckIsCheckEach: one configuration for all ports is the same as each port having it.
func TestCheckIsCheckEach(t *testing.T) {
	f, _ := twin()
	f.PFs[0].DCB.PFC.Enabled = dcb.Of(4)
	if a, b := fmt.Sprint(Check(f, Default())), fmt.Sprint(CheckEach(f, func(PF) Expect { return Expect{Config: Default()} })); a != b {
		t.Errorf("%s\n%s", a, b)
	}
}
