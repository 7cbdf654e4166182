package cli

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/guestos"
	"github.com/verbena-cloud/verbena/internal/guestreport"
	"github.com/verbena-cloud/verbena/internal/preflight"
)

// guestRun runs `verbena guest ARGS` with a machine behind it that answers out and err.
func guestRun(t *testing.T, out guestos.Outcome, err error, args ...string) (code int, stdout, stderr string, asked GuestOptions) {
	t.Helper()
	var o, e bytes.Buffer
	qps := int64(5)
	code = Main(t.Context(), Env{Stdin: strings.NewReader(""), Stdout: &o, Stderr: &e, Getenv: func(string) string { return "" }}, append([]string{"guest"}, args...), Programs{
		Guest: func(_ context.Context, opt GuestOptions) (guestos.Outcome, error) {
			asked = opt
			return out, err
		},
		GuestReport: func(context.Context, GuestReportOptions) (guestreport.Report, error) {
			return guestreport.Report{Devices: []guestreport.Device{{Name: "mlx5_0", Netdev: "rdma0", NUMA: -1, Queues: 4, QPCount: &qps,
				Ports: []guestreport.Port{{Port: 1, State: "ACTIVE", GID: "10.20.0.5", GIDIndex: 3, ActiveMTU: 4096}, {Port: 2, GIDIndex: -1}}}}}, err
		},
	})
	return code, o.String(), e.String(), asked
}

func TestGuest(t *testing.T) {
	good := guestos.Outcome{Steps: []guestos.Step{{Setting: guestos.Setting{Kind: guestos.Queues, Object: "rdma0", Before: "8", After: "4", How: "ethtool -L rdma0 combined 4"}, Result: guestos.Done, Now: "4"}},
		Findings: []preflight.Finding{{Check: "guest.mtu", Object: "mlx5_0/1", Level: preflight.Warning, Seen: "1500", Expected: "2048", Fix: []string{"set the network's mtu"}}}}
	code, out, errs, asked := guestRun(t, good, nil, "tune", "--busy-poll", "0")
	if code != 0 || !strings.Contains(out, "rdma0") || !strings.Contains(out, "guest.mtu mlx5_0/1") || !strings.Contains(errs, "1 done, 0 failed") {
		t.Errorf("%d\n%s%s", code, out, errs)
	}
	if asked.Verb != guestos.Tune || asked.Config.BusyPoll != 0 || asked.State != "/var/lib/verbena-guest" || asked.Root != "/" {
		t.Errorf("%+v", asked)
	}
	if code, out, _, _ = guestRun(t, good, nil, "undo", "-o", "name"); code != 0 || out != "queues/rdma0\n" {
		t.Errorf("%d %q", code, out)
	}
	bad := good
	bad.Steps = append(bad.Steps, guestos.Step{Setting: guestos.Setting{Kind: guestos.Affinity, Object: "rdma0/40", How: "echo 4 > x"}, Result: guestos.Failed, Error: "says 0-7"})
	if code, out, _, _ = guestRun(t, bad, nil, "tune"); code != exitChecks || !strings.Contains(out, "echo 4 > x") || !strings.Contains(out, "says 0-7") {
		t.Errorf("%d\n%s", code, out)
	}
	// What was done before an error is told too.
	if code, out, errs, _ = guestRun(t, good, errors.New("disk full"), "tune"); code != exitError || !strings.Contains(out, "rdma0") || !strings.Contains(errs, "disk full") {
		t.Errorf("%d\n%s%s", code, out, errs)
	}
}

func TestGuestConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "guest.yaml")
	if err := os.WriteFile(file, []byte("busyPoll: 20\npairs: [{driver: mlx5_core, minFirmware: \"22\"}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs, asked := guestRun(t, guestos.Outcome{}, nil, "plan", "--config", file); code != 0 || asked.Config.BusyPoll != 20 || len(asked.Config.Pairs) != 1 || asked.Config.MinMTU != 2048 {
		t.Errorf("%d %s %+v", code, errs, asked)
	}
	if _, _, _, asked := guestRun(t, guestos.Outcome{}, nil, "plan", "--config", file, "--busy-poll", "-1"); asked.Config.BusyPoll != -1 {
		t.Errorf("a flag goes before the file: %+v", asked)
	}
	if err := os.WriteFile(file, []byte("busypol: 20\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs, _ := guestRun(t, guestos.Outcome{}, nil, "plan", "--config", file); code != exitError || !strings.Contains(errs, "busypol") {
		t.Errorf("%d %s", code, errs)
	}
}

func TestGuestReport(t *testing.T) {
	code, out, _, _ := guestRun(t, guestos.Outcome{}, nil, "report", "--no-header", "-o", "csv", "-c", "device,port,gid,index,mtu,qps,numa")
	if want := "mlx5_0,1,10.20.0.5,3,4096,5,\nmlx5_0,2,,,,5,\n"; code != 0 || out != want {
		t.Errorf("%d %q, want %q", code, out, want)
	}
	for _, args := range [][]string{{"report", "--every", "30s"}, {"report", "--every", "1ms", "--port", "x"}} {
		if code, _, _, _ := guestRun(t, guestos.Outcome{}, nil, args...); code != exitUsage {
			t.Errorf("%v: exit %d", args, code)
		}
	}
}

// TestDescribeGuest: what a VM says is shown as its own words.
func TestDescribeGuest(t *testing.T) {
	var o bytes.Buffer
	a := &app{env: Env{Stdout: &o, Stderr: &o, Now: func() time.Time { return time.Unix(1090, 0) }}, words: NewWords("en", nil)}
	qps := int64(5)
	a.guestSays(&o, nil)
	a.guestSays(&o, &api.GuestStatus{Seen: time.Unix(1000, 0), Tool: "v1", Kernel: "6.12.0", BadLines: 3, Ports: []api.GuestPort{{Device: "mlx5_0", Port: 1, GID: "10.20.0.5", MTU: 4096, QPCount: &qps}}})
	for _, want := range []string{"as it says itself", "90s ago", "v1", "6.12.0", "10.20.0.5", "4096"} {
		if !strings.Contains(o.String(), want) {
			t.Errorf("%q is missing in\n%s", want, o.String())
		}
	}
}
