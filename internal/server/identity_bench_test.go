package server

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/pki"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/wire"
)

func BenchmarkIdentify(b *testing.B) {
	x := newSite(b)
	x.user("ann")
	x.as(x.root, http.MethodPost, "/v1/tenants", tenantWith("physics", "ann", "member"), http.StatusCreated)
	status, body := x.call(x.root, http.MethodPost, "/v1/tokens", api.TokenRequest{Name: "t", User: "ann", Scopes: []string{"vm.*", "network.read"}})
	scoped := must[api.TokenGrant](x, http.StatusOK, status, body).Secret
	agent := x.mustJoin("hv-1")
	b.Run("baseline=view-and-hash", func(b *testing.B) { // what nobody can do without: a snapshot, a key, a hash
		for b.Loop() {
			err := x.db.View(b.Context(), func(tx store.Tx) error {
				sum := sha256.Sum256([]byte("a secret of thirty-two bytes ...."))
				if tx.Get(tokenKeys+string(sum[:6])) != nil {
					b.Fatal("found")
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, who := range []asker{
		{"token", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+scoped) }},
		{"agent", agent.sign},
	} {
		b.Run(who.name, func(b *testing.B) {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			who.sign(r)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := x.s.identifyRequest(r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

const streams = 1000

// BenchmarkThousandStreams holds a thousand agents' streams open, from another process, and reports what
// they cost the server: heap and stacks, after a collection.
func BenchmarkThousandStreams(b *testing.B) {
	x := newSite(b)
	dir := b.TempDir()
	x.enrol(dir)
	before := memory()
	cmd := exec.CommandContext(b.Context(), os.Args[0], "-test.run=^TestStreamsOfManyAgents$")
	cmd.Env = append(os.Environ(), "VERBENA_TEST_AGENTS="+dir, "VERBENA_TEST_URL="+x.url)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "open" {
	}
	if err := lines.Err(); err != nil {
		b.Fatal(err)
	}
	x.s.ident.feed.mu.Lock()
	open := len(x.s.ident.feed.streams)
	x.s.ident.feed.mu.Unlock()
	if open != streams {
		b.Fatalf("%d streams are open", open)
	}
	used := memory() - before
	for b.Loop() {
		x.s.ident.feed.wake(map[string]bool{"hv-7": true}) // what a commit that touches one host costs the feed
	}
	b.ReportMetric(float64(used)/1e6, "MB")
	b.ReportMetric(float64(used)/streams/1024, "KiB/stream")
	if used > 100e6 {
		b.Errorf("%d streams cost %d MB, at most 100 are allowed", streams, used/1e6)
	}
	_ = in.Close()
	_, _ = io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil {
		b.Error(err)
	}
}

func memory() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// enrol makes the hosts and their certificates without going through a thousand joins.
func (x *site) enrol(dir string) {
	x.Helper()
	if err := os.WriteFile(filepath.Join(dir, "ca"), x.ca.PEM(), 0o600); err != nil {
		x.Fatal(err)
	}
	for i := range streams {
		name := fmt.Sprintf("hv-%d", i)
		key, csr, err := pki.NewCSR(name)
		if err != nil {
			x.Fatal(err)
		}
		signed, err := x.ca.SignAgent(csr, name, x.clock.Now())
		if err != nil {
			x.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), append(key, signed.PEM...), 0o600); err != nil {
			x.Fatal(err)
		}
		_, err = x.db.Update(context.Background(), func(tx store.Tx) error {
			h := &api.Host{}
			h.Kind, h.Name, h.UID = api.KindHost, name, name
			if err := object.Save(tx, h); err != nil {
				return err
			}
			return store.Put(tx, certKeys+name, &certRecord{HostUID: name, Serial: signed.Serial})
		})
		if err != nil {
			x.Fatal(err)
		}
	}
}

// TestStreamsOfManyAgents is the other process of BenchmarkThousandStreams.
func TestStreamsOfManyAgents(t *testing.T) {
	dir := os.Getenv("VERBENA_TEST_AGENTS")
	if dir == "" {
		t.Skip("run by BenchmarkThousandStreams")
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca"))
	if err != nil {
		t.Fatal(err)
	}
	clock := newTestClock()
	var wg sync.WaitGroup
	slots := make(chan struct{}, 32)
	for i := range streams {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			pair, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("hv-%d", i)))
			if err != nil {
				t.Error(err)
				return
			}
			cfg, err := pki.AgentTLS(pair, pair, ca)
			if err != nil {
				t.Error(err)
				return
			}
			cfg.Time = clock.Now
			if err := openStream(os.Getenv("VERBENA_TEST_URL"), cfg); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	fmt.Println("open")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent has measured
}

// openStream opens a stream, waits for its first event and leaves it open.
func openStream(url string, cfg *tls.Config) error {
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg}}
	res, err := c.Get(url + wire.PathDesired)
	if err != nil {
		return err
	}
	line, err := bufio.NewReader(res.Body).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "event: desired") {
		return fmt.Errorf("stream began with %q: %w", line, err)
	}
	return nil
}
