package client

import (
	"context"
	"net/http"

	"github.com/verbena-cloud/verbena/api"
)

// PlanVM asks what a create would claim, where, and why not elsewhere. A VM that does not fit is an answer,
// not an error.
func (c *Client) PlanVM(ctx context.Context, tenant string, vm *api.VM) (api.VMPlan, error) {
	var plan api.VMPlan
	return plan, c.VMs().create(ctx, tenant, vm, Write{DryRun: true}, &plan)
}

// ExplainVM says host by host what is possible for a VM, as things are now.
func (c *Client) ExplainVM(ctx context.Context, tenant, name string) (api.Explanation, error) {
	var out api.Explanation
	return out, c.get(ctx, c.VMs().path(tenant, name)+"/explain", nil, &out)
}

// RebuildVM makes the VM anew from its image, with the same VFs and addresses.
func (c *Client) RebuildVM(ctx context.Context, tenant, name string) (*api.VM, error) {
	out := new(api.VM)
	_, err := c.call(ctx, request{method: http.MethodPost, path: c.VMs().path(tenant, name) + "/rebuild"}, out)
	return out, err
}
