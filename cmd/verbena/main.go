// Command verbena is the whole product: server, agent, command line and demo in one binary.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/verbena-cloud/verbena/internal/cli"
)

// version is set by the linker.
var version = "dev" //nolint:gochecknoglobals // -ldflags -X needs a variable

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	stdin := int(os.Stdin.Fd())
	code := cli.Main(ctx, cli.Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Version: version, Now: time.Now,
		StdinTTY: term.IsTerminal(stdin), StdoutTTY: term.IsTerminal(int(os.Stdout.Fd())), StderrTTY: term.IsTerminal(int(os.Stderr.Fd())),
		ReadPassword: func() (string, error) { b, err := term.ReadPassword(stdin); return string(b), err },
	}, os.Args[1:], programs())
	os.Exit(code)
}

// programs are what only main may know all of.
func programs() cli.Programs {
	return cli.Programs{Server: runServer, Agent: runAgent, Demo: runDemo, Backup: runBackup, Restore: runRestore, Preflight: runPreflight, Guest: runGuest, GuestReport: runGuestReport}
}
