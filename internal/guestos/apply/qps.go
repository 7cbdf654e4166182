package apply

import (
	"context"
	"math"

	"github.com/verbena-cloud/verbena/internal/rdma"
	"github.com/verbena-cloud/verbena/internal/sysfs"
)

// queuePairs counts how many queue pairs each RDMA device has, the kernel's own among them. A device that goes
// away meanwhile, or does not tell, is left out.
func queuePairs(devices rdma.Devices) func(context.Context) (map[string]int64, error) {
	return func(ctx context.Context) (map[string]int64, error) {
		list, err := devices.List(ctx)
		if err != nil {
			return nil, err
		}
		out := map[string]int64{}
		for _, d := range list {
			r, err := devices.Resources(ctx, d.ID)
			if err != nil && !rdma.Absent(err) && !sysfs.Absent(err) {
				return out, err
			}
			if n, ok := r["qp"]; ok && n <= math.MaxInt32 {
				out[d.Name] = int64(n)
			}
		}
		return out, nil
	}
}
