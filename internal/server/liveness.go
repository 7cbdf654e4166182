package server

// alive reports whether the host's agent has shown itself lately.
func (s *Server) alive(host string) bool { return false }
