package domxml_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/hyper/domxml"
	"github.com/verbena-cloud/verbena/internal/roce"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// domain builds a VM with the given numbers; cell c of the guest is backed by host node (c+1)%4, so that a
// mix-up of guest cells and host nodes shows.
func domain(t testing.TB, cells, vfsPerCell int, hugepage int64) hyper.Domain {
	t.Helper()
	d := hyper.Domain{
		UUID: "6f1c4a52-8a4e-4d61-9c1f-0d3a5b7e9f10", Name: "research.train-0", Type: "kvm",
		Owner:      hyper.Owner{Tenant: "research", VM: "train-0", Generation: 3},
		Disk:       hyper.Disk{Path: "/var/lib/verbena/vm/a/disk.qcow2", Format: "qcow2"},
		Seed:       "/var/lib/verbena/vm/a/seed.iso",
		Emulator:   "0-1",
		GuestPorts: []string{"org.verbena.guest.0"},
	}
	for c := range cells {
		cell := hyper.Cell{ID: c, HostNode: (c + 1) % 4, VCPUs: 4, Memory: 8 << 30, Hugepage: hugepage, Strict: true}
		for i := range 4 {
			cell.CPUs = append(cell.CPUs, strconv.Itoa(16*c+i))
		}
		d.Cells = append(d.Cells, cell)
		for k := range vfsPerCell {
			guest, err := domxml.GuestPCI(c, k)
			if err != nil {
				t.Fatal(err)
			}
			d.VFs = append(d.VFs, hyper.VF{
				Alias: fmt.Sprintf("rdma%d", len(d.VFs)), Cell: c, Guest: guest, VLAN: 120, QoS: 3,
				Host: roce.PCIAddr{Bus: uint8(0x3b + c), Slot: 0x1f, Function: uint8(k)},
				MAC:  roce.MAC{2, 0x5a, 0x10, 0, byte(c), byte(k)},
			})
		}
	}
	return d
}

// TestSchema has libvirt's own grammar judge every shape: 1–8 VFs over 1–4 cells, with and without hugepages.
func TestSchema(t *testing.T) {
	xmllint, err := exec.LookPath("xmllint")
	if err != nil {
		t.Skip("xmllint is not installed (apt-get install libxml2-utils): the schema check did not run")
	}
	schema := "/usr/share/libvirt/schemas/domain.rng"
	if _, err := os.Stat(schema); err != nil {
		t.Skip("libvirt's schemas are not installed (apt-get install libvirt0): the schema check did not run")
	}
	args := []string{"--noout", "--relaxng", schema}
	dir := t.TempDir()
	for cells := 1; cells <= 4; cells++ {
		for vfs := 1; vfs*cells <= 8; vfs++ {
			for _, page := range []int64{0, 2 << 20, 1 << 30} {
				d := domain(t, cells, vfs, page)
				text, err := domxml.Render(d)
				if err != nil {
					t.Fatal(err)
				}
				file := filepath.Join(dir, fmt.Sprintf("c%d-v%d-p%d.xml", cells, vfs, page))
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				args = append(args, file)
			}
		}
	}
	plain := domain(t, 1, 0, 0)
	plain.Type, plain.Seed, plain.Emulator = "qemu", "", ""
	plain.NICs = []hyper.NIC{{Bridge: "br0", MAC: roce.MAC{2, 0, 0, 0, 0, 1}, VLAN: 12, MTU: 9000}}
	text, err := domxml.Render(plain)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "plain.xml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), xmllint, append(args, file)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestGolden(t *testing.T) {
	for name, d := range map[string]hyper.Domain{
		"one-vf":        domain(t, 1, 1, 0),
		"two-cells-1g":  domain(t, 2, 2, 1<<30),
		"four-cells-2m": domain(t, 4, 2, 2<<20),
	} {
		t.Run(name, func(t *testing.T) {
			text, err := domxml.Render(d)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".xml")
			if *update {
				if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(bytes.TrimSpace(want)), text); diff != "" {
				t.Errorf("run with -update if this is meant:\n%s", diff)
			}
		})
	}
}

// TestRoundTrip reads back what matters after a crash: whose domain it is and which VFs it holds.
func TestRoundTrip(t *testing.T) {
	for cells := 1; cells <= 4; cells++ {
		for vfs := 0; vfs*cells <= 8; vfs++ {
			d := domain(t, cells, vfs, 0)
			text, err := domxml.Render(d)
			if err != nil {
				t.Fatal(err)
			}
			got, err := domxml.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			want := hyper.Seen{UUID: d.UUID, Name: d.Name, Owner: d.Owner, VFs: d.VFs, XML: text}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%d cells, %d VFs: %s", cells, vfs, diff)
			}
		}
	}
}

// TestF70_GuestNodeFollowsHostNode: the VF sits on the expander of the guest cell whose memory comes from
// the VF's host node; guest and host node numbers are different here on purpose.
func TestF70_GuestNodeFollowsHostNode(t *testing.T) {
	text, err := domxml.Render(domain(t, 2, 1, 0))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`<memnode cellid="0" mode="strict" nodeset="1"></memnode>`,
		`<memnode cellid="1" mode="strict" nodeset="2"></memnode>`,
		"<target busNr=\"32\">\n        <node>0</node>",
		"<target busNr=\"48\">\n        <node>1</node>",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("XML lacks %s\n%s", want, text)
		}
	}
}

