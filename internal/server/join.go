package server

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"net/http"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/host"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/pki"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// joinRecord is a join token as it is kept. It is deleted by the commit that uses it.
type joinRecord struct {
	Host    string    `json:"host"`
	HostUID string    `json:"hostUID,omitempty"` // empty: the host did not exist yet, joining makes it
	Hash    []byte    `json:"hash"`
	Expires time.Time `json:"expires"`
	By      string    `json:"by"`
}

// certRecord says which certificates of a host's agent are good. Previous is good until the new one was
// used, since an agent may lose the answer to its renewal.
type certRecord struct {
	HostUID  string    `json:"hostUID"` // a new host of the same name does not inherit it
	Serial   string    `json:"serial"`
	Previous string    `json:"previous,omitempty"`
	Expires  time.Time `json:"expires"`
}

type joinTokenIn struct {
	Body api.JoinTokenRequest
}

type joinTokenOut struct {
	Body api.JoinTokenGrant
}

type joinIn struct {
	Body wire.Join
}

type renewIn struct {
	Body wire.Renew
}

type joinOut struct {
	Body wire.Grant
}

func (s *Server) joinRoutes() []route {
	return []route{
		handle(route{id: "join-token-create", method: http.MethodPost, path: "/v1/join-tokens", perm: auth.HostJoin, tag: "Host",
			summary: "Make a one-time token by which a host's agent joins"}, s.createJoinToken),
		handle(route{id: "agent-join", method: http.MethodPost, path: wire.PathJoin, perm: auth.Public, tag: "Agent",
			summary: "Exchange a join token for the agent's certificate"}, s.join),
		handle(route{id: "agent-renew", method: http.MethodPost, path: wire.PathRenew, perm: auth.AgentRenew, tag: "Agent",
			summary: "Get the agent's next certificate"}, s.renew),
	}
}

// errNoCA is for servers without TLS, which only tests have.
var errNoCA = fault.New(fault.Unready, "this server has no certificate authority: no agent can join")

func (s *Server) createJoinToken(ctx context.Context, in *joinTokenIn) (*joinTokenOut, error) {
	c := callFrom(ctx)
	name := in.Body.Host
	c.object = api.Ref{Kind: api.KindHost, Name: short(name)}
	if s.ident.ca == nil {
		return nil, errNoCA
	}
	var f fault.Faults
	f.Check("host", object.CheckName(name))
	ttl, err := auth.TTL(in.Body.TTL, auth.JoinTTL, auth.MaxJoinTTL)
	f.Check("ttl", err)
	if err := f.Err("join token"); err != nil {
		return nil, err
	}
	token := pki.NewJoinToken(name, s.ident.ca.Hash())
	hash := token.SecretHash()
	expires := s.now().Add(ttl).UTC()
	_, err = s.db.Update(ctx, func(tx store.Tx) error {
		r := &joinRecord{Host: name, Hash: hash[:], Expires: expires, By: c.Who()}
		if e := tx.Get(object.Key(api.KindHost, "", name)); e != nil {
			h, err := store.Peek[api.Host](e)
			if err != nil {
				return err
			}
			r.HostUID = h.UID
		}
		if err := store.Put(tx, joinKeys+hex.EncodeToString(token.ID[:]), r); err != nil {
			return err
		}
		return s.audit(tx, c, c.object, http.StatusOK)
	})
	if err != nil {
		return nil, err
	}
	c.audited = true
	return &joinTokenOut{Body: api.JoinTokenGrant{Host: name, Secret: token.Text(), Expires: expires}}, nil
}

// errJoin is the one answer to every join token that is not good.
var errJoin = fault.New(fault.Unauthenticated,
	"the join token is not valid: it was used, has expired, or its host was deleted; make a new one")

func (s *Server) join(ctx context.Context, in *joinIn) (*joinOut, error) {
	c := callFrom(ctx)
	c.Caller = auth.Caller{}
	c.object = api.Ref{Kind: api.KindHost}
	grant, err := s.admitAgent(ctx, c, in.Body)
	if err != nil {
		s.auditRefusal(c, "agent.join", err)
		return nil, err
	}
	c.audited = true
	return &joinOut{Body: grant}, nil
}

func (s *Server) admitAgent(ctx context.Context, c *call, r wire.Join) (wire.Grant, error) {
	now := s.now()
	if s.ident.ca == nil {
		return wire.Grant{}, errNoCA
	}
	if err := s.ident.limits.join(c.remote, now); err != nil {
		return wire.Grant{}, err
	}
	token, err := pki.ParseJoinToken(r.Secret)
	if err != nil {
		return wire.Grant{}, err
	}
	c.object.Name = token.Host
	// Look first: signing costs more than looking, and strangers may call this.
	err = s.db.View(ctx, func(tx store.Tx) error {
		_, err := goodJoin(tx, token, now)
		return err
	})
	if err != nil {
		return wire.Grant{}, err
	}
	signed, err := s.ident.ca.SignAgent([]byte(r.CSR), token.Host, now)
	if err != nil {
		return wire.Grant{}, err
	}
	by := s.who(c)
	by.Operator, by.Name = true, "host:"+token.Host
	_, err = s.db.Update(ctx, func(tx store.Tx) error {
		uid, err := goodJoin(tx, token, now)
		if err != nil {
			return err
		}
		if uid == "" {
			h := &api.Host{Meta: api.Meta{Kind: api.KindHost, Name: token.Host}}
			if err := host.Create(tx, h, by); err != nil {
				return err
			}
			uid = by.UID
		}
		// One token, one certificate: the second of two who use it at once finds it gone.
		tx.Delete(joinKey(token))
		if err := s.keepCA(tx); err != nil {
			return err
		}
		if err := store.Put(tx, certKeys+token.Host, &certRecord{HostUID: uid, Serial: signed.Serial, Expires: signed.Expires}); err != nil {
			return err
		}
		return s.auditAs(tx, c, "agent.join", "host:"+token.Host)
	})
	if err != nil {
		return wire.Grant{}, err
	}
	return s.grant(token.Host, signed), nil
}

