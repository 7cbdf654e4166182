package server

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/pki"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/wire"
)

func TestJoinMakesTheHostAndWorksOnce(t *testing.T) {
	x := newSite(t)
	secret := x.joinToken("hv-1")
	a, status, body := x.join(secret)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	if h := x.host("hv-1"); h.UID == "" {
		t.Errorf("host: %+v", h)
	}
	if status, body := a.send(http.MethodPost, wire.PathBeat, nil); status != http.StatusNoContent {
		t.Errorf("beat: %d %s", status, body)
	}
	if _, status, _ := x.join(secret); status != http.StatusUnauthorized {
		t.Errorf("the token worked twice: %d", status)
	}
	// The certificate opens the agent's routes and no others.
	for _, path := range []string{"/v1/hosts", "/v1/whoami", "/v1/tenants", "/v1/users"} {
		if status, body := a.send(http.MethodGet, path, nil); status != http.StatusForbidden {
			t.Errorf("an agent read %s: %d %s", path, status, body)
		}
	}
	// And a person's token does not open the agent's.
	x.as(x.root, http.MethodPost, wire.PathBeat, nil, http.StatusForbidden)
}

func TestJoinTokenUsedTwiceAtOnceWorksOnce(t *testing.T) {
	x := newSite(t)
	secret := x.joinToken("hv-1")
	const n = 8
	codes := make(chan int, n)
	var wg sync.WaitGroup
	for range n {
		_, csr, err := pki.NewCSR("hv-1")
		if err != nil {
			t.Fatal(err)
		}
		c := x.plain()
		wg.Go(func() {
			status, _ := x.send(c, "", http.MethodPost, wire.PathJoin, wire.Join{Secret: secret, CSR: string(csr)})
			codes <- status
		})
	}
	wg.Wait()
	close(codes)
	count := map[int]int{}
	for c := range codes {
		count[c]++
	}
	if count[http.StatusOK] != 1 || count[http.StatusUnauthorized] != n-1 {
		t.Errorf("answers: %v", count)
	}
}

