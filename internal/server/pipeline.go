package server

import (
	"context"
	"fmt"
	"mime"
	"net/http"
	"path"
	"runtime/debug"
	"strings"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
)

const tooLarge = "the body is larger than 1 MiB"

// ServeHTTP is the outermost layer: every request gets an id, every answer the security headers, and a
// panic costs one answer and not the process.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{id: s.requestID(), start: s.now(), remote: r.RemoteAddr}
	h := w.Header()
	h["X-Request-Id"] = []string{c.id}
	secure(h, r.TLS != nil)
	out := &reply{ResponseWriter: w, call: c}
	defer s.finish(r, c, out)
	if p := r.URL.Path; p != "/" && path.Clean(p) != strings.TrimSuffix(p, "/") {
		// The mux would redirect to what it thinks was meant.
		c.writeProblem(out, fault.New(fault.NotFound, "there is no %s; GET /openapi.json lists what there is", clip(p)))
		return
	}
	s.mux.ServeHTTP(out, r.WithContext(context.WithValue(r.Context(), callKey{}, c)))
}

// requestID is short, since people read it out; it needs to be unique in the log, not secret.
func (s *Server) requestID() string { return fmt.Sprintf("%08x", s.serial.Add(1)+s.epoch) }

// finish logs what only the operator may see, counts the request, and turns a panic into an answer.
func (s *Server) finish(r *http.Request, c *call, out *reply) {
	if p := recover(); p != nil {
		c.fault = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		if c.status == 0 {
			c.writeProblem(out, c.fault)
		} else {
			// The answer has begun and can't be taken back: break the connection, so that nobody
			// takes a half answer for a whole one.
			_ = http.NewResponseController(out).SetWriteDeadline(time.Unix(1, 0))
		}
	}
	s.logFault(r.Context(), c)
	s.metrics.observe(c, s.now().Sub(c.start))
}

// secure sets the headers that keep a browser from doing more with an answer than showing it.
func secure(h http.Header, tls bool) {
	h["X-Content-Type-Options"] = []string{"nosniff"}
	h["Content-Security-Policy"] = []string{"default-src 'none'; frame-ancestors 'none'"}
	h["Referrer-Policy"] = []string{"no-referrer"}
	h["Cache-Control"] = []string{"no-store"}
	if tls {
		h["Strict-Transport-Security"] = []string{"max-age=31536000"}
	}
}

// reply notes the status of an answer.
type reply struct {
	http.ResponseWriter
	call *call
}

// WriteHeader notes the status.
func (w *reply) WriteHeader(status int) {
	if w.call.status == 0 {
		w.call.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write begins the answer if nobody has.
func (w *reply) Write(b []byte) (int, error) {
	if w.call.status == 0 {
		w.call.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (w *reply) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// checkBody refuses a body that no handler would read.
func checkBody(r *http.Request) error {
	if r.ContentLength > MaxBody {
		return fault.New(fault.TooLarge, tooLarge)
	}
	ct := r.Header.Get("Content-Type")
	if ct == "" || r.ContentLength == 0 {
		return nil
	}
	media, params, err := mime.ParseMediaType(ct)
	if err == nil && media == "application/json" && (params["charset"] == "" || strings.EqualFold(params["charset"], "utf-8")) {
		return nil
	}
	return withStatus{fault.New(fault.Invalid, "bodies are application/json in UTF-8"), http.StatusUnsupportedMediaType, nil}
}

// authorise decides whether the route is the caller's. A tenant that they may not see is answered exactly
// as one that does not exist.
func (s *Server) authorise(r *http.Request, c *call) error {
	perm := c.route.perm
	if perm == auth.Public {
		return nil
	}
	c.name = r.PathValue("name")
	switch c.route.scope {
	case scopeTenant:
		tenant := r.PathValue("tenant")
		if !c.Sees(tenant) || !plausible(tenant) {
			return missingTenant(tenant)
		}
		c.tenant = tenant
		if !c.Can(perm, tenant) {
			return mayNot(c, perm, tenant)
		}
	case scopeAcross:
		if !c.CanSome(perm) {
			return mayNot(c, perm, "")
		}
	default:
		if !c.Can(perm, "") {
			return mayNot(c, perm, "")
		}
	}
	return nil
}

// mayNot refuses. Where the user may and only the token does not, a role would not help, and it says so.
func mayNot(c *call, perm auth.Permission, tenant string) error {
	where := ""
	if tenant != "" {
		where = " in tenant " + tenant
	}
	user := c.Caller
	user.Scopes, user.OnlyTenant = nil, ""
	if c.CutDown() && (user.Can(perm, tenant) || tenant == "" && user.CanSome(perm)) {
		return fault.New(fault.Forbidden, "%s may not do %s%s: user %s may, but this token was made for less; use one with that scope and tenant",
			c.Who(), perm, where, c.Name)
	}
	return fault.New(fault.Forbidden, "%s may not do %s%s", c.Who(), perm, where)
}

// plausible reports whether an object could have the name at all. Others are not looked up: a name from
// a path must not reach into keys that it has no business in.
func plausible(name string) bool {
	return name != "" && len(name) <= 128 && name[0] != '_' && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.' && r != '_'
	})
}

func missingTenant(name string) error {
	return fault.New(fault.NotFound, "%s %s does not exist", api.KindTenant, clip(name))
}

func missingObject(k api.Kind, tenant, name string) error {
	if tenant == "" || !object.Tenanted(k) {
		return fault.New(fault.NotFound, "%s %s does not exist", k, clip(name))
	}
	return fault.New(fault.NotFound, "%s %s does not exist in tenant %s", k, clip(name), tenant)
}

// unrouted answers for paths and methods that no route has, since the mux would do it in plain text.
func (s *Server) unrouted(w http.ResponseWriter, r *http.Request) {
	c := callFrom(r.Context())
	var allow []string
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch} {
		probe := *r
		probe.Method = m
		if _, pattern := s.mux.Handler(&probe); pattern != "" && pattern != "/" {
			allow = append(allow, m)
		}
	}
	if len(allow) == 0 {
		c.writeProblem(w, fault.New(fault.NotFound, "there is no %s; GET /openapi.json lists what there is", clip(r.URL.Path)))
		return
	}
	list := strings.Join(allow, ", ")
	err := fault.New(fault.Invalid, "%s does not take %s, only %s", clip(r.URL.Path), clip(r.Method), list)
	c.writeProblem(w, withStatus{err, http.StatusMethodNotAllowed, http.Header{"Allow": {list}}})
}
