package backup

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
)

// marker is in the store while it is being restored: what is beside it is not a whole state.
const marker = "/restoring"

// One commit of a restore stays below every engine's limits, also an external etcd's 128 operations.
const (
	chunkKeys  = 100
	chunkBytes = 1 << 20
)

// RestoreFile puts a backup's entries into an empty store. The whole file is verified before the store is
// touched. If it is broken off half-way it can be run again: the store is marked until the end, Check
// refuses it, and the next run begins anew.
func RestoreFile(ctx context.Context, path string, db store.DB) (Summary, error) {
	s, err := Verify(path)
	if err != nil {
		return Summary{}, err
	}
	if err := empty(ctx, db); err != nil {
		return Summary{}, err
	}
	f, err := os.Open(path)
	if err != nil {
		return Summary{}, fault.Wrap(err, fault.Invalid, "the backup %s can't be opened", path)
	}
	defer func() { _ = f.Close() }() // only read
	c := &chunk{db: db}
	h, err := Read(f, func(e Entry) error { return c.add(ctx, e) })
	if err == nil && (h.Count != s.Count || h.Revision != s.Revision) {
		err = fault.New(fault.Conflict, "%s was changed while it was being restored", path)
	}
	if err == nil {
		err = c.flush(ctx, true)
	}
	if err != nil {
		return Summary{}, fmt.Errorf("restore %s (the store is not whole; restore it again): %w", path, err)
	}
	return s, nil
}

// Check returns a fault if the store holds a restore that was broken off. A server calls it before it serves.
func Check(ctx context.Context, db store.DB) error {
	return db.View(ctx, whole)
}

func whole(tx store.Tx) error {
	if tx.Get(marker) != nil {
		return fault.New(fault.Unready, "this store was not restored to the end; run the restore again")
	}
	return nil
}

// empty refuses a store that is in use, and removes what an earlier restore left. The marker is put first.
func empty(ctx context.Context, db store.DB) error {
	for {
		left := false
		_, err := db.Update(ctx, func(tx store.Tx) error {
			left = false
			ours := tx.Get(marker) != nil
			n := 0
			for e := range tx.Scan("", "") {
				switch {
				case !ours:
					return fault.New(fault.Conflict, "the store is not empty; a restore never replaces data, so give it a new directory or prefix")
				case n == chunkKeys:
					left = true
					return nil
				case e.Key != marker:
					tx.Delete(e.Key)
					n++
				}
			}
			if !ours {
				tx.Put(store.NewEntry(marker, []byte(`{}`), nil))
			}
			return nil
		})
		if err != nil || !left {
			return err
		}
	}
}

// chunk collects entries for one commit.
type chunk struct {
	db      store.DB
	entries []*store.Entry
	size    int
}

func (c *chunk) add(ctx context.Context, e Entry) error {
	if len(c.entries) == chunkKeys || len(c.entries) > 0 && c.size+len(e.Value) > chunkBytes {
		if err := c.flush(ctx, false); err != nil {
			return err
		}
	}
	c.entries = append(c.entries, store.NewEntry(e.Key, e.Value, nil))
	c.size += len(e.Key) + len(e.Value)
	return nil
}

// flush commits the chunk, the last one together with the end of the restore.
func (c *chunk) flush(ctx context.Context, last bool) error {
	_, err := c.db.Update(ctx, func(tx store.Tx) error {
		if tx.Get(marker) == nil {
			return errors.New("somebody else ended this restore")
		}
		for _, e := range c.entries {
			tx.Put(e)
		}
		if last {
			tx.Delete(marker)
		}
		return nil
	})
	c.entries, c.size = nil, 0
	return err
}
