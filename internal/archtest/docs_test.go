package archtest

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/verbena-cloud/verbena/internal/cli"
)

// chinese is where the translations of docs/*.md lie, under the same names.
const chinese = "docs/zh-CN"

// pages returns the paths, from the root, of everything that people read: documentation, not fixtures.
func pages(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, pattern := range []string{"*.md", "docs/*.md", chinese + "/*.md", "lab/*.md"} {
		found, err := filepath.Glob(filepath.Join(root(t), pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			rel, err := filepath.Rel(root(t), f)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, filepath.ToSlash(rel))
		}
	}
	if len(out) < 10 {
		t.Fatalf("only %d pages were found", len(out))
	}
	return out
}

func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// twin is the same page in the other language, "" for a page that has none.
func twin(name string) string {
	dir, base := filepath.ToSlash(filepath.Dir(name)), filepath.Base(name)
	stem := strings.TrimSuffix(base, ".md")
	switch {
	case dir == "docs":
		return chinese + "/" + base
	case dir == chinese:
		return "docs/" + base
	case dir == "." && strings.HasSuffix(stem, ".zh-CN"):
		return strings.TrimSuffix(stem, ".zh-CN") + ".md"
	case dir == ".":
		return stem + ".zh-CN.md"
	}
	return ""
}

// TestDocsInBothLanguages wants each page in English and in Chinese, with the same headings and the same
// commands: a translation that fell behind is worse than none.
func TestDocsInBothLanguages(t *testing.T) {
	for _, name := range pages(t) {
		other := twin(name)
		if other == "" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root(t), other))
		if err != nil {
			t.Errorf("%s has no counterpart %s", name, other)
			continue
		}
		if other < name {
			continue // compared once
		}
		if strings.HasPrefix(name, "CONTRIBUTING") {
			continue // the Chinese one is a shorter text
		}
		a, b := page(t, name), string(text)
		if x, y := headings(a), headings(b); !slices.Equal(x, y) {
			t.Errorf("%s and %s differ in the levels of their headings: %v and %v", name, other, x, y)
		}
		x, y := commands(a), commands(b)
		for i := range max(len(x), len(y)) {
			if i >= len(x) || i >= len(y) || x[i].text != y[i].text {
				t.Errorf("%s and %s differ in their commands, first at number %d:\n%s\n%s", name, other, i+1, at(x, i), at(y, i))
				break
			}
		}
	}
}

func at(list []command, i int) string {
	if i >= len(list) {
		return "(none)"
	}
	return list[i].text
}

// headings returns the levels of a page's headings, outside of code.
func headings(text string) []int {
	var out []int
	for _, l := range lines(text) {
		if !l.code && strings.HasPrefix(l.text, "#") {
			out = append(out, len(l.text)-len(strings.TrimLeft(l.text, "#")))
		}
	}
	return out
}

// line is a line of a page.
type line struct {
	n    int
	text string
	code bool // inside of a fenced block
}

func lines(text string) []line {
	var out []line
	code := false
	for i, l := range strings.Split(text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(l), "```") {
			code = !code
			continue
		}
		out = append(out, line{i + 1, l, code})
	}
	return out
}

var linkText = regexp.MustCompile(`\]\(([^)\s]+)\)|src="([^"]+)"|href="([^"]+)"`)

// TestDocsLinks follows every relative link, to headings too.
func TestDocsLinks(t *testing.T) {
	for _, name := range pages(t) {
		for _, l := range lines(page(t, name)) {
			if l.code {
				continue
			}
			for _, m := range linkText.FindAllStringSubmatch(l.text, -1) {
				if why := broken(t, name, m[1]+m[2]+m[3]); why != "" {
					t.Errorf("%s:%d: %s", name, l.n, why)
				}
			}
		}
	}
}

