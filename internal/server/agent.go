package server

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/host"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// agentKeepAlive is how often a quiet stream to an agent carries a comment, and how late the stream of a
// revoked certificate ends.
const agentKeepAlive = 10 * time.Second

// Bounds of a status post, besides the size of its body. A host has at most some hundred VMs.
const (
	maxStatusVMs    = 4096
	maxStatusEvents = 64
	maxReason       = 63
	maxReportText   = 2000 // bytes of one text
	maxReportSteps  = 256  // of one VM
)

// statusIn takes the report undecoded: the messages of agents are package wire's, not part of the API's
// description, and a field that an agent of a newer version sends is none of our business.
type statusIn struct {
	Body report
}

// report is a wire.Status that decodes itself.
type report struct {
	wire.Status
	wrong error
}

// Schema says no more than that it is an object.
func (*report) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true, Description: "See package wire"}
}

func (r *report) decode(data []byte) {
	if r.wrong = json.Unmarshal(data, &r.Status); r.wrong == nil {
		scrub(reflect.ValueOf(&r.Status).Elem())
	}
}

// scrub makes every text of a report printable and short. Operators read them in terminals, and a host that
// was taken over must not command these.
func scrub(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if s := v.String(); v.CanSet() && (len(s) > maxReportText || strings.ContainsFunc(s, unprintable)) {
			v.SetString(clean(s))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			scrub(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			scrub(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				scrub(v.Field(i))
			}
		}
	case reflect.Map:
		scrubMap(v)
	default: // numbers and flags command nothing
	}
}

// scrubMap scrubs keys and values, which can't be changed in their place.
func scrubMap(v reflect.Value) {
	if v.IsNil() {
		return
	}
	out := reflect.MakeMapWithSize(v.Type(), v.Len())
	for it := v.MapRange(); it.Next(); {
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		key.Set(it.Key())
		value.Set(it.Value())
		scrub(key)
		scrub(value)
		out.SetMapIndex(key, value)
	}
	v.Set(out)
}

type ackOut struct {
	Body wire.Ack
}

// agentRoutes are what agents call.
func (s *Server) agentRoutes() []route {
	const tag = "Agent"
	return []route{
		handle(route{id: "agent-desired", method: http.MethodGet, path: wire.PathDesired, perm: auth.AgentDesired, tag: tag,
			summary:  "Stream what the agent's host should be, completely and again after each change",
			describe: plainAnswer("text/event-stream")}, s.desired),
		handle(route{id: "agent-status", method: http.MethodPost, path: wire.PathStatus, perm: auth.AgentStatus, tag: tag,
			summary:  "Tell what the agent saw and did on its host",
			describe: func(op *huma.Operation, _ huma.Registry) { op.SkipValidateBody = true }}, s.agentStatus),
		handle(route{id: "agent-beat", method: http.MethodPost, path: wire.PathBeat, perm: auth.AgentBeat, tag: tag,
			summary: "Show that the agent lives; nothing is stored"}, s.beat),
	}
}

type beatIn struct {
	Checked string `header:"Verbena-Checked" maxLength:"20" doc:"Seconds since the agent looked last whether its host can give VMs RDMA"`
}

func (s *Server) beat(ctx context.Context, in *beatIn) (*struct{}, error) {
	c := callFrom(ctx)
	s.ident.live.beat(c.Host, false, s.now())
	s.takeChecked(c.Host, in.Checked)
	return nil, nil //nolint:nilnil // huma's form of an empty answer
}

// agentStatus takes an agent's report. Everything in it is checked against what its host holds: an agent
// that was taken over can lie about its own host and about no other. A VM that is not the host's is
// ignored and named in the answer, the rest is taken; what changes nothing is not written.
func (s *Server) agentStatus(ctx context.Context, in *statusIn) (*ackOut, error) {
	c := callFrom(ctx)
	st := &in.Body.Status
	c.object = api.Ref{Kind: api.KindHost, Name: c.Host}
	if in.Body.wrong != nil {
		return nil, withStatus{fault.New(fault.Invalid, "the report can't be read as one"), http.StatusBadRequest, nil}
	}
	if err := checkStatus(c.Host, st); err != nil {
		s.auditRefusal(c, c.action(), err)
		return nil, err
	}
	s.ident.live.beat(c.Host, false, s.now())
	var ack wire.Ack
	_, err := s.db.Update(ctx, func(tx store.Tx) error {
		ack = wire.Ack{}
		return s.takeStatus(tx, c, st, &ack)
	})
	if err != nil {
		return nil, err
	}
	if first := strings.Join(ack.Ignored[:min(1, len(ack.Ignored))], ""); s.ident.live.refused(c.Host, first) {
		s.auditRefusal(c, c.action(), fault.New(fault.Forbidden, "%d reports about VMs or objects that host %s does not hold, the first: %s",
			len(ack.Ignored), c.Host, first))
	}
	s.ident.live.beat(c.Host, st.Inventory != nil, s.now())
	if st.Checked != nil {
		s.takeChecked(c.Host, strconv.FormatInt(*st.Checked, 10))
	}
	return &ackOut{Body: ack}, nil
}

