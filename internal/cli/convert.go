package cli

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/goccy/go-yaml/ast"

	"github.com/verbena-cloud/verbena/api"
)

// maxNodes bounds what aliases can blow a manifest up to.
const maxNodes = 200_000

// typeOf is the Go type of a kind.
func typeOf(k api.Kind) reflect.Type {
	switch k {
	case api.KindTenant:
		return reflect.TypeFor[api.Tenant]()
	case api.KindNetwork:
		return reflect.TypeFor[api.Network]()
	case api.KindSecurityGroup:
		return reflect.TypeFor[api.SecurityGroup]()
	case api.KindFlavor:
		return reflect.TypeFor[api.Flavor]()
	case api.KindImage:
		return reflect.TypeFor[api.Image]()
	case api.KindVM:
		return reflect.TypeFor[api.VM]()
	case api.KindHost:
		return reflect.TypeFor[api.Host]()
	case api.KindFabric:
		return reflect.TypeFor[api.Fabric]()
	case api.KindUser:
		return reflect.TypeFor[api.User]()
	case api.KindEvent:
		return reflect.TypeFor[api.Event]()
	case api.KindOperation:
		return reflect.TypeFor[api.Operation]()
	case api.KindToken:
		return reflect.TypeFor[api.Token]()
	default:
		return reflect.TypeFor[api.AuditRecord]()
	}
}

// spot is where a value belongs.
type spot struct {
	path string
	typ  reflect.Type // nil = anything
	tag  reflect.StructTag
}

// converter turns YAML into the JSON tree of a type, noting every fault with its place.
type converter struct {
	r       *reader
	doc     *document
	anchors map[string]ast.Node
	nodes   int
}

func (c *converter) wrong(n ast.Node, s spot, text string, args ...any) {
	said := c.r.a.tr(text, args...)
	if s.path != "" {
		said = s.path + ": " + said
	}
	c.r.add(c.doc.source, placeOf(n), said)
}

// value converts a node; nil stands for null and for what is wrong.
func (c *converter) value(n ast.Node, s spot) any {
	if c.nodes++; c.nodes > maxNodes {
		if c.nodes == maxNodes+1 {
			c.wrong(n, s, "the document is too large")
		}
		return nil
	}
	if _, noted := c.doc.places[s.path]; !noted && s.path != "" {
		c.doc.places[s.path] = placeOf(n)
	}
	switch n := n.(type) {
	case *ast.AnchorNode:
		c.anchors[n.Name.String()] = n.Value
		return c.value(n.Value, s)
	case *ast.AliasNode:
		return c.alias(n, s)
	case *ast.TagNode:
		c.wrong(n, s, "tags such as %s are not used here", n.Start.Value)
		return nil
	case *ast.NullNode, nil:
		return nil
	}
	for s.typ != nil && s.typ.Kind() == reflect.Pointer {
		s.typ = s.typ.Elem()
	}
	if fields, ok := mapping(n); ok {
		return c.mapping(n, fields, s)
	}
	if list, ok := n.(*ast.SequenceNode); ok {
		return c.sequence(list, s)
	}
	return c.scalar(n, s)
}

func (c *converter) alias(n *ast.AliasNode, s spot) any {
	name := n.Value.String()
	target, ok := c.anchors[name]
	if !ok {
		c.wrong(n, s, "there is no anchor &%s before", name)
		return nil
	}
	delete(c.anchors, name) // an alias inside its own anchor would never end
	defer func() { c.anchors[name] = target }()
	return c.value(target, s)
}

func (c *converter) mapping(n ast.Node, fields []field, s spot) any {
	out := map[string]any{}
	switch {
	case s.typ == nil:
		for _, f := range c.merged(fields) {
			out[f.name] = c.value(f.value, spot{path: join(s.path, f.name)})
		}
	case s.typ.Kind() == reflect.Map:
		for _, f := range c.merged(fields) {
			if v := c.value(f.value, spot{path: join(s.path, f.name), typ: s.typ.Elem()}); v != nil {
				out[f.name] = v
			}
		}
	case s.typ.Kind() == reflect.Struct && s.typ != reflect.TypeFor[time.Time]():
		c.structure(fields, s, out)
	default:
		c.wrong(n, s, "expected %s, not an object", c.wanted(s.typ))
		return nil
	}
	return out
}

