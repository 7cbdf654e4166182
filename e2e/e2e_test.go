// Package e2e_test runs the scripts in testdata on the whole product: server, three agents on simulated
// hosts, and the command line, in one process for each script. The scripts read like a terminal session.
//
// Besides the commands of testscript there are:
//
//	verbena ARGS…            the command line, as the first administrator
//	as TOKENFILE ARGS…       the command line with another token
//	code N ARGS…             the command line, which must exit with N
//	token NAME USER FLAGS…   makes a token for a user into the file NAME
//	fail-write HOST N        the N-th change from now on that host's simulated kernel or hypervisor fails
//	crash HOST N             at the N-th change the host's agent dies as by kill -9
//	crashed HOST             waits until it has
//	kill-agent HOST          ends the agent of a host; its VMs go on
//	start-agent HOST         starts it again
//	stop-server, start-server
//	settled                  waits until every host has what it shall have, and its agent writes no more
//	kernel HOST PF VF        prints a VF as the simulated hardware has it; PF is a netdev
//	domain HOST TENANT/VM    prints state and XML of a domain
package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/client"
	"github.com/verbena-cloud/verbena/internal/cli"
	"github.com/verbena-cloud/verbena/internal/demo"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
)

// deadline bounds every wait of a script. What is waited for are events; a slow machine may take long.
const deadline = 60 * time.Second

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               setup,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"verbena": runVerbena, "as": runAs, "code": runCode, "token": makeToken,
			"fail-write": failWrite, "crash": crash, "crashed": crashed, "kill-agent": killAgent, "start-agent": startAgent,
			"stop-server": stopServer, "start-server": startServer, "settled": settled, "kernel": kernel, "domain": domain,
		},
	})
}

// world is what a script runs on.
type world struct {
	ctx   context.Context
	cloud *demo.Cloud
}

func of(ts *testscript.TestScript) *world {
	w, ok := ts.Value("world").(*world)
	if !ok {
		ts.Fatalf("the script has no world")
	}
	return w
}

// setup starts a server and three hosts, each with a dual-port NIC of four VFs a port on either NUMA node.
func setup(env *testscript.Env) error {
	ctx, cancel := context.WithCancel(context.Background())
	env.Defer(cancel)
	cloud, err := demo.NewCloud(ctx, demo.CloudConfig{Dir: filepath.Join(env.WorkDir, ".cloud"), Version: "e2e",
		Memory: !strings.Contains(filepath.Base(env.WorkDir), "durable"), Beat: 200 * time.Millisecond})
	if err != nil {
		return err
	}
	env.Defer(func() {
		if err := cloud.Close(); err != nil {
			panic(fmt.Sprintf("end of the cloud: %v", err)) // the script's own T is done by now
		}
	})
	w := &world{ctx, cloud}
	env.Values["world"] = w
	env.Setenv("VERBENA_SERVER", cloud.Address())
	env.Setenv("VERBENA_CA", cloud.CAFile())
	env.Setenv("VERBENA_TOKEN", cloud.Token())
	env.Setenv("HOME", env.WorkDir)
	return w.platform()
}

// platform makes fabric and hosts, which every script needs; what it says about VMs is the script's.
func (w *world) platform() error {
	ctx, cancel := context.WithTimeout(w.ctx, deadline)
	defer cancel()
	c, err := w.cloud.Client()
	if err != nil {
		return err
	}
	f := &api.Fabric{Meta: api.Meta{Kind: api.KindFabric, Name: "roce"}, Spec: api.FabricSpec{Speed: "100Gbps", VLANPool: []string{"100-109"}}}
	if _, err := c.Fabrics().Create(ctx, "", f, client.Write{}); err != nil {
		return err
	}
	failed := make(chan error, 3)
	for i := range 3 {
		h, err := w.cloud.AddHost(ctx, "host"+strconv.Itoa(i+1), sysfstest.Host(i+1, 2, 4))
		if err != nil {
			return err
		}
		go func() {
			_, err := demo.Commission(ctx, c, h.Name, func(inv *api.Inventory) []api.HostPF {
				var pfs []api.HostPF
				for _, p := range inv.PFs {
					pfs = append(pfs, api.HostPF{Match: p.PCI, Fabric: "roce", VFs: 4})
				}
				return pfs
			})
			failed <- err
		}()
	}
	return errors.Join(<-failed, <-failed, <-failed)
}

// verbena runs the command line and returns its exit code.
func (w *world) verbena(ts *testscript.TestScript, token string, args []string) int {
	ctx, cancel := context.WithTimeout(w.ctx, deadline)
	defer cancel()
	stdin := strings.NewReader("")
	if i := slices.Index(args, "<"); i >= 0 && i+1 < len(args) {
		stdin = strings.NewReader(ts.ReadFile(args[i+1]))
		args = slices.Delete(slices.Clone(args), i, i+2)
	}
	abs := slices.Clone(args)
	for i, a := range abs {
		if i > 0 && (abs[i-1] == "-f" || abs[i-1] == "--user-data") && a != "-" {
			abs[i] = ts.MkAbs(a) // the process stands elsewhere than the script
		}
	}
	return cli.Main(ctx, cli.Env{Stdin: stdin, Stdout: ts.Stdout(), Stderr: ts.Stderr(), Version: "e2e",
		Getenv: func(name string) string {
			if name == "VERBENA_TOKEN" && token != "" {
				return token
			}
			return ts.Getenv(name)
		}}, abs, cli.Programs{})
}

func judge(ts *testscript.TestScript, neg bool, code int) {
	if neg && code == 0 {
		ts.Fatalf("exit code 0, an error was expected")
	}
	if !neg && code != 0 {
		ts.Fatalf("exit code %d", code)
	}
}

