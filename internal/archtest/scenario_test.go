package archtest

import (
	"fmt"
	"go/ast"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	scenarioTest = regexp.MustCompile(`^Test([A-HT])(\d{1,2})(_|[A-Z])`)
	scenarioRow  = regexp.MustCompile(`^\| ([A-HT]\d\d) \| (.+) \| (.+) \|$`)
	scenarioName = regexp.MustCompile("`([a-z0-9/]+\\.Test\\w+)`")
	alsoNumber   = regexp.MustCompile(`_([A-HT])(\d{1,2})_`)
)

// numbered returns the tests of the tree whose names carry scenarios' numbers, with these numbers.
func numbered(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, f := range load(t).files {
		if !f.test {
			continue
		}
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			m := scenarioTest.FindStringSubmatch(fn.Name.Name)
			if m == nil {
				continue
			}
			ids := []string{number(t, m[1], m[2])}
			for _, also := range alsoNumber.FindAllStringSubmatch(fn.Name.Name, -1) {
				ids = append(ids, number(t, also[1], also[2]))
			}
			out[f.pkg+"."+fn.Name.Name] = ids
		}
	}
	return out
}

func number(t *testing.T, group, digits string) string {
	t.Helper()
	n, err := strconv.Atoi(digits)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s%02d", group, n)
}

// scenarios returns the rows of a page: the tests by number, nil for a scenario that has none.
func scenarios(t *testing.T, name string) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, l := range lines(page(t, name)) {
		m := scenarioRow.FindStringSubmatch(l.text)
		if m == nil {
			continue
		}
		if _, twice := out[m[1]]; twice {
			t.Errorf("%s:%d: %s stands here twice", name, l.n, m[1])
		}
		out[m[1]] = nil
		for _, test := range scenarioName.FindAllStringSubmatch(m[3], -1) {
			out[m[1]] = append(out[m[1]], test[1])
		}
		if out[m[1]] == nil && strings.ContainsRune(m[3], '`') {
			t.Errorf("%s:%d: %s names no test in the form package.TestName", name, l.n, m[1])
		}
	}
	if len(out) < 60 {
		t.Fatalf("%s has only %d scenarios: is the table's form another?", name, len(out))
	}
	return out
}

// TestScenariosAreTested holds the table of public failures against the tests, in both directions and in
// both languages.
func TestScenariosAreTested(t *testing.T) {
	tests, table := numbered(t), scenarios(t, "docs/scenarios.md")
	for id, named := range table {
		for _, name := range named {
			if ids, ok := tests[name]; !ok {
				t.Errorf("docs/scenarios.md: %s names %s, which does not exist", id, name)
			} else if !slices.Contains(ids, id) {
				t.Errorf("docs/scenarios.md: %s names %s, which carries the number of %v", id, name, ids)
			}
		}
	}
	for name, ids := range tests {
		for _, id := range ids {
			if !slices.Contains(table[id], name) {
				t.Errorf("docs/scenarios.md: %s does not name %s", id, name)
			}
		}
	}
	other := scenarios(t, chinese+"/scenarios.md")
	for id := range table {
		if has, ok := other[id]; !ok || !slices.Equal(has, table[id]) {
			t.Errorf("%s/scenarios.md: %s is missing or names other tests", chinese, id)
		}
	}
	if len(other) != len(table) {
		t.Errorf("%d scenarios in English, %d in Chinese", len(table), len(other))
	}
}
