package auth_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/fault"
)

var update = flag.Bool("update", false, "write testdata/*.golden anew")

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// who is one column of the matrix: a name and a caller who has just that role.
type who struct {
	name   string
	caller auth.Caller
	tenant string // where it is asked; "" = what belongs to no tenant
}

func everybody() []who {
	var all []who
	for _, r := range auth.PlatformRoles() {
		all = append(all, who{string(r), auth.Caller{Name: "u", Platform: []auth.Role{r}}, ""})
	}
	for _, r := range auth.TenantRoles() {
		c := auth.Caller{Name: "u", Tenants: map[string]auth.Role{"t": r}}
		all = append(all, who{string(r) + "@t", c, "t"}, who{string(r) + "@_", c, ""})
	}
	return append(all,
		who{"no-role", auth.Caller{Name: "u"}, ""},
		who{"agent", auth.Caller{Host: "h"}, ""},
		who{"nobody", auth.Caller{}, ""})
}

// TestMatrix holds the whole policy against a file that people can read and review.
func TestMatrix(t *testing.T) {
	var b bytes.Buffer
	fmt.Fprint(&b, "permission")
	for _, w := range everybody() {
		fmt.Fprintf(&b, " %s", w.name)
	}
	fmt.Fprintln(&b)
	for _, p := range auth.Permissions() {
		fmt.Fprintf(&b, "%s", p)
		for _, w := range everybody() {
			mark := " -"
			if w.caller.Can(p, w.tenant) {
				mark = " y"
			}
			fmt.Fprint(&b, mark)
		}
		fmt.Fprintln(&b)
	}
	const path = "testdata/matrix.golden"
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, b.Bytes()) {
		t.Errorf("the policy differs from %s:\n%s", path, b.String())
	}
}

func TestRolesAreNested(t *testing.T) {
	at := func(r auth.Role) auth.Caller { return auth.Caller{Name: "u", Tenants: map[string]auth.Role{"t": r}} }
	over := func(r auth.Role) auth.Caller { return auth.Caller{Name: "u", Platform: []auth.Role{r}} }
	for _, tt := range []struct {
		a, b auth.Caller
		want bool
	}{
		{over(auth.PlatformAdmin), over(auth.Operator), true},
		{over(auth.PlatformAdmin), over(auth.Auditor), true},
		{over(auth.Operator), over(auth.PlatformAdmin), false},
		{over(auth.Operator), over(auth.Auditor), true},
		{over(auth.Operator), at(auth.TenantOwner), true},
		{over(auth.Auditor), over(auth.Viewer), true},
		{over(auth.Viewer), at(auth.Viewer), true},
		{over(auth.Viewer), at(auth.TenantMember), false},
		{over(auth.Viewer), at(auth.Auditor), false},
		{at(auth.TenantOwner), at(auth.TenantOwner), true},
		{at(auth.TenantOwner), at(auth.TenantMember), true},
		{at(auth.TenantOwner), at(auth.Auditor), true},
		{at(auth.TenantOwner), over(auth.Viewer), false},
		{at(auth.TenantMember), at(auth.TenantOwner), false},
		{at(auth.TenantMember), at(auth.Viewer), true},
		{at(auth.TenantMember), at(auth.Auditor), false},
		{auth.Caller{}, at(auth.Viewer), false},
		{auth.Caller{Host: "h"}, at(auth.Viewer), false},
	} {
		if got := tt.a.Covers(tt.b); got != tt.want {
			t.Errorf("%+v covers %+v: %t", tt.a, tt.b, got)
		}
	}
}

func TestOtherTenant(t *testing.T) {
	c := auth.Caller{Name: "ann", Tenants: map[string]auth.Role{"a": auth.TenantOwner, "b": auth.Viewer}}
	for _, tt := range []struct {
		p      auth.Permission
		tenant string
		can    bool
		sees   bool
	}{
		{auth.VMCreate, "a", true, true},
		{auth.VMCreate, "b", false, true},
		{auth.VMRead, "b", true, true},
		{auth.VMRead, "c", false, false},
		{auth.HostRead, "", false, false},
		{auth.FlavorRead, "", true, false},
	} {
		if got := c.Can(tt.p, tt.tenant); got != tt.can {
			t.Errorf("can %s in %q: %t", tt.p, tt.tenant, got)
		}
		if got := c.Sees(tt.tenant); got != tt.sees {
			t.Errorf("sees %q: %t", tt.tenant, got)
		}
	}
	if !c.CanSome(auth.VMCreate) || c.CanSome(auth.HostRead) || c.CanSome(auth.UserRead) {
		t.Error("CanSome is wrong about what is held in some tenant")
	}
	if c.Operates() {
		t.Error("an owner operates the platform")
	}
}

