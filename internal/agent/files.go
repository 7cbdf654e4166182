package agent

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/verbena-cloud/verbena/internal/fault"
)

// Files is the agent's state directory. Names are relative and slash-separated. Write is atomic and
// durable: after a crash the file holds the old or the new content, never a mixture.
type Files interface {
	Read(name string) ([]byte, error)
	Write(name string, data []byte) error
	Remove(name string) error
	List(dir string) ([]string, error)
}

// tempPrefix marks files that a crash left behind before their rename.
const tempPrefix = ".new-"

// dirFiles keeps the state in a directory of its own.
type dirFiles struct{ dir string }

// Directory returns the state directory at dir, made if it is not there. It may be passed through by
// others (QEMU reads disks below it), but every file in it is for its owner only.
func Directory(dir string) (Files, error) {
	if err := passable(dir); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	return dirFiles{dir}, nil
}

// passable makes a directory that QEMU's user can pass through to the disks below it, and nobody else can
// read, whatever the umask is (systemd's UMask=0077 would close it).
func passable(dir string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil { //nolint:gosec // QEMU passes through, as said above
		return err
	}
	return os.Chmod(dir, 0o711) //nolint:gosec // QEMU passes through, as said above
}

// Read returns a file's content.
func (d dirFiles) Read(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(d.dir, filepath.FromSlash(name)))
}

// Write replaces a file: temporary file, fsync, rename, fsync of the directory.
func (d dirFiles) Write(name string, data []byte) error {
	path := filepath.Join(d.dir, filepath.FromSlash(name))
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, tempPrefix+"*") // mode 0600
	if err != nil {
		return err
	}
	if err := fill(f, data); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncDir(dir)
}

func fill(f *os.File, data []byte) error {
	_, err := f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir makes a rename or removal in dir durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Remove deletes a file; one that is gone is no error.
func (d dirFiles) Remove(name string) error {
	path := filepath.Join(d.dir, filepath.FromSlash(name))
	if err := os.Remove(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return syncDir(filepath.Dir(path))
}

// List returns the sorted names in a directory, none if it is not there. Left-over temporary files are
// removed on the way.
func (d dirFiles) List(dir string) ([]string, error) {
	path := filepath.Join(d.dir, filepath.FromSlash(dir))
	all, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range all {
		switch {
		case strings.HasPrefix(e.Name(), tempPrefix):
			if err := os.Remove(filepath.Join(path, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		case !e.IsDir():
			out = append(out, e.Name())
		}
	}
	sort.Strings(out)
	return out, nil
}

// seal puts a checksum before a record, so that a torn or flipped one is noticed and never believed.
func seal(v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	return append([]byte(hex.EncodeToString(sum[:])+"\n"), body...), nil
}

// unseal reads what seal wrote.
func unseal(data []byte, v any) error {
	head, body, ok := bytes.Cut(data, []byte("\n"))
	sum := sha256.Sum256(body)
	if !ok || string(head) != hex.EncodeToString(sum[:]) {
		return fault.New(fault.Invalid, "the record is torn or was changed: its checksum does not match")
	}
	return json.Unmarshal(body, v)
}
