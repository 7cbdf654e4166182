package server

import (
	"net/http"

	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/fault"
)

// identifyRequest proves who sent the request; somebody without credentials is Unauthenticated.
func (s *Server) identifyRequest(*http.Request) (auth.Caller, error) {
	return auth.Caller{}, fault.New(fault.Unauthenticated, "no credentials")
}

// identityRoutes are login, users, tokens, joining.
func (s *Server) identityRoutes() []route { return nil }
