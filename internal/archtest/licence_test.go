package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/licensecheck"
)

// goModule is what `go list` tells about the module of a package.
type goModule struct {
	Path string
	Dir  string
	Main bool
}

// modules returns the modules that packages matched by args come from.
func modules(t *testing.T, args ...string) []goModule {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps", "-json=Module"}, args...)...)
	cmd.Dir = root(t)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	seen := map[string]goModule{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct{ Module *goModule }
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if p.Module != nil && !p.Module.Main {
			seen[p.Module.Path] = *p.Module
		}
	}
	var list []goModule
	for _, m := range seen {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b goModule) int { return strings.Compare(a.Path, b.Path) })
	return list
}

// TestLicences lets only permissive licences into the binary; MPL-2.0 may serve tests.
func TestLicences(t *testing.T) {
	permissive := []string{"Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "BSD-2-Clause-Views", "ISC", "0BSD", "Unlicense", "Zlib", "MIT-0"}
	shipped := modules(t, "./cmd/verbena")
	if len(shipped) < 20 {
		t.Fatalf("only %d modules found in the binary: the gate looks at the wrong thing", len(shipped))
	}
	for _, m := range shipped {
		checkLicence(t, m, permissive)
	}
	for _, m := range modules(t, "-test", "./...") {
		checkLicence(t, m, append(permissive, "MPL-2.0"))
	}
}

func checkLicence(t *testing.T, m goModule, allowed []string) {
	t.Helper()
	found := false
	for _, name := range licenceFiles(t, m.Dir) {
		text, err := os.ReadFile(filepath.Join(m.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range licensecheck.Scan(text).Match {
			found = true
			if !slices.Contains(allowed, match.ID) && !reference(match.ID) {
				t.Errorf("%s: %s has licence %s; it may not be used here", m.Path, name, match.ID)
			}
		}
	}
	if !found {
		t.Errorf("%s: no licence was recognised in %s", m.Path, m.Dir)
	}
}

// reference reports matches that only point at a text or grant, such as a licence header inside a notice.
func reference(id string) bool {
	return strings.HasPrefix(id, "Google-Patent") || strings.HasSuffix(id, "-Header") || strings.HasPrefix(id, "Apache-2.0-") || strings.HasPrefix(id, "CC-BY")
}

func licenceFiles(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		up := strings.ToUpper(e.Name())
		if !e.IsDir() && (strings.HasPrefix(up, "LICENSE") || strings.HasPrefix(up, "LICENCE") || strings.HasPrefix(up, "COPYING")) && !strings.HasSuffix(up, ".DOCS") {
			names = append(names, e.Name())
		}
	}
	return names
}
