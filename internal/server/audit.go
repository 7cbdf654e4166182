package server

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
)

// What the audit keeps, and how refusals reach it. A write that succeeds has its record in its own
// commit; one that was refused has no commit, so its record goes through a bounded queue and is written
// in batches. What the queue can't take is counted and logged.
const (
	auditAge    = 90 * 24 * time.Hour
	auditMost   = 200_000 // records; some 100 MB
	auditQueued = 4096
	auditBatch  = 256
	auditTrim   = time.Minute
	auditRetry  = 2 * time.Second
	// Refusals of callers without credentials: more than these in a row are counted, not kept, since
	// anybody could push out what is worth keeping.
	strangerEvery = 100 * time.Millisecond
	strangerBurst = 200
	// The same for each caller who is known: a directory of wrong manifests is kept whole, a loop is not.
	refusedEvery = 200 * time.Millisecond
	refusedBurst = 1000
	// Bounds of the texts in a record that come from outside.
	auditText = 500
)

// auditor is the queue of records without a commit.
type auditor struct {
	queue    chan *api.AuditRecord
	stranger *rate.Limiter
	lost     atomic.Int64 // since they were last logged
	serial   atomic.Uint32
}

func newAuditor() *auditor {
	return &auditor{
		queue:    make(chan *api.AuditRecord, auditQueued),
		stranger: rate.NewLimiter(rate.Every(strangerEvery), strangerBurst),
	}
}

// audit puts the record of a write that will be answered with status into its own transaction, so that
// both commit or neither. It must come after the write's own puts: with a tenant it also brings the index
// of its members up to date.
func (s *Server) audit(tx store.Tx, c *call, object api.Ref, status int) error {
	if object.Kind == api.KindTenant {
		if err := indexMembers(tx, object.Name); err != nil {
			return err
		}
	}
	r := s.record(c, c.action(), object)
	r.Status, r.Result = status, "ok"
	return saveRecord(tx, r)
}

// auditAs is audit for routes without a permission, whose caller is only known by what they did.
func (s *Server) auditAs(tx store.Tx, c *call, action, who string) error {
	r := s.record(c, action, c.object)
	r.Who, r.Status, r.Result = who, http.StatusOK, "ok"
	return saveRecord(tx, r)
}

// auditAfter records a write that committed no record: one that was refused or failed, or one whose
// handler did not call audit.
func (s *Server) auditAfter(_ context.Context, c *call) {
	s.enqueue(c, s.outcome(c, c.action(), c.fault, c.status))
}

// auditRefusal is auditAfter for routes without a permission.
func (s *Server) auditRefusal(c *call, action string, err error) {
	c.audited = true
	s.enqueue(c, s.outcome(c, action, err, 0))
}

// outcome is the record of what did not commit.
func (s *Server) outcome(c *call, action string, err error, status int) *api.AuditRecord {
	r := s.record(c, action, c.object)
	r.Status, r.Result = status, "ok"
	if err == nil && status < http.StatusBadRequest {
		return r
	}
	m := meant(fault.KindOf(err))
	r.Code, r.Result = string(m.kind), "refused"
	if r.Status == 0 {
		r.Status = m.status
	}
	if r.Status >= http.StatusInternalServerError {
		r.Result = "failed"
	}
	if err != nil {
		r.Message = reasonOf(err)
	}
	return r
}

// reasonOf says why a request was refused. Of a wrong input only the places are named: what stood there
// may be anything, such as a password in the wrong field.
func reasonOf(err error) string {
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || len(f.Fields) == 0 {
		return short(fault.Text(err))
	}
	places := make([]string, len(f.Fields))
	for i, w := range f.Fields {
		places[i] = w.Path
	}
	return short("wrong input at " + strings.Join(places, ", "))
}

// named is a name as it may stand in a record: text that can't be a name is not repeated.
func named(name string) string {
	if name != "" && object.CheckName(name) != nil {
		return "?"
	}
	return name
}

