package sysfstest

import (
	"context"
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/verbena-cloud/verbena/internal/sysfs"
)

// A captured tree is a txtar archive. In its comment a line "PATH -> TARGET" is a link, with TARGET relative
// to it as in sysfs, and "PATH = TEXT" is an attribute of one line; lines that begin with # are for people.
// Each file of the archive is an attribute too. The text "!ERRNO" (say !EINVAL) stands for an attribute that
// answers that error when it is read.

// capture is a read-only tree.
type capture struct {
	mu   sync.Mutex
	root *node
}

// entry is a path with a link's target or an attribute's text.
type entry struct{ path, value string }

// parse reads an archive.
func parse(archive string) (attrs, links []entry, err error) {
	a := txtar.Parse([]byte(archive))
	for line := range strings.Lines(string(a.Comment)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if from, to, ok := strings.Cut(line, " -> "); ok {
			links = append(links, entry{from, to})
			continue
		}
		path, text, ok := strings.Cut(line, " = ")
		if !ok {
			return nil, nil, fmt.Errorf("captured tree: %q is neither a link, an attribute nor a comment", line)
		}
		attrs = append(attrs, entry{path, text})
	}
	for _, f := range a.Files {
		attrs = append(attrs, entry{f.Name, strings.TrimSuffix(string(f.Data), "\n")})
	}
	for _, e := range slices.Concat(attrs, links) {
		if !filepath.IsLocal(e.path) {
			return nil, nil, fmt.Errorf("captured tree: %q leads out of it", e.path)
		}
	}
	return attrs, links, nil
}

// Captured returns a tree that shows a captured one and refuses writes with EROFS.
func Captured(archive string) (sysfs.Tree, error) {
	attrs, links, err := parse(archive)
	if err != nil {
		return nil, err
	}
	c := &capture{root: newDir()}
	for _, a := range attrs {
		n, name, err := c.root.place(a.path)
		if err != nil {
			return nil, err
		}
		if errno, ok := errnoOf(a.value); ok {
			n.fails(name, errno)
			continue
		}
		n.text(name, a.value)
	}
	for _, l := range links { // first the places, then the targets: links may lead through links
		n, name, err := c.root.place(l.path)
		if err != nil {
			return nil, err
		}
		n.put(name, &node{to: &node{gone: true}})
	}
	return c, c.resolve(links)
}

// resolve gives links their targets, those first that no other is needed for.
func (c *capture) resolve(links []entry) error {
	for len(links) > 0 {
		var later []entry
		for _, l := range links {
			n, name, err := c.root.place(l.path)
			if err != nil {
				return err
			}
			to, err := n.walk(l.value, Never, true)
			if err != nil {
				later = append(later, l)
				continue
			}
			n.kids[name].to = to
		}
		if len(later) == len(links) {
			return fmt.Errorf("captured link %s -> %s leads nowhere", later[0].path, later[0].value)
		}
		links = later
	}
	return nil
}

// place returns the directory of a path, made if need be, and the last name in it, which must not be one.
func (n *node) place(path string) (*node, string, error) {
	for {
		name, rest, more := strings.Cut(path, "/")
		kid := n.kids[name]
		switch {
		case name == "" || name == "." || name == "..":
			return nil, "", fmt.Errorf("captured path with the element %q", name)
		case !more && kid != nil && kid.isDir():
			return nil, "", fmt.Errorf("captured path %q is also a directory", path)
		case !more:
			return n, name, nil
		case kid == nil:
			kid = n.put(name, newDir())
		case !kid.isDir():
			return nil, "", fmt.Errorf("captured path leads through %q, which is no directory", name)
		}
		n, path = kid, rest
	}
}

func errnoOf(text string) (syscall.Errno, bool) {
	name, ok := strings.CutPrefix(text, "!")
	if !ok {
		return 0, false
	}
	for _, e := range []struct {
		name string
		no   syscall.Errno
	}{{"EINVAL", syscall.EINVAL}, {"EOPNOTSUPP", syscall.EOPNOTSUPP}, {"EIO", syscall.EIO}, {"EACCES", syscall.EACCES}, {"ENODEV", syscall.ENODEV}, {"EPERM", syscall.EPERM}} {
		if e.name == name {
			return e.no, true
		}
	}
	return 0, false
}

// Read returns a captured attribute.
func (c *capture) Read(ctx context.Context, path string) (string, error) {
	return captured(ctx, c, "read", path, func(n *node) (string, error) {
		if n.isDir() {
			return "", syscall.EISDIR
		}
		s, err := n.read()
		return strings.TrimSpace(s), err
	})
}

