package server

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/oasdiff/oasdiff/checker"
	"github.com/oasdiff/oasdiff/diff"
	"github.com/oasdiff/oasdiff/load"
)

// committed is the API's description for those who do not run a server: client generators, reviewers.
const committed = "../../api/openapi.json"

var update = flag.Bool("update", false, "write what is committed from the code anew")

func TestOpenAPI(t *testing.T) {
	got := newFixture(t).s.docs.openapi
	if *update {
		if err := os.WriteFile(committed, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(committed)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("api/openapi.json is not what the server serves; look at the difference and run: make openapi")
	}
}

// The description is one that others can read, and says of each operation who may call it.
func TestOpenAPIIsSound(t *testing.T) {
	f := newFixture(t)
	doc, err := openapi3.NewLoader().LoadFromData(f.s.docs.openapi)
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			if op.OperationID == "" || ids[op.OperationID] {
				t.Errorf("%s %s: operation id %q is empty or not unique", method, path, op.OperationID)
			}
			ids[op.OperationID] = true
			if op.Extensions["x-permission"] == nil {
				t.Errorf("%s %s does not say which permission it needs", method, path)
			}
			if r := op.Responses.Value("default"); r == nil || r.Value.Content[problemType] == nil {
				t.Errorf("%s %s does not describe its problems", method, path)
			}
		}
	}
	if len(ids) != len(f.s.table) {
		t.Errorf("%d operations are described, %d routes are served", len(ids), len(f.s.table))
	}
	for name, s := range doc.Components.Schemas {
		if name == "ErrorModel" || name == "ErrorDetail" || s.Value.Properties["$schema"] != nil {
			t.Errorf("schema %s is left over from huma's defaults", name)
		}
	}
	rdma := doc.Components.Schemas["RDMA"].Value.OneOf
	if len(rdma) != 2 || !rdma[0].Value.Type.Is("boolean") || !rdma[1].Value.Type.Is("object") {
		t.Error("rdma must be a boolean or an object")
	}
}

// A change of the description must not break clients of the version that is out. A break that is meant
// stands in api/breaking.txt: the id of oasdiff's check, the operation or schema, and why.
func TestOpenAPIBreaksNobody(t *testing.T) {
	base, ok := baseDocument(t)
	if !ok {
		t.Skip("git knows no earlier version of api/openapi.json to compare with")
	}
	from, to := spec(t, base), spec(t, newFixture(t).s.docs.openapi)
	d, sources, err := diff.GetWithOperationsSourcesMap(diff.NewConfig(), from, to)
	if err != nil {
		t.Fatal(err)
	}
	allowed := allowedBreaks(t)
	localize := checker.NewDefaultLocalizer()
	for _, c := range checker.CheckBackwardCompatibility(checker.NewConfig(checker.GetAllChecks()), d, sources) {
		if c.GetLevel() < checker.ERR {
			continue
		}
		line := c.GetId() + " " + c.GetOperation() + " " + c.GetPath()
		if slices.ContainsFunc(allowed, func(a string) bool { return strings.HasPrefix(line, a) }) {
			continue
		}
		t.Errorf("%s: %s", line, c.GetUncolorizedText(localize))
	}
}

func allowedBreaks(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile("../../api/breaking.txt")
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		entry, why, ok := strings.Cut(strings.TrimSpace(line), "#")
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		if !ok || len(strings.TrimSpace(why)) < 10 {
			t.Errorf("api/breaking.txt: %q has no reason behind a #", line)
		}
		out = append(out, entry)
	}
	return out
}

// baseDocument is the description where this branch left the main one, or on the main branch the one
// before the last commit.
func baseDocument(t *testing.T) ([]byte, bool) {
	t.Helper()
	git := func(args ...string) (string, bool) {
		out, err := exec.CommandContext(t.Context(), "git", args...).Output()
		return strings.TrimSpace(string(out)), err == nil
	}
	head, ok := git("rev-parse", "HEAD")
	if !ok {
		return nil, false
	}
	base, ok := git("merge-base", "HEAD", "origin/main")
	if !ok {
		return nil, false
	}
	if base == head {
		if base, ok = git("rev-parse", "HEAD~1"); !ok {
			return nil, false
		}
	}
	doc, ok := git("show", base+":api/openapi.json")
	return []byte(doc), ok
}

func spec(t *testing.T, doc []byte) *load.SpecInfo {
	t.Helper()
	path := filepath.Join(t.TempDir(), "openapi.json")
	if err := os.WriteFile(path, doc, 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := load.NewSpecInfo(openapi3.NewLoader(), load.NewSource(path))
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// The reference is complete and loads nothing from anywhere else.
func TestDocsPages(t *testing.T) {
	f := newFixture(t)
	page := f.want(200, f.do("", "GET", "/docs", nil))
	for _, r := range f.s.table {
		if !strings.Contains(page.body, `id="op-`+r.id+`"`) {
			t.Errorf("the reference has no %s", r.id)
		}
	}
	var doc struct {
		Components struct{ Schemas map[string]any }
	}
	if err := json.Unmarshal(f.s.docs.openapi, &doc); err != nil {
		t.Fatal(err)
	}
	for name := range maps.Keys(doc.Components.Schemas) {
		if !strings.Contains(page.body, `id="schema-`+name+`"`) {
			t.Errorf("the reference has no schema %s", name)
		}
	}
	faults := f.want(200, f.do("", "GET", "/docs/errors", nil))
	for _, m := range meanings() {
		if !strings.Contains(faults.body, `id="`+string(m.kind)+`"`) {
			t.Errorf("the page of faults has no %s", m.kind)
		}
	}
	for _, a := range []answered{page, faults} {
		for _, out := range []string{"http://", "https://", "<script", "//unpkg"} {
			for _, attr := range []string{`src="` + out, `href="` + out} {
				if strings.Contains(a.body, attr) {
					t.Errorf("the page has %s", attr)
				}
			}
		}
		if strings.Contains(a.body, "<script") || a.Header.Get("Content-Security-Policy") != docCSP {
			t.Errorf("the page has scripts or no policy: %v", a.Header)
		}
	}
}
