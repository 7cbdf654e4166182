package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
)

// Summary says what a backup holds.
type Summary struct {
	Revision int64     // of the store that was saved
	Count    int       // entries
	Made     time.Time // when
}

// Stamp is what the header says about the making.
type Stamp struct {
	Made time.Time
	By   string // version of the program
}

// Write writes the store's state, at one revision, to w. Writers are not held up.
func Write(ctx context.Context, db store.DB, w io.Writer, by Stamp) (Summary, error) {
	var s Summary
	err := db.View(ctx, func(tx store.Tx) error {
		if err := whole(tx); err != nil {
			return err
		}
		h := Header{Format: format, Version: version, Revision: tx.Rev(), Made: by.Made.UTC(), By: by.By}
		for range tx.Scan("", "") {
			h.Count++
		}
		s = Summary{Revision: h.Revision, Count: h.Count, Made: h.Made}
		enc := newEncoder(w)
		if err := enc.line(h); err != nil {
			return err
		}
		for e := range tx.Scan("", "") {
			if err := ctx.Err(); err != nil {
				return fault.Wrap(err, fault.Deadline, "the backup was broken off")
			}
			if err := enc.entry(Entry{Key: e.Key, Value: e.Value, Created: e.Created, Rev: e.Rev}); err != nil {
				return err
			}
		}
		return enc.end()
	})
	return s, err
}

// WriteFile writes the store's state into a new file with mode 0600, because it holds everybody's data. The
// file appears at its name only when it is whole and on disk; one that is there already is never replaced.
func WriteFile(ctx context.Context, db store.DB, path string, by Stamp) (Summary, error) {
	if _, err := os.Lstat(path); err == nil {
		return Summary{}, exists(path)
	}
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.part")
	if err != nil {
		return Summary{}, fault.Wrap(err, fault.Unavailable, "the backup can't be written beside %s", path)
	}
	s, err := Write(ctx, db, temp, by)
	if err == nil {
		err = temp.Sync()
	}
	err = errors.Join(err, temp.Close())
	if err == nil {
		err = place(temp.Name(), path)
	}
	if rerr := os.Remove(temp.Name()); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	if err != nil {
		return Summary{}, fmt.Errorf("write the backup %s: %w", path, err)
	}
	return s, nil
}

func exists(path string) error {
	return fault.New(fault.Conflict, "%s exists already; a backup never replaces a file, so choose another name", path)
}

// place gives the finished file its name. A link, unlike a rename, never replaces what somebody else has
// put there meanwhile.
func place(temp, path string) error {
	if err := os.Link(temp, path); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return exists(path)
		}
		return fmt.Errorf("name the backup: %w", err)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("open the directory: %w", err)
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Verify reads a backup to its end and says what it holds, or what is wrong with it.
func Verify(path string) (Summary, error) {
	f, err := os.Open(path)
	if err != nil {
		return Summary{}, fault.Wrap(err, fault.Invalid, "the backup %s can't be opened", path)
	}
	defer func() { _ = f.Close() }() // only read
	h, err := Read(f, func(Entry) error { return nil })
	if err != nil {
		return Summary{}, fmt.Errorf("%s: %w", path, err)
	}
	return Summary{Revision: h.Revision, Count: h.Count, Made: h.Made}, nil
}
