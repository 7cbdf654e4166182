package server

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/pki"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// records returns the whole audit, newest first, straight from the store.
func (x *site) records() []api.AuditRecord {
	x.Helper()
	var all []api.AuditRecord
	err := x.db.View(x.Context(), func(tx store.Tx) error {
		for r, err := range object.All[api.AuditRecord](tx, api.KindAuditRecord, "") {
			if err != nil {
				return err
			}
			all = append(all, *r)
		}
		return nil
	})
	if err != nil {
		x.Fatal(err)
	}
	return all
}

// TestEachWriteIsAuditedOnce sends one request to every route that changes something, as somebody who
// may and as somebody who may not, and wants exactly one record for each.
func TestEachWriteIsAuditedOnce(t *testing.T) {
	x := newSite(t)
	x.user("vic", "viewer")
	x.as(x.root, http.MethodPost, "/v1/tenants", tenantWith("physics"), http.StatusCreated)
	a := x.mustJoin("hv-1")
	vic := x.token("vic", "t", "")
	x.until("what came before is written", func() bool { return len(x.s.ident.audits.queue) == 0 })
	seen := map[string]bool{}
	for _, r := range x.records() {
		seen[r.Name] = true
	}
	fresh := func() (all []api.AuditRecord) {
		for _, r := range x.records() {
			if !seen[r.Name] {
				all = append(all, r)
			}
		}
		return all
	}
	writes := 0
	for _, r := range x.s.table {
		if !r.perm.Write() {
			continue
		}
		writes++
		path := strings.NewReplacer("{tenant}", "physics", "{name}", "thing", "{token}", "thing").Replace(r.path)
		for _, who := range []string{x.root, vic, "", "agent"} {
			c, token := x.plain(), who
			if who == "agent" {
				c, token = a.http, ""
			}
			status, body := x.send(c, token, r.method, path, "{}")
			if status == 0 {
				t.Fatalf("%s %s: %s", r.method, path, body)
			}
			var got []api.AuditRecord
			x.until("a record of "+r.method+" "+path+" is there", func() bool { got = fresh(); return len(got) > 0 })
			if len(got) != 1 {
				t.Errorf("%s %s as %.10s: %d records", r.method, path, who, len(got))
			}
			one := got[0]
			result := "refused"
			if status < 400 {
				result = "ok"
			}
			if one.Status != status || one.Action != string(r.perm) || one.Result != result || one.RequestID == "" || one.Remote != "127.0.0.1" || one.Who == "" {
				t.Errorf("%s %s answered %d, recorded as %+v", r.method, path, status, one)
			}
			for _, r := range got {
				seen[r.Name] = true
			}
		}
	}
	if writes < 20 {
		t.Errorf("only %d routes write", writes)
	}
}

// TestSuccessIsAuditedInItsOwnCommit: the record of a write that worked has the revision of the write.
func TestSuccessIsAuditedInItsOwnCommit(t *testing.T) {
	x := newSite(t)
	const password = "correct horse battery"
	type step struct {
		action, who, kind, name string
		do                      func()
	}
	a := func() { x.mustJoin("hv-1") }
	for _, st := range []step{
		{"user.create", "token:", "User", "ann", func() {
			x.as(x.root, http.MethodPost, "/v1/users", userJSON("ann", password), http.StatusCreated)
		}},
		{"tenant.create", "token:", "Tenant", "physics", func() {
			x.as(x.root, http.MethodPost, "/v1/tenants", tenantWith("physics", "ann", "member"), http.StatusCreated)
		}},
		{"tenant.update", "token:", "Tenant", "physics", func() {
			x.as(x.root, http.MethodPut, "/v1/tenants/physics", tenantWith("physics"), http.StatusOK)
		}},
		{"token.create", "token:", "Token", "ci", func() { x.token("ann", "ci", "") }},
		{"token.delete", "token:", "Token", "ci", func() {
			status, body := x.call(x.root, http.MethodGet, "/v1/tokens?user=ann", nil)
			x.as(x.root, http.MethodDelete, "/v1/tokens/"+must[api.List[api.Token]](x, http.StatusOK, status, body).Items[0].UID, nil, http.StatusNoContent)
		}},
		{"login", "user:ann", "User", "ann", func() {
			x.as("", http.MethodPost, "/v1/login", api.LoginRequest{User: "ann", Password: password}, http.StatusOK)
		}},
		{"agent.join", "host:hv-1", "Host", "hv-1", a},
		{"user.delete", "token:", "User", "ann", func() { x.as(x.root, http.MethodDelete, "/v1/users/ann", nil, http.StatusNoContent) }},
	} {
		before := x.rev()
		st.do()
		found := 0
		_ = x.db.View(t.Context(), func(tx store.Tx) error {
			for e := range tx.Scan(object.Prefix(api.KindAuditRecord, ""), "") {
				r, err := store.Peek[api.AuditRecord](e)
				if err != nil || e.Rev <= before || r.Action != st.action {
					continue
				}
				found++
				if r.Result != "ok" || !strings.HasPrefix(r.Who, st.who) || string(r.Object.Kind) != st.kind || r.Object.Name != st.name || e.Rev != x.rev() {
					t.Errorf("%s: %+v at revision %d of %d", st.action, r, e.Rev, x.rev())
				}
			}
			return nil
		})
		if found != 1 {
			t.Errorf("%s: %d records", st.action, found)
		}
	}
}

