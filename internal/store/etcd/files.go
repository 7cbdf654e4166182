package etcd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"github.com/verbena-cloud/verbena/internal/fault"
)

// dbTimeout is how long to wait for somebody who has the database file open, such as a backup program.
const dbTimeout = 5 * time.Second

// checkFiles looks at what lies in the data directory of a member before etcd does: of a broken database etcd
// makes a panic, and of a log that is missing beside a database that has seen commits it makes a new one, in
// which the next commits are acknowledged and then skipped, since their numbers were used before.
func checkFiles(dir string) error {
	path := filepath.Join(dir, "member", "snap", "db")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil // a new directory
	}
	seen, err := applied(path)
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "the database %s is broken (%v); put a backup into a new data directory: verbena restore", path, err)
	}
	logs := filepath.Join(dir, "member", "wal")
	if seen > 0 && !anyLog(logs) {
		return fault.New(fault.Unavailable, "the database %s is there, but its log in %s is missing or empty; put the directory back, or put a backup into a new data directory: verbena restore", path, logs)
	}
	return nil
}

// applied returns the number of the last commit that the database holds, 0 if none.
func applied(path string) (n uint64, err error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: dbTimeout})
	if err != nil {
		return 0, fmt.Errorf("open: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.View(func(tx *bbolt.Tx) error {
		if b := tx.Bucket([]byte("meta")); b != nil {
			if v := b.Get([]byte("consistent_index")); len(v) == 8 {
				n = binary.BigEndian.Uint64(v)
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("read: %w", err)
	}
	return n, nil
}

func anyLog(dir string) bool {
	files, err := os.ReadDir(dir)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) // what can't be read etcd says itself
	}
	for _, f := range files {
		if info, err := f.Info(); err == nil && strings.HasSuffix(f.Name(), ".wal") && info.Size() > 0 {
			return true
		}
	}
	return false
}

// Exists refuses a directory in which no embedded member has ever kept anything: Open would make a new one,
// which is not what somebody wants who came to save or look at an old one.
func Exists(dir string) error {
	_, err := os.Stat(filepath.Join(dir, "member", "snap", "db"))
	if errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.NotFound, "there is no store in %s; name the data directory of the server", dir)
	}
	if err != nil {
		return fault.Wrap(err, fault.Unavailable, "the store in %s can't be read", dir)
	}
	return nil
}
