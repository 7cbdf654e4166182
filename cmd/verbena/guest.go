package main

import (
	"context"
	"errors"

	"github.com/verbena-cloud/verbena/internal/cli"
	"github.com/verbena-cloud/verbena/internal/guestos"
	"github.com/verbena-cloud/verbena/internal/guestos/apply"
	"github.com/verbena-cloud/verbena/internal/guestreport"
)

// runGuest works on the VM that this process runs in.
func runGuest(ctx context.Context, o cli.GuestOptions) (guestos.Outcome, error) {
	return apply.Work(ctx, apply.Options{Verb: o.Verb, Root: o.Root, State: o.State, Config: o.Config, Say: o.Say})
}

// runGuestReport shows or sends what the host is told.
func runGuestReport(ctx context.Context, o cli.GuestReportOptions) (r guestreport.Report, err error) {
	m, done, err := apply.Open(o.Root)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, done()) }()
	if o.Port == "" {
		return guestos.Report(m.Facts(ctx), version), nil
	}
	reporter := apply.Reporter{Machine: m, Version: version, Log: o.Log, Open: func() (apply.Port, error) { return apply.OpenPort(o.Port) }}
	if o.Every == 0 {
		return r, reporter.Once(ctx)
	}
	reporter.Every(ctx, o.Every)
	return r, nil
}