func TestTenantsAuditorsSeeTheirOwn(t *testing.T) {
	x := newSite(t)
	x.user("aud")
	x.user("eve")
	x.as(x.root, http.MethodPost, "/v1/tenants", tenantWith("physics", "aud", "auditor"), http.StatusCreated)
	x.as(x.root, http.MethodPost, "/v1/tenants", tenantWith("biology", "eve", "tenant-owner"), http.StatusCreated)
	aud, eve := x.token("aud", "t", ""), x.token("eve", "t", "")
	// A stranger's refused request does not get into the tenant's audit.
	x.as(eve, http.MethodDelete, "/v1/tenants/physics", nil, http.StatusNotFound)
	x.until("it is recorded", func() bool { return strings.Contains(x.audits("result=refused"), "tenant.delete") })
	read := func(token, query string) []api.AuditRecord {
		t.Helper()
		status, body := x.call(token, http.MethodGet, "/v1/audit?"+query, nil)
		return must[api.List[api.AuditRecord]](x, http.StatusOK, status, body).Items
	}
	for _, r := range read(aud, "") {
		if r.Tenant != "physics" || r.Result != "ok" {
			t.Errorf("the auditor of physics sees %+v", r)
		}
	}
	if n := len(read(aud, "")); n != 1 {
		t.Errorf("the auditor of physics sees %d records", n)
	}
	if n := len(read(aud, "tenant=biology")); n != 0 {
		t.Errorf("the auditor of physics sees %d records of biology", n)
	}
	all := read(x.root, "")
	for i := 1; i < len(all); i++ {
		if all[i].At.After(all[i-1].At) {
			t.Error("not the newest first")
		}
	}
	// Pages hold everything once.
	var paged []string
	for next := ""; ; {
		status, body := x.call(x.root, http.MethodGet, "/v1/audit?limit=2&continue="+next, nil)
		page := must[api.List[api.AuditRecord]](x, http.StatusOK, status, body)
		for _, r := range page.Items {
			paged = append(paged, r.Name)
		}
		if next = page.Continue; next == "" {
			break
		}
	}
	if len(paged) != len(all) {
		t.Errorf("%d records on pages, %d at once", len(paged), len(all))
	}
	for query, want := range map[string]int{"action=tenant.create": 2, "action=tenant.*&name=physics&result=ok": 1, "kind=user": 2, "who=user:nobody": 0,
		"since=2026-03-01T12:00:00Z": len(all), "since=2026-03-01T12:00:01Z": 0, "until=2026-03-01T12:00:00Z": 0} {
		if got := len(read(x.root, query)); got != want {
			t.Errorf("%s: %d records, want %d", query, got, want)
		}
	}
}

