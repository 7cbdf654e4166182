package archtest

import (
	"bytes"
	"context"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/cli"
)

// faultKinds returns the kinds that package fault declares.
func faultKinds(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root(t), "internal", "fault", "fault.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || len(v.Values) != 1 {
			return true
		}
		id, typed := v.Type.(*ast.Ident)
		lit, text := v.Values[0].(*ast.BasicLit)
		if typed && text && id.Name == "Kind" {
			kind, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			out[v.Names[0].Name] = kind
		}
		return true
	})
	if len(out) < 10 {
		t.Fatalf("only %d kinds of fault were found", len(out))
	}
	return out
}

// wireStatuses reads from the server's table which HTTP status each kind has and whether it may be tried again.
func wireStatuses(t *testing.T) map[string][2]string {
	t.Helper()
	kinds := faultKinds(t)
	status := map[string]int{}
	for code := 100; code < 600; code++ {
		if text := http.StatusText(code); text != "" {
			status["Status"+strings.NewReplacer(" ", "", "-", "", "'", "").Replace(text)] = code
		}
	}
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root(t), "internal", "server", "problem.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][2]string{}
	ast.Inspect(f, func(n ast.Node) bool {
		lit, ok := n.(*ast.CompositeLit)
		if !ok || len(lit.Elts) != 5 {
			return true
		}
		kind, isKind := lit.Elts[0].(*ast.SelectorExpr)
		code, isCode := lit.Elts[1].(*ast.SelectorExpr)
		retry, isBool := lit.Elts[3].(*ast.Ident)
		if !isKind || !isCode || !isBool {
			return true
		}
		n2, known := status[code.Sel.Name]
		if !known {
			t.Errorf("problem.go: the status of %s is not understood", code.Sel.Name)
		}
		again := map[string]string{"true": "yes", "false": "no"}[retry.Name]
		out[kinds[kind.Sel.Name]] = [2]string{strconv.Itoa(n2), again}
		return true
	})
	return out
}

// answering is a server that answers everything with one problem.
type answering struct{ code string }

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := json.Marshal(api.Problem{Code: a.code, Title: a.code, Status: http.StatusTeapot, Detail: "no"})
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusTeapot, Request: r, Header: http.Header{"Content-Type": {"application/problem+json"}},
		Body: io.NopCloser(bytes.NewReader(body)), ProtoMajor: 1, ProtoMinor: 1}, nil
}

// exitOf is the exit code with which the command line ends when the server answers with a kind of fault.
func exitOf(ctx context.Context, kind string) string {
	env := cli.Env{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, Transport: answering{kind},
		Getenv: func(name string) string { return map[string]string{"VERBENA_TOKEN": "t"}[name] }}
	return strconv.Itoa(cli.Main(ctx, env, []string{"whoami", "--server", "http://127.0.0.1:1"}, cli.Programs{}))
}

// TestDocsErrors holds the table of errors against the code, in both languages: no kind is missing, and
// status, exit code and whether to try again are as they are.
func TestDocsErrors(t *testing.T) {
	wire := wireStatuses(t)
	for _, name := range []string{"docs/errors.md", chinese + "/errors.md"} {
		words := map[string]string{} // what the page's language has for yes and no
		rows := map[string][]string{}
		for _, l := range lines(page(t, name)) {
			cells := strings.Split(l.text, "|")
			if !l.code && len(cells) > 6 && strings.HasPrefix(strings.TrimSpace(cells[1]), "`") {
				for i := range cells {
					cells[i] = strings.TrimSpace(cells[i])
				}
				rows[strings.Trim(cells[1], "`")] = cells[2:]
			}
		}
		for _, kind := range faultKinds(t) {
			row, ok := rows[kind]
			if !ok {
				t.Errorf("%s: kind %s is missing", name, kind)
				continue
			}
			delete(rows, kind)
			again := wire[kind][1]
			if words[again] == "" {
				words[again] = row[2]
			}
			want := []string{wire[kind][0], exitOf(t.Context(), kind), words[again]}
			if got := row[:3]; !slices.Equal(got, want) {
				t.Errorf("%s: %s has status, exit code and again %v, the code says %v", name, kind, got, want)
			}
		}
		for kind := range rows {
			t.Errorf("%s: there is no kind %s", name, kind)
		}
		if words["yes"] == words["no"] {
			t.Errorf("%s: whether to try again is %q for all kinds", name, words["yes"])
		}
	}
}

// constants returns the texts of a package's string constants whose names begin with prefix.
func constants(t *testing.T, dir, prefix string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root(t), dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok || len(v.Values) != 1 || !strings.HasPrefix(v.Names[0].Name, prefix) {
				return true
			}
			if lit, ok := v.Values[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
				text, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, text)
			}
			return true
		})
	}
	return out
}

var ruleNames = regexp.MustCompile(`\[\.\.\.\]string\{"", ([^}]+)\}\[r\]`)

// TestDocsWords wants a row for each rule of placement, each state of a VF and each phase of a VM.
func TestDocsWords(t *testing.T) {
	var rules []string
	if m := ruleNames.FindStringSubmatch(page(t, "internal/sched/sched.go")); m != nil {
		for _, r := range strings.Split(m[1], ",") {
			rules = append(rules, strings.Trim(strings.TrimSpace(r), `"`))
		}
	}
	for _, c := range []struct {
		page  string
		words []string
	}{
		{"placement.md", rules},
		{"vf.md", constants(t, "api", "VF")},
		{"errors.md", constants(t, "api", "Phase")},
		{"host.md", constants(t, "api", "Host")},
		{"identity.md", constants(t, "internal/auth", "Platform")},
	} {
		if len(c.words) == 0 {
			t.Errorf("%s: the code has no words for it", c.page)
		}
		for _, dir := range []string{"docs/", chinese + "/"} {
			cells := map[string]bool{} // what stands as code in the first cell of a row
			for _, l := range lines(page(t, dir+c.page)) {
				if first := strings.SplitN(l.text, "|", 3); !l.code && len(first) == 3 && first[0] == "" {
					for _, w := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(first[1], -1) {
						cells[w[1]] = true
					}
				}
			}
			for _, w := range c.words {
				if !cells[w] {
					t.Errorf("%s%s has no row for %s", dir, c.page, w)
				}
			}
		}
	}
}
