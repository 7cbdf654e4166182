package server

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store/backup"
)

// reclaimer is a store that can free the space of old revisions and lift its own alarm.
type reclaimer interface {
	Reclaim(ctx context.Context) error
}

// storeRoutes look after the system of record while it serves.
func (s *Server) storeRoutes() []route {
	const tag = "System"
	return []route{
		handle(route{id: "store-backup", method: http.MethodPost, path: "/v1/store/backup", perm: auth.StoreBackup, tag: tag,
			summary: "The whole state at one revision, to be kept like a secret; the last line is its checksum", describe: plainAnswer("application/jsonl")}, s.saveStore),
		handle(route{id: "store-reclaim", method: http.MethodPost, path: "/v1/store/reclaim", perm: auth.StoreReclaim, tag: tag,
			summary: "Compact and defragment the store and lift its space alarm"}, s.reclaimStore),
	}
}

// saveStore streams the backup. A reader that is cut off finds no checksum at the end, so half a backup is
// never taken for a whole one.
func (s *Server) saveStore(ctx context.Context, _ *struct{}) (*huma.StreamResponse, error) {
	if err := backup.Check(ctx, s.db); err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		_, w := humago.Unwrap(hc)
		w.Header().Set("Content-Type", "application/jsonl")
		if err := http.NewResponseController(w).SetWriteDeadline(time.Time{}); err != nil {
			s.log.WarnContext(ctx, "backup: the write deadline stays", "err", err)
		}
		sum, err := backup.Write(hc.Context(), s.db, w, backup.Stamp{Made: s.now(), By: s.cfg.Version})
		if err != nil {
			s.log.WarnContext(ctx, "backup broken off", "err", err)
			return
		}
		s.log.InfoContext(ctx, "backup sent", "revision", sum.Revision, "entries", sum.Count)
	}}, nil
}

func (s *Server) reclaimStore(ctx context.Context, _ *struct{}) (*statusAnswer, error) {
	r, ok := s.db.(reclaimer)
	if !ok {
		return nil, fault.New(fault.Unready, "this store is in memory and has no space to reclaim")
	}
	if err := r.Reclaim(ctx); err != nil {
		return nil, err
	}
	return s.status(ctx, nil)
}
