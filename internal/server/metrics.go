package server

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics counts what the server does. Each server has its own registry, so that several fit into one
// process.
type metrics struct {
	registry *prometheus.Registry
	handler  http.Handler
	requests *prometheus.HistogramVec
	watchers prometheus.Gauge
	dropped  prometheus.Counter
	// auditLost counts records of refused requests that the audit could not keep.
	auditLost prometheus.Counter
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "verbena_http_request_seconds",
			Help:    "Time from a request's headers to the end of its answer, by route and status class. Streams are not in it.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}, []string{"route", "status"}),
		watchers: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "verbena_watchers", Help: "Open watch streams.",
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "verbena_watchers_dropped_total", Help: "Watch streams cut off because the client read too slowly.",
		}),
		auditLost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "verbena_audit_lost_total", Help: "Audit records of refused requests that were not kept, because there were too many at once.",
		}),
	}
	m.registry.MustRegister(m.requests, m.watchers, m.dropped, m.auditLost,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.handler = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
	return m
}

// observe counts an answered request.
func (m *metrics) observe(c *call, took time.Duration) {
	if c.stream {
		return
	}
	route := "none"
	if c.route != nil {
		route = c.route.id
	}
	m.requests.WithLabelValues(route, strconv.Itoa(c.status/100)+"xx").Observe(took.Seconds())
}
