package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/verbena-cloud/verbena/"

// file is one parsed Go file of the tree.
type file struct {
	pkg  string // directory relative to the root without "internal/": "store/etcd", "api", "cmd/verbena"
	path string // relative to the root
	test bool
	main bool
	ast  *ast.File
	src  []byte
}

// tree is all Go source of the module.
type tree struct {
	fset  *token.FileSet
	files []file
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// load parses every Go file below the root.
func load(t *testing.T) tree {
	t.Helper()
	out := tree{fset: token.NewFileSet()}
	base := root(t)
	err := filepath.WalkDir(base, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			switch d.Name() {
			case ".git", ".cache", "bin", "node_modules", "testdata", "out":
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		f, err := parseFile(out.fset, base, path)
		if err != nil {
			return err
		}
		out.files = append(out.files, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func parseFile(fset *token.FileSet, base, path string) (file, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return file{}, err
	}
	rel, err := filepath.Rel(base, path)
	if err != nil {
		return file{}, err
	}
	a, err := parser.ParseFile(fset, rel, src, parser.ParseComments)
	if err != nil {
		return file{}, err
	}
	return file{
		pkg:  strings.TrimPrefix(filepath.ToSlash(filepath.Dir(rel)), "internal/"),
		path: filepath.ToSlash(rel),
		test: strings.HasSuffix(rel, "_test.go"),
		main: a.Name.Name == "main",
		ast:  a,
		src:  src,
	}, nil
}

// production yields the files that end up in a binary.
func (tr tree) production() []file {
	var out []file
	for _, f := range tr.files {
		if !f.test && f.pkg != "." {
			out = append(out, f)
		}
	}
	return out
}
