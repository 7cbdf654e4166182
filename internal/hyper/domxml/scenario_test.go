package domxml_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/verbena-cloud/verbena/internal/hyper/domxml"
)

// TestC39_AliasesAreReadBack: libvirt keeps only aliases that begin with "ua-". Every VF has one, and what is
// read back knows each VF by it, whatever the order of the devices.
func TestC39_AliasesAreReadBack(t *testing.T) {
	for vfs := 1; vfs <= 8; vfs++ {
		d := domain(t, 1, vfs, 0)
		text, err := domxml.Render(d)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(text, "<hostdev "); n != vfs {
			t.Errorf("%d VFs make %d host devices", vfs, n)
		}
		for i := range vfs {
			if alias := fmt.Sprintf(`<alias name="ua-rdma%d">`, i); strings.Count(text, alias) != 1 {
				t.Errorf("%d VFs: the XML has not one %s", vfs, alias)
			}
		}
		first, rest, ok := strings.Cut(text, "<hostdev ")
		last := strings.LastIndex(rest, "</hostdev>") + len("</hostdev>")
		if !ok || last < len("</hostdev>") {
			t.Fatal("no host device")
		}
		devices := strings.Split(rest[:last], "<hostdev ")
		var turned strings.Builder
		turned.WriteString(first)
		for i := len(devices) - 1; i >= 0; i-- {
			turned.WriteString("<hostdev " + devices[i])
		}
		got, err := domxml.Parse(turned.String() + rest[last:])
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range got.VFs {
			if want := d.VFs[vfs-1-i]; v != want {
				t.Errorf("%d VFs: read back %+v, want %+v", vfs, v, want)
			}
		}
		if len(got.VFs) != vfs {
			t.Errorf("%d VFs: read back %d", vfs, len(got.VFs))
		}
	}
}
