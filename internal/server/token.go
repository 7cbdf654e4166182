package server

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
)

// lastUse remembers when tokens were used. It is exact to a minute and saved once an hour: a write per
// request would cost more than all requests.
type lastUse struct {
	mu    sync.RWMutex
	at    map[string]*atomic.Int64 // token id → Unix seconds
	dirty atomic.Bool
}

// usedRecord is what is saved of it.
type usedRecord struct {
	At map[string]int64 `json:"at"`
}

func newLastUse() *lastUse { return &lastUse{at: map[string]*atomic.Int64{}} }

// note remembers a use.
func (l *lastUse) note(id string, now time.Time) {
	t := now.Unix()
	l.mu.RLock()
	at := l.at[id]
	l.mu.RUnlock()
	if at == nil {
		l.mu.Lock()
		if at = l.at[id]; at == nil {
			at = new(atomic.Int64)
			l.at[id] = at
		}
		l.mu.Unlock()
	}
	if old := at.Load(); t-old >= 60 && at.CompareAndSwap(old, t) {
		l.dirty.Store(true)
	}
}

// of returns when the token was last used; saved is what the store knows. nil = never.
func (l *lastUse) of(id string, saved map[string]int64) *time.Time {
	t := saved[id]
	l.mu.RLock()
	if at := l.at[id]; at != nil {
		t = max(t, at.Load())
	}
	l.mu.RUnlock()
	if t == 0 {
		return nil
	}
	at := time.Unix(t, 0).UTC()
	return &at
}

// saveUse writes the last uses of the tokens that still exist, if any is new.
func (s *Server) saveUse(ctx context.Context) error {
	l := s.ident.used
	if !l.dirty.Swap(false) {
		return nil
	}
	_, err := s.db.Update(ctx, func(tx store.Tx) error {
		old, err := savedUse(tx)
		if err != nil {
			return err
		}
		next := map[string]int64{}
		for e := range tx.Scan(tokenKeys, "") {
			id := e.Key[len(tokenKeys):]
			if t := l.of(id, old); t != nil {
				next[id] = t.Unix()
			}
		}
		if maps.Equal(old, next) {
			return nil
		}
		return store.Put(tx, usedKey, &usedRecord{At: next})
	})
	if err != nil {
		l.dirty.Store(true)
		return fmt.Errorf("save when tokens were used: %w", err)
	}
	return nil
}

func savedUse(tx store.Tx) (map[string]int64, error) {
	e := tx.Get(usedKey)
	if e == nil {
		return map[string]int64{}, nil
	}
	r, err := store.Peek[usedRecord](e)
	if err != nil {
		return nil, err
	}
	return r.At, nil
}

type tokenCreateIn struct {
	Body api.TokenRequest
}

type tokenListIn struct {
	User string `query:"user" maxLength:"63" doc:"Of this user (platform-admins); default: the caller's own"`
}

type tokenListOut struct {
	Body api.List[api.Token]
}

type tokenNameIn struct {
	Token string `path:"token" maxLength:"63" doc:"Its id, or the name of one of one's own"`
}

type whoamiOut struct {
	Body api.WhoAmI
}

func (s *Server) tokenRoutes() []route {
	const tag = "Identity"
	return []route{
		handle(route{id: "token-create", method: http.MethodPost, path: "/v1/tokens", perm: auth.TokenCreate, tag: tag,
			summary: "Make a token; the answer is the only one that holds its secret"}, s.createToken),
		handle(route{id: "token-list", method: http.MethodGet, path: "/v1/tokens", perm: auth.TokenRead, tag: tag,
			summary: "List tokens, without their secrets"}, s.listTokens),
		handle(route{id: "token-delete", method: http.MethodDelete, path: "/v1/tokens/{token}", perm: auth.TokenDelete, tag: tag,
			summary: "Delete a token: it stops at once"}, s.deleteToken),
	}
}

func (s *Server) createToken(ctx context.Context, in *tokenCreateIn) (*grantOut, error) {
	c := callFrom(ctx)
	c.object = api.Ref{Kind: api.KindToken, Name: short(in.Body.Name)}
	token := newToken()
	var made api.Token
	_, err := s.db.Update(ctx, func(tx store.Tx) error {
		now := s.now()
		user := in.Body.User
		if user == "" {
			user = c.Name
		}
		as, err := callerOf(tx, user, "")
		if err != nil {
			if fault.Is(err, fault.Unauthenticated) && user != c.Name && c.Can(auth.UserRead, "") {
				return fault.New(fault.Invalid, "user %s does not exist or is disabled", clip(user))
			}
			as = auth.Caller{Name: user} // CheckToken refuses to make one for another
		}
		t, err := auth.CheckToken(c.Caller, as, in.Body, now)
		if err != nil {
			return err
		}
		if t.InTenant != "" && (!c.Sees(t.InTenant) || tx.Get(object.Key(api.KindTenant, "", t.InTenant)) == nil) {
			return fault.New(fault.Invalid, "token %s: tenant %s does not exist", t.Name, clip(t.InTenant))
		}
		u, err := loadUser(tx, user)
		if err != nil {
			return err
		}
		if err := freeName(tx, user, t.Name); err != nil {
			return err
		}
		t.Created, t.UID = &now, token.ID
		made = t
		if err := putToken(tx, token, &tokenRecord{Token: t, UserUID: u.UID, By: c.Who()}); err != nil {
			return err
		}
		ref := api.Ref{Kind: api.KindToken, Name: t.Name, UID: token.ID}
		return s.audit(tx, c, ref, http.StatusOK)
	})
	if err != nil {
		return nil, err
	}
	c.audited = true
	return &grantOut{Body: api.TokenGrant{Token: made, Secret: token.Text()}}, nil
}