// broken says why a link of a page leads nowhere, or "".
func broken(t *testing.T, name, link string) string {
	t.Helper()
	if strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") {
		return ""
	}
	file, heading, _ := strings.Cut(link, "#")
	target := name
	if file != "" {
		target = filepath.ToSlash(filepath.Join(filepath.Dir(name), file))
	}
	if strings.HasPrefix(target, "..") || strings.HasPrefix(file, "/") {
		return link + " leads out of the repository"
	}
	if _, err := os.Stat(filepath.Join(root(t), target)); err != nil {
		return link + " does not exist"
	}
	if heading == "" || !strings.HasSuffix(target, ".md") {
		return ""
	}
	for _, l := range lines(page(t, target)) {
		if !l.code && strings.HasPrefix(l.text, "#") && slug(l.text) == heading {
			return ""
		}
	}
	return link + ": there is no such heading"
}

// slug is the anchor of a heading as forges make it.
func slug(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(strings.TrimSpace(strings.TrimLeft(heading, "#"))) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r > 0x7f && !strings.ContainsRune("，。：；！？（）“”、", r):
			b.WriteRune(r)
		}
	}
	return b.String()
}

// command is a call of verbena in a fenced block.
type command struct {
	n    int
	text string
	args []string
}

// commands returns the calls of a page: lines of fenced blocks that begin with verbena or have it behind
// a pipe. Output that is shown has no such line, since the program does not begin its lines with its name.
func commands(text string) []command {
	var out []command
	for _, l := range lines(text) {
		if !l.code {
			continue
		}
		for _, part := range split(l.text) {
			words := part
			for len(words) > 0 && (words[0] == "$" || words[0] == "sudo" || strings.Contains(words[0], "=")) {
				words = words[1:]
			}
			if len(words) > 0 && (words[0] == "verbena" || words[0] == "bin/verbena") {
				out = append(out, command{l.n, strings.Join(words, " "), words[1:]})
			}
		}
	}
	return out
}

var span = regexp.MustCompile("`(verbena [^`]+)`")

// mentions returns the calls that stand in running text. Words in capitals are placeholders.
func mentions(text string) []command {
	var out []command
	for _, l := range lines(text) {
		if l.code {
			continue
		}
		for _, m := range span.FindAllStringSubmatch(l.text, -1) {
			for _, words := range split(m[1]) {
				if words[0] == "verbena" && len(words) > 1 && strings.ToUpper(words[1]) != words[1] {
					out = append(out, command{l.n, m[1], words[1:]})
				}
			}
		}
	}
	return out
}

// split cuts a shell line into its commands and their words. It knows quotes, pipes, lists, redirections and
// comments; more does not stand in documentation.
func split(text string) [][]string {
	var all [][]string
	var words []string
	var word strings.Builder
	open := rune(0)
	begun := false
	end := func() {
		if begun {
			words = append(words, word.String())
		}
		word.Reset()
		begun = false
	}
	cut := func() {
		end()
		if len(words) > 0 {
			all = append(all, words)
		}
		words = nil
	}
	for _, r := range text {
		switch {
		case open != 0:
			if r == open {
				open = 0
				continue
			}
			word.WriteRune(r)
		case r == '\'' || r == '"':
			open, begun = r, true
		case r == ' ' || r == '\t':
			end()
		case r == '#' && !begun:
			cut()
			return all
		case strings.ContainsRune("|;&<>()", r):
			cut()
		default:
			begun = true
			word.WriteRune(r)
		}
	}
	cut()
	return all
}

// shell asks the command line itself what there is, in the way that completion does: sub-commands and flags
// after some words.
type shell struct{ known map[string][]string }

func (s *shell) ask(t *testing.T, words ...string) []string {
	t.Helper()
	id := strings.Join(words, "\x00")
	if got, ok := s.known[id]; ok {
		return got
	}
	var out bytes.Buffer
	env := cli.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: io.Discard, Getenv: func(string) string { return "" }}
	if code := cli.Main(t.Context(), env, append([]string{"__complete"}, words...), cli.Programs{}); code != 0 {
		t.Fatalf("completion of %q exits with %d", words, code)
	}
	var names []string
	for l := range strings.Lines(out.String()) {
		name, _, _ := strings.Cut(strings.TrimRight(l, "\n"), "\t")
		if name != "" && name[0] != ':' {
			names = append(names, name)
		}
	}
	s.known[id] = names
	return names
}

