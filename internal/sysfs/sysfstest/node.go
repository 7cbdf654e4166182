package sysfstest

import (
	"io/fs"
	"strings"
	"syscall"
)

// node is a directory, a link or an attribute.
type node struct {
	name   string
	parent *node
	kids   map[string]*node
	to     *node // target of a link
	gone   bool  // removed: links to it dangle
	after  int   // not to be seen before that many calls
	read   func() (string, error)
	write  func(string) error
}

func newDir() *node { return &node{kids: map[string]*node{}} }

func (n *node) isDir() bool { return n.kids != nil }

// path is the node's place below its root, for errors and quirks.
func (n *node) path() string {
	if n.parent == nil {
		return ""
	}
	if p := n.parent.path(); p != "" {
		return p + "/" + n.name
	}
	return n.name
}

func (n *node) put(name string, kid *node) *node {
	kid.name, kid.parent = name, n
	n.kids[name] = kid
	return kid
}

// dir makes the directories of a path.
func (n *node) dir(path string) *node {
	for path != "" {
		var name string
		name, path, _ = strings.Cut(path, "/")
		kid := n.kids[name]
		if kid == nil {
			kid = n.put(name, newDir())
		}
		n = kid
	}
	return n
}

// link makes a link that is not to be seen before call number after.
func (n *node) link(name string, to *node, after int) {
	n.put(name, &node{to: to, after: after})
}

func (n *node) text(name, value string) {
	n.put(name, &node{read: func() (string, error) { return value, nil }})
}

// fails makes an attribute that is there and can't be read.
func (n *node) fails(name string, err syscall.Errno) {
	n.put(name, &node{read: func() (string, error) { return "", err }})
}

func (n *node) file(name string, read func() (string, error), write func(string) error) {
	n.put(name, &node{read: read, write: write})
}

// live makes an attribute that shows a value as it is now.
func (n *node) live(name string, read func() string) {
	n.put(name, &node{read: func() (string, error) { return read(), nil }})
}

func (n *node) remove(name string) {
	if kid := n.kids[name]; kid != nil {
		kid.bury()
		delete(n.kids, name)
	}
}

func (n *node) bury() {
	n.gone = true
	for _, k := range n.kids {
		k.bury()
	}
}

// seen is the kid as call number now sees it.
func (n *node) seen(name string, now int) *node {
	kid := n.kids[name]
	if kid == nil || kid.after > now {
		return nil
	}
	return kid
}

// walk follows a path through links. The last element is not followed if last is false.
func (n *node) walk(path string, now int, last bool) (*node, error) {
	if path == "" || path[0] == '/' {
		return nil, syscall.EXDEV
	}
	for path != "" {
		var name string
		name, path, _ = strings.Cut(path, "/")
		if !n.isDir() {
			return nil, syscall.ENOTDIR
		}
		switch name {
		case "", ".":
			continue
		case "..":
			if n.parent == nil {
				return nil, syscall.EXDEV
			}
			n = n.parent
			continue
		}
		kid := n.seen(name, now)
		if kid == nil {
			return nil, syscall.ENOENT
		}
		if kid.to != nil && (path != "" || last) {
			if kid.to.gone {
				return nil, syscall.ENOENT
			}
			kid = kid.to
		}
		n = kid
	}
	return n, nil
}

func pathError(op, path string, err error) error {
	return &fs.PathError{Op: op, Path: path, Err: err}
}
