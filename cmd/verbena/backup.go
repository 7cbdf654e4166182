package main

import (
	"context"
	"errors"
	"time"

	"github.com/verbena-cloud/verbena/internal/cli"
	"github.com/verbena-cloud/verbena/internal/store/backup"
)

// runBackup saves the whole state into a new file.
func runBackup(ctx context.Context, o cli.BackupOptions) (err error) {
	log, err := logger(o.Log)
	if err != nil {
		return err
	}
	db, err := openStore(ctx, o.Data, o.Etcd, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	_, err = backup.WriteFile(ctx, db, o.File, backup.Stamp{Made: time.Now(), By: version})
	return err
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
