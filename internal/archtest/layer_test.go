package archtest

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// layer is one line of LAYERS.txt.
type layer struct {
	level string
	ours  []string
	third []string
}

func layers(t *testing.T) map[string]layer {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), "internal", "LAYERS.txt"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]layer{}
	level := ""
	for n, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if l, ok := strings.CutPrefix(line, "## "); ok {
			level = l
			continue
		}
		if line == "" || line[0] == '#' {
			continue
		}
		name, rest, ok := strings.Cut(line, ":")
		if !ok {
			t.Fatalf("LAYERS.txt:%d: want 'package: imports | modules'", n+1)
		}
		ours, third, _ := strings.Cut(rest, "|")
		l := layer{level: level, ours: strings.Fields(ours), third: strings.Fields(third)}
		for _, dep := range l.ours {
			if _, known := out[dep]; !known {
				t.Errorf("LAYERS.txt:%d: %s may import %s, which stands on no earlier line: a cycle or a misspelling", n+1, name, dep)
			}
		}
		if _, twice := out[name]; twice {
			t.Errorf("LAYERS.txt:%d: %s stands here twice", n+1, name)
		}
		out[name] = l
	}
	return out
}

func TestLayers(t *testing.T) {
	allowed := layers(t)
	seen := map[string]bool{}
	for _, f := range load(t).production() {
		l, ok := allowed[f.pkg]
		if strings.HasPrefix(f.pkg, "lab") || f.pkg == "archtest" {
			continue
		}
		if !ok {
			if !seen[f.pkg] {
				t.Errorf("%s: package has no line in internal/LAYERS.txt", f.pkg)
			}
			seen[f.pkg] = true
			continue
		}
		seen[f.pkg] = true
		for _, imp := range f.ast.Imports {
			path, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if why := forbidden(l, path); why != "" {
				t.Errorf("%s: %s may not import %s: %s", f.path, f.pkg, path, why)
			}
		}
	}
	for name := range allowed {
		if !seen[name] {
			t.Errorf("LAYERS.txt names %s, which is gone", name)
		}
	}
}

// forbidden says why a package of layer l may not import path, or "".
func forbidden(l layer, path string) string {
	if own, ok := strings.CutPrefix(path, module); ok {
		own = strings.TrimPrefix(own, "internal/")
		if !slices.Contains(l.ours, own) {
			return "LAYERS.txt does not list it"
		}
		return ""
	}
	if strings.Contains(strings.SplitN(path, "/", 2)[0], ".") {
		if !slices.ContainsFunc(l.third, func(m string) bool { return strings.HasPrefix(path, m) }) {
			return "LAYERS.txt does not list this module for it"
		}
		return ""
	}
	if l.level == "rules" && impure(path) {
		return "rules are pure: no I/O, clock, randomness or logging"
	}
	return ""
}

func impure(path string) bool {
	switch path {
	case "os", "os/exec", "net", "net/http", "math/rand", "math/rand/v2", "crypto/rand", "log", "log/slog", "syscall", "os/signal":
		return true
	}
	return false
}

// TestProgramsMeetOnlyInMain keeps server and agent apart even in their tests: what both need is in wire.
func TestProgramsMeetOnlyInMain(t *testing.T) {
	for _, f := range load(t).files {
		for _, imp := range f.ast.Imports {
			path, _ := strconv.Unquote(imp.Path.Value)
			own, ok := strings.CutPrefix(path, module+"internal/")
			if !ok {
				continue
			}
			if (f.pkg == "server" && own == "agent") || (f.pkg == "agent" && own == "server") || (f.pkg == "cli" && (own == "server" || own == "agent")) {
				t.Errorf("%s: %s may not import %s: they share only wire", f.path, f.pkg, own)
			}
		}
	}
}
