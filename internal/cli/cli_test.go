package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"pgregory.net/rapid"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/client"
	"github.com/verbena-cloud/verbena/internal/fault"
)

// terminal is a command line without anything behind it.
type terminal struct {
	out, err bytes.Buffer
	env      map[string]string
	stdin    string
	tty      bool
}

func (x *terminal) run(t *testing.T, args ...string) int {
	t.Helper()
	x.out.Reset()
	x.err.Reset()
	if x.env == nil {
		x.env = map[string]string{}
	}
	if x.env["HOME"] == "" {
		x.env["HOME"] = t.TempDir()
	}
	return Main(t.Context(), Env{Stdin: strings.NewReader(x.stdin), Stdout: &x.out, Stderr: &x.err, Version: "test", StdinTTY: x.tty,
		Getenv: func(n string) string { return x.env[n] }}, args, Programs{})
}

func TestWithoutServer(t *testing.T) {
	dead := httptest.NewServer(http.NotFoundHandler())
	dead.Close()
	for _, c := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"version"}, 0, ""},
		{[]string{"get", "vms"}, exitAuth, "verbena login"},
		{[]string{"get", "vms", "--server", dead.URL}, exitError, "can't be reached"},
		{[]string{"get", "vms", "--server", "nonsense"}, exitError, "no address"},
		{[]string{"get"}, exitUsage, "verbena get KIND [NAME…]"},
		{[]string{"gte", "vms"}, exitUsage, "do you mean get?"},
		{[]string{"vm", "lits"}, exitUsage, "do you mean list?"},
		{[]string{"get", "vms", "--outptu", "json"}, exitUsage, "do you mean --output?"},
		{[]string{"get", "vms", "-o", "xml"}, exitUsage, "there are table"},
		{[]string{"get", "vms", "--jq", ".["}, exitUsage, "--jq"},
		{[]string{"wait", "vm/x", "--for", "never"}, exitUsage, "there are ready"},
		{[]string{"explain", "vm.spec.flavour"}, exitUsage, "do you mean flavor?"},
		{[]string{"apply"}, exitUsage, "-f FILE"},
		{[]string{"context", "use", "x"}, exitUsage, "no context x"},
		{[]string{"server"}, exitError, "not built in"},
	} {
		x := &terminal{}
		if code := x.run(t, c.args...); code != c.code || !strings.Contains(x.err.String(), c.text) {
			t.Errorf("verbena %s: exit %d, want %d; stderr: %s", strings.Join(c.args, " "), code, c.code, x.err.String())
		}
		if c.code != 0 && x.out.Len() > 0 {
			t.Errorf("verbena %s: an error wrote to stdout: %s", strings.Join(c.args, " "), x.out.String())
		}
	}
}

// TestHelpOfEveryCommand: each command tells what it does, in both languages.
func TestHelpOfEveryCommand(t *testing.T) {
	shorts := map[string][]string{}
	for _, lang := range []string{"en", "zh"} {
		var out bytes.Buffer
		a := &app{env: Env{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }, Now: nil}, words: NewWords(lang, catalogue)}
		var walk func(*cobra.Command)
		walk = func(c *cobra.Command) {
			if c.Short == "" {
				t.Errorf("%s has no description", c.CommandPath())
			}
			shorts[c.CommandPath()] = append(shorts[c.CommandPath()], c.Short)
			out.Reset()
			a.help(c)
			if !strings.Contains(out.String(), c.Short) && c.Long == "" {
				t.Errorf("the help of %s does not say what it does", c.CommandPath())
			}
			for _, sub := range c.Commands() {
				walk(sub)
			}
		}
		walk(a.root())
	}
	if len(shorts) < 50 {
		t.Fatalf("only %d commands", len(shorts))
	}
	for path, s := range shorts {
		if len(s) != 2 || s[0] == s[1] {
			t.Errorf("%s says the same in both languages: %q", path, s)
		}
	}
}

