package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-cloud/verbena/api"
)

// column shows one aspect of an object of type T.
type column[T any] struct {
	head

	cell func(o *T) string
}

// col and wide make columns.
func col[T any](name string, cell func(*T) string) column[T] {
	return column[T]{head{name, false}, cell}
}

func wide[T any](name string, cell func(*T) string) column[T] {
	return column[T]{head{name, true}, cell}
}

// shape is how a kind is shown: its columns, and the row of an object.
type shape struct {
	view view
	row  func(json.RawMessage) (row, error)
}

func shapeOf[T any](columns ...column[T]) shape {
	s := shape{}
	for _, c := range columns {
		s.view = append(s.view, c.head)
	}
	s.row = func(raw json.RawMessage) (row, error) {
		o := new(T)
		if err := json.Unmarshal(raw, o); err != nil {
			return nil, fmt.Errorf("read an object: %w", err)
		}
		r := make(row, len(columns))
		for i, c := range columns {
			r[i] = c.cell(o)
		}
		return r, nil
	}
	return s
}

// shape returns how a kind is shown.
func (a *app) shape(k api.Kind) shape {
	now := a.env.Now()
	switch k {
	case api.KindVM:
		return vmShape(now)
	case api.KindHost:
		return hostShape(now)
	case api.KindTenant:
		return tenantShape(now)
	case api.KindNetwork:
		return networkShape(now)
	case api.KindSecurityGroup:
		return secgroupShape(now)
	case api.KindFlavor:
		return flavorShape(now)
	case api.KindImage:
		return imageShape(now)
	case api.KindFabric:
		return fabricShape(now)
	case api.KindUser:
		return userShape(now)
	case api.KindToken:
		return tokenShape(now)
	case api.KindEvent:
		return eventShape(now)
	case api.KindOperation:
		return operationShape(now)
	default:
		return auditShape(now)
	}
}

func age(t *time.Time, now time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return ago(now.Sub(*t))
}

// ago is a duration in its two largest units.
func ago(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return strconv.Itoa(int(d.Seconds())) + "s"
	case d < 2*time.Hour:
		return strconv.Itoa(int(d.Minutes())) + "m"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + "h"
	}
	return strconv.Itoa(int(d.Hours()/24)) + "d"
}

func pairs[V any](m map[string]V) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%s=%v", k, m[k]))
	}
	return strings.Join(out, ",")
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func vmShape(now time.Time) shape {
	return shapeOf(
		col("NAME", func(v *api.VM) string { return v.Name }),
		col("TENANT", func(v *api.VM) string { return v.Tenant }),
		col("PHASE", func(v *api.VM) string { return v.Status.Phase }),
		col("HOST", func(v *api.VM) string { return hostName(v.Status) }),
		col("FLAVOR", func(v *api.VM) string { return v.Spec.Flavor }),
		col("IP", func(v *api.VM) string { return addresses(v.Status) }),
		col("VFS", func(v *api.VM) string { return strconv.Itoa(len(v.Status.VFs)) }),
		col("NUMA", func(v *api.VM) string { return hostCells(v.Status) }),
		col("AGE", func(v *api.VM) string { return age(v.Created, now) }),
		wide("IMAGE", func(v *api.VM) string { return v.Spec.Image }),
		wide("POWER", func(v *api.VM) string { return first(v.Spec.Power, "on") }),
		wide("VLAN", func(v *api.VM) string {
			return joined(v.Status.VFs, func(f api.VMVF) string { return strconv.Itoa(f.VLAN) })
		}),
		wide("MAC", func(v *api.VM) string { return joined(v.Status.VFs, func(f api.VMVF) string { return f.MAC }) }),
		wide("VF", func(v *api.VM) string {
			return joined(v.Status.VFs, func(f api.VMVF) string { return f.PF + "/" + strconv.Itoa(f.Index) })
		}),
		wide("GENERATION", func(v *api.VM) string { return strconv.FormatInt(v.Status.Generation, 10) }),
		wide("MESSAGE", func(v *api.VM) string { return v.Status.Message }),
	)
}

// hostName marks a host that is none.
func hostName(s api.VMStatus) string {
	if s.Simulated {
		return s.Host + " (simulated)"
	}
	return s.Host
}

func joined[T any](list []T, f func(T) string) string {
	var out []string
	for _, v := range list {
		if s := f(v); s != "" {
			out = append(out, s)
		}
	}
	return strings.Join(out, ",")
}

func addresses(s api.VMStatus) string {
	both := []string{joined(s.VFs, func(f api.VMVF) string { return f.IP }), joined(s.NICs, func(n api.VMNIC) string { return n.IP })}
	return joined(both, func(x string) string { return x })
}

