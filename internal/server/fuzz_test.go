package server

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/verbena-cloud/verbena/internal/store/mem"
)

// FuzzCreateVM sends any bytes as a VM. Whatever they are the server answers, never with a fault of its
// own, and never repeats what may be a secret.
func FuzzCreateVM(f *testing.F) {
	const secret = "canary-5f1e"
	for _, seed := range []string{
		vmJSON("a", "rdma-small"), vmJSON("b", "plain"), vmJSON("c", "none"), `{}`, `[]`, `null`, ``, `"x"`, `{"kind":"VM"`,
		`{"kind":"VM","name":"a","spec":{"flavor":1,"image":{},"networks":"x","userData":["canary-5f1e"]}}`,
		`{"kind":"VM","name":"a","spec":{"userData":"canary-5f1e","sshKeys":["canary-5f1e"],"power":"canary-5f1e"}}`,
		`{"spec":{"networks":[{"network":"lab","ip":"10.1.0.5","mac":"01:00:5e:00:00:01"}],"flavor":"plain","image":"debian"},"name":"m","kind":"VM"}`,
		`{"kind":"VM","name":"` + strings.Repeat("a", 300) + `","status":{"vfs":[{"index":-1}]}}`,
		`{"kind":"VM","name":"a","labels":{"a":null},"created":"yesterday","spec":null}`,
		"{\"kind\":\"VM\",\"name\":\"\u0000\",\"spec\":{\"hostLabels\":{\"\u202e\":\"x\"}}}",
	} {
		f.Add(seed)
	}
	db := mem.New()
	f.Cleanup(func() { _ = db.Close() })
	s, err := assemble(f.Context(), Config{}, Deps{Store: db, Log: quiet()})
	if err != nil {
		f.Fatal(err)
	}
	s.identify = identifyForTest
	do := func(who, path, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(as, who)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w
	}
	for path, body := range map[string]string{
		"/v1/fabrics": `{"kind":"Fabric","name":"roce","spec":{"speed":"25Gbps","vlanPool":["100-199"]}}`,
		"/v1/images":  `{"kind":"Image","name":"debian","spec":{"source":"/srv/debian.qcow2"}}`,
		"/v1/flavors": `{"kind":"Flavor","name":"plain","spec":{"vcpus":2,"memory":"4GiB"}}`,
		"/v1/tenants": tenantJSON("physics"),
	} {
		if w := do("admin", path, body); w.Code != http.StatusCreated {
			f.Fatal(w.Body)
		}
	}
	if w := do("admin", "/v1/tenants/physics/networks", `{"kind":"Network","name":"lab","spec":{"fabric":"roce","cidr":"10.1.0.0/16"}}`); w.Code != http.StatusCreated {
		f.Fatal(w.Body)
	}
	addHost(f, s, "h1", 2)
	f.Fuzz(func(t *testing.T, in string) {
		for _, query := range []string{"?dryRun=true", ""} {
			w := do("bob", vms+query, in)
			switch {
			case w.Code >= 500:
				t.Fatalf("%d for %q: %s", w.Code, in, w.Body)
			case w.Code < 400:
			case w.Header().Get("Content-Type") != problemType:
				t.Fatalf("%d as %s: %s", w.Code, w.Header().Get("Content-Type"), w.Body)
			case strings.Contains(in, secret) && strings.Contains(w.Body.String(), secret) && !elsewhere(in, secret):
				t.Fatalf("%q is repeated: %s", in, w.Body)
			}
		}
	})
}

// elsewhere reports whether the fuzzer moved the secret to where names and references stand: those are
// repeated, because people must see which of them is wrong.
func elsewhere(in, secret string) bool {
	rest := in
	for _, field := range []string{`"userData":"` + secret + `"`, `"userData":["` + secret + `"]`, `"sshKeys":["` + secret + `"]`} {
		rest = strings.ReplaceAll(rest, field, "")
	}
	return strings.Contains(rest, secret)
}

// FuzzSelector reads any text as a label selector.
func FuzzSelector(f *testing.F) {
	for _, s := range []string{"", "a=b", "a!=b,c", "!d", "a==b", ",,", "a in (b)", "=\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSelector(text)
		if err != nil {
			return
		}
		for _, term := range s {
			if term.key == "" {
				t.Fatalf("%q has a term without a key", text)
			}
		}
		s.match(map[string]string{"a": "b"})
	})
}
