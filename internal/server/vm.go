package server

func (s *Server) vmRoutes() []route { return nil }