func (c *converter) structure(fields []field, s spot, out map[string]any) {
	known := fieldsOf(s.typ)
	for _, f := range c.merged(fields) {
		k, ok := known[f.name]
		if !ok {
			c.unknown(f, s, known)
			continue
		}
		next := spot{path: join(s.path, f.name), typ: k.Type, tag: k.Tag}
		if s.path == "" && f.name == "status" {
			next.typ = nil // pasted from an answer: not looked at
		}
		if v := c.value(f.value, next); v != nil {
			out[f.name] = v
		}
	}
}

func (c *converter) unknown(f field, s spot, known map[string]reflect.StructField) {
	names := make([]string, 0, len(known))
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	at := spot{path: join(s.path, f.name)}
	if near := nearest(f.name, names); near != "" {
		c.wrong(f.key, at, "unknown field; do you mean %s?", near)
		return
	}
	c.wrong(f.key, at, "unknown field; there are %s", strings.Join(names, ", "))
}

// merged resolves `<<: *anchor`.
func (c *converter) merged(fields []field) []field {
	var out []field
	own := map[string]bool{}
	for _, f := range fields {
		own[f.name] = true
	}
	for _, f := range fields {
		if f.name != "<<" {
			out = append(out, f)
			continue
		}
		n := f.value
		if alias, ok := n.(*ast.AliasNode); ok {
			n = c.anchors[alias.Value.String()]
		}
		more, ok := mapping(n)
		if !ok {
			c.wrong(f.value, spot{}, "<< takes an alias of an object")
			continue
		}
		for _, m := range more {
			if !own[m.name] && m.name != "<<" {
				own[m.name] = true
				out = append(out, m)
			}
		}
	}
	return out
}

func (c *converter) sequence(n *ast.SequenceNode, s spot) any {
	var elem reflect.Type
	if s.typ != nil {
		if s.typ.Kind() != reflect.Slice {
			c.wrong(n, s, "expected %s, not a list", c.wanted(s.typ))
			return nil
		}
		elem = s.typ.Elem()
	}
	out := make([]any, 0, len(n.Values))
	for i, v := range n.Values {
		out = append(out, c.value(v, spot{path: s.path + "[" + strconv.Itoa(i) + "]", typ: elem}))
	}
	return out
}

func (c *converter) scalar(n ast.Node, s spot) any {
	v, ok := plain(n)
	if !ok {
		c.wrong(n, s, "this form of YAML is not understood here")
		return nil
	}
	if s.typ == nil || (s.typ == reflect.TypeFor[api.RDMA]() && isBool(v)) {
		return v
	}
	switch s.typ.Kind() {
	case reflect.String:
		return c.text(n, s, v)
	case reflect.Bool:
		if isBool(v) {
			return v
		}
	case reflect.Int, reflect.Int64, reflect.Int32:
		if i, ok := v.(int64); ok {
			return c.bounded(n, s, i)
		}
	case reflect.Float64:
		switch v.(type) {
		case int64, float64:
			return v
		}
	case reflect.Struct:
		if text, ok := v.(string); ok && s.typ == reflect.TypeFor[time.Time]() {
			return text
		}
	}
	c.wrong(n, s, "expected %s, not %s", c.wanted(s.typ), c.r.a.saidValue(v))
	return nil
}

func isBool(v any) bool { _, ok := v.(bool); return ok }

// isQuantity reports whether the example of a field is a number with a unit, such as 16GiB.
func isQuantity(example string) bool {
	rest := strings.TrimLeft(example, "0123456789")
	return rest != example && strings.IndexFunc(rest, unicode.IsUpper) == 0
}

func (c *converter) text(n ast.Node, s spot, v any) any {
	text, ok := v.(string)
	if example := s.tag.Get("example"); !ok && isQuantity(example) {
		c.wrong(n, s, "%s has no unit; write for example %s", c.r.a.saidValue(v), example)
		return nil
	}
	if !ok {
		c.wrong(n, s, "expected text, not %s; put it in quotes if you mean it", c.r.a.saidValue(v))
		return nil
	}
	if enum := s.tag.Get("enum"); enum != "" && text != "" && !slices.Contains(strings.Split(enum, ","), text) {
		c.wrong(n, s, "%q is none of %s", text, strings.ReplaceAll(enum, ",", ", "))
		return nil
	}
	return text
}

