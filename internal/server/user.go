package server

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
)

// userWrite is what a write of a user brings besides the object: who writes, and the hash of the password
// that the body held. The password itself is gone before any transaction begins.
type userWrite struct {
	c    *call
	hash string
}

// userKind has the common verbs for users. It is made for each request, since the rules of users depend
// on the caller more than those of any other kind.
func (s *Server) userKind(w userWrite) *kind[api.User, *api.User] {
	return &kind[api.User, *api.User]{
		s: s, name: api.KindUser, plural: "users", noun: "user",
		perm:   verbs{auth.UserRead, auth.UserCreate, auth.UserUpdate, auth.UserDelete},
		create: plain(w.create), update: w.update, remove: w.remove,
	}
}

func (s *Server) userRoutes() []route {
	k := s.userKind(userWrite{})
	return []route{
		handle(k.route(route{id: "list", method: http.MethodGet, path: "/v1/users", perm: auth.UserRead,
			summary: "List or watch", describe: k.describeList}), k.list),
		handle(k.route(route{id: "get", method: http.MethodGet, path: "/v1/users/{name}", perm: auth.UserRead,
			summary: "Read one", describe: k.describeObject(http.StatusOK)}), k.get),
		handle(k.route(route{id: "create", method: http.MethodPost, path: "/v1/users", perm: auth.UserCreate,
			summary: "Create", describe: k.describeWrite(http.StatusCreated)}), s.createUser),
		handle(k.route(route{id: "replace", method: http.MethodPut, path: "/v1/users/{name}", perm: auth.UserUpdate,
			summary: "Replace what is there; without a password the old one stays", describe: k.describeWrite(http.StatusOK)}), s.replaceUser),
		handle(k.route(route{id: "delete", method: http.MethodDelete, path: "/v1/users/{name}", perm: auth.UserDelete,
			summary: "Delete; its tokens stop at once", describe: k.describeDelete}), s.deleteUser),
	}
}

func (s *Server) createUser(ctx context.Context, in *createInput[api.User]) (*answer, error) {
	w, err := s.withoutPassword(ctx, &in.Body, in.DryRun)
	if err != nil {
		return nil, err
	}
	return s.userKind(w).post(ctx, in)
}

func (s *Server) replaceUser(ctx context.Context, in *replaceInput[api.User]) (*answer, error) {
	w, err := s.withoutPassword(ctx, &in.Body, in.DryRun)
	if err != nil {
		return nil, err
	}
	return s.userKind(w).put(ctx, in)
}

func (s *Server) deleteUser(ctx context.Context, in *deleteInput) (*answer, error) {
	return s.userKind(userWrite{c: callFrom(ctx)}).drop(ctx, in)
}

// withoutPassword takes the password out of the body and hashes it: that takes long, and must not happen
// inside a transaction.
func (s *Server) withoutPassword(ctx context.Context, b *body[api.User], dry bool) (userWrite, error) {
	w := userWrite{c: callFrom(ctx)}
	password := b.object.Spec.Password
	b.object.Spec.Password = ""
	if password == "" {
		return w, nil
	}
	name := b.object.Name
	if name == "" {
		name = w.c.name
	}
	if err := auth.CheckPassword(name, password); err != nil {
		w.c.object = api.Ref{Kind: api.KindUser, Name: short(name)}
		var f fault.Faults
		f.Check("spec.password", err)
		return w, f.Err("the user")
	}
	if dry {
		return w, nil
	}
	var err error
	w.hash, err = s.ident.passwords.hash(ctx, password)
	return w, err
}

func (w userWrite) create(tx store.Tx, o *api.User, by object.Who) error {
	var f fault.Faults
	object.CheckMeta(&f, api.KindUser, &o.Meta)
	if err := f.Err(object.Title(api.KindUser, &o.Meta)); err != nil {
		return err
	}
	if err := auth.CheckUser(w.c.Caller, auth.Caller{}, nil, o); err != nil {
		return err
	}
	if err := object.Vacant(tx, api.KindUser, &o.Meta); err != nil {
		return err
	}
	object.Born(&o.Meta, api.KindUser, by)
	return w.save(tx, o)
}

func (w userWrite) update(tx store.Tx, old, o *api.User, _ object.Who) error {
	object.Carry(&o.Meta, &old.Meta)
	var f fault.Faults
	object.CheckMeta(&f, api.KindUser, &o.Meta)
	if err := f.Err(object.Title(api.KindUser, &o.Meta)); err != nil {
		return err
	}
	has, err := powers(tx, old)
	if err != nil {
		return err
	}
	if err := auth.CheckUser(w.c.Caller, has, old, o); err != nil {
		return err
	}
	if !isAdmin(o) {
		if err := notLastAdmin(tx, old); err != nil {
			return err
		}
	}
	return w.save(tx, o)
}

func (w userWrite) remove(tx store.Tx, o *api.User, _ object.Who) error {
	has, err := powers(tx, o)
	if err != nil {
		return err
	}
	if err := auth.CheckUser(w.c.Caller, has, o, nil); err != nil {
		return err
	}
	if err := notLastAdmin(tx, o); err != nil {
		return err
	}
	if len(has.Tenants) > 0 {
		// Left in the tenants, the name would give its roles to the next user of that name.
		tenants := slices.Sorted(maps.Keys(has.Tenants))
		return fault.New(fault.Conflict, "user %s is a member of tenant %s; remove it there first, or disable it", o.Name, strings.Join(tenants, ", "))
	}
	for e := range tx.Scan(tokenKeys, "") {
		r, err := store.Peek[tokenRecord](e)
		if err != nil {
			return err
		}
		if r.User == o.Name {
			tx.Delete(e.Key)
		}
	}
	tx.Delete(passwordKeys + o.Name)
	object.Remove(tx, api.KindUser, "", o.Name)
	return nil
}

// save stores the user, and the new password if there is one.
func (w userWrite) save(tx store.Tx, o *api.User) error {
	o.Spec.Password = ""
	saved := *o
	if err := object.Save(tx, &saved); err != nil {
		return err
	}
	if w.hash == "" {
		return nil
	}
	return setPassword(tx, o.Name, w.hash, w.c.Token)
}

// powers is what a user holds, disabled or not.
func powers(tx store.Tx, u *api.User) (auth.Caller, error) {
	c := auth.Caller{Name: u.Name}
	for _, r := range u.Spec.Roles {
		c.Platform = append(c.Platform, auth.Role(r))
	}
	var err error
	c.Tenants, err = rolesOf(tx, u.Name)
	return c, err
}

func isAdmin(u *api.User) bool {
	return !u.Spec.Disabled && slices.Contains(u.Spec.Roles, string(auth.PlatformAdmin))
}

// notLastAdmin refuses to take away the last platform-admin: nobody could make another.
func notLastAdmin(tx store.Tx, u *api.User) error {
	if !isAdmin(u) {
		return nil
	}
	for other, err := range object.All[api.User](tx, api.KindUser, "") {
		if err != nil {
			return err
		}
		if other.Name != u.Name && isAdmin(other) {
			return nil
		}
	}
	return fault.New(fault.Conflict, "user %s is the last platform-admin; make another one first", u.Name)
}

// loadUser returns the shared, read-only user.
func loadUser(tx store.Tx, name string) (*api.User, error) {
	return object.Peek[api.User](tx, api.KindUser, "", name)
}
