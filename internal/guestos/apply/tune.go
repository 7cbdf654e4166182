package apply

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/guestos"
)

// Tune sets what differs and tells each step. A step that fails costs no other and is told as failed; its
// object's first value stays in the journal. An error means that not all could be tried. Before each kind the guest is looked at anew: a module brings devices, queues bring
// interrupts.
func (m *Machine) Tune(ctx context.Context, c guestos.Config, j Journal, say func(guestos.Step)) error {
	state, err := load(j)
	if err != nil {
		return err
	}
	for _, kind := range guestos.Kinds() {
		f := m.Facts(ctx)
		if f.Boot == "" {
			return fault.New(fault.Unready, "/proc/sys/kernel/random/boot_id can't be read: without it nobody could tell later whether there is something to undo, so nothing is set")
		}
		for _, s := range guestos.Plan(f, c) {
			if s.Kind != kind {
				continue
			}
			next := state.Keep(f.Boot, s)
			if err := save(j, next); err != nil {
				return fmt.Errorf("keep the first value of %s: %w; it was not set", s.Object, err)
			}
			state = next
			say(m.set(ctx, s))
		}
	}
	return nil
}

// Undo brings every object in the journal back to its first value and tells each step. What can't be brought
// back is told as failed and stays in the journal.
func (m *Machine) Undo(ctx context.Context, j Journal, say func(guestos.Step)) error {
	state, err := load(j)
	if err != nil || len(state.Entries) == 0 {
		return err
	}
	f := m.Facts(ctx)
	if f.Boot == "" {
		return fault.New(fault.Unready, "/proc/sys/kernel/random/boot_id can't be read, so nobody can tell whether the journal is of this boot; try again, or restart the guest, which undoes everything")
	}
	todo, done := guestos.Undo(f, state)
	for _, s := range todo {
		step := m.set(ctx, s)
		say(step)
		if step.Result == guestos.Failed {
			continue
		}
		if err := save(j, state.Drop(s)); err != nil {
			return err
		}
		state = state.Drop(s)
	}
	for _, s := range done {
		state = state.Drop(s)
	}
	return save(j, state)
}

// set writes a value and reads it back, which alone says whether it is there.
func (m *Machine) set(ctx context.Context, s guestos.Setting) guestos.Step {
	werr := m.write(ctx, s)
	now, err := m.value(ctx, s.Kind, s.Object)
	step := guestos.Step{Setting: s, Result: guestos.Failed, Now: now}
	switch {
	case err == nil && now == s.After:
		step.Result = guestos.Done
	case werr != nil:
		step.Error = werr.Error()
	case err != nil:
		step.Error = "it was done, but reading it back failed: " + err.Error()
	default:
		step.Error = "the kernel took it, but says " + now + "; something else sets it too, such as irqbalance"
	}
	return step
}

func (m *Machine) write(ctx context.Context, s guestos.Setting) error {
	switch s.Kind {
	case guestos.Module:
		if m.Modprobe == nil {
			return errNotHere
		}
		return m.Modprobe(ctx, strings.Fields(s.How)[1:]...)
	case guestos.Queues:
		n, err := strconv.Atoi(s.After)
		if err != nil {
			return err
		}
		if m.Links == nil {
			return errNotHere
		}
		return m.Links.SetChannels(ctx, s.Object, n)
	case guestos.Affinity:
		return m.Proc.Write(ctx, guestos.IRQPath(s.Object), s.After)
	default:
		return m.Proc.Write(ctx, guestos.SysctlPath(s.Object), s.After)
	}
}

var errNotHere = errors.New("this is another machine's file system, which can be read only")

// value reads one object's value.
func (m *Machine) value(ctx context.Context, k guestos.Kind, object string) (string, error) {
	switch k {
	case guestos.Module:
		l := &look{Machine: m, ctx: ctx}
		l.facts.Kernel = l.proc("sys/kernel/osrelease")
		l.facts.Modules = l.modules()
		v, _ := l.facts.Value(k, object)
		return v, nil
	case guestos.Queues:
		if m.Links == nil {
			return "", errNotHere
		}
		ch, err := m.Links.Channels(ctx, object)
		return strconv.Itoa(ch.Combined), err
	case guestos.Affinity:
		text, err := m.Proc.Read(ctx, guestos.IRQPath(object))
		if err != nil {
			return "", err
		}
		list, err := guestos.ParseCPUs(text)
		return guestos.FormatCPUs(list), err
	default:
		return m.Proc.Read(ctx, guestos.SysctlPath(object))
	}
}

// load reads the journal; a missing one is empty.
func load(j Journal) (guestos.State, error) {
	text, err := j.Load()
	if errors.Is(err, fs.ErrNotExist) {
		return guestos.State{}, nil
	}
	if err != nil {
		return guestos.State{}, fmt.Errorf("read the undo journal: %w", err)
	}
	return guestos.DecodeState(text)
}
