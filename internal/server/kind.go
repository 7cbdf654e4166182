package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
)

// metaPtr is a pointer to an API object.
type metaPtr[T any] interface {
	*T
	ObjectMeta() *api.Meta
}

// verbs are the permissions of a kind's routes; without create, update and delete it is read only.
type verbs struct{ read, create, update, remove auth.Permission }

// kind is all that the server knows of an object type. The verbs that all kinds share are its methods;
// what the objects mean is in the rules that it points to.
type kind[T any, P metaPtr[T]] struct {
	s      *Server
	name   api.Kind
	plural string // in paths
	noun   string // in operation ids
	perm   verbs

	// create also returns why it decided so, for a dry run to show; nil where there is nothing to show.
	create func(tx store.Tx, o *T, by object.Who) (why any, err error)
	update func(tx store.Tx, old, o *T, by object.Who) error
	remove func(tx store.Tx, o *T, by object.Who) error
	// fill derives on read what is not stored; nil = objects are shown as stored.
	fill func(tx store.Tx, o *T) error
	// asIs says that fill has nothing to do for this object, so that it need not be encoded again; nil = it
	// always has. The object is shared.
	asIs func(o *T) bool
	// veil takes out of a copy what this caller must not read, and reports whether there was anything; nil =
	// who may read the kind may read all of it. Whatever shows objects goes through it.
	veil func(c *call, o *T) bool
	// may is asked before a create (old is nil) or an update besides the permission, for what depends on the
	// change; nil = nothing does.
	may func(c *call, old, o *T) error
	// plan is what a dry run of a create or an update answers instead of the object, be the decision yes or
	// no; nil = the object.
	plan func(o *T, why any, err error) (any, error)
	// refused is told of a create that the rules refused, outside of any transaction; nil = nobody is.
	refused func(ctx context.Context, c *call, o *T, err error)
	// wrote adds events and operations to the commit of a write; nil = none. old is nil for a create, and o is
	// nil when the object is gone.
	wrote func(tx store.Tx, c *call, old, o *T) error
}

var (
	// errDryRun and errUnchanged end a transaction that shall commit nothing.
	errDryRun    = errors.New("dry run")
	errUnchanged = errors.New("unchanged")
)

// createInput is the request of a create.
type createInput[T any] struct {
	DryRun bool   `query:"dryRun" doc:"Decide and answer, but change nothing"`
	Key    string `header:"Idempotency-Key" maxLength:"255" doc:"Any text; the same request repeated with it within a day is done once. With another body it is refused"`
	Body   body[T]
}

// replaceInput is the request of a replace.
type replaceInput[T any] struct {
	DryRun  bool   `query:"dryRun" doc:"Decide and answer, but change nothing"`
	IfMatch string `header:"If-Match" doc:"Do it only if this is the current ETag (or *: any)"`
	Body    body[T]
}

// deleteInput is the request of a delete, and of actions without a body.
type deleteInput struct {
	DryRun  bool   `query:"dryRun" doc:"Decide and answer, but change nothing"`
	IfMatch string `header:"If-Match" doc:"Do it only if this is the current ETag (or *: any)"`
}

// self reports whether the {tenant} of the path is the object itself.
func (k *kind[T, P]) self() bool { return k.name == api.KindTenant }

// at is where the path of a request points.
func (k *kind[T, P]) at(c *call) (tenant, name string) {
	if k.self() {
		return "", c.tenant
	}
	return c.tenant, c.name
}

// key is the store's key of the object that the path names.
func (k *kind[T, P]) key(c *call) string {
	tenant, name := k.at(c)
	return object.Key(k.name, tenant, name)
}

// missing is the fault for the object that the path names.
func (k *kind[T, P]) missing(c *call) error {
	tenant, name := k.at(c)
	return missingObject(k.name, tenant, name)
}

func (k *kind[T, P]) get(ctx context.Context, _ *struct{}) (*answer, error) {
	c := callFrom(ctx)
	_, name := k.at(c)
	if !plausible(name) {
		return nil, k.missing(c)
	}
	var out *answer
	err := k.s.db.View(ctx, func(tx store.Tx) error {
		e := tx.Get(k.key(c))
		if e == nil {
			return k.missing(c)
		}
		data, err := k.show(tx, c, e)
		out = replyJSON(http.StatusOK, e.Rev, data, nil)
		return err
	})
	return out, err
}