func hostCells(s api.VMStatus) string {
	return joined(s.Cells, func(c api.VMCell) string {
		if c.Host < 0 {
			return ""
		}
		return strconv.Itoa(c.Host)
	})
}

func hostShape(now time.Time) shape {
	return shapeOf(
		col("NAME", func(h *api.Host) string { return h.Name }),
		col("STATE", func(h *api.Host) string { return h.Status.State }),
		col("MAINTENANCE", func(h *api.Host) string { return first(h.Spec.Maintenance, "none") }),
		col("VMS", func(h *api.Host) string { return strconv.Itoa(h.Status.VMs) }),
		col("VFS", vfCount),
		col("VCPUS", cpuCount),
		col("SEEN", func(h *api.Host) string { return age(h.Status.Seen, now) }),
		col("SIMULATED", func(h *api.Host) string {
			return yesNo(h.Status.Inventory != nil && h.Status.Inventory.Simulated)
		}),
		wide("RACK", func(h *api.Host) string { return h.Spec.Rack }),
		wide("KERNEL", func(h *api.Host) string { return inventory(h).Kernel }),
		wide("HYPERVISOR", func(h *api.Host) string { return inventory(h).Hypervisor }),
		wide("AGENT", func(h *api.Host) string { return inventory(h).Agent }),
		wide("IOMMU", func(h *api.Host) string { return yesNo(inventory(h).IOMMU) }),
		wide("PROBLEMS", func(h *api.Host) string { return strconv.Itoa(len(inventory(h).Problems)) }),
		wide("LABELS", func(h *api.Host) string { return pairs(h.Labels) }),
		wide("AGE", func(h *api.Host) string { return age(h.Created, now) }),
	)
}

func inventory(h *api.Host) api.Inventory {
	if h.Status.Inventory == nil {
		return api.Inventory{}
	}
	return *h.Status.Inventory
}

// vfCount is VFs that VMs hold of those in the pool.
func vfCount(h *api.Host) string {
	used, all := 0, 0
	for _, u := range h.Status.Used {
		used += u.VFs
	}
	for _, p := range inventory(h).PFs {
		if p.Fabric != "" {
			all += p.NumVFs
		}
	}
	return fmt.Sprintf("%d/%d", used, all)
}

func cpuCount(h *api.Host) string {
	used, all := 0, 0
	for _, u := range h.Status.Used {
		used += u.VCPUs
	}
	for _, c := range inventory(h).Cells {
		all += c.VCPUs
	}
	return fmt.Sprintf("%d/%d", used, all)
}

// usage is a line of a quota sheet as "used/limit".
func usage(lines []api.QuotaLine, resource string) string {
	for _, l := range lines {
		if l.Resource == resource {
			return quantity(l.Used, l.Unit) + "/" + quantity(l.Limit, l.Unit)
		}
	}
	return ""
}

// quantity is a number in its largest exact unit.
func quantity(v int64, unit string) string {
	switch unit {
	case "B":
		return scaled(v, 1024, []string{"B", "KiB", "MiB", "GiB", "TiB"})
	case "bps":
		return scaled(v, 1000, []string{"bps", "Kbps", "Mbps", "Gbps", "Tbps"})
	}
	return strconv.FormatInt(v, 10)
}

func scaled(v, step int64, units []string) string {
	i := 0
	for v != 0 && v%step == 0 && i < len(units)-1 {
		v /= step
		i++
	}
	if v == 0 {
		return "0"
	}
	return strconv.FormatInt(v, 10) + units[i]
}

func tenantShape(now time.Time) shape {
	of := func(resource string) func(*api.Tenant) string {
		return func(t *api.Tenant) string { return usage(t.Status.Usage, resource) }
	}
	return shapeOf(
		col("NAME", func(t *api.Tenant) string { return t.Name }),
		col("DISPLAY", func(t *api.Tenant) string { return t.Spec.DisplayName }),
		col("VMS", of("vms")), col("VCPUS", of("vcpus")), col("MEMORY", of("memory")), col("VFS", of("vfs")),
		col("AGE", func(t *api.Tenant) string { return age(t.Created, now) }),
		wide("MEMBERS", func(t *api.Tenant) string {
			return joined(t.Spec.Members, func(m api.Member) string { return m.User + "=" + m.Role })
		}),
		wide("LABELS", func(t *api.Tenant) string { return pairs(t.Labels) }),
	)
}

