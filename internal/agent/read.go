package agent

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/verbena-cloud/verbena/internal/sysfs"
)

// problems collects what could not be read, one line per cause, so that a bad file costs its value and
// never the host.
type problems struct {
	mu   sync.Mutex
	list []string
}

// maxProblems bounds a report; a host where everything fails needs one line to say so, not a thousand.
const maxProblems = 64

func (p *problems) add(err error) { p.addf("%s", text(err)) }

func (p *problems) addf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := fmt.Sprintf(format, args...)
	if len(p.list) < maxProblems && !slices.Contains(p.list, line) {
		p.list = append(p.list, line)
	}
}

func (p *problems) lines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	slices.Sort(p.list)
	return slices.Clone(p.list)
}

// reader reads the attributes of one directory. A missing attribute is its zero value; every other error
// is a problem, and for must and names also the reader's own error.
type reader struct {
	ctx  context.Context //nolint:containedctx // lives for one observation, to keep forty calls readable
	tree sysfs.Tree
	dir  string
	prob *problems
	err  *error // shared with the readers made from this one
}

// at returns a reader of another directory for the same observation.
func (r reader) at(dir string) reader {
	r.dir = dir
	return r
}

func (r reader) text(name string) string {
	v, err := r.tree.Read(r.ctx, r.dir+"/"+name)
	if err != nil {
		if !sysfs.Absent(err) {
			r.prob.add(err)
		}
		return ""
	}
	return v
}

// sure reads an attribute that may be missing, but must not be misread.
func (r reader) sure(name string) string {
	v, err := r.tree.Read(r.ctx, r.dir+"/"+name)
	if err != nil && !sysfs.Absent(err) {
		r.fail(fmt.Errorf("read %s/%s: %w", r.dir, name, err))
	}
	return v
}

func (r reader) number(name string, other int) int {
	v := r.text(name)
	if v == "" {
		return other
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		r.prob.addf("%s/%s: %.40q is no number", r.dir, name, v)
		return other
	}
	return n
}

// must reads a number without which nothing may be concluded.
func (r reader) must(name string) int {
	v, err := r.tree.Read(r.ctx, r.dir+"/"+name)
	n := 0
	if err == nil {
		n, err = strconv.Atoi(v)
	}
	if err != nil {
		r.fail(fmt.Errorf("read %s/%s: %w", r.dir, name, err))
	}
	return n
}

// link reads a link's target; a missing link is "".
func (r reader) link(name string) string {
	v, err := r.tree.Link(r.ctx, r.dir+"/"+name)
	if err != nil && !sysfs.Absent(err) {
		r.fail(err)
	}
	return v
}

// names lists the directory; a missing one is empty, and that is an error only of the first listing.
func (r reader) names() []string {
	v, err := r.tree.List(r.ctx, r.dir)
	if err != nil {
		r.fail(err)
	}
	return v
}

func (r reader) fail(err error) {
	r.prob.add(err)
	if *r.err == nil {
		*r.err = err
	}
}
