package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// openAPIConfig describes the API as a whole. Huma's own pages are off: its documentation loads a script
// from an outside address, and its schema links repeat the request's Host header.
func openAPIConfig() huma.Config {
	format := huma.Format{Marshal: encode, Unmarshal: unmarshal}
	return huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title:       "Verbena",
				Version:     "v1",
				Description: "Virtual machines with real RDMA. Faults are application/problem+json, see /docs/errors.",
			},
			Components: &huma.Components{
				Schemas: huma.NewMapRegistry("#/components/schemas/", schemaName),
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"token": {Type: "http", Scheme: "bearer", Description: "A token, from POST /v1/login or verbena token create"},
				},
			},
		},
		Formats:       map[string]huma.Format{"application/json": format, "json": format},
		DefaultFormat: "application/json",
		Transformers:  []huma.Transformer{hideInput},
	}
}

// schemaName names a type's schema. Messages of agents are kept apart from objects of the same name.
func schemaName(t reflect.Type, hint string) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name := huma.DefaultSchemaNamer(t, hint)
	if strings.HasSuffix(t.PkgPath(), "/wire") {
		return "Agent" + name
	}
	return name
}

// document is the OpenAPI document as it is served and committed. It is made from huma's once all routes
// are known, with the corrections that Go types can't express.
func (s *Server) document() ([]byte, error) {
	var doc map[string]any
	raw, err := s.api.OpenAPI().MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("describe the API: %w", err)
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, fmt.Errorf("read the API's description: %w", err)
	}
	schemas, err := child(doc, "components", "schemas")
	if err != nil {
		return nil, err
	}
	// Left over from huma's own errors, which never go out.
	delete(schemas, "ErrorModel")
	delete(schemas, "ErrorDetail")
	if rdma, ok := schemas["RDMA"]; ok {
		schemas["RDMA"] = map[string]any{
			"description": "true = one VF with the defaults; false = none; an object says more",
			"oneOf":       []any{map[string]any{"type": "boolean"}, rdma},
		}
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(doc); err != nil {
		return nil, fmt.Errorf("write the API's description: %w", err)
	}
	return out.Bytes(), nil
}

// child walks down a JSON document.
func child(doc map[string]any, path ...string) (map[string]any, error) {
	for i, key := range path {
		next, ok := doc[key].(map[string]any)
		if !ok {
			return nil, fmt.Errorf("the API's description has no %s", strings.Join(path[:i+1], "."))
		}
		doc = next
	}
	return doc, nil
}
