package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/verbena-cloud/verbena/api"
)

// Type is what must be known of a kind to address its objects.
type Type struct {
	Kind   api.Kind
	Plural string // in paths and on the command line
	Short  string // what people type
	// Tenanted kinds live under a tenant's path. Without a tenant they are listed across all that one sees.
	Tenanted bool
	ReadOnly bool
}

// Types returns all kinds, in the order in which their objects can be created: what is referred to
// comes before what refers to it.
func Types() []Type {
	return []Type{
		{Kind: api.KindFabric, Plural: "fabrics", Short: "fabric"},
		{Kind: api.KindFlavor, Plural: "flavors", Short: "flavor"},
		{Kind: api.KindImage, Plural: "images", Short: "image"},
		{Kind: api.KindUser, Plural: "users", Short: "user"},
		{Kind: api.KindTenant, Plural: "tenants", Short: "tenant"},
		{Kind: api.KindHost, Plural: "hosts", Short: "host"},
		{Kind: api.KindNetwork, Plural: "networks", Short: "network", Tenanted: true},
		{Kind: api.KindSecurityGroup, Plural: "securitygroups", Short: "secgroup", Tenanted: true},
		{Kind: api.KindVM, Plural: "vms", Short: "vm", Tenanted: true},
		{Kind: api.KindEvent, Plural: "events", Short: "event", Tenanted: true, ReadOnly: true},
		{Kind: api.KindOperation, Plural: "operations", Short: "operation", Tenanted: true, ReadOnly: true},
		{Kind: api.KindAuditRecord, Plural: "auditrecords", Short: "audit", Tenanted: true, ReadOnly: true},
	}
}

// TypeOf finds a kind by any of its names, in any case.
func TypeOf(name string) (Type, bool) {
	for _, t := range Types() {
		if strings.EqualFold(name, string(t.Kind)) || strings.EqualFold(name, t.Plural) || strings.EqualFold(name, t.Short) {
			return t, true
		}
	}
	return Type{}, false
}

// Objects are the objects of one kind. T is the kind's type in package api, or json.RawMessage to take
// them as they are.
type Objects[T any] struct {
	c *Client
	t Type
}

// Of returns the objects of a kind. T must fit it.
func Of[T any](c *Client, t Type) Objects[T] { return Objects[T]{c, t} }

func known[T any](c *Client, k api.Kind) Objects[T] {
	t, _ := TypeOf(string(k))
	return Objects[T]{c, t}
}

// Raw returns the objects of a kind as the server writes them.
func (c *Client) Raw(t Type) Objects[json.RawMessage] { return Objects[json.RawMessage]{c, t} }

// Tenants are the departments that one may see.
func (c *Client) Tenants() Objects[api.Tenant] { return known[api.Tenant](c, api.KindTenant) }

// Networks are the tenants' networks.
func (c *Client) Networks() Objects[api.Network] { return known[api.Network](c, api.KindNetwork) }

// SecurityGroups are the tenants' filters.
func (c *Client) SecurityGroups() Objects[api.SecurityGroup] {
	return known[api.SecurityGroup](c, api.KindSecurityGroup)
}

// Flavors are the sizes of VMs.
func (c *Client) Flavors() Objects[api.Flavor] { return known[api.Flavor](c, api.KindFlavor) }

// Images are the disk images.
func (c *Client) Images() Objects[api.Image] { return known[api.Image](c, api.KindImage) }

// VMs are the tenants' virtual machines.
func (c *Client) VMs() Objects[api.VM] { return known[api.VM](c, api.KindVM) }

// Hosts are the hypervisors.
func (c *Client) Hosts() Objects[api.Host] { return known[api.Host](c, api.KindHost) }

// Fabrics are the lossless networks.
func (c *Client) Fabrics() Objects[api.Fabric] { return known[api.Fabric](c, api.KindFabric) }

// Users are the local people.
func (c *Client) Users() Objects[api.User] { return known[api.User](c, api.KindUser) }

// Events are what happened lately.
func (c *Client) Events() Objects[api.Event] { return known[api.Event](c, api.KindEvent) }

// Operations are long work.
func (c *Client) Operations() Objects[api.Operation] {
	return known[api.Operation](c, api.KindOperation)
}

// Selection narrows a list or a watch.
type Selection struct {
	Labels string // a=b,c!=d,e,!f
	// Limit ends a list after so many objects; 0 = all.
	Limit int
	// From resumes a watch after this revision; 0 begins with all objects as they are.
	From int64
}

