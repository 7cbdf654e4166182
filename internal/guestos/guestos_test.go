package guestos

import (
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/verbena-cloud/verbena/internal/guestreport"
	"github.com/verbena-cloud/verbena/internal/preflight"
)

// vm is a guest of two cells with a VF on the second, as it boots.
func vm() Facts {
	qps := int64(1)
	return Facts{
		Root: true, Kernel: "6.12.0", Boot: "b1", CPUs: []int{0, 1, 2, 3, 4, 5, 6, 7}, Nodes: 2,
		Modules: map[string]bool{"mlx5_ib": true, "ib_uverbs": true}, Sysctls: map[string]int{BusyPoll: 0, BusyRead: 0},
		NICs: []NIC{{
			Netdev: "rdma0", PCI: "0000:31:00.0", MAC: "02:5a:10:00:00:07", Driver: "mlx5_core", Firmware: "22.31.1014", Board: "MT_0000000359",
			NUMA: 1, CPUs: []int{4, 5, 6, 7}, MTU: 4200, Channels: &Channels{Combined: 8, Max: 8},
			IRQs: []IRQ{{40, []int{0, 1, 2, 3, 4, 5, 6, 7}}, {41, []int{5}}, {42, []int{0}}, {43, []int{1}}, {44, []int{2}}},
			RDMA: []Device{{Name: "mlx5_0", NodeGUID: 7, QPCount: &qps, Ports: []Port{{
				Number: 1, State: "ACTIVE", LinkLayer: "Ethernet", Counters: map[string]uint64{"out_of_sequence": 3}, Unread: 1,
				GIDs: []GID{
					{0, netip.MustParseAddr("fe80::1"), true, "rdma0"},
					{1, netip.MustParseAddr("2001:db8::1"), true, "rdma0"},
					{2, netip.MustParseAddr("10.20.0.5"), false, "rdma0"},
					{3, netip.MustParseAddr("10.20.0.5"), true, "rdma0"},
					{4, netip.MustParseAddr("10.99.0.5"), true, "rdma0.7"},
				},
			}}}},
		}},
	}
}

func hows(list []Setting) []string {
	var out []string
	for _, s := range list {
		out = append(out, s.How)
	}
	return out
}

func TestPlan(t *testing.T) {
	want := []string{
		"modprobe rdma_ucm",
		"ethtool -L rdma0 combined 4",
		"echo 4 > /proc/irq/40/smp_affinity_list",
		"echo 6 > /proc/irq/42/smp_affinity_list",
		"echo 7 > /proc/irq/43/smp_affinity_list",
		"echo 4 > /proc/irq/44/smp_affinity_list",
		"sysctl -w net.core.busy_poll=50",
		"sysctl -w net.core.busy_read=50",
	}
	if diff := cmp.Diff(want, hows(Plan(vm(), Default()))); diff != "" {
		t.Errorf("the plan differs (-want +got):\n%s", diff)
	}
	c := Default()
	c.BusyPoll = -1
	if got := hows(Plan(vm(), c)); slices.ContainsFunc(got, func(h string) bool { return strings.HasPrefix(h, "sysctl") }) {
		t.Errorf("busyPoll -1 must leave it: %v", got)
	}
}

// TestPlainGuest: a guest without RDMA gets no modules, and one whose kernel lacks something is not asked for it.
func TestPlainGuest(t *testing.T) {
	f := vm()
	f.Sysctls, f.Modules = nil, nil
	f.NICs = []NIC{{Netdev: "eth0", Driver: "virtio-pci", NUMA: -1, CPUs: []int{0}, Channels: &Channels{}, IRQs: []IRQ{{8, []int{0, 1}}}}, {PCI: "0000:00:04.0", IRQs: []IRQ{{9, []int{0}}}}}
	if got := Plan(f, Default()); len(got) != 0 {
		t.Errorf("plan = %v, want none", got)
	}
}

// set does what an engine does.
func set(f Facts, x Setting) Facts {
	out := f
	out.Modules, out.Sysctls, out.NICs = map[string]bool{}, map[string]int{}, slices.Clone(f.NICs)
	for m, v := range f.Modules {
		out.Modules[m] = v
	}
	for k, v := range f.Sysctls {
		out.Sysctls[k] = v
	}
	for i := range out.NICs {
		n := &out.NICs[i]
		n.IRQs = slices.Clone(n.IRQs)
		list, err := ParseCPUs(x.After)
		if x.Kind == Queues && n.Netdev == x.Object && err == nil {
			n.Channels = &Channels{Combined: list[0], Max: n.Channels.Max}
		}
		for j := range n.IRQs {
			if x.Kind == Affinity && n.irq(n.IRQs[j]) == x.Object && err == nil {
				n.IRQs[j].CPUs = list
			}
		}
	}
	switch x.Kind {
	case Module:
		out.Modules[x.Object] = x.After == Loaded
	case Sysctl:
		list, _ := ParseCPUs(x.After)
		out.Sysctls[x.Object] = list[0]
	}
	return out
}