// TestExitCodes: every kind of fault has a code that the help lists, and the ones promised.
func TestExitCodes(t *testing.T) {
	a := &app{words: Words{}}
	var listed []int
	for _, m := range a.exitCodes() {
		listed = append(listed, m.code)
	}
	promised := map[fault.Kind]int{
		fault.NotFound: 3, fault.Unauthenticated: 4, fault.Forbidden: 4, fault.Conflict: 5, fault.Quota: 5, fault.Precondition: 5,
		fault.NoCapacity: 6, fault.Deadline: 7, fault.Internal: 1, fault.Invalid: 1, fault.Unready: 1, fault.Gone: 1, fault.TooLarge: 1, fault.RateLimited: 1, fault.Unavailable: 1,
	}
	for kind, want := range promised {
		err := fmt.Errorf("wrapped: %w", &client.Error{Problem: api.Problem{Code: string(kind)}})
		if got := exitCode(err); got != want || !slices.Contains(listed, got) {
			t.Errorf("%s exits with %d, want %d", kind, got, want)
		}
		if a.title(string(kind), "?") == "?" {
			t.Errorf("%s has no title", kind)
		}
	}
	if got := exitCode(context.Canceled); got != 130 {
		t.Errorf("an interrupt exits with %d", got)
	}
}

func TestTableAlignsWideCharacters(t *testing.T) {
	var b bytes.Buffer
	err := Table{Heads: []string{"NAME", "STATE"}, Rows: [][]string{{"研究部门", "up"}, {"payments", "下线"}, {"", "evil\x1b[31m\nline"}}}.Write(&b)
	if err != nil {
		t.Fatal(err)
	}
	want := "NAME       STATE\n研究部门   up\npayments   下线\n-          evil\ufffd[31m line\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

func TestSortByNumber(t *testing.T) {
	x := Table{Rows: [][]string{{"10/16"}, {"9/16"}, {"x"}, {"100/16"}}}
	x.sort(0, false)
	if got := fmt.Sprint(x.Rows); got != "[[9/16] [10/16] [100/16] [x]]" {
		t.Error(got)
	}
}

// TestDiffRebuildsBothSides: the lines kept and gone are the old text, those kept and new the new one, and
// the hunks' numbers point at them.
func TestDiffRebuildsBothSides(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"})
		x, y := rapid.SliceOfN(line, 0, 30).Draw(t, "old"), rapid.SliceOfN(line, 0, 30).Draw(t, "new")
		ops := compareLines(x, y)
		var old, mine []string
		for _, o := range ops {
			if o.sign != '+' {
				old = append(old, o.text)
			}
			if o.sign != '-' {
				mine = append(mine, o.text)
			}
		}
		if !slices.Equal(old, x) || !slices.Equal(mine, y) {
			t.Fatalf("%q and %q became %q and %q", x, y, old, mine)
		}
		for _, h := range hunks(ops) {
			i, j := h.from-1, h.to-1
			for _, o := range h.ops {
				if o.sign != '+' {
					if x[i] != o.text {
						t.Fatalf("line %d of the old text is %q, the hunk says %q", i+1, x[i], o.text)
					}
					i++
				}
				if o.sign != '-' {
					if y[j] != o.text {
						t.Fatalf("line %d of the new text is %q, the hunk says %q", j+1, y[j], o.text)
					}
					j++
				}
			}
		}
	})
}

func readAll(t testing.TB, text, tenant string) ([]*document, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return (&app{words: Words{}}).readManifests([]string{path}, tenant)
}

func TestManifestFaults(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"kind: VM\nname: a\ntenant: t\nspec: {flavour: f}\n", "m.yaml:4:8: spec.flavour: unknown field; do you mean flavor?"},
		{"kind: VM\nname: 7\ntenant: t\nspec: {}\n", `m.yaml:2:7: name: expected text, not 7; put it in quotes`},
		{"kind: Flavor\nname: f\nspec: {vcpus: 1, memory: 4096}\n", "spec.memory: 4096 has no unit; write for example 16GiB"},
		{"kind: Flavor\nname: f\nspec: {vcpus: 0, memory: 1GiB}\n", "spec.vcpus: 0 is less than 1"},
		{"kind: Flavor\nname: f\nspec: {rdma: yes}\n", "spec.rdma: expected true, false or an object"},
		{"kind: Tenant\nname: t\ntenant: u\nspec: {quota: {}}\n", "a Tenant belongs to no tenant"},
		{"kind: VM\nname: a\n", "belongs to a tenant"},
		{"kind: Image\nname: a\n", "spec is missing"},
		{"kind: Image\nname: a\nname: b\n", "already defined"},
		{"kind: Image\nname: a\nspec: {source: !!binary x}\n", "tags such as"},
		{"kind: Image\nname: a\nspec: {source: *x}\n", "no anchor"},
		{"- kind: Image\n", "an object is expected"},
		{"kind: Image\nname: a\nspec: {source: x}\n---\nkind: Image\nname: a\nspec: {source: x}\n", "stands already at"},
		{"kind: Image\nname: \"a\x00\"\n", "no text"},
		{"kind: Image\nname: a\nspec: [x]\n", "spec: expected an object, not a list"},
		{"kind: Host\nname: a\nspec: {pfs: {match: x}}\n", "spec.pfs: expected a list, not an object"},
		{"kind: &k Event\nname: x\n", "there is no kind Event"},
	} {
		_, err := readAll(t, c.text, "")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, want %s", c.text, err, c.want)
		}
		if exitCode(err) != exitError {
			t.Errorf("%q exits with %d", c.text, exitCode(err))
		}
	}
}

