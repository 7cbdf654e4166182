package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// inventory is that of a host with one dual-node board and one NIC of n parked VFs.
func inventory(host string, n int) *api.Inventory {
	pf := api.PF{
		Key: host + "-nic-p0", PCI: "0000:3b:00.0", Netdev: "ens1f0", MAC: "3c:ec:ef:00:00:01", Serial: host, Card: host, Driver: "mlx5_core",
		Speed: 25_000_000_000, LinkUp: true, MTU: 4200, Mode: "legacy", TotalVFs: 64, NumVFs: n, WantVFs: n, Fabric: "roce", Ready: true,
		Caps: api.PFCaps{MAC: true, VLAN: true, QoS: true, SpoofCheck: true, Trust: true, MaxRate: true, MinRate: true, LinkState: true},
	}
	for i := range n {
		pf.VFs = append(pf.VFs, api.VF{Index: i, PCI: fmt.Sprintf("0000:3b:01.%d", i), Group: fmt.Sprint(i), Driver: "vfio-pci",
			State: api.VFParked, MAC: fmt.Sprintf("02:00:00:00:00:%02x", i), SpoofCheck: true})
	}
	return &api.Inventory{
		Agent: "test", Kernel: "6.12", Hypervisor: "test", IOMMU: true,
		Cells: []api.Cell{{ID: 0, CPUs: "0-15", VCPUs: 16, Memory: 64 << 30}},
		PFs:   []api.PF{pf},
	}
}

// cloud makes what VMs need, and one host per name with n VFs, whose agents have joined and reported.
func (x *site) cloud(n int, hosts ...string) map[string]*testAgent {
	x.Helper()
	for _, o := range []struct{ path, body string }{
		{"/v1/fabrics", `{"kind":"Fabric","name":"roce","spec":{"speed":"25Gbps","vlanPool":["100-199"]}}`},
		{"/v1/flavors", `{"kind":"Flavor","name":"rdma-small","spec":{"vcpus":2,"memory":"4GiB","rdma":true}}`},
		{"/v1/images", `{"kind":"Image","name":"debian","spec":{"source":"/srv/debian.qcow2"}}`},
		{"/v1/tenants", tenantWith("physics")},
		{"/v1/tenants/physics/networks", `{"kind":"Network","name":"lab","spec":{"fabric":"roce","cidr":"10.1.0.0/16"}}`},
	} {
		x.as(x.root, http.MethodPost, o.path, o.body, http.StatusCreated)
	}
	agents := map[string]*testAgent{}
	for _, h := range hosts {
		x.as(x.root, http.MethodPost, "/v1/hosts",
			fmt.Sprintf(`{"kind":"Host","name":%q,"spec":{"pfs":[{"match":%q,"fabric":"roce","vfs":%d}]}}`, h, h+"-nic-p0", n), http.StatusCreated)
		a := x.mustJoin(h)
		agents[h] = a
		x.s.ident.live.connect(h, x.clock.Now())
		a.report(http.StatusOK, wire.Status{Inventory: inventory(h, n)})
	}
	return agents
}

// report posts a status.
func (a *testAgent) report(want int, st wire.Status) wire.Ack {
	a.x.Helper()
	if st.Host == "" {
		st.Host = a.host
	}
	status, body := a.send(http.MethodPost, wire.PathStatus, st)
	if status != want {
		a.x.Fatalf("status of %s: %d, want %d: %s\nlog: %s", a.host, status, want, body, a.x.log)
	}
	var ack wire.Ack
	if status == http.StatusOK {
		ack = must[wire.Ack](a.x, want, status, body)
	}
	return ack
}

func (x *site) vm(name, host string) *api.VM {
	x.Helper()
	pin := ""
	if host != "" {
		pin = fmt.Sprintf(`,"host":%q`, host)
	}
	body := fmt.Sprintf(`{"kind":"VM","name":%q,"spec":{"flavor":"rdma-small","image":"debian","networks":[{"network":"lab"}]%s}}`, name, pin)
	text := x.as(x.root, http.MethodPost, "/v1/tenants/physics/vms", body, http.StatusCreated)
	return must[*api.VM](x, http.StatusCreated, http.StatusCreated, text)
}

func (x *site) readVM(name string) (*api.VM, bool) {
	x.Helper()
	status, body := x.call(x.root, http.MethodGet, "/v1/tenants/physics/vms/"+name, nil)
	if status == http.StatusNotFound {
		return nil, false
	}
	return must[*api.VM](x, http.StatusOK, status, body), true
}

// stream is an agent's open stream.
type testStream struct {
	*testing.T
	events chan wire.Desired
	closed chan struct{}
	cancel context.CancelFunc
}

