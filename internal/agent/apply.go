package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/sriov"
)

// resetError marks the error of a reset: the function may carry its last owner's state.
type resetError struct{ error }

func (e resetError) Unwrap() error { return e.error }

// apply carries steps out in order and stops at the first that fails, but for a failed reset: the
// attributes after it are still taken from a VF that is going into quarantine, so that its address is
// not on two VFs.
func (a *Agent) apply(ctx context.Context, steps []sriov.Step) error {
	var failed error
	for _, s := range steps {
		a.log.Debug("apply", "step", s.String())
		err := a.do(ctx, s)
		switch {
		case err == nil:
			continue
		case errors.As(err, new(resetError)):
			failed = err
		default:
			return errors.Join(failed, fmt.Errorf("%s: %w", s, err))
		}
	}
	return failed
}

func (a *Agent) do(ctx context.Context, s sriov.Step) error {
	a.writes.Add(1)
	switch s := s.(type) {
	case sriov.Write:
		ctx, cancel := context.WithTimeout(ctx, a.cfg.WriteDeadline)
		defer cancel()
		return a.d.Tree.Write(ctx, s.Path, s.Value)
	case sriov.Set:
		return a.d.Links.SetVF(ctx, s.Link, s.VF, s.Attr)
	case sriov.Up:
		return a.d.Links.SetUp(ctx, s.Link)
	case sriov.Load:
		return a.d.Modprobe(ctx, s.Module)
	case sriov.Await:
		return a.await(ctx, s)
	case sriov.Reset:
		ctx, cancel := context.WithTimeout(ctx, a.cfg.WriteDeadline)
		defer cancel()
		if err := a.d.Tree.Write(ctx, s.Path, "1"); err != nil {
			return resetError{fmt.Errorf("reset: %w", err)}
		}
		return nil
	}
	return fault.New(fault.Internal, "no way to do %s", s)
}

// await looks until all VFs that the kernel counts are there with physfn and IOMMU group, since those
// links come late. A driver may make fewer than asked and call it success, so the count read back is
// what is waited for, and what is reported if it falls short.
func (a *Agent) await(ctx context.Context, s sriov.Await) error {
	deadline := time.NewTimer(a.cfg.AppearDeadline)
	defer deadline.Stop()
	bdf := s.PF[len("bus/pci/devices/"):]
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		f := a.kernel.fn(ctx, bdf, &problems{})
		if f.err != nil {
			return f.err
		}
		ar := around{fresh: true}
		for i := range f.VFs {
			a.kernel.vf(ctx, &f.VFs[i], ar, &problems{})
		}
		missing := sriov.Missing(f.PF, f.Count)
		if missing == "" {
			return short(f, s.Count)
		}
		tick := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			tick.Stop()
			return ctx.Err()
		case <-deadline.C:
			tick.Stop()
			return fault.New(fault.Deadline, "PF %s says it has %d VFs, but after %s VF %s still can't be seen", f.Key, f.Count, a.cfg.AppearDeadline, missing)
		case <-tick.C:
		}
	}
}

func short(f function, want int) error {
	if f.Count < want {
		return fault.New(fault.Unready, "PF %s: the driver made only %d of %d VFs", f.Key, f.Count, want)
	}
	return nil
}
