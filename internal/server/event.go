package server

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// Types of events.
const (
	eventNormal  = "Normal"
	eventWarning = "Warning"
)

// What is kept of the past. The store is for what is; history for years belongs into a log.
const (
	eventLife     = 24 * time.Hour
	eventMost     = 10_000
	operationLife = 24 * time.Hour
	operationMost = 10_000
	pruneEvery    = 5 * time.Minute
	pruneBatch    = 200
	maxEventText  = 500
	// Refusals of one tenant that are told as events: one a second, and so many at once.
	refusalEvery = time.Second
	refusalBurst = 100
)

// event tells of something that happened to an object, in the transaction in which it happened. The same
// about the same object is one event with a count. An event belongs to the tenant of its object, so that
// those who may see the object see it; one about a tenant belongs to that tenant.
func (s *Server) event(tx store.Tx, about api.Ref, typ, reason, message string) error {
	if len(message) > maxEventText {
		message = strings.ToValidUTF8(message[:maxEventText], "") + "…"
	}
	message = clean(message)
	tenant := about.Tenant
	if about.Kind == api.KindTenant {
		tenant = about.Name
	}
	name := eventName(about, typ, reason, message)
	now := s.now().UTC()
	e := &api.Event{
		Meta:   api.Meta{Kind: api.KindEvent, Name: name, Tenant: tenant, Labels: aboutLabels(about), UID: name, Created: &now},
		Object: about, Type: typ, Reason: reason, Message: message, Count: 1, First: now, Last: now,
	}
	if prev := tx.Get(object.Key(api.KindEvent, tenant, name)); prev != nil {
		old, err := store.Peek[api.Event](prev)
		if err != nil {
			return err
		}
		e.Created, e.First, e.Count = old.Created, old.First, old.Count+1
	}
	return object.Save(tx, e)
}

// eventName is equal for equal events.
func eventName(about api.Ref, parts ...string) string {
	h := sha256.New()
	for _, p := range append(parts, string(about.Kind), about.Tenant, about.Name, about.UID) {
		_, _ = h.Write([]byte(p)) // a hash takes everything
		_, _ = h.Write([]byte{0})
	}
	return "e" + hex.EncodeToString(h.Sum(nil)[:10])
}

// aboutLabels lets a selector find what is said about an object: labels=kind=VM,name=train-0.
func aboutLabels(about api.Ref) map[string]string {
	return map[string]string{"kind": string(about.Kind), "name": about.Name}
}

// agentEvent is an event that an agent reports about an object of its host.
func (s *Server) agentEvent(tx store.Tx, e wire.Event) error {
	typ := eventNormal
	if e.Type == eventWarning {
		typ = eventWarning
	}
	return s.event(tx, e.Object, typ, e.Reason, e.Message)
}

// pruning is one prefix of the store that is kept short.
type pruning struct {
	prefix string
	most   int
	stale  func(e *store.Entry, now time.Time) bool
}

func prunings() []pruning {
	return []pruning{
		{object.Prefix(api.KindEvent, ""), eventMost, staleEvent},
		{object.Prefix(api.KindOperation, ""), operationMost, staleOperation},
		{repeatPrefix, repeatMost, staleRepeat},
	}
}

func staleEvent(e *store.Entry, now time.Time) bool {
	o, err := store.Peek[api.Event](e)
	return err != nil || now.Sub(o.Last) > eventLife
}

func staleOperation(e *store.Entry, now time.Time) bool {
	o, err := store.Peek[api.Operation](e)
	return err != nil || o.Ended != nil && now.Sub(*o.Ended) > operationLife
}

func staleRepeat(e *store.Entry, now time.Time) bool {
	o, err := store.Peek[repeatRecord](e)
	return err != nil || now.Sub(o.At) > repeatLife
}

// pruneTask prunes from time to time.
func (s *Server) pruneTask(ctx context.Context) error {
	tick := time.NewTicker(pruneEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, p := range prunings() {
			if err := s.prune(ctx, p); err != nil && ctx.Err() == nil {
				s.log.WarnContext(ctx, "prune", "prefix", p.prefix, "err", err) // the next round tries again
			}
		}
	}
}

// prune removes what is stale, and beyond the bound what changed longest ago in the tenants that have the
// most: a tenant that makes noise loses its own past, not that of others.
func (s *Server) prune(ctx context.Context, p pruning) error {
	now := s.now()
	var drop []*store.Entry
	err := s.db.View(ctx, func(tx store.Tx) error {
		drop = nil
		keep := map[string][]*store.Entry{}
		for e := range tx.Scan(p.prefix, "") {
			if p.stale(e, now) {
				drop = append(drop, e)
				continue
			}
			_, tenant, _, _ := object.Split(e.Key) // what is no object belongs to all
			keep[tenant] = append(keep[tenant], e)
		}
		drop = append(drop, excess(keep, p.most)...)
		return nil
	})
	if err != nil {
		return err
	}
	for batch := range slices.Chunk(drop, pruneBatch) {
		_, err := s.db.Update(ctx, func(tx store.Tx) error {
			for _, e := range batch {
				if cur := tx.Get(e.Key); cur != nil && bytes.Equal(cur.Value, e.Value) { // it may have happened again
					tx.Delete(e.Key)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// excess is what is more than most, the oldest of those who have the most.
func excess(keep map[string][]*store.Entry, most int) []*store.Entry {
	counts := make([]int, 0, len(keep))
	for _, entries := range keep {
		counts = append(counts, len(entries))
	}
	level := share(counts, most)
	var drop []*store.Entry
	for _, entries := range keep {
		if over := len(entries) - level; over > 0 {
			slices.SortFunc(entries, func(a, b *store.Entry) int { return cmp.Compare(a.Rev, b.Rev) })
			drop = append(drop, entries[:over]...)
		}
	}
	return drop
}
