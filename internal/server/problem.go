package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
)

const problemType = "application/problem+json"

// meaning is what a kind of fault is on the wire and what to do about it.
type meaning struct {
	kind   fault.Kind
	status int
	title  string
	retry  bool   // the same request may succeed later
	hint   string // what whoever asked can do
}

// meanings is the one table of kinds; docs/errors.md shows it.
func meanings() []meaning {
	return []meaning{
		{fault.Internal, http.StatusInternalServerError, "Internal error", false, "report it with the request id; the server's log has the cause under it"},
		{fault.Invalid, http.StatusUnprocessableEntity, "Invalid input", false, "correct every place that errors names; nothing was changed"},
		{fault.Unauthenticated, http.StatusUnauthorized, "Not authenticated", false, "send a valid token: verbena login"},
		{fault.Forbidden, http.StatusForbidden, "Forbidden", false, "ask an owner of the tenant or an operator for a role that may do it"},
		{fault.NotFound, http.StatusNotFound, "Not found", false, "check name and tenant; what you may not see is answered the same way"},
		{fault.Conflict, http.StatusConflict, "Conflict", false, "read the object again and decide anew"},
		{fault.Precondition, http.StatusPreconditionFailed, "Changed meanwhile", false, "read the object again; If-Match takes its current revision"},
		{fault.Quota, http.StatusConflict, "Quota exceeded", true, "free something in the tenant, or ask an operator for more; quota has the sheet"},
		{fault.NoCapacity, http.StatusConflict, "No host fits", true, "explanation says for each host why, and the nearest change that would help"},
		{fault.Unready, http.StatusConflict, "Not ready", true, "try again when the cause that detail names is gone"},
		{fault.Gone, http.StatusGone, "Position gone", false, "list again, and watch from the list's revision"},
		{fault.TooLarge, http.StatusRequestEntityTooLarge, "Too large", false, "send less; the limit is in detail"},
		{fault.RateLimited, http.StatusTooManyRequests, "Too many requests", true, "wait as long as Retry-After says"},
		{fault.Unavailable, http.StatusServiceUnavailable, "Unavailable", true, "try again; GET /v1/status says what is wrong"},
		{fault.Deadline, http.StatusGatewayTimeout, "Timed out", true, "it may still happen: read the object, or repeat with the same Idempotency-Key"},
	}
}

// meant returns the meaning of a kind; an unknown kind is an internal error.
func meant(k fault.Kind) meaning {
	all := meanings()
	if i := slices.IndexFunc(all, func(m meaning) bool { return m.kind == k }); i >= 0 {
		return all[i]
	}
	return all[0]
}

// problem is a fault on its way to the wire.
type problem struct {
	api.Problem
	header http.Header
}

// Error makes it an error, so that huma passes it on.
func (p *problem) Error() string { return p.Detail }

// GetStatus is huma's StatusError.
func (p *problem) GetStatus() int { return p.Status }

// GetHeaders is huma's HeadersError.
func (p *problem) GetHeaders() http.Header { return p.header }

// ContentType is huma's ContentTypeFilter.
func (p *problem) ContentType(string) string { return problemType }

// withStatus is a fault with a status of its own, where HTTP is finer than our kinds, and with headers.
type withStatus struct { //nolint:errname // it decorates an error, and reads so where it is used
	error
	status int // 0 = that of the kind
	header http.Header
}

func (e withStatus) Unwrap() error { return e.error }

// problemOf makes the problem document of an error and notes the error for log and audit. What is no
// fault is internal, and its words stay here.
func problemOf(c *call, err error) *problem {
	c.fault = err
	m := meant(fault.KindOf(err))
	p := &problem{Problem: api.Problem{
		Type:      "/docs/errors#" + string(m.kind),
		Title:     m.title,
		Status:    m.status,
		Code:      string(m.kind),
		Detail:    clean(fault.Text(err)),
		RequestID: c.id,
		Retryable: m.retry,
		Hint:      m.hint,
	}}
	if f, ok := errors.AsType[*fault.Error](err); ok && m.kind != fault.Internal {
		for _, w := range f.Fields {
			p.Errors = append(p.Errors, api.ProblemField{Location: location(w.Path), Message: clean(w.Text)})
		}
		p.evidence(f.Detail)
	}
	if e, ok := errors.AsType[withStatus](err); ok {
		p.header = e.header
		if e.status != 0 {
			p.Status, p.Title = e.status, http.StatusText(e.status)
		}
	}
	if m.status == http.StatusUnauthorized {
		p.header = http.Header{"Www-Authenticate": {`Bearer realm="verbena"`}}
	}
	return p
}

