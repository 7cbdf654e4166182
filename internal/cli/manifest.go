package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/client"
)

const maxManifest = 16 << 20 // bytes of one file

// source is a text that manifests are read from.
type source struct {
	name  string
	lines []string
}

// place is a position in a source, from 1.
type place struct{ line, column int }

// wrong is a fault of a manifest and where it is.
type wrong struct {
	source *source
	at     place
	text   string
}

// String shows the fault with the lines around it and a mark under its place.
func (w wrong) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:%d:%d: %s", w.source.name, w.at.line, w.at.column, w.text)
	for n := max(1, w.at.line-1); n <= min(w.at.line, len(w.source.lines)); n++ {
		mark := ' '
		if n == w.at.line {
			mark = '>'
		}
		fmt.Fprintf(&b, "\n  %c%4d | %s", mark, n, printable(w.source.lines[n-1]))
	}
	if w.at.line <= len(w.source.lines) {
		fmt.Fprintf(&b, "\n        | %s^", strings.Repeat(" ", w.margin()))
	}
	return b.String()
}

// margin is how far the mark is to the right, in columns of a terminal.
func (w wrong) margin() int {
	runes := []rune(w.source.lines[w.at.line-1])
	return width(string(runes[:max(0, min(w.at.column-1, len(runes)))]))
}

// manifestError is everything that is wrong with a set of manifests.
type manifestError struct {
	head   string
	faults []wrong
}

func (e *manifestError) Error() string {
	var b strings.Builder
	b.WriteString(e.head)
	for _, f := range e.faults {
		b.WriteString("\n\n")
		b.WriteString(f.String())
	}
	return b.String()
}

// document is one object of a manifest.
type document struct {
	source *source
	start  place
	kind   client.Type
	meta   api.Meta
	tree   map[string]any
	places map[string]place // JSON path to where its value stands
}

// title is how people call the document's object.
func (d *document) title() string {
	if d.meta.Tenant != "" {
		return d.kind.Short + "/" + d.meta.Name + " (" + d.meta.Tenant + ")"
	}
	return d.kind.Short + "/" + d.meta.Name
}

// at finds the place of a path or of the nearest thing around it.
func (d *document) at(path string) place {
	for path != "" {
		if p, ok := d.places[path]; ok {
			return p
		}
		cut := max(strings.LastIndexByte(path, '.'), strings.LastIndexByte(path, '['))
		path = path[:max(cut, 0)]
	}
	return d.start
}

// readManifests reads files, all manifests of directories, and stdin ("-"). It returns the documents in the
// order in which they can be created, or every fault of all of them.
func (a *app) readManifests(paths []string, tenant string) ([]*document, error) {
	if len(paths) == 0 {
		return nil, a.misuse("say which manifests: -f FILE, -f DIRECTORY or -f -")
	}
	r := &reader{a: a, tenant: tenant, seen: map[string]*document{}}
	for _, p := range paths {
		if err := r.path(p); err != nil {
			return nil, err
		}
	}
	if len(r.faults) > 0 {
		return nil, r.err()
	}
	if len(r.docs) == 0 {
		return nil, &coded{exitError, a.tr("there is no object in %s", strings.Join(paths, ", "))}
	}
	order := client.Types()
	rank := func(d *document) int {
		return slices.IndexFunc(order, func(t client.Type) bool { return t.Kind == d.kind.Kind })
	}
	slices.SortStableFunc(r.docs, func(x, y *document) int { return rank(x) - rank(y) })
	return r.docs, nil
}

// reader collects documents and faults.
type reader struct {
	a      *app
	tenant string // of documents that name none
	docs   []*document
	faults []wrong
	seen   map[string]*document
}

func (r *reader) err() error {
	head := r.a.tr("1 fault in the manifests; nothing was sent")
	if len(r.faults) > 1 {
		head = r.a.tr("%d faults in the manifests; nothing was sent", len(r.faults))
	}
	return &manifestError{head, r.faults}
}

func (r *reader) path(path string) error {
	if path == "-" {
		return r.stream("<stdin>", r.a.env.Stdin)
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("read manifests: %w", err)
	}
	if !info.IsDir() {
		return r.file(path)
	}
	return filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("read manifests: %w", err)
		}
		if d.IsDir() && p != path && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		switch filepath.Ext(p) {
		case ".yaml", ".yml", ".json":
			if !d.IsDir() {
				return r.file(p)
			}
		}
		return nil
	})
}

func (r *reader) file(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read manifests: %w", err)
	}
	defer f.Close()
	return r.stream(path, f)
}