// show is an object as it goes out to a caller: with its revision, with what is derived on read, and
// without what the caller must not read.
func (k *kind[T, P]) show(tx store.Tx, c *call, e *store.Entry) ([]byte, error) {
	if k.fill == nil {
		return k.bare(c, e, e.Rev)
	}
	shared, err := store.Peek[T](e)
	if err != nil {
		return nil, err
	}
	if k.asIs != nil && k.asIs(shared) {
		return k.bare(c, e, e.Rev)
	}
	o := *shared // fill replaces what it derives and changes nothing that is shared
	if err := k.fill(tx, &o); err != nil {
		return nil, err
	}
	if k.veil != nil {
		k.veil(c, &o)
	}
	return encoded(&o, P(&o).ObjectMeta(), e, e.Rev)
}

// bare is an object as it is stored, without what the caller must not read.
func (k *kind[T, P]) bare(c *call, e *store.Entry, rev int64) ([]byte, error) {
	if k.veil == nil {
		return shown(e, rev), nil
	}
	shared, err := store.Peek[T](e)
	if err != nil {
		return nil, err
	}
	o := *shared
	if !k.veil(c, &o) {
		return shown(e, rev), nil
	}
	return encoded(&o, P(&o).ObjectMeta(), e, rev)
}

// encoded is an object that is no longer what the entry holds.
func encoded(o any, meta *api.Meta, e *store.Entry, rev int64) ([]byte, error) {
	meta.Revision = rev
	b, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", e.Key, err)
	}
	return append(b, '\n'), nil
}

func (k *kind[T, P]) post(ctx context.Context, in *createInput[T]) (*answer, error) {
	c := callFrom(ctx)
	by := k.s.who(c)
	by.Plan = in.DryRun
	create := func(tx store.Tx, o *T) (any, error) {
		if k.may != nil {
			if err := k.may(c, nil, o); err != nil {
				return nil, err
			}
		}
		return k.create(tx, o, by)
	}
	o, err := k.accept(ctx, &in.Body, create)
	if err != nil {
		return nil, err
	}
	c.object = refOf(P(o).ObjectMeta())
	if in.DryRun {
		return k.dryRun(ctx, o, create)
	}
	idem, err := newRepeat(c, in.Key, in.Body.sum)
	if err != nil {
		return nil, err
	}
	var entry *store.Entry
	rev, err := k.s.db.Update(ctx, func(tx store.Tx) error {
		if err := idem.check(tx); err != nil {
			return err
		}
		attempt := *o
		if _, err := create(tx, &attempt); err != nil {
			return err
		}
		ref := refOf(P(&attempt).ObjectMeta())
		entry = tx.Get(object.Key(k.name, ref.Tenant, ref.Name))
		return k.commit(tx, c, written[T]{o: &attempt, ref: ref, status: http.StatusCreated, repeat: idem})
	})
	if done, ok := errors.AsType[*repeated](err); ok {
		c.audited = true
		return k.again(ctx, c, done)
	}
	if c.audited = err == nil; !c.audited {
		if k.refused != nil {
			k.refused(ctx, c, o, err)
		}
		return nil, err
	}
	return k.created(c, entry, rev)
}

// written is what a write did.
type written[T any] struct {
	old, o *T
	ref    api.Ref
	status int
	repeat *repeat
}

// commit adds to a write's transaction what tells of it.
func (k *kind[T, P]) commit(tx store.Tx, c *call, w written[T]) error {
	if k.wrote != nil {
		if err := k.wrote(tx, c, w.old, w.o); err != nil {
			return err
		}
	}
	if err := w.repeat.save(tx, w.ref); err != nil {
		return err
	}
	return k.s.audit(tx, c, w.ref, w.status)
}

// created answers a create with the object and where it is.
func (k *kind[T, P]) created(c *call, e *store.Entry, rev int64) (*answer, error) {
	_, tenant, name, _ := object.Split(e.Key)
	where := "/v1/" + k.plural + "/" + name
	if tenant != "" {
		where = "/v1/tenants/" + tenant + "/" + k.plural + "/" + name
	}
	data, err := k.bare(c, e, rev)
	return replyJSON(http.StatusCreated, rev, data, http.Header{"Location": {where}}), err
}