// TestF71_HugepagesAreGuestNodes: hugepage nodesets count guest cells; guest cell 0 on host node 1 gets node-1
// pages through memnode.
func TestF71_HugepagesAreGuestNodes(t *testing.T) {
	text, err := domxml.Render(domain(t, 1, 1, 1<<30))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text, `<page size="1048576" unit="KiB" nodeset="0">`) || !strings.Contains(text, `nodeset="1"></memnode>`) {
		t.Errorf("hugepages or memnode name the wrong node:\n%s", text)
	}
}

// TestC42_DistinctGuestAddresses: three NICs keep their own guest addresses.
func TestC42_DistinctGuestAddresses(t *testing.T) {
	d := domain(t, 1, 3, 0)
	text, err := domxml.Render(d)
	if err != nil {
		t.Fatal(err)
	}
	got, err := domxml.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[roce.PCIAddr]bool{}
	for _, v := range got.VFs {
		seen[v.Guest] = true
	}
	if len(seen) != 3 {
		t.Errorf("3 VFs have %d guest addresses", len(seen))
	}
}

// TestC35_HexAddresses: a bus of 0x10 is never read or written as 10.
func TestC35_HexAddresses(t *testing.T) {
	d := domain(t, 1, 1, 0)
	d.VFs[0].Host = roce.PCIAddr{Domain: 1, Bus: 0x10, Slot: 0x1f, Function: 7}
	text, err := domxml.Render(d)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text, `<address domain="0x0001" bus="0x10" slot="0x1f" function="0x7">`) {
		t.Errorf("address is not in hex:\n%s", text)
	}
}

func TestRefusesBadDomains(t *testing.T) {
	for name, breakIt := range map[string]func(*hyper.Domain){
		"no cells":          func(d *hyper.Domain) { d.Cells = nil; d.VFs = nil },
		"gap in cells":      func(d *hyper.Domain) { d.Cells[0].ID = 1 },
		"pins":              func(d *hyper.Domain) { d.Cells[0].CPUs = d.Cells[0].CPUs[:1] },
		"page multiple":     func(d *hyper.Domain) { d.Cells[0].Hugepage = 1 << 30; d.Cells[0].Memory = 1<<30 + 4096 },
		"vf without cell":   func(d *hyper.Domain) { d.VFs[0].Cell = 7 },
		"same VF twice":     func(d *hyper.Domain) { d.VFs = append(d.VFs, d.VFs[0]) },
		"multicast mac":     func(d *hyper.Domain) { d.VFs[0].MAC[0] = 1 },
		"C34 wide domain":   func(d *hyper.Domain) { d.VFs[0].Host.Domain = 0x10000 },
		"foreign guest bus": func(d *hyper.Domain) { d.VFs[0].Guest.Bus = 0x41 },
	} {
		t.Run(name, func(t *testing.T) {
			d := domain(t, 1, 1, 0)
			breakIt(&d)
			if _, err := domxml.Render(d); !fault.Is(err, fault.Invalid) {
				t.Errorf("err = %v, want an Invalid fault", err)
			}
		})
	}
}

// TestA15_ForeignHostdevIsSeen: a domain that is not ours still tells which devices it holds, in both forms.
func TestA15_ForeignHostdevIsSeen(t *testing.T) {
	got, err := domxml.Parse(`<domain type='kvm'><name>other</name><uuid>1</uuid><devices>
	<hostdev mode='subsystem' type='pci' managed='yes'><source><address domain='0x0000' bus='0x3b' slot='0x02' function='0x1'/></source></hostdev>
	<interface type='hostdev' managed='yes'><mac address='02:5a:10:00:00:07'/><source><address type='pci' domain='0x0000' bus='0x3b' slot='0x02' function='0x2'/></source></interface>
	</devices></domain>`)
	if err != nil {
		t.Fatal(err)
	}
	if got.Owner != (hyper.Owner{}) || len(got.VFs) != 2 || got.VFs[0].Host.String() != "0000:3b:02.1" || got.VFs[1].Host.String() != "0000:3b:02.2" {
		t.Errorf("got %+v", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, n := range []int{0, 1, 3} {
		text, err := domxml.Render(domain(f, 1, n, 0))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add(`<domain><metadata><vm xmlns="https://verbena-cloud.github.io/xmlns/vm/1"><name>x</name></vm></metadata></domain>`)
	f.Add(`<domain><devices><hostdev mode='subsystem' type='pci'><source><address bus='300'/></source></hostdev></devices></domain>`)
	f.Fuzz(func(t *testing.T, text string) {
		s, err := domxml.Parse(text)
		if err != nil && !fault.Is(err, fault.Invalid) {
			t.Errorf("unclassified error: %v", err)
		}
		for _, v := range s.VFs {
			if v.Host.Slot > 31 || v.Host.Function > 7 {
				t.Errorf("impossible address %v", v.Host)
			}
		}
	})
}

// TestGuestPortSockets: libvirt names the socket that it made while the domain runs
// (https://libvirt.org/formatdomain.html#channel).
func TestGuestPortSockets(t *testing.T) {
	text, err := domxml.Render(domain(t, 1, 1, 0))
	if err != nil {
		t.Fatal(err)
	}
	const path = "/run/libvirt/qemu/channel/5-physics.train-0/org.verbena.guest.0"
	live := strings.Replace(text, `<source mode="bind"></source>`, `<source mode="bind" path="`+path+`"></source>`, 1)
	if live == text {
		t.Fatalf("there is no channel in\n%s", text)
	}
	seen, err := domxml.Parse(live)
	if err != nil || len(seen.Ports) != 1 || seen.Ports["org.verbena.guest.0"] != path {
		t.Errorf("%v, %v", seen.Ports, err)
	}
}
