package server

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/wire"
)

const vms = "/v1/tenants/physics/vms"

// report is what an agent says of a VM, taken as the agent's endpoint takes it.
func (f *fixture) report(host string, st wire.VMStatus) {
	f.Helper()
	f.want(http.StatusOK, f.do(host, http.MethodPost, wire.PathStatus, wire.Status{Host: host, Agent: "test", VMs: []wire.VMStatus{st}}))
}

func (f *fixture) vm(name string) api.VM {
	f.Helper()
	return decode[api.VM](f.T, f.want(http.StatusOK, f.do("bob", http.MethodGet, vms+"/"+name, nil)))
}

// ready is an agent's report that all is as wanted.
func ready(o api.VM) wire.VMStatus {
	st := wire.VMStatus{UID: o.UID, Generation: o.Status.Generation, Phase: api.PhaseReady}
	for _, v := range o.Status.VFs {
		st.VFs = append(st.VFs, wire.VFStatus{PF: v.PF, Index: v.Index, State: api.VFAttached, MAC: v.MAC, VLAN: v.VLAN, QoS: v.QoS, SpoofCheck: true, Generation: v.Generation})
	}
	return st
}

func (f *fixture) events(labels string) string {
	f.Helper()
	var out []string
	for _, e := range decode[api.List[api.Event]](f.T, f.want(200, f.do("bob", http.MethodGet, "/v1/tenants/physics/events?labels="+labels, nil))).Items {
		out = append(out, e.Type+" "+e.Reason)
		if strings.Contains(e.Message, "canary") {
			f.Errorf("user data in an event: %s", e.Message)
		}
	}
	return strings.Join(out, ", ")
}

func (f *fixture) operation(action string) api.Operation {
	f.Helper()
	for _, o := range decode[api.List[api.Operation]](f.T, f.want(200, f.do("bob", http.MethodGet, "/v1/tenants/physics/operations", nil))).Items {
		if o.Action == action {
			return o
		}
	}
	f.Fatalf("there is no operation %s", action)
	return api.Operation{}
}

func TestLifeOfAVM(t *testing.T) {
	f := newFixture(t)
	f.seed()
	addHost(t, f.s, "h1", 4)
	o := decode[api.VM](t, f.want(http.StatusCreated, f.do("bob", http.MethodPost, vms, vmJSON("a", "rdma-small"))))
	if o.Status.Host != "h1" || len(o.Status.VFs) != 1 || o.Status.Phase != api.PhaseScheduled {
		t.Fatalf("created as %+v", o.Status)
	}
	if op := f.operation("create"); op.State != "running" || op.By != "user:bob" || op.Object.UID != o.UID {
		t.Errorf("operation %+v", op)
	}

	st := ready(o)
	st.Phase, st.Steps = api.PhasePreparing, []api.OpStep{{Name: "program", State: "done"}, {Name: "disk", State: "running"}}
	f.report("h1", st)
	if op := f.operation("create"); op.State != "running" || op.Progress != 45 || len(op.Steps) != 2 {
		t.Errorf("half way the operation is %+v", op)
	}
	f.report("h1", ready(o))
	if op := f.operation("create"); op.State != "done" || op.Progress != 100 || op.Ended == nil {
		t.Errorf("at the end the operation is %+v", op)
	}
	if got := f.events("kind%3DVM,name%3Da"); !strings.Contains(got, "Normal Placed") || !strings.Contains(got, "Normal Ready") {
		t.Errorf("events: %s", got)
	}

	// Nothing changed, nothing is written.
	rev := f.revision()
	f.report("h1", ready(o))
	if f.revision() != rev {
		t.Error("a report without news was written")
	}

	now := f.vm("a")
	off := strings.Replace(vmJSON("a", "rdma-small"), `"userData"`, `"power":"off","userData"`, 1)
	f.want(200, f.do("bob", http.MethodPut, vms+"/a", off, "If-Match", f.do("bob", http.MethodGet, vms+"/a", nil).Header.Get("ETag")))
	if op := f.operation("stop"); op.State != "running" {
		t.Errorf("stop is %+v", op)
	}
	st = ready(now)
	st.Phase = api.PhaseStopped
	f.report("h1", st)
	if op := f.operation("stop"); op.State != "done" {
		t.Errorf("stop is %+v", op)
	}

	again := decode[api.VM](t, f.want(http.StatusAccepted, f.do("bob", http.MethodPost, vms+"/a/rebuild", nil)))
	if again.Status.Generation != o.Status.Generation+1 || again.Status.VFs[0].MAC != o.Status.VFs[0].MAC {
		t.Errorf("rebuilt as %+v", again.Status)
	}

	gone := f.want(http.StatusAccepted, f.do("bob", http.MethodDelete, vms+"/a", nil))
	if d := decode[api.VM](t, gone); d.Deleting == nil || d.Status.Phase != api.PhaseDeleting {
		t.Errorf("deleting: %s", gone.body)
	}
	if op := f.operation("rebuild"); op.State != "cancelled" {
		t.Errorf("a rebuild overtaken by a delete is %+v", op)
	}
	rev = f.revision()
	f.want(http.StatusAccepted, f.do("bob", http.MethodDelete, vms+"/a", nil))
	if f.revision() != rev {
		t.Error("asking twice was written twice")
	}
	f.report("h1", wire.VMStatus{UID: o.UID, Generation: again.Status.Generation, Absent: true, VFs: []wire.VFStatus{{PF: o.Status.VFs[0].PF, Index: o.Status.VFs[0].Index, State: api.VFParked, Generation: again.Status.Generation}}})
	f.problem(404, fault.NotFound, f.do("bob", http.MethodGet, vms+"/a", nil))
	if op := f.operation("delete"); op.State != "done" {
		t.Errorf("delete is %+v", op)
	}
	if got := f.events("kind%3DVM,name%3Da"); !strings.Contains(got, "Normal Freed") {
		t.Errorf("events: %s", got)
	}
	usage := decode[api.Tenant](t, f.want(200, f.do("bob", http.MethodGet, "/v1/tenants/physics", nil))).Status.Usage
	for _, l := range usage {
		if l.Used != 0 {
			t.Errorf("%s: %d are still charged", l.Resource, l.Used)
		}
	}
}