// freeName refuses a second token of the same name for a user.
func freeName(tx store.Tx, user, name string) error {
	for e := range tx.Scan(tokenKeys, "") {
		r, err := store.Peek[tokenRecord](e)
		if err != nil {
			return err
		}
		if r.User == user && r.Name == name {
			return fault.New(fault.Conflict, "user %s has a token %s already; delete it first, or take another name", user, name)
		}
	}
	return nil
}

func (s *Server) listTokens(ctx context.Context, in *tokenListIn) (*tokenListOut, error) {
	c := callFrom(ctx)
	user := in.User
	if user == "" {
		user = c.Name
	}
	if user != c.Name && (!slices.Contains(c.Platform, auth.PlatformAdmin) || c.OnlyTenant != "") {
		return nil, fault.New(fault.Forbidden, "only platform-admins may list the tokens of others")
	}
	out := &tokenListOut{}
	out.Body.Items = []api.Token{}
	err := s.db.View(ctx, func(tx store.Tx) error {
		out.Body.Revision = tx.Rev()
		saved, err := savedUse(tx)
		if err != nil {
			return err
		}
		for e := range tx.Scan(tokenKeys, "") {
			r, err := store.Peek[tokenRecord](e)
			if err != nil {
				return err
			}
			if r.User != user {
				continue
			}
			t := r.Token
			t.Revision, t.LastUsed = e.Rev, s.ident.used.of(t.UID, saved)
			out.Body.Items = append(out.Body.Items, t)
		}
		return nil
	})
	slices.SortFunc(out.Body.Items, func(a, b api.Token) int { return strings.Compare(a.Name, b.Name) })
	return out, err
}

func (s *Server) deleteToken(ctx context.Context, in *tokenNameIn) (*struct{}, error) {
	c := callFrom(ctx)
	c.object = api.Ref{Kind: api.KindToken, Name: short(in.Token)}
	_, err := s.db.Update(ctx, func(tx store.Tx) error {
		e, err := findToken(tx, c, in.Token)
		if err != nil {
			return err
		}
		r, err := store.Peek[tokenRecord](e)
		if err != nil {
			return err
		}
		tx.Delete(e.Key)
		return s.audit(tx, c, api.Ref{Kind: api.KindToken, Name: r.Name, UID: r.UID}, http.StatusNoContent)
	})
	c.audited = err == nil
	return nil, err
}

// findToken returns the token by id, or by name among the caller's own. Others' tokens exist only for
// platform-admins.
func findToken(tx store.Tx, c *call, name string) (*store.Entry, error) {
	others := slices.Contains(c.Platform, auth.PlatformAdmin) && !c.CutDown()
	for e := range tx.Scan(tokenKeys, "") {
		r, err := store.Peek[tokenRecord](e)
		if err != nil {
			return nil, err
		}
		own := r.User == c.Name
		if (r.UID == name && (own || others)) || (own && r.Name == name) {
			return e, nil
		}
	}
	return nil, fault.New(fault.NotFound, "%s %s does not exist", api.KindToken, clip(name))
}

func (s *Server) whoami(ctx context.Context, _ *struct{}) (*whoamiOut, error) {
	c := callFrom(ctx)
	out := &whoamiOut{Body: api.WhoAmI{Name: c.Name}}
	for _, r := range c.Platform {
		out.Body.Roles = append(out.Body.Roles, string(r))
	}
	for _, p := range c.Scopes {
		out.Body.Scopes = append(out.Body.Scopes, string(p))
	}
	out.Body.Tenant = c.OnlyTenant
	for tenant, role := range c.Tenants {
		if !c.Sees(tenant) {
			continue
		}
		if out.Body.Tenants == nil {
			out.Body.Tenants = map[string]string{}
		}
		out.Body.Tenants[tenant] = string(role)
	}
	if !c.Expires.IsZero() {
		t := c.Expires.UTC()
		out.Body.Expires = &t
	}
	return out, nil
}
