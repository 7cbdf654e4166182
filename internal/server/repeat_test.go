package server

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
)

func TestRepeatCreatesOnce(t *testing.T) {
	f := newFixture(t)
	first := f.want(201, f.do("op", http.MethodPost, "/v1/flavors", flavorJSON("small", ""), "Idempotency-Key", "k1"))
	rev := f.revision()
	again := f.want(201, f.do("op", http.MethodPost, "/v1/flavors", flavorJSON("small", ""), "Idempotency-Key", "k1"))
	if again.Header.Get("Idempotency-Replayed") != "true" || again.Header.Get("ETag") != first.Header.Get("ETag") || f.revision() != rev {
		t.Errorf("the repeat did something: %v %s", again.Header, again.body)
	}
	if a, b := decode[api.Flavor](t, first), decode[api.Flavor](t, again); a.UID != b.UID {
		t.Errorf("the repeat answers with another object: %s %s", a.UID, b.UID)
	}
	p := f.problem(422, fault.Invalid, f.do("op", http.MethodPost, "/v1/flavors", flavorJSON("other", ""), "Idempotency-Key", "k1"))
	if !strings.Contains(p.Detail, "Idempotency-Key") {
		t.Errorf("detail: %s", p.Detail)
	}
	// Keys are the caller's own: another's create runs, and finds the name taken.
	f.problem(409, fault.Conflict, f.do("admin", http.MethodPost, "/v1/flavors", flavorJSON("small", ""), "Idempotency-Key", "k1"))
	f.problem(422, fault.Invalid, f.do("op", http.MethodPost, "/v1/flavors", flavorJSON("x", ""), "Idempotency-Key", strings.Repeat("k", 256)))

	f.want(204, f.do("op", http.MethodDelete, "/v1/flavors/small", nil))
	f.problem(409, fault.Conflict, f.do("op", http.MethodPost, "/v1/flavors", flavorJSON("small", ""), "Idempotency-Key", "k1"))
	// A refused create keeps no key: the same request may succeed later.
	f.problem(422, fault.Invalid, f.do("op", http.MethodPost, "/v1/flavors", strings.Replace(flavorJSON("k2", ""), "4GiB", "4", 1), "Idempotency-Key", "k2"))
	f.want(201, f.do("op", http.MethodPost, "/v1/flavors", flavorJSON("k2", ""), "Idempotency-Key", "k2"))
}

func TestRepeatAtTheSameTime(t *testing.T) {
	f := newFixture(t)
	const clients = 16
	uids := make(chan string, clients)
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			a := f.do("op", http.MethodPost, "/v1/flavors", flavorJSON("small", ""), "Idempotency-Key", "k")
			if a.StatusCode != http.StatusCreated {
				t.Errorf("%d %s", a.StatusCode, a.body)
				return
			}
			uids <- decode[api.Flavor](t, a).UID
		})
	}
	wg.Wait()
	close(uids)
	seen := map[string]bool{}
	for uid := range uids {
		seen[uid] = true
	}
	if len(seen) != 1 {
		t.Errorf("%d objects were made by one key", len(seen))
	}
}

// Pages follow each other without gaps or doubles while objects come and go between them.
func TestPages(t *testing.T) {
	f := newFixture(t)
	for i := range 10 {
		f.makeFlavor(fmt.Sprintf("f%d", i), fmt.Sprintf(`{"odd":"%t"}`, i%2 == 1))
	}
	var names []string
	page := func(query string) api.List[api.Flavor] {
		l := decode[api.List[api.Flavor]](t, f.want(200, f.do("bob", http.MethodGet, "/v1/flavors?"+query, nil)))
		for _, o := range l.Items {
			names = append(names, o.Name)
		}
		return l
	}
	first := page("limit=3")
	f.makeFlavor("f05", "") // sorts between f0 and f1: seen already, so not in the pages to come
	f.want(204, f.do("op", http.MethodDelete, "/v1/flavors/f4", nil))
	f.makeFlavor("f95", "")
	rest := first
	for rest.Continue != "" {
		rest = page("limit=3&continue=" + rest.Continue)
		if rest.Revision != first.Revision {
			t.Errorf("a later page says revision %d, the first %d: a watch from it would miss changes", rest.Revision, first.Revision)
		}
	}
	if got := strings.Join(names, " "); got != "f0 f1 f2 f3 f5 f6 f7 f8 f9 f95" {
		t.Errorf("pages show %s", got)
	}
	names = nil
	odd := page("labels=odd%3Dtrue&limit=2")
	for odd.Continue != "" {
		odd = page("labels=odd%3Dtrue&limit=2&continue=" + odd.Continue)
	}
	if got := strings.Join(names, " "); got != "f1 f3 f5 f7 f9" {
		t.Errorf("selected pages show %s", got)
	}
	// A token is good for its own list only, and not if a bit of it is changed.
	f.problem(422, fault.Invalid, f.do("bob", http.MethodGet, "/v1/images?continue="+first.Continue, nil))
	f.problem(422, fault.Invalid, f.do("bob", http.MethodGet, "/v1/flavors?labels=odd&continue="+first.Continue, nil))
	bent := []byte(first.Continue)
	bent[len(bent)-5] ^= 1
	f.problem(422, fault.Invalid, f.do("bob", http.MethodGet, "/v1/flavors?continue="+string(bent), nil))
}

func TestSelector(t *testing.T) {
	labels := map[string]string{"tier": "gold", "rack": "r1"}
	for text, want := range map[string]bool{
		"": true, "tier=gold": true, "tier==gold": true, "tier=tin": false, "tier!=tin": true, "tier!=gold": false,
		"tier": true, "zone": false, "!zone": true, "!tier": false, "zone!=a": true, "tier=gold,rack=r1": true, "tier=gold,rack=r2": false, "tier = gold , !zone": true,
	} {
		s, err := parseSelector(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if got := s.match(labels); got != want {
			t.Errorf("%q matches: %t, want %t", text, got, want)
		}
	}
	for _, text := range []string{",", "a=b,", "=b", "a>1", "a in (b)", "!", "!="} {
		if _, err := parseSelector(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}
