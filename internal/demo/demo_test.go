package demo_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/verbena-cloud/verbena/internal/cli"
	"github.com/verbena-cloud/verbena/internal/demo"
)

func options(out, err *bytes.Buffer, lang string) cli.DemoOptions {
	return cli.DemoOptions{Hosts: 4, Once: true, Listen: "127.0.0.1:0", Words: cli.NewWords(lang, []byte("{}")), Stdout: out, Stderr: err, Log: cli.Log{Level: "error", Format: "text", W: err}}
}

// TestReport: the JSON has what is promised of each VM, and every claim of the story.
func TestReport(t *testing.T) {
	var out, stderr bytes.Buffer
	o := options(&out, &stderr, "en")
	o.JSON = true
	if err := demo.Run(t.Context(), o, "test"); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	var r struct {
		Simulated bool
		VMs       []struct {
			Name, Tenant, Host, State, IP string
			Simulated                     bool
			Cells                         []struct{ Guest, Host, VCPUs int }
			VFs                           []struct {
				PF, MAC                string
				Index, VLAN, QoS, NUMA int
				Cell                   int
				Generation             int64
				SpoofCheck, ReadBack   bool
			}
		}
		Refusals []struct {
			Name, Code  string
			Explanation *struct{ Hosts []struct{ Rule string } }
			Quota       []struct{ Exceeded bool }
		}
		Scrubbed struct {
			State, MAC, Driver string
			VLAN, Resets       int
			Held               bool
		}
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if !r.Simulated || len(r.VMs) != 5 || len(r.Refusals) != 2 {
		t.Fatalf("simulated %t, %d VMs, %d refusals", r.Simulated, len(r.VMs), len(r.Refusals))
	}
	seen := map[string]bool{}
	for _, v := range r.VMs {
		if v.State != "Ready" || !v.Simulated || v.IP == "" || len(v.VFs) == 0 || len(v.Cells) == 0 {
			t.Errorf("VM %+v", v)
		}
		for _, f := range v.VFs {
			key := v.Host + f.PF + string(rune('0'+f.Index))
			if seen[key] || seen[f.MAC] || !f.ReadBack || !f.SpoofCheck || f.VLAN == 0 || f.QoS == 0 || f.Generation != 1 {
				t.Errorf("VM %s has VF %+v", v.Name, f)
			}
			seen[key], seen[f.MAC] = true, true
			if f.NUMA != v.Cells[f.Cell].Host {
				t.Errorf("VM %s: cell %d is on node %d, its VF on node %d", v.Name, f.Cell, v.Cells[f.Cell].Host, f.NUMA)
			}
		}
	}
	if q := r.Refusals[0]; q.Code != "quota" || len(q.Quota) == 0 {
		t.Errorf("refusal %+v", q)
	}
	if n := r.Refusals[1]; n.Code != "no-capacity" || n.Explanation == nil || len(n.Explanation.Hosts) != 4 || n.Explanation.Hosts[0].Rule != "numa-vf" {
		t.Errorf("refusal %+v", n)
	}
	if s := r.Scrubbed; s.State != "parked" || s.VLAN != 0 || s.Held || s.Resets == 0 || s.Driver != "vfio-pci" {
		t.Errorf("scrubbed %+v", s)
	}
}

// TestStoryInChinese: the story is told in the reader's language and says that it is simulated.
func TestStoryInChinese(t *testing.T) {
	var out, stderr bytes.Buffer
	o := options(&out, &stderr, "zh")
	o.Hosts = 1
	if err := demo.Run(t.Context(), o, "test"); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out.String(), stderr.String())
	}
	for _, want := range []string{"模拟", "逐台主机说明", "超出配额", "numa-vf", "重新停放"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the story does not say %q:\n%s", want, out.String())
		}
	}
}

// TestStaysUpAndLeavesNothing: without --once it stays until it is interrupted; then its directory is gone.
func TestStaysUpAndLeavesNothing(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var stderr bytes.Buffer
	out := &until{text: "verbena", stop: cancel, want: "VERBENA_TOKEN="}
	o := options(nil, &stderr, "en")
	o.Once, o.Stdout, o.Hosts = false, out, 1
	if err := demo.Run(ctx, o, "test"); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	if !out.met {
		t.Error("it never said how to go on")
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// until stops when a text was written.
type until struct {
	text, want string
	stop       func()
	met        bool
}

func (u *until) Write(p []byte) (int, error) {
	if strings.Contains(string(p), u.want) {
		u.met = true
		u.stop()
	}
	return len(p), nil
}

// TestManifestsCanBeAppliedWhole: who applies the directory that the demo names gets no error.
func TestManifestsCanBeAppliedWhole(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var said, stderr bytes.Buffer
	o := options(nil, &stderr, "en")
	code := -1
	o.Once, o.Data = false, t.TempDir()
	o.Stdout = writer(func(p []byte) (int, error) {
		n, err := said.Write(p)
		if code >= 0 || !strings.Contains(string(p), "manifests: ") {
			return n, err
		}
		dir := strings.Fields(after(said.String(), "manifests: "))[0]
		var answer bytes.Buffer
		code = cli.Main(ctx, cli.Env{
			Stdin: strings.NewReader(""), Stdout: &answer, Stderr: &answer, Version: "test",
			Getenv: func(name string) string {
				if name == "HOME" {
					return o.Data
				}
				value, _, _ := strings.Cut(after(said.String(), "export "+name+"="), "\n")
				return value
			},
		}, []string{"apply", "-f", dir}, cli.Programs{})
		if code != 0 || !strings.Contains(answer.String(), "vm/train-0 (research) ") {
			t.Errorf("apply -f %s exits with %d:\n%s", dir, code, answer.String())
		}
		cancel()
		return n, err
	})
	if err := demo.Run(ctx, o, "test"); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	if code < 0 {
		t.Errorf("the demo never named its manifests:\n%s", said.String())
	}
}

// after is what follows the first occurrence of a mark in a text; empty without one.
func after(text, mark string) string {
	_, rest, _ := strings.Cut(text, mark)
	return rest
}

// writer is a function that takes what is written.
type writer func(p []byte) (int, error)

func (f writer) Write(p []byte) (int, error) { return f(p) }

func TestRefusesADirectoryInUse(t *testing.T) {
	var out, stderr bytes.Buffer
	o := options(&out, &stderr, "en")
	o.Data = t.TempDir()
	if err := os.MkdirAll(filepath.Join(o.Data, "run"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(o.Data, "run", "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := demo.Run(t.Context(), o, "test"); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("got %v", err)
	}
	o.Hosts = 0
	if err := demo.Run(t.Context(), o, "test"); err == nil {
		t.Error("no host at all was taken")
	}
}
