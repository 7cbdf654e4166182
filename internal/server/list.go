package server

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
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

// maxPage is how many objects a page has at most, and if nothing else is asked for.
const maxPage = 5000

// pageKeyAt is where the key lies that continue tokens are signed with; all replicas of a server share it.
const pageKeyAt = "/server/page-key"

// listInput is the request of a list or a watch.
type listInput struct {
	Labels   string `query:"labels" maxLength:"4096" doc:"Only objects whose labels fit: a=b,c!=d,e,!f"`
	Limit    int    `query:"limit" minimum:"1" maximum:"5000" doc:"Objects per page; default 5000"`
	Continue string `query:"continue" maxLength:"2048" doc:"The continue of the page before"`
	Watch    bool   `query:"watch" doc:"Stream changes as server-sent events (put, delete, bookmark, gone) instead of a list"`
	From     int64  `query:"from" minimum:"0" doc:"Watch from after this revision; without it the stream begins with all objects as they are"`
	LastID   string `header:"Last-Event-ID" doc:"Resumes a watch, as browsers do it; goes before from"`
}

// sight decides which objects of a kind a caller sees in a list over all tenants.
type sight struct {
	c      *call
	perm   auth.Permission
	filter bool // whether there is anything to leave out
	self   bool // the objects are tenants themselves
	known  map[string]bool
}

func newSight(c *call, self bool) *sight {
	return &sight{c: c, perm: c.route.perm, filter: c.route.scope == scopeAcross, self: self, known: map[string]bool{}}
}

func (s *sight) sees(tenant, name string) bool {
	if !s.filter {
		return true
	}
	if s.self {
		tenant = name
	}
	ok, asked := s.known[tenant]
	if !asked {
		ok = s.c.Can(s.perm, tenant)
		s.known[tenant] = ok
	}
	return ok
}

// page is a stretch of a list.
type page struct {
	items [][]byte
	last  string // key of the last object
	more  bool
	rev   int64
}

func (k *kind[T, P]) list(ctx context.Context, in *listInput) (*answer, error) {
	sel, err := parseSelector(in.Labels)
	if err != nil {
		return nil, err
	}
	if in.Watch {
		return k.watch(ctx, in, sel)
	}
	c := callFrom(ctx)
	if in.Limit == 0 {
		in.Limit = maxPage
	}
	scope := string(k.name) + "|" + c.tenant + "|" + in.Labels
	cur, err := k.s.openCursor(in.Continue, scope)
	if err != nil {
		return nil, err
	}
	p := page{last: cur.After}
	err = k.s.db.View(ctx, func(tx store.Tx) error {
		if err := k.tenantThere(tx, c); err != nil {
			return err
		}
		p.rev = tx.Rev()
		return k.fillPage(tx, c, sel, in.Limit, &p)
	})
	if err != nil {
		return nil, err
	}
	if cur.Rev != 0 {
		// Later pages may show later states. Told the revision of the first page, a watch repeats
		// whatever changed since, and so nothing is missed.
		p.rev = cur.Rev
	}
	return k.s.replyPage(p, scope)
}

// tenantThere refuses a list in a tenant that does not exist, with the same words as for one that must not
// be known.
func (k *kind[T, P]) tenantThere(tx store.Tx, c *call) error {
	if c.tenant != "" && tx.Get(object.Key(api.KindTenant, "", c.tenant)) == nil {
		return missingTenant(c.tenant)
	}
	return nil
}

// fillPage collects objects after p.last.
func (k *kind[T, P]) fillPage(tx store.Tx, c *call, sel selector, limit int, p *page) error {
	for e, err := range k.visible(tx, c, sel, p.last) {
		if err != nil {
			return err
		}
		if len(p.items) == limit {
			p.more = true
			return nil
		}
		data, err := k.show(tx, c, e)
		if err != nil {
			return err
		}
		p.items = append(p.items, bytes.TrimRight(data, "\n"))
		p.last = e.Key
	}
	return nil
}