func joinKey(t pki.JoinToken) string { return joinKeys + hex.EncodeToString(t.ID[:]) }

// goodJoin checks a join token and returns its host's UID, empty if the host does not exist yet.
func goodJoin(tx store.Tx, token pki.JoinToken, now time.Time) (uid string, err error) {
	e := tx.Get(joinKey(token))
	if e == nil {
		return "", errJoin
	}
	r, err := store.Peek[joinRecord](e)
	if err != nil {
		return "", err
	}
	hash := token.SecretHash()
	if len(r.Hash) != sha256.Size || subtle.ConstantTimeCompare(hash[:], r.Hash) != 1 || r.Host != token.Host || !now.Before(r.Expires) {
		return "", errJoin
	}
	entry := tx.Get(object.Key(api.KindHost, "", token.Host))
	if entry == nil {
		if r.HostUID != "" {
			return "", errJoin // a token of a deleted host must not bring it back
		}
		return "", nil
	}
	h, err := store.Peek[api.Host](entry)
	if err != nil {
		return "", err
	}
	if (r.HostUID != "" && h.UID != r.HostUID) || h.Deleting != nil {
		return "", errJoin
	}
	return h.UID, nil
}

func (s *Server) grant(host string, signed pki.Signed) wire.Grant {
	return wire.Grant{Host: host, Certificate: string(signed.PEM), CA: string(s.ident.ca.PEM()), Expires: signed.Expires}
}

func (s *Server) renew(ctx context.Context, in *renewIn) (*joinOut, error) {
	c := callFrom(ctx)
	c.object = api.Ref{Kind: api.KindHost, Name: c.Host}
	if s.ident.ca == nil {
		return nil, errNoCA
	}
	signed, err := s.ident.ca.SignAgent([]byte(in.Body.CSR), c.Host, s.now())
	if err != nil {
		return nil, err
	}
	_, err = s.db.Update(ctx, func(tx store.Tx) error {
		r, err := certOf(tx, c.Host, c.Token)
		if err != nil {
			return err
		}
		next := &certRecord{HostUID: r.HostUID, Serial: signed.Serial, Previous: c.Token, Expires: signed.Expires}
		if err := store.Put(tx, certKeys+c.Host, next); err != nil {
			return err
		}
		return s.audit(tx, c, c.object, http.StatusOK)
	})
	if err != nil {
		return nil, err
	}
	c.audited = true
	return &joinOut{Body: s.grant(c.Host, signed)}, nil
}

// errCert is the one answer to every certificate that is not good.
var errCert = fault.New(fault.Unauthenticated,
	"the agent's certificate is not valid: it expired, was replaced, or its host was deleted; join again with a new token")

// identifyAgent returns the agent whose certificate the connection proved. The chain was verified by the
// handshake; what may have changed since is asked here.
func (s *Server) identifyAgent(ctx context.Context, cert *x509.Certificate) (auth.Caller, error) {
	name, serial := cert.Subject.CommonName, pki.SerialOf(cert)
	if !plausible(name) || !s.now().Before(cert.NotAfter) {
		return auth.Caller{}, errCert
	}
	err := s.db.View(ctx, func(tx store.Tx) error {
		r, err := certOf(tx, name, serial)
		if err != nil {
			return err
		}
		if r.Previous != "" && serial == r.Serial {
			select {
			case s.ident.confirm <- fresh{name, serial}:
			default: // its next request will tell again
			}
		}
		return nil
	})
	if err != nil {
		return auth.Caller{}, err
	}
	return auth.Caller{Host: name, Token: serial, Expires: cert.NotAfter}, nil
}

// certOf returns the record of a host's certificates if the serial is among them and the host is the one
// that they were made for.
func certOf(tx store.Tx, name, serial string) (*certRecord, error) {
	e := tx.Get(certKeys + name)
	entry := tx.Get(object.Key(api.KindHost, "", name))
	if e == nil || entry == nil {
		return nil, errCert
	}
	r, err := store.Peek[certRecord](e)
	if err != nil {
		return nil, err
	}
	h, err := store.Peek[api.Host](entry)
	if err != nil {
		return nil, err
	}
	if h.UID != r.HostUID || (serial != r.Serial && (serial != r.Previous || serial == "")) {
		return nil, errCert
	}
	return r, nil
}

// fresh is a renewed certificate in use.
type fresh struct{ host, serial string }

// retireCert ends the certificate before the one that is in use.
func (s *Server) retireCert(ctx context.Context, f fresh) error {
	_, err := s.db.Update(ctx, func(tx store.Tx) error {
		e := tx.Get(certKeys + f.host)
		if e == nil {
			return nil
		}
		r, err := store.Peek[certRecord](e)
		if err != nil || r.Previous == "" || r.Serial != f.serial {
			return err
		}
		next := *r
		next.Previous = ""
		return store.Put(tx, e.Key, &next)
	})
	if err != nil {
		return fmt.Errorf("retire the old certificate of %s: %w", f.host, err)
	}
	return nil
}