// action is what the caller wanted to do.
func (c *call) action() string {
	if c.route == nil {
		return ""
	}
	return string(c.route.perm)
}

// record is what all records have. Its name sorts the newest first.
func (s *Server) record(c *call, action string, about api.Ref) *api.AuditRecord {
	now := s.now().UTC()
	r := &api.AuditRecord{
		At: now, Who: c.Who(), Action: action, Object: about, Remote: network(c.remote), RequestID: c.id,
	}
	r.Object.Name, r.Object.Tenant = named(about.Name), named(about.Tenant)
	r.Kind, r.Created, r.UID = api.KindAuditRecord, &now, c.id
	r.Name = fmt.Sprintf("%016x-%08x", math.MaxInt64-now.UnixNano(), s.ident.audits.serial.Add(1))
	r.Tenant = recordTenant(c, about)
	return r
}

// recordTenant is the tenant whose auditors may read the record: that of the object, but only if the
// caller could see the tenant. A stranger's refused request must not write into a tenant's audit, nor
// under a name that is no tenant's.
func recordTenant(c *call, object api.Ref) string {
	tenant := object.Tenant
	if object.Kind == api.KindTenant {
		tenant = object.Name
	}
	if tenant == "" {
		tenant = c.tenant
	}
	if !c.Sees(tenant) || !plausible(tenant) {
		return ""
	}
	return tenant
}

// short bounds text from outside.
func short(text string) string {
	text = clean(text)
	if len(text) > auditText {
		return strings.ToValidUTF8(text[:auditText], "") + "…"
	}
	return text
}

func saveRecord(tx store.Tx, r *api.AuditRecord) error { return object.Save(tx, r) }

// enqueue hands a record over to runAudit, or counts it as lost.
func (s *Server) enqueue(c *call, r *api.AuditRecord) {
	a := s.ident.audits
	if !s.worthKeeping(c) {
		s.loseAudit(1)
		return
	}
	select {
	case a.queue <- r:
	default:
		s.loseAudit(1)
	}
}

// worthKeeping reports whether one more refusal of this caller is kept.
func (s *Server) worthKeeping(c *call) bool {
	if c.Anonymous() {
		return s.ident.audits.stranger.AllowN(s.now(), 1)
	}
	return s.ident.limits.allow("refused:"+c.Host+"/"+c.Name, refusedEvery, refusedBurst, s.now())
}

func (s *Server) loseAudit(n int) {
	s.ident.audits.lost.Add(int64(n))
	s.metrics.auditLost.Add(float64(n))
}

// runAudit writes the queued records in batches and keeps the audit within its bounds.
func (s *Server) runAudit(ctx context.Context) error {
	trim := time.NewTicker(auditTrim)
	defer trim.Stop()
	for {
		select {
		case <-ctx.Done():
			s.lastAudit(ctx)
			return nil
		case r := <-s.ident.audits.queue:
			s.flushAudit(ctx, s.gather(r))
		case <-trim.C:
			if n := s.ident.audits.lost.Swap(0); n > 0 {
				s.log.WarnContext(ctx, "audit records of refused requests were not kept: too many at once", "records", n)
			}
			if err := s.trimAudit(ctx); err != nil && ctx.Err() == nil {
				s.log.WarnContext(ctx, "trimming the audit will be tried again", "err", err)
			}
		}
	}
}

// gather takes what else is queued, up to a batch.
func (s *Server) gather(first ...*api.AuditRecord) []*api.AuditRecord {
	batch := first
	for len(batch) < auditBatch {
		select {
		case r := <-s.ident.audits.queue:
			batch = append(batch, r)
		default:
			return batch
		}
	}
	return batch
}