func (c *converter) bounded(n ast.Node, s spot, i int64) any {
	if low, err := strconv.ParseInt(s.tag.Get("minimum"), 10, 64); err == nil && i < low {
		c.wrong(n, s, "%d is less than %d", i, low)
		return nil
	}
	if high, err := strconv.ParseInt(s.tag.Get("maximum"), 10, 64); err == nil && i > high {
		c.wrong(n, s, "%d is more than %d", i, high)
		return nil
	}
	return i
}

// wanted names a type in words.
func (c *converter) wanted(t reflect.Type) string {
	a := c.r.a
	if t == reflect.TypeFor[api.RDMA]() {
		return a.tr("true, false or an object")
	}
	switch t.Kind() {
	case reflect.String:
		return a.tr("text")
	case reflect.Bool:
		return a.tr("true or false")
	case reflect.Int, reflect.Int64, reflect.Int32:
		return a.tr("a whole number")
	case reflect.Slice:
		return a.tr("a list")
	case reflect.Float64:
		return a.tr("a number")
	}
	if t == reflect.TypeFor[time.Time]() {
		return a.tr("a time such as 2026-05-01T12:00:00Z")
	}
	return a.tr("an object")
}

// saidValue quotes a scalar shortly.
func (a *app) saidValue(v any) string {
	if s, ok := v.(string); ok {
		if len([]rune(s)) > 40 {
			s = string([]rune(s)[:40]) + "…"
		}
		return strconv.Quote(s)
	}
	return fmt.Sprint(v)
}

// plain is a scalar's value: string, int64, float64 or bool.
func plain(n ast.Node) (any, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.BoolNode:
		return n.Value, true
	case *ast.FloatNode:
		if n.Value == math.Trunc(n.Value) && math.Abs(n.Value) < 1<<53 {
			return int64(n.Value), true
		}
		return n.Value, true
	case *ast.IntegerNode:
		switch v := n.Value.(type) {
		case int64:
			return v, true
		case uint64:
			if v <= math.MaxInt64 {
				return int64(v), true
			}
			return float64(v), true
		}
	}
	return nil, false
}

// field is a key of a mapping and its value.
type field struct {
	name  string
	key   ast.Node
	value ast.Node
}

// mapping returns the fields of a node that is a mapping.
func mapping(n ast.Node) ([]field, bool) {
	m, ok := n.(ast.MapNode)
	if !ok {
		return nil, false
	}
	var out []field
	for it := m.MapRange(); it.Next(); {
		key := ast.Node(it.Key())
		name := scalarText(key)
		if _, merge := key.(*ast.MergeKeyNode); merge {
			name = "<<"
		}
		out = append(out, field{name, key, it.Value()})
	}
	return out, true
}

func scalarText(n ast.Node) string {
	if n == nil {
		return ""
	}
	switch n := n.(type) {
	case *ast.MappingKeyNode:
		return scalarText(n.Value)
	case *ast.AnchorNode:
		return scalarText(n.Value)
	}
	v, ok := plain(n)
	if !ok {
		return ""
	}
	return fmt.Sprint(v)
}

// placeOf is where a node begins. The token of a mapping is the ':' behind its first key.
func placeOf(n ast.Node) place {
	if fields, ok := mapping(n); ok && len(fields) > 0 {
		if m, flow := n.(*ast.MappingNode); !flow || !m.IsFlowStyle {
			n = fields[0].key
		}
	}
	if n == nil || n.GetToken() == nil || n.GetToken().Position == nil {
		return place{1, 1}
	}
	p := n.GetToken().Position
	return place{p.Line, p.Column}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// fieldsOf are the fields of a struct by their JSON names, embedded ones included.
func fieldsOf(t reflect.Type) map[string]reflect.StructField {
	out := map[string]reflect.StructField{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || !f.IsExported() || name == "" || name == "-" {
			continue
		}
		out[name] = f
	}
	return out
}

// nearest is the known name that a mistyped one is probably meant to be, or "".
func nearest(name string, known []string) string {
	best, least := "", 3
	for _, k := range known {
		if d := distance(strings.ToLower(name), strings.ToLower(k)); d < least && d < len(k) {
			best, least = k, d
		}
	}
	return best
}

// distance counts the letters to change, add, drop or swap (optimal string alignment).
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return len(a) + len(b)
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}
