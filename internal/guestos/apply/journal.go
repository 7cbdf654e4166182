package apply

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/guestos"
)

// Journal keeps the first values. Save replaces all of it or nothing; Save of nil removes it. Load of a
// missing one is an fs.ErrNotExist.
type Journal interface {
	Load() ([]byte, error)
	Save(text []byte) error
}

// File is the journal in a directory of its own, held by one process at a time.
type File struct {
	dir  string
	lock *os.File
}

var _ Journal = (*File)(nil)

const journalName = "undo.json"

// OpenFile takes the journal in dir, which is made if it is not there.
func OpenFile(dir string) (*File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the undo journal: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("take the undo journal: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fault.Wrap(err, fault.Conflict, "another `verbena guest` is at work with the journal in %s; try again when it has ended", dir), f.Close())
	}
	return &File{dir: dir, lock: f}, nil
}

// Close lets the journal go.
func (f *File) Close() error { return f.lock.Close() }

// Load reads the journal.
func (f *File) Load() ([]byte, error) { return os.ReadFile(filepath.Join(f.dir, journalName)) }

// Save replaces the journal: temporary file, fsync, rename, fsync of the directory.
func (f *File) Save(text []byte) error {
	path := filepath.Join(f.dir, journalName)
	if text == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return syncDir(f.dir)
	}
	temp := path + ".new" // the lock keeps others from it
	if err := writeFile(temp, text); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	if err := os.Rename(temp, path); err != nil {
		return err
	}
	return syncDir(f.dir)
}

func writeFile(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// save writes the journal, and removes it once nothing is in it.
func save(j Journal, s guestos.State) error {
	if len(s.Entries) == 0 {
		return j.Save(nil)
	}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("write the undo journal: %w", err)
	}
	return j.Save(append(text, '\n'))
}
