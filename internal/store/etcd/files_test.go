package etcd_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/etcd"
)

// A data directory that was damaged or emptied in part is refused with words, and is as it was afterwards.
func TestDamagedDirectoryIsRefused(t *testing.T) {
	whole := filepath.Join(t.TempDir(), "whole")
	db, err := etcd.Open(t.Context(), etcd.Config{Dir: whole})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Update(t.Context(), func(tx store.Tx) error { tx.Put(entry("/a", "1")); return nil }); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	file := func(dir string) string { return filepath.Join(dir, "member", "snap", "db") }
	if err := etcd.Exists(whole); err != nil {
		t.Error(err)
	}
	if err := etcd.Exists(t.TempDir()); !fault.Is(err, fault.NotFound) {
		t.Errorf("an empty directory: %v", err)
	}
	for name, damage := range map[string]func(dir string) error{
		"cut off": func(dir string) error { return os.Truncate(file(dir), 5000) },
		"not one": func(dir string) error {
			return os.WriteFile(file(dir), []byte(strings.Repeat("garbage ", 4096)), 0o600)
		},
		"log missing": func(dir string) error { return os.RemoveAll(filepath.Join(dir, "member", "wal")) },
		"log emptied": func(dir string) error { return os.Truncate(firstLog(t, dir), 0) },
		"log elsewhere": func(dir string) error {
			return os.Rename(filepath.Join(dir, "member", "wal"), filepath.Join(dir, "member", "wal.old"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "copy")
			if err := os.CopyFS(dir, os.DirFS(whole)); err != nil {
				t.Fatal(err)
			}
			if err := damage(dir); err != nil {
				t.Fatal(err)
			}
			db, err := etcd.Open(t.Context(), etcd.Config{Dir: dir})
			if err == nil {
				_ = db.Close()
				t.Fatal("it is served")
			}
			if fault.KindOf(err) != fault.Unavailable || !strings.Contains(fault.Text(err), dir) {
				t.Errorf("%v: %s", fault.KindOf(err), fault.Text(err))
			}
		})
	}
	db, err = etcd.Open(t.Context(), etcd.Config{Dir: whole})
	if err != nil {
		t.Fatalf("the undamaged directory: %v", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func firstLog(t *testing.T, dir string) string {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "member", "wal", "*.wal"))
	if err != nil || len(logs) == 0 {
		t.Fatal(err, logs)
	}
	return logs[0]
}

// What etcd would die of with a stack trace is told in words.
func TestLastWords(t *testing.T) {
	type told struct{ error }
	log := zap.NewExample().WithOptions(etcd.LastWords(etcd.Config{Dir: "/data", Die: func(err error) { panic(told{err}) }})...)
	for name, end := range map[string]func(string, ...zap.Field){"panic": log.Panic, "fatal": log.Fatal} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				said, ok := recover().(told)
				if !ok || !fault.Is(said.error, fault.Unavailable) || !strings.Contains(fault.Text(said.error), "no space left") || !strings.Contains(fault.Text(said.error), "/data") {
					t.Errorf("told %v", said)
				}
			}()
			end("failed to write the log", zap.Error(errors.New("no space left on device")))
		})
	}
}