func (o Objects[T]) path(tenant, name string) string {
	p := "/v1/" + o.t.Plural
	if o.t.Tenanted && tenant != "" {
		p = "/v1/tenants/" + url.PathEscape(tenant) + "/" + o.t.Plural
	}
	if name != "" {
		p += "/" + escape(name)
	}
	return p
}

// escape keeps a name one element of the path, whatever it holds.
func escape(name string) string {
	e := url.PathEscape(name)
	if e == "." || e == ".." {
		return strings.ReplaceAll(e, ".", "%2E")
	}
	return e
}

// needTenant refuses what only exists inside a tenant.
func (o Objects[T]) needTenant(tenant string) error {
	if o.t.Tenanted && tenant == "" {
		return fmt.Errorf("a %s belongs to a tenant: say which", o.t.Kind)
	}
	return nil
}

// Get reads one object. Tenant is ignored for kinds that belong to none.
func (o Objects[T]) Get(ctx context.Context, tenant, name string) (*T, error) {
	if err := o.needTenant(tenant); err != nil {
		return nil, err
	}
	out := new(T)
	if err := o.c.get(ctx, o.path(tenant, name), nil, out); err != nil {
		return nil, err
	}
	return out, nil
}

// List reads all objects of a tenant or, with an empty tenant, all that one may see.
func (o Objects[T]) List(ctx context.Context, tenant string, s Selection) (api.List[T], error) {
	all := api.List[T]{Items: []T{}}
	query := url.Values{}
	if s.Labels != "" {
		query.Set("labels", s.Labels)
	}
	for {
		if s.Limit > 0 {
			query.Set("limit", strconv.Itoa(s.Limit-len(all.Items)))
		}
		var page api.List[T]
		if err := o.c.get(ctx, o.path(tenant, ""), query, &page); err != nil {
			return all, err
		}
		all.Items = append(all.Items, page.Items...)
		if all.Revision == 0 {
			all.Revision = page.Revision
		}
		if page.Continue == "" || (s.Limit > 0 && len(all.Items) >= s.Limit) {
			all.Continue = page.Continue
			return all, nil
		}
		query.Set("continue", page.Continue)
	}
}

// Write qualifies a write.
type Write struct {
	DryRun bool
	// Revision, if not 0, is the one that the object must still have.
	Revision int64
}

func (w Write) request(method, path string, body any) request {
	r := request{method: method, path: path, body: body, query: url.Values{}, header: http.Header{}}
	if w.DryRun {
		r.query.Set("dryRun", "true")
	}
	if w.Revision != 0 {
		r.header.Set("If-Match", `"`+strconv.FormatInt(w.Revision, 10)+`"`)
	}
	return r
}

// Create makes an object. It may be sent again after a broken connection: the server does it once.
func (o Objects[T]) Create(ctx context.Context, tenant string, in *T, w Write) (*T, error) {
	out := new(T)
	return out, o.create(ctx, tenant, in, w, out)
}

func (o Objects[T]) create(ctx context.Context, tenant string, in *T, w Write, out any) error {
	if err := o.needTenant(tenant); err != nil {
		return err
	}
	r := w.request(http.MethodPost, o.path(tenant, ""), in)
	r.header.Set("Idempotency-Key", newKey())
	r.repeat = true
	return o.c.call(ctx, r, out)
}

// Replace replaces the object's labels and spec.
func (o Objects[T]) Replace(ctx context.Context, tenant, name string, in *T, w Write) (*T, error) {
	if err := o.needTenant(tenant); err != nil {
		return nil, err
	}
	r := w.request(http.MethodPut, o.path(tenant, name), in)
	r.repeat = w.Revision == 0 // with one, the second try would meet the change of the first
	out := new(T)
	return out, o.c.call(ctx, r, out)
}

// Delete asks for the object's end. It returns the object if it stays until what it holds is proven free,
// nil if it is gone.
func (o Objects[T]) Delete(ctx context.Context, tenant, name string, w Write) (*T, error) {
	if err := o.needTenant(tenant); err != nil {
		return nil, err
	}
	var raw json.RawMessage
	if err := o.c.call(ctx, w.request(http.MethodDelete, o.path(tenant, name), nil), &raw); err != nil || len(raw) == 0 {
		return nil, err
	}
	out := new(T)
	if err := json.Unmarshal(raw, out); err != nil {
		return nil, fmt.Errorf("read the deleted %s: %w", o.t.Kind, err)
	}
	return out, nil
}
