package auth

import "time"

// Caller is who sent a request, as the server has proven it. The zero Caller is somebody without
// credentials.
type Caller struct {
	Name     string          // of the user; empty for agents and for callers without credentials
	Platform []Role          // roles over the whole platform
	Tenants  map[string]Role // roles by tenant; shared with other requests, never changed
	// Scopes are the patterns that a token is cut down to; empty = not cut down. They only take away.
	Scopes     []Permission
	OnlyTenant string    // the one tenant that a token is cut down to; empty = not cut down
	Host       string    // of an agent, from its certificate; an agent has no other rights
	Token      string    // id of the token in use, for the audit; empty with other credentials
	Expires    time.Time // of the token or certificate in use; zero = never
	// Session is set when the credentials stand for the person (a login, the bootstrap token): only
	// those may make tokens that live longer than themselves.
	Session bool
}

// Anonymous reports whether the caller showed no credentials.
func (c Caller) Anonymous() bool { return c.Name == "" && c.Host == "" }

// Who is the caller's name in the audit: user:NAME, token:ID, host:NAME or anonymous.
func (c Caller) Who() string {
	switch {
	case c.Host != "":
		return "host:" + c.Host
	case c.Token != "":
		return "token:" + c.Token
	case c.Name != "":
		return "user:" + c.Name
	default:
		return "anonymous"
	}
}

// Can reports whether the caller holds p in the tenant; tenant is empty for what belongs to no tenant.
// What all tenants share (flavors, images, fabrics) may be read with a role in any tenant.
func (c Caller) Can(p Permission, tenant string) bool {
	who := holders(p)
	switch {
	case who&nobody != 0:
		return true
	case c.Host != "":
		return who&agent != 0
	case c.Name == "" || !c.inScope(p):
		return false
	case c.OnlyTenant != "" && tenant != c.OnlyTenant && !(tenant == "" && p.Shared()):
		return false
	}
	if c.platform()&who != 0 {
		return true
	}
	if tenant != "" {
		return c.Tenants[tenant].inTenant()&who != 0
	}
	if p == SelfRead || p == SelfUpdate || p == TokenRead || p == TokenDelete || p == TokenCreate {
		return true // about oneself: a person without any role, too
	}
	return p.Shared() && c.somewhere(who)
}

// CanSome reports whether the caller holds p in at least one tenant or everywhere: whether a list over
// all tenants makes sense. What is in it is decided object by object with Can.
func (c Caller) CanSome(p Permission) bool {
	if c.OnlyTenant != "" {
		return c.Can(p, c.OnlyTenant)
	}
	if c.Can(p, "") {
		return true
	}
	return c.Host == "" && c.Name != "" && c.inScope(p) && c.somewhere(holders(p))
}

// Sees reports whether the caller may know that the tenant exists. Who may not gets 404 for
// everything in it.
func (c Caller) Sees(tenant string) bool {
	switch {
	case c.Host != "" || c.Name == "":
		return false
	case c.OnlyTenant != "" && tenant != c.OnlyTenant:
		return false
	case c.platform()&readers != 0:
		return true
	default:
		return c.Tenants[tenant].inTenant() != 0
	}
}

// Operates reports whether the caller may change what is the platform's, such as gateways and quota.
func (c Caller) Operates() bool {
	return c.Host == "" && c.Name != "" && c.OnlyTenant == "" && c.platform()&(admin|operator) != 0
}

// platform is the set of the caller's roles over the platform.
func (c Caller) platform() holder {
	var h holder
	for _, r := range c.Platform {
		h |= r.onPlatform()
	}
	return h
}

// somewhere reports whether a role in some tenant is among who.
func (c Caller) somewhere(who holder) bool {
	for _, r := range c.Tenants {
		if r.inTenant()&who != 0 {
			return true
		}
	}
	return false
}

// inScope reports whether the token's scopes leave p. Every token may ask whose it is and what
// it may do.
func (c Caller) inScope(p Permission) bool {
	if len(c.Scopes) == 0 || p == SelfRead {
		return true
	}
	for _, s := range c.Scopes {
		if s.Match(p) {
			return true
		}
	}
	return false
}
