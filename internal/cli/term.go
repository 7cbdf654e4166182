package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// ANSI colours.
const (
	red    = "31"
	green  = "32"
	yellow = "33"
	bold   = "1"
	dim    = "2"
)

// paint colours text for a terminal.
func (a *app) paint(tty bool, colour, text string) string {
	if !tty || a.flags.noColor || a.env.Getenv("NO_COLOR") != "" || a.env.Getenv("TERM") == "dumb" || text == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// note says something about the work, on stderr.
func (a *app) note(format string, args ...any) {
	if !a.flags.quiet {
		fmt.Fprintf(a.env.Stderr, format+"\n", args...)
	}
}

// confirm asks before something is destroyed. Without a terminal nobody can answer: it must be said by --yes.
func (a *app) confirm(yes bool, question string) error {
	if yes {
		return nil
	}
	if !a.env.StdinTTY {
		return &coded{exitUsage, question + "\n  " + a.arrow() + " " + a.tr("nobody can be asked here: say --yes if you mean it")}
	}
	fmt.Fprintf(a.env.Stderr, "%s [y/N] ", question)
	line, err := bufio.NewReader(a.env.Stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes", "是":
		return nil
	}
	return &coded{exitError, a.tr("nothing was changed")}
}

// busy says on stderr that work goes on, once it takes longer than a second. The returned function ends it.
func (a *app) busy(ctx context.Context, what string) (done func()) {
	if a.flags.quiet {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.tick(ctx, what)
	}()
	return func() {
		cancel()
		<-ended
	}
}

func (a *app) tick(ctx context.Context, what string) {
	start := a.env.Now()
	wait := time.Second
	shown := false
	for {
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			if shown && a.env.StderrTTY {
				fmt.Fprint(a.env.Stderr, "\r\x1b[K")
			}
			return
		case <-t.C:
		}
		shown = true
		passed := a.env.Now().Sub(start).Round(time.Second)
		if a.env.StderrTTY {
			fmt.Fprintf(a.env.Stderr, "\r\x1b[K%s (%s)", what, passed)
			continue
		}
		a.note("%s (%s)", what, passed)
		wait = min(2*wait, 30*time.Second) // lines stay: fewer of them
	}
}
