package server

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
)

// feedRetry is the pause before the feed follows the store again after it was cut off.
const feedRetry = time.Second

// feed wakes the agents' streams. One watch of the store serves all of them: a commit wakes the hosts
// that it touched and nobody else, however many there are.
type feed struct {
	mu      sync.Mutex
	streams map[string]*follower
}

// follower is an agent's stream.
type follower struct {
	wake chan struct{} // holds one: several changes before it looks are one
	quit chan struct{} // closed when another stream of the host takes over
}

func newFeed() *feed { return &feed{streams: map[string]*follower{}} }

// join adds the host's stream. An agent that reconnects finds its old stream half open: that one ends.
func (f *feed) join(host string) *follower {
	n := &follower{wake: make(chan struct{}, 1), quit: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.streams[host]; old != nil {
		close(old.quit)
	}
	f.streams[host] = n
	return n
}

// leave removes a stream that has ended.
func (f *feed) leave(host string, s *follower) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.streams[host] == s {
		delete(f.streams, host)
	}
}

// wake lets the hosts' streams look again.
func (f *feed) wake(hosts map[string]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for host := range hosts {
		f.streams[host].poke()
	}
}

func (f *feed) wakeAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.streams {
		s.poke()
	}
}

func (s *follower) poke() {
	if s == nil {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// runFeed follows the store and wakes streams.
func (s *Server) runFeed(ctx context.Context) error {
	for ctx.Err() == nil {
		err := s.followStore(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end was asked for, and err only says so
		}
		if !fault.Is(err, fault.Gone) {
			s.warn(ctx, "the feed of the agents is cut off and will be taken up again", err)
			select {
			case <-ctx.Done():
			case <-time.After(feedRetry):
			}
		}
	}
	return nil
}

// followStore wakes streams until the watch ends, and returns why it did.
func (s *Server) followStore(ctx context.Context) error {
	var from int64
	err := s.db.View(ctx, func(tx store.Tx) error {
		from = tx.Rev()
		return nil
	})
	if err != nil {
		return err
	}
	s.ident.feed.wakeAll() // they read at from or later; the watch tells everything after it
	for commit, err := range s.db.Watch(ctx, "/o/", from) {
		if err != nil {
			return err
		}
		hosts, all := touched(commit)
		if all {
			s.ident.feed.wakeAll()
			continue
		}
		if len(hosts) > 0 {
			s.ident.feed.wake(hosts)
		}
	}
	return nil
}

// touched returns the hosts whose desired state a commit may have changed, or all = true.
func touched(commit store.Commit) (hosts map[string]bool, all bool) {
	for _, ch := range commit.Changes {
		rest, ok := strings.CutPrefix(ch.Key, "/o/")
		if !ok {
			continue
		}
		kind, _, _ := strings.Cut(rest, "/")
		switch api.Kind(kind) {
		case api.KindNetwork, api.KindImage, api.KindFabric:
			return nil, true
		case api.KindHost:
			_, _, name, _ := object.Split(ch.Key)
			hosts = with(hosts, name)
		case api.KindVM:
			for _, e := range []*store.Entry{ch.Prev, ch.Entry} {
				if e == nil {
					continue
				}
				v, err := store.Peek[api.VM](e)
				if err != nil {
					return nil, true // better all look than one is missed
				}
				hosts = with(hosts, v.Status.Host)
			}
		}
	}
	return hosts, false
}

func with(set map[string]bool, name string) map[string]bool {
	if name == "" {
		return set
	}
	if set == nil {
		set = map[string]bool{}
	}
	set[name] = true
	return set
}
