package seed_test

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/kdomanski/iso9660"

	"github.com/verbena-cloud/verbena/internal/guest/seed"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// TestISO reads the image back as a guest would: label, names, content.
func TestISO(t *testing.T) {
	s := wire.Seed{Hostname: "train-0", UserData: "#cloud-config\nsecret: hunter2\n", Interfaces: []wire.SeedLink{
		{Name: "rdma0", MAC: "02:5a:10:00:00:07", Address: "10.20.0.5/24", RDMA: true},
	}}
	iso, err := seed.ISO(s, "i-1")
	if err != nil {
		t.Fatal(err)
	}
	got := contents(t, iso)
	if len(got) != 4 || got["user-data"] != s.UserData || got["meta-data"] == "" || got["network-config"] == "" || got["vendor-data"] == "" {
		t.Errorf("files %v", got)
	}
	tool := strings.Repeat("\x7fELF", 1<<20)
	if iso, err = (seed.Maker{Tool: []byte(tool)}).ISO(s, "i-1"); err != nil {
		t.Fatal(err)
	}
	if got = contents(t, iso); len(got) != 5 || got["verbena-guest"] != tool {
		t.Errorf("%d files with a tool", len(got))
	}
}

func contents(t *testing.T, iso []byte) map[string]string {
	t.Helper()
	img, err := iso9660.OpenImage(bytes.NewReader(iso))
	if err != nil {
		t.Fatal(err)
	}
	if l, err := img.Label(); err != nil || l != "cidata" {
		t.Errorf("label %q, %v", l, err)
	}
	dir, err := img.RootDir()
	if err != nil {
		t.Fatal(err)
	}
	list, err := dir.GetChildren()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range list {
		b, err := io.ReadAll(f.Reader())
		if err != nil {
			t.Fatal(err)
		}
		got[f.Name()] = string(b)
	}
	return got
}
