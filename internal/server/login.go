package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/alexedwards/argon2id"
	"golang.org/x/time/rate"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
)

// passwordRecord is a password as it is kept.
type passwordRecord struct {
	Hash string `json:"hash"` // argon2id in PHC form
}

// Cost of a password: OWASP's choice for argon2id (19 MiB, 2 passes, 1 lane), about 40 ms here. Two at a
// time and a short queue bound what a flood of logins can take of memory and CPU.
const (
	hashMemory = 19 << 10 // KiB
	hashPasses = 2
	hashers    = 2
	hashQueue  = 16
	// decoy is a hash of nothing anybody knows: unknown users cost as much time as known ones.
	decoy = "$argon2id$v=19$m=19456,t=2,p=1$dmVyYmVuYS1kZWNveS1zYQ$q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRWeJA"
)

// hasher works on passwords, a few at a time.
type hasher struct {
	running chan struct{}
	waiting chan struct{}
}

func newHasher() *hasher {
	return &hasher{running: make(chan struct{}, hashers), waiting: make(chan struct{}, hashers+hashQueue)}
}

// enter waits for its turn, and refuses when too many wait already.
func (h *hasher) enter(ctx context.Context) (leave func(), err error) {
	select {
	case h.waiting <- struct{}{}:
	default:
		return nil, limited("too many passwords are being checked", time.Second)
	}
	select {
	case h.running <- struct{}{}:
		return func() { <-h.running; <-h.waiting }, nil
	case <-ctx.Done():
		<-h.waiting
		return nil, fault.Wrap(ctx.Err(), fault.Deadline, "the password was not checked in time")
	}
}

// hash returns the form in which a password is kept.
func (h *hasher) hash(ctx context.Context, password string) (string, error) {
	leave, err := h.enter(ctx)
	if err != nil {
		return "", err
	}
	defer leave()
	text, err := argon2id.CreateHash(password, &argon2id.Params{
		Memory: hashMemory, Iterations: hashPasses, Parallelism: 1, SaltLength: 16, KeyLength: 32})
	if err != nil {
		return "", fmt.Errorf("hash a password: %w", err)
	}
	return text, nil
}

// check reports whether the password is the one of hash; without a hash it works as long and says no.
func (h *hasher) check(ctx context.Context, password, hash string) (bool, error) {
	leave, err := h.enter(ctx)
	if err != nil {
		return false, err
	}
	defer leave()
	known := hash != ""
	if !known {
		hash = decoy
	}
	ok, err := argon2id.ComparePasswordAndHash(password, hash)
	if err != nil {
		return false, fmt.Errorf("check a password: %w", err)
	}
	return ok && known, nil
}

// Attempts: a person mistypes a few times; more is a machine.
const (
	userBurst     = 10
	userEvery     = 6 * time.Second
	addressBurst  = 30
	addressEvery  = time.Second
	joinBurst     = 500 // a rack of agents behind one address; their secrets can't be guessed
	joinEvery     = 20 * time.Millisecond
	limiterBounds = 20_000 // buckets kept; full ones are dropped first
)

// limiter bounds attempts per user and per address.
type limiter struct {
	mu      sync.Mutex
	buckets map[string]*rate.Limiter
}

func newLimiter() *limiter { return &limiter{buckets: map[string]*rate.Limiter{}} }

// take counts an attempt of the user from the address, or says how long to wait.
func (l *limiter) take(user, address string, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	wait := l.reserve("a:"+network(address), rate.Every(addressEvery), addressBurst, now)
	if wait == 0 {
		wait = l.reserve("u:"+clip(user), rate.Every(userEvery), userBurst, now)
	}
	if wait > 0 {
		return limited("too many attempts", wait)
	}
	return nil
}

// join counts an attempt to join from the address.
func (l *limiter) join(address string, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if wait := l.reserve("j:"+network(address), rate.Every(joinEvery), joinBurst, now); wait > 0 {
		return limited("too many agents join at once", wait)
	}
	return nil
}

// allow counts something of key, or reports that there was too much of it lately.
func (l *limiter) allow(key string, every time.Duration, burst int, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reserve(key, rate.Every(every), burst, now) == 0
}

func (l *limiter) reserve(key string, every rate.Limit, burst int, now time.Time) time.Duration {
	b := l.buckets[key]
	if b == nil {
		l.shrink(now)
		b = rate.NewLimiter(every, burst)
		l.buckets[key] = b
	}
	r := b.ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait > 0 {
		r.CancelAt(now)
	}
	return wait
}

// shrink makes room for many buckets at once, so that a flood pays for it rarely: idle ones go first, then
// any, since it must not fill the memory either.
func (l *limiter) shrink(now time.Time) {
	if len(l.buckets) < limiterBounds {
		return
	}
	for k, b := range l.buckets {
		if b.TokensAt(now) >= float64(b.Burst()) {
			delete(l.buckets, k)
		}
	}
	for k := range l.buckets {
		if len(l.buckets) <= limiterBounds/10*9 {
			return
		}
		delete(l.buckets, k)
	}
}

// network is the address without its port; of IPv6 the /64, since a single machine has that many.
func network(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return clip(host)
	}
	if ip = ip.Unmap(); ip.Is6() {
		if p, err := ip.WithZone("").Prefix(64); err == nil {
			return p.String()
		}
	}
	return ip.String()
}

// limited is the answer to who tries too often.
func limited(what string, wait time.Duration) error {
	seconds := int(math.Ceil(wait.Seconds()))
	err := fault.New(fault.RateLimited, "%s; try again in %d s", what, seconds)
	return withStatus{err, 0, http.Header{"Retry-After": {strconv.Itoa(seconds)}}}
}

