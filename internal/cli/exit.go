package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/verbena-cloud/verbena/client"
	"github.com/verbena-cloud/verbena/internal/fault"
)

// Exit codes are API for scripts; `verbena help exit-codes` lists them.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitAuth        = 4
	exitConflict    = 5
	exitPlacement   = 6
	exitTimeout     = 7
	exitChecks      = 8
	exitInterrupted = 130
)

// meaning is a row of the table of exit codes.
type meaning struct {
	code int
	text string
}

func (a *app) exitCodes() []meaning {
	return []meaning{
		{exitOK, a.tr("done")},
		{exitError, a.tr("an error that no other code names, such as invalid input or a server that does not answer")},
		{exitUsage, a.tr("wrong usage of the command line")},
		{exitNotFound, a.tr("an object does not exist, or may not be seen")},
		{exitAuth, a.tr("not logged in, or not allowed")},
		{exitConflict, a.tr("conflict, object changed meanwhile, or quota exceeded")},
		{exitPlacement, a.tr("no host fits")},
		{exitTimeout, a.tr("what was waited for did not happen in time")},
		{exitChecks, a.tr("the check found something: differences, a failed state")},
		{exitInterrupted, a.tr("interrupted")},
	}
}

// coded is an error with an exit code of its own.
type coded struct {
	code int
	text string
}

func (e *coded) Error() string { return e.text }

// usage is an error of how the command was called.
func (a *app) misuse(text string, args ...any) error {
	return &coded{exitUsage, a.tr(text, args...)}
}

// silent ends a command with a code when everything has been said.
func silent(code int) error { return &coded{code: code} }

// exitCode maps an error to its exit code: one table for codes of the server and faults of our own.
func exitCode(err error) int {
	if e, ok := errors.AsType[*coded](err); ok {
		return e.code
	}
	if errors.Is(err, context.Canceled) {
		return exitInterrupted
	}
	kind := fault.KindOf(err)
	if e, ok := errors.AsType[*client.Error](err); ok {
		kind = fault.Kind(e.Code)
	}
	switch kind {
	case fault.NotFound:
		return exitNotFound
	case fault.Unauthenticated, fault.Forbidden:
		return exitAuth
	case fault.Conflict, fault.Precondition, fault.Quota:
		return exitConflict
	case fault.NoCapacity:
		return exitPlacement
	case fault.Deadline:
		return exitTimeout
	default:
		return exitError
	}
}

// title is a code of the server in the reader's language.
func (a *app) title(code, fallback string) string {
	switch fault.Kind(code) {
	case fault.Internal:
		return a.tr("internal error")
	case fault.Invalid:
		return a.tr("invalid input")
	case fault.Unauthenticated:
		return a.tr("not logged in")
	case fault.Forbidden:
		return a.tr("not allowed")
	case fault.NotFound:
		return a.tr("not found")
	case fault.Conflict:
		return a.tr("conflict")
	case fault.Precondition:
		return a.tr("changed meanwhile")
	case fault.Quota:
		return a.tr("quota exceeded")
	case fault.NoCapacity:
		return a.tr("no host fits")
	case fault.Unready:
		return a.tr("not ready")
	case fault.Gone:
		return a.tr("position gone")
	case fault.TooLarge:
		return a.tr("too large")
	case fault.RateLimited:
		return a.tr("too many requests")
	case fault.Unavailable:
		return a.tr("server not available")
	case fault.Deadline:
		return a.tr("timed out")
	}
	return fallback
}

// complain tells people of an error: what happened, where, and what to do next.
func (a *app) complain(err error) {
	if e, ok := errors.AsType[*coded](err); ok && e.text == "" {
		return
	}
	red := a.paint(a.env.StderrTTY, red, a.tr("error")+":")
	if e, ok := errors.AsType[*client.Error](err); ok {
		title, text := printable(a.title(e.Code, e.Title))+": ", printableLines(e.Error())
		if strings.Contains(text, title) {
			title = "" // the text says it itself
		}
		fmt.Fprintf(a.env.Stderr, "%s %s%s\n", red, title, text)
		a.evidence(e)
		return
	}
	if e, ok := errors.AsType[*client.ConnError](err); ok {
		fmt.Fprintf(a.env.Stderr, "%s %s\n  %s %s\n", red, printableLines(a.connText(e)), a.arrow(), printableLines(a.connHint(e)))
		return
	}
	fmt.Fprintf(a.env.Stderr, "%s %s\n", red, printableLines(err.Error()))
}

func (a *app) arrow() string { return "→" }

// evidence shows what a refusal carries besides its sentence.
func (a *app) evidence(e *client.Error) {
	w := a.env.Stderr
	if e.Explanation != nil {
		fmt.Fprintln(w)
		a.writeExplanation(w, *e.Explanation)
	} else if len(e.Quota) > 0 {
		fmt.Fprintln(w)
		a.writeQuota(w, e.Quota)
	}
	if hint := a.hint(e); hint != "" {
		fmt.Fprintf(w, "  %s %s\n", a.arrow(), hint)
	}
	if e.Code == string(fault.Internal) && e.RequestID != "" {
		fmt.Fprintf(w, "  %s\n", a.tr("request id: %s", printable(e.RequestID)))
	}
}

// hint is what to do next, in terms of this command line.
func (a *app) hint(e *client.Error) string {
	switch fault.Kind(e.Code) {
	case fault.Unauthenticated:
		return a.tr("log in: verbena login URL")
	case fault.Forbidden:
		return a.tr("see what you may do: verbena whoami; an owner of the tenant or an operator can give you a role")
	case fault.NotFound:
		return a.tr("check name and tenant; what you may not see is answered the same way")
	case fault.Quota:
		return a.tr("free something, or ask an operator for more: verbena tenant usage")
	case fault.NoCapacity:
		return ""
	case fault.Precondition:
		return a.tr("read the object again and decide anew")
	case fault.Unavailable:
		return a.tr("try again; verbena status says what is wrong")
	case fault.Deadline:
		return a.tr("it may still happen: look at the object before you try again")
	case fault.Internal:
		return a.tr("report it with the request id; the server's log has the cause under it")
	}
	return ""
}

func (a *app) connText(e *client.ConnError) string {
	switch {
	case e.Trust:
		return a.tr("%s can't prove that it is the server we trust: %v", e.Server, e.Err)
	case e.Slow:
		return a.tr("%s did not answer within %s", e.Server, a.flags.timeout)
	case e.Broken:
		return a.tr("the connection to %s broke before its answer: %v", e.Server, e.Err)
	}
	return a.tr("%s can't be reached: %v", e.Server, e.Err)
}

func (a *app) connHint(e *client.ConnError) string {
	switch {
	case e.Trust:
		return a.tr("is it the right server? If its CA was made anew, log in again: verbena login %s", e.Server)
	case e.Slow:
		return a.tr("it may be overloaded: try --request-timeout 2m, or look at its log")
	case e.Broken:
		return a.tr("a change may or may not have been made: look at the object, then try again")
	}
	return a.tr("does the server run (verbena server), is the address right (verbena context list), is a firewall between?")
}
