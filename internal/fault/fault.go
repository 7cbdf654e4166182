// Package fault has the kinds of error that Verbena tells people and programs apart by.
//
// An error carries three things: a kind for the program, a text for the person who asked, and a
// cause for the log. The kind and the text go over the wire, the cause never does. Kinds are API:
// they are added, never renamed (docs/errors.md says what each means and what to do next).
package fault

import (
	"errors"
	"fmt"
)

// Kind classifies a fault. Its string is the `code` of an API problem.
type Kind string

// The kinds. HTTP statuses and exit codes are derived from them in one table each.
const (
	Internal        Kind = "internal"        // a bug or an unclassified failure; its text never leaves the server
	Invalid         Kind = "invalid"         // the input is wrong; nothing was changed
	Unauthenticated Kind = "unauthenticated" // no or bad credentials
	Forbidden       Kind = "forbidden"       // known, but may not
	NotFound        Kind = "not-found"       // no such object, or one that the caller may not know of
	Conflict        Kind = "conflict"        // exists already, is in use, or changed meanwhile
	Precondition    Kind = "precondition"    // If-Match names another revision
	Quota           Kind = "quota"           // the tenant may not hold that much
	NoCapacity      Kind = "no-capacity"     // no host fits; the explanation says why
	Unready         Kind = "unready"         // the thing exists but can't do this now; try again after the cause is gone
	Gone            Kind = "gone"            // a watch position that was compacted away, or a consumer too slow: list again
	TooLarge        Kind = "too-large"       // the body or value is over its limit
	RateLimited     Kind = "rate-limited"    // too many requests; Retry-After says when
	Unavailable     Kind = "unavailable"     // the store or a daemon can't be reached
	Deadline        Kind = "deadline"        // it did not end in time; it may still happen
)

// Field is one wrong place of an input: where (JSON path such as "spec.memory") and what is wrong.
type Field struct {
	Path string `json:"path"`
	Text string `json:"text"`
}

// Error is a classified error. Text is safe to show to whoever asked; Cause is for the log only.
// Fields name every wrong place of an Invalid input. Detail is machine-readable evidence (a
// placement explanation, a quota sheet) that travels with the problem document; it may be nil.
type Error struct {
	Kind   Kind
	Text   string
	Cause  error
	Fields []Field
	Detail any
}

// Error returns the text and, for the log, the cause behind it.
func (e *Error) Error() string {
	if e.Cause == nil {
		return e.Text
	}
	return e.Text + ": " + e.Cause.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// New returns a fault of kind k with a text for people.
func New(k Kind, format string, args ...any) error {
	return &Error{Kind: k, Text: fmt.Sprintf(format, args...)}
}

// Wrap returns a fault of kind k whose cause goes to the log and whose text goes to the caller.
func Wrap(cause error, k Kind, format string, args ...any) error {
	return &Error{Kind: k, Text: fmt.Sprintf(format, args...), Cause: cause}
}

// KindOf returns the kind of the outermost fault in err's chain. Anything unclassified is Internal.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Internal
}

// Is reports whether err is a fault of kind k.
func Is(err error, k Kind) bool { return err != nil && KindOf(err) == k }

// Text returns what may be shown to the caller: the text of the outermost fault, or a neutral
// sentence for an unclassified error, whose own words might hold secrets.
func Text(err error) string {
	if e, ok := errors.AsType[*Error](err); ok && e.Kind != Internal {
		return e.Text
	}
	return "internal error; the server's log has the cause under this request's id"
}

// Faults collects the wrong places of one input, so that a single answer names them all.
type Faults struct{ fields []Field }

// Add notes that the value at path is wrong.
func (f *Faults) Add(path, format string, args ...any) {
	f.fields = append(f.fields, Field{Path: path, Text: fmt.Sprintf(format, args...)})
}

// Check notes err, if any, at path, with the text that err has for people.
func (f *Faults) Check(path string, err error) {
	if err == nil {
		return
	}
	if e, ok := errors.AsType[*Error](err); ok {
		f.Add(path, "%s", e.Text)
		return
	}
	f.Add(path, "%s", err.Error())
}

// Fields returns what was noted so far.
func (f *Faults) Fields() []Field { return f.fields }

// Err returns an Invalid fault about object with all noted fields, or nil if there are none.
func (f *Faults) Err(object string) error {
	switch len(f.fields) {
	case 0:
		return nil
	case 1:
		return &Error{Kind: Invalid, Text: fmt.Sprintf("%s: %s: %s", object, f.fields[0].Path, f.fields[0].Text), Fields: f.fields}
	}
	return &Error{Kind: Invalid, Text: fmt.Sprintf("%s has %d faults, the first at %s: %s", object, len(f.fields), f.fields[0].Path, f.fields[0].Text), Fields: f.fields}
}
