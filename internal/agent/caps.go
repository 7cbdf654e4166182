package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/rtnl"
	"github.com/verbena-cloud/verbena/internal/sriov"
)

// capability is the result of a probe and what it holds for: another kernel or driver is probed again.
type capability struct {
	Kernel string     `json:"kernel"`
	Driver string     `json:"driver"`
	FW     string     `json:"firmware,omitempty"`
	LinkUp bool       `json:"linkUp"` // some drivers refuse rates while the link is down
	Caps   api.PFCaps `json:"caps"`
}

const capsFile = "capabilities"

func (a *Agent) loadCaps() error {
	data, err := a.d.Files.Read(capsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the capabilities: %w", err)
	}
	if err := unseal(data, &a.caps); err != nil {
		a.caps = map[string]capability{} // they are found out again
	}
	return nil
}

// capabilities returns what is known of the PF's driver.
func (a *Agent) capabilities(f *function) (api.PFCaps, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, ok := a.caps[f.Key]
	if !ok || c.Kernel != a.release || c.Driver != f.Driver || c.FW != f.Firmware {
		return api.PFCaps{}, false
	}
	if !c.LinkUp && f.LinkUp && !c.Caps.MaxRate { // the link came up: the refusal of rates may have been its absence
		return c.Caps, false
	}
	return c.Caps, true
}

// probe finds out, on a VF that nobody holds, which attributes the PF's driver really sets. The caller
// has the PF's gate, so that nobody takes the VF meanwhile; it is parked again at the end, and a crash in
// between leaves one that does not look parked.
func (a *Agent) probe(ctx context.Context, f *function, m *pfMemo) error {
	if _, known := a.capabilities(f); known {
		return nil
	}
	now, err := a.pf(ctx, f.Key)
	if err != nil || now == nil {
		return err
	}
	free := a.freeVF(now)
	if free == nil {
		return nil // all are held: what they need was proven by their read-back
	}
	a.writes.Add(1)
	caps, err := a.tryAll(ctx, now, *free)
	if err != nil {
		return fmt.Errorf("find out what the driver of PF %s can do: %w", f.Key, err)
	}
	if err := a.saveCaps(now, caps); err != nil {
		return err
	}
	after, err := a.vf(ctx, now, free.Key)
	if err != nil || after == nil {
		return err
	}
	if err := a.apply(ctx, sriov.Reapply(now.PF, *after, sriov.Parking(free.Key))); err != nil {
		return a.parkOne(ctx, now, *after, m)
	}
	return nil
}

// freeVF picks the last parked VF, since the server gives low indexes out first; or, if none can be
// parked, one that would be: what the driver lacks may be the very reason.
func (a *Agent) freeVF(f *function) *sriov.VF {
	var free *sriov.VF
	for i := range f.VFs {
		v := &f.VFs[i]
		st, _ := a.state(*v)
		if st == api.VFParked {
			free = v
		}
		if free == nil && a.j.claim(v.Key) == nil && sriov.Foreign(*v) == "" && v.Linked && v.Attr != nil {
			free = v
		}
	}
	return free
}

func (a *Agent) tryAll(ctx context.Context, f *function, v sriov.VF) (api.PFCaps, error) {
	var caps api.PFCaps
	for _, t := range sriov.Trials(v.Key) {
		ok, err := a.try(ctx, f.Netdev, v.Key.Index, t)
		if err != nil {
			return caps, fmt.Errorf("%s: %w", t.Attr, err)
		}
		t.Note(&caps, ok)
		if _, link := t.Attr.(rtnl.State); link && ok { // a VF left with its link off would be dead to its VM
			if err := a.d.Links.SetVF(ctx, f.Netdev, v.Key.Index, rtnl.State(rtnl.LinkAuto)); err != nil {
				return caps, err
			}
		}
	}
	return caps, nil
}

func (a *Agent) try(ctx context.Context, link string, index int, t sriov.Trial) (bool, error) {
	if err := a.d.Links.SetVF(ctx, link, index, t.Attr); err != nil {
		if refused(err) {
			return false, nil
		}
		return false, err
	}
	list, err := a.d.Links.VFs(ctx, link)
	if err != nil {
		return false, err
	}
	for _, v := range list {
		if v.Index == index {
			return t.Reads(v), nil
		}
	}
	return false, fault.New(fault.Unready, "%s shows no VF %d any more", link, index)
}

// counted notes which drivers count the frames of VFs. Only a count over 0 shows it, so VFs that guests have
// are looked at until one does.
func (a *Agent) counted(ctx context.Context, snap *snapshot) {
	if a.d.Stats == nil {
		return
	}
	for i := range snap.functions {
		f := &snap.functions[i]
		caps, known := a.capabilities(f)
		if !known || caps.VFStats || !slices.ContainsFunc(f.VFs, func(v sriov.VF) bool { return v.Domain.Running }) {
			continue
		}
		list, err := a.d.Stats.VFStats(ctx, f.Netdev)
		if err != nil || !slices.ContainsFunc(list, func(s rtnl.VFStats) bool { return s.RxPackets > 0 || s.TxPackets > 0 }) {
			continue // it is looked at again
		}
		caps.VFStats = true
		if err := a.saveCaps(f, caps); err != nil {
			a.log.Warn("capabilities", "pf", f.Key, "err", err)
		}
	}
}

func (a *Agent) saveCaps(f *function, caps api.PFCaps) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	next := maps.Clone(a.caps)
	next[f.Key] = capability{Kernel: a.release, Driver: f.Driver, FW: f.Firmware, LinkUp: f.LinkUp, Caps: caps}
	data, err := seal(next)
	if err != nil {
		return err
	}
	if err := a.d.Files.Write(capsFile, data); err != nil {
		return fmt.Errorf("remember the capabilities of PF %s: %w", f.Key, err)
	}
	a.caps = next
	return nil
}