func TestUnknownRolesGiveNothing(t *testing.T) {
	c := auth.Caller{Name: "u", Platform: []auth.Role{"root", auth.TenantOwner, auth.TenantMember}, Tenants: map[string]auth.Role{"t": auth.PlatformAdmin, "s": "god"}}
	for _, p := range auth.Permissions() {
		for _, tenant := range []string{"", "t", "s"} {
			own := strings.HasPrefix(string(p), "self.") || strings.HasPrefix(string(p), "token.") || p == auth.Public
			if c.Can(p, tenant) && !own {
				t.Errorf("%s in %q", p, tenant)
			}
		}
	}
	if c.Sees("t") || c.Sees("s") || c.Operates() {
		t.Error("sees a tenant by a role that is none")
	}
}

func TestMatch(t *testing.T) {
	for _, tt := range []struct {
		pattern, p auth.Permission
		want       bool
	}{
		{"vm.read", auth.VMRead, true},
		{"vm.*", auth.VMRead, true},
		{"*", auth.VMRead, true},
		{"vm.*", auth.NetworkRead, false},
		{"v*", auth.VMRead, false},
		{"vm.r*", auth.VMRead, false},
		{"", auth.VMRead, false},
		{"vm.", auth.VMRead, false},
		{"*.read", auth.VMRead, false},
		{"vm", auth.VMRead, false},
	} {
		if got := tt.pattern.Match(tt.p); got != tt.want {
			t.Errorf("%q matches %s: %t", tt.pattern, tt.p, got)
		}
	}
}

func TestWritesAreAudited(t *testing.T) {
	var reads []string
	for _, p := range auth.Permissions() {
		if !p.Known() {
			t.Errorf("%s is not known", p)
		}
		if !p.Write() {
			reads = append(reads, string(p))
		}
	}
	want := "tenant.read network.read securitygroup.read flavor.read image.read vm.read vm.explain host.read fabric.read event.read operation.read " +
		"audit.read user.read token.read self.read status.read metrics.read agent.desired agent.status agent.beat public"
	if got := strings.Join(reads, " "); got != want {
		t.Errorf("not audited: %s", got)
	}
	if auth.Permission("vm.fly").Known() {
		t.Error("an unknown permission is known")
	}
}

// TestScopesOnlyTakeAway: a cut down token can nothing that its user can't, over random users.
func TestScopesOnlyTakeAway(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		full := anyCaller(t)
		cut := full
		cut.Scopes = rapid.SliceOf(rapid.SampledFrom([]auth.Permission{"*", "vm.*", "vm.read", "tenant.update", "token.create", "user.*", "x.*"})).Draw(t, "scopes")
		cut.OnlyTenant = rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "only")
		for _, p := range auth.Permissions() {
			for _, tenant := range []string{"", "a", "b", "c"} {
				if cut.Can(p, tenant) && !full.Can(p, tenant) {
					t.Fatalf("%s in %q is won by cutting down", p, tenant)
				}
				if cut.Sees(tenant) && !full.Sees(tenant) {
					t.Fatalf("sight of %q is won by cutting down", tenant)
				}
				if cut.OnlyTenant != "" && tenant != "" && tenant != cut.OnlyTenant && cut.Can(p, tenant) && p != auth.Public {
					t.Fatalf("%s reaches from %s into %s", p, cut.OnlyTenant, tenant)
				}
			}
			if cut.CanSome(p) && !full.CanSome(p) {
				t.Fatalf("%s somewhere is won by cutting down", p)
			}
		}
		if !full.Covers(cut) && full.Name != "" {
			t.Fatal("a caller does not cover itself cut down")
		}
	})
}

