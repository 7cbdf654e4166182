package auth

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
)

// Lives of tokens.
const (
	TokenTTL    = 720 * time.Hour  // of a token when none is asked for
	MaxTokenTTL = 8760 * time.Hour // at most
	LoginTTL    = 12 * time.Hour   // of the token that a login gives
	MaxLoginTTL = 168 * time.Hour
	JoinTTL     = time.Hour // of a join token
	MaxJoinTTL  = 24 * time.Hour
	minTTL      = time.Minute
)

// Bounds of a password, in bytes. Length beats rules about characters (NIST SP 800-63B §3.1.1.2).
const (
	minPassword = 12
	maxPassword = 256
)

// TTL reads a duration asked for; empty text means usual. It must lie between a minute and most.
func TTL(text string, usual, most time.Duration) (time.Duration, error) {
	if text == "" {
		return usual, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fault.New(fault.Invalid, "%q is no duration; write it like 90m or 720h", clip(text))
	}
	if d < minTTL || d > most {
		return 0, fault.New(fault.Invalid, "%s is out of bounds; allowed are %s to %s", d, minTTL, most)
	}
	return d, nil
}

// CutDown reports whether the caller's token has less power than its user.
func (c Caller) CutDown() bool { return len(c.Scopes) > 0 || c.OnlyTenant != "" }

// Covers reports whether the caller holds everything that other holds. It is the one rule against
// escalation: nobody grants, takes or impersonates powers that they don't hold themselves.
func (c Caller) Covers(other Caller) bool {
	for _, p := range Permissions() {
		who := holders(p)
		if who&person == 0 || who&nobody != 0 {
			continue
		}
		if other.platform()&who != 0 && (c.OnlyTenant != "" || c.platform()&who == 0 || !c.inScope(p)) {
			return false
		}
		for tenant, role := range other.Tenants {
			if role.inTenant()&who != 0 && !c.Can(p, tenant) {
				return false
			}
		}
	}
	return true
}

// CheckToken decides on a request for a token by caller `by`, that will act as user `as` (with all of
// its user's powers). It returns the token without its secret. A token never has more scopes, another
// tenant or a longer life than the one that asked for it; only a login or the bootstrap token, which
// stand for the person, may ask for a longer life.
func CheckToken(by, as Caller, r api.TokenRequest, now time.Time) (api.Token, error) {
	if by.Name != as.Name && (by.CutDown() || !slices.Contains(by.Platform, PlatformAdmin) || !by.Covers(as)) {
		return api.Token{}, fault.New(fault.Forbidden, "only a platform-admin may make a token for another user")
	}
	var f fault.Faults
	f.Check("name", CheckName(r.Name))
	t := api.Token{User: as.Name, InTenant: r.InTenant}
	t.Kind, t.Name = api.KindToken, r.Name
	t.Scopes = checkScopes(&f, by, r.Scopes)
	if t.InTenant == "" {
		t.InTenant = by.OnlyTenant
	}
	switch {
	case t.InTenant == "":
	case by.OnlyTenant != "" && t.InTenant != by.OnlyTenant:
		f.Add("inTenant", "this token is cut down to tenant %s and can't make one for another", by.OnlyTenant)
	case !as.Sees(t.InTenant):
		f.Add("inTenant", "user %s has no role in tenant %s", as.Name, clip(t.InTenant))
	}
	ttl, err := TTL(r.TTL, TokenTTL, MaxTokenTTL)
	f.Check("ttl", err)
	t.Expires = now.Add(ttl)
	if !by.Session && !by.Expires.IsZero() && t.Expires.After(by.Expires) {
		if r.TTL != "" {
			f.Add("ttl", "a token can't make one that lives longer than itself (until %s); log in with a password for that",
				by.Expires.UTC().Format(time.RFC3339))
		}
		t.Expires = by.Expires
	}
	return t, f.Err(title("token", r.Name))
}

// checkScopes returns the scopes of a new token: those asked for, each within the caller's, or the
// caller's own when none are asked for.
func checkScopes(f *fault.Faults, by Caller, asked []string) []string {
	if len(asked) == 0 {
		var own []string
		for _, s := range by.Scopes {
			own = append(own, string(s))
		}
		return own
	}
	for _, s := range asked {
		pattern := Permission(s)
		known := false
		for _, p := range Permissions() {
			if holders(p)&person == 0 || p == Public || !pattern.Match(p) {
				continue
			}
			known = true
			if !by.inScope(p) {
				f.Add("scopes", "%s is more than this token's own scopes", clip(s))
				break
			}
		}
		if !known {
			f.Add("scopes", "%s matches no permission; examples are vm.read, vm.* and *", clip(s))
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(asked)))
}