// TestDocsCommands wants every command and every flag of the documentation to exist.
func TestDocsCommands(t *testing.T) {
	s := &shell{known: map[string][]string{}}
	seen := 0
	for _, name := range pages(t) {
		text := page(t, name)
		for _, c := range append(commands(text), mentions(text)...) {
			seen++
			if why := s.wrong(t, c.args); why != "" {
				t.Errorf("%s:%d: %s: %s", name, c.n, c.text, why)
			}
		}
	}
	if seen < 50 {
		t.Errorf("only %d commands were found", seen)
	}
}

// wrong says what of a command does not exist, or "".
func (s *shell) wrong(t *testing.T, args []string) string {
	t.Helper()
	if len(args) > 0 && args[0] == "help" {
		return ""
	}
	var path []string
	for _, a := range args {
		subs := s.ask(t, append(slices.Clone(path), "")...)
		if strings.HasPrefix(a, "-") || !slices.Contains(subs, a) {
			if len(path) < 2 && !strings.HasPrefix(a, "-") && s.branches(t, path) {
				return fmt.Sprintf("there is no %s", strings.Join(append(path, a), " "))
			}
			break
		}
		path = append(path, a)
	}
	flags := append(s.ask(t, append(slices.Clone(path), "-")...), "-h", "--help", "-")
	for _, a := range args[len(path):] {
		name, _, _ := strings.Cut(a, "=")
		if strings.HasPrefix(a, "-") && !slices.Contains(flags, name) {
			return fmt.Sprintf("%s has no flag %s", strings.Join(path, " "), name)
		}
	}
	return ""
}

// branches reports whether only sub-commands may follow: the root and the nouns, known by their help.
func (s *shell) branches(t *testing.T, path []string) bool {
	t.Helper()
	var out bytes.Buffer
	env := cli.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: io.Discard, Getenv: func(string) string { return "" }}
	cli.Main(t.Context(), env, append(slices.Clone(path), "--help"), cli.Programs{})
	return strings.Contains(out.String(), "COMMAND [flags]")
}

// TestDocsShell shows that the test of commands finds what is wrong.
func TestDocsShell(t *testing.T) {
	s := &shell{known: map[string][]string{}}
	for _, c := range []struct {
		line string
		ok   bool
	}{
		{"verbena vm list -A -o wide", true},
		{"cat vm.yaml | verbena apply -f - --dry-run # twice", true},
		{"verbena token create ci --scope 'vm.*' >token", true},
		{"verbena vm explode train-0", false},
		{"verbena teleport", false},
		{"verbena vm list --colour", false},
		{"verbena apply -f x | verbena host nothing", false},
	} {
		found := commands("```\n" + c.line + "\n```\n")
		if len(found) == 0 {
			t.Errorf("%s: no command found", c.line)
			continue
		}
		why := s.wrong(t, found[len(found)-1].args)
		if (why == "") != c.ok {
			t.Errorf("%s: %q", c.line, why)
		}
	}
}

// TestDocsListed wants every page in the index of its language.
func TestDocsListed(t *testing.T) {
	for _, dir := range []string{"docs", chinese} {
		index := page(t, dir+"/README.md")
		err := fs.WalkDir(os.DirFS(filepath.Join(root(t), dir)), ".", func(path string, d fs.DirEntry, err error) error {
			if err != nil || (d.IsDir() && path != ".") {
				if d != nil && d.IsDir() {
					return fs.SkipDir
				}
				return err
			}
			if strings.HasSuffix(path, ".md") && path != "README.md" && !strings.Contains(index, "("+path+")") {
				t.Errorf("%s/README.md does not list %s", dir, path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