func TestAuditKeepsItsBounds(t *testing.T) {
	x := newSite(t)
	_, err := x.db.Update(t.Context(), func(tx store.Tx) error {
		for i, age := range []time.Duration{0, auditAge - time.Hour, auditAge + time.Hour, 2 * auditAge} {
			at := x.clock.Now().Add(-age)
			r := &api.AuditRecord{At: at}
			r.Kind, r.Tenant, r.Name = api.KindAuditRecord, []string{"", "physics"}[i%2], fmt.Sprintf("%016x-%08x", math.MaxInt64-at.UnixNano(), i)
			if err := saveRecord(tx, r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := x.s.trimAudit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := len(x.records()); got != 2 {
		t.Errorf("%d records are left, want 2", got)
	}
}

func TestLostAuditIsCounted(t *testing.T) {
	f := newFixture(t) // nothing drains its queue
	for i := range auditQueued + 7 {
		f.s.enqueue(&call{Caller: auth.Caller{Name: fmt.Sprint("u", i)}}, &api.AuditRecord{})
	}
	stranger := &call{}
	f.s.ident.audits.queue = make(chan *api.AuditRecord, auditQueued)
	for range strangerBurst * 2 {
		f.s.enqueue(stranger, &api.AuditRecord{})
	}
	kept := len(f.s.ident.audits.queue)
	if kept < strangerBurst || kept == strangerBurst*2 {
		t.Errorf("%d of %d records of strangers are kept", kept, strangerBurst*2)
	}
	if got, want := f.s.ident.audits.lost.Load(), int64(7+strangerBurst*2-kept); got != want {
		t.Errorf("%d counted as lost, want %d", got, want)
	}
	if a := f.do("admin", http.MethodGet, "/metrics", nil); !strings.Contains(a.body, "verbena_audit_lost_total") {
		t.Error("the loss is no metric")
	}
}

// TestSecretsNeverLeak runs everything that has a secret in it, rightly and wrongly, and looks for the
// secrets in all that people and programs can read afterwards: log, answers, events, audit, store.
func TestSecretsNeverLeak(t *testing.T) {
	x := newSite(t)
	agents := x.cloud(2, "hv-1")
	secrets := map[string]string{
		"password": "correct horse battery", "second password": "another good password", "wrong password": "guessed-wrongly-x1",
		"user data": "SECRET-IN-USERDATA", "bad password": "tiny-secret",
	}
	var answers strings.Builder
	say := func(status int, body string) string {
		fmt.Fprintln(&answers, status, body)
		return body
	}
	// An answer that may hold a secret gives it away here, and is not looked at.
	x.as(x.root, http.MethodPost, "/v1/tenants", tenantWith("biology"), http.StatusCreated)
	say(x.call(x.root, http.MethodPost, "/v1/users", userJSON("ann", secrets["password"], "viewer")))
	say(x.call(x.root, http.MethodPost, "/v1/users", userJSON("bob", secrets["bad password"])))
	say(x.call(x.root, http.MethodPost, "/v1/users", userJSON("ann", secrets["password"])))
	say(x.call(x.root, http.MethodPut, "/v1/users/ann", userJSON("ann", secrets["second password"], "viewer", "god")))
	say(x.call(x.root, http.MethodPost, "/v1/users", `{"kind":"User","name":7,"spec":{"password":"`+secrets["password"]+`","pasword":"`+secrets["second password"]+`"}}`))
	say(x.call(x.root, http.MethodPost, "/v1/users", `{"password":"`+secrets["password"]))
	say(x.call("", http.MethodPost, "/v1/login", api.LoginRequest{User: "ann", Password: secrets["wrong password"]}))
	say(x.call("", http.MethodPost, "/v1/login", `{"user":"ann","password":["`+secrets["password"]+`"]}`))
	status, body := x.call("", http.MethodPost, "/v1/login", api.LoginRequest{User: "ann", Password: secrets["password"]})
	secrets["login token"] = must[api.TokenGrant](x, http.StatusOK, status, body).Secret
	say(x.call(secrets["login token"], http.MethodPost, "/v1/password", api.PasswordChange{Old: secrets["wrong password"], New: secrets["second password"]}))
	say(x.call(secrets["login token"], http.MethodPost, "/v1/password", api.PasswordChange{Old: secrets["password"], New: secrets["second password"]}))
	secrets["bootstrap token"] = x.root
	secrets["token"] = x.token("ann", "ci", "")
	say(x.call(secrets["token"]+"x", http.MethodGet, "/v1/whoami", nil))
	say(x.call(secrets["token"], http.MethodPost, "/v1/tokens", api.TokenRequest{Name: secrets["token"]}))
	say(x.call(x.root, http.MethodGet, "/v1/tokens?user=ann", nil))
	say(x.call(x.root, http.MethodGet, "/v1/users", nil))
	join := x.joinToken("hv-9")
	secrets["join token"] = join
	_, csr, err := pki.NewCSR("hv-9")
	if err != nil {
		t.Fatal(err)
	}
	say(x.call("", http.MethodPost, wire.PathJoin, wire.Join{Secret: join + "x", CSR: string(csr)}))
	say(x.call("", http.MethodPost, wire.PathJoin, wire.Join{Secret: join, CSR: "x"}))
	if _, status, body := x.join(join); status != http.StatusOK {
		t.Fatal(body)
	}
	vmBody := func(name, more string) string {
		return fmt.Sprintf(`{"kind":"VM","name":%q,"spec":{"flavor":"rdma-small","image":"debian","networks":[{"network":"lab"}],"userData":%q%s}}`, name, secrets["user data"], more)
	}
	say(x.call(x.root, http.MethodPost, "/v1/tenants/biology/vms", vmBody("no-network", "")))
	say(x.call(x.root, http.MethodPost, "/v1/tenants/physics/vms", vmBody("Bad Name", `,"colour":"red"`)))
	x.as(x.root, http.MethodPost, "/v1/tenants/physics/vms", vmBody("train-0", ""), http.StatusCreated)
	v, _ := x.readVM("train-0")
	agents["hv-1"].report(http.StatusOK, wire.Status{VMs: []wire.VMStatus{{UID: v.UID, Generation: 1, Phase: api.PhaseFailed, Message: "disk full"}}})
	say(x.call(x.root, http.MethodGet, "/v1/events", nil))
	say(x.call(x.root, http.MethodGet, "/v1/operations", nil))
	x.until("the audit is written", func() bool { return len(x.s.ident.audits.queue) == 0 })
	say(x.call(x.root, http.MethodGet, "/v1/audit?limit=1000", nil))
	kept := x.dump()
	for _, r := range x.records() {
		b, _ := json.Marshal(r)
		kept += string(b)
	}
	for name, secret := range secrets {
		for where, text := range map[string]string{"log": x.log.String(), "answers": answers.String(), "store": kept} {
			if name == "user data" && where == "store" {
				text = strings.ReplaceAll(text, fmt.Sprintf(`"userData":%q`, secret), "") // it is part of the VM's spec
			}
			if strings.Contains(text, secret) {
				i := strings.Index(text, secret)
				t.Errorf("the %s is in the %s: …%s…", name, where, text[max(0, i-200):min(len(text), i+40)])
			}
		}
	}
	if !strings.Contains(kept, "argon2id") {
		t.Error("no password is kept: this test looked at nothing")
	}
}

func TestRecordTenantIsOneTheCallerSees(t *testing.T) {
	c := &call{Caller: auth.Caller{Name: "ann", Tenants: map[string]auth.Role{"physics": auth.TenantMember}}}
	for tenant, want := range map[string]string{"physics": "physics", "biology": "", "": "", "../x": "", "_": ""} {
		if got := recordTenant(c, api.Ref{Kind: api.KindVM, Tenant: tenant}); got != want {
			t.Errorf("%q → %q, want %q", tenant, got, want)
		}
	}
	if got := recordTenant(c, api.Ref{Kind: api.KindTenant, Name: "biology"}); got != "" {
		t.Errorf("a stranger's tenant: %q", got)
	}
	if m := meant(fault.RateLimited); m.status != http.StatusTooManyRequests {
		t.Errorf("%+v", m)
	}
}
