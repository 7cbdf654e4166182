package server

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/verbena-cloud/verbena/internal/auth"
)

// The documentation is rendered here, from the document that clients get: pages without any script and
// without any outside address, since private clouds have no way out.
//
//go:embed docs
var docFiles embed.FS

// docCSP lets the pages load the style sheet beside them and nothing else.
const docCSP = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// docRoutes serve the API's description, for programs and for people.
func (s *Server) docRoutes() []route {
	const tag = "System"
	page := plainAnswer("text/html")
	return []route{
		handle(route{id: "openapi", method: http.MethodGet, path: "/openapi.json", perm: auth.Public, tag: tag,
			summary: "This description", describe: plainAnswer("application/openapi+json")}, s.docFile("application/openapi+json", func() []byte { return s.docs.openapi })),
		handle(route{id: "docs", method: http.MethodGet, path: "/docs", perm: auth.Public, tag: tag,
			summary: "The API's reference for people", describe: page}, s.docFile("text/html; charset=utf-8", func() []byte { return s.docs.reference })),
		handle(route{id: "docs-errors", method: http.MethodGet, path: "/docs/errors", perm: auth.Public, tag: tag,
			summary: "What each kind of fault means and what to do", describe: page}, s.docFile("text/html; charset=utf-8", func() []byte { return s.docs.errors })),
		handle(route{id: "docs-style", method: http.MethodGet, path: "/docs/style.css", perm: auth.Public, tag: tag,
			summary: "How the reference looks", describe: plainAnswer("text/css")}, s.docFile("text/css; charset=utf-8", func() []byte { return s.docs.style })),
	}
}

// docs are the finished pages.
type docs struct{ openapi, reference, errors, style []byte }

func (s *Server) docFile(media string, data func() []byte) func(context.Context, *struct{}) (*huma.StreamResponse, error) {
	return func(context.Context, *struct{}) (*huma.StreamResponse, error) {
		return &huma.StreamResponse{Body: func(hc huma.Context) {
			_, w := humago.Unwrap(hc)
			w.Header().Set("Content-Type", media)
			w.Header().Set("Content-Security-Policy", docCSP)
			_, _ = w.Write(data()) // the client may be gone
		}}, nil
	}
}

// renderDocs makes the pages once all routes are known.
func (s *Server) renderDocs() (d docs, err error) {
	if d.openapi, err = s.document(); err != nil {
		return d, err
	}
	var doc apiDoc
	if err := json.Unmarshal(d.openapi, &doc); err != nil {
		return d, fmt.Errorf("read the API's description: %w", err)
	}
	t, err := template.New("").Funcs(template.FuncMap{
		"schema": schemaText, "ref": refName, "anchor": anchor, "lower": strings.ToLower,
	}).ParseFS(docFiles, "docs/*.html")
	if err != nil {
		return d, fmt.Errorf("parse the documentation's templates: %w", err)
	}
	for name, out := range map[string]*[]byte{"reference.html": &d.reference, "errors.html": &d.errors} {
		var b bytes.Buffer
		if err := t.ExecuteTemplate(&b, name, docPage{Doc: doc, Tags: doc.tags(), Meanings: meaningRows()}); err != nil {
			return d, fmt.Errorf("render %s: %w", name, err)
		}
		*out = b.Bytes()
	}
	d.style, err = docFiles.ReadFile("docs/style.css")
	return d, err
}

// docPage is what the templates see.
type docPage struct {
	Doc      apiDoc
	Tags     []docTag
	Meanings []meaningRow
}

// meaningRow is a kind of fault on the errors page.
type meaningRow struct {
	Kind, Title, Hint string
	Status            int
	Retry             bool
}

func meaningRows() []meaningRow {
	var rows []meaningRow
	for _, m := range meanings() {
		rows = append(rows, meaningRow{string(m.kind), m.title, m.hint, m.status, m.retry})
	}
	return rows
}

// apiDoc is as much of an OpenAPI document as the reference shows.
type apiDoc struct {
	Info struct {
		Title, Version, Description string
	}
	Paths      map[string]map[string]docOperation
	Components struct {
		Schemas map[string]*docSchema
	}
}

