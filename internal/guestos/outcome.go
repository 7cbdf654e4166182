package guestos

import "github.com/verbena-cloud/verbena/internal/preflight"

// Verb is what is done with a plan.
type Verb string

// The verbs.
const (
	Show Verb = "plan" // changes nothing
	Tune Verb = "tune"
	Back Verb = "undo"
)

// Results of a step.
const (
	Planned = "planned"
	Done    = "done"
	Failed  = "failed"
)

// Step is a setting and what became of it.
type Step struct {
	Setting

	Result string `json:"result"`
	Now    string `json:"now,omitempty"` // as read back
	Error  string `json:"error,omitempty"`
}

// Outcome is what a verb did, and what it could not mend.
type Outcome struct {
	Kernel   string              `json:"kernel"`
	Steps    []Step              `json:"steps"`
	Findings []preflight.Finding `json:"findings"`
}

// Failed reports whether a step failed.
func (o Outcome) Failed() bool { return o.Count(Failed) > 0 }

// Count is the number of steps with a result.
func (o Outcome) Count(result string) int {
	n := 0
	for _, s := range o.Steps {
		if s.Result == result {
			n++
		}
	}
	return n
}
