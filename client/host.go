package client

import (
	"context"
	"net/http"

	"github.com/verbena-cloud/verbena/api"
)

// PlanHost asks what a host's agent would do to commission its NICs. A refusal is a part of the answer, not
// an error.
func (c *Client) PlanHost(ctx context.Context, name string, ask api.CommissionRequest) (*api.CommissionPlan, error) {
	out := new(api.CommissionPlan)
	return out, c.call(ctx, request{method: http.MethodPost, path: c.Hosts().path("", name) + "/plan", body: ask, repeat: true}, out)
}
