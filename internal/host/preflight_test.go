package host_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fabric"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/host"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/preflight"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/wire"
)

func (b bench) desired() *wire.Desired {
	b.t.Helper()
	var d *wire.Desired
	if err := b.db.View(b.t.Context(), func(tx store.Tx) (err error) {
		d, err = host.Desired(tx, "h")
		return err
	}); err != nil {
		b.t.Fatal(err)
	}
	return d
}

// setFabric changes fabric a.
func (b bench) setFabric(edit func(*api.FabricSpec)) error {
	return b.do(func(tx store.Tx) error {
		old, err := object.Load[api.Fabric](tx, api.KindFabric, "", "a")
		if err != nil {
			return err
		}
		next := *old
		edit(&next.Spec)
		return fabric.Update(tx, old, &next, by())
	})
}

func (b bench) checked(p *api.Preflight, at time.Time) (changed bool, err error) {
	err = b.do(func(tx store.Tx) (err error) {
		changed, err = host.Checked(tx, "h", p, at)
		return err
	})
	return changed, err
}

// TestExpectationsComeFromFabrics: an agent hears what the fabrics of its PFs ask, and a digest that changes with it.
func TestExpectationsComeFromFabrics(t *testing.T) {
	b := open(t)
	b.create(api.HostSpec{PFs: []api.HostPF{{Match: "ens1", Fabric: "a", VFs: 4}, {Match: "ens2", Fabric: "a", VFs: 2}}})
	first := b.desired().Preflight
	if diff := cmp.Diff([]wire.Expect{{Fabric: "a", Priority: 3, DSCP: 26, MTU: 4096}}, first.Fabrics); diff != "" {
		t.Error(diff)
	}
	pair := api.FirmwarePair{Driver: "mlx5_core", MinFirmware: "22.31.1014", Why: "tried"}
	if err := b.setFabric(func(s *api.FabricSpec) { s.MTU, s.Firmware = 1500, []api.FirmwarePair{pair} }); err != nil {
		t.Fatal(err)
	}
	second := b.desired().Preflight
	if e := second.Fabrics[0]; e.MTU != 1024 || len(e.Firmware) != 1 || second.Digest == first.Digest {
		t.Errorf("%+v", second)
	}
	b.must(func(tx store.Tx) error {
		old, err := object.Load[api.Host](tx, api.KindHost, "", "h")
		if err != nil {
			return err
		}
		next := *old
		next.Spec.PFs = next.Spec.PFs[:1]
		return host.Update(tx, old, &next, by())
	})
	if third := b.desired().Preflight; third.Digest == second.Digest || third.Digest == "" {
		t.Errorf("a port less is not told: %+v", third)
	}
	for name, bad := range map[string][]api.FirmwarePair{
		"no driver": {{MinFirmware: "1"}}, "long": {{Driver: strings.Repeat("x", 129)}}, "many bad": {{Driver: "x", Bad: make([]string, 33)}}, "many": make([]api.FirmwarePair, 65),
	} {
		if err := b.setFabric(func(s *api.FabricSpec) { s.Firmware = bad }); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPreflightIsStoredWhenItDiffers: the same findings again are no write, and those by older expectations are marked.
func TestPreflightIsStoredWhenItDiffers(t *testing.T) {
	b := open(t)
	b.create(api.HostSpec{PFs: []api.HostPF{{Match: "ens1", Fabric: "a", VFs: 4}}})
	if changed, err := b.checked(nil, now()); changed || err != nil {
		t.Errorf("of nothing: %t, %v", changed, err)
	}
	report := func() *api.Preflight {
		return &api.Preflight{Config: b.desired().Preflight.Digest, Counts: api.Findings{OK: 9, Failed: 1}, Checked: new(now()), Outdated: true,
			Findings: []api.Finding{{Check: "nic.pfc", Object: "ens1", Level: "failed", Seen: strings.Repeat("x", 400), Fix: []string{"do it"}}}}
	}
	if changed, err := b.checked(report(), now()); !changed || err != nil {
		t.Fatalf("%t, %v", changed, err)
	}
	if changed, err := b.checked(report(), now().Add(time.Hour)); changed || err != nil {
		t.Errorf("the same again: %t, %v", changed, err)
	}
	got := b.get().Status.Preflight
	if got == nil || !got.Since.Equal(now()) || got.Checked != nil || got.Outdated || len(got.Findings[0].Seen) > preflight.MaxSeen {
		t.Errorf("%+v", got)
	}
	b.observe(&api.Inventory{})
	if b.get().Status.Preflight == nil {
		t.Error("an inventory takes the findings away")
	}
	if err := b.setFabric(func(s *api.FabricSpec) { s.DSCP = new(30) }); err != nil {
		t.Fatal(err)
	}
	if !b.get().Status.Preflight.Outdated {
		t.Error("the fabric asks something else, and the findings are not marked")
	}
	if changed, err := b.checked(report(), now().Add(2*time.Hour)); !changed || err != nil {
		t.Errorf("by other expectations: %t, %v", changed, err)
	}
	if got := b.get().Status.Preflight; got.Outdated || !got.Since.Equal(now().Add(2*time.Hour)) {
		t.Errorf("%+v", got)
	}
}

// TestAbsurdPreflightsAreRefused: a host that was taken over can't fill the store.
func TestAbsurdPreflightsAreRefused(t *testing.T) {
	b := open(t)
	b.create(api.HostSpec{})
	one := func(edit func(*api.Finding)) *api.Preflight {
		f := api.Finding{Check: "a.b", Level: "info"}
		edit(&f)
		return &api.Preflight{Findings: []api.Finding{f}}
	}
	for name, p := range map[string]*api.Preflight{
		"many": {Findings: make([]api.Finding, preflight.MaxFindings+1)}, "digest": {Config: strings.Repeat("x", 65)},
		"ok":    one(func(f *api.Finding) { f.Level = "ok" }),
		"check": one(func(f *api.Finding) { f.Check = strings.Repeat("x", 65) }), "steps": one(func(f *api.Finding) { f.Fix = make([]string, 5) }),
	} {
		if changed, err := b.checked(p, now()); changed || !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %t, %v", name, changed, err)
		}
	}
}
