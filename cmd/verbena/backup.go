package main

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/verbena-cloud/verbena/internal/cli"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/backup"
	"github.com/verbena-cloud/verbena/internal/store/etcd"
)

// runBackup saves the whole state into a new file.
func runBackup(ctx context.Context, o cli.BackupOptions) (err error) {
	log, err := logger(o.Log)
	if err != nil {
		return err
	}
	if len(o.Etcd.URLs) == 0 {
		if err := etcd.Exists(filepath.Join(o.Data, "etcd")); err != nil {
			return err
		}
	}
	db, err := openStore(ctx, o.Data, o.Etcd, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := holdsSomething(ctx, db); err != nil {
		return err
	}
	_, err = backup.WriteFile(ctx, db, o.File, backup.Stamp{Made: time.Now(), By: version})
	return err
}

// holdsSomething refuses to save nothing: a wrong address would leave a file that looks like a backup.
func holdsSomething(ctx context.Context, db store.DB) error {
	return db.View(ctx, func(tx store.Tx) error {
		for range tx.Scan("", "") {
			return nil
		}
		return fault.New(fault.NotFound, "the store holds nothing, so there is nothing to save; check that it is the right one")
	})
}

// runRestore puts a backup into an empty store.
func runRestore(ctx context.Context, o cli.RestoreOptions) (err error) {
	log, err := logger(o.Log)
	if err != nil {
		return err
	}
	if _, err := backup.Verify(o.File); err != nil {
		return err // before an empty store is made for it
	}
	db, err := openStore(ctx, o.Data, o.Etcd, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	_, err = backup.RestoreFile(ctx, o.File, db)
	return err
}
