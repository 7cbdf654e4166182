package auth

// Role is a named set of permissions, held over the whole platform or in one tenant.
type Role string

// Roles over the whole platform. They reach into every tenant.
const (
	PlatformAdmin Role = "platform-admin" // everything that people may do
	Operator      Role = "operator"       // hosts, fabrics, flavors, images, tenants and quota; no users
)

// Roles in one tenant.
const (
	TenantOwner  Role = "tenant-owner" // everything in the tenant, its members too, but not its quota
	TenantMember Role = "member"       // VMs, networks, security groups
)

// Roles that exist both over the platform and in a tenant.
const (
	Auditor Role = "auditor" // reads everything, the audit too
	Viewer  Role = "viewer"  // reads objects
)

// PlatformRoles returns the roles that a user may have over the platform.
func PlatformRoles() []Role { return []Role{PlatformAdmin, Operator, Auditor, Viewer} }

// TenantRoles returns the roles that a user may have in a tenant.
func TenantRoles() []Role { return []Role{TenantOwner, TenantMember, Viewer, Auditor} }

// holder is a set of those who hold a permission, one bit each.
type holder uint16

const (
	admin holder = 1 << iota
	operator
	auditor
	viewer
	owner
	member
	tenantViewer
	tenantAuditor
	agent  // a host's agent, known by its certificate
	nobody // a caller without credentials

	readers = admin | operator | auditor | viewer
	insider = owner | member | tenantViewer | tenantAuditor
	person  = readers | insider
)

// holders is the whole policy: who holds a permission. A permission without a row is held by nobody.
func holders(p Permission) holder {
	switch p {
	case TenantRead, NetworkRead, SecurityGroupRead, VMRead, VMExplain, EventRead, OperationRead:
		return readers | insider
	case FlavorRead, ImageRead, FabricRead:
		return readers | insider
	case TenantCreate, TenantDelete:
		return admin | operator
	case TenantUpdate: // owners: members only, see CheckTenant
		return admin | operator | owner
	case NetworkCreate, NetworkUpdate, NetworkDelete,
		SecurityGroupCreate, SecurityGroupUpdate, SecurityGroupDelete,
		VMCreate, VMUpdate, VMDelete, VMRebuild:
		return admin | operator | owner | member
	case StoreReclaim,
		FlavorCreate, FlavorUpdate, FlavorDelete, ImageCreate, ImageUpdate, ImageDelete,
		FabricCreate, FabricUpdate, FabricDelete,
		HostCreate, HostUpdate, HostDelete, HostJoin:
		return admin | operator
	case HostRead, StatusRead, MetricsRead:
		return readers
	case AuditRead:
		return admin | operator | auditor | owner | tenantAuditor
	case UserRead:
		return admin | operator | auditor
	case UserCreate, UserUpdate, UserDelete, StoreBackup:
		return admin
	case TokenCreate, TokenRead, TokenDelete, SelfRead, SelfUpdate: // one's own; every person
		return person
	case AgentDesired, AgentStatus, AgentBeat, AgentRenew:
		return agent
	case Public:
		return person | agent | nobody
	default:
		return 0
	}
}

// onPlatform returns the role's bit when it is held over the platform; 0 for a role that is not one.
func (r Role) onPlatform() holder {
	switch r {
	case PlatformAdmin:
		return admin
	case Operator:
		return operator
	case Auditor:
		return auditor
	case Viewer:
		return viewer
	default:
		return 0
	}
}

// inTenant returns the role's bit when it is held in a tenant; 0 for a role that is not one.
func (r Role) inTenant() holder {
	switch r {
	case TenantOwner:
		return owner
	case TenantMember:
		return member
	case Viewer:
		return tenantViewer
	case Auditor:
		return tenantAuditor
	default:
		return 0
	}
}
