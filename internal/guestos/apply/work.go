package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/guestos"
)

// Options are those of Work.
type Options struct {
	Verb   guestos.Verb
	Root   string // of the guest's file system
	State  string // directory of the undo journal
	Config guestos.Config
	Say    func(guestos.Step) // hears each step when it was taken
}

// StateDir is where the undo journal lies by default.
const StateDir = "/var/lib/verbena-guest"

// workTime bounds a run: a driver may take long for its queues.
const workTime = 5 * time.Minute

// Work does what a program is asked for with the guest it runs in. A step that fails is in the outcome; an
// error means that the outcome is not complete.
func Work(ctx context.Context, o Options) (out guestos.Outcome, err error) {
	if err := o.Config.Validate(); err != nil {
		return out, err
	}
	m, done, err := Open(o.Root)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, done()) }()
	if o.Verb != guestos.Show && o.Root != "/" {
		return out, fault.New(fault.Invalid, "%s sets the machine that it runs on; of another root it can only plan", o.Verb)
	}
	if o.Verb != guestos.Show && !m.AsRoot {
		return out, fault.New(fault.Forbidden, "only root may set interrupts, queues and modules; run it with sudo, or see what it would do: verbena guest plan")
	}
	ctx, cancel := context.WithTimeout(ctx, workTime)
	defer cancel()
	out, err = m.work(ctx, o)
	f := m.Facts(ctx)
	out.Kernel, out.Findings = f.Kernel, guestos.Check(f, o.Config)
	return out, err
}

func (m *Machine) work(ctx context.Context, o Options) (out guestos.Outcome, err error) {
	out.Steps = []guestos.Step{}
	if o.Verb == guestos.Show {
		for _, s := range guestos.Plan(m.Facts(ctx), o.Config) {
			out.Steps = append(out.Steps, guestos.Step{Setting: s, Result: guestos.Planned})
		}
		return out, nil
	}
	j, err := OpenFile(o.State)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	say := func(s guestos.Step) {
		out.Steps = append(out.Steps, s)
		if o.Say != nil {
			o.Say(s)
		}
	}
	switch o.Verb {
	case guestos.Tune:
		return out, m.Tune(ctx, o.Config, j, say)
	case guestos.Back:
		return out, m.Undo(ctx, j, say)
	default:
		return out, fmt.Errorf("there is no verb %q", o.Verb)
	}
}