type docOperation struct {
	OperationID string `json:"operationId"`
	Summary     string
	Description string
	Tags        []string
	Permission  string `json:"x-permission"`
	Parameters  []struct {
		Name, In, Description string
		Required              bool
		Schema                *docSchema
	}
	RequestBody *struct{ Content map[string]docMedia }
	Responses   map[string]struct {
		Description string
		Content     map[string]docMedia
	}
	Method, Path string `json:"-"`
}

type docMedia struct{ Schema *docSchema }

type docSchema struct {
	Ref         string          `json:"$ref"`
	Type        json.RawMessage // a name or a list of names
	Description string
	Format      string
	Pattern     string
	Enum        []any
	Examples    []any
	Minimum     *float64
	Maximum     *float64
	MinItems    *int
	MaxItems    *int
	MaxLength   *int
	ReadOnly    bool
	WriteOnly   bool
	Required    []string
	Items       *docSchema
	Properties  map[string]*docSchema
	Additional  json.RawMessage `json:"additionalProperties"`
	OneOf       []*docSchema
}

// Needs reports whether a property is required.
func (s *docSchema) Needs(name string) bool { return slices.Contains(s.Required, name) }

// docTag is a heading with its operations.
type docTag struct {
	Name       string
	Operations []docOperation
}

// tags groups the operations, in the order of tag, path and method.
func (d apiDoc) tags() []docTag {
	byTag := map[string][]docOperation{}
	for _, path := range slices.Sorted(maps.Keys(d.Paths)) {
		for _, method := range []string{"get", "post", "put", "delete"} {
			op, ok := d.Paths[path][method]
			if !ok || len(op.Tags) == 0 {
				continue
			}
			op.Method, op.Path = strings.ToUpper(method), path
			byTag[op.Tags[0]] = append(byTag[op.Tags[0]], op)
		}
	}
	var out []docTag
	for _, name := range slices.Sorted(maps.Keys(byTag)) {
		out = append(out, docTag{name, byTag[name]})
	}
	return out
}

// refName is the name of the schema that a reference or a list of references points to, or "".
func refName(s *docSchema) string {
	switch {
	case s == nil:
		return ""
	case s.Ref != "":
		return s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]
	case s.Items != nil:
		return refName(s.Items)
	}
	var rest docSchema
	if json.Unmarshal(s.Additional, &rest) == nil && rest.Ref != "" {
		return refName(&rest)
	}
	return ""
}

// schemaText is a schema in a few words.
func schemaText(s *docSchema) string {
	switch {
	case s == nil:
		return ""
	case s.Ref != "":
		return refName(s)
	case len(s.OneOf) > 0:
		var alt []string
		for _, o := range s.OneOf {
			alt = append(alt, schemaText(o))
		}
		return strings.Join(alt, " or ")
	case s.Items != nil:
		return "list of " + schemaText(s.Items)
	}
	var rest docSchema
	if len(s.Additional) > 0 && json.Unmarshal(s.Additional, &rest) == nil {
		return "map of " + schemaText(&rest)
	}
	words := typeName(s.Type)
	if s.Format != "" {
		words += " (" + s.Format + ")"
	}
	if len(s.Enum) > 0 {
		words = strings.Trim(strings.ReplaceAll(fmt.Sprint(s.Enum), " ", " | "), "[]")
	}
	return words + bounds(s)
}

func typeName(raw json.RawMessage) string {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return one
	}
	var many []string
	if json.Unmarshal(raw, &many) == nil {
		return strings.Join(slices.DeleteFunc(many, func(t string) bool { return t == "null" }), " or ")
	}
	return "anything"
}

func bounds(s *docSchema) string {
	var b []string
	if s.Minimum != nil {
		b = append(b, fmt.Sprintf("from %v", *s.Minimum))
	}
	if s.Maximum != nil {
		b = append(b, fmt.Sprintf("to %v", *s.Maximum))
	}
	if s.MaxLength != nil {
		b = append(b, fmt.Sprintf("at most %d characters", *s.MaxLength))
	}
	if s.Pattern != "" {
		b = append(b, "like "+s.Pattern)
	}
	if len(b) == 0 {
		return ""
	}
	return ", " + strings.Join(b, " ")
}

// anchor is the id of a schema's section.
func anchor(name string) string { return "schema-" + name }
