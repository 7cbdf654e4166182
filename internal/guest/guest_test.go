package guest_test

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"os/exec"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/guest"
	"github.com/verbena-cloud/verbena/internal/wire"
)

func vm() wire.Seed {
	return wire.Seed{
		Hostname: "train-0", SSHKeys: []string{"ssh-ed25519 AAAA me"}, UserData: "#cloud-config\npackages: [perftest]\n",
		Interfaces: []wire.SeedLink{
			{Name: "rdma0", MAC: "02:5a:10:00:00:07", Address: "10.20.0.5/24", Gateway: "10.20.0.1", MTU: 4200, DNS: []string{"10.0.0.53"}, RDMA: true},
			{Name: "rdma1", MAC: "02:5a:10:00:00:08", Address: "10.21.0.5/24", Gateway: "10.21.0.1", RDMA: true},
		},
	}
}

func read(t *testing.T, s wire.Seed) map[string]string {
	t.Helper()
	files, err := guest.Files(s, "i-1", nil)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, f := range files {
		out[f.Name] = string(f.Data)
	}
	return out
}

func TestFiles(t *testing.T) {
	f := read(t, vm())
	var net struct {
		Version   int
		Ethernets map[string]struct {
			Match     struct{ Macaddress string }
			SetName   string `yaml:"set-name"`
			Addresses []string
			MTU       int
			Routes    []struct{ To, Via string }
		}
	}
	if err := yaml.Unmarshal([]byte(f["network-config"]), &net); err != nil {
		t.Fatal(err)
	}
	r0, r1 := net.Ethernets["rdma0"], net.Ethernets["rdma1"]
	if net.Version != 2 || r0.Match.Macaddress != "02:5a:10:00:00:07" || r0.SetName != "rdma0" || r0.MTU != 4200 || len(r0.Addresses) != 1 || r0.Addresses[0] != "10.20.0.5/24" {
		t.Errorf("network-config:\n%s", f["network-config"])
	}
	if len(r0.Routes) != 1 || r0.Routes[0].Via != "10.20.0.1" || len(r1.Routes) != 0 {
		t.Errorf("want exactly one default route, by the first gateway:\n%s", f["network-config"])
	}
	if !strings.Contains(f["meta-data"], `"instance-id": "i-1"`) || !strings.Contains(f["meta-data"], `"local-hostname": "train-0"`) {
		t.Errorf("meta-data:\n%s", f["meta-data"])
	}
	if f["user-data"] != vm().UserData {
		t.Errorf("user data was changed: %q", f["user-data"])
	}
	if !strings.HasPrefix(f["vendor-data"], "#cloud-config\n") || !strings.Contains(f["vendor-data"], "memlock unlimited") {
		t.Errorf("vendor-data:\n%s", f["vendor-data"])
	}
}

// TestPlainVM: nothing of RDMA is set up in a guest that has none.
func TestPlainVM(t *testing.T) {
	s := vm()
	s.UserData, s.SSHKeys = "", nil
	s.Interfaces = []wire.SeedLink{{Name: "eth0", MAC: "02:5a:10:00:00:07", Address: "10.20.0.5/24"}}
	f := read(t, s)
	if strings.Contains(f["vendor-data"], "modprobe") || !strings.HasPrefix(f["user-data"], "#cloud-config") || strings.Contains(f["meta-data"], "public-keys") {
		t.Errorf("%v", f)
	}
}

// TestTool: the program comes with its installer into VMs with RDMA, as a script part that a tenant's user data
// does not replace.
func TestTool(t *testing.T) {
	files, err := guest.Files(vm(), "i-1", []byte("ELF"))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(files); n != 5 || files[4].Name != guest.Tool || string(files[4].Data) != "ELF" {
		t.Fatalf("%d files", n)
	}
	m, err := mail.ReadMessage(bytes.NewReader(files[3].Data))
	if err != nil || m.Header.Get("Mime-Version") != "1.0" {
		t.Fatalf("vendor-data: %v", err)
	}
	kind, params, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/mixed" {
		t.Fatalf("%s, %v", kind, err)
	}
	parts := map[string]string{}
	for r := multipart.NewReader(m.Body, params["boundary"]); ; {
		p, err := r.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(p)
		if err != nil {
			t.Fatal(err)
		}
		kind, _, _ := mime.ParseMediaType(p.Header.Get("Content-Type"))
		parts[kind] = string(body)
	}
	plain := read(t, vm())
	if got := parts["text/cloud-config"]; len(parts) != 2 || strings.TrimSpace(got) != strings.TrimSpace(plain["vendor-data"]) {
		t.Errorf("cloud-config part:\n%s", got)
	}
	script := parts["text/x-shellscript"]
	if !strings.HasPrefix(script, "#!/bin/sh\n") || !strings.Contains(script, "ExecStartPre=-/usr/local/sbin/verbena-guest tune\n") {
		t.Errorf("script part:\n%s", script)
	}
	if sh, err := exec.LookPath("sh"); err == nil {
		c := exec.CommandContext(t.Context(), sh, "-n")
		c.Stdin = strings.NewReader(script)
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%v: %s\n%s", err, out, script)
		}
	}
	// A VM without RDMA has nothing to set or tell.
	s := vm()
	s.Interfaces = []wire.SeedLink{{Name: "eth0", MAC: "02:5a:10:00:00:07", Address: "10.20.0.5/24"}}
	if files, err := guest.Files(s, "i-1", []byte("ELF")); err != nil || len(files) != 4 || !bytes.HasPrefix(files[3].Data, []byte("#cloud-config")) {
		t.Errorf("%d files, %v", len(files), err)
	}
}

func TestRefuses(t *testing.T) {
	for name, breakIt := range map[string]func(*wire.Seed){
		"mac":       func(s *wire.Seed) { s.Interfaces[0].MAC = "nonsense" },
		"address":   func(s *wire.Seed) { s.Interfaces[0].Address = "10.0.0.1" },
		"gateway":   func(s *wire.Seed) { s.Interfaces[1].Gateway = "x" },
		"user data": func(s *wire.Seed) { s.UserData = strings.Repeat("x", guest.MaxUserData+1) },
		"hostname":  func(s *wire.Seed) { s.Hostname = "" },
	} {
		s := vm()
		breakIt(&s)
		if _, err := guest.Files(s, "i-1", nil); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: err = %v, want Invalid", name, err)
		}
	}
}

// FuzzFiles: whatever a tenant writes into names and keys, the files stay YAML that says the same.
func FuzzFiles(f *testing.F) {
	f.Add("train-0", "ssh-ed25519 AAAA me", "#cloud-config\n")
	f.Add("a: b", "- x\n- y", "\x00")
	f.Fuzz(func(t *testing.T, host, key, user string) {
		s := vm()
		s.Hostname, s.SSHKeys, s.UserData = host, []string{key}, user
		files, err := guest.Files(s, "i-1", nil)
		if err != nil {
			return
		}
		var m struct {
			Hostname string   `yaml:"local-hostname"`
			Instance string   `yaml:"instance-id"`
			Keys     []string `yaml:"public-keys"`
		}
		if err := yaml.Unmarshal(files[0].Data, &m); err != nil {
			t.Fatalf("meta-data is no YAML: %v\n%s", err, files[0].Data)
		}
		if m.Instance != "i-1" {
			t.Fatalf("host name or key changed another field: %q", files[0].Data)
		}
	})
}