func TestJoinTokenOfTheWrongKind(t *testing.T) {
	x := newSite(t)
	good := x.joinToken("hv-1")
	token, err := pki.ParseJoinToken(good)
	if err != nil {
		t.Fatal(err)
	}
	otherHost, otherSecret, otherID := token, token, token
	otherHost.Host = "hv-2"
	otherSecret.Secret[0] ^= 1
	otherID.ID[0] ^= 1
	_, csr, err := pki.NewCSR("hv-1")
	if err != nil {
		t.Fatal(err)
	}
	join := func(secret, csr string) int {
		status, _ := x.send(x.plain(), "", http.MethodPost, wire.PathJoin, wire.Join{Secret: secret, CSR: csr})
		return status
	}
	for name, tt := range map[string]struct {
		secret, csr string
		want        int
	}{
		"another host in a known token": {otherHost.Text(), string(csr), http.StatusUnauthorized},
		"another secret":                {otherSecret.Text(), string(csr), http.StatusUnauthorized},
		"unknown":                       {otherID.Text(), string(csr), http.StatusUnauthorized},
		"garbage":                       {"verbena_join_x", string(csr), http.StatusUnprocessableEntity},
		"bad request":                   {good, "x", http.StatusUnprocessableEntity},
		"access token":                  {x.root, string(csr), http.StatusUnprocessableEntity},
	} {
		if got := join(tt.secret, tt.csr); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
	if got := join(good, string(csr)); got != http.StatusOK {
		t.Errorf("the good token was spent by the bad ones: %d", got)
	}
}

func TestJoinTokenExpires(t *testing.T) {
	x := newSite(t)
	secret := x.joinToken("hv-1")
	x.clock.advance(auth.JoinTTL)
	if _, status, _ := x.join(secret); status != http.StatusUnauthorized {
		t.Errorf("an expired token worked: %d", status)
	}
	x.as(x.root, http.MethodPost, "/v1/join-tokens", api.JoinTokenRequest{Host: "hv-1", TTL: "25h"}, http.StatusUnprocessableEntity)
	x.as(x.root, http.MethodPost, "/v1/join-tokens", api.JoinTokenRequest{Host: "HV 1"}, http.StatusUnprocessableEntity)
}

func TestDeletedHostIsLockedOut(t *testing.T) {
	x := newSite(t)
	a := x.mustJoin("hv-1")
	leftover := x.joinToken("hv-1")
	x.deleteHost("hv-1")
	if status, _ := a.send(http.MethodPost, wire.PathBeat, nil); status != http.StatusUnauthorized {
		t.Errorf("a deleted host's certificate works: %d", status)
	}
	if _, status, _ := a.renew(); status != http.StatusUnauthorized {
		t.Errorf("a deleted host renewed: %d", status)
	}
	if _, status, _ := x.join(leftover); status != http.StatusUnauthorized {
		t.Errorf("a token of a deleted host brought it back: %d", status)
	}
	// A new host of the same name is another one.
	b := x.mustJoin("hv-1")
	if status, _ := b.send(http.MethodPost, wire.PathBeat, nil); status != http.StatusNoContent {
		t.Errorf("the new host: %d", status)
	}
	if status, _ := a.send(http.MethodPost, wire.PathBeat, nil); status != http.StatusUnauthorized {
		t.Errorf("the old host's certificate works for the new one: %d", status)
	}
	if _, status, _ := x.join(leftover); status != http.StatusUnauthorized {
		t.Errorf("the old host's token joined the new one: %d", status)
	}
}

func (x *site) deleteHost(name string) {
	x.Helper()
	_, err := x.db.Update(context.Background(), func(tx store.Tx) error {
		tx.Delete("/o/Host/_/" + name)
		return nil
	})
	if err != nil {
		x.Fatal(err)
	}
}

func TestRejoinRevokesTheOldCertificate(t *testing.T) {
	x := newSite(t)
	a := x.mustJoin("hv-1")
	b := x.mustJoin("hv-1")
	if status, _ := a.send(http.MethodPost, wire.PathBeat, nil); status != http.StatusUnauthorized {
		t.Errorf("the old certificate works: %d", status)
	}
	if status, _ := b.send(http.MethodPost, wire.PathBeat, nil); status != http.StatusNoContent {
		t.Errorf("the new certificate: %d", status)
	}
}

func TestRenewal(t *testing.T) {
	x := newSite(t)
	a := x.mustJoin("hv-1")
	leaf := a.leaf()
	x.clock.advance(pki.Due(leaf.NotBefore, leaf.NotAfter).Sub(x.clock.Now()))
	lost, status, body := a.renew()
	if status != http.StatusOK {
		t.Fatalf("renew: %d %s", status, body)
	}
	// The answer was lost: the agent renews again by its old certificate.
	b, status, body := a.renew()
	if status != http.StatusOK {
		t.Fatalf("renew again: %d %s", status, body)
	}
	if status, _ := lost.send(http.MethodPost, wire.PathBeat, nil); status != http.StatusUnauthorized {
		t.Errorf("the lost certificate works: %d", status)
	}
	if got := b.leaf().NotAfter; !got.Equal(x.clock.Now().Add(pki.AgentLife)) {
		t.Errorf("ends %s", got)
	}
	if status, _ := b.send(http.MethodPost, wire.PathBeat, nil); status != http.StatusNoContent {
		t.Errorf("the new certificate: %d", status)
	}
	// The first use of the new one ends the old one.
	x.until("the old certificate is retired", func() bool {
		status, _ := a.send(http.MethodPost, wire.PathBeat, nil)
		return status == http.StatusUnauthorized
	})
	if _, status, _ := a.renew(); status != http.StatusUnauthorized {
		t.Errorf("the old certificate renewed: %d", status)
	}
	x.clock.advance(pki.AgentLife + time.Second)
	if status, _ := x.agent("hv-1", b.key, b.cert).send(http.MethodPost, wire.PathBeat, nil); status != 0 {
		t.Errorf("an expired certificate passed the handshake: %d", status)
	}
	// A connection that was open before the certificate expired gains nothing either.
	if status, _ := b.send(http.MethodPost, wire.PathBeat, nil); status != 0 && status != http.StatusUnauthorized {
		t.Errorf("an expired certificate works on an open connection: %d", status)
	}
}

func TestStaleConfirmationSparesANewerRenewal(t *testing.T) {
	x := newSite(t)
	a := x.mustJoin("hv-1")
	first := pki.SerialOf(a.leaf())
	b, status, body := a.renew()
	if status != http.StatusOK {
		t.Fatal(body)
	}
	// The message about the first certificate's use arrives late.
	if err := x.s.retireCert(t.Context(), fresh{"hv-1", first}); err != nil {
		t.Fatal(err)
	}
	if status, _ := a.send(http.MethodPost, wire.PathBeat, nil); status != http.StatusNoContent {
		t.Errorf("the certificate before the unused one was retired: %d", status)
	}
	if status, _ := b.send(http.MethodPost, wire.PathBeat, nil); status != http.StatusNoContent {
		t.Errorf("the new certificate: %d", status)
	}
}

func TestCertificateOfAnotherCAIsNobody(t *testing.T) {
	x := newSite(t)
	x.mustJoin("hv-1")
	m, err := pki.NewMaterial(x.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.New(m)
	if err != nil {
		t.Fatal(err)
	}
	key, csr, err := pki.NewCSR("hv-1")
	if err != nil {
		t.Fatal(err)
	}
	signed, err := other.SignAgent(csr, "hv-1", x.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	if status, _ := x.agent("hv-1", key, signed.PEM).send(http.MethodPost, wire.PathBeat, nil); status != 0 && status != http.StatusUnauthorized {
		t.Errorf("status %d", status)
	}
}

// until polls a condition that other goroutines bring about.
func (x *site) until(what string, ok func() bool) {
	x.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			x.Fatalf("timeout: %s\nlog: %s", what, x.log)
		case <-tick.C:
		}
	}
}

func TestPlainServerCannotJoin(t *testing.T) {
	f := newFixture(t)
	f.problem(http.StatusConflict, "unready", f.do("admin", http.MethodPost, "/v1/join-tokens", api.JoinTokenRequest{Host: "hv-1"}))
	if a := f.do("", http.MethodPost, wire.PathJoin, wire.Join{Secret: strings.Repeat("x", 100), CSR: "x"}); a.StatusCode != http.StatusConflict {
		t.Errorf("join: %d", a.StatusCode)
	}
}