func anyCaller(t *rapid.T) auth.Caller {
	c := auth.Caller{Name: "u", Tenants: map[string]auth.Role{}}
	c.Platform = rapid.SliceOfN(rapid.SampledFrom(auth.PlatformRoles()), 0, 2).Draw(t, "platform")
	for _, tenant := range []string{"a", "b"} {
		if rapid.Bool().Draw(t, "in "+tenant) {
			c.Tenants[tenant] = rapid.SampledFrom(auth.TenantRoles()).Draw(t, "role")
		}
	}
	return c
}

// TestMintedTokensNeverWiden: whatever a token asks for, what it gets can nothing more and lives no longer.
func TestMintedTokensNeverWiden(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		user := anyCaller(t)
		by := user
		by.Expires = now.Add(time.Hour)
		by.Scopes = rapid.SliceOf(rapid.SampledFrom([]auth.Permission{"*", "vm.*", "vm.read", "token.create", "token.*"})).Draw(t, "own scopes")
		by.OnlyTenant = rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "own tenant")
		r := api.TokenRequest{Name: "x", TTL: rapid.SampledFrom([]string{"", "30m", "2h", "9000h"}).Draw(t, "ttl")}
		r.Scopes = rapid.SliceOf(rapid.SampledFrom([]string{"*", "vm.*", "vm.read", "vm.create", "host.*", "nonsense"})).Draw(t, "scopes")
		r.InTenant = rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "tenant")
		token, err := auth.CheckToken(by, user, r, now)
		if err != nil {
			return
		}
		got := user
		got.OnlyTenant = token.InTenant
		for _, s := range token.Scopes {
			got.Scopes = append(got.Scopes, auth.Permission(s))
		}
		if token.Expires.After(by.Expires) {
			t.Fatalf("lives until %s, its maker until %s", token.Expires, by.Expires)
		}
		for _, p := range auth.Permissions() {
			for _, tenant := range []string{"", "a", "b", "c"} {
				if got.Can(p, tenant) && !by.Can(p, tenant) {
					t.Fatalf("%s in %q is won by making a token (%+v from %+v)", p, tenant, r, by)
				}
			}
		}
	})
}

func TestCheckToken(t *testing.T) {
	admin := auth.Caller{Name: "root", Platform: []auth.Role{auth.PlatformAdmin}, Session: true, Expires: now.Add(time.Hour)}
	oper := auth.Caller{Name: "op", Platform: []auth.Role{auth.Operator}}
	ann := auth.Caller{Name: "ann", Tenants: map[string]auth.Role{"a": auth.TenantMember}}
	annToken := ann
	annToken.Expires = now.Add(2 * time.Hour)
	adminCut := admin
	adminCut.Scopes = []auth.Permission{"token.create"}
	for _, tt := range []struct {
		name   string
		by, as auth.Caller
		r      api.TokenRequest
		kind   fault.Kind // "" = granted
		ttl    time.Duration
	}{
		{"own, default life", ann, ann, api.TokenRequest{Name: "ci"}, "", auth.TokenTTL},
		{"own, by a token: not longer", annToken, annToken, api.TokenRequest{Name: "ci"}, "", 2 * time.Hour},
		{"longer than its maker", annToken, annToken, api.TokenRequest{Name: "ci", TTL: "3h"}, fault.Invalid, 0},
		{"a session may", admin, admin, api.TokenRequest{Name: "ci", TTL: "8760h"}, "", auth.MaxTokenTTL},
		{"over the bound", admin, admin, api.TokenRequest{Name: "ci", TTL: "8761h"}, fault.Invalid, 0},
		{"under the bound", admin, admin, api.TokenRequest{Name: "ci", TTL: "1s"}, fault.Invalid, 0},
		{"no duration", admin, admin, api.TokenRequest{Name: "ci", TTL: "1 year"}, fault.Invalid, 0},
		{"for another, by an admin", admin, ann, api.TokenRequest{Name: "ci"}, "", auth.TokenTTL},
		{"for another, by an operator", oper, ann, api.TokenRequest{Name: "ci"}, fault.Forbidden, 0},
		{"for the admin, by an operator", oper, admin, api.TokenRequest{Name: "ci"}, fault.Forbidden, 0},
		{"for another, by a cut down token", adminCut, ann, api.TokenRequest{Name: "ci"}, fault.Forbidden, 0},
		{"tenant of others", ann, ann, api.TokenRequest{Name: "ci", InTenant: "b"}, fault.Invalid, 0},
		{"unknown scope", ann, ann, api.TokenRequest{Name: "ci", Scopes: []string{"vm.fly"}}, fault.Invalid, 0},
		{"agent scope", admin, admin, api.TokenRequest{Name: "ci", Scopes: []string{"agent.*"}}, fault.Invalid, 0},
		{"bad name", ann, ann, api.TokenRequest{Name: "C I"}, fault.Invalid, 0},
	} {
		token, err := auth.CheckToken(tt.by, tt.as, tt.r, now)
		if tt.kind != "" {
			if !fault.Is(err, tt.kind) {
				t.Errorf("%s: err = %v, want %s", tt.name, err, tt.kind)
			}
			continue
		}
		if err != nil || !token.Expires.Equal(now.Add(tt.ttl)) || token.User != tt.as.Name {
			t.Errorf("%s: %+v, %v", tt.name, token, err)
		}
	}
}