func runVerbena(ts *testscript.TestScript, neg bool, args []string) {
	judge(ts, neg, of(ts).verbena(ts, "", args))
}

func runAs(ts *testscript.TestScript, neg bool, args []string) {
	judge(ts, neg, of(ts).verbena(ts, strings.TrimSpace(ts.ReadFile(args[0])), args[1:]))
}

func runCode(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	token := ""
	rest := args[1:]
	if rest[0] == "as" {
		token, rest = strings.TrimSpace(ts.ReadFile(rest[1])), rest[2:]
	}
	if got := of(ts).verbena(ts, token, rest); got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// makeToken makes a token by the API, for users that only scripts have.
func makeToken(ts *testscript.TestScript, _ bool, args []string) {
	w := of(ts)
	c, err := w.cloud.Client()
	ts.Check(err)
	grant, err := c.CreateToken(w.ctx, api.TokenRequest{Name: args[0], User: args[1], Scopes: args[2:]})
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(grant.Secret), 0o600))
}

func (w *world) host(ts *testscript.TestScript, name string) *demo.Host {
	h := w.cloud.Host(name)
	if h == nil {
		ts.Fatalf("there is no host %s", name)
	}
	return h
}

func number(ts *testscript.TestScript, text string) int {
	n, err := strconv.Atoi(text)
	ts.Check(err)
	return n
}

func failWrite(ts *testscript.TestScript, _ bool, args []string) {
	of(ts).host(ts, args[0]).Kernel.FailWrite(number(ts, args[1]), errors.New("simulated: the write failed"), false)
}

func crash(ts *testscript.TestScript, _ bool, args []string) {
	of(ts).host(ts, args[0]).Kernel.Crash(number(ts, args[1]), true)
}

func crashed(ts *testscript.TestScript, _ bool, args []string) {
	w := of(ts)
	k := w.host(ts, args[0]).Kernel
	w.eventually(ts, "the agent of "+args[0]+" dies", k.Crashed)
	ts.Check(w.host(ts, args[0]).StopAgent())
}

// eventually looks again and again. What it looks at are simulated hardware and counters, which tell nobody
// when they change.
func (w *world) eventually(ts *testscript.TestScript, what string, ok func() bool) {
	end := time.NewTimer(deadline)
	defer end.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-end.C:
			ts.Fatalf("it did not happen within %s: %s", deadline, what)
		case <-tick.C:
		}
	}
}

func killAgent(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(of(ts).host(ts, args[0]).StopAgent())
}

func startAgent(ts *testscript.TestScript, _ bool, args []string) {
	w := of(ts)
	ts.Check(w.host(ts, args[0]).StartAgent(w.ctx))
}

func stopServer(ts *testscript.TestScript, _ bool, _ []string) { ts.Check(of(ts).cloud.StopServer()) }

func startServer(ts *testscript.TestScript, _ bool, _ []string) {
	w := of(ts)
	ts.Check(w.cloud.StartServer(w.ctx))
}

// settled waits until all VMs rest and no host's log of changes grows over ten looks in a row.
func settled(ts *testscript.TestScript, _ bool, _ []string) {
	w := of(ts)
	c, err := w.cloud.Client()
	ts.Check(err)
	before, quiet := map[string]int{}, 0
	w.eventually(ts, "all agents have nothing to do", func() bool {
		list, err := c.VMs().List(w.ctx, "", client.Selection{})
		ts.Check(err)
		rest := !slices.ContainsFunc(list.Items, func(v api.VM) bool {
			return v.Status.Phase != api.PhaseReady && v.Status.Phase != api.PhaseStopped && v.Status.Phase != api.PhaseFailed
		})
		now := map[string]int{}
		for _, h := range w.cloud.Hosts {
			now[h.Name] = len(h.Kernel.Log())
		}
		if !rest || !maps.Equal(before, now) {
			quiet = 0
		}
		quiet++
		before = now
		return quiet > 10
	})
}

// kernel prints a VF.
func kernel(ts *testscript.TestScript, _ bool, args []string) {
	w := of(ts)
	h := w.host(ts, args[0])
	c, err := w.cloud.Client()
	ts.Check(err)
	o, err := c.Hosts().Get(w.ctx, "", h.Name)
	ts.Check(err)
	for _, p := range o.Status.Inventory.PFs {
		if p.Netdev != args[1] && p.Key != args[1] && p.PCI != args[1] {
			continue
		}
		st, err := h.Kernel.VF(p.PCI, number(ts, args[2]))
		ts.Check(err)
		onOff := map[bool]string{true: "on", false: "off"}
		fmt.Fprintf(ts.Stdout(), "mac %s vlan %d qos %d spoofchk %s trust %s rate %d driver %s held %t dirty %t\n", st.Attr.MAC, st.Attr.VLAN, st.Attr.QoS,
			onOff[st.Attr.SpoofCheck != nil && *st.Attr.SpoofCheck], onOff[st.Attr.Trust != nil && *st.Attr.Trust], st.Attr.MaxRate, st.Driver, st.Holder != 0, st.Dirty)
		return
	}
	ts.Fatalf("host %s has no PF %s", h.Name, args[1])
}

func domain(ts *testscript.TestScript, neg bool, args []string) {
	w := of(ts)
	tenant, name, _ := strings.Cut(args[1], "/")
	d, err := w.host(ts, args[0]).Domain(w.ctx, tenant, name)
	ts.Check(err)
	if (d == nil) != neg {
		ts.Fatalf("domain of %s on %s: there is one: %t", args[1], args[0], d != nil)
	}
	if d != nil {
		fmt.Fprintf(ts.Stdout(), "%s\n%s\n", d.State, d.XML)
	}
}