func (a *testAgent) follow(t *testing.T) *testStream {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, a.x.url+wire.PathDesired, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := a.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("stream: %d %s", res.StatusCode, res.Header)
	}
	s := &testStream{T: t, events: make(chan wire.Desired, 64), closed: make(chan struct{}), cancel: cancel}
	t.Cleanup(cancel)
	go func() {
		defer close(s.closed)
		defer res.Body.Close()
		sc := bufio.NewScanner(res.Body)
		sc.Buffer(nil, 1<<22)
		for sc.Scan() {
			data, ok := strings.CutPrefix(sc.Text(), "data: ")
			if !ok {
				continue
			}
			var d wire.Desired
			if err := json.Unmarshal([]byte(data), &d); err != nil {
				t.Errorf("%v in %s", err, data)
			}
			s.events <- d
		}
	}()
	return s
}

// next waits for the next event.
func (s *testStream) next() wire.Desired {
	s.Helper()
	select {
	case d := <-s.events:
		return d
	case <-time.After(20 * time.Second):
		s.Fatal("no event came")
	}
	return wire.Desired{}
}

// quiet fails if an event is there: what the server has answered before is in order, so it must be last.
func (s *testStream) none() {
	s.Helper()
	select {
	case d := <-s.events:
		s.Fatalf("an event that nobody needs: %+v", d)
	default:
	}
}

func TestAgentFollowsItsHostOnly(t *testing.T) {
	x := newSite(t)
	agents := x.cloud(4, "hv-1", "hv-2")
	one, two := agents["hv-1"].follow(t), agents["hv-2"].follow(t)
	if d := one.next(); d.Host != "hv-1" || d.Revision == 0 || len(d.PFs) != 1 || len(d.VMs) != 0 {
		t.Fatalf("first: %+v", d)
	}
	two.next()
	v := x.vm("train-0", "hv-1")
	d := one.next()
	if len(d.VMs) != 1 || d.VMs[0].UID != v.UID || d.VMs[0].Name != "train-0" || len(d.VMs[0].VFs) != 1 || len(d.Images) != 1 {
		t.Fatalf("after the create: %+v", d)
	}
	// Its own report changes the VM, but not what the host should be; another VM elsewhere does not concern it.
	agents["hv-1"].report(http.StatusOK, wire.Status{VMs: []wire.VMStatus{{UID: v.UID, Generation: v.Status.Generation, Phase: api.PhasePreparing}}})
	w := x.vm("train-1", "hv-2")
	if d := two.next(); len(d.VMs) != 1 || d.VMs[0].UID != w.UID {
		t.Fatalf("the other host: %+v", d)
	}
	one.none()
	x.as(x.root, http.MethodDelete, "/v1/tenants/physics/vms/train-0", nil, http.StatusAccepted)
	if d := one.next(); len(d.VMs) != 1 || !d.VMs[0].Absent {
		t.Fatalf("after the delete: %+v", d)
	}
	two.none()
}

func TestSecondStreamReplacesTheFirst(t *testing.T) {
	x := newSite(t)
	a := x.cloud(1, "hv-1")["hv-1"]
	first := a.follow(t)
	first.next()
	second := a.follow(t)
	second.next()
	select {
	case <-first.closed:
	case <-time.After(20 * time.Second):
		t.Fatal("the first stream goes on")
	}
	x.vm("train-0", "hv-1")
	if d := second.next(); len(d.VMs) != 1 {
		t.Fatalf("%+v", d)
	}
}

func TestReportThatChangesNothingWritesNothing(t *testing.T) {
	x := newSite(t)
	a := x.cloud(2, "hv-1")["hv-1"]
	v := x.vm("train-0", "")
	st := wire.Status{Inventory: inventory("hv-1", 2), VMs: []wire.VMStatus{{UID: v.UID, Generation: v.Status.Generation, Phase: api.PhasePreparing, Message: "programs VFs"}}}
	a.report(http.StatusOK, st)
	rev := x.rev()
	for range 5 {
		a.report(http.StatusOK, st)
		if status, _ := a.send(http.MethodPost, wire.PathBeat, nil); status != http.StatusNoContent {
			t.Fatalf("beat: %d", status)
		}
	}
	if x.rev() != rev {
		t.Errorf("%d commits for nothing", x.rev()-rev)
	}
}