func networkShape(now time.Time) shape {
	return shapeOf(
		col("NAME", func(n *api.Network) string { return n.Name }),
		col("TENANT", func(n *api.Network) string { return n.Tenant }),
		col("FABRIC", func(n *api.Network) string { return n.Spec.Fabric }),
		col("CIDR", func(n *api.Network) string { return n.Spec.CIDR }),
		col("VLAN", func(n *api.Network) string { return strconv.Itoa(n.Status.VLAN) }),
		col("USED", func(n *api.Network) string { return fmt.Sprintf("%d/%d", n.Status.Used, n.Status.Addresses) }),
		col("AGE", func(n *api.Network) string { return age(n.Created, now) }),
		wide("GATEWAY", func(n *api.Network) string { return n.Status.Gateway }),
		wide("MTU", func(n *api.Network) string { return strconv.Itoa(n.Status.MTU) }),
		wide("DNS", func(n *api.Network) string { return strings.Join(n.Spec.DNS, ",") }),
	)
}

func secgroupShape(now time.Time) shape {
	return shapeOf(
		col("NAME", func(g *api.SecurityGroup) string { return g.Name }),
		col("TENANT", func(g *api.SecurityGroup) string { return g.Tenant }),
		col("NETWORK", func(g *api.SecurityGroup) string { return g.Spec.Network }),
		col("RULES", func(g *api.SecurityGroup) string { return strconv.Itoa(len(g.Spec.Rules)) }),
		col("LOCKED", func(g *api.SecurityGroup) string {
			n := 0
			for _, r := range g.Status.Effective {
				if r.Locked {
					n++
				}
			}
			return strconv.Itoa(n)
		}),
		col("AGE", func(g *api.SecurityGroup) string { return age(g.Created, now) }),
	)
}

func flavorShape(now time.Time) shape {
	rdma := func(f func(*api.RDMA) string) func(*api.Flavor) string {
		return func(o *api.Flavor) string {
			if !o.Spec.RDMA.Wanted() {
				return ""
			}
			return f(o.Spec.RDMA)
		}
	}
	return shapeOf(
		col("NAME", func(f *api.Flavor) string { return f.Name }),
		col("VCPUS", func(f *api.Flavor) string { return strconv.Itoa(f.Spec.VCPUs) }),
		col("MEMORY", func(f *api.Flavor) string { return f.Spec.Memory }),
		col("HUGEPAGES", func(f *api.Flavor) string { return first(f.Spec.Hugepages, "none") }),
		col("RDMA", func(f *api.Flavor) string { return yesNo(f.Spec.RDMA.Wanted()) }),
		col("HA", rdma(func(r *api.RDMA) string { return first(r.HA, "single") })),
		col("NUMA", rdma(func(r *api.RDMA) string { return first(r.NUMA, "required") })),
		col("VMS", func(f *api.Flavor) string { return strconv.Itoa(f.Status.VMs) }),
		wide("VFS", rdma(func(r *api.RDMA) string { return strconv.Itoa(vfsOf(r)) })),
		wide("CLASS", rdma(func(r *api.RDMA) string { return first(r.Class, "storage") })),
		wide("MINRATE", rdma(func(r *api.RDMA) string { return r.MinRate })),
		wide("MAXRATE", rdma(func(r *api.RDMA) string { return r.MaxRate })),
		wide("CELLS", func(f *api.Flavor) string { return strconv.Itoa(max(1, f.Spec.Cells)) }),
		wide("DISK", func(f *api.Flavor) string { return f.Spec.Disk }),
		wide("AGE", func(f *api.Flavor) string { return age(f.Created, now) }),
	)
}

// vfsOf is the number of VFs with the documented defaults.
func vfsOf(r *api.RDMA) int {
	if r.VFs == 0 && r.HA == "dual-vf" {
		return 2
	}
	return max(1, r.VFs)
}

func imageShape(now time.Time) shape {
	return shapeOf(
		col("NAME", func(i *api.Image) string { return i.Name }),
		col("OS", func(i *api.Image) string { return i.Spec.OS }),
		col("FORMAT", func(i *api.Image) string { return first(i.Spec.Format, "qcow2") }),
		col("RDMA-READY", func(i *api.Image) string { return yesNo(i.Spec.RDMAReady) }),
		col("SOURCE", func(i *api.Image) string { return i.Spec.Source }),
		col("AGE", func(i *api.Image) string { return age(i.Created, now) }),
		wide("SHA256", func(i *api.Image) string { return i.Spec.SHA256 }),
		wide("DRIVERS", func(i *api.Image) string { return pairs(i.Spec.GuestDrivers) }),
	)
}

