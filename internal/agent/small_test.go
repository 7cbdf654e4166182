package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/wire"
)

func FuzzParseCPUs(f *testing.F) {
	for _, s := range []string{"", "0", "0-15,32-47", "3-1", "x", "0-4294967295", "1,,2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		list, err := parseCPUs(s)
		if err != nil {
			return
		}
		again, err := parseCPUs(formatCPUs(list))
		if err != nil || !slices.Equal(list, again) {
			t.Errorf("%q: %v, again %v, %v", s, list, again, err)
		}
	})
}

func FuzzVPD(f *testing.F) {
	f.Add([]byte("\x82\x02\x00AB\x90\x0a\x00PN\x01xSN\x03123\x78"))
	f.Add([]byte{0x90, 0xff, 0xff})
	f.Fuzz(func(_ *testing.T, b []byte) { vpdSerial(b) })
}

func TestVPD(t *testing.T) {
	if got := vpdSerial([]byte("\x82\x02\x00AB\x90\x0a\x00PN\x01xSN\x03123\x78")); got != "123" {
		t.Errorf("serial %q", got)
	}
}

func FuzzRoutes(f *testing.F) {
	f.Add("Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\nens1\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")
	f.Fuzz(func(t *testing.T, s string) {
		for _, d := range defaultDevices(func(string) ([]byte, error) { return []byte(s), nil }, &problems{}) {
			if d == "" || d == "lo" {
				t.Errorf("device %q", d)
			}
		}
	})
}

func TestDefaultDevices(t *testing.T) {
	text := map[string]string{
		"net/route": "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\n" +
			"br0\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\nens1\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n",
		"net/ipv6_route": "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 1 0 00000003 ens2\n" +
			"00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 1 0 00200200 lo\n",
	}
	got := defaultDevices(func(n string) ([]byte, error) { return []byte(text[n]), nil }, &problems{})
	if !slices.Equal(got, []string{"br0", "ens2"}) {
		t.Errorf("%v", got)
	}
}

func TestFilesAreAtomicAndPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	f, err := Directory(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Write("journal/vm-1", []byte("one")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "journal", tempPrefix+"x"), []byte("left by a crash"), 0o600); err != nil {
		t.Fatal(err)
	}
	names, err := f.List("journal")
	if err != nil || !slices.Equal(names, []string{"vm-1"}) {
		t.Errorf("%v, %v", names, err)
	}
	info, err := os.Stat(filepath.Join(dir, "journal", "vm-1"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	for range 2 {
		if err := f.Remove("journal/vm-1"); err != nil {
			t.Error(err)
		}
	}
	if names, err := f.List("nowhere"); err != nil || names != nil {
		t.Errorf("%v, %v", names, err)
	}
}

func FuzzUnseal(f *testing.F) {
	good, err := seal(entry{Stage: "holding"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte("\n{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var e entry
		if unseal(b, &e) == nil && len(b) < 65 {
			t.Errorf("believed %q", b)
		}
	})
}

func TestHoldersOfThisProcess(t *testing.T) {
	proc := t.TempDir() // as /proc shows a QEMU with two groups, and a process that has just ended
	for pid, links := range map[string]map[string]string{
		"12": {"3": "/dev/vfio/vfio", "4": "/dev/vfio/42", "5": "/dev/vfio/7", "6": "/dev/null"}, "self": {}, "99": nil,
	} {
		fd := filepath.Join(proc, pid, "fd")
		if links == nil {
			fd = filepath.Join(proc, pid)
		}
		if err := os.MkdirAll(fd, 0o750); err != nil {
			t.Fatal(err)
		}
		for n, to := range links {
			if err := os.Symlink(to, filepath.Join(fd, n)); err != nil {
				t.Fatal(err)
			}
		}
	}
	dev := t.TempDir()
	for _, n := range []string{"vfio", "devices"} { // what is there without any bound function
		if err := os.Mkdir(filepath.Join(dev, n), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := vfioHolders("/nonexistent", dev)(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("without a group nobody is looked at: %v, %v", got, err)
	}
	if err := os.Mkdir(filepath.Join(dev, "42"), 0o750); err != nil {
		t.Fatal(err)
	}
	if _, err := vfioHolders("/nonexistent", dev)(t.Context()); err == nil {
		t.Error("processes that can't be looked at hold nothing, it says")
	}
	got, err := vfioHolders(proc, dev)(t.Context())
	if err != nil || fmt.Sprint(got) != "map[42:[12] 7:[12]]" {
		t.Errorf("%v, %v", got, err)
	}
}

func TestOverlays(t *testing.T) {
	dir := t.TempDir()
	body := "an image"
	sum := sha256.Sum256([]byte(body))
	fetched := 0
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fetched++; fmt.Fprint(w, body) }))
	defer web.Close()
	var calls []string
	fake := func(_ context.Context, name string, args ...string) ([]byte, error) {
		calls = append(calls, name+" "+strings.Join(args, " "))
		if args[0] == "info" {
			return []byte(`{"virtual-size": 1000}`), nil
		}
		return nil, os.WriteFile(args[8], nil, 0o600)
	}
	d, err := Overlays(filepath.Join(dir, "vms"), filepath.Join(dir, "cache"), fake, nil)
	if err != nil {
		t.Fatal(err)
	}
	img := wire.Image{Name: "debian", Source: web.URL, SHA256: hex.EncodeToString(sum[:]), Format: "qcow2"}
	for range 2 {
		disk, err := d.Ensure(t.Context(), "u-1", img, 2000)
		if err != nil || disk.Path != filepath.Join(dir, "vms", "u-1.qcow2") {
			t.Fatalf("%+v, %v", disk, err)
		}
	}
	if fetched != 1 || len(calls) != 2 || !strings.Contains(calls[1], "-F qcow2 -b "+filepath.Join(dir, "cache", img.SHA256)) {
		t.Errorf("fetched %d times, ran %q", fetched, calls)
	}
	if _, err := d.Ensure(t.Context(), "u-2", img, 10); !fault.Is(err, fault.Invalid) {
		t.Errorf("a disk smaller than its image: %v", err)
	}
	bad := img
	bad.SHA256 = strings.Repeat("0", 64)
	if _, err := d.Ensure(t.Context(), "u-3", bad, 0); !fault.Is(err, fault.Unready) {
		t.Errorf("a wrong hash: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "cache")); len(left) != 1 {
		t.Errorf("the cache holds %v", left)
	}
	if _, err := d.Ensure(t.Context(), "../x", img, 0); !fault.Is(err, fault.Invalid) {
		t.Errorf("a name that leads out: %v", err)
	}
	if _, err := d.Ensure(t.Context(), "u-4", wire.Image{Name: "x", Source: "relative"}, 0); !fault.Is(err, fault.Invalid) {
		t.Errorf("a relative path: %v", err)
	}
	seed, err := d.Seed(t.Context(), "u-1", []byte("iso"))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(t.Context(), "u-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(seed); !os.IsNotExist(err) {
		t.Errorf("the seed is left: %v", err)
	}
}

// TestDirectoriesStayPassable: QEMU runs as another user, who must reach the disks whatever the umask was.
func TestDirectoriesStayPassable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil { // as a umask of 077 leaves it
		t.Fatal(err)
	}
	if _, err := Directory(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := Overlays(filepath.Join(dir, "vms"), filepath.Join(dir, "images"), nil, nil); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, filepath.Join(dir, "vms"), filepath.Join(dir, "images")} {
		info, err := os.Stat(d)
		if err != nil || info.Mode().Perm() != 0o711 {
			t.Errorf("%s: %v, %v", d, info.Mode(), err)
		}
	}
}
