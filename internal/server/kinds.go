package server

func (s *Server) kindsRoutes() []route { return nil }