func TestRefusedVM(t *testing.T) {
	f := newFixture(t)
	f.seed()
	addHost(t, f.s, "h1", 1)
	small := strings.Replace(strings.Replace(tenantJSON("physics"), `"vms":1000000`, `"vms":5`, 1), "{", `{`, 1)
	f.want(200, f.do("op", http.MethodPut, "/v1/tenants/physics", small))
	for _, n := range []string{"a", "b", "c", "d"} { // four ports with one VF each
		f.want(201, f.do("bob", http.MethodPost, vms, vmJSON(n, "rdma-small")))
	}
	rev := f.revision()
	p := f.problem(409, fault.NoCapacity, f.do("bob", http.MethodPost, vms, vmJSON("e", "rdma-small")))
	if p.Explanation == nil || len(p.Explanation.Hosts) != 1 || p.Explanation.Hosts[0].Rule == "" || p.Explanation.Nearest == "" || !p.Retryable {
		t.Errorf("the refusal explains nothing: %+v", p)
	}
	if f.revision() == rev {
		t.Error("the refusal left no event")
	}
	f.want(201, f.do("bob", http.MethodPost, vms, vmJSON("e", "plain")))
	p = f.problem(409, fault.Quota, f.do("bob", http.MethodPost, vms, vmJSON("f", "plain")))
	if len(p.Quota) == 0 {
		t.Errorf("the refusal has no quota sheet: %+v", p)
	}
	f.problem(404, fault.NotFound, f.do("bob", http.MethodGet, vms+"/f", nil))
	if got := f.events("kind%3DTenant"); !strings.Contains(got, "Warning NoCapacity") || !strings.Contains(got, "Warning QuotaExceeded") {
		t.Errorf("events of the tenant: %s", got)
	}
	// The same refusal again is one event with a count.
	f.do("bob", http.MethodPost, vms, vmJSON("f", "plain"))
	for _, e := range decode[api.List[api.Event]](t, f.do("bob", http.MethodGet, "/v1/tenants/physics/events", nil)).Items {
		if e.Reason == "QuotaExceeded" && e.Count != 2 {
			t.Errorf("counted %d times, want 2", e.Count)
		}
	}
}

func TestDryRun(t *testing.T) {
	f := newFixture(t)
	f.seed()
	addHost(t, f.s, "h1", 1)
	rev := f.revision()
	plan := decode[api.VMPlan](t, f.want(200, f.do("bob", http.MethodPost, vms+"?dryRun=true", vmJSON("a", "rdma-small"))))
	if !plan.Explanation.Fits || plan.VM.Status.Host != "h1" || len(plan.Steps) < 4 || len(plan.VM.Status.VFs) != 1 {
		t.Errorf("plan %+v", plan)
	}
	f.problem(404, fault.NotFound, f.do("bob", http.MethodGet, vms+"/a", nil))
	f.problem(422, fault.Invalid, f.do("bob", http.MethodPost, vms+"?dryRun=true", vmJSON("a", "none")))
	flavor := f.want(200, f.do("op", http.MethodPost, "/v1/flavors?dryRun=true", flavorJSON("dry", "")))
	if o := decode[api.Flavor](t, flavor); o.Name != "dry" || o.Revision != 0 {
		t.Errorf("dry flavor %s", flavor.body)
	}
	f.want(200, f.do("op", http.MethodDelete, "/v1/flavors/plain?dryRun=true", nil))
	f.want(200, f.do("bob", http.MethodGet, "/v1/flavors/plain", nil))
	f.problem(409, fault.Conflict, f.do("op", http.MethodDelete, "/v1/fabrics/roce?dryRun=true", nil))
	if f.revision() != rev {
		t.Errorf("dry runs moved the store from %d to %d", rev, f.revision())
	}
	for _, n := range []string{"a", "b", "c", "d"} {
		f.want(201, f.do("bob", http.MethodPost, vms, vmJSON(n, "rdma-small")))
	}
	rev = f.revision()
	full := decode[api.VMPlan](t, f.want(200, f.do("bob", http.MethodPost, vms+"?dryRun=true", vmJSON("e", "rdma-small"))))
	if full.Explanation.Fits || len(full.Explanation.Hosts) != 1 || full.Explanation.Nearest == "" || len(full.Steps) != 0 {
		t.Errorf("plan of what does not fit: %+v", full)
	}
	rebuilt := decode[api.VMPlan](t, f.want(200, f.do("bob", http.MethodPost, vms+"/a/rebuild?dryRun=true", nil)))
	if rebuilt.VM.Status.Generation != 2 || len(rebuilt.Steps) == 0 {
		t.Errorf("plan of a rebuild: %+v", rebuilt)
	}
	if f.revision() != rev {
		t.Error("dry runs changed something")
	}
	why := decode[api.Explanation](t, f.want(200, f.do("vic", http.MethodGet, vms+"/a/explain", nil)))
	if !why.Fits || why.Host != "h1" {
		t.Errorf("explanation %+v", why)
	}
}