func (k *kind[T, P]) put(ctx context.Context, in *replaceInput[T]) (*answer, error) {
	c := callFrom(ctx)
	match, err := parseMatch(in.IfMatch)
	if err != nil {
		return nil, err
	}
	by := k.s.who(c)
	var old *T
	change := func(tx store.Tx, o *T) error {
		if old, err = k.load(tx, c, match); err != nil {
			return err
		}
		if k.may != nil {
			if err := k.may(c, old, o); err != nil {
				return err
			}
		}
		return k.update(tx, old, o, by)
	}
	o, err := k.accept(ctx, &in.Body, unexplained(change))
	if err != nil {
		return nil, err
	}
	c.object = refOf(P(o).ObjectMeta())
	if in.DryRun {
		return k.dryRun(ctx, o, unexplained(change))
	}
	return k.rewrite(ctx, c, func(tx store.Tx) (written[T], error) {
		attempt := *o
		err := change(tx, &attempt)
		return written[T]{old: old, o: &attempt, status: http.StatusOK}, err
	})
}

func (k *kind[T, P]) drop(ctx context.Context, in *deleteInput) (*answer, error) {
	c := callFrom(ctx)
	match, err := parseMatch(in.IfMatch)
	if err != nil {
		return nil, err
	}
	tenant, name := k.at(c)
	c.object = api.Ref{Kind: k.name, Tenant: tenant, Name: name}
	by := k.s.who(c)
	var old *T
	change := func(tx store.Tx, o *T) error {
		if old, err = k.load(tx, c, match); err != nil {
			return err
		}
		*o = *old
		return k.remove(tx, o, by)
	}
	if in.DryRun {
		return k.dryRun(ctx, new(T), unexplained(change))
	}
	return k.rewrite(ctx, c, func(tx store.Tx) (written[T], error) {
		var o T
		err := change(tx, &o)
		w := written[T]{old: old, status: http.StatusNoContent}
		if tx.Get(k.key(c)) != nil { // it stays until what it holds is proven free
			w.o, w.status = &o, http.StatusAccepted
		}
		return w, err
	})
}

// rewrite runs a change of the object that the path names and answers with what became of it. A change
// that changes nothing commits nothing: the revision stays, and watchers see no change.
func (k *kind[T, P]) rewrite(ctx context.Context, c *call, change func(store.Tx) (written[T], error)) (*answer, error) {
	var entry *store.Entry
	status := 0
	rev, err := k.s.db.Update(ctx, func(tx store.Tx) error {
		before := tx.Get(k.key(c))
		w, err := change(tx)
		if err != nil {
			return err
		}
		w.ref = refOf(P(w.old).ObjectMeta())
		entry, status = tx.Get(k.key(c)), w.status
		if entry != nil && before != nil && bytes.Equal(entry.Value, before.Value) {
			entry = before
			return errUnchanged
		}
		return k.commit(tx, c, w)
	})
	if errors.Is(err, errUnchanged) {
		rev, err = entry.Rev, nil
	}
	if c.audited = err == nil; !c.audited {
		return nil, err
	}
	if entry == nil {
		return replyEmpty(status), nil
	}
	data, err := k.bare(c, entry, rev)
	return replyJSON(status, rev, data, nil), err
}

// load returns a copy of the object that the path names if it is at a revision that the request asked for.
func (k *kind[T, P]) load(tx store.Tx, c *call, m match) (*T, error) {
	tenant, name := k.at(c)
	if !plausible(name) {
		return nil, k.missing(c)
	}
	o, err := object.Load[T](tx, k.name, tenant, name)
	if fault.Is(err, fault.NotFound) {
		return nil, k.missing(c)
	}
	if err != nil {
		return nil, err
	}
	return o, m.check(k.name, P(o).ObjectMeta())
}

// accept judges the body of a write. If the schema finds faults, the rules are asked, too, in a transaction
// that commits nothing: one answer names all places.
func (k *kind[T, P]) accept(ctx context.Context, b *body[T], rules func(store.Tx, *T) (any, error)) (*T, error) {
	c := callFrom(ctx)
	found, err := b.judge(k.s.api.OpenAPI().Components.Schemas)
	if err != nil {
		return nil, err
	}
	o := b.object
	meta := P(&o).ObjectMeta()
	found = append(found, k.settle(c, meta)...)
	if len(found) == 0 {
		return &o, nil
	}
	c.object = refOf(meta)
	var f fault.Faults
	for _, w := range found {
		f.Add(w.Path, "%s", w.Text)
	}
	if _, object := b.tree.(map[string]any); !object {
		return nil, f.Err(string(k.name)) // the rules would only miss everything
	}
	_, err = k.s.db.Update(ctx, func(tx store.Tx) error {
		attempt := o
		if _, err := rules(tx, &attempt); err != nil {
			return err
		}
		return errDryRun
	})
	if more, ok := errors.AsType[*fault.Error](err); ok && more.Kind == fault.Invalid {
		for _, w := range more.Fields {
			if !covered(found, w.Path) {
				f.Add(w.Path, "%s", w.Text)
			}
		}
	}
	return nil, f.Err(object.Title(k.name, meta))
}

