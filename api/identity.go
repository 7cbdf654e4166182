package api

import "time"

// User is a local person.
type User struct {
	Meta
	Spec UserSpec `json:"spec" doc:"What is wanted: people write it"`
}

// UserSpec holds the roles over the whole platform; roles in a tenant are in the Tenant's members.
type UserSpec struct {
	DisplayName string   `json:"displayName,omitempty" doc:"Name for people"`
	Roles       []string `json:"roles,omitempty" doc:"platform-admin, operator, auditor, viewer"`
	Disabled    bool     `json:"disabled,omitempty" doc:"Neither passwords nor tokens of the user are good"`
	Password    string   `json:"password,omitempty" writeOnly:"true" minLength:"12" maxLength:"256" doc:"Write-only; kept as argon2id"`
}

// Token is a credential for programs and the CLI. The secret is shown once, at creation.
type Token struct {
	Meta
	User     string     `json:"user" doc:"Acts as this user"`
	Scopes   []string   `json:"scopes,omitempty" doc:"Permissions that the token is cut down to, e.g. vm.read, vm.*; empty = all of the user's"`
	InTenant string     `json:"inTenant,omitempty" doc:"Cut down to one tenant"`
	Expires  time.Time  `json:"expires"`
	LastUsed *time.Time `json:"lastUsed,omitempty" doc:"Held in memory and saved rarely"`
}

// TokenRequest asks for a token.
type TokenRequest struct {
	Name     string   `json:"name"`
	User     string   `json:"user,omitempty" doc:"Default: the caller"`
	Scopes   []string `json:"scopes,omitempty"`
	InTenant string   `json:"inTenant,omitempty"`
	TTL      string   `json:"ttl,omitempty" example:"720h" doc:"Default 720h, at most 8760h"`
}

// TokenGrant is the only answer that holds the secret.
type TokenGrant struct {
	Token  Token  `json:"token"`
	Secret string `json:"secret" doc:"verbena_pat_…, shown this once"`
}

// LoginRequest exchanges a password for a token.
type LoginRequest struct {
	User     string `json:"user"`
	Password string `json:"password" writeOnly:"true"`
	TTL      string `json:"ttl,omitempty" doc:"Default 12h"`
}

// PasswordChange replaces the caller's own password. All other sessions of the user end.
type PasswordChange struct {
	Old string `json:"old" writeOnly:"true"`
	New string `json:"new" writeOnly:"true" minLength:"12" maxLength:"256"`
}

// WhoAmI is the caller's own identity.
type WhoAmI struct {
	Name    string            `json:"name"`
	Roles   []string          `json:"roles,omitempty"`
	Tenants map[string]string `json:"tenants,omitempty" doc:"Tenant to role"`
	Scopes  []string          `json:"scopes,omitempty"`
	Tenant  string            `json:"tenant,omitempty" doc:"The only tenant that the token works in; empty = all of its user"`
	Expires *time.Time        `json:"expires,omitempty"`
}

// JoinTokenRequest asks for a one-time token by which one host's agent joins.
type JoinTokenRequest struct {
	Host string `json:"host"`
	TTL  string `json:"ttl,omitempty" doc:"Default 1h, at most 24h"`
}

// JoinTokenGrant holds the one-time secret. It carries the SHA-256 of the CA, so that the agent trusts the right server.
type JoinTokenGrant struct {
	Host    string    `json:"host"`
	Secret  string    `json:"secret" doc:"verbena_join_…, shown this once, works once"`
	Expires time.Time `json:"expires"`
}
