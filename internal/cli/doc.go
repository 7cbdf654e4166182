// Package cli is the command line of Verbena: everything but the programs that stay running, which main
// passes in.
//
// The answer of a command goes to stdout, everything said about it to stderr. Exit codes tell programs what
// happened (exit.go). Texts are English in the source and translated by a catalogue (words.go, zh.json);
// a test demands that every text has its translation. No command ends the process, reads the environment
// or touches the terminal other than through Env, so that all of them run in tests.
package cli