// covered reports whether a place, or one inside it, has been named already.
func covered(found []fault.Field, path string) bool {
	for _, f := range found {
		if f.Path == path || strings.HasPrefix(f.Path, path+".") || strings.HasPrefix(f.Path, path+"[") {
			return true
		}
	}
	return false
}

// settle brings the meta of a body in line with the path; what contradicts it is a fault. What only the
// system writes is dropped, so that people can send back what they have read.
func (k *kind[T, P]) settle(c *call, m *api.Meta) []fault.Field {
	var f fault.Faults
	if m.Kind != "" && m.Kind != k.name {
		f.Add("kind", "%s objects are written here", k.name)
	}
	tenant, name := k.at(c)
	if name != "" && m.Name != "" && m.Name != name {
		f.Add("name", "the path says %s; objects can't be renamed", clip(name))
	}
	if tenant != "" && m.Tenant != "" && m.Tenant != tenant {
		f.Add("tenant", "the path says %s", tenant)
	}
	if name != "" {
		m.Name = name
	}
	if tenant != "" {
		m.Tenant = tenant
	}
	m.Kind, m.UID, m.Created, m.Deleting, m.Revision = k.name, "", nil, nil, 0
	return f.Fields()
}

// unexplained is a change that has nothing to show for its decision.
func unexplained[T any](change func(store.Tx, *T) error) func(store.Tx, *T) (any, error) {
	return func(tx store.Tx, o *T) (any, error) { return nil, change(tx, o) }
}

// dryRun decides, and answers what would be.
func (k *kind[T, P]) dryRun(ctx context.Context, o *T, change func(store.Tx, *T) (any, error)) (*answer, error) {
	c := callFrom(ctx)
	c.audited = true // nothing will have happened
	var out any
	_, err := k.s.db.Update(ctx, func(tx store.Tx) error {
		attempt := *o
		why, err := change(tx, &attempt)
		if k.veil != nil {
			k.veil(c, &attempt)
		}
		if k.plan != nil {
			if out, err = k.plan(&attempt, why, err); err != nil {
				return err
			}
			return errDryRun
		}
		if err != nil {
			return err
		}
		if k.fill != nil {
			if err := k.fill(tx, &attempt); err != nil {
				return err
			}
		}
		out = &attempt
		return errDryRun
	})
	if !errors.Is(err, errDryRun) {
		return nil, err
	}
	return replyValue(http.StatusOK, out)
}

func refOf(m *api.Meta) api.Ref {
	return api.Ref{Kind: m.Kind, Tenant: m.Tenant, Name: m.Name, UID: m.UID}
}

// who is behind the changes of a request.
func (s *Server) who(c *call) object.Who {
	return object.Who{Operator: c.Operates(), Name: c.Who(), Now: c.start.UTC(), UID: s.uid()}
}

// match is an If-Match header: which revisions the write is meant for.
type match struct {
	given bool
	any   bool
	revs  []int64
}

func parseMatch(header string) (match, error) {
	if header == "" {
		return match{}, nil
	}
	m := match{given: true}
	for part := range strings.SplitSeq(header, ",") {
		part = strings.TrimSpace(part)
		if part == "*" {
			m.any = true
			continue
		}
		rev, err := strconv.ParseInt(strings.Trim(part, `"`), 10, 64)
		if err != nil {
			return match{}, &fault.Error{Kind: fault.Invalid, Text: "If-Match takes an ETag as this API gives it, or *",
				Fields: []fault.Field{{Path: "header.If-Match", Text: "expected a quoted revision or *"}}}
		}
		m.revs = append(m.revs, rev)
	}
	return m, nil
}

// check compares with the object's current revision, and tells it.
func (m match) check(k api.Kind, meta *api.Meta) error {
	if !m.given || m.any {
		return nil
	}
	for _, r := range m.revs {
		if r == meta.Revision {
			return nil
		}
	}
	tag := `"` + strconv.FormatInt(meta.Revision, 10) + `"`
	err := fault.New(fault.Precondition, "%s is at revision %d now; read it again and decide anew", object.Title(k, meta), meta.Revision)
	return withStatus{err, 0, http.Header{"Etag": {tag}}}
}