// Write refuses: what was captured is past.
func (c *capture) Write(ctx context.Context, path, _ string) error {
	_, err := captured(ctx, c, "write", path, func(*node) (struct{}, error) { return struct{}{}, syscall.EROFS })
	return err
}

// List returns the sorted names in a captured directory.
func (c *capture) List(ctx context.Context, path string) ([]string, error) {
	return captured(ctx, c, "list", path, func(n *node) ([]string, error) {
		if !n.isDir() {
			return nil, syscall.ENOTDIR
		}
		names := make([]string, 0, len(n.kids))
		for name := range n.kids {
			names = append(names, name)
		}
		slices.Sort(names)
		return names, nil
	})
}

// Link returns the last element of a captured link's target.
func (c *capture) Link(ctx context.Context, path string) (string, error) {
	return captured(ctx, c, "readlink", path, func(n *node) (string, error) {
		if n.to == nil {
			return "", syscall.EINVAL
		}
		return n.to.name, nil
	})
}

func captured[T any](ctx context.Context, c *capture, op, path string, f func(*node) (T, error)) (T, error) {
	var none T
	if ctx.Err() != nil {
		return sysfs.Guarded(ctx, &sysfs.Guard{}, op, path, func() (T, error) { return none, nil })
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := c.root.walk(path, Never, op != "readlink")
	if err != nil {
		return none, pathError(op, path, err)
	}
	v, err := f(n)
	if err != nil {
		return none, pathError(op, path, err)
	}
	return v, nil
}

// Capture writes the kernel's tree as it is now as an archive for Captured and Extract. Binary
// attributes are left out.
func (k *Kernel) Capture() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var links []string
	a := &txtar.Archive{}
	var visit func(n *node)
	visit = func(n *node) {
		for _, name := range sortedKids(n) {
			kid := n.kids[name]
			switch {
			case kid.after > k.calls:
			case kid.isDir():
				visit(kid)
			case kid.to != nil:
				rel, err := filepath.Rel("/"+n.path(), "/"+kid.to.path())
				if err == nil && !kid.to.gone {
					links = append(links, kid.path()+" -> "+rel)
				}
			default:
				text := "!EACCES"
				if kid.read != nil {
					text = shown(kid)
				}
				if strings.ContainsRune(text, 0) {
					continue
				}
				a.Files = append(a.Files, txtar.File{Name: kid.path(), Data: []byte(text + "\n")})
			}
		}
	}
	visit(k.sys)
	a.Comment = []byte("# Made from a simulated kernel, not captured on a host.\n" + strings.Join(links, "\n") + "\n")
	return string(txtar.Format(a))
}

func sortedKids(n *node) []string {
	names := make([]string, 0, len(n.kids))
	for name := range n.kids {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// shown is an attribute's text, or the name of its error.
func shown(n *node) string {
	s, err := n.read()
	if err == nil {
		return strings.TrimSpace(s)
	}
	for _, name := range []string{"EINVAL", "EOPNOTSUPP", "EIO", "EACCES", "ENODEV", "EPERM"} {
		if e, ok := errnoOf("!" + name); ok && err == e { //nolint:errorlint // an attribute's error is a plain errno
			return "!" + name
		}
	}
	return "!EIO"
}

// Extract writes a captured tree into a directory, for sysfs.Open. Attributes that answer an error are left
// out, since files can't.
func Extract(archive, root string) error {
	attrs, links, err := parse(archive)
	if err != nil {
		return err
	}
	for _, a := range attrs {
		if _, ok := errnoOf(a.value); ok {
			continue
		}
		path := filepath.Join(root, a.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			return fmt.Errorf("extract %s: %w", a.path, err)
		}
		if err := os.WriteFile(path, []byte(a.value+"\n"), 0o600); err != nil {
			return fmt.Errorf("extract %s: %w", a.path, err)
		}
	}
	for _, l := range links {
		path := filepath.Join(root, l.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			return fmt.Errorf("extract %s: %w", l.path, err)
		}
		if err := os.Symlink(l.value, path); err != nil {
			return fmt.Errorf("extract %s: %w", l.path, err)
		}
	}
	return nil
}

//go:embed captures
var captures embed.FS

// Example returns a tree of a host with one card, by the name of its driver: mlx5_core, bnxt_en, ice or igb.
// The first three were written after the formats that the kernel's documentation and source give, with
// what the field reports of them; only igb's values were read from a running kernel.
func Example(driver string) (string, error) {
	b, err := captures.ReadFile("captures/" + driver + ".txtar")
	if err != nil {
		return "", fmt.Errorf("example tree of %s: %w", driver, err)
	}
	return string(b), nil
}
