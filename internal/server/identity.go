package server

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/pki"
	"github.com/verbena-cloud/verbena/internal/store"
)

// Keys of what identity keeps. They lie outside of /o/, so that no code that handles objects can list,
// watch or answer with them.
const (
	tokenKeys    = "/auth/token/"    //nolint:gosec // a key of the store, no credential: ID → tokenRecord
	passwordKeys = "/auth/password/" // user → passwordRecord
	roleKeys     = "/auth/role/"     // user → roleRecord: the roles in tenants, an index of Tenant.spec.members
	memberKeys   = "/auth/member/"   // tenant → memberRecord: what roleKeys hold of it
	joinKeys     = "/auth/join/"     // ID → joinRecord
	certKeys     = "/auth/cert/"     // host → certRecord
	usedKey      = "/auth/used"      // usedRecord
	caKey        = "/auth/ca"        // caRecord, with a store that is not our own disk
	caHashKey    = "/auth/ca-hash"   // caHashRecord
)

// The first user, and how long its token lasts.
const (
	bootstrapUser = "admin"
	bootstrapTTL  = 30 * 24 * time.Hour
	bootstrapFile = "bootstrap-token"
)

// tokenRecord is a token as it is kept: with the hash of its secret only.
type tokenRecord struct {
	api.Token
	Hash    []byte `json:"hash"`
	UserUID string `json:"userUID"` // a new user of the same name does not inherit it
	Session bool   `json:"session,omitempty"`
	By      string `json:"by,omitempty"`
}

// roleRecord is a user's roles by tenant.
type roleRecord struct {
	Tenants map[string]auth.Role `json:"tenants"`
}

// identity is what the server needs to know who asks.
type identity struct {
	ca        *pki.CA
	tls       *pki.Server
	passwords *hasher
	limits    *limiter
	used      *lastUse
	audits    *auditor
	live      *liveness
	feed      *feed
	bootstrap string                 // text of the bootstrap token, if this start made it
	file      atomic.Pointer[string] // id of the bootstrap token while its file lies about
	confirm   chan fresh             // certificates that were used for the first time
}

// openIdentity prepares everything that identifies callers: the CA and our certificate, the first user,
// and the index of roles.
func (s *Server) openIdentity(ctx context.Context, notice io.Writer) error {
	s.ident = &identity{
		ca: s.cfg.CA, passwords: newHasher(), limits: newLimiter(), used: newLastUse(),
		audits: newAuditor(), live: newLiveness(s.now()), feed: newFeed(),
		confirm: make(chan fresh, 64),
	}
	if err := s.openTLS(ctx); err != nil {
		return err
	}
	if err := s.noteCA(ctx); err != nil {
		return fmt.Errorf("compare the CA: %w", err)
	}
	if err := s.reindex(ctx); err != nil {
		return fmt.Errorf("index the members of tenants: %w", err)
	}
	if err := s.bootstrap(ctx, notice); err != nil {
		return fmt.Errorf("make the first user: %w", err)
	}
	s.tasks = append(s.tasks,
		task{"audit", s.runAudit},
		task{"liveness", s.runLiveness},
		task{"agent feed", s.runFeed},
		task{"identity", s.runIdentity})
	return nil
}

// openTLS takes the CA from the data directory or the store and makes the server's certificate, unless
// the configuration brings its own.
func (s *Server) openTLS(ctx context.Context) error {
	var err error
	switch {
	case s.ident.ca != nil:
	case s.cfg.KeyFile != "":
		s.ident.ca, err = s.sealedCA(ctx)
	case s.cfg.Data != "":
		s.ident.ca, err = pki.Open(s.cfg.Data, s.now())
		s.lookAtKey(ctx, filepath.Join(s.cfg.Data, "ca.key"))
	default:
		return nil // plain HTTP, tests only: nobody can join
	}
	if err != nil {
		return fmt.Errorf("open the CA: %w", err)
	}
	if s.cfg.TLS != nil {
		return nil
	}
	names, err := pki.Names(s.cfg.Listen, s.cfg.Names)
	if err != nil {
		return err
	}
	if s.ident.tls, err = pki.NewServer(s.ident.ca, names, s.now); err != nil {
		return err
	}
	s.cfg.TLS = s.ident.tls.TLS()
	return nil
}

