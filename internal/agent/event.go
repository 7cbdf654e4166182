package agent

import (
	"fmt"
	"sync"
	"time"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/wire"
)

const (
	normal  = "Normal"
	warning = "Warning"

	maxEvents = 256
	maxPosted = 64               // what the server takes with one status
	quiet     = 10 * time.Minute // the same event is not told again within
)

// events is what waits to be told to the server: bounded, the oldest goes first, and the same thing is
// told once in a while only.
type events struct {
	now     func() time.Time
	mu      sync.Mutex
	list    []wire.Event
	told    map[string]time.Time
	dropped int
}

func (e *events) add(ref api.Ref, kind, reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.now()
	if e.told == nil {
		e.told = map[string]time.Time{}
	}
	id := fmt.Sprintf("%s/%s/%s/%s/%s", ref.Kind, ref.Tenant, ref.Name, reason, message)
	if at, ok := e.told[id]; ok && now.Sub(at) < quiet {
		return
	}
	for k, at := range e.told {
		if now.Sub(at) >= quiet {
			delete(e.told, k)
		}
	}
	if len(e.told) < 4*maxEvents {
		e.told[id] = now
	}
	if len(e.list) == maxEvents {
		e.list = e.list[1:]
		e.dropped++
	}
	e.list = append(e.list, wire.Event{Object: ref, Type: kind, Reason: reason, Message: message, At: now})
}

// peek returns what waits, as much as one status may carry; take removes it once it was told.
func (e *events) peek() []wire.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]wire.Event(nil), e.list[:min(len(e.list), maxPosted)]...)
}

// take removes the told ones; what was dropped meanwhile at the front is counted off.
func (e *events) take(told []wire.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(told) > 0 && len(e.list) > 0 {
		for len(told) > 0 && told[0] != e.list[0] {
			told = told[1:]
		}
		if len(told) > 0 {
			told, e.list = told[1:], e.list[1:]
		}
	}
}
