package archtest

import (
	"bytes"
	"go/ast"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The limits of size; tables and generated code are the reason to raise them, in review.
const (
	maxFile   = 600
	maxFunc   = 100
	maxParams = 5
	maxIface  = 5
)

func TestPackageDocs(t *testing.T) {
	docs := map[string]int{}
	for _, f := range load(t).production() {
		if _, ok := docs[f.pkg]; !ok {
			docs[f.pkg] = 0
		}
		if f.ast.Doc != nil {
			docs[f.pkg]++
		}
	}
	for pkg, n := range docs {
		if n != 1 {
			t.Errorf("%s has %d package docs, want exactly one", pkg, n)
		}
	}
}

func TestExportedDocs(t *testing.T) {
	for _, f := range load(t).production() {
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Doc == nil && exportedReceiver(d) {
					t.Errorf("%s: %s has no doc comment", f.path, d.Name.Name)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if ts, ok := s.(*ast.TypeSpec); ok && ts.Name.IsExported() && d.Doc == nil && ts.Doc == nil {
						t.Errorf("%s: type %s has no doc comment", f.path, ts.Name.Name)
					}
				}
			}
		}
	}
}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	x := d.Recv.List[0].Type
	for {
		switch y := x.(type) {
		case *ast.StarExpr:
			x = y.X
		case *ast.IndexExpr:
			x = y.X
		case *ast.IndexListExpr:
			x = y.X
		case *ast.Ident:
			return y.IsExported()
		default:
			return false
		}
	}
}

func TestSizes(t *testing.T) {
	tr := load(t)
	var lens []int
	for _, f := range tr.production() {
		if n := bytes.Count(f.src, []byte("\n")); n > maxFile {
			t.Errorf("%s has %d lines, the limit is %d", f.path, n, maxFile)
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				lens = append(lens, checkFunc(t, tr.fset, f, n))
			case *ast.InterfaceType:
				if n.Methods.NumFields() > maxIface {
					t.Errorf("%s: an interface has %d methods, the limit is %d", tr.fset.Position(n.Pos()), n.Methods.NumFields(), maxIface)
				}
			}
			return true
		})
	}
	slices.Sort(lens)
	if p90 := lens[len(lens)*9/10]; p90 > 45 {
		t.Errorf("the 90th percentile of function length is %d lines, the limit is 45", p90)
	}
}

func checkFunc(t *testing.T, fset *token.FileSet, f file, d *ast.FuncDecl) int {
	t.Helper()
	lines := fset.Position(d.End()).Line - fset.Position(d.Pos()).Line + 1
	if lines > maxFunc {
		t.Errorf("%s: %s has %d lines, the limit is %d", f.path, d.Name.Name, lines, maxFunc)
	}
	if n := d.Type.Params.NumFields(); n > maxParams {
		t.Errorf("%s: %s has %d parameters, the limit is %d", f.path, d.Name.Name, n, maxParams)
	}
	return lines
}

func TestNoMutableGlobals(t *testing.T) {
	for _, f := range load(t).production() {
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.Name == "init" && d.Recv == nil {
					t.Errorf("%s: init() runs before anybody can pass it anything; make a constructor", f.path)
				}
			case *ast.GenDecl:
				if d.Tok == token.VAR {
					checkGlobals(t, f, d)
				}
			}
		}
	}
}

func checkGlobals(t *testing.T, f file, d *ast.GenDecl) {
	t.Helper()
	for _, s := range d.Specs {
		v, ok := s.(*ast.ValueSpec)
		if !ok || embedded(d) || (v.Doc != nil && strings.Contains(v.Doc.Text()+commentText(v.Doc), "go:embed")) {
			continue
		}
		for i, name := range v.Names {
			if name.Name == "_" || setByLinker(f, name.Name) || (i < len(v.Values) && constantLike(v.Values[i])) {
				continue
			}
			t.Errorf("%s: package variable %s can be changed by anybody; make it a function, a constant or a field", f.path, name.Name)
		}
	}
}

