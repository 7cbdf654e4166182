package server

import (
	"net/http"
	"reflect"
	"slices"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/fabric"
	"github.com/verbena-cloud/verbena/internal/flavor"
	"github.com/verbena-cloud/verbena/internal/image"
	networks "github.com/verbena-cloud/verbena/internal/network"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/secgroup"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/tenant"
)

// kindsRoutes are the routes of all kinds that have nothing but the common verbs.
func (s *Server) kindsRoutes() []route {
	return slices.Concat(
		s.tenantKind().routes(),
		s.networkKind().routes(),
		s.securityGroupKind().routes(),
		s.flavorKind().routes(),
		s.imageKind().routes(),
		s.fabricKind().routes(),
		s.hostRoutes(),
		s.eventKind().routes(),
		s.operationKind().routes(),
		s.auditRecordKind().routes(),
	)
}

// plain adapts a rule that has nothing to show for its decision.
func plain[T any](f func(store.Tx, *T, object.Who) error) func(store.Tx, *T, object.Who) (any, error) {
	return func(tx store.Tx, o *T, by object.Who) (any, error) { return nil, f(tx, o, by) }
}

func (s *Server) tenantKind() *kind[api.Tenant, *api.Tenant] {
	return &kind[api.Tenant, *api.Tenant]{
		s: s, name: api.KindTenant, plural: "tenants", noun: "tenant",
		perm:   verbs{auth.TenantRead, auth.TenantCreate, auth.TenantUpdate, auth.TenantDelete},
		create: plain(tenant.Create), update: tenant.Update, remove: tenant.Delete, fill: tenant.Fill,
		may: func(c *call, old, o *api.Tenant) error { return auth.CheckTenant(c.Caller, old, o) },
	}
}

func (s *Server) networkKind() *kind[api.Network, *api.Network] {
	return &kind[api.Network, *api.Network]{
		s: s, name: api.KindNetwork, plural: "networks", noun: "network",
		perm:   verbs{auth.NetworkRead, auth.NetworkCreate, auth.NetworkUpdate, auth.NetworkDelete},
		create: plain(networks.Create), update: networks.Update, remove: networks.Delete, fill: networks.Fill,
	}
}

func (s *Server) securityGroupKind() *kind[api.SecurityGroup, *api.SecurityGroup] {
	return &kind[api.SecurityGroup, *api.SecurityGroup]{
		s: s, name: api.KindSecurityGroup, plural: "securitygroups", noun: "securitygroup",
		perm:   verbs{auth.SecurityGroupRead, auth.SecurityGroupCreate, auth.SecurityGroupUpdate, auth.SecurityGroupDelete},
		create: plain(secgroup.Create), update: secgroup.Update, remove: secgroup.Delete, fill: secgroup.Fill,
	}
}

func (s *Server) flavorKind() *kind[api.Flavor, *api.Flavor] {
	return &kind[api.Flavor, *api.Flavor]{
		s: s, name: api.KindFlavor, plural: "flavors", noun: "flavor",
		perm:   verbs{auth.FlavorRead, auth.FlavorCreate, auth.FlavorUpdate, auth.FlavorDelete},
		create: plain(flavor.Create), update: flavor.Update, remove: flavor.Delete, fill: flavor.Fill,
	}
}

func (s *Server) imageKind() *kind[api.Image, *api.Image] {
	return &kind[api.Image, *api.Image]{
		s: s, name: api.KindImage, plural: "images", noun: "image",
		perm:   verbs{auth.ImageRead, auth.ImageCreate, auth.ImageUpdate, auth.ImageDelete},
		create: plain(image.Create), update: image.Update, remove: image.Delete, fill: image.Fill,
	}
}

func (s *Server) fabricKind() *kind[api.Fabric, *api.Fabric] {
	return &kind[api.Fabric, *api.Fabric]{
		s: s, name: api.KindFabric, plural: "fabrics", noun: "fabric",
		perm:   verbs{auth.FabricRead, auth.FabricCreate, auth.FabricUpdate, auth.FabricDelete},
		create: plain(fabric.Create), update: fabric.Update, remove: fabric.Delete, fill: fabric.Fill,
	}
}

func (s *Server) eventKind() *kind[api.Event, *api.Event] {
	return &kind[api.Event, *api.Event]{
		s: s, name: api.KindEvent, plural: "events", noun: "event", perm: verbs{read: auth.EventRead},
	}
}

func (s *Server) operationKind() *kind[api.Operation, *api.Operation] {
	return &kind[api.Operation, *api.Operation]{
		s: s, name: api.KindOperation, plural: "operations", noun: "operation", perm: verbs{read: auth.OperationRead},
	}
}

func (s *Server) auditRecordKind() *kind[api.AuditRecord, *api.AuditRecord] {
	return &kind[api.AuditRecord, *api.AuditRecord]{
		s: s, name: api.KindAuditRecord, plural: "auditrecords", noun: "auditrecord", perm: verbs{read: auth.AuditRead},
	}
}

// inTenants reports whether objects of the kind lie under a tenant's path. Events, operations and audit
// records of the platform lie under none; they are read over all tenants.
func (k *kind[T, P]) inTenants() bool {
	switch k.name {
	case api.KindEvent, api.KindOperation, api.KindAuditRecord:
		return true
	default:
		return object.Tenanted(k.name)
	}
}

