package agenttest

import (
	"slices"
	"testing"

	"github.com/verbena-cloud/verbena/internal/agent"
	"github.com/verbena-cloud/verbena/internal/wire"
)

var _ agent.Disk = (*Disk)(nil)

func TestDisk(t *testing.T) {
	var d Disk
	for range 2 {
		if _, err := d.Ensure(t.Context(), "u-1", wire.Image{Name: "debian", Source: "/x"}, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Seed(t.Context(), "u-1", []byte("secret")); err != nil {
			t.Fatal(err)
		}
	}
	if got := d.Files(); !slices.Equal(got, []string{"/simulated/u-1.iso", "/simulated/u-1.qcow2"}) {
		t.Errorf("%v", got)
	}
	for range 2 {
		if err := d.Remove(t.Context(), "u-1"); err != nil {
			t.Fatal(err)
		}
	}
	if got := d.Files(); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
	if _, err := d.Ensure(t.Context(), "u-1", wire.Image{}, 0); err == nil {
		t.Error("an image from nowhere")
	}
}