// TestThereAndBack: whatever a guest had, tuned in any number of steps and times, a second plan is empty and
// the way back ends where it began.
func TestThereAndBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := vm()
		cpus := rapid.SliceOfNDistinct(rapid.IntRange(0, 7), 1, 8, rapid.ID[int])
		sorted := func() []int { l := cpus.Draw(t, "cpus"); slices.Sort(l); return l }
		n := &f.NICs[0]
		n.CPUs, n.Channels = sorted(), &Channels{rapid.IntRange(1, 8).Draw(t, "queues"), 8}
		for i := range n.IRQs {
			n.IRQs[i].CPUs = sorted()
		}
		for _, m := range f.wanted() {
			f.Modules[m] = rapid.Bool().Draw(t, m)
		}
		first, s := f, State{}
		for range rapid.IntRange(1, 3).Draw(t, "times") {
			plan := Plan(f, Config{BusyPoll: rapid.IntRange(-1, 99).Draw(t, "busy")})
			for _, x := range plan[:rapid.IntRange(0, len(plan)).Draw(t, "steps")] {
				s, f = s.Keep(f.Boot, x), set(f, x)
			}
		}
		c := Default()
		for _, x := range Plan(f, c) {
			s, f = s.Keep(f.Boot, x), set(f, x)
		}
		if again := Plan(f, c); len(again) != 0 {
			t.Fatalf("the second plan is %v", again)
		}
		todo, _ := Undo(f, s)
		for _, x := range todo {
			f, s = set(f, x), s.Drop(x)
		}
		for _, n := range f.NICs {
			slices.Sort(n.CPUs)
		}
		for _, m := range f.wanted() {
			if f.Modules[m] != first.Modules[m] {
				t.Fatalf("module %s is %v, was %v", m, f.Modules[m], first.Modules[m])
			}
		}
		if diff := cmp.Diff(first.NICs[0].IRQs, f.NICs[0].IRQs) + cmp.Diff(first.NICs[0].Channels, f.NICs[0].Channels) + cmp.Diff(first.Sysctls, f.Sysctls); diff != "" {
			t.Fatalf("undo ends elsewhere:\n%s", diff)
		}
		todo, _ = Undo(f, s)
		if len(todo) != 0 {
			t.Fatalf("a second undo does %v", todo)
		}
	})
}

// TestUndoOfAnotherBoot: nothing of an earlier boot is left to undo, and its numbers mean other things now.
func TestUndoOfAnotherBoot(t *testing.T) {
	f := vm()
	x := Setting{Kind: Affinity, Object: "rdma0/41", Before: "0"}
	s := State{}.Keep("b0", x)
	if todo, done := Undo(f, s); len(todo) != 0 || len(done) != 1 {
		t.Errorf("todo %v, done %v", todo, done)
	}
	if s = s.Keep("b1", Setting{Kind: Queues, Object: "rdma0", Before: "1"}); s.Boot != "b1" || len(s.Entries) != 1 {
		t.Errorf("the journal of another boot was kept: %+v", s)
	}
	// An interrupt that belongs to another device by now is gone, not set.
	f.NICs[0].Netdev = "rdma9"
	if todo, done := Undo(f, State{}.Keep("b1", x)); len(todo) != 0 || len(done) != 1 {
		t.Errorf("todo %v, done %v", todo, done)
	}
}

