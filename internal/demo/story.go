package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/client"
	"github.com/verbena-cloud/verbena/internal/cli"
)

// story is one run of the demo.
type story struct {
	o         cli.DemoOptions
	words     cli.Words
	out       io.Writer
	dir       string
	manifests string
	version   string
	began     time.Time
	chapters  int

	cloud  *Cloud
	c      *client.Client
	report report
}

// The VMs of the story. The manifests are in examples/demo and examples/refused.
const (
	research = "research"
	payments = "payments"
	leaving  = "ledger-1" // of payments, deleted at the end
)

func (s *story) say(text string, args ...any) { fmt.Fprintln(s.out, s.words.Say(text, args...)) }

func (s *story) chapter(text string, args ...any) {
	s.chapters++
	title := fmt.Sprintf("%d. %s", s.chapters, s.words.Say(text, args...))
	if s.o.Colour {
		title = "\x1b[1m" + title + "\x1b[0m"
	}
	fmt.Fprintf(s.out, "\n%s\n", title)
}

func (s *story) intro() {
	s.say("Verbena %s: RDMA for the virtual machines of a private cloud.", s.version)
	s.say("Kernels, NICs and hypervisors below are SIMULATED. All above them is what runs in production.")
}

// tell tells the story; any step that does not come true ends it.
func (s *story) tell(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, chapter := range []struct {
		name string
		tell func(context.Context) error
	}{
		{"the platform", s.platform}, {"the hosts", s.hosts}, {"the departments", s.departments}, {"the plan", s.plan},
		{"the VMs", s.vms}, {"the proof", s.proof}, {"the refusal for quota", s.quota}, {"the refusal for NUMA", s.numa}, {"the way back", s.wayBack},
	} {
		if err := chapter.tell(ctx); err != nil {
			return fmt.Errorf("%s: %w", chapter.name, err)
		}
		if err := s.cloud.Failed(); err != nil {
			return err
		}
	}
	s.say("")
	s.say("Everything came true, in %s.", time.Since(s.began).Round(100*time.Millisecond))
	return nil
}

// run runs a command as a reader would and shows it. It returns the exit code.
func (s *story) run(ctx context.Context, args ...string) int {
	shown := make([]string, len(args))
	for i, a := range args {
		shown[i] = strings.ReplaceAll(a, s.dir+string(filepath.Separator), "")
	}
	fmt.Fprintf(s.out, "\n  $ verbena %s\n", strings.Join(shown, " "))
	w := &indented{w: s.out}
	env := s.environment()
	return cli.Main(ctx, cli.Env{
		Stdin: strings.NewReader(""), Stdout: w, Stderr: w, Version: s.version, StdoutTTY: s.o.Colour,
		Getenv: func(name string) string { return env[name] },
	}, args, cli.Programs{})
}

// environment is what a reader must set to work with the demo.
func (s *story) environment() map[string]string {
	env := map[string]string{"HOME": s.dir, "VERBENA_SERVER": s.cloud.Address(), "VERBENA_CA": s.cloud.CAFile(), "VERBENA_TOKEN": s.cloud.Token(), "LANG": "C"}
	if s.words.Lang == "zh" {
		env["LANG"] = "zh_CN.UTF-8"
	}
	return env
}

// must runs a command that has to succeed.
func (s *story) must(ctx context.Context, args ...string) error {
	if code := s.run(ctx, args...); code != 0 {
		return fmt.Errorf("verbena %s exited with %d", strings.Join(args, " "), code)
	}
	return nil
}

func (s *story) manifest(name string) string { return filepath.Join(s.manifests, name) }

func (s *story) platform(ctx context.Context) error {
	s.chapter("A server on embedded etcd, with a CA of its own")
	s.say("It listens on %s. An operator says what the platform offers: two fabrics, sizes of VMs, an image.", s.cloud.Address())
	return s.must(ctx, "apply", "-f", s.manifest("1-platform.yaml"))
}

