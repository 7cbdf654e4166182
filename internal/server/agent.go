package server

// agentRoutes are what agents call.
func (s *Server) agentRoutes() []route { return nil }