// lookAtKey tells the operator of a CA's key that others may read, such as one that was copied back by hand:
// whoever has it can be any host.
func (s *Server) lookAtKey(ctx context.Context, path string) {
	if i, err := os.Stat(path); err == nil && i.Mode().Perm()&0o077 != 0 {
		s.log.WarnContext(ctx, "others may read the CA's key; take that from them: chmod 600", "path", path, "mode", i.Mode().Perm().String())
	}
}

// caHashRecord says of which CA the agents have their certificates.
type caHashRecord struct {
	Hash []byte `json:"hash"`
}

// noteCA tells the operator when the CA is not the one that the agents know, since its files were lost or
// left behind in a move: nothing else would show until agents fail to connect.
func (s *Server) noteCA(ctx context.Context) error {
	if s.ident.ca == nil {
		return nil
	}
	agents := 0
	_, err := s.db.Update(ctx, func(tx store.Tx) error {
		agents = 0
		if tx.Get(caHashKey) == nil {
			return s.keepCA(tx)
		}
		same, err := s.sameCA(tx)
		if err != nil || same {
			return err
		}
		for range tx.Scan(certKeys, "") {
			agents++
		}
		if agents == 0 {
			return s.keepCA(tx)
		}
		return nil // until one has joined with the new CA, the old one may come back
	})
	if err == nil && agents > 0 {
		s.log.WarnContext(ctx, "the CA is not the one of before: agents will refuse this server, each has to join again; "+
			"if ca.crt and ca.key of before still exist, stop, put them into the data directory and start again", "agents", agents)
	}
	return err
}

// sameCA reports whether the CA is the one of which the agents have their certificates.
func (s *Server) sameCA(tx store.Tx) (bool, error) {
	e := tx.Get(caHashKey)
	if e == nil {
		return false, nil
	}
	old, err := store.Peek[caHashRecord](e)
	if err != nil {
		return false, err
	}
	hash := s.ident.ca.Hash()
	return bytes.Equal(old.Hash, hash[:]), nil
}

// keepCA notes that agents have certificates of the CA.
func (s *Server) keepCA(tx store.Tx) error {
	if same, err := s.sameCA(tx); err != nil || same {
		return err
	}
	hash := s.ident.ca.Hash()
	return store.Put(tx, caHashKey, &caHashRecord{Hash: hash[:]})
}

// caRecord is the CA in the store, sealed by the key file.
type caRecord struct {
	Cert []byte `json:"cert"`
	Key  []byte `json:"key"` // sealed
}

// sealedCA returns the CA that all servers on one external store share.
func (s *Server) sealedCA(ctx context.Context) (*pki.CA, error) {
	sealer, err := pki.OpenSealer(s.cfg.KeyFile)
	if err != nil {
		return nil, err
	}
	fresh, err := pki.NewMaterial(s.now())
	if err != nil {
		return nil, err
	}
	var kept caRecord
	_, err = s.db.Update(ctx, func(tx store.Tx) error {
		if e := tx.Get(caKey); e != nil {
			p, err := store.Peek[caRecord](e)
			if err == nil {
				kept = *p
			}
			return err
		}
		kept = caRecord{Cert: fresh.Cert, Key: sealer.Seal(caKey, fresh.Key)}
		return store.Put(tx, caKey, &caRecord{Cert: kept.Cert, Key: kept.Key})
	})
	if err != nil {
		return nil, err
	}
	key, err := sealer.Open(caKey, kept.Key)
	if err != nil {
		return nil, err
	}
	return pki.New(pki.Material{Cert: kept.Cert, Key: key})
}

