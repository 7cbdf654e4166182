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
	err := c.VMs().create(ctx, tenant, vm, Write{DryRun: true}, &plan)
	return plan, err
}

// ExplainVM says host by host what is possible for a VM, as things are now.
func (c *Client) ExplainVM(ctx context.Context, tenant, name string) (api.Explanation, error) {
	var out api.Explanation
	err := c.get(ctx, c.VMs().path(tenant, name)+"/explain", nil, &out)
	return out, err
}

// RebuildVM makes the VM anew from its image, with the same VFs and addresses.
func (c *Client) RebuildVM(ctx context.Context, tenant, name string) (*api.VM, error) {
	out := new(api.VM)
	return out, c.call(ctx, request{method: http.MethodPost, path: c.VMs().path(tenant, name) + "/rebuild"}, out)
}
