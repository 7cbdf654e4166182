package server

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
)

// systemRoutes are about the server itself.
func (s *Server) systemRoutes() []route {
	const tag = "System"
	return []route{
		handle(route{id: "healthz", method: http.MethodGet, path: "/healthz", perm: auth.Public, tag: tag,
			summary: "Whether the process serves at all"}, s.healthz),
		handle(route{id: "readyz", method: http.MethodGet, path: "/readyz", perm: auth.Public, tag: tag,
			summary: "Whether the server can answer: the store is there"}, s.readyz),
		handle(route{id: "status", method: http.MethodGet, path: "/v1/status", perm: auth.StatusRead, tag: tag,
			summary: "What an operator must know of the server and its store"}, s.status),
		handle(route{id: "metrics", method: http.MethodGet, path: "/metrics", perm: auth.MetricsRead, tag: tag,
			summary: "Metrics in Prometheus' text format", describe: plainAnswer("text/plain")}, s.metricsPage),
	}
}

// plainAnswer describes an answer that is no JSON.
func plainAnswer(media string) func(*huma.Operation, huma.Registry) {
	return func(op *huma.Operation, _ huma.Registry) {
		op.Responses["200"] = &huma.Response{
			Description: http.StatusText(http.StatusOK),
			Content:     map[string]*huma.MediaType{media: {Schema: &huma.Schema{Type: huma.TypeString}}},
		}
	}
}

// health is the answer of the probes.
type health struct {
	Body struct {
		Status string `json:"status" enum:"ok"`
	}
}

func (s *Server) healthz(context.Context, *struct{}) (*health, error) {
	out := &health{}
	out.Body.Status = "ok"
	return out, nil
}

func (s *Server) readyz(ctx context.Context, in *struct{}) (*health, error) {
	if _, err := s.db.Health(ctx); err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "the store does not answer")
	}
	return s.healthz(ctx, in)
}

type statusAnswer struct{ Body api.ServerStatus }

func (s *Server) status(ctx context.Context, _ *struct{}) (*statusAnswer, error) {
	h, err := s.db.Health(ctx)
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "the store does not answer")
	}
	return &statusAnswer{api.ServerStatus{
		Version: s.cfg.Version, Engine: h.Engine, Revision: h.Revision,
		Size: h.Size, Limit: h.Limit, Members: h.Members,
		Conditions: []api.Condition{spaceCondition(h, s.now())},
	}}, nil
}

// spaceCondition says whether the store still takes writes, before people find out by a refused one.
func spaceCondition(h store.Health, now time.Time) api.Condition {
	c := api.Condition{Type: "StoreWritable", Status: "True", Reason: "SpaceLeft", Since: now}
	switch {
	case h.NoSpace:
		c.Status, c.Reason = "False", "NoSpace"
		c.Message = "The store refuses writes because it is full: run `verbena status --reclaim`, or raise its limit."
	case h.Limit > 0 && h.Size > h.Limit/10*8:
		c.Reason = "SpaceLow"
		c.Message = "The store has used more than 80 % of its space."
	}
	return c
}

func (s *Server) metricsPage(context.Context, *struct{}) (*huma.StreamResponse, error) {
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		r, w := humago.Unwrap(hc)
		s.metrics.handler.ServeHTTP(w, r)
	}}, nil
}