// bootstrap makes the first user and its token when the store has no user, and tells the token once: on
// notice and in a file that is removed when the token is first used.
func (s *Server) bootstrap(ctx context.Context, notice io.Writer) error {
	token := newToken()
	_, err := s.db.Update(ctx, func(tx store.Tx) error {
		s.ident.bootstrap = ""
		for range tx.Scan(object.Prefix(api.KindUser, ""), "") {
			return nil
		}
		now := s.now()
		u := &api.User{Spec: api.UserSpec{DisplayName: "First administrator", Roles: []string{string(auth.PlatformAdmin)}}}
		u.Meta = api.Meta{Kind: api.KindUser, Name: bootstrapUser, UID: s.uid(), Created: &now}
		r := &tokenRecord{UserUID: u.UID, Session: true, By: "bootstrap"}
		r.Token = api.Token{User: u.Name, Expires: now.Add(bootstrapTTL)}
		r.Meta = api.Meta{Kind: api.KindToken, Name: "bootstrap", Created: &now}
		if err := object.Save(tx, u); err != nil {
			return err
		}
		s.ident.bootstrap = token.Text()
		return putToken(tx, token, r)
	})
	if err != nil || s.ident.bootstrap == "" {
		return err
	}
	return s.tell(notice, token)
}

// tell hands out the bootstrap token.
func (s *Server) tell(notice io.Writer, token auth.Token) error {
	where := ""
	if s.cfg.Data != "" {
		path := filepath.Join(s.cfg.Data, bootstrapFile)
		if err := pki.WriteFile(path, []byte(token.Text()+"\n")); err != nil {
			return err
		}
		s.ident.file.Store(&token.ID)
		where = " (also in " + path + " until it is first used)"
	}
	if notice == nil {
		return nil
	}
	_, err := fmt.Fprintf(notice, "First start: user %s was made. Its token, shown this once%s:\n%s\n", bootstrapUser, where, token.Text())
	return err
}

// Bootstrap returns the text of the bootstrap token if this start made the first user, for programs that
// embed a server. It is a secret.
func (s *Server) Bootstrap() string { return s.ident.bootstrap }

// CA returns the certificate of the server's CA, PEM; nil when the server has none.
func (s *Server) CA() []byte {
	if s.ident.ca == nil {
		return nil
	}
	return s.ident.ca.PEM()
}

func newToken() auth.Token {
	var random [38]byte
	_, _ = rand.Read(random[:]) // never fails: crypto/rand
	return auth.NewToken(random)
}

func putToken(tx store.Tx, token auth.Token, r *tokenRecord) error {
	hash := token.Hash()
	r.Hash, r.UID = hash[:], token.ID
	return store.Put(tx, tokenKeys+token.ID, r)
}

// identityRoutes are login, users, tokens, joining and the audit.
func (s *Server) identityRoutes() []route {
	var all []route
	for _, some := range [][]route{s.loginRoutes(), s.userRoutes(), s.tokenRoutes(), s.joinRoutes(), s.auditRoutes()} {
		all = append(all, some...)
	}
	return all
}

// identifyRequest proves who sent the request; somebody without credentials is Unauthenticated. It reads
// the store's current state each time, so that a disabled user, a lost role or a deleted host count from
// the commit on: nothing is remembered that could be stale.
func (s *Server) identifyRequest(r *http.Request) (auth.Caller, error) {
	header := r.Header["Authorization"]
	switch {
	case len(header) == 1:
		text, ok := strings.CutPrefix(header[0], "Bearer ")
		if !ok {
			return auth.Caller{}, fault.New(fault.Unauthenticated, "the Authorization header is not of the form: Bearer TOKEN")
		}
		return s.identifyToken(r.Context(), text)
	case len(header) > 1:
		return auth.Caller{}, fault.New(fault.Unauthenticated, "there are several Authorization headers")
	case r.TLS != nil && len(r.TLS.VerifiedChains) > 0:
		return s.identifyAgent(r.Context(), r.TLS.PeerCertificates[0])
	default:
		return auth.Caller{}, fault.New(fault.Unauthenticated, "no credentials were sent; log in, or send Authorization: Bearer TOKEN")
	}
}

// errToken is the one answer to every token that is not good, so that nobody learns which part was wrong.
var errToken = fault.New(fault.Unauthenticated, "the token is not valid: it expired, was deleted, or its user is disabled; log in again")

