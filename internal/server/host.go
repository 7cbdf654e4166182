package server

import (
	"context"
	"net/http"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/host"
	"github.com/verbena-cloud/verbena/internal/store"
)

// hostRoutes are the common verbs and the plan of a commissioning. To carry it out is to write the plan's spec:
// the agent does the rest.
func (s *Server) hostRoutes() []route {
	k := s.hostKind()
	return append(append(k.routes(), s.preflightRoutes(k)...),
		handle(k.route(route{id: "plan", method: http.MethodPost, path: "/v1/hosts/{name}/plan", perm: auth.HostRead,
			summary: "What its agent would do to commission NICs, and what is refused; changes nothing"}), s.planHost(k)))
}

type planInput struct{ Body api.CommissionRequest }

type planAnswer struct{ Body api.CommissionPlan }

func (s *Server) planHost(k *kind[api.Host, *api.Host]) func(context.Context, *planInput) (*planAnswer, error) {
	return func(ctx context.Context, in *planInput) (*planAnswer, error) {
		c, out := callFrom(ctx), &planAnswer{}
		return out, s.db.View(ctx, func(tx store.Tx) error {
			o, err := k.load(tx, c, match{})
			if err != nil {
				return err
			}
			plan, err := host.Commission(tx, o.Name, in.Body)
			if err != nil {
				return err
			}
			s.shadeHost(o)
			plan.Revision, plan.State, plan.Seen = o.Revision, o.Status.State, o.Status.Seen
			out.Body = *plan
			return nil
		})
	}
}

// hostKind has the common verbs: what a host is, its agent reports.
func (s *Server) hostKind() *kind[api.Host, *api.Host] {
	return &kind[api.Host, *api.Host]{
		s: s, name: api.KindHost, plural: "hosts", noun: "host",
		perm:   verbs{auth.HostRead, auth.HostCreate, auth.HostUpdate, auth.HostDelete},
		create: plain(host.Create), update: host.Update, remove: host.Delete,
		fill: func(tx store.Tx, o *api.Host) error {
			s.shadeHost(o)
			return host.Fill(tx, o)
		},
	}
}