func commentText(c *ast.CommentGroup) string {
	if c == nil {
		return ""
	}
	var b strings.Builder
	for _, l := range c.List {
		b.WriteString(l.Text)
	}
	return b.String()
}

// setByLinker lets the version pass, which -ldflags -X can put into a variable only.
func setByLinker(f file, name string) bool { return f.main && name == "version" }

func embedded(d *ast.GenDecl) bool { return strings.Contains(commentText(d.Doc), "go:embed") }

// constantLike lets pass what Go has no constants for: compiled patterns and sentinel errors.
func constantLike(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	pkg, ok := sel.X.(*ast.Ident)
	if !ok {
		return false
	}
	switch pkg.Name + "." + sel.Sel.Name {
	case "regexp.MustCompile", "errors.New", "fault.New":
		return true
	}
	return false
}

// call is a forbidden call: where it is allowed and why it is forbidden elsewhere.
type call struct {
	name    string
	allowed func(f file) bool
	why     string
}

func calls(level func(pkg string) string) []call {
	never := func(file) bool { return false }
	return []call{
		{"context.TODO", never, "a context that ends nowhere"},
		{"context.Background", func(f file) bool { return f.test || f.main }, "pass the caller's context"},
		{"os.Getenv", func(f file) bool { return f.main || f.test || f.path == "internal/cli/config.go" }, "the environment is read in one place"},
		{"os.LookupEnv", func(f file) bool { return f.main || f.test || f.path == "internal/cli/config.go" }, "the environment is read in one place"},
		{"os.Exit", func(f file) bool { return f.main || f.test }, "only main ends the program"},
		{"time.Now", func(f file) bool {
			l := level(f.pkg)
			return f.test || (l != "rules" && l != "contracts" && l != "words")
		}, "time is an argument"},
		{"time.Sleep", never, "wait for the event itself (testing/synctest, a channel)"},
		{"panic", func(f file) bool { return f.test }, "return an error"},
	}
}

func TestForbiddenCalls(t *testing.T) {
	l := layers(t)
	tr := load(t)
	list := calls(func(pkg string) string { return l[pkg].level })
	for _, f := range tr.files {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				if !f.test && l[f.pkg].level == "rules" {
					t.Errorf("%s: rules start no goroutines", tr.fset.Position(n.Pos()))
				}
			case *ast.CallExpr:
				name := callName(n)
				for _, c := range list {
					if c.name == name && !c.allowed(f) {
						t.Errorf("%s: %s: %s", tr.fset.Position(n.Pos()), name, c.why)
					}
				}
			}
			return true
		})
	}
}

func callName(c *ast.CallExpr) string {
	switch fun := c.Fun.(type) {
	case *ast.Ident:
		return fun.Name
	case *ast.SelectorExpr:
		if x, ok := fun.X.(*ast.Ident); ok {
			return x.Name + "." + fun.Sel.Name
		}
	}
	return ""
}

var (
	nolint = regexp.MustCompile(`//\s*nolint`)
	reason = regexp.MustCompile(`//nolint:[a-z,]+ // .{10,}`)
)

func TestNolintHasReason(t *testing.T) {
	for _, f := range load(t).files {
		if f.pkg == "archtest" {
			continue
		}
		for i, line := range strings.Split(string(f.src), "\n") {
			if nolint.MatchString(line) && !reason.MatchString(line) {
				t.Errorf("%s:%d: write //nolint:NAME // and the reason", f.path, i+1)
			}
		}
	}
}

// TestNames keeps out the words for odds and ends.
func TestNames(t *testing.T) {
	bad := regexp.MustCompile(`^(util|utils|common|types|consts|vars|manager|impl|helper|helpers|misc|base|lib)$`)
	for _, f := range load(t).files {
		if last := filepath.Base(f.pkg); bad.MatchString(last) || strings.Contains(last, "_") {
			t.Errorf("%s: package %s: name it for its domain noun", f.path, f.pkg)
		}
	}
}