func (r *reader) stream(name string, in io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(in, maxManifest+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if len(text) > maxManifest {
		return &coded{exitError, r.a.tr("%s is larger than %d MiB: that is no manifest", name, maxManifest>>20)}
	}
	r.parse(name, text)
	return nil
}

// parse reads all documents of a text.
func (r *reader) parse(name string, text []byte) {
	text = bytes.ReplaceAll(bytes.TrimPrefix(text, []byte("\ufeff")), []byte("\r\n"), []byte("\n"))
	src := &source{name: name, lines: strings.Split(string(text), "\n")}
	if i := bytes.IndexFunc(text, func(c rune) bool { return c == '\ufffd' || (c < ' ' && c != '\n' && c != '\t') || c == 0x7f }); i >= 0 {
		before := string(text[:i])
		line := strings.Count(before, "\n") + 1
		r.add(src, place{line, len([]rune(before[strings.LastIndexByte(before, '\n')+1:])) + 1}, r.a.tr("a byte that is no text; is the file UTF-8?"))
		return
	}
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		r.syntax(src, err)
		return
	}
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		r.body(src, doc.Body)
	}
}

func (r *reader) add(src *source, at place, text string) {
	r.faults = append(r.faults, wrong{src, at, text})
}

func (r *reader) syntax(src *source, err error) {
	e, ok := errors.AsType[yaml.Error](err)
	if !ok {
		r.add(src, place{1, 1}, err.Error())
		return
	}
	at := place{1, 1}
	if t := e.GetToken(); t != nil && t.Position != nil {
		at = place{t.Position.Line, t.Position.Column}
	}
	r.add(src, at, e.GetMessage())
}

// body reads one document, or the items of a list such as `get -o json` writes.
func (r *reader) body(src *source, node ast.Node) {
	fields, ok := mapping(node)
	if !ok {
		r.add(src, placeOf(node), r.a.tr("an object is expected: kind, name, spec"))
		return
	}
	var kind, items ast.Node
	for _, f := range fields {
		switch f.name {
		case "kind":
			kind = f.value
		case "items":
			items = f.value
		}
	}
	if list, ok := items.(*ast.SequenceNode); ok && kind == nil {
		for _, item := range list.Values {
			r.body(src, item)
		}
		return
	}
	r.object(src, node, kind)
}

func (r *reader) object(src *source, node, kind ast.Node) {
	d := &document{source: src, start: placeOf(node), places: map[string]place{}}
	name := scalarText(kind)
	if name == "" {
		r.add(src, d.start, r.a.tr("kind is missing; there are %s", strings.Join(r.kinds(), ", ")))
		return
	}
	var known bool
	if d.kind, known = client.TypeOf(name); !known || string(d.kind.Kind) != name || d.kind.ReadOnly {
		text := r.a.tr("there is no kind %s; there are %s", name, strings.Join(r.kinds(), ", "))
		if near := nearest(name, r.kinds()); near != "" {
			text = r.a.tr("there is no kind %s; do you mean %s?", name, near)
		}
		r.add(src, placeOf(kind), text)
		return
	}
	before := len(r.faults)
	c := &converter{r: r, doc: d, anchors: map[string]ast.Node{}}
	tree, _ := c.value(node, spot{typ: typeOf(d.kind.Kind)}).(map[string]any)
	if len(r.faults) > before {
		return
	}
	d.tree = tree
	r.identify(d)
}

func (r *reader) kinds() []string {
	var names []string
	for _, t := range client.Types() {
		if !t.ReadOnly {
			names = append(names, string(t.Kind))
		}
	}
	return names
}

// identify finds out whose name the document bears, and that no other has it.
func (r *reader) identify(d *document) {
	d.meta.Kind = d.kind.Kind
	d.meta.Name, _ = d.tree["name"].(string)
	d.meta.Tenant, _ = d.tree["tenant"].(string)
	if d.meta.Name == "" {
		r.add(d.source, d.start, r.a.tr("name is missing"))
		return
	}
	if d.kind.Tenanted && d.meta.Tenant == "" {
		if r.tenant == "" {
			r.add(d.source, d.start, r.a.tr("a %s belongs to a tenant: write tenant: NAME, or say --tenant NAME", d.kind.Kind))
			return
		}
		d.meta.Tenant = r.tenant
		d.tree["tenant"] = r.tenant
	}
	if !d.kind.Tenanted && d.meta.Tenant != "" {
		r.add(d.source, d.at("tenant"), r.a.tr("a %s belongs to no tenant", d.kind.Kind))
		return
	}
	if d.tree["spec"] == nil {
		r.add(d.source, d.start, r.a.tr("spec is missing"))
		return
	}
	for _, written := range []string{"status", "uid", "created", "deleting", "revision"} {
		delete(d.tree, written) // people send back what they have read
	}
	key := d.title()
	if old := r.seen[key]; old != nil {
		r.add(d.source, d.start, r.a.tr("%s stands already at %s:%d", key, old.source.name, old.start.line))
		return
	}
	r.seen[key] = d
	r.docs = append(r.docs, d)
}
