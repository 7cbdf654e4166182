package agent

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// TestProcessesCanNotBeSeen: where other processes can't be looked at, the host is reported with the reason,
// its VFs are not offered, and all is well again when they can be seen.
func TestProcessesCanNotBeSeen(t *testing.T) {
	scene(t, host(4), func(t *testing.T, w *world) {
		w.now("commissioned")
		see := w.a.d.Holders
		w.a.d.Holders = func(context.Context) (map[string][]int, error) {
			return nil, errors.New("look for open vfio groups of process 1: permission denied")
		}
		w.a.mu.Lock()
		w.a.snap = nil // as at its start
		w.a.mu.Unlock()
		for _, when := range []string{"first", "second"} {
			if p := w.pf(pf0); p.Ready || !strings.Contains(p.Reason, "process 1") {
				t.Errorf("%s look: ready %v, reason %q", when, p.Ready, p.Reason)
			}
		}
		if p := strings.Join(w.a.inventory().Problems, "\n"); !strings.Contains(p, "process 1: permission denied") {
			t.Errorf("problems: %s", p)
		}
		w.a.d.Holders = see
		w.now("seen again")
		free(8)(t, w)
	})
}
