package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
)

// scope says in which tenant a route's permission must be held.
type scope int

const (
	scopePlatform scope = iota // in none: what belongs to the platform, to oneself, or to an agent's host
	scopeTenant                // in the {tenant} of the path; who may not know the tenant gets 404
	scopeAcross                // in at least one; the handler leaves out what the caller may not see
)

// route is one operation of the API: where it is, what it demands, and how it is described. Routes are
// made by handle and listed by the routes methods; a route without a permission does not start.
type route struct {
	id      string // operation id, e.g. "vm-create"
	method  string
	path    string
	perm    auth.Permission
	scope   scope
	tag     string // heading in the documentation, e.g. "VM"
	summary string
	// describe adds to the operation's description what the types of its handler don't say; may be nil.
	describe func(op *huma.Operation, schemas huma.Registry)

	bind func(api huma.API, op huma.Operation)
}

// handle completes a route by its handler. The handler sees a decoded request and returns an answer or a
// fault; callFrom(ctx) tells it who asks.
func handle[I, O any](r route, f func(context.Context, *I) (*O, error)) route {
	r.bind = func(api huma.API, op huma.Operation) {
		huma.Register(api, op, func(ctx context.Context, in *I) (*O, error) {
			out, err := f(ctx, in)
			if err != nil {
				return nil, problemOf(callFrom(ctx), err)
			}
			return out, nil
		})
	}
	return r
}

// routes lists every route of the server. The test that walks routes and roles reads the same list.
func (s *Server) routes() []route {
	var all []route
	for _, some := range [][]route{
		s.systemRoutes(),
		s.storeRoutes(),
		s.docRoutes(),
		s.kindsRoutes(),
		s.vmRoutes(),
		s.identityRoutes(),
		s.agentRoutes(),
	} {
		all = append(all, some...)
	}
	return all
}

// register puts the routes on the mux, or says which of them is incomplete.
func (s *Server) register(routes []route) error {
	var wrong []error
	for _, r := range routes {
		switch {
		case r.perm == "":
			wrong = append(wrong, fmt.Errorf("route %s %s has no permission", r.method, r.path))
		case !r.perm.Known():
			wrong = append(wrong, fmt.Errorf("route %s %s has the unknown permission %q", r.method, r.path, r.perm))
		case r.bind == nil:
			wrong = append(wrong, fmt.Errorf("route %s %s has no handler", r.method, r.path))
		case (r.scope == scopeTenant) != strings.Contains(r.path, "{tenant}"):
			wrong = append(wrong, fmt.Errorf("route %s %s: scope and path disagree about the tenant", r.method, r.path))
		}
	}
	if err := errors.Join(wrong...); err != nil {
		return err
	}
	for _, r := range routes {
		r.bind(s.api, s.operation(r))
	}
	s.table = routes
	return nil
}

// operation is the route as huma knows it.
func (s *Server) operation(r route) huma.Operation {
	op := huma.Operation{
		OperationID: r.id,
		Method:      r.method,
		Path:        r.path,
		Summary:     r.summary,
		Tags:        []string{r.tag},
		Middlewares: huma.Middlewares{s.guard(r)},
		// One byte more, because huma refuses a body that is as long as the limit.
		MaxBodyBytes: MaxBody + 1,
		// The deadline also covers the handler, since the server goes on reading to notice a client
		// that hangs up.
		BodyReadTimeout:              readTimeout,
		RejectUnknownQueryParameters: true,
		Security:                     []map[string][]string{{"token": {}}},
		Extensions:                   map[string]any{"x-permission": string(r.perm)},
	}
	schemas := s.api.OpenAPI().Components.Schemas
	op.Responses = map[string]*huma.Response{"default": problemResponse(schemas)}
	if r.perm == auth.Public {
		op.Security = nil
	}
	for _, part := range strings.Split(r.path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			op.Parameters = append(op.Parameters, pathParameter(strings.TrimSuffix(name, "}")))
		}
	}
	if r.describe != nil {
		r.describe(&op, schemas)
	}
	return op
}

// pathParameter describes a part of a path. Handlers find it in their call, or decode it by huma's means.
func pathParameter(name string) *huma.Param {
	return &huma.Param{Name: name, In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString}}
}

// call is one request on its way through the server. It belongs to the request's goroutine.
type call struct {
	id     string
	start  time.Time
	route  *route // nil until the mux has found one
	tenant string // of the path, once the caller may know of it
	name   string // of the path
	auth.Caller

	remote  string
	fault   error   // what the answer says went wrong
	status  int     // of the answer, 0 until it is written
	stream  bool    // the answer is a stream
	audited bool    // the record of this write is committed, or nothing was to be written
	object  api.Ref // what it was about, for the audit of what was refused
}

type callKey struct{}

// callFrom returns the call of a request's context; outside of a request it is an empty one.
func callFrom(ctx context.Context) *call {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c
	}
	return &call{}
}

// guard is what happens before a route's handler: the body is one that can be read, the caller is
// identified, and may do it. And after it: a write that left no audit record with its commit gets one.
func (s *Server) guard(r route) func(huma.Context, func(huma.Context)) {
	return func(hc huma.Context, next func(huma.Context)) {
		req, w := humago.Unwrap(hc)
		c := callFrom(req.Context())
		c.route = &r
		if err := s.admit(req, c); err != nil {
			c.writeProblem(w, err)
		} else {
			next(hc)
		}
		if r.perm.Write() && !c.audited {
			s.auditAfter(req.Context(), c)
		}
	}
}

// admit identifies the caller and decides whether the route is theirs. Order matters: who may not know a
// tenant must not learn from any other answer that it exists.
func (s *Server) admit(req *http.Request, c *call) error {
	if err := checkBody(req); err != nil {
		return err
	}
	caller, err := s.identify(req)
	if err != nil {
		if c.route.perm != auth.Public {
			return err
		}
		caller = auth.Caller{} // a stale token must not keep anybody from logging in again
	}
	c.Caller = caller
	return s.authorise(req, c)
}
