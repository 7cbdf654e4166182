package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/pki"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/mem"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// testClock is a clock that tests set.
type testClock struct {
	mu  sync.Mutex
	now time.Time
}

func newTestClock() *testClock { return &testClock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

func (c *testClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *testClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// safeBuffer is a log that can be read while it is written.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// site is a whole server with TLS on a socket, real credentials and a clock of its own.
type site struct {
	testing.TB
	s      *Server
	db     store.DB
	clock  *testClock
	ca     *pki.CA
	log    *safeBuffer
	notice *bytes.Buffer
	root   string // the bootstrap token
	url    string
}

func newSite(t testing.TB) *site {
	t.Helper()
	return newSiteOn(t, mem.New(), "")
}

func newSiteOn(t testing.TB, db store.DB, data string) *site {
	t.Helper()
	x := &site{TB: t, db: db, clock: newTestClock(), log: &safeBuffer{}, notice: &bytes.Buffer{}}
	m, err := pki.NewMaterial(x.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	if x.ca, err = pki.New(m); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(x.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	x.s, err = New(context.Background(), Config{Listen: "127.0.0.1:0", CA: x.ca, Data: data}, Deps{Store: db, Log: log, Now: x.clock.Now, Notice: x.notice})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- x.s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
		_ = db.Close()
	})
	x.root = x.s.Bootstrap()
	x.url = "https://" + x.s.Addr()
	return x
}

// client has the given TLS configuration; nil trusts the site's CA and shows no certificate.
func (x *site) client(cfg *tls.Config) *http.Client {
	if cfg == nil {
		cfg = &tls.Config{RootCAs: x.ca.Pool()}
	}
	cfg = cfg.Clone()
	if cfg.Time == nil {
		cfg.Time = x.clock.Now
	}
	tr := &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: true}
	x.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// send sends a request and reads the answer. Transport errors give status 0.
func (x *site) send(c *http.Client, token, method, path string, body any) (int, string) {
	x.Helper()
	var rd io.Reader
	if text, ok := body.(string); ok {
		rd = strings.NewReader(text)
	} else if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			x.Fatal(err)
		}
		rd = bytes.NewReader(b)
	}
	r, err := http.NewRequest(method, x.url+path, rd)
	if err != nil {
		x.Fatal(err)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := c.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(b)
}

// call is send without a client certificate.
func (x *site) call(token, method, path string, body any) (int, string) {
	x.Helper()
	return x.send(x.plain(), token, method, path, body)
}

func (x *site) plain() *http.Client { return x.client(nil) }

// must demands a status and decodes the answer.
func must[T any](x *site, want int, status int, body string) T {
	x.Helper()
	var v T
	if status != want {
		x.Fatalf("status %d, want %d: %s\nlog: %s", status, want, body, x.log)
	}
	if body != "" {
		if err := json.Unmarshal([]byte(body), &v); err != nil {
			x.Fatalf("%v in %s", err, body)
		}
	}
	return v
}

func (x *site) as(token, method, path string, body any, want int) string {
	x.Helper()
	status, text := x.call(token, method, path, body)
	if status != want {
		x.Fatalf("%s %s: status %d, want %d: %s\nlog: %s", method, path, status, want, text, x.log)
	}
	return text
}

func userJSON(name, password string, roles ...string) string {
	spec := map[string]any{"roles": roles}
	if password != "" {
		spec["password"] = password
	}
	b, _ := json.Marshal(map[string]any{"kind": "User", "name": name, "spec": spec})
	return string(b)
}

func tenantWith(name string, pairs ...string) string {
	var members []map[string]string
	for i := 0; i < len(pairs); i += 2 {
		members = append(members, map[string]string{"user": pairs[i], "role": pairs[i+1]})
	}
	b, _ := json.Marshal(map[string]any{"kind": "Tenant", "name": name, "spec": map[string]any{
		"quota": map[string]any{"vms": 10, "vcpus": 100, "memory": "1TiB", "vfs": 10}, "members": members}})
	return string(b)
}

// token makes a token for a user, as the bootstrap admin.
func (x *site) token(user, name, ttl string) string {
	x.Helper()
	status, body := x.call(x.root, http.MethodPost, "/v1/tokens", api.TokenRequest{Name: name, User: user, TTL: ttl})
	return must[api.TokenGrant](x, http.StatusOK, status, body).Secret
}

func (x *site) user(name string, roles ...string) {
	x.Helper()
	x.as(x.root, http.MethodPost, "/v1/users", userJSON(name, "", roles...), http.StatusCreated)
}

func TestBootstrapTokenIsToldOnceAndItsFileGoes(t *testing.T) {
	data := t.TempDir()
	db := mem.New()
	x := newSiteOn(t, db, data)
	path := filepath.Join(data, bootstrapFile)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	token := strings.TrimSpace(string(b))
	if token != x.root || strings.Count(x.notice.String(), token) != 1 {
		t.Errorf("file, notice and Bootstrap tell different tokens")
	}
	status, body := x.call(token, http.MethodGet, "/v1/whoami", nil)
	if who := must[api.WhoAmI](x, http.StatusOK, status, body); who.Name != "admin" || len(who.Roles) != 1 || who.Roles[0] != "platform-admin" || who.Expires == nil {
		t.Errorf("who: %s", body)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the file is still there after the token's first use: %v", err)
	}
	// A second start on the same store makes no second admin and tells nothing.
	again, err := assemble(t.Context(), Config{Listen: "127.0.0.1:0", CA: x.ca, Data: data}, Deps{Store: db, Log: quiet(), Now: x.clock.Now, Notice: x.notice})
	if err != nil {
		t.Fatal(err)
	}
	if again.Bootstrap() != "" || strings.Count(x.notice.String(), "verbena_pat_") != 1 {
		t.Error("a second start told a second token")
	}
	x.clock.advance(bootstrapTTL)
	x.as(token, http.MethodGet, "/v1/whoami", nil, http.StatusUnauthorized)
}

func TestBadTokensAreNotToldApart(t *testing.T) {
	x := newSite(t)
	x.user("ann")
	good := x.token("ann", "good", "1h")
	deleted := x.token("ann", "deleted", "1h")
	x.as(deleted, http.MethodDelete, "/v1/tokens/deleted", nil, http.StatusNoContent)
	forged, err := auth.ParseToken(good)
	if err != nil {
		t.Fatal(err)
	}
	forged.Secret[0] ^= 1
	unknown := forged
	unknown.ID = "0123456789ab"
	x.as(good, http.MethodGet, "/v1/whoami", nil, http.StatusOK)
	var first string
	for name, token := range map[string]string{"none": "", "deleted": deleted, "forged": forged.Text(), "unknown": unknown.Text(), "garbage": "x", "mistyped": good[:len(good)-1] + "!"} {
		_, body := x.call(token, http.MethodGet, "/v1/whoami", nil)
		p := decodeProblem(t, body)
		if p.Status != http.StatusUnauthorized || p.Code != "unauthenticated" {
			t.Errorf("%s: %s", name, body)
		}
		if name == "deleted" || name == "forged" || name == "unknown" {
			if first == "" {
				first = p.Detail
			}
			if p.Detail != first {
				t.Errorf("%s is told apart: %s", name, p.Detail)
			}
		}
	}
	x.clock.advance(time.Hour)
	x.as(good, http.MethodGet, "/v1/whoami", nil, http.StatusUnauthorized)
}

func decodeProblem(t testing.TB, body string) api.Problem {
	t.Helper()
	var p api.Problem
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return p
}

func TestChangesOfUsersAndRolesActAtOnce(t *testing.T) {
	x := newSite(t)
	x.user("ann")
	x.as(x.root, http.MethodPost, "/v1/tenants", tenantWith("physics"), http.StatusCreated)
	ann := x.token("ann", "t", "")
	read := func(want int) {
		t.Helper()
		x.as(ann, http.MethodGet, "/v1/tenants/physics", nil, want)
	}
	read(http.StatusNotFound)
	x.as(x.root, http.MethodPut, "/v1/tenants/physics", tenantWith("physics", "ann", "member"), http.StatusOK)
	read(http.StatusOK)
	x.as(ann, http.MethodPut, "/v1/tenants/physics", tenantWith("physics", "ann", "tenant-owner"), http.StatusForbidden)
	x.as(x.root, http.MethodPut, "/v1/tenants/physics", tenantWith("physics"), http.StatusOK)
	read(http.StatusNotFound)
	x.as(x.root, http.MethodPut, "/v1/users/ann", userJSON("ann", "", "viewer"), http.StatusOK)
	read(http.StatusOK)
	x.as(x.root, http.MethodPut, "/v1/users/ann", `{"kind":"User","name":"ann","spec":{"roles":["viewer"],"disabled":true}}`, http.StatusOK)
	read(http.StatusUnauthorized)
	x.as(x.root, http.MethodPut, "/v1/users/ann", userJSON("ann", "", "viewer"), http.StatusOK)
	read(http.StatusOK)
	x.as(x.root, http.MethodDelete, "/v1/users/ann", nil, http.StatusNoContent)
	read(http.StatusUnauthorized)
	// A new user of that name is another person.
	x.user("ann", "viewer")
	read(http.StatusUnauthorized)
}

func TestOwnerMayChangeMembersButNotQuota(t *testing.T) {
	x := newSite(t)
	x.user("ann")
	x.user("bob")
	x.as(x.root, http.MethodPost, "/v1/tenants", tenantWith("physics", "ann", "tenant-owner"), http.StatusCreated)
	ann, bob := x.token("ann", "t", ""), x.token("bob", "t", "")
	x.as(ann, http.MethodPut, "/v1/tenants/physics", tenantWith("physics", "ann", "tenant-owner", "bob", "member"), http.StatusOK)
	x.as(bob, http.MethodGet, "/v1/tenants/physics", nil, http.StatusOK)
	rich := strings.Replace(tenantWith("physics", "ann", "tenant-owner"), `"vms":10`, `"vms":11`, 1)
	x.as(ann, http.MethodPut, "/v1/tenants/physics", rich, http.StatusForbidden)
	x.as(bob, http.MethodPut, "/v1/tenants/physics", tenantWith("physics", "bob", "tenant-owner"), http.StatusForbidden)
	x.as(x.root, http.MethodDelete, "/v1/users/bob", nil, http.StatusConflict) // still a member
}

func TestLastAdminStays(t *testing.T) {
	x := newSite(t)
	x.as(x.root, http.MethodDelete, "/v1/users/admin", nil, http.StatusConflict)
	x.as(x.root, http.MethodPut, "/v1/users/admin", userJSON("admin", ""), http.StatusConflict)
	x.as(x.root, http.MethodPut, "/v1/users/admin", `{"kind":"User","name":"admin","spec":{"roles":["platform-admin"],"disabled":true}}`, http.StatusConflict)
	x.user("eva", "platform-admin")
	x.as(x.token("eva", "t", ""), http.MethodDelete, "/v1/users/admin", nil, http.StatusNoContent)
}

func TestLogin(t *testing.T) {
	const password = "correct horse battery"
	x := newSite(t)
	x.as(x.root, http.MethodPost, "/v1/users", userJSON("ann", password, "viewer"), http.StatusCreated)
	login := func(user, password string) (int, string) {
		return x.call("", http.MethodPost, "/v1/login", api.LoginRequest{User: user, Password: password})
	}
	status, body := login("ann", password)
	grant := must[api.TokenGrant](x, http.StatusOK, status, body)
	if want := x.clock.Now().Add(auth.LoginTTL); !grant.Token.Expires.Equal(want) {
		t.Errorf("expires %s, want %s", grant.Token.Expires, want)
	}
	x.as(grant.Secret, http.MethodGet, "/v1/hosts", nil, http.StatusOK)
	_, wrong := login("ann", "wrong horse battery")
	_, unknown := login("nobody-at-all", password)
	if a, b := decodeProblem(t, wrong), decodeProblem(t, unknown); a.Detail != b.Detail || a.Status != b.Status || a.Status != http.StatusUnauthorized {
		t.Errorf("known and unknown users are told apart: %s %s", wrong, unknown)
	}
	// A new password ends the sessions, but for the one that sets it.
	other := must[api.TokenGrant](x, http.StatusOK, firstOf(login("ann", password)), secondOf(login("ann", password)))
	x.as(grant.Secret, http.MethodPost, "/v1/password", api.PasswordChange{Old: "not that at all", New: "another good password"}, http.StatusForbidden)
	x.as(grant.Secret, http.MethodPost, "/v1/password", api.PasswordChange{Old: password, New: "another good password"}, http.StatusNoContent)
	x.as(grant.Secret, http.MethodGet, "/v1/whoami", nil, http.StatusOK)
	x.as(other.Secret, http.MethodGet, "/v1/whoami", nil, http.StatusUnauthorized)
	if status, _ := login("ann", password); status != http.StatusUnauthorized {
		t.Errorf("the old password still works: %d", status)
	}
	x.clock.advance(auth.LoginTTL)
	x.as(grant.Secret, http.MethodGet, "/v1/whoami", nil, http.StatusUnauthorized)
	x.as(x.root, http.MethodPut, "/v1/users/ann", `{"kind":"User","name":"ann","spec":{"disabled":true}}`, http.StatusOK)
	if status, _ := login("ann", "another good password"); status != http.StatusUnauthorized {
		t.Errorf("a disabled user logged in: %d", status)
	}
}

func firstOf(status int, _ string) int   { return status }
func secondOf(_ int, body string) string { return body }

func TestLoginIsLimitedPerUserAndAddress(t *testing.T) {
	now := newTestClock().Now()
	l := newLimiter()
	count := func(user, address string, n int) (ok int) {
		for range n {
			if l.take(user, address, now) == nil {
				ok++
			}
		}
		return ok
	}
	if ok := count("ann", "192.0.2.1:1000", 50); ok != userBurst {
		t.Errorf("one user from one address: %d attempts, want %d", ok, userBurst)
	}
	if ok := count("ann", "192.0.2.2:1000", 5); ok != 0 {
		t.Errorf("the same user from elsewhere: %d attempts", ok)
	}
	ok := 0
	for i := range 100 {
		ok += count(fmt.Sprintf("user%d", i), "192.0.2.3:1000", 1)
	}
	if ok != addressBurst {
		t.Errorf("many users from one address: %d attempts, want %d", ok, addressBurst)
	}
	// The addresses of one IPv6 network are one.
	ok = 0
	for i := range 100 {
		ok += count(fmt.Sprintf("other%d", i), fmt.Sprintf("[2001:db8::%x]:1000", i+1), 1)
	}
	if ok != addressBurst {
		t.Errorf("one IPv6 network: %d attempts, want %d", ok, addressBurst)
	}
	now = now.Add(userEvery)
	if ok := count("ann", "192.0.2.9:1000", 5); ok != 1 {
		t.Errorf("after a pause: %d attempts, want 1", ok)
	}
	for i := range limiterBounds + 100 {
		_ = l.take(fmt.Sprintf("flood%d", i), fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255), now)
	}
	if len(l.buckets) > limiterBounds {
		t.Errorf("%d buckets, at most %d are kept", len(l.buckets), limiterBounds)
	}
}

