package server

import (
	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/host"
	"github.com/verbena-cloud/verbena/internal/store"
)

// hostKind has the common verbs only: what a host is, its agent reports.
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