func TestCheckUser(t *testing.T) {
	admin := auth.Caller{Name: "root", Platform: []auth.Role{auth.PlatformAdmin}}
	oper := auth.Caller{Name: "op", Platform: []auth.Role{auth.Operator}}
	cut := admin
	cut.Scopes = []auth.Permission{"user.*"}
	user := func(roles ...string) *api.User {
		u := &api.User{Spec: api.UserSpec{Roles: roles}}
		u.Name = "ann"
		return u
	}
	with := func(password string) *api.User {
		u := user()
		u.Spec.Password = password
		return u
	}
	for _, tt := range []struct {
		name      string
		by, has   auth.Caller
		was, want *api.User
		kind      fault.Kind
	}{
		{"admin makes an admin", admin, auth.Caller{}, nil, user("platform-admin"), ""},
		{"operator makes an admin", oper, auth.Caller{}, nil, user("platform-admin"), fault.Forbidden},
		{"operator promotes to admin", oper, auth.Caller{}, user(), user("platform-admin"), fault.Forbidden},
		{"operator resets an admin's password", oper, admin, user("platform-admin"), user("platform-admin"), fault.Forbidden},
		{"operator deletes an admin", oper, admin, user("platform-admin"), nil, fault.Forbidden},
		{"cut down admin makes a user", cut, auth.Caller{}, nil, user(), fault.Forbidden},
		{"cut down admin takes over an admin", cut, admin, user("platform-admin"), user("platform-admin"), fault.Forbidden},
		{"tenant role over the platform", admin, auth.Caller{}, nil, user("tenant-owner"), fault.Invalid},
		{"unknown role", admin, auth.Caller{}, nil, user("god"), fault.Invalid},
		{"short password", admin, auth.Caller{}, nil, with("short"), fault.Invalid},
		{"own name as password", admin, auth.Caller{}, nil, with("ANN-ann-ann-ann"), fault.Invalid},
		{"one character", admin, auth.Caller{}, nil, with("xxxxxxxxxxxxxxxx"), fault.Invalid},
		{"very long password", admin, auth.Caller{}, nil, with(strings.Repeat("abc", 100)), fault.Invalid},
		{"good password", admin, auth.Caller{}, nil, with("correct horse battery"), ""},
		{"admin deletes", admin, auth.Caller{}, user(), nil, ""},
	} {
		err := auth.CheckUser(tt.by, tt.has, tt.was, tt.want)
		if (tt.kind == "" && err != nil) || (tt.kind != "" && !fault.Is(err, tt.kind)) {
			t.Errorf("%s: err = %v, want %q", tt.name, err, tt.kind)
		}
		if err != nil && tt.want != nil && tt.want.Spec.Password != "" {
			if text, _ := json.Marshal(err); strings.Contains(err.Error()+string(text), tt.want.Spec.Password) {
				t.Errorf("%s: the error holds the password", tt.name)
			}
		}
	}
}

