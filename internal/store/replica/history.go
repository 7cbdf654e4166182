package replica

import (
	"sort"

	"github.com/verbena-cloud/verbena/internal/store"
)

// history keeps the newest commits, up to a number of changes in all.
type history struct {
	commits []store.Commit // only appended to and cut at the front, so that readers may hold a slice of it
	changes int
	limit   int
	horizon int64 // a watch can start after any revision from here on
}

func (h *history) add(c store.Commit) {
	h.commits = append(h.commits, c)
	h.changes += weight(c)
	for h.changes > h.limit {
		h.changes -= weight(h.commits[0])
		h.horizon = h.commits[0].Rev
		h.commits = h.commits[1:]
	}
}

// weight counts an empty commit too, or a busy idle store would keep its history for ever.
func weight(c store.Commit) int { return len(c.Changes) + 1 }

// after returns the commits after a revision, which must not lie before the horizon.
func (h *history) after(rev int64) []store.Commit {
	i := sort.Search(len(h.commits), func(i int) bool { return h.commits[i].Rev > rev })
	return h.commits[i:]
}

// forget drops everything up to and including rev.
func (h *history) forget(rev int64) {
	for len(h.commits) > 0 && h.commits[0].Rev <= rev {
		h.changes -= weight(h.commits[0])
		h.commits = h.commits[1:]
	}
	h.horizon = max(h.horizon, rev)
}