func (s *story) hosts(ctx context.Context) error {
	s.chapter("%d simulated hypervisors join and are commissioned", s.o.Hosts)
	s.say("Each joins by a one-time token and gets a certificate. Each has two NUMA nodes with a dual-port NIC on either;\n" +
		"one port on node 1 serves the fabric store, all others serve train. A VF is in the pool once it was read back as\n" +
		"parked: on vfio-pci, with a MAC of its own, no VLAN, spoof check on.")
	errs := make([]error, s.o.Hosts)
	var wg sync.WaitGroup
	for i := range s.o.Hosts {
		h, err := s.cloud.AddHost(ctx, "sim-"+strconv.Itoa(i+1), hardware(i))
		if err != nil {
			return err
		}
		wg.Go(func() { _, errs[i] = Commission(ctx, s.c, h.Name, commission) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := s.must(ctx, "get", "hosts", "-c", "name,state,simulated,vfs,vcpus,kernel,hypervisor"); err != nil {
		return err
	}
	if err := s.must(ctx, "host", "show", "sim-1"); err != nil {
		return err
	}
	return s.must(ctx, "get", "fabrics")
}

func (s *story) departments(ctx context.Context) error {
	s.chapter("Two departments, each with its own quota and networks")
	s.say("Both use the addresses 10.20.0.0/24, on a fabric and a VLAN each. What one has does not exist for the other.")
	if err := s.must(ctx, "apply", "-f", s.manifest("2-research.yaml"), "-f", s.manifest("3-payments.yaml")); err != nil {
		return err
	}
	if err := s.must(ctx, "get", "networks", "-A"); err != nil {
		return err
	}
	if err := s.must(ctx, "secgroup", "show", "lab", "-t", research); err != nil {
		return err
	}
	return nil
}

func (s *story) plan(ctx context.Context) error {
	s.chapter("What would happen? A plan before anything changes")
	return s.must(ctx, "vm", "plan", "train-0", "-t", research, "-f", s.manifest("4-vms.yaml"))
}

func (s *story) vms(ctx context.Context) error {
	s.chapter("From manifests to running VMs with RDMA NICs")
	if err := s.must(ctx, "apply", "-f", s.manifest("4-vms.yaml"), "--wait", "--timeout", "3m"); err != nil {
		return err
	}
	if err := s.must(ctx, "get", "vms", "-A"); err != nil {
		return err
	}
	if err := s.must(ctx, "vm", "show", "train-0", "-t", research); err != nil {
		return err
	}
	list, err := s.c.VMs().List(ctx, "", client.Selection{})
	if err != nil {
		return err
	}
	for _, v := range list.Items {
		if v.Status.Phase != api.PhaseReady || len(v.Status.VFs) == 0 {
			return fmt.Errorf("VM %s/%s is %s with %d VFs, not Ready with some", v.Tenant, v.Name, v.Status.Phase, len(v.Status.VFs))
		}
		s.report.VMs = append(s.report.VMs, reportVM(v))
	}
	return nil
}

func (s *story) quota(ctx context.Context) error {
	s.chapter("Refused for quota, with the sheet")
	s.say("payments holds 2 of its 3 VFs and asks for a VM with 2 more.")
	return s.refuse(ctx, "quota.yaml", 5, "quota")
}

func (s *story) numa(ctx context.Context) error {
	s.chapter("Refused for want of a NUMA-local VF, host by host")
	s.say("research asks for a VM of two cells, each with a storage VF on its own node. Storage NICs sit on node 1 only.")
	return s.refuse(ctx, "numa.yaml", 6, "no-capacity")
}

// refuse applies a manifest that must be refused: with that exit code for people, that code for programs.
func (s *story) refuse(ctx context.Context, manifest string, exit int, code string) error {
	path := filepath.Join(s.dir, notAccepted, manifest)
	if got := s.run(ctx, "apply", "-f", path); got != exit {
		return fmt.Errorf("verbena apply exited with %d, not with %d", got, exit)
	}
	vm, err := vmOf(s.words.Lang, path)
	if err != nil {
		return err
	}
	_, err = s.c.VMs().Create(ctx, vm.Tenant, vm, client.Write{})
	e, err := refused(err, code)
	if err != nil {
		return err
	}
	if code == "no-capacity" && !slices.ContainsFunc(e.Explanation.Hosts, func(h api.HostVerdict) bool { return h.Rule == "numa-vf" }) {
		return errors.New("no host says that it lacks a NUMA-local VF")
	}
	s.report.Refusals = append(s.report.Refusals, refusal{vm.Name, vm.Tenant, e.Code, e.Detail, e.Explanation, e.Quota})
	return nil
}

// whatNext tells the reader of a demo that stays up what to try.
func (s *story) whatNext() {
	w := s.o.Stdout
	if s.o.JSON {
		w = s.o.Stderr
	}
	env := s.environment()
	say := func(text string, args ...any) { fmt.Fprintln(w, s.words.Say(text, args...)) }
	fmt.Fprintln(w)
	say("The demo stays up until you press Ctrl-C. In another terminal:")
	fmt.Fprintf(w, "\n  export VERBENA_SERVER=%s\n  export VERBENA_CA=%s\n  export VERBENA_TOKEN=%s\n\n", env["VERBENA_SERVER"], env["VERBENA_CA"], env["VERBENA_TOKEN"])
	program := program()
	for _, try := range [][2]string{
		{"get vms -A", s.words.Say("all VMs")},
		{"vm show notebook -t research", s.words.Say("a VF of either port of a NIC")},
		{"vm explain train-0 -t research", s.words.Say("why it is where it is")},
		{"host vfs sim-1", s.words.Say("every VF of a host")},
		{"vm create try-0 -t research --flavor notebook --image debian13 --network gradients --wait", s.words.Say("one more VM")},
		{"vm delete try-0 -t research --yes --wait", s.words.Say("and away with it")},
		{"host cordon sim-2", s.words.Say("no new VMs there")},
		{"events -A", s.words.Say("what happened")},
		{"audit", s.words.Say("who did it")},
	} {
		fmt.Fprintf(w, "  %s %-92s # %s\n", program, try[0], try[1])
	}
	fmt.Fprintf(w, "\n  %s\n", s.words.Say("manifests: %s   API: %s/docs", s.manifests, s.cloud.Address()))
}
