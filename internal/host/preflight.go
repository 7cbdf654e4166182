package host

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fabric"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/preflight"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// expected is what preflight judges a host by: what the fabrics of its PFs ask.
func expected(tx store.Tx, pfs []api.HostPF) (*wire.Preflight, error) {
	out := &wire.Preflight{}
	for _, p := range pfs {
		if slices.ContainsFunc(out.Fabrics, func(e wire.Expect) bool { return e.Fabric == p.Fabric }) {
			continue
		}
		o, err := object.Peek[api.Fabric](tx, api.KindFabric, "", p.Fabric)
		if fault.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		r, err := fabric.Resolve(o)
		if err != nil {
			return nil, err
		}
		out.Fabrics = append(out.Fabrics, wire.Expect{Fabric: p.Fabric, Priority: r.Priority, DSCP: r.DSCP, MTU: preflight.RoCEMTU(r.MTU), Firmware: o.Spec.Firmware})
	}
	slices.SortFunc(out.Fabrics, func(a, b wire.Expect) int { return strings.Compare(a.Fabric, b.Fabric) })
	serves := make([][2]string, 0, len(pfs))
	for _, p := range pfs {
		serves = append(serves, [2]string{p.Match, p.Fabric})
	}
	slices.SortFunc(serves, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	data, err := json.Marshal([]any{serves, out.Fabrics})
	if err != nil {
		return nil, fmt.Errorf("encode what is expected of a host: %w", err)
	}
	sum := sha256.Sum256(data)
	out.Digest = hex.EncodeToString(sum[:8])
	return out, nil
}

// Checked takes what the host's own agent found. changed tells whether there was anything to store: a look that finds
// the same is none.
func Checked(tx store.Tx, name string, p *api.Preflight, now time.Time) (changed bool, err error) {
	if p == nil {
		return false, nil
	}
	if err := bounded(name, p); err != nil {
		return false, err
	}
	old, err := object.Peek[api.Host](tx, api.KindHost, "", name)
	if err != nil {
		return false, err
	}
	next := *p
	next.Since, next.Checked, next.Outdated = now, nil, false
	if was := old.Status.Preflight; was != nil {
		next.Since = was.Since
		if reflect.DeepEqual(&next, was) {
			return false, nil
		}
		next.Since = now
	}
	o := *old
	o.Status.Preflight = &next
	return true, object.Save(tx, &o)
}

// maxDigest bounds a digest and the name of a check.
const maxDigest = 64

// bounded refuses what no agent of ours sends, and shortens texts.
func bounded(name string, p *api.Preflight) error {
	if len(p.Findings) > preflight.MaxFindings || len(p.Config) > maxDigest {
		return fault.New(fault.Invalid, "preflight of host %s: %d findings, at most %d are taken", name, len(p.Findings), preflight.MaxFindings)
	}
	for i := range p.Findings {
		f := &p.Findings[i]
		switch preflight.Level(f.Level) {
		case preflight.Info, preflight.Unknown, preflight.Warning, preflight.Failed:
		default:
			return fault.New(fault.Invalid, "preflight of host %s: %s is no level of a finding", name, object.Quote(f.Level))
		}
		if len(f.Check) > maxDigest || len(f.Fix) > preflight.MaxSteps {
			return fault.New(fault.Invalid, "preflight of host %s: check %s is longer than any of ours", name, object.Quote(f.Check))
		}
		for _, text := range []*string{&f.Object, &f.Seen, &f.Expected, &f.Doc} {
			*text = preflight.Clip(*text)
		}
		for k := range f.Fix {
			f.Fix[k] = preflight.Clip(f.Fix[k])
		}
	}
	return nil
}

// Outdated marks findings that were judged by something else than is expected now.
func Outdated(tx store.Tx, o *api.Host) error {
	if o.Status.Preflight == nil {
		return nil
	}
	now, err := expected(tx, o.Spec.PFs)
	if err != nil || now.Digest == o.Status.Preflight.Config {
		return err
	}
	p := *o.Status.Preflight // what is stored is shared
	p.Outdated = true
	o.Status.Preflight = &p
	return nil
}