// location is where a rule's path lies in the request: in the body, unless it says otherwise.
func location(path string) string {
	path = clean(path)
	for _, elsewhere := range []string{"query.", "header.", "path."} {
		if strings.HasPrefix(path, elsewhere) {
			return path
		}
	}
	if path == "" {
		return "body"
	}
	return "body." + path
}

// evidence puts a fault's machine-readable detail where clients look for it.
func (p *problem) evidence(detail any) {
	switch d := detail.(type) {
	case *api.Explanation:
		p.Explanation = d
	case api.Explanation:
		p.Explanation = &d
	case []api.QuotaLine:
		p.Quota = d
	}
	if p.Explanation != nil && len(p.Quota) == 0 {
		p.Quota = p.Explanation.Quota
	}
}

// clean keeps texts of problems printable and short, since parts of them come from the input: a terminal
// must not obey them, and a megabyte of name must not come back.
func clean(s string) string {
	const limit = 2000
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "…"
	}
	return strings.Map(func(r rune) rune {
		if unprintable(r) {
			return '\ufffd'
		}
		return r
	}, s)
}

// unprintable reports whether a terminal would obey a character instead of showing it: the control
// characters of ASCII and Latin-1, and Unicode's line separators, embeddings, overrides and isolates.
func unprintable(r rune) bool {
	return r < ' ' || (r >= 0x7f && r < 0xa0) || (r >= 0x2028 && r <= 0x202e) || (r >= 0x2066 && r <= 0x2069)
}

// writeProblem answers with the error outside of huma.
func (c *call) writeProblem(w http.ResponseWriter, cause error) {
	p := problemOf(c, cause)
	for k, v := range p.header {
		w.Header()[k] = v
	}
	body, err := json.Marshal(p)
	if err != nil { // evidence that JSON can't hold: the fault counts more
		p.Explanation, p.Quota = nil, nil
		body, err = json.Marshal(p)
	}
	if err != nil {
		body = []byte(`{"title":"Internal error","status":500,"code":"internal"}`)
	}
	w.Header().Set("Content-Type", problemType)
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n')) // the client may be gone
}

// hideInput is the transformer that turns huma's own errors into our problems. Huma repeats the faulty
// value in them, which may be a password, and knows neither code nor request id. Doing it here needs no
// change of huma's global NewError.
func hideInput(hc huma.Context, _ string, v any) (any, error) {
	e, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	c := callFrom(hc.Context())
	f := &fault.Error{Kind: kindOfStatus(e.Status), Text: e.Detail}
	if f.Kind == fault.TooLarge {
		f.Text = tooLarge
	}
	p := problemOf(c, f)
	p.Status = e.Status // already decided by huma
	for _, d := range e.Errors {
		if d == nil {
			continue
		}
		where := d.Location
		if where == "" {
			where = "body"
		}
		p.Errors = append(p.Errors, api.ProblemField{Location: clip(clean(where)), Message: clean(withoutValue(d.Message))})
	}
	return p, nil
}

// withoutValue drops what encoding/json quotes from the input.
func withoutValue(msg string) string {
	if strings.HasPrefix(msg, "json: cannot unmarshal ") || strings.HasPrefix(msg, "invalid character ") || strings.HasPrefix(msg, "json: ") {
		return "is not valid JSON of the expected type"
	}
	return msg
}

func clip(s string) string {
	const limit = 200
	if len(s) > limit {
		return strings.ToValidUTF8(s[:limit], "") + "…"
	}
	return s
}

// kindOfStatus classifies a status that huma chose.
func kindOfStatus(status int) fault.Kind {
	switch status {
	case http.StatusRequestEntityTooLarge:
		return fault.TooLarge
	case http.StatusRequestTimeout:
		return fault.Deadline
	case http.StatusNotFound:
		return fault.NotFound
	}
	if status >= http.StatusInternalServerError {
		return fault.Internal
	}
	return fault.Invalid
}

// problemResponse describes the answer of everything that goes wrong.
func problemResponse(schemas huma.Registry) *huma.Response {
	return &huma.Response{
		Description: "A fault (RFC 9457)",
		Content: map[string]*huma.MediaType{
			problemType: {Schema: schemas.Schema(reflect.TypeFor[api.Problem](), true, "Problem")},
		},
	}
}

// logFault writes what the caller must not see. Everything else was told to them already.
func (s *Server) logFault(ctx context.Context, c *call) {
	if c.fault == nil || fault.KindOf(c.fault) != fault.Internal {
		return
	}
	attrs := []any{"request", c.id, "who", c.Who(), "err", c.fault}
	if c.route != nil {
		attrs = append(attrs, "route", c.route.id)
	}
	s.log.ErrorContext(ctx, "request failed", attrs...)
}