func (s *Server) identifyToken(ctx context.Context, text string) (auth.Caller, error) {
	token, err := auth.ParseToken(text)
	if err != nil {
		return auth.Caller{}, err
	}
	now := s.now()
	var c auth.Caller
	err = s.db.View(ctx, func(tx store.Tx) error {
		e := tx.Get(tokenKeys + token.ID)
		if e == nil {
			return errToken
		}
		r, err := store.Peek[tokenRecord](e)
		if err != nil {
			return err
		}
		if !token.Is(r.Hash) || !now.Before(r.Expires) {
			return errToken
		}
		c, err = callerOf(tx, r.User, r.UserUID)
		if err != nil {
			return err
		}
		c.Token, c.OnlyTenant, c.Expires, c.Session = token.ID, r.InTenant, r.Expires, r.Session
		if len(r.Scopes) > 0 {
			c.Scopes = make([]auth.Permission, len(r.Scopes))
			for i, p := range r.Scopes {
				c.Scopes[i] = auth.Permission(p)
			}
		}
		return nil
	})
	if err != nil {
		return auth.Caller{}, err
	}
	s.ident.used.note(token.ID, now)
	if id := s.ident.file.Load(); id != nil && *id == token.ID {
		s.forgetFile()
	}
	return c, nil
}

// forgetFile removes the file of the bootstrap token: somebody has it now.
func (s *Server) forgetFile() {
	if s.ident.file.Swap(nil) == nil {
		return
	}
	path := filepath.Join(s.cfg.Data, bootstrapFile)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		s.log.Warn("the bootstrap token's file is still there; remove it", "path", path, "err", err)
	}
}

// callerOf returns a user with all their powers. uid, if not empty, must be the user's.
func callerOf(tx store.Tx, name, uid string) (auth.Caller, error) {
	e := tx.Get(object.Key(api.KindUser, "", name))
	if e == nil {
		return auth.Caller{}, errToken
	}
	u, err := store.Peek[api.User](e)
	if err != nil {
		return auth.Caller{}, err
	}
	if u.Spec.Disabled || (uid != "" && u.UID != uid) {
		return auth.Caller{}, errToken
	}
	c := auth.Caller{Name: name}
	if len(u.Spec.Roles) > 0 {
		c.Platform = make([]auth.Role, len(u.Spec.Roles))
		for i, r := range u.Spec.Roles {
			c.Platform[i] = auth.Role(r)
		}
	}
	c.Tenants, err = rolesOf(tx, name)
	return c, err
}

// rolesOf returns a user's roles by tenant. The map is shared and must not be changed.
func rolesOf(tx store.Tx, user string) (map[string]auth.Role, error) {
	e := tx.Get(roleKeys + user)
	if e == nil {
		return map[string]auth.Role{}, nil
	}
	r, err := store.Peek[roleRecord](e)
	if err != nil {
		return nil, err
	}
	return r.Tenants, nil
}

// runIdentity does what identity has to do now and then: it forgets expired tokens, saves when tokens
// were used, and retires certificates whose successors are in use.
func (s *Server) runIdentity(ctx context.Context) error {
	tick := time.NewTicker(time.Hour)
	defer tick.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case f := <-s.ident.confirm:
			err = s.retireCert(ctx, f)
		case <-tick.C:
			err = errors.Join(s.dropExpired(ctx), s.saveUse(ctx))
		}
		if err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "identity housekeeping will be tried again", "err", err)
		}
	}
}

// dropExpired deletes tokens, join tokens and records of certificates that have expired.
func (s *Server) dropExpired(ctx context.Context) error {
	now := s.now()
	_, err := s.db.Update(ctx, func(tx store.Tx) error {
		for e := range tx.Scan(tokenKeys, "") {
			if r, err := store.Peek[tokenRecord](e); err != nil {
				return err
			} else if !now.Before(r.Expires) {
				tx.Delete(e.Key)
			}
		}
		for e := range tx.Scan(joinKeys, "") {
			if r, err := store.Peek[joinRecord](e); err != nil {
				return err
			} else if !now.Before(r.Expires) {
				tx.Delete(e.Key)
			}
		}
		for e := range tx.Scan(certKeys, "") {
			if r, err := store.Peek[certRecord](e); err != nil {
				return err
			} else if !now.Before(r.Expires) {
				tx.Delete(e.Key)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("delete expired tokens: %w", err)
	}
	return nil
}