func checkStatus(name string, st *wire.Status) error {
	switch {
	case st.Host != name:
		return fault.New(fault.Forbidden, "host %s may not report for host %s", name, clip(st.Host))
	case len(st.VMs) > maxStatusVMs:
		return fault.New(fault.TooLarge, "a report has at most %d VMs", maxStatusVMs)
	case len(st.Events) > maxStatusEvents:
		return fault.New(fault.TooLarge, "a report has at most %d events", maxStatusEvents)
	}
	for i := range st.VMs {
		if len(st.VMs[i].Steps) > maxReportSteps {
			return fault.New(fault.TooLarge, "a report has at most %d steps of a VM", maxReportSteps)
		}
	}
	return nil
}

func (s *Server) takeStatus(tx store.Tx, c *call, st *wire.Status, ack *wire.Ack) error {
	by := s.who(c)
	if st.Inventory != nil {
		if _, err := host.Observed(tx, c.Host, st.Inventory, by.Now); err != nil {
			return err
		}
	}
	if _, err := host.Checked(tx, c.Host, st.Preflight, by.Now); err != nil {
		if !refusedOnly(err) {
			return err
		}
		ack.Ignored = append(ack.Ignored, "preflight: "+clean(fault.Text(err)))
	}
	// Events first: the last of a VM comes with the proof that releases it.
	for _, e := range st.Events {
		if !holds(tx, c.Host, e.Object) || len(e.Reason) > maxReason {
			ack.Ignored = append(ack.Ignored, "event about "+clean(clip(string(e.Object.Kind)+" "+e.Object.Tenant+"/"+e.Object.Name)))
			continue
		}
		if err := s.agentEvent(tx, e); err != nil {
			return err
		}
	}
	for i := range st.VMs {
		if err := s.takeVM(tx, c.Host, st.VMs[i], by); err != nil {
			if !refusedOnly(err) {
				return fmt.Errorf("take the report about VM %s: %w", clip(st.VMs[i].UID), err)
			}
			ack.Ignored = append(ack.Ignored, clean(clip(st.VMs[i].UID))+": "+clean(fault.Text(err)))
		}
	}
	return nil
}

// refusedOnly reports whether a rule said no before it changed anything: that concerns one VM only.
func refusedOnly(err error) bool {
	switch fault.KindOf(err) {
	case fault.NotFound, fault.Conflict, fault.Forbidden, fault.Invalid, fault.Unready, fault.Precondition:
		return true
	default:
		return false
	}
}

func (s *Server) desired(context.Context, *struct{}) (*answer, error) {
	return &answer{func(hc huma.Context) {
		r, w := humago.Unwrap(hc)
		s.followHost(r, w)
	}}, nil
}

// followHost streams the desired state of the caller's host until it goes, another stream of the same
// host takes over, its certificate is no longer good, or the server stops.
func (s *Server) followHost(r *http.Request, w http.ResponseWriter) {
	c := callFrom(r.Context())
	c.stream = true
	name := c.Host
	f := s.ident.feed.join(name)
	defer s.ident.feed.leave(name, f)
	s.ident.live.connect(name, s.now())
	out := newStream(w)
	tick := time.NewTicker(agentKeepAlive)
	defer tick.Stop()
	var sent [sha256.Size]byte
	for {
		if err := s.sendDesired(r.Context(), out, name, &sent); err != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-s.stop:
			return
		case <-f.quit:
			return
		case <-f.wake:
		case <-tick.C:
			if caller, err := s.identify(r); err != nil || caller.Host != name {
				return
			}
			out.comment("alive")
			if out.flush() != nil {
				return
			}
		}
	}
}

// sendDesired sends the host's desired state if it differs from what was sent last.
func (s *Server) sendDesired(ctx context.Context, out *stream, name string, sent *[sha256.Size]byte) error {
	var d *wire.Desired
	err := s.db.View(ctx, func(tx store.Tx) (err error) {
		if d, err = host.Desired(tx, name); err == nil {
			d.Revision = tx.Rev()
		}
		return err
	})
	if err != nil {
		if ctx.Err() == nil && !fault.Is(err, fault.NotFound) { // a deleted host's stream just ends
			s.log.ErrorContext(ctx, "the desired state of a host can't be made", "host", name, "err", err)
		}
		return err
	}
	sum, err := digest(d)
	if err != nil {
		return err
	}
	if sum == *sent {
		return nil
	}
	data, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("encode the desired state of %s: %w", name, err)
	}
	out.event("desired", d.Revision, data)
	if err := out.flush(); err != nil {
		return err
	}
	*sent = sum
	return nil
}

// digest is the same for desired states that ask the same of a host. Revisions don't count: that of the
// store moves all the time, that of a VM with each report of its own host.
func digest(d *wire.Desired) ([sha256.Size]byte, error) {
	bare := *d
	bare.Revision, bare.VMs = 0, slices.Clone(d.VMs)
	for i := range bare.VMs {
		bare.VMs[i].Revision = 0
	}
	data, err := json.Marshal(&bare)
	if err != nil {
		return [sha256.Size]byte{}, fmt.Errorf("encode the desired state of %s: %w", d.Host, err)
	}
	return sha256.Sum256(data), nil
}
