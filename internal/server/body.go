package server

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/verbena-cloud/verbena/internal/fault"
)

// body is an object of a request, decoded but not yet judged. Huma would stop at the first layer that
// finds a fault; kept apart like this, one answer can name what the schema and what the rules find.
type body[T any] struct {
	object T
	sum    [sha256.Size]byte // of the bytes, for idempotent repeats
	tree   any               // the same as plain JSON, for the schema
	syntax error             // nothing could be read
	typing error             // the tree was read, but did not fit the type
}

// raw is what decodes itself from the whole body, instead of by encoding/json.
type raw interface{ decode(data []byte) }

// unmarshal is the JSON format's decoder.
func unmarshal(data []byte, v any) error {
	if r, ok := v.(raw); ok {
		r.decode(data)
		return nil
	}
	if !utf8.Valid(data) {
		return fault.New(fault.Invalid, "is not UTF-8")
	}
	return json.Unmarshal(data, v)
}

// Schema makes the API's description show the object itself.
func (*body[T]) Schema(r huma.Registry) *huma.Schema {
	return r.Schema(reflect.TypeFor[T](), true, "")
}

func (b *body[T]) decode(data []byte) {
	b.sum = sha256.Sum256(data)
	if !utf8.Valid(data) {
		b.syntax = fault.New(fault.Invalid, "the body is not UTF-8")
		return
	}
	if err := json.Unmarshal(data, &b.tree); err != nil {
		b.syntax = syntaxFault(err)
		return
	}
	b.typing = json.Unmarshal(data, &b.object)
}

// syntaxFault says where a body is broken, without its words.
func syntaxFault(err error) error {
	if s, ok := errors.AsType[*json.SyntaxError](err); ok {
		if strings.HasPrefix(s.Error(), "unexpected end") {
			return fault.New(fault.Invalid, "the body is no JSON: it ends in the middle")
		}
		return fault.New(fault.Invalid, "the body is no JSON: it is broken at byte %d", s.Offset)
	}
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fault.New(fault.Invalid, "the body has a number at byte %d that no computer holds", t.Offset)
	}
	return fault.New(fault.Invalid, "the body is no JSON that can be read")
}

// judge returns every place where the body breaks the schema, or the fault that kept it from being read.
func (b *body[T]) judge(schemas huma.Registry) ([]fault.Field, error) {
	if b.syntax != nil {
		return nil, withStatus{b.syntax, http.StatusBadRequest, nil}
	}
	found := validate(schemas, schemas.Schema(reflect.TypeFor[T](), true, ""), relax(b.tree))
	found = append(found, controls("", b.tree)...)
	if b.typing != nil {
		at := typingField(b.typing)
		if !slices.ContainsFunc(found, func(f fault.Field) bool { return at.Path == "" || f.Path == at.Path }) {
			found = append(found, at)
		}
	}
	return found, nil
}

// manyLines is the one text of the API that is no line, and that nobody prints as it is.
const manyLines = "spec.userData"

// controls returns every text of a JSON tree that a terminal would obey instead of showing it, since all of
// them are printed somewhere. Names of fields are the schema's business.
func controls(path string, tree any) []fault.Field {
	var found []fault.Field
	switch v := tree.(type) {
	case string:
		if path != manyLines && strings.ContainsFunc(v, unprintable) {
			return []fault.Field{{Path: path, Text: "it has control characters; only printable text is allowed"}}
		}
	case []any:
		for i, x := range v {
			found = append(found, controls(path+"["+strconv.Itoa(i)+"]", x)...)
		}
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			found = append(found, controls(strings.TrimPrefix(path+"."+clip(clean(k)), "."), v[k])...)
		}
	}
	return found
}

// typingField is a mismatch that the schema can't see, such as a fraction where a whole number belongs.
func typingField(err error) fault.Field {
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fault.Field{Path: t.Field, Text: "expected " + plainType(t.Type)}
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return fault.Field{Path: "spec.rdma." + strings.Trim(name, `"`), Text: "unexpected property"}
	}
	return fault.Field{Text: "does not fit its type"}
}

func plainType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int, reflect.Int64, reflect.Int32, reflect.Uint32, reflect.Uint64:
		return "integer"
	case reflect.Struct, reflect.Map:
		return "object"
	case reflect.Slice, reflect.Array:
		return "array"
	case reflect.Bool:
		return "boolean"
	default:
		return t.Kind().String()
	}
}

// relax takes the short form `rdma: true` out of the tree: its schema is one of two, and judged as such it
// could only be said that neither matches. What is left is judged as the long form, place by place.
func relax(tree any) any {
	top, _ := tree.(map[string]any)
	spec, _ := top["spec"].(map[string]any)
	if _, short := spec["rdma"].(bool); short {
		delete(spec, "rdma")
	}
	return tree
}

// validate judges a JSON tree by a schema.
func validate(schemas huma.Registry, schema *huma.Schema, tree any) []fault.Field {
	res := &huma.ValidateResult{}
	huma.Validate(schemas, schema, huma.NewPathBuffer(make([]byte, 0, 128), 0), huma.ModeWriteToServer, tree, res)
	var found []fault.Field
	for _, err := range res.Errors {
		if d, ok := errors.AsType[*huma.ErrorDetail](err); ok {
			found = append(found, fault.Field{Path: clip(d.Location), Text: d.Message})
		}
	}
	return found
}
