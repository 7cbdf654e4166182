package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
)

// An Idempotency-Key makes a create that was answered into the void safe to send again: the key is kept
// in the commit of the object it made, by caller, so that of any number of repeats, also at the same
// time, exactly one creates.
const (
	repeatPrefix = "/repeat/"
	repeatLife   = 24 * time.Hour
	repeatMost   = 100_000 // keys kept at most
	maxRepeatKey = 255
)

// repeat is a request's key. A nil one does nothing.
type repeat struct {
	key string
	sum []byte
	at  time.Time
}

// repeatRecord is what the store keeps of it.
type repeatRecord struct {
	Sum    []byte    `json:"sum"`
	At     time.Time `json:"at"`
	Object api.Ref   `json:"object"`
}

// repeated ends a transaction because the key was used before.
type repeated struct{ object api.Ref }

// Error makes it an error; nobody sees it.
func (*repeated) Error() string { return "repeated" }

func newRepeat(c *call, key string, sum [sha256.Size]byte) (*repeat, error) {
	if key == "" {
		return nil, nil //nolint:nilnil // no key, nothing to do: the methods take a nil receiver
	}
	if len(key) > maxRepeatKey || strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }) {
		return nil, &fault.Error{Kind: fault.Invalid, Text: "Idempotency-Key takes 1 to 255 printable ASCII characters",
			Fields: []fault.Field{{Path: "header.Idempotency-Key", Text: "expected 1 to 255 printable ASCII characters"}}}
	}
	h := sha256.New()
	for _, part := range []string{c.Who(), c.route.id, c.tenant, key} {
		_, _ = h.Write([]byte(part)) // a hash takes everything
		_, _ = h.Write([]byte{0})
	}
	return &repeat{key: repeatPrefix + hex.EncodeToString(h.Sum(nil)), sum: sum[:], at: c.start.UTC()}, nil
}

// check ends the transaction if the key was used: with a repeated, or with a fault for another body.
func (r *repeat) check(tx store.Tx) error {
	if r == nil {
		return nil
	}
	e := tx.Get(r.key)
	if e == nil {
		return nil
	}
	old, err := store.Peek[repeatRecord](e)
	if err != nil {
		return err
	}
	if !bytes.Equal(old.Sum, r.sum) {
		return fault.New(fault.Invalid, "this Idempotency-Key was used with another body, for %s %s; take a new key for a new request", old.Object.Kind, old.Object.Name)
	}
	return &repeated{old.Object}
}

// save keeps the key with the object that the request made.
func (r *repeat) save(tx store.Tx, made api.Ref) error {
	if r == nil {
		return nil
	}
	return store.Put(tx, r.key, &repeatRecord{Sum: r.sum, At: r.at, Object: made})
}

// again answers a repeat with the object as it is now.
func (k *kind[T, P]) again(ctx context.Context, c *call, done *repeated) (*answer, error) {
	var out *answer
	err := k.s.db.View(ctx, func(tx store.Tx) error {
		e := tx.Get(object.Key(done.object.Kind, done.object.Tenant, done.object.Name))
		gone := e == nil
		if !gone {
			o, err := store.Peek[T](e)
			if err != nil {
				return err
			}
			gone = P(o).ObjectMeta().UID != done.object.UID
		}
		if gone {
			return fault.New(fault.Conflict, "%s %s was created by this Idempotency-Key and has been deleted since", done.object.Kind, done.object.Name)
		}
		data, err := k.show(tx, c, e)
		out = replyJSON(http.StatusCreated, e.Rev, data, http.Header{"Idempotency-Replayed": {"true"}})
		return err
	})
	return out, err
}