// routes are the kind's common verbs.
func (k *kind[T, P]) routes() []route {
	many, one := "/v1/"+k.plural, "/v1/"+k.plural+"/{name}"
	listed, made, held := scopePlatform, scopePlatform, scopePlatform // where list, create and the rest look
	var rs []route
	switch {
	case k.self():
		one, listed, held = "/v1/tenants/{tenant}", scopeAcross, scopeTenant
	case k.inTenants():
		rs = append(rs, handle(k.route(route{id: "list-all", method: http.MethodGet, path: many, perm: k.perm.read, scope: scopeAcross,
			summary: "List or watch those of all tenants that one may see", describe: k.describeList}), k.list))
		many = "/v1/tenants/{tenant}/" + k.plural
		one = many + "/{name}"
		listed, made, held = scopeTenant, scopeTenant, scopeTenant
	}
	rs = append(rs,
		handle(k.route(route{id: "list", method: http.MethodGet, path: many, perm: k.perm.read, scope: listed,
			summary: "List or watch", describe: k.describeList}), k.list),
		handle(k.route(route{id: "get", method: http.MethodGet, path: one, perm: k.perm.read, scope: held,
			summary: "Read one", describe: k.describeObject(http.StatusOK)}), k.get))
	if k.create == nil {
		return rs
	}
	return append(rs,
		handle(k.route(route{id: "create", method: http.MethodPost, path: many, perm: k.perm.create, scope: made,
			summary: "Create", describe: k.describeWrite(http.StatusCreated)}), k.post),
		handle(k.route(route{id: "replace", method: http.MethodPut, path: one, perm: k.perm.update, scope: held,
			summary: "Replace what is there", describe: k.describeWrite(http.StatusOK)}), k.put),
		handle(k.route(route{id: "delete", method: http.MethodDelete, path: one, perm: k.perm.remove, scope: held,
			summary: "Delete", describe: k.describeDelete}), k.drop))
}

// route fills in what all routes of the kind share.
func (k *kind[T, P]) route(r route) route {
	r.id = k.noun + "-" + r.id
	r.tag = string(k.name)
	return r
}

// schema is the kind's own.
func (k *kind[T, P]) schema(schemas huma.Registry) *huma.Schema {
	return schemas.Schema(reflect.TypeFor[T](), true, string(k.name))
}

func jsonResponse(status int, schema *huma.Schema) *huma.Response {
	return &huma.Response{
		Description: http.StatusText(status),
		Content:     map[string]*huma.MediaType{"application/json": {Schema: schema}},
	}
}

// respond puts a response into the operation's description.
func respond(op *huma.Operation, status int, r *huma.Response) {
	op.Responses[strconv.Itoa(status)] = r
}

func (k *kind[T, P]) describeList(op *huma.Operation, schemas huma.Registry) {
	r := jsonResponse(http.StatusOK, schemas.Schema(reflect.TypeFor[api.List[T]](), true, string(k.name)+"List"))
	r.Content["text/event-stream"] = &huma.MediaType{Schema: &huma.Schema{
		Type:        huma.TypeString,
		Description: "With watch=true: events put and delete carry an object, bookmark the revision up to which all was sent, gone a Problem. The id is on the last event of a commit.",
	}}
	respond(op, http.StatusOK, r)
}

func (k *kind[T, P]) describeObject(status int) func(*huma.Operation, huma.Registry) {
	return func(op *huma.Operation, schemas huma.Registry) {
		op.DefaultStatus = status
		r := jsonResponse(status, k.schema(schemas))
		r.Headers = map[string]*huma.Param{"ETag": {Description: "The revision, for If-Match", Schema: &huma.Schema{Type: huma.TypeString}}}
		respond(op, status, r)
	}
}

func (k *kind[T, P]) describeWrite(status int) func(*huma.Operation, huma.Registry) {
	return func(op *huma.Operation, schemas huma.Registry) {
		k.describeObject(status)(op, schemas)
		op.SkipValidateBody = true // done in accept, together with the rules
		if k.plan != nil {
			k.describePlan(op, schemas)
		}
	}
}

// describePlan adds what a dry run answers.
func (k *kind[T, P]) describePlan(op *huma.Operation, schemas huma.Registry) {
	plan := schemas.Schema(reflect.TypeFor[api.VMPlan](), true, "VMPlan")
	if r, ok := op.Responses["200"]; ok {
		r.Content["application/json"].Schema = &huma.Schema{OneOf: []*huma.Schema{k.schema(schemas), plan}}
		return
	}
	r := jsonResponse(http.StatusOK, plan)
	r.Description = "What would be, with dryRun=true"
	respond(op, http.StatusOK, r)
}

func (k *kind[T, P]) describeDelete(op *huma.Operation, schemas huma.Registry) {
	op.DefaultStatus = http.StatusNoContent
	respond(op, http.StatusNoContent, &huma.Response{Description: "Gone"})
	r := jsonResponse(http.StatusAccepted, k.schema(schemas))
	r.Description = "It goes when what it holds is proven free"
	respond(op, http.StatusAccepted, r)
	r = jsonResponse(http.StatusOK, k.schema(schemas))
	r.Description = "What would be, with dryRun=true"
	respond(op, http.StatusOK, r)
}