// CheckUser decides on creating (was nil), changing or deleting (now nil) a user. has are the powers
// that the user holds before the change. Who changes a user, its password too, could act as it: so
// the caller must hold all that the user has and gets.
func CheckUser(by, has Caller, was, want *api.User) error {
	if was != nil && !by.Covers(has) {
		return fault.New(fault.Forbidden, "user %s holds powers that you do not hold", was.Name)
	}
	if by.CutDown() {
		return fault.New(fault.Forbidden, "a token that is cut down may not manage users; use one of full power")
	}
	if want == nil {
		return nil
	}
	var f fault.Faults
	f.Check("name", CheckName(want.Name))
	var gets Caller
	for _, r := range want.Spec.Roles {
		if Role(r).onPlatform() == 0 {
			f.Add("spec.roles", "%q is no role over the platform; those are platform-admin, operator, auditor and viewer", clip(r))
			continue
		}
		gets.Platform = append(gets.Platform, Role(r))
	}
	if hasControl(want.Spec.DisplayName) || len(want.Spec.DisplayName) > 200 {
		f.Add("spec.displayName", "at most 200 bytes without control characters are allowed")
	}
	if want.Spec.Password != "" {
		f.Check("spec.password", CheckPassword(want.Name, want.Spec.Password))
	}
	if err := f.Err(title("user", want.Name)); err != nil {
		return err
	}
	if !by.Covers(gets) {
		return fault.New(fault.Forbidden, "you can't give user %s roles with powers that you do not hold", want.Name)
	}
	return nil
}

// CheckTenant decides on what a caller may change of a tenant (was nil = it is created). Owners change
// the members only; quota and names are the operators'. Nobody gives or takes a role with powers that
// they do not hold in the tenant.
func CheckTenant(by Caller, was, want *api.Tenant) error {
	old := map[string]Role{}
	if was != nil {
		if !by.Operates() && !sameButMembers(was, want) {
			return fault.New(fault.Forbidden, "tenant %s: owners may change the members only; ask an operator for quota, labels or the display name", was.Name)
		}
		old = members(was)
	}
	gets := members(want)
	changed := map[string]Role{}
	for user, role := range gets {
		if old[user] != role {
			changed[user] = role
		}
	}
	for _, roles := range []map[string]Role{changed, taken(old, gets)} {
		for _, user := range slices.Sorted(maps.Keys(roles)) {
			if !by.Covers(Caller{Tenants: map[string]Role{want.Name: roles[user]}}) {
				return fault.New(fault.Forbidden, "tenant %s: you can't give or take role %s (user %s): it has powers that you do not hold",
					want.Name, roles[user], clip(user))
			}
		}
	}
	return nil
}

// taken returns the roles of old that gets no longer has.
func taken(old, gets map[string]Role) map[string]Role {
	out := map[string]Role{}
	for user, role := range old {
		if gets[user] != role {
			out[user] = role
		}
	}
	return out
}

func members(t *api.Tenant) map[string]Role {
	m := make(map[string]Role, len(t.Spec.Members))
	for _, x := range t.Spec.Members {
		m[x.User] = Role(x.Role)
	}
	return m
}

func sameButMembers(a, b *api.Tenant) bool {
	x, y := a.Spec, b.Spec
	x.Members, y.Members = nil, nil
	if len(x.Quota.VFsPerFabric) == 0 && len(y.Quota.VFsPerFabric) == 0 {
		x.Quota.VFsPerFabric, y.Quota.VFsPerFabric = nil, nil
	}
	return reflect.DeepEqual(x, y) && maps.Equal(a.Labels, b.Labels)
}

// CheckPassword checks a new password's form. The error never holds it.
func CheckPassword(user, password string) error {
	switch {
	case len(password) < minPassword || len(password) > maxPassword:
		return fault.New(fault.Invalid, "a password has %d to %d bytes", minPassword, maxPassword)
	case strings.Contains(strings.ToLower(password), user):
		return fault.New(fault.Invalid, "the password must not hold the user's name")
	case strings.Count(password, password[:1]) == len(password):
		return fault.New(fault.Invalid, "the password must not be one character over and over")
	default:
		return nil
	}
}

// CheckName checks the name of a user or token: as all names, 1 to 63 lower-case letters, digits and
// '-', starting with a letter.
func CheckName(name string) error {
	ok := name != "" && len(name) <= 63 && name[0] >= 'a' && name[0] <= 'z' && name[len(name)-1] != '-'
	for _, c := range []byte(name) {
		ok = ok && (c == '-' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z'))
	}
	if !ok {
		return fault.New(fault.Invalid, "a name has 1 to 63 lower-case letters, digits and '-', starts with a letter and does not end with '-'")
	}
	return nil
}

// title names an object, but for text that is no name: it may be a secret in the wrong field.
func title(kind, name string) string {
	if CheckName(name) != nil {
		return "the " + kind
	}
	return kind + " " + name
}

func hasControl(s string) bool { return strings.ContainsFunc(s, unicode.IsControl) }

// clip makes foreign text fit for a message: short and without control characters.
func clip(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == unicode.ReplacementChar {
			return '?'
		}
		return r
	}, s)
	if r := []rune(s); len(r) > 63 {
		return string(r[:63]) + "…"
	}
	return s
}
