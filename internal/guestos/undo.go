package guestos

import (
	"encoding/json"
	"fmt"
	"slices"
)

// State is the journal: what every object that was ever set in this boot had at first.
type State struct {
	Boot    string  `json:"boot"`
	Entries []Entry `json:"entries"` // in the order in which they were first set
}

// Entry is the first value of an object.
type Entry struct {
	Kind   Kind   `json:"kind"`
	Object string `json:"object"`
	Before string `json:"before"`
}

// DecodeState reads a journal.
func DecodeState(text []byte) (State, error) {
	var s State
	if err := json.Unmarshal(text, &s); err != nil {
		return State{}, fmt.Errorf("the undo journal can't be read: %w; restart the guest, which undoes everything, and remove the file", err)
	}
	for _, e := range s.Entries {
		if !slices.Contains(Kinds(), e.Kind) || e.Object == "" {
			return State{}, fmt.Errorf("the undo journal has a setting of kind %.20q, which this version does not know; undo with the version that made it, or restart the guest", e.Kind)
		}
	}
	return s, nil
}

// Keep returns the journal with a setting's first value in it; a value that is there already stays. A journal
// of another boot starts anew, since that boot's settings are gone.
func (s State) Keep(boot string, x Setting) State {
	out := State{Boot: boot}
	if s.Boot == boot {
		out.Entries = slices.Clone(s.Entries)
	}
	if !slices.ContainsFunc(out.Entries, func(e Entry) bool { return e.Kind == x.Kind && e.Object == x.Object }) {
		out.Entries = append(out.Entries, Entry{Kind: x.Kind, Object: x.Object, Before: x.Before})
	}
	return out
}

// Drop returns the journal without an object.
func (s State) Drop(x Setting) State {
	s.Entries = slices.DeleteFunc(slices.Clone(s.Entries), func(e Entry) bool { return e.Kind == x.Kind && e.Object == x.Object })
	return s
}

// Undo lists the way back, last set first: interrupts before the queues that own them. done are the settings
// that need nothing: the object is gone, or has its first value.
func Undo(f Facts, s State) (todo, done []Setting) {
	if s.Boot != f.Boot {
		for _, e := range s.Entries {
			done = append(done, Setting{Kind: e.Kind, Object: e.Object, Before: e.Before, After: e.Before})
		}
		return nil, done
	}
	order := Kinds()
	entries := slices.Clone(s.Entries)
	slices.Reverse(entries)
	slices.SortStableFunc(entries, func(a, b Entry) int { return slices.Index(order, b.Kind) - slices.Index(order, a.Kind) })
	for _, e := range entries {
		now, ok := f.Value(e.Kind, e.Object)
		x := Setting{Kind: e.Kind, Object: e.Object, Before: now, After: e.Before, How: how(e.Kind, e.Object, e.Before)}
		if !ok || now == e.Before {
			done = append(done, x)
			continue
		}
		todo = append(todo, x)
	}
	return todo, done
}
