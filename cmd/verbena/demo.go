package main

import (
	"context"

	"github.com/verbena-cloud/verbena/internal/cli"
	"github.com/verbena-cloud/verbena/internal/demo"
)

// runDemo tells the story of the demo.
func runDemo(ctx context.Context, o cli.DemoOptions) error { return demo.Run(ctx, o, version) }
