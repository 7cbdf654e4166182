// Package auth decides who may do what: permissions, roles, scopes, the form of tokens, and the rules
// that keep anybody from handing out more than they hold.
//
// It is pure. Who the caller is (tokens, passwords, certificates) is the server's business; what a
// caller may do is decided here, in one table (holders) that a golden file in testdata shows as a matrix.
package auth

import (
	"slices"
	"strings"
)

// Permission is what a route demands, "noun.verb". A route without one does not start.
type Permission string

// The permissions. They are API: scopes of tokens and the audit name them.
const (
	TenantRead   Permission = "tenant.read"
	TenantCreate Permission = "tenant.create"
	TenantUpdate Permission = "tenant.update"
	TenantDelete Permission = "tenant.delete"

	NetworkRead   Permission = "network.read"
	NetworkCreate Permission = "network.create"
	NetworkUpdate Permission = "network.update"
	NetworkDelete Permission = "network.delete"

	SecurityGroupRead   Permission = "securitygroup.read"
	SecurityGroupCreate Permission = "securitygroup.create"
	SecurityGroupUpdate Permission = "securitygroup.update"
	SecurityGroupDelete Permission = "securitygroup.delete"

	FlavorRead   Permission = "flavor.read"
	FlavorCreate Permission = "flavor.create"
	FlavorUpdate Permission = "flavor.update"
	FlavorDelete Permission = "flavor.delete"

	ImageRead   Permission = "image.read"
	ImageCreate Permission = "image.create"
	ImageUpdate Permission = "image.update"
	ImageDelete Permission = "image.delete"

	VMRead    Permission = "vm.read"
	VMCreate  Permission = "vm.create"
	VMUpdate  Permission = "vm.update"
	VMDelete  Permission = "vm.delete"
	VMRebuild Permission = "vm.rebuild"
	VMExplain Permission = "vm.explain"

	HostRead   Permission = "host.read"
	HostCreate Permission = "host.create"
	HostUpdate Permission = "host.update"
	HostDelete Permission = "host.delete"
	HostJoin   Permission = "host.join" // make the one-time token by which a host's agent joins

	FabricRead   Permission = "fabric.read"
	FabricCreate Permission = "fabric.create"
	FabricUpdate Permission = "fabric.update"
	FabricDelete Permission = "fabric.delete"

	EventRead     Permission = "event.read"
	OperationRead Permission = "operation.read"
	AuditRead     Permission = "audit.read"

	UserRead   Permission = "user.read"
	UserCreate Permission = "user.create"
	UserUpdate Permission = "user.update"
	UserDelete Permission = "user.delete"

	TokenCreate Permission = "token.create" // of oneself; for others only platform-admins
	TokenRead   Permission = "token.read"
	TokenDelete Permission = "token.delete"

	SelfRead   Permission = "self.read"   // who am I
	SelfUpdate Permission = "self.update" // change one's own password

	StatusRead  Permission = "status.read"
	MetricsRead Permission = "metrics.read"

	StoreBackup  Permission = "store.backup"  // the whole state, with every tenant's secrets
	StoreReclaim Permission = "store.reclaim" // free the store's space and lift its alarm

	AgentDesired Permission = "agent.desired"
	AgentStatus  Permission = "agent.status"
	AgentBeat    Permission = "agent.beat"
	AgentRenew   Permission = "agent.renew"

	// Public needs no credentials: login, join, health, the API's description.
	Public Permission = "public"
)

// Permissions returns all permissions, in the order of their declaration.
func Permissions() []Permission {
	return []Permission{
		TenantRead, TenantCreate, TenantUpdate, TenantDelete,
		NetworkRead, NetworkCreate, NetworkUpdate, NetworkDelete,
		SecurityGroupRead, SecurityGroupCreate, SecurityGroupUpdate, SecurityGroupDelete,
		FlavorRead, FlavorCreate, FlavorUpdate, FlavorDelete,
		ImageRead, ImageCreate, ImageUpdate, ImageDelete,
		VMRead, VMCreate, VMUpdate, VMDelete, VMRebuild, VMExplain,
		HostRead, HostCreate, HostUpdate, HostDelete, HostJoin,
		FabricRead, FabricCreate, FabricUpdate, FabricDelete,
		EventRead, OperationRead, AuditRead,
		UserRead, UserCreate, UserUpdate, UserDelete,
		TokenCreate, TokenRead, TokenDelete,
		SelfRead, SelfUpdate,
		StatusRead, MetricsRead, StoreBackup, StoreReclaim,
		AgentDesired, AgentStatus, AgentBeat, AgentRenew,
		Public,
	}
}

// Known reports whether p is a permission. The server refuses to start with a route that names another.
func (p Permission) Known() bool { return slices.Contains(Permissions(), p) }

// Write reports whether a route that demands p may change something, and so must be audited.
func (p Permission) Write() bool {
	if p == AgentBeat || p == AgentStatus || p == Public {
		return false
	}
	_, verb, _ := strings.Cut(string(p), ".")
	switch verb {
	case "read", "explain", "desired":
		return false
	default:
		return true
	}
}

// Shared reports whether p reads what all tenants share, so that a token cut down to one tenant keeps it.
func (p Permission) Shared() bool {
	switch p {
	case FlavorRead, ImageRead, FabricRead, SelfRead, SelfUpdate, TokenCreate, TokenRead, TokenDelete:
		return true
	default:
		return false
	}
}

// Match reports whether p, taken as a pattern (a permission, "noun.*" or "*"), covers other.
func (p Permission) Match(other Permission) bool {
	if p == other || p == "*" {
		return true
	}
	noun, ok := strings.CutSuffix(string(p), "*")
	return ok && strings.HasSuffix(noun, ".") && strings.HasPrefix(string(other), noun)
}