func TestManifestForms(t *testing.T) {
	docs, err := readAll(t, `{
	"items": [
		{"kind": "VM", "name": "a", "status": {"phase": "Ready", "unknown": 1}, "revision": 7,
		 "spec": {"flavor": "f", "image": "i", "networks": [{"network": "n"}], "userData": "#!/bin/sh\ntrue\n"}},
		{"kind": "Flavor", "name": "f", "spec": {"vcpus": 2, "memory": "4GiB", "rdma": true}}
	]
}`, "red")
	if err != nil {
		t.Fatal(err)
	}
	if len(docs) != 2 || docs[0].kind.Kind != api.KindFlavor || docs[1].meta.Tenant != "red" {
		t.Fatalf("got %d documents, first %v", len(docs), docs[0].title())
	}
	if docs[1].tree["status"] != nil || docs[1].tree["revision"] != nil {
		t.Error("what only the system writes is sent back")
	}
	docs, err = readAll(t, "kind: Tenant\nname: t\nspec:\n  quota: &q {vms: 1, vcpus: 1, memory: 1GiB, vfs: 1}\n---\nkind: Flavor\nname: f\nlabels: &l {a: b}\nspec:\n  vcpus: 1\n  memory: |-\n    1GiB\n", "")
	if err != nil || docs[0].tree["spec"].(map[string]any)["memory"] != "1GiB" {
		t.Fatalf("block text and anchors: %v", err)
	}
}

func FuzzManifest(f *testing.F) {
	for _, s := range []string{"kind: VM\nname: a\ntenant: t\nspec: {flavor: f}\n", "{\"kind\": 1}", "a: &a [*a]", "---\n---\n", "<<: *x", "kind: Flavor\nspec: {rdma: {vfs: 1e9}}", "? [a]\n: b\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r := &reader{a: &app{words: Words{}}, tenant: "t", seen: map[string]*document{}}
		r.parse("f", []byte(text))
		for _, w := range r.faults {
			if w.at.line < 1 || w.at.column < 1 || w.String() == "" {
				t.Fatalf("a fault at %v", w.at)
			}
		}
		for _, d := range r.docs {
			if _, err := json.Marshal(d.tree); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestApplyIsIdempotent: what the server gives back equals the manifest that it was made from, however its
// empty fields are written.
func TestApplyIsIdempotent(t *testing.T) {
	docs, err := readAll(t, "kind: Flavor\nname: f\nlabels: {}\nspec: {vcpus: 2, memory: 4GiB, rdma: true, disk: \"\"}\n", "")
	if err != nil {
		t.Fatal(err)
	}
	same, rev, err := docs[0].same(json.RawMessage(`{"kind":"Flavor","name":"f","revision":9,"spec":{"vcpus":2,"memory":"4GiB","rdma":true},"status":{"vms":3}}`))
	if err != nil || !same || rev != 9 {
		t.Errorf("same = %t, revision %d, %v", same, rev, err)
	}
	same, _, err = docs[0].same(json.RawMessage(`{"kind":"Flavor","name":"f","spec":{"vcpus":2,"memory":"4GiB","rdma":{"vfs":1}}}`))
	if err != nil || same {
		t.Errorf("the long form equals the short one: %v", err)
	}
}

func TestConfigIsPrivateAndTokensStayWithTheirServer(t *testing.T) {
	x := &terminal{env: map[string]string{}}
	seen := map[string]string{}
	server := func(name string) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen[name] = r.Header.Get("Authorization")
			fmt.Fprint(w, `{"name":"ada","items":[]}`)
		}))
		t.Cleanup(s.Close)
		return s
	}
	one, two := server("one"), server("two")
	if code := x.run(t, "login", one.URL, "--token", "verbena_pat_one", "--name", "one"); code != 0 {
		t.Fatalf("login: %d %s", code, x.err.String())
	}
	info, err := os.Stat(filepath.Join(x.env["HOME"], ".config/verbena/config.yaml"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the configuration: %v %v", info, err)
	}
	if code := x.run(t, "get", "hosts"); code != 0 || seen["one"] != "Bearer verbena_pat_one" {
		t.Errorf("the context's token was not sent: %d %q", code, seen["one"])
	}
	if code := x.run(t, "get", "hosts", "--server", two.URL); code != 0 || seen["two"] != "" {
		t.Errorf("a token went to another server: %d %q", code, seen["two"])
	}
	x.env["VERBENA_SERVER"], x.env["VERBENA_TOKEN"] = two.URL, "verbena_pat_two"
	if code := x.run(t, "get", "hosts", "--context", "one"); code != 0 || seen["one"] != "Bearer verbena_pat_one" || seen["two"] != "" {
		t.Errorf("the environment went before --context: %d %q", code, seen)
	}
	if x.run(t, "context", "use", "one"); !strings.Contains(x.err.String(), "unset VERBENA_SERVER") {
		t.Errorf("nothing says that the context is not used: %s", x.err.String())
	}
	x.run(t, "context", "list", "-o", "json")
	if strings.Contains(x.out.String(), "verbena_pat") || !strings.Contains(x.out.String(), one.URL) {
		t.Errorf("context list: %s", x.out.String())
	}
}

