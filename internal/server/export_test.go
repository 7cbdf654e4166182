package server

// openWatchers reads the gauge.
func (s *Server) openWatchers() float64 {
	families, err := s.metrics.registry.Gather()
	if err != nil {
		return -1
	}
	for _, f := range families {
		if f.GetName() == "verbena_watchers" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return -1
}