func TestCheck(t *testing.T) {
	plain := vm()
	plain.NICs = append(plain.NICs, NIC{Netdev: "eth0", Driver: "virtio-pci", NUMA: -1, Channels: &Channels{}})
	if got := bad(Check(plain, Default())); len(got) != 0 {
		t.Errorf("a guest as it should be has findings: %v", got)
	}
	for want, breakIt := range map[string]func(f *Facts, c *Config){
		"failed guest.rdma rdma0":      func(f *Facts, _ *Config) { f.NICs[0].RDMA = nil },
		"failed guest.firmware rdma0":  func(_ *Facts, c *Config) { c.Pairs = []preflight.Pair{{Driver: "mlx5_core", MinFirmware: "22.99"}} },
		"warning guest.firmware rdma0": func(_ *Facts, c *Config) { c.Pairs = []preflight.Pair{{Driver: "bnxt_en"}} },
		"warning guest.numa rdma0":     func(f *Facts, _ *Config) { f.NICs[0].NUMA = -1 },
		"info guest.queues rdma0":      func(f *Facts, _ *Config) { f.NICs[0].Channels = nil },
		"failed guest.guid mlx5_0":     func(f *Facts, _ *Config) { f.NICs[0].RDMA[0].NodeGUID = 0 },
		"failed guest.provider mlx5_0": func(f *Facts, _ *Config) { f.NICs[0].RDMA[0].Provider = "goes with another kernel" },
		"failed guest.port mlx5_0/1":   func(f *Facts, _ *Config) { f.NICs[0].RDMA[0].Ports[0].State = "DOWN" },
		"info guest.port mlx5_0/1":     func(f *Facts, _ *Config) { f.NICs[0].RDMA[0].Ports[0].LinkLayer = "InfiniBand" },
		"failed guest.gid mlx5_0/1":    func(f *Facts, _ *Config) { f.NICs[0].RDMA[0].Ports[0].GIDs = f.NICs[0].RDMA[0].Ports[0].GIDs[:1] },
		"warning guest.mtu mlx5_0/1":   func(f *Facts, _ *Config) { f.NICs[0].MTU = 1500 },
		"warning guest.balancer ":      func(f *Facts, _ *Config) { f.Balancer = true },
		"unknown guest.unseen ":        func(f *Facts, _ *Config) { f.Unseen = []string{"/proc/irq: EIO"} },
	} {
		f, c := vm(), Default()
		breakIt(&f, &c)
		if got := bad(Check(f, c)); len(got) != 1 || got[0] != want {
			t.Errorf("found %v, want %q", got, want)
		}
	}
}

func bad(list []preflight.Finding) []string {
	var out []string
	for _, f := range list {
		if f.Level != preflight.OK {
			out = append(out, string(f.Level)+" "+f.Check+" "+f.Object)
		}
	}
	return out
}

func TestReport(t *testing.T) {
	qps := int64(1)
	want := guestreport.Report{V: guestreport.Version, Kernel: "6.12.0", Agent: "v1", Devices: []guestreport.Device{{
		Name: "mlx5_0", PCI: "0000:31:00.0", MAC: "02:5a:10:00:00:07", Netdev: "rdma0", Driver: "mlx5_core", Firmware: "22.31.1014", NUMA: 1, Queues: 8, QPCount: &qps,
		Ports: []guestreport.Port{{Port: 1, State: "ACTIVE", GID: "10.20.0.5", GIDIndex: 3, ActiveMTU: 4096, Counters: map[string]uint64{"out_of_sequence": 3}, Unread: 1}},
	}}}
	if diff := cmp.Diff(want, Report(vm(), "v1")); diff != "" {
		t.Errorf("the report differs (-want +got):\n%s", diff)
	}
}

func TestConfig(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
	for _, c := range []Config{{BusyPoll: -2, MinMTU: 2048}, {BusyPoll: 10001, MinMTU: 2048}, {MinMTU: 1500}, {MinMTU: 1024, Pairs: []preflight.Pair{{}}}} {
		if c.Validate() == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}

func FuzzParseCPUs(f *testing.F) {
	for _, s := range []string{"", "0", "0-3,8", "3,1,1-2", "8192", "5-2", "1-", "-", "0-8191,0-8191"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		list, err := ParseCPUs(s)
		if err != nil {
			return
		}
		if again, err := ParseCPUs(FormatCPUs(list)); err != nil || !slices.Equal(list, again) {
			t.Fatalf("%q: %v became %v, %v", s, list, again, err)
		}
	})
}

func FuzzDecodeState(f *testing.F) {
	f.Add([]byte(`{"boot":"b","entries":[{"kind":"irq","object":"rdma0/40","before":"0-7"}]}`))
	f.Add([]byte(`{"entries":[{"kind":"colour"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := DecodeState(text)
		if err == nil {
			Undo(vm(), s)
		}
	})
}

// TestEveryFindingIsExplained: the page has an anchor for each, in both languages.
func TestEveryFindingIsExplained(t *testing.T) {
	src, err := os.ReadFile("check.go")
	if err != nil {
		t.Fatal(err)
	}
	checks := regexp.MustCompile(`"(guest\.[a-z]+)"`).FindAllStringSubmatch(string(src), -1)
	if len(checks) < 10 {
		t.Fatalf("only %d checks were found", len(checks))
	}
	for _, page := range []string{"../../docs/guest.md", "../../docs/zh-CN/guest.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range checks {
			if !strings.Contains(string(text), "\n### "+c[1]+"\n") {
				t.Errorf("%s does not explain %s", page, c[1])
			}
		}
	}
}
