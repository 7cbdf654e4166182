package cli

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// said returns every text that the sources of a package say through its catalogue: the argument of the
// functions named, by its position.
func said(t *testing.T, dir string, functions map[string]int) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no sources in %s: %v", dir, err)
	}
	var out []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if i, ok := functions[called(call)]; ok && i < len(call.Args) {
					if text, ok := literal(call.Args[i]); ok && text != "" {
						out = append(out, text)
					}
				}
			}
			return true
		})
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// called is the bare name of what a call calls.
func called(c *ast.CallExpr) string {
	switch f := c.Fun.(type) {
	case *ast.SelectorExpr:
		return f.Sel.Name
	case *ast.Ident:
		return f.Name
	}
	return ""
}

func literal(e ast.Expr) (string, bool) {
	switch x := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(x.Value)
		return s, err == nil
	case *ast.BinaryExpr:
		a, ok := literal(x.X)
		b, also := literal(x.Y)
		return a + b, ok && also
	}
	return "", false
}

// TestCatalogues: each text has its Chinese with the same placeholders in the same order, and no translation
// is of a text that nobody says any more.
func TestCatalogues(t *testing.T) {
	for dir, functions := range map[string]map[string]int{
		".":       {"tr": 0, "misuse": 0, "wrong": 2},
		"../demo": {"say": 0, "Say": 0, "chapter": 0},
	} {
		text, err := os.ReadFile(filepath.Join(dir, "zh.json"))
		if err != nil {
			t.Fatal(err)
		}
		zh := map[string]string{}
		if err := json.Unmarshal(text, &zh); err != nil {
			t.Fatalf("%s/zh.json: %v", dir, err)
		}
		texts := said(t, dir, functions)
		if len(texts) < 30 {
			t.Fatalf("%s says only %d texts: the test looks at the wrong thing", dir, len(texts))
		}
		verbs := regexp.MustCompile(`%[a-z]`)
		for _, en := range texts {
			other, ok := zh[en]
			if !ok {
				t.Errorf("%s/zh.json has no Chinese for %q", dir, en)
				continue
			}
			if a, b := verbs.FindAllString(en, -1), verbs.FindAllString(other, -1); !slices.Equal(a, b) {
				t.Errorf("%s/zh.json: placeholders of %q are %v, in Chinese %v", dir, en, a, b)
			}
			if !strings.ContainsFunc(other, func(r rune) bool { return r > 0x2e00 }) && strings.Trim(other, "%sv:：-jqonr ") != "" {
				t.Errorf("%s/zh.json: %q is not translated: %q", dir, en, other)
			}
		}
		for en := range zh {
			if !slices.Contains(texts, en) {
				t.Errorf("%s/zh.json translates %q, which nobody says", dir, en)
			}
		}
	}
}

func TestLanguage(t *testing.T) {
	for _, c := range []struct {
		args []string
		env  map[string]string
		want string
	}{
		{nil, nil, "en"},
		{nil, map[string]string{"LANG": "zh_CN.UTF-8"}, "zh"},
		{nil, map[string]string{"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"},
		{nil, map[string]string{"LANG": "de_DE.UTF-8", "LC_MESSAGES": "zh_TW"}, "zh"},
		{[]string{"get", "--lang", "zh"}, nil, "zh"},
		{[]string{"--lang=en", "get"}, map[string]string{"LC_ALL": "zh_CN"}, "en"},
	} {
		if got := Language(c.args, func(n string) string { return c.env[n] }); got != c.want {
			t.Errorf("Language(%q, %v) = %s, want %s", c.args, c.env, got, c.want)
		}
	}
}