type loginIn struct {
	Body api.LoginRequest
}

type grantOut struct {
	Body api.TokenGrant
}

type passwordIn struct {
	Body api.PasswordChange
}

func (s *Server) loginRoutes() []route {
	return []route{
		handle(route{id: "login", method: http.MethodPost, path: "/v1/login", perm: auth.Public, tag: "Identity",
			summary: "Exchange a password for a token"}, s.login),
		handle(route{id: "password-change", method: http.MethodPost, path: "/v1/password", perm: auth.SelfUpdate, tag: "Identity",
			summary: "Change one's own password"}, s.changePassword),
		handle(route{id: "whoami", method: http.MethodGet, path: "/v1/whoami", perm: auth.SelfRead, tag: "Identity",
			summary: "Who the caller is, and what they may do"}, s.whoami),
	}
}

// errLogin is the one answer to a wrong user and a wrong password.
var errLogin = fault.New(fault.Unauthenticated, "wrong user or password")

func (s *Server) login(ctx context.Context, in *loginIn) (*grantOut, error) {
	c := callFrom(ctx)
	c.Caller = auth.Caller{} // whatever else was sent along, this is about the user of the body
	c.object = api.Ref{Kind: api.KindUser}
	out, err := s.loginUser(ctx, c, in.Body)
	if err != nil {
		s.auditRefusal(c, "login", err)
		return nil, err
	}
	return out, nil
}

func (s *Server) loginUser(ctx context.Context, c *call, r api.LoginRequest) (*grantOut, error) {
	now := s.now()
	if err := s.ident.limits.take(r.User, c.remote, now); err != nil {
		return nil, err
	}
	ttl, err := auth.TTL(r.TTL, auth.LoginTTL, auth.MaxLoginTTL)
	if err != nil {
		return nil, err
	}
	if err := s.nameUser(ctx, c, r.User); err != nil {
		return nil, err
	}
	if err := s.checkPassword(ctx, r.User, r.Password); err != nil {
		return nil, err
	}
	token := newToken()
	var rec tokenRecord
	_, err = s.db.Update(ctx, func(tx store.Tx) error {
		e := tx.Get(object.Key(api.KindUser, "", r.User))
		if e == nil {
			return errLogin
		}
		u, err := store.Peek[api.User](e)
		if err != nil {
			return err
		}
		if u.Spec.Disabled {
			return errLogin
		}
		rec = tokenRecord{UserUID: u.UID, Session: true, By: "login"}
		rec.Token = api.Token{User: u.Name, Expires: now.Add(ttl)}
		rec.Meta = api.Meta{Kind: api.KindToken, Name: "login-" + token.ID, Created: &now, UID: token.ID}
		stored := rec
		if err := putToken(tx, token, &stored); err != nil {
			return err
		}
		return s.auditAs(tx, c, "login", "user:"+u.Name)
	})
	if err != nil {
		return nil, err
	}
	return &grantOut{Body: api.TokenGrant{Token: rec.Token, Secret: token.Text()}}, nil
}

// nameUser notes for the audit who wants to log in, if there is such a user: other text may be a password
// that was typed into the wrong field.
func (s *Server) nameUser(ctx context.Context, c *call, name string) error {
	possible := auth.CheckName(name) == nil
	return s.db.View(ctx, func(tx store.Tx) error {
		if possible && tx.Get(object.Key(api.KindUser, "", name)) != nil {
			c.object.Name = name
		}
		return nil
	})
}

// checkPassword says whether the password is the user's, in the same time for users that don't exist.
func (s *Server) checkPassword(ctx context.Context, user, password string) error {
	var hash string
	if auth.CheckName(user) == nil {
		err := s.db.View(ctx, func(tx store.Tx) error {
			e := tx.Get(passwordKeys + user)
			if e == nil {
				return nil
			}
			r, err := store.Peek[passwordRecord](e)
			if err == nil {
				hash = r.Hash
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	ok, err := s.ident.passwords.check(ctx, password, hash)
	if err != nil {
		return err
	}
	if !ok {
		return errLogin
	}
	return nil
}

func (s *Server) changePassword(ctx context.Context, in *passwordIn) (*struct{}, error) {
	c := callFrom(ctx)
	c.object = api.Ref{Kind: api.KindUser, Name: c.Name}
	if err := s.ident.limits.take(c.Name, c.remote, s.now()); err != nil {
		return nil, err
	}
	if err := auth.CheckPassword(c.Name, in.Body.New); err != nil {
		return nil, err
	}
	switch err := s.checkPassword(ctx, c.Name, in.Body.Old); {
	case errors.Is(err, errLogin):
		return nil, fault.New(fault.Forbidden, "the old password is wrong")
	case err != nil:
		return nil, err
	}
	hash, err := s.ident.passwords.hash(ctx, in.Body.New)
	if err != nil {
		return nil, err
	}
	_, err = s.db.Update(ctx, func(tx store.Tx) error {
		if err := setPassword(tx, c.Name, hash, c.Token); err != nil {
			return err
		}
		return s.audit(tx, c, c.object, http.StatusNoContent)
	})
	c.audited = err == nil
	return nil, err
}

// setPassword stores a new password's hash and ends the user's sessions, all but keep: whoever knew the
// old password is out.
func setPassword(tx store.Tx, user, hash, keep string) error {
	for e := range tx.Scan(tokenKeys, "") {
		r, err := store.Peek[tokenRecord](e)
		if err != nil {
			return err
		}
		if r.User == user && r.Session && r.UID != keep {
			tx.Delete(e.Key)
		}
	}
	return store.Put(tx, passwordKeys+user, &passwordRecord{Hash: hash})
}