// What was written is what is read: no default is filled into a spec, and the short form stays short.
func TestSpecIsNeverRewritten(t *testing.T) {
	f := newFixture(t)
	f.seed()
	for path, spec := range map[string]string{
		"/v1/flavors/rdma-small":           `"spec":{"vcpus":2,"memory":"4GiB","rdma":true}`,
		"/v1/fabrics/roce":                 `"spec":{"speed":"25Gbps","vlanPool":["100-199"]}`,
		"/v1/tenants/physics/networks/lab": `"spec":{"fabric":"roce","cidr":"10.1.0.0/16"}`,
	} {
		if a := f.want(200, f.do("bob", http.MethodGet, path, nil)); !strings.Contains(a.body, spec) {
			t.Errorf("%s: %s", path, a.body)
		}
	}
	// What was read can be sent back as it is, and changes nothing.
	addHost(t, f.s, "h1", 1)
	f.want(201, f.do("bob", http.MethodPost, vms, vmJSON("a", "rdma-small")))
	rev := f.revision()
	for _, path := range []string{"/v1/flavors/rdma-small", "/v1/fabrics/roce", "/v1/tenants/physics", "/v1/tenants/physics/networks/lab", vms + "/a", "/v1/hosts/h1", "/v1/images/debian"} {
		read := f.want(200, f.do("op", http.MethodGet, path, nil))
		f.want(200, f.do("op", http.MethodPut, path, read.body, "If-Match", read.Header.Get("ETag")))
	}
	if f.revision() != rev {
		t.Errorf("sending back what was read moved the store from %d to %d", rev, f.revision())
	}
	// A client's status and identity are not believed.
	lie := strings.Replace(vmJSON("b", "plain"), `{"kind"`, `{"uid":"mine","revision":7,"created":"2020-01-01T00:00:00Z","status":{"phase":"Ready","host":"h9"},"kind"`, 1)
	o := decode[api.VM](t, f.want(201, f.do("bob", http.MethodPost, vms, lie)))
	if o.UID == "mine" || o.Status.Phase != api.PhaseScheduled || o.Status.Host != "h1" || o.Created.Year() == 2020 {
		t.Errorf("a client wrote %+v", o)
	}
}

// An event or operation of yesterday goes; what is running and what is new stays.
func TestPrune(t *testing.T) {
	f := newFixture(t)
	f.seed()
	addHost(t, f.s, "h1", 4)
	f.want(201, f.do("bob", http.MethodPost, vms, vmJSON("a", "rdma-small"), "Idempotency-Key", "k"))
	o := f.vm("a")
	f.report("h1", ready(o))
	f.want(202, f.do("bob", http.MethodPost, vms+"/a/rebuild", nil))
	clock := f.s.now
	count := func(prefix string) (n int) {
		if err := f.db.View(t.Context(), func(tx store.Tx) error {
			for range tx.Scan(prefix, "") {
				n++
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, p := range prunings() {
		if err := f.s.prune(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if count(p.prefix) == 0 {
			t.Errorf("%s: what is new was pruned", p.prefix)
		}
	}
	f.s.now = func() time.Time { return clock().Add(25 * time.Hour) }
	for _, p := range prunings() {
		if err := f.s.prune(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	if e, r := count(object.Prefix(api.KindEvent, "")), count(repeatPrefix); e != 0 || r != 0 {
		t.Errorf("%d events and %d keys of yesterday are left", e, r)
	}
	if op := f.operation("rebuild"); op.State != "running" {
		t.Errorf("operation %+v", op)
	}
	// Over the bound, what changed longest ago goes first.
	f.s.now = clock
	for _, n := range []string{"x", "y", "z"} {
		f.want(201, f.do("bob", http.MethodPost, vms, vmJSON(n, "plain")))
	}
	p := prunings()[0]
	p.most = 2
	if err := f.s.prune(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if got := f.events("name%3Dx"); got != "" {
		t.Errorf("the oldest event is left: %s", got)
	}
	if got := f.events("name%3Dz"); got == "" {
		t.Error("the newest event is gone")
	}
}