// visible yields the entries of the kind that the caller may see and the selector picks, in key order.
func (k *kind[T, P]) visible(tx store.Tx, c *call, sel selector, after string) func(func(*store.Entry, error) bool) {
	prefix := object.Prefix(k.name, k.listTenant(c))
	see := newSight(c, k.self())
	return func(yield func(*store.Entry, error) bool) {
		for again := true; again; {
			again = false
			for e := range tx.Scan(prefix, after) {
				_, tenant, name, _ := object.Split(e.Key)
				if !see.sees(tenant, name) {
					if k.self() {
						continue
					}
					// Nothing of this tenant is seen: go on behind it.
					after, again = object.Key(k.name, tenant, "")+"\xff", true
					break
				}
				ok, err := k.picks(sel, e)
				if err == nil && !ok {
					continue
				}
				if !yield(e, err) {
					return
				}
			}
		}
	}
}

// listTenant is the tenant that a list is about; "" = all.
func (k *kind[T, P]) listTenant(c *call) string {
	if k.self() {
		return ""
	}
	return c.tenant
}

// picks reports whether the selector picks the object.
func (k *kind[T, P]) picks(sel selector, e *store.Entry) (bool, error) {
	if len(sel) == 0 {
		return true, nil
	}
	o, err := store.Peek[T](e)
	if err != nil {
		return false, err
	}
	return sel.match(P(o).ObjectMeta().Labels), nil
}

// replyPage answers with the page as an api.List.
func (s *Server) replyPage(p page, scope string) (*answer, error) {
	var b bytes.Buffer
	b.WriteString(`{"items":[`)
	b.Write(bytes.Join(p.items, []byte(",")))
	b.WriteString(`],`)
	if p.more {
		token, err := s.sealCursor(cursor{After: p.last, Rev: p.rev}, scope)
		if err != nil {
			return nil, err
		}
		b.WriteString(`"continue":"` + token + `",`)
	}
	b.WriteString(`"revision":` + strconv.FormatInt(p.rev, 10) + "}\n")
	return replyJSON(http.StatusOK, 0, b.Bytes(), nil), nil
}

// cursor is what a continue token holds.
type cursor struct {
	After string `json:"a"`
	Rev   int64  `json:"r"`
}

// sealCursor signs a cursor for the list that scope describes.
func (s *Server) sealCursor(c cursor, scope string) (string, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("encode a cursor: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(append(s.signCursor(b, scope), b...)), nil
}

// openCursor is the inverse of sealCursor; an empty token is the beginning.
func (s *Server) openCursor(token, scope string) (cursor, error) {
	var c cursor
	if token == "" {
		return c, nil
	}
	wrong := &fault.Error{Kind: fault.Invalid, Text: "continue is not one that this list gave; begin again without it",
		Fields: []fault.Field{{Path: "query.continue", Text: "not a token of this list"}}}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) < sha256.Size || !hmac.Equal(b[:sha256.Size], s.signCursor(b[sha256.Size:], scope)) {
		return c, wrong
	}
	if err := json.Unmarshal(b[sha256.Size:], &c); err != nil {
		return c, wrong
	}
	return c, nil
}

func (s *Server) signCursor(b []byte, scope string) []byte {
	h := hmac.New(sha256.New, s.pageKey)
	_, _ = h.Write([]byte(strings.ReplaceAll(scope, "\x00", ""))) // a hash takes everything
	_, _ = h.Write([]byte{0})
	_, _ = h.Write(b)
	return h.Sum(nil)
}

// loadPageKey reads the key of the continue tokens, and makes it at the very first start.
func loadPageKey(ctx context.Context, db store.DB) ([]byte, error) {
	var key []byte
	_, err := db.Update(ctx, func(tx store.Tx) error {
		if e := tx.Get(pageKeyAt); e != nil {
			return json.Unmarshal(e.Value, &key)
		}
		key = make([]byte, sha256.Size)
		_, _ = rand.Read(key) // never fails: crypto/rand
		b, err := json.Marshal(key)
		tx.Put(store.NewEntry(pageKeyAt, b, nil))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("load the key of list pages: %w", err)
	}
	return key, nil
}