// flushAudit writes a batch, trying until it works or the server stops.
func (s *Server) flushAudit(ctx context.Context, batch []*api.AuditRecord) {
	for {
		err := s.writeAudit(ctx, batch)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			break
		}
		s.log.WarnContext(ctx, "writing the audit will be tried again", "records", len(batch), "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(auditRetry):
			continue
		}
		break
	}
	// The server stops: one last try with time of its own.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditRetry)
	defer cancel()
	if err := s.writeAudit(last, batch); err != nil {
		s.loseAudit(len(batch))
		s.log.ErrorContext(ctx, "audit records are lost", "records", len(batch), "err", err)
	}
}

// lastAudit writes what is queued when the server stops.
func (s *Server) lastAudit(ctx context.Context) {
	for batch := s.gather(); len(batch) > 0; batch = s.gather() {
		s.flushAudit(ctx, batch)
	}
}

func (s *Server) writeAudit(ctx context.Context, batch []*api.AuditRecord) error {
	_, err := s.db.Update(ctx, func(tx store.Tx) error {
		for _, r := range batch {
			attempt := *r
			if err := saveRecord(tx, &attempt); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write %d audit records: %w", len(batch), err)
	}
	return nil
}

// trimAudit deletes records that are too old or too many, a bounded number in each commit.
func (s *Server) trimAudit(ctx context.Context) error {
	const most = 100 // each may have its whole row written anew, see the limits of a commit
	var doomed []string
	err := s.db.View(ctx, func(tx store.Tx) error {
		doomed = doomedRecords(tx, fmt.Sprintf("%016x", math.MaxInt64-s.now().Add(-auditAge).UnixNano()), auditMost)
		return nil
	})
	if err != nil {
		return err
	}
	for some := range slices.Chunk(doomed, most) {
		_, err := s.db.Update(ctx, func(tx store.Tx) error {
			for _, key := range some {
				tx.Delete(key)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// doomedRecords returns the keys of the records that are older than oldest, and what is more than most of
// the rest: the oldest of the tenants that have the most, so that nobody's noise costs others their records.
func doomedRecords(tx store.Tx, oldest string, most int) []string {
	var doomed []string
	kept := map[string][]string{} // by tenant, newest first
	for e := range tx.Scan(object.Prefix(api.KindAuditRecord, ""), "") {
		_, tenant, name, ok := object.Split(e.Key)
		switch {
		case !ok:
		case name > oldest:
			doomed = append(doomed, e.Key)
		default:
			kept[tenant] = append(kept[tenant], e.Key)
		}
	}
	counts := make([]int, 0, len(kept))
	for _, keys := range kept {
		counts = append(counts, len(keys))
	}
	level := share(counts, most)
	for _, keys := range kept {
		doomed = append(doomed, keys[min(len(keys), level):]...)
	}
	return doomed
}

// share is how many each of those who want so many may keep, so that together they keep no more than most and
// who wants less than the others keeps all.
func share(counts []int, most int) int {
	slices.Sort(counts)
	for i, n := range counts {
		level := most / (len(counts) - i)
		if n > level {
			return level
		}
		most -= n
	}
	return math.MaxInt
}

// recordName is the part of a record's key that sorts by time.
func recordName(key string) string { return key[strings.LastIndexByte(key, '/')+1:] }

type auditIn struct {
	Tenant   string    `query:"tenant" doc:"Only this tenant's"`
	Who      string    `query:"who" doc:"Only what this caller did, e.g. user:ann"`
	Action   string    `query:"action" doc:"Only this permission, or a pattern such as vm.*"`
	Result   string    `query:"result" enum:"ok,refused,failed" doc:"Only this result"`
	Kind     string    `query:"kind" doc:"Only about objects of this kind"`
	Name     string    `query:"name" doc:"Only about objects of this name"`
	Since    time.Time `query:"since" doc:"Not before (RFC 3339)"`
	Until    time.Time `query:"until" doc:"Before (RFC 3339)"`
	Limit    int       `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Records on a page"`
	Continue string    `query:"continue" maxLength:"64" doc:"From the page before"`
}

type auditOut struct {
	Body api.List[api.AuditRecord]
}

func (s *Server) auditRoutes() []route {
	return []route{handle(route{id: "audit-list", method: http.MethodGet, path: "/v1/audit", perm: auth.AuditRead, scope: scopeAcross,
		tag: "Identity", summary: "Who did what, the newest first"}, s.listAudit)}
}

func (s *Server) listAudit(ctx context.Context, in *auditIn) (*auditOut, error) {
	c := callFrom(ctx)
	out := &auditOut{}
	out.Body.Items = []api.AuditRecord{}
	err := s.db.View(ctx, func(tx store.Tx) error {
		out.Body.Revision = tx.Rev()
		looked := 0
		for e := range merged(tx, s.auditTenants(tx, c, in.Tenant), in.after()) {
			r, err := store.Peek[api.AuditRecord](e)
			if err != nil {
				return err
			}
			if !in.Since.IsZero() && r.At.Before(in.Since) {
				return nil // all that follow are older
			}
			if in.match(r) {
				shown := *r
				shown.Revision = e.Rev
				out.Body.Items = append(out.Body.Items, shown)
			}
			// A page also ends when it took long to find little, so that a filter can't hold a thread.
			if looked++; len(out.Body.Items) == in.Limit || looked == 50_000 {
				out.Body.Continue = r.Name
				return nil
			}
		}
		return nil
	})
	return out, err
}

// after is the name after which the page begins.
func (in *auditIn) after() string {
	after := in.Continue
	if !in.Until.IsZero() {
		if a := fmt.Sprintf("%016x~", math.MaxInt64-in.Until.UnixNano()); a > after {
			after = a
		}
	}
	return after
}

func (in *auditIn) match(r *api.AuditRecord) bool {
	return (in.Who == "" || in.Who == r.Who) &&
		(in.Action == "" || auth.Permission(in.Action).Match(auth.Permission(r.Action))) &&
		(in.Result == "" || in.Result == r.Result) &&
		(in.Kind == "" || strings.EqualFold(in.Kind, string(r.Object.Kind))) &&
		(in.Name == "" || in.Name == r.Object.Name)
}

// auditTenants returns the tenants (and "_" for the platform) whose records the caller may read, of those
// that have any. One key per tenant is looked at.
func (s *Server) auditTenants(tx store.Tx, c *call, only string) []string {
	prefix := object.Prefix(api.KindAuditRecord, "")
	var tenants []string
	for after := ""; ; {
		key := ""
		for e := range tx.Scan(prefix, after) {
			key = e.Key
			break
		}
		if key == "" {
			return tenants
		}
		_, tenant, _, _ := object.Split(key)
		if (only == "" || only == tenant) && c.Can(auth.AuditRead, tenant) {
			tenants = append(tenants, tenant)
		}
		after = strings.TrimSuffix(object.Key(api.KindAuditRecord, tenant, ""), "/") + "0" // '0' follows '/'
	}
}

// merged yields the records of the tenants in one order, newest first, after the given name.
func merged(tx store.Tx, tenants []string, after string) iter.Seq[*store.Entry] {
	return func(yield func(*store.Entry) bool) {
		type head struct {
			entry *store.Entry
			next  func() (*store.Entry, bool)
		}
		var heads []head
		for _, t := range tenants {
			prefix := object.Key(api.KindAuditRecord, t, "")
			next, stop := iter.Pull(tx.Scan(prefix, prefix+after))
			defer stop()
			if e, ok := next(); ok {
				heads = append(heads, head{e, next})
			}
		}
		for len(heads) > 0 {
			first := 0
			for i := range heads {
				if recordName(heads[i].entry.Key) < recordName(heads[first].entry.Key) {
					first = i
				}
			}
			if !yield(heads[first].entry) {
				return
			}
			e, ok := heads[first].next()
			if !ok {
				heads = slices.Delete(heads, first, first+1)
				continue
			}
			heads[first].entry = e
		}
	}
}
