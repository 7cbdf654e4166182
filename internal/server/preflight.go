package server

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/host"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
)

// preflightPage is how many hosts a page has if nothing else is asked for: each may have some kilobytes of findings.
const preflightPage = 500

type preflightListIn struct {
	Limit    int    `query:"limit" minimum:"1" maximum:"5000" doc:"Hosts per page; default 500"`
	Continue string `query:"continue" maxLength:"2048" doc:"The continue of the page before"`
}

type preflightListOut struct {
	Body api.List[api.HostPreflight]
}

type preflightOut struct {
	Body api.HostPreflight
}

// preflightRoutes are what agents found of their hosts, without the hosts' inventories, which are much larger.
func (s *Server) preflightRoutes(k *kind[api.Host, *api.Host]) []route {
	return []route{
		handle(k.route(route{id: "preflight-list", method: http.MethodGet, path: "/v1/preflights", perm: auth.HostRead,
			summary: "What agents found when they looked whether their hosts can give VMs RDMA, of all hosts"}), s.listPreflights),
		handle(k.route(route{id: "preflight", method: http.MethodGet, path: "/v1/hosts/{name}/preflight", perm: auth.HostRead,
			summary: "What its agent found when it looked whether the host can give VMs RDMA"}), s.preflight(k)),
	}
}

func (s *Server) preflight(k *kind[api.Host, *api.Host]) func(context.Context, *struct{}) (*preflightOut, error) {
	return func(ctx context.Context, _ *struct{}) (*preflightOut, error) {
		c, out := callFrom(ctx), &preflightOut{}
		return out, s.db.View(ctx, func(tx store.Tx) error {
			o, err := k.load(tx, c, match{})
			if err != nil {
				return err
			}
			out.Body, err = s.preflightOf(tx, *o)
			return err
		})
	}
}

func (s *Server) preflightOf(tx store.Tx, o api.Host) (api.HostPreflight, error) {
	s.shadeHost(&o)
	err := host.Outdated(tx, &o)
	return api.HostPreflight{Host: o.Name, State: o.Status.State, Seen: o.Status.Seen, Preflight: o.Status.Preflight}, err
}

func (s *Server) listPreflights(ctx context.Context, in *preflightListIn) (*preflightListOut, error) {
	const scope = "preflights"
	cur, err := s.openCursor(in.Continue, scope)
	if err != nil {
		return nil, err
	}
	limit := in.Limit
	if limit == 0 {
		limit = preflightPage
	}
	out := &preflightListOut{}
	out.Body.Items = []api.HostPreflight{}
	more := false
	err = s.db.View(ctx, func(tx store.Tx) error {
		out.Body.Revision = tx.Rev()
		for e := range tx.Scan(object.Prefix(api.KindHost, ""), cur.After) {
			if len(out.Body.Items) == limit {
				more = true
				return nil
			}
			o, err := store.Peek[api.Host](e)
			if err != nil {
				return err
			}
			p, err := s.preflightOf(tx, *o)
			if err != nil {
				return err
			}
			out.Body.Items = append(out.Body.Items, p)
			cur.After = e.Key
		}
		return nil
	})
	if err == nil && more {
		out.Body.Continue, err = s.sealCursor(cursor{After: cur.After, Rev: out.Body.Revision}, scope)
	}
	return out, err
}

// takeChecked notes when the host's agent looked last: so many seconds ago, by its own clock alone. What is no number
// is left out, so that an agent of another version still shows that it lives.
func (s *Server) takeChecked(host, seconds string) {
	if n, err := strconv.ParseInt(seconds, 10, 32); err == nil && n >= 0 {
		now := s.now()
		s.ident.live.look(host, now.Add(-time.Duration(n)*time.Second))
	}
}
