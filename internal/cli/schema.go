package cli

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/client"
)

func (a *app) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain KIND[.FIELD…]",
		Short: a.tr("Explain the fields of a kind: meaning, unit, default, limits"),
		Long: a.tr(`Explains from the same descriptions that the API's schema is made of (GET /openapi.json), so it works
without a server.`),
		Example: "  verbena explain vm\n  verbena explain flavor.spec.rdma.ha",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.explainField(a.env.Stdout, args[0])
		},
		ValidArgsFunction: a.completeField,
	}
}

// described is a field that a path leads to.
type described struct {
	path  string
	typ   reflect.Type
	field *reflect.StructField // nil for the kind itself
}

// find follows a path such as flavor.spec.rdma.
func (a *app) find(path string) (described, error) {
	parts := strings.Split(path, ".")
	t, err := a.typeNamed(parts[0])
	if err != nil {
		return described{}, err
	}
	d := described{string(t.Kind), typeOf(t.Kind), nil}
	for _, name := range parts[1:] {
		name = strings.TrimSuffix(name, "[]")
		known := fieldsOf(inner(d.typ))
		f, ok := known[name]
		if !ok {
			return d, a.noField(d, name, known)
		}
		d = described{d.path + "." + name, f.Type, &f}
	}
	return d, nil
}

func (a *app) noField(d described, name string, known map[string]reflect.StructField) error {
	names := make([]string, 0, len(known))
	for n := range known {
		names = append(names, n)
	}
	slices.Sort(names)
	if len(names) == 0 {
		return a.misuse("%s has no fields", d.path)
	}
	if near := nearest(name, names); near != "" {
		return a.misuse("%s has no field %s; do you mean %s?", d.path, name, near)
	}
	return a.misuse("%s has no field %s; there are %s", d.path, name, strings.Join(names, ", "))
}

// inner is the struct inside pointers, lists and maps; another type if there is none.
func inner(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	return t
}

func (a *app) explainField(w io.Writer, path string) error {
	d, err := a.find(path)
	if err != nil {
		return err
	}
	a.title1(w, d.path, "")
	a.facts(w, a.fieldFacts(d))
	in := inner(d.typ)
	if in.Kind() != reflect.Struct || in == reflect.TypeFor[time.Time]() {
		return nil
	}
	a.heading(w, a.tr("Fields"))
	t := Table{Heads: []string{"NAME", "FORM", "MEANING"}, Indent: "  "}
	for _, f := range reflect.VisibleFields(in) {
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || !f.IsExported() || name == "" || name == "-" {
			continue
		}
		if !strings.Contains(opts, "omit") && name != "status" && f.Tag.Get("readOnly") == "" {
			name += "*"
		}
		t.Rows = append(t.Rows, []string{name, form(f.Type), meaningOf(f)})
	}
	if err := t.Write(w); err != nil {
		return err
	}
	fmt.Fprintf(w, "\n  %s\n", a.tr("* must be given. More: verbena explain %s.FIELD", strings.ToLower(path)))
	return nil
}

func (a *app) fieldFacts(d described) [][2]string {
	lines := [][2]string{{a.tr("form"), form(d.typ)}}
	if d.field == nil {
		if t, ok := client.TypeOf(d.path); ok && t.Tenanted {
			lines = append(lines, [2]string{a.tr("belongs to"), a.tr("a tenant")})
		}
		return append(lines, [2]string{a.tr("since"), "v1"})
	}
	tag := d.field.Tag
	limits := strings.Trim(strings.Join([]string{limit("≥ ", tag.Get("minimum")), limit("≤ ", tag.Get("maximum")),
		limit("", tag.Get("pattern")), limit("items ≥ ", tag.Get("minItems")), limit("items ≤ ", tag.Get("maxItems")),
		limit("length ≥ ", tag.Get("minLength")), limit("length ≤ ", tag.Get("maxLength"))}, " "), " ")
	lines = append(lines, [][2]string{
		{a.tr("meaning"), tag.Get("doc")}, {a.tr("one of"), strings.ReplaceAll(tag.Get("enum"), ",", ", ")},
		{a.tr("limits"), strings.Join(strings.Fields(limits), " ")}, {a.tr("example"), tag.Get("example")},
	}...)
	if tag.Get("readOnly") == "true" {
		lines = append(lines, [2]string{a.tr("written by"), a.tr("the system")})
	}
	if tag.Get("writeOnly") == "true" {
		lines = append(lines, [2]string{a.tr("secret"), a.tr("written, never shown")})
	}
	return append(lines, [2]string{a.tr("since"), "v1"})
}

func limit(prefix, value string) string {
	if value == "" {
		return ""
	}
	return prefix + value
}

// meaningOf is a field's description with its values and limits, on one line.
func meaningOf(f reflect.StructField) string {
	text := f.Tag.Get("doc")
	if enum := f.Tag.Get("enum"); enum != "" {
		text = strings.TrimPrefix(text+" ("+strings.ReplaceAll(enum, ",", " | ")+")", " ")
	}
	if e := f.Tag.Get("example"); e != "" {
		text = strings.TrimPrefix(text+", e.g. "+e, ", ")
	}
	return text
}

// form names a type as manifests have it.
func form(t reflect.Type) string {
	switch {
	case t.Kind() == reflect.Pointer:
		return form(t.Elem())
	case t == reflect.TypeFor[api.RDMA]():
		return "bool | object"
	case t == reflect.TypeFor[time.Time]():
		return "time"
	}
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "bool"
	case reflect.Int, reflect.Int64, reflect.Int32:
		return "integer"
	case reflect.Float64:
		return "number"
	case reflect.Slice:
		return "[]" + form(t.Elem())
	case reflect.Map:
		return "map of " + form(t.Elem())
	}
	return "object"
}
