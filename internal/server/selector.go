package server

import (
	"fmt"
	"strings"

	"github.com/verbena-cloud/verbena/internal/fault"
)

// selector picks objects by their labels: all terms must hold.
type selector []term

// term is one condition on a label.
type term struct {
	key, value string
	exists     bool // only whether the label is there counts
	not        bool
}

// parseSelector reads "a=b,c!=d,e,!f": a is b, c is not d (or absent), e is there, f is not.
func parseSelector(text string) (selector, error) {
	if text == "" {
		return nil, nil
	}
	var s selector
	for part := range strings.SplitSeq(text, ",") {
		t, err := parseTerm(strings.TrimSpace(part))
		if err != nil {
			return nil, &fault.Error{Kind: fault.Invalid, Text: "labels: " + err.Error(), Fields: []fault.Field{{Path: "query.labels", Text: err.Error()}}}
		}
		s = append(s, t)
	}
	return s, nil
}

func parseTerm(part string) (term, error) {
	var t term
	if key, value, ok := strings.Cut(part, "!="); ok {
		t = term{key: key, value: value, not: true}
	} else if key, value, ok := strings.Cut(part, "="); ok {
		t = term{key: key, value: strings.TrimPrefix(value, "=")}
	} else if key, ok := strings.CutPrefix(part, "!"); ok {
		t = term{key: key, exists: true, not: true}
	} else {
		t = term{key: part, exists: true}
	}
	t.key, t.value = strings.TrimSpace(t.key), strings.TrimSpace(t.value)
	if t.key == "" || strings.ContainsAny(t.key+t.value, "!=<>() \t") {
		return term{}, fmt.Errorf("%q is no condition; write a=b, a!=b, a or !a, separated by commas", clip(part))
	}
	return t, nil
}

// match reports whether the labels fit.
func (s selector) match(labels map[string]string) bool {
	for _, t := range s {
		v, ok := labels[t.key]
		holds := ok
		if !t.exists {
			holds = ok && v == t.value
		}
		if holds == t.not {
			return false
		}
	}
	return true
}