func TestConfirm(t *testing.T) {
	for answer, want := range map[string]int{"y\n": 0, "yes\n": 0, "n\n": exitError, "\n": exitError, "": exitError} {
		x := &terminal{tty: true, stdin: answer}
		deleted := false
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodDelete {
				deleted = true
				w.WriteHeader(http.StatusNoContent)
				return
			}
			fmt.Fprint(w, `{"items":[{"kind":"VM","name":"v","tenant":"t","spec":{"flavor":"f","image":"i","networks":[]},"status":{}}],"revision":1}`)
		}))
		code := x.run(t, "delete", "flavor/f", "--server", s.URL)
		s.Close()
		if code != want || deleted != (want == 0) || !strings.Contains(x.err.String(), "1 VMs use flavor/f: t/v") {
			t.Errorf("answer %q: exit %d, deleted %t; %s", answer, code, deleted, x.err.String())
		}
	}
}

// TestExplainKnowsTheSchema: every property that the API describes of a kind can be explained.
func TestExplainKnowsTheSchema(t *testing.T) {
	text, err := os.ReadFile("../../api/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Components struct {
			Schemas map[string]struct {
				Properties map[string]json.RawMessage `json:"properties"`
			} `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, ty := range client.Types() {
		known := fieldsOf(typeOf(ty.Kind))
		for name := range doc.Components.Schemas[string(ty.Kind)].Properties {
			checked++
			if _, ok := known[name]; !ok {
				t.Errorf("%s.%s is in openapi.json, but explain does not know it", ty.Kind, name)
			}
		}
		spec := doc.Components.Schemas[string(ty.Kind)+"Spec"].Properties
		for name := range spec {
			checked++
			var b bytes.Buffer
			a := &app{env: Env{Stdout: &b, Getenv: func(string) string { return "" }}}
			if err := a.explainField(&b, ty.Short+".spec."+name); err != nil {
				t.Errorf("%s.spec.%s is in openapi.json: %v", ty.Kind, name, err)
			}
		}
	}
	if checked < 60 {
		t.Fatalf("only %d properties were compared", checked)
	}
}

func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel(errors.New("ctrl-c"))
		<-r.Context().Done()
	}))
	defer s.Close()
	var out, stderr bytes.Buffer
	code := Main(ctx, Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &stderr, Getenv: func(n string) string {
		return map[string]string{"HOME": t.TempDir(), "VERBENA_SERVER": s.URL}[n]
	}}, []string{"get", "hosts"}, Programs{})
	if code != exitInterrupted {
		t.Errorf("exit %d: %s", code, stderr.String())
	}
}

func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		code := Main(context.Background(), Env{Stdin: strings.NewReader(""), Stdout: &bytes.Buffer{}, Stderr: &bytes.Buffer{}, Getenv: func(string) string { return "" }}, []string{"version"}, Programs{})
		if code != 0 {
			b.Fatal(code)
		}
	}
}

// TestErrorsCommandNoTerminal: errors repeat arguments, manifests and answers, which may come from strangers.
func TestErrorsCommandNoTerminal(t *testing.T) {
	const evil = "\x1b]0;owned\x07\u009b2J\u202e"
	for _, err := range []error{
		errors.New("a" + evil + "\nb"),
		&client.Error{Problem: api.Problem{Title: "a" + evil, Detail: "a" + evil + "\nb", RequestID: evil, Code: string(fault.Internal)}},
		&client.ConnError{Server: "a" + evil + "\nb", Err: errors.New(evil)},
	} {
		var b bytes.Buffer
		a := &app{env: Env{Stderr: &b, Getenv: func(string) string { return "" }}}
		a.complain(err)
		if got := b.String(); strings.ContainsAny(got, evil[:1]+"\x07\u009b\u202e") || !strings.Contains(got, "\nb") {
			t.Errorf("%T: %q", err, got)
		}
	}
}

// TestLoginIsWhoTheCommandLineNames: a token that the shell still holds makes nobody somebody else.
func TestLoginIsWhoTheCommandLineNames(t *testing.T) {
	var asked []string
	serve := func() *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, r.URL.Path+" "+r.Header.Get("Authorization"))
			fmt.Fprint(w, `{"name":"ada","secret":"verbena_pat_ada"}`)
		}))
		t.Cleanup(s.Close)
		return s
	}
	s, other := serve(), serve()
	x := &terminal{env: map[string]string{"VERBENA_TOKEN": "verbena_pat_admin"}, stdin: "a long enough password\n"}
	if code := x.run(t, "login", s.URL, "--user", "ada", "--password-stdin"); code != 0 {
		t.Fatalf("login: %d %s", code, x.err.String())
	}
	if want := []string{"/v1/login ", "/v1/whoami Bearer verbena_pat_ada"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
	if code := x.run(t, "login", s.URL, "--user", "ada", "--token", "verbena_pat_x"); code != exitUsage {
		t.Errorf("a user and a token: exit %d", code)
	}
	if code := x.run(t, "login", other.URL, "--token", "verbena_pat_x"); code != 0 {
		t.Fatalf("login: %d %s", code, x.err.String())
	}
	if x.run(t, "context", "list"); !strings.Contains(x.out.String(), s.URL) || !strings.Contains(x.out.String(), other.URL) {
		t.Errorf("a second server on the same host replaced the first:\n%s", x.out.String())
	}
}

// TestDeleteOfWhatIsNotThere: nobody is asked about it.
func TestDeleteOfWhatIsNotThere(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"code":"not-found","status":404,"title":"Not found","detail":"Flavor f does not exist"}`)
	}))
	defer s.Close()
	x := &terminal{tty: true, stdin: "y\n"}
	if code := x.run(t, "delete", "flavor/f", "--server", s.URL); code != exitNotFound || strings.Contains(x.err.String(), "[y/N]") {
		t.Errorf("exit %d; %s", code, x.err.String())
	}
}

