package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/verbena-cloud/verbena/internal/cli"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/server"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/backup"
	"github.com/verbena-cloud/verbena/internal/store/etcd"
	"github.com/verbena-cloud/verbena/internal/store/mem"
)

// logger makes the log that the options ask for.
func logger(o cli.Log) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.Level)); err != nil {
		return nil, fault.New(fault.Invalid, "--log-level %s: there are debug, info, warn and error", o.Level)
	}
	options := &slog.HandlerOptions{Level: level}
	switch o.Format {
	case "text":
		return slog.New(slog.NewTextHandler(o.W, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(o.W, options)), nil
	}
	return nil, fault.New(fault.Invalid, "--log-format %s: there are text and json", o.Format)
}

// engine is a store that ends.
type engine interface {
	store.DB
	io.Closer
}

// die ends the program in place of etcd's own panic.
func die(err error) {
	fmt.Fprintln(os.Stderr, "error:", fault.Text(err))
	os.Exit(1)
}

// openStore opens the embedded member below data, or the external cluster.
func openStore(ctx context.Context, data string, e cli.Etcd, log *slog.Logger) (engine, error) {
	cfg := etcd.Config{Endpoints: e.URLs, TLS: etcd.TLS{CA: e.CA, Cert: e.Cert, Key: e.Key}, Log: log}
	if len(e.URLs) == 0 {
		cfg.Dir = filepath.Join(data, "etcd")
		cfg.Die = die
	}
	return etcd.Open(ctx, cfg)
}

// makeData makes the data directory for its owner only. Directories above it, which it may share with an
// agent on the same machine, stay open to others: QEMU must get through them to the VMs' disks.
func makeData(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil { //nolint:gosec // QEMU must get through, see the comment
		return fmt.Errorf("make the data directory: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the data directory: %w", err)
	}
	return nil
}

// runServer serves until ctx ends.
func runServer(ctx context.Context, o cli.ServerOptions) (err error) {
	log, err := logger(o.Log)
	if err != nil {
		return err
	}
	if err := makeData(o.Data); err != nil {
		return err
	}
	var db engine = mem.New()
	if !o.Memory {
		if db, err = openStore(ctx, o.Data, o.Etcd, log); err != nil {
			return err
		}
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := backup.Check(ctx, db); err != nil {
		return err
	}
	s, err := server.New(ctx, server.Config{Listen: o.Listen, Version: version, Data: o.Data, KeyFile: o.KeyFile, Names: o.Names},
		server.Deps{Store: db, Log: log, Notice: o.Notice})
	if err != nil {
		return err
	}
	log.InfoContext(ctx, "serving", "address", "https://"+s.Addr(), "version", version)
	return s.Run(ctx)
}