func TestVMGoesReadyAndIsReleasedOnProof(t *testing.T) {
	x := newSite(t)
	a := x.cloud(1, "hv-1")["hv-1"]
	v := x.vm("train-0", "")
	f := v.Status.VFs[0]
	st := wire.VMStatus{UID: v.UID, Generation: v.Status.Generation, Phase: api.PhaseReady, VFs: []wire.VFStatus{{
		PF: f.PF, Index: f.Index, State: api.VFAttached, MAC: f.MAC, VLAN: f.VLAN, QoS: f.QoS, SpoofCheck: true, Generation: f.Generation}}}
	a.report(http.StatusOK, wire.Status{VMs: []wire.VMStatus{st}})
	if got, _ := x.readVM("train-0"); got.Status.Phase != api.PhaseReady {
		t.Fatalf("phase %s: %+v", got.Status.Phase, got.Status)
	}
	x.as(x.root, http.MethodDelete, "/v1/tenants/physics/vms/train-0", nil, http.StatusAccepted)
	gone := wire.VMStatus{UID: v.UID, Generation: v.Status.Generation, Phase: api.PhaseDeleting, Absent: true,
		VFs: []wire.VFStatus{{PF: f.PF, Index: f.Index, State: api.VFParked, Generation: f.Generation}}}
	if ack := a.report(http.StatusOK, wire.Status{VMs: []wire.VMStatus{gone}}); len(ack.Ignored) != 0 {
		t.Errorf("ignored: %v", ack.Ignored)
	}
	if _, there := x.readVM("train-0"); there {
		t.Fatal("the VM is still there")
	}
	// Said again, it is neither an error nor a write.
	rev := x.rev()
	if ack := a.report(http.StatusOK, wire.Status{VMs: []wire.VMStatus{gone}}); len(ack.Ignored) != 0 || x.rev() != rev {
		t.Errorf("said twice: %v, %d commits", ack.Ignored, x.rev()-rev)
	}
	x.vm("train-1", "") // the only VF is free again
}

// TestHostileAgent: an agent that was taken over can lie about its own host and nothing else (H89).
func TestHostileAgent(t *testing.T) {
	x := newSite(t)
	agents := x.cloud(2, "hv-1", "hv-2")
	evil := agents["hv-2"]
	v := x.vm("train-0", "hv-1")
	own := x.vm("mine", "hv-2")
	before := x.dump()
	for name, st := range map[string]wire.Status{
		"another host's VM":          {VMs: []wire.VMStatus{{UID: v.UID, Generation: v.Status.Generation, Phase: api.PhaseFailed, Message: "owned"}}},
		"another host's VM is gone":  {VMs: []wire.VMStatus{{UID: v.UID, Generation: v.Status.Generation, Absent: true, Phase: api.PhaseDeleting}}},
		"own VM, forged generation":  {VMs: []wire.VMStatus{{UID: own.UID, Generation: 99, Phase: api.PhaseFailed}}},
		"own VM, forged absence":     {VMs: []wire.VMStatus{{UID: own.UID, Generation: own.Status.Generation, Absent: true, Phase: api.PhaseDeleting}}},
		"own VM, old absence":        {VMs: []wire.VMStatus{{UID: own.UID, Generation: 0, Absent: true, Phase: api.PhaseDeleting}}},
		"own VM, no known phase":     {VMs: []wire.VMStatus{{UID: own.UID, Generation: own.Status.Generation, Phase: "\x1b[2J"}}},
		"a UID that is a path":       {VMs: []wire.VMStatus{{UID: "../../o/VM/physics/train-0", Generation: 1, Phase: api.PhaseReady}}},
		"no UID":                     {VMs: []wire.VMStatus{{Phase: api.PhaseReady}}},
		"event about another's VM":   {Events: []wire.Event{{Object: api.Ref{Kind: api.KindVM, Tenant: "physics", Name: "train-0"}, Reason: "Owned", Message: "x"}}},
		"event about another's host": {Events: []wire.Event{{Object: api.Ref{Kind: api.KindHost, Name: "hv-1"}, Reason: "Owned", Message: "x"}}},
		"event about a tenant":       {Events: []wire.Event{{Object: api.Ref{Kind: api.KindTenant, Name: "physics"}, Reason: "Owned", Message: "x"}}},
		"event about a path":         {Events: []wire.Event{{Object: api.Ref{Kind: api.KindVM, Tenant: "physics/../x", Name: "y"}, Reason: "Owned", Message: "x"}}},
	} {
		evil.report(http.StatusOK, st)
		if after := x.dump(); after != before {
			t.Errorf("%s changed something:\n%s\n→\n%s", name, before, after)
		}
	}
	evil.report(http.StatusForbidden, wire.Status{Host: "hv-1", Inventory: inventory("hv-1", 0)})
	evil.report(http.StatusRequestEntityTooLarge, wire.Status{VMs: make([]wire.VMStatus, maxStatusVMs+1)})
	evil.report(http.StatusRequestEntityTooLarge, wire.Status{Events: make([]wire.Event, maxStatusEvents+1)})
	giant := `{"host":"hv-2","agent":"` + strings.Repeat("x", MaxBody) + `"}`
	if status, _ := evil.send(http.MethodPost, wire.PathStatus, giant); status != http.StatusRequestEntityTooLarge {
		t.Errorf("giant body: %d", status)
	}
	for _, body := range []string{"", "{", "null", "[]", `{"host":7}`, strings.Repeat("[", 100_000)} {
		if status, _ := evil.send(http.MethodPost, wire.PathStatus, body); status != http.StatusBadRequest && status != http.StatusForbidden {
			t.Errorf("body %.20q: %d", body, status)
		}
	}
	if after := x.dump(); after != before {
		t.Errorf("a refused post changed something:\n%s\n→\n%s", before, after)
	}
	if got, ok := x.readVM("train-0"); !ok || got.Status.Phase != api.PhaseScheduled {
		t.Errorf("the victim: %+v", got)
	}
	x.until("the forgeries are audited", func() bool {
		return strings.Contains(x.audits("who=host:hv-2&result=refused"), "host hv-2 says that VM physics/mine is gone")
	})
}