func fabricShape(now time.Time) shape {
	number := func(v *int, fallback int) string {
		if v == nil {
			return strconv.Itoa(fallback)
		}
		return strconv.Itoa(*v)
	}
	return shapeOf(
		col("NAME", func(f *api.Fabric) string { return f.Name }),
		col("SPEED", func(f *api.Fabric) string { return f.Spec.Speed }),
		col("PRIORITY", func(f *api.Fabric) string { return number(f.Spec.Priority, 3) }),
		col("DSCP", func(f *api.Fabric) string { return number(f.Spec.DSCP, 26) }),
		col("VLANS", func(f *api.Fabric) string { return strings.Join(f.Spec.VLANPool, ",") }),
		col("VLANS-FREE", func(f *api.Fabric) string { return strconv.Itoa(f.Status.VLANsFree) }),
		col("VFS-FREE", func(f *api.Fabric) string { return fmt.Sprintf("%d/%d", f.Status.VFsFree, f.Status.VFs) }),
		col("AGE", func(f *api.Fabric) string { return age(f.Created, now) }),
		wide("MTU", func(f *api.Fabric) string { return strconv.Itoa(f.Spec.MTU) }),
		wide("CNP-DSCP", func(f *api.Fabric) string { return number(f.Spec.CNPDSCP, 48) }),
	)
}

func userShape(now time.Time) shape {
	return shapeOf(
		col("NAME", func(u *api.User) string { return u.Name }),
		col("DISPLAY", func(u *api.User) string { return u.Spec.DisplayName }),
		col("ROLES", func(u *api.User) string { return strings.Join(u.Spec.Roles, ",") }),
		col("DISABLED", func(u *api.User) string { return yesNo(u.Spec.Disabled) }),
		col("AGE", func(u *api.User) string { return age(u.Created, now) }),
	)
}

func tokenShape(now time.Time) shape {
	return shapeOf(
		col("NAME", func(t *api.Token) string { return t.Name }),
		col("USER", func(t *api.Token) string { return t.User }),
		col("TENANT", func(t *api.Token) string { return t.InTenant }),
		col("SCOPES", func(t *api.Token) string { return strings.Join(t.Scopes, ",") }),
		col("EXPIRES", func(t *api.Token) string { return t.Expires.Format(time.RFC3339) }),
		col("USED", func(t *api.Token) string { return age(t.LastUsed, now) }),
		wide("ID", func(t *api.Token) string { return t.UID }),
	)
}

func eventShape(now time.Time) shape {
	return shapeOf(
		col("LAST", func(e *api.Event) string { return age(&e.Last, now) }),
		col("TYPE", func(e *api.Event) string { return e.Type }),
		col("OBJECT", func(e *api.Event) string { return refName(e.Object) }),
		col("REASON", func(e *api.Event) string { return e.Reason }),
		col("COUNT", func(e *api.Event) string { return strconv.Itoa(e.Count) }),
		col("MESSAGE", func(e *api.Event) string { return e.Message }),
		wide("FIRST", func(e *api.Event) string { return age(&e.First, now) }),
		wide("TENANT", func(e *api.Event) string { return e.Tenant }),
	)
}

func operationShape(now time.Time) shape {
	return shapeOf(
		col("NAME", func(o *api.Operation) string { return o.Name }),
		col("OBJECT", func(o *api.Operation) string { return refName(o.Object) }),
		col("ACTION", func(o *api.Operation) string { return o.Action }),
		col("STATE", func(o *api.Operation) string { return o.State }),
		col("PROGRESS", func(o *api.Operation) string { return strconv.Itoa(o.Progress) + "%" }),
		col("AGE", func(o *api.Operation) string { return age(o.Created, now) }),
	)
}

func auditShape(_ time.Time) shape {
	return shapeOf(
		col("AT", func(r *api.AuditRecord) string { return r.At.Format(time.RFC3339) }),
		col("WHO", func(r *api.AuditRecord) string { return r.Who }),
		col("ACTION", func(r *api.AuditRecord) string { return r.Action }),
		col("OBJECT", func(r *api.AuditRecord) string { return refName(r.Object) }),
		col("RESULT", func(r *api.AuditRecord) string { return r.Result }),
		col("STATUS", func(r *api.AuditRecord) string { return strconv.Itoa(r.Status) }),
		wide("TENANT", func(r *api.AuditRecord) string { return r.Object.Tenant }),
		wide("REMOTE", func(r *api.AuditRecord) string { return r.Remote }),
		wide("REQUEST", func(r *api.AuditRecord) string { return r.RequestID }),
		wide("MESSAGE", func(r *api.AuditRecord) string { return r.Message }),
	)
}

// refName is a reference as commands take it.
func refName(r api.Ref) string { return strings.ToLower(string(r.Kind)) + "/" + r.Name }
