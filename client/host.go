package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/verbena-cloud/verbena/api"
)

// PlanHost asks what a host's agent would do to commission its NICs. A refusal is a part of the answer, not
// an error.
func (c *Client) PlanHost(ctx context.Context, name string, ask api.CommissionRequest) (*api.CommissionPlan, error) {
	out := new(api.CommissionPlan)
	return out, c.call(ctx, request{method: http.MethodPost, path: c.Hosts().path("", name) + "/plan", body: ask, repeat: true}, out)
}

// Preflight asks what a host's agent found when it looked whether the host can give VMs RDMA.
func (c *Client) Preflight(ctx context.Context, name string) (*api.HostPreflight, error) {
	out := new(api.HostPreflight)
	return out, c.get(ctx, c.Hosts().path("", name)+"/preflight", nil, out)
}

// Preflights asks the same of all hosts, page by page.
func (c *Client) Preflights(ctx context.Context) ([]api.HostPreflight, error) {
	all, query := []api.HostPreflight{}, url.Values{}
	for {
		var page api.List[api.HostPreflight]
		if err := c.get(ctx, "/v1/preflights", query, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.Continue == "" {
			return all, nil
		}
		query.Set("continue", page.Continue)
	}
}