// dump is the whole store but for the audit, as text.
func (x *site) dump() string {
	x.Helper()
	var b strings.Builder
	err := x.db.View(context.Background(), func(tx store.Tx) error {
		for e := range tx.Scan("/", "") {
			if !strings.HasPrefix(e.Key, object.Prefix(api.KindAuditRecord, "")) && !strings.HasPrefix(e.Key, "/auth/used") {
				fmt.Fprintf(&b, "%s %s\n", e.Key, e.Value)
			}
		}
		return nil
	})
	if err != nil {
		x.Fatal(err)
	}
	return b.String()
}

// audits is the audit as the admin reads it.
func (x *site) audits(query string) string {
	x.Helper()
	return x.as(x.root, http.MethodGet, "/v1/audit?limit=1000&"+query, nil, http.StatusOK)
}

func TestHostGoesUnknownAndComesBack(t *testing.T) {
	x := newSite(t)
	a := x.cloud(1, "hv-1")["hv-1"]
	x.vm("train-0", "")
	state := func() string {
		status, body := x.call(x.root, http.MethodGet, "/v1/hosts/hv-1", nil)
		return must[api.Host](x, http.StatusOK, status, body).Status.State
	}
	if got := state(); got != api.HostUp {
		t.Fatalf("state %s", got)
	}
	x.until("an event tells", func() bool { return x.event("HostUp") == 1 })
	rev := x.rev()
	x.clock.advance(hostTTL)
	if got := state(); got != api.HostUnknown {
		t.Errorf("after a TTL of silence: %s", got)
	}
	if got, _ := x.readVM("train-0"); got.Status.Phase != api.PhaseUnknown {
		t.Errorf("its VM: %s", got.Status.Phase)
	}
	x.until("an event tells", func() bool { return x.event("HostUnknown") == 1 })
	if x.rev() != rev+1 {
		t.Errorf("%d commits for one change of state", x.rev()-rev)
	}
	// Nothing is placed on it meanwhile.
	x.as(x.root, http.MethodDelete, "/v1/tenants/physics/vms/train-0", nil, http.StatusAccepted)
	x.as(x.root, http.MethodPost, "/v1/tenants/physics/vms", `{"kind":"VM","name":"no","spec":{"flavor":"rdma-small","image":"debian","networks":[{"network":"lab"}]}}`, http.StatusConflict)
	if status, _ := a.send(http.MethodPost, wire.PathBeat, nil); status != http.StatusNoContent {
		t.Fatal(status)
	}
	if got := state(); got != api.HostUp {
		t.Errorf("after a beat: %s", got)
	}
	x.until("an event tells", func() bool { return x.event("HostUp") == 2 })
}

// event is how often something was told.
func (x *site) event(reason string) (count int) {
	x.Helper()
	err := x.db.View(context.Background(), func(tx store.Tx) error {
		for e, err := range object.All[api.Event](tx, api.KindEvent, "") {
			if err != nil {
				return err
			}
			if e.Reason == reason {
				count += e.Count
			}
		}
		return nil
	})
	if err != nil {
		x.Fatal(err)
	}
	return count
}

func TestStreamOfADeletedHostEnds(t *testing.T) {
	x := newSite(t)
	a := x.cloud(1, "hv-1")["hv-1"]
	s := a.follow(t)
	s.next()
	x.as(x.root, http.MethodDelete, "/v1/hosts/hv-1", nil, http.StatusNoContent)
	select {
	case <-s.closed:
	case <-time.After(20 * time.Second):
		t.Fatal("the stream goes on")
	}
}