func TestCheckTenant(t *testing.T) {
	oper := auth.Caller{Name: "op", Platform: []auth.Role{auth.Operator}}
	at := func(r auth.Role) auth.Caller { return auth.Caller{Name: "me", Tenants: map[string]auth.Role{"t": r}} }
	scoped := at(auth.TenantOwner)
	scoped.Scopes = []auth.Permission{"tenant.update"}
	only := at(auth.TenantOwner)
	only.OnlyTenant = "t"
	tenant := func(vfs int, pairs ...string) *api.Tenant {
		x := &api.Tenant{}
		x.Name = "t"
		x.Spec.Quota.VFs = vfs
		for i := 0; i < len(pairs); i += 2 {
			x.Spec.Members = append(x.Spec.Members, api.Member{User: pairs[i], Role: pairs[i+1]})
		}
		return x
	}
	for _, tt := range []struct {
		name      string
		by        auth.Caller
		was, want *api.Tenant
		ok        bool
	}{
		{"operator creates with an owner", oper, nil, tenant(8, "me", "tenant-owner"), true},
		{"operator raises quota", oper, tenant(8), tenant(16), true},
		{"owner raises quota", at(auth.TenantOwner), tenant(8), tenant(16), false},
		{"owner adds an owner", at(auth.TenantOwner), tenant(8, "me", "tenant-owner"), tenant(8, "me", "tenant-owner", "bob", "tenant-owner"), true},
		{"owner in a one-tenant token adds a member", only, tenant(8), tenant(8, "bob", "member"), true},
		{"member makes himself owner", at(auth.TenantMember), tenant(8, "me", "member"), tenant(8, "me", "tenant-owner"), false},
		{"member removes the owner", at(auth.TenantMember), tenant(8, "o", "tenant-owner"), tenant(8), false},
		{"token with one scope adds a member", scoped, tenant(8), tenant(8, "bob", "member"), false},
		{"token with one scope removes a member", scoped, tenant(8, "bob", "member"), tenant(8), false},
		{"nothing changes", scoped, tenant(8, "bob", "member"), tenant(8, "bob", "member"), true},
	} {
		if err := auth.CheckTenant(tt.by, tt.was, tt.want); (err == nil) != tt.ok || (err != nil && !fault.Is(err, fault.Forbidden)) {
			t.Errorf("%s: err = %v", tt.name, err)
		}
	}
	labelled := tenant(8)
	labelled.Labels = map[string]string{"a": "b"}
	if auth.CheckTenant(at(auth.TenantOwner), tenant(8), labelled) == nil {
		t.Error("an owner may change labels")
	}
}

func TestTokenRoundTrip(t *testing.T) {
	for range 100 {
		var random [38]byte
		if _, err := rand.Read(random[:]); err != nil {
			t.Fatal(err)
		}
		token := auth.NewToken(random)
		got, err := auth.ParseToken(token.Text())
		if err != nil || got != token {
			t.Fatalf("%v", err)
		}
		hash := token.Hash()
		if !got.Is(hash[:]) || got.Is(nil) || got.Is(hash[:31]) {
			t.Fatal("the hash does not decide")
		}
		if s := fmt.Sprint(token); strings.Contains(token.Text(), strings.TrimSuffix(s, "***")+"***") || len(s) > 30 {
			t.Fatalf("printed as %s", s)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add("verbena_pat_")
	f.Add(auth.NewToken([38]byte{1, 2, 3}).Text())
	f.Add(strings.ToUpper(auth.NewToken([38]byte{1}).Text()))
	f.Fuzz(func(t *testing.T, text string) {
		token, err := auth.ParseToken(text)
		if err == nil && token.Text() != text {
			t.Fatalf("two texts for one token: %q", text)
		}
		if err != nil && !fault.Is(err, fault.Unauthenticated) {
			t.Fatalf("unclassified: %v", err)
		}
	})
}

func FuzzTTL(f *testing.F) {
	f.Add("1h")
	f.Add("-9223372036854775808ns")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := auth.TTL(text, time.Hour, 2*time.Hour)
		if err == nil && (d < time.Minute || d > 2*time.Hour) {
			t.Fatalf("%q gives %s", text, d)
		}
	})
}

func BenchmarkCan(b *testing.B) {
	c := auth.Caller{Name: "ann", Tenants: map[string]auth.Role{"a": auth.TenantMember}, Scopes: []auth.Permission{"vm.*", "network.*"}}
	for b.Loop() {
		if !c.Can(auth.VMRead, "a") {
			b.Fatal("no")
		}
	}
}

func TestPermissionsAreUnique(t *testing.T) {
	all := slices.Sorted(slices.Values(auth.Permissions()))
	if len(slices.Compact(slices.Clone(all))) != len(all) {
		t.Error("a permission stands twice")
	}
}