// TestWatchIsATable: what there is at the beginning stands under its headings, later lines keep to them.
func TestWatchIsATable(t *testing.T) {
	x := &terminal{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i, name := range []string{"a", "a-name-that-is-longer-than-most", "b"} {
			fmt.Fprintf(w, "id: %d\nevent: put\ndata: {\"kind\":\"Image\",\"name\":%q,\"spec\":{\"source\":\"x\",\"os\":\"o\"},\"revision\":%d}\n\n", i+1, name, i+1)
			if i == 1 {
				fmt.Fprint(w, "id: 2\nevent: bookmark\ndata: {\"revision\":2,\"synced\":true}\n\n")
			}
		}
		fmt.Fprint(w, "event: gone\ndata: {\"code\":\"forbidden\",\"status\":403,\"title\":\"Not allowed\",\"detail\":\"enough\"}\n\n")
	}))
	defer s.Close()
	x.run(t, "get", "images", "-w", "-c", "name,os", "--server", s.URL)
	lines := strings.Split(strings.TrimSpace(x.out.String()), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d lines, want 4:\n%s%s", len(lines), x.out.String(), x.err.String())
	}
	at := strings.Index(lines[0], "OS")
	for _, l := range lines[1:] {
		if len(l) <= at || l[at] != 'o' || l[at-1] != ' ' {
			t.Errorf("not under its heading:\n%s", x.out.String())
		}
	}
}