func TestLoginFloodGets429(t *testing.T) {
	x := newSite(t)
	var last *http.Response
	for range userBurst + 1 {
		b, _ := json.Marshal(api.LoginRequest{User: "ann", Password: "x"})
		res, err := x.plain().Post(x.url+"/v1/login", "application/json", bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		last = res
	}
	if last.StatusCode != http.StatusTooManyRequests || last.Header.Get("Retry-After") != "6" {
		t.Errorf("status %d, Retry-After %q", last.StatusCode, last.Header.Get("Retry-After"))
	}
}

func TestHasherBoundsItsWork(t *testing.T) {
	h := newHasher()
	var leave []func()
	for range hashers {
		f, err := h.enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, f)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.enter(ended); err == nil {
		t.Error("entered though all places are taken")
	}
	results := make(chan error, hashQueue)
	for range hashQueue {
		h.waiting <- struct{}{}
	}
	if _, err := h.enter(t.Context()); err == nil {
		t.Error("the queue has no end")
	}
	for range hashQueue {
		<-h.waiting
	}
	close(results)
	for _, f := range leave {
		f()
	}
	if ok, err := h.check(t.Context(), "anything", ""); ok || err != nil {
		t.Errorf("unknown user: %t, %v", ok, err)
	}
}

func TestTokensOfOthers(t *testing.T) {
	x := newSite(t)
	x.user("ann")
	x.user("op", "operator")
	ann, op := x.token("ann", "ci", "2h"), x.token("op", "ci", "")
	list := must[api.List[api.Token]](x, http.StatusOK, firstOf(x.call(ann, http.MethodGet, "/v1/tokens", nil)), secondOf(x.call(ann, http.MethodGet, "/v1/tokens", nil)))
	if len(list.Items) != 1 || list.Items[0].Name != "ci" || list.Items[0].LastUsed == nil {
		t.Fatalf("list: %+v", list)
	}
	id := list.Items[0].UID
	x.as(op, http.MethodGet, "/v1/tokens?user=ann", nil, http.StatusForbidden)
	x.as(op, http.MethodDelete, "/v1/tokens/"+id, nil, http.StatusNotFound)
	x.as(op, http.MethodPost, "/v1/tokens", api.TokenRequest{Name: "x", User: "ann"}, http.StatusForbidden)
	x.as(op, http.MethodPost, "/v1/tokens", api.TokenRequest{Name: "x", User: "ghost"}, http.StatusUnprocessableEntity)
	x.as(ann, http.MethodPost, "/v1/tokens", api.TokenRequest{Name: "x", User: "ghost"}, http.StatusForbidden)
	x.as(ann, http.MethodPost, "/v1/tokens", api.TokenRequest{Name: "longer", TTL: "3h"}, http.StatusUnprocessableEntity)
	x.as(ann, http.MethodPost, "/v1/tokens", api.TokenRequest{Name: "ci"}, http.StatusConflict)
	x.as(op, http.MethodPost, "/v1/users", userJSON("mole", "", "platform-admin"), http.StatusForbidden)
	if body := x.as(x.root, http.MethodGet, "/v1/tokens?user=ann", nil, http.StatusOK); strings.Contains(body, "hash") {
		t.Errorf("the list shows hashes: %s", body)
	}
	x.as(x.root, http.MethodDelete, "/v1/tokens/"+id, nil, http.StatusNoContent)
	x.as(ann, http.MethodGet, "/v1/whoami", nil, http.StatusUnauthorized)
}

func TestScopedTokenStaysInItsScope(t *testing.T) {
	x := newSite(t)
	x.user("ann")
	x.as(x.root, http.MethodPost, "/v1/tenants", tenantWith("physics", "ann", "tenant-owner"), http.StatusCreated)
	x.as(x.root, http.MethodPost, "/v1/tenants", tenantWith("biology", "ann", "tenant-owner"), http.StatusCreated)
	status, body := x.call(x.token("ann", "full", ""), http.MethodPost, "/v1/tokens",
		api.TokenRequest{Name: "cut", Scopes: []string{"network.read", "token.*"}, InTenant: "physics"})
	cut := must[api.TokenGrant](x, http.StatusOK, status, body).Secret
	x.as(cut, http.MethodGet, "/v1/tenants/physics/networks", nil, http.StatusOK)
	x.as(cut, http.MethodGet, "/v1/tenants/biology/networks", nil, http.StatusNotFound)
	if body := x.as(cut, http.MethodGet, "/v1/tenants/physics", nil, http.StatusForbidden); !strings.Contains(body, "user ann may, but this token was made for less") {
		t.Errorf("a role would not help: %s", body)
	}
	if who := x.as(cut, http.MethodGet, "/v1/whoami", nil, http.StatusOK); !strings.Contains(who, `"tenant":"physics"`) {
		t.Errorf("whoami does not tell the only tenant: %s", who)
	}
	x.as(x.root, http.MethodPost, "/v1/tokens", api.TokenRequest{Name: "typo", InTenant: "phisics"}, http.StatusUnprocessableEntity)
	x.as(cut, http.MethodPost, "/v1/tokens", api.TokenRequest{Name: "wide", Scopes: []string{"*"}}, http.StatusUnprocessableEntity)
	x.as(cut, http.MethodPost, "/v1/tokens", api.TokenRequest{Name: "other", InTenant: "biology"}, http.StatusUnprocessableEntity)
	status, body = x.call(cut, http.MethodPost, "/v1/tokens", api.TokenRequest{Name: "same"})
	if g := must[api.TokenGrant](x, http.StatusOK, status, body); g.Token.InTenant != "physics" || len(g.Token.Scopes) != 2 {
		t.Errorf("inherited: %+v", g.Token)
	}
}

func TestUseOfTokensIsSavedRarely(t *testing.T) {
	x := newSite(t)
	rev := x.rev()
	for range 100 {
		x.as(x.root, http.MethodGet, "/v1/whoami", nil, http.StatusOK)
	}
	if x.rev() != rev {
		t.Fatal("reading wrote")
	}
	if err := x.s.saveUse(t.Context()); err != nil {
		t.Fatal(err)
	}
	saved := x.rev()
	if err := x.s.saveUse(t.Context()); err != nil {
		t.Fatal(err)
	}
	if saved == rev || x.rev() != saved {
		t.Errorf("revisions %d, %d, %d: want one write", rev, saved, x.rev())
	}
	x.clock.advance(bootstrapTTL)
	if err := x.s.dropExpired(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = x.db.View(t.Context(), func(tx store.Tx) error {
		for e := range tx.Scan(tokenKeys, "") {
			t.Errorf("expired %s is still there", e.Key)
		}
		return nil
	})
}

func (x *site) rev() int64 {
	x.Helper()
	h, err := x.db.Health(context.Background())
	if err != nil {
		x.Fatal(err)
	}
	return h.Revision
}

func TestReindexRepairsTheRoleIndex(t *testing.T) {
	x := newSite(t)
	x.user("ann")
	x.as(x.root, http.MethodPost, "/v1/tenants", tenantWith("physics", "ann", "member"), http.StatusCreated)
	_, err := x.db.Update(t.Context(), func(tx store.Tx) error {
		tx.Delete(roleKeys + "ann")
		tx.Delete(memberKeys + "physics")
		return store.Put(tx, memberKeys+"gone", &memberRecord{Members: map[string]auth.Role{"ann": auth.TenantOwner}})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := x.s.reindex(t.Context()); err != nil {
		t.Fatal(err)
	}
	rev := x.rev()
	if err := x.s.reindex(t.Context()); err != nil || x.rev() != rev {
		t.Errorf("a second run wrote: %v", err)
	}
	err = x.db.View(t.Context(), func(tx store.Tx) error {
		roles, err := rolesOf(tx, "ann")
		if len(roles) != 1 || roles["physics"] != auth.TenantMember {
			t.Errorf("roles %v", roles)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestSealedCAIsSharedByServers(t *testing.T) {
	db := mem.New()
	defer db.Close()
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, bytes.Repeat([]byte("k"), 32), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(key string) (*Server, error) {
		return assemble(t.Context(), Config{Listen: "127.0.0.1:0", KeyFile: key}, Deps{Store: db, Log: quiet()})
	}
	a, err := open(key)
	if err != nil {
		t.Fatal(err)
	}
	b, err := open(key)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a.CA(), b.CA()) {
		t.Error("two servers on one store have two CAs")
	}
	other := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(other, bytes.Repeat([]byte("j"), 32), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := open(other); err == nil {
		t.Error("opened under another key file")
	}
	_ = db.View(t.Context(), func(tx store.Tx) error {
		if e := tx.Get(caKey); e == nil || bytes.Contains(e.Value, []byte("PRIVATE KEY")) {
			t.Errorf("the CA's key is readable in the store")
		}
		return nil
	})
}

// agent is a joined agent's side.
type testAgent struct {
	x    *site
	host string
	key  []byte
	cert []byte
	http *http.Client
}

func (x *site) joinToken(host string) string {
	x.Helper()
	status, body := x.call(x.root, http.MethodPost, "/v1/join-tokens", api.JoinTokenRequest{Host: host})
	return must[api.JoinTokenGrant](x, http.StatusOK, status, body).Secret
}

// join joins as an agent does: it trusts nothing but the hash in its token.
func (x *site) join(secret string) (*testAgent, int, string) {
	x.Helper()
	token, err := pki.ParseJoinToken(secret)
	if err != nil {
		x.Fatal(err)
	}
	key, csr, err := pki.NewCSR(token.Host)
	if err != nil {
		x.Fatal(err)
	}
	pinned := x.client(pki.ServerTLS("127.0.0.1", token.CA, x.clock.Now))
	status, body := x.send(pinned, "", http.MethodPost, wire.PathJoin, wire.Join{Secret: secret, CSR: string(csr)})
	if status != http.StatusOK {
		return nil, status, body
	}
	grant := must[wire.Grant](x, http.StatusOK, status, body)
	if err := (pki.Granted{Host: token.Host, Cert: []byte(grant.Certificate), Key: key, CA: []byte(grant.CA)}).Check(token.CA, x.clock.Now()); err != nil {
		x.Fatal(err)
	}
	return x.agent(token.Host, key, []byte(grant.Certificate)), status, body
}

func (x *site) agent(host string, key, cert []byte) *testAgent {
	x.Helper()
	cfg, err := pki.AgentTLS(cert, key, x.ca.PEM())
	if err != nil {
		x.Fatal(err)
	}
	return &testAgent{x: x, host: host, key: key, cert: cert, http: x.client(cfg)}
}

func (x *site) mustJoin(host string) *testAgent {
	x.Helper()
	a, status, body := x.join(x.joinToken(host))
	if status != http.StatusOK {
		x.Fatalf("join %s: %d %s", host, status, body)
	}
	return a
}

func (a *testAgent) send(method, path string, body any) (int, string) {
	a.x.Helper()
	return a.x.send(a.http, "", method, path, body)
}

func (a *testAgent) leaf() *x509.Certificate {
	pair, err := tls.X509KeyPair(a.cert, a.key)
	if err != nil {
		a.x.Fatal(err)
	}
	return pair.Leaf
}

// renew returns the agent with its next certificate.
func (a *testAgent) renew() (*testAgent, int, string) {
	a.x.Helper()
	key, csr, err := pki.NewCSR(a.host)
	if err != nil {
		a.x.Fatal(err)
	}
	status, body := a.send(http.MethodPost, wire.PathRenew, wire.Renew{CSR: string(csr)})
	if status != http.StatusOK {
		return nil, status, body
	}
	grant := must[wire.Grant](a.x, http.StatusOK, status, body)
	return a.x.agent(a.host, key, []byte(grant.Certificate)), status, body
}

// host returns the stored host.
func (x *site) host(name string) *api.Host {
	x.Helper()
	var h *api.Host
	err := x.db.View(context.Background(), func(tx store.Tx) (err error) {
		h, err = object.Load[api.Host](tx, api.KindHost, "", name)
		return err
	})
	if err != nil {
		x.Fatal(err)
	}
	return h
}
