package tenant

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/units"
)

// Ask is what one VM takes of its tenant's quota.
type Ask struct {
	VMs       int            `json:"vms"`
	VCPUs     int            `json:"vcpus"`
	Memory    units.Bytes    `json:"memory"`
	VFs       map[string]int `json:"vfs,omitempty"`       // by fabric
	Bandwidth units.Rate     `json:"bandwidth,omitempty"` // sum of minRate
}

// vfs returns the number of VFs over all fabrics.
func (a Ask) vfs() int {
	n := 0
	for _, v := range a.VFs {
		n += v
	}
	return n
}

// plus returns a + sign×b. Neither is changed; fabrics that come to 0 are dropped.
func (a Ask) plus(b Ask, sign int) Ask {
	out := Ask{
		VMs:       a.VMs + sign*b.VMs,
		VCPUs:     a.VCPUs + sign*b.VCPUs,
		Memory:    a.Memory + units.Bytes(sign)*b.Memory,
		Bandwidth: a.Bandwidth + units.Rate(sign)*b.Bandwidth,
	}
	if len(a.VFs)+len(b.VFs) == 0 {
		return out
	}
	out.VFs = maps.Clone(a.VFs)
	if out.VFs == nil {
		out.VFs = map[string]int{}
	}
	for f, n := range b.VFs {
		out.VFs[f] += sign * n
		if out.VFs[f] == 0 {
			delete(out.VFs, f)
		}
	}
	return out
}

func claimKey(tenant, uid string) string { return object.UsageKey(tenant) + "/" + uid }

// usage returns what the tenant's VMs hold.
func usage(tx store.Tx, tenant string) (Ask, error) { return peek(tx, object.UsageKey(tenant)) }

func peek(tx store.Tx, key string) (Ask, error) {
	e := tx.Get(key)
	if e == nil {
		return Ask{}, nil
	}
	p, err := store.Peek[Ask](e)
	if err != nil {
		return Ask{}, err
	}
	return *p, nil
}

// Charge counts ask for the VM uid against the tenant's quota, or refuses with a Quota fault whose Detail
// is the quota sheet. A VM that has a charge already is charged the difference only: repeating a charge
// changes nothing.
func Charge(tx store.Tx, tenant, uid string, ask Ask) error {
	have, err := peek(tx, claimKey(tenant, uid))
	if err != nil {
		return err
	}
	more := ask.plus(have, -1)
	sheet, err := Sheet(tx, tenant, more)
	if err != nil {
		return err
	}
	if err := Refusal(tenant, sheet); err != nil {
		return err
	}
	return book(tx, tenant, uid, more, ask)
}

// Refund gives back whatever the VM uid was charged. It is safe to repeat.
func Refund(tx store.Tx, tenant, uid string) error {
	if tx.Get(claimKey(tenant, uid)) == nil {
		return nil
	}
	have, err := peek(tx, claimKey(tenant, uid))
	if err != nil {
		return err
	}
	return book(tx, tenant, uid, Ask{}.plus(have, -1), Ask{})
}

// book adds more to the sum and makes the VM's claim what it shall be from now on.
func book(tx store.Tx, tenant, uid string, more, claim Ask) error {
	u, err := usage(tx, tenant)
	if err != nil {
		return err
	}
	sum := u.plus(more, 1)
	if err := store.Put(tx, object.UsageKey(tenant), &sum); err != nil {
		return err
	}
	if claim.VMs == 0 && claim.VCPUs == 0 && claim.Memory == 0 && claim.vfs() == 0 && claim.Bandwidth == 0 {
		tx.Delete(claimKey(tenant, uid))
		return nil
	}
	claim.VFs = maps.Clone(claim.VFs)
	return store.Put(tx, claimKey(tenant, uid), &claim)
}

// Sheet returns the tenant's quota sheet with ask on top of what is in use.
func Sheet(tx store.Tx, tenant string, ask Ask) ([]api.QuotaLine, error) {
	t, err := object.Peek[api.Tenant](tx, api.KindTenant, "", tenant)
	if err != nil {
		return nil, err
	}
	u, err := usage(tx, tenant)
	if err != nil {
		return nil, err
	}
	return lines(t.Spec.Quota, u, ask)
}

// Refusal returns a Quota fault that tells the numbers if a line of the sheet is exceeded, else nil.
func Refusal(tenant string, sheet []api.QuotaLine) error {
	var over []string
	for _, l := range sheet {
		if l.Exceeded {
			over = append(over, fmt.Sprintf("%s: %s in use + %s asked > %s allowed", l.Resource, amount(l.Used, l.Unit), amount(l.Asked, l.Unit), amount(l.Limit, l.Unit)))
		}
	}
	if len(over) == 0 {
		return nil
	}
	return &fault.Error{
		Kind:   fault.Quota,
		Text:   fmt.Sprintf("the quota of tenant %s is exhausted (%s); delete VMs, choose a smaller flavor or ask an administrator for more", tenant, strings.Join(over, "; ")),
		Detail: sheet,
	}
}

// lines puts use, ask and limit side by side.
func lines(q api.Quota, u, ask Ask) ([]api.QuotaLine, error) {
	var memory units.Bytes
	var err error
	if q.Memory != "" {
		if memory, err = units.ParseBytes(q.Memory); err != nil {
			return nil, fmt.Errorf("quota for memory: %w", err)
		}
	}
	out := make([]api.QuotaLine, 0, 5+len(q.VFsPerFabric))
	out = append(out,
		line("vms", "", int64(u.VMs), int64(ask.VMs), int64(q.VMs)),
		line("vcpus", "", int64(u.VCPUs), int64(ask.VCPUs), int64(q.VCPUs)),
		line("memory", "B", int64(u.Memory), int64(ask.Memory), int64(memory)),
		line("vfs", "", int64(u.vfs()), int64(ask.vfs()), int64(q.VFs)),
	)
	for _, f := range slices.Sorted(maps.Keys(q.VFsPerFabric)) {
		out = append(out, line("vfs/"+f, "", int64(u.VFs[f]), int64(ask.VFs[f]), int64(q.VFsPerFabric[f])))
	}
	if q.GuaranteedBandwidth != "" {
		limit, err := units.ParseRate(q.GuaranteedBandwidth)
		if err != nil {
			return nil, fmt.Errorf("quota for guaranteed bandwidth: %w", err)
		}
		out = append(out, line("guaranteedBandwidth", "bps", int64(u.Bandwidth), int64(ask.Bandwidth), int64(limit)))
	}
	return out, nil
}

// line is exceeded only if more is asked: after a quota was lowered, what asks for none of it still fits.
func line(name, unit string, used, asked, limit int64) api.QuotaLine {
	return api.QuotaLine{Resource: name, Unit: unit, Used: used, Asked: asked, Limit: limit, Exceeded: asked > 0 && (asked > math.MaxInt64-used || used+asked > limit)}
}

func amount(n int64, unit string) string {
	switch unit {
	case "B":
		return units.Bytes(n).String()
	case "bps":
		return units.Rate(n).String()
	default:
		return strconv.FormatInt(n, 10)
	}
}
