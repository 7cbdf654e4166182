package object_test

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
)

func TestCheckName(t *testing.T) {
	for _, ok := range []string{"a", "train-0", "a1", strings.Repeat("a", 63)} {
		if err := object.CheckName(ok); err != nil {
			t.Errorf("%q: %v", ok, err)
		}
	}
	for _, bad := range []string{"", "-a", "a-", "0a", "A", "a_b", "a.b", "a/b", "ä", "a b", "a\x00", "a\n", "\x1b[31m", "_", "..", strings.Repeat("a", 64), strings.Repeat("x", 300), "\xff\xfe"} {
		err := object.CheckName(bad)
		if !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: err = %v", bad, err)
			continue
		}
		if text := err.Error(); len(text) > 300 || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' }) {
			t.Errorf("%q: the text repeats too much of it: %q", bad, text)
		}
	}
}

func FuzzCheckName(f *testing.F) {
	for _, s := range []string{"train-0", "", "a-", strings.Repeat("é", 200), "a\x00b", "\xc3\x28"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		err := object.CheckName(s)
		key := object.Key(api.KindVM, "t", s)
		if err == nil {
			if _, tenant, name, ok := object.Split(key); !ok || tenant != "t" || name != s || len(s) > object.MaxName {
				t.Errorf("%q does not survive as a key", s)
			}
			return
		}
		if text := err.Error(); !utf8.ValidString(text) || len(text) > 500 {
			t.Errorf("text is %q", text)
		}
	})
}

func TestLabels(t *testing.T) {
	var f fault.Faults
	object.CheckLabels(&f, "labels", map[string]string{"ok": "", "a.b/c-d_e": "V1", "": "x", "-a": "x", "b": "c d", "c": strings.Repeat("x", 64), "d\n": ""})
	var got []string
	for _, x := range f.Fields() {
		got = append(got, x.Path)
	}
	if diff := cmp.Diff([]string{"labels", "labels", "labels.b", "labels.c", "labels"}, got); diff != "" {
		t.Errorf("%s\n%v", diff, f.Fields())
	}
	many := map[string]string{}
	for i := range 65 {
		many[strings.Repeat("k", i+1)[:min(i+1, 63)]+string(rune('a'+i%26))] = ""
	}
	f = fault.Faults{}
	if object.CheckLabels(&f, "labels", many); len(f.Fields()) == 0 {
		t.Error("65 labels were taken")
	}
}

func TestCheckMeta(t *testing.T) {
	var f fault.Faults
	object.CheckMeta(&f, api.KindVM, &api.Meta{Name: "A", Tenant: "\x01", Labels: map[string]string{"-": ""}})
	object.CheckMeta(&f, api.KindHost, &api.Meta{Name: "h", Tenant: "t"})
	var got []string
	for _, x := range f.Fields() {
		got = append(got, x.Path)
	}
	if diff := cmp.Diff([]string{"name", "tenant", "labels", "tenant"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestIdentityIsTheServers(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	m := api.Meta{Name: "h", UID: "mine", Revision: 7, Deleting: &now, Tenant: "t"}
	object.Born(&m, api.KindHost, object.Who{UID: "u1", Now: now})
	want := api.Meta{Kind: api.KindHost, Name: "h", UID: "u1", Created: &now}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Error(diff)
	}
	next := api.Meta{Name: "other", UID: "x", Labels: map[string]string{"a": "b"}}
	object.Carry(&next, &m)
	want.Labels = next.Labels
	if diff := cmp.Diff(want, next); diff != "" {
		t.Error(diff)
	}
}

func TestConditionsKeepSince(t *testing.T) {
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	a := object.SetCondition(nil, api.Condition{Type: "Ready", Status: "False", Reason: "X", Since: t0})
	b := object.SetCondition(a, api.Condition{Type: "Ready", Status: "False", Reason: "Y", Since: t0.Add(time.Hour)})
	c := object.SetCondition(b, api.Condition{Type: "Ready", Status: "True", Since: t0.Add(2 * time.Hour)})
	if got := object.Condition(b, "Ready"); got.Since != t0 || got.Reason != "Y" {
		t.Errorf("%+v", got)
	}
	if got := object.Condition(c, "Ready"); got.Since != t0.Add(2*time.Hour) {
		t.Errorf("%+v", got)
	}
	if a[0].Reason != "X" {
		t.Error("the given list was changed")
	}
	if object.Condition(c, "Other") != (api.Condition{}) {
		t.Error("a condition that is not there has a value")
	}
}
