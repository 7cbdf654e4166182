package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/verbena-cloud/verbena/internal/guestos"
	"github.com/verbena-cloud/verbena/internal/guestreport"
)

func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var o, e bytes.Buffer
	code = run(t.Context(), args, &o, &e)
	return code, o.String(), e.String()
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		text string
	}{
		{"", 0, "verbena-guest tune"}, {"help", 0, "verbena-guest tune"}, {"version", 0, "dev"}, {"mend", exitUsage, "there is no"},
		{"plan --colour", exitUsage, "colour"}, {"plan --help", 0, "busy-poll"}, {"plan now", exitUsage, `"now" is not understood`},
		{"report --every 30s", exitUsage, "--port"}, {"report --port /dev/none", exitError, guestreport.Channel}, {"plan --busy-poll -9", exitError, "busyPoll"},
		{"plan --config /dev/none", exitError, "guest configuration"},
	} {
		code, out, errs := call(t, strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(out+errs, c.text) {
			t.Errorf("%q: exit %d, %s%s", c.args, code, out, errs)
		}
	}
}

// TestPlan looks at the machine that runs the tests, and changes nothing.
func TestPlan(t *testing.T) {
	if code, out, errs := call(t, "plan", "--busy-poll", "-1"); code != 0 || out == "" {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	file := filepath.Join(t.TempDir(), "guest.json")
	if err := os.WriteFile(file, []byte(`{"busyPoll": 77}`), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := call(t, "plan", "--json", "--config", file)
	var o guestos.Outcome
	if err := json.Unmarshal([]byte(out), &o); code != 0 || err != nil || o.Kernel == "" {
		t.Fatalf("exit %d, %v: %s%s", code, err, out, errs)
	}
	if len(o.Steps) == 0 || o.Steps[len(o.Steps)-1].After != "77" {
		t.Errorf("%+v", o.Steps)
	}
	if err := os.WriteFile(file, []byte(`{"busypoll": 77, "mood": 1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := call(t, "plan", "--config", file); code != exitError || !strings.Contains(errs, "mood") {
		t.Errorf("exit %d: %s", code, errs)
	}
}

func TestReport(t *testing.T) {
	port := filepath.Join(t.TempDir(), "port")
	if err := os.WriteFile(port, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := call(t, "report", "--port", port); code != 0 {
		t.Fatalf("exit %d: %s", code, errs)
	}
	line, err := os.ReadFile(port)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := guestreport.Decode(bytes.TrimSpace(line)); err != nil || r.Agent != "dev" || r.Kernel == "" {
		t.Errorf("%+v, %v", r, err)
	}
	if code, out, _ := call(t, "report"); code != 0 || !strings.Contains(out, `"kernel"`) {
		t.Errorf("exit %d: %s", code, out)
	}
}

func TestLines(t *testing.T) {
	s := guestos.Step{Setting: guestos.Setting{Kind: guestos.Queues, Object: "rdma0", Before: "8", After: "4", How: "ethtool -L rdma0 combined 4"}, Result: guestos.Failed, Error: "busy"}
	if got, want := line(s), "failed   queues rdma0: 8 -> 4  (ethtool -L rdma0 combined 4): busy"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
