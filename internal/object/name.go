package object

import (
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
)

// Limits of names and labels. A name must fit a DNS label (RFC 1123), because guests get it as host name.
const (
	MaxName   = 63
	MaxLabels = 64
	maxShown  = 40
)

// Quote makes foreign text safe for a message: short, quoted, control characters escaped.
func Quote(s string) string {
	if len(s) <= maxShown {
		return strconv.Quote(s)
	}
	cut := maxShown
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return strconv.Quote(s[:cut]) + "…"
}

// CheckName refuses what is no name of an object: 1 to 63 lower-case letters, digits and '-', starting
// with a letter and not ending with '-'.
func CheckName(s string) error {
	const want = "use 1 to 63 lower-case letters, digits and '-', starting with a letter and not ending with '-'"
	switch {
	case s == "":
		return fault.New(fault.Invalid, "a name is needed: %s", want)
	case len(s) > MaxName:
		return fault.New(fault.Invalid, "%s is no name: it has %d characters, at most %d may be; %s", Quote(s), utf8.RuneCountInString(s), MaxName, want)
	}
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z'
		if !letter && (i == 0 || !digit(c) && (c != '-' || i == len(s)-1)) {
			return fault.New(fault.Invalid, "%s is no name: %s", Quote(s), want)
		}
	}
	return nil
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

// CheckLabels notes every label at path that a selector could not name.
func CheckLabels(f *fault.Faults, path string, labels map[string]string) {
	if len(labels) > MaxLabels {
		f.Add(path, "%d labels are too many; at most %d may be", len(labels), MaxLabels)
		return
	}
	var keys []string
	for k := range labels {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		if !labelText(k) || k == "" {
			f.Add(path, "label key %s: use 1 to 63 letters, digits, '-', '_', '.' and '/', starting and ending with a letter or digit", Quote(k))
		} else if v := labels[k]; !labelText(v) {
			f.Add(path+"."+k, "label value %s: use at most 63 letters, digits, '-', '_', '.' and '/', starting and ending with a letter or digit", Quote(v))
		}
	}
}

func labelText(s string) bool {
	if len(s) > MaxName {
		return false
	}
	for i := range len(s) {
		c := s[i]
		alnum := digit(c) || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		mark := c == '-' || c == '_' || c == '.' || c == '/'
		if !alnum && (!mark || i == 0 || i == len(s)-1) {
			return false
		}
	}
	return true
}

// CheckMeta notes what is wrong with the name, the tenant and the labels of an object of kind k.
func CheckMeta(f *fault.Faults, k api.Kind, m *api.Meta) {
	f.Check("name", CheckName(m.Name))
	switch {
	case Tenanted(k):
		f.Check("tenant", CheckName(m.Tenant))
	case m.Tenant != "":
		f.Add("tenant", "%s objects belong to the platform, not to a tenant; leave it out", k)
	}
	CheckLabels(f, "labels", m.Labels)
}

// Title names an object in a message, clipped if the name is not one.
func Title(k api.Kind, m *api.Meta) string {
	name := m.Name
	if CheckName(name) != nil {
		name = Quote(name)
	}
	return fmt.Sprintf("%s %s", k, name)
}

// Born gives a new object its identity; whatever the input said there is dropped.
func Born(m *api.Meta, k api.Kind, by Who) {
	now := by.Now
	m.Kind, m.UID, m.Created, m.Deleting, m.Revision = k, by.UID, &now, nil, 0
	if !Tenanted(k) {
		m.Tenant = ""
	}
}

// Carry gives the new state of an object the identity of the old one: kind, name, tenant and uid never change.
func Carry(m, old *api.Meta) {
	labels := m.Labels
	*m = *old
	m.Labels, m.Revision = labels, 0
}

// Vacant returns a Conflict fault if an object of that kind, tenant and name exists already.
func Vacant(tx store.Tx, k api.Kind, m *api.Meta) error {
	if tx.Get(Key(k, m.Tenant, m.Name)) != nil {
		return fault.New(fault.Conflict, "%s exists already; update it or choose another name", Title(k, m))
	}
	return nil
}

// SetCondition returns the list with c in it, in the place of the condition of its type. Since stays as
// it was while the status stays; the list that was given is not changed.
func SetCondition(list []api.Condition, c api.Condition) []api.Condition {
	out := slices.Clone(list)
	for i, old := range out {
		if old.Type != c.Type {
			continue
		}
		if old.Status == c.Status {
			c.Since = old.Since
		}
		out[i] = c
		return out
	}
	return append(out, c)
}

// Condition returns the condition of a type, or a zero one.
func Condition(list []api.Condition, typ string) api.Condition {
	for _, c := range list {
		if c.Type == typ {
			return c
		}
	}
	return api.Condition{}
}
