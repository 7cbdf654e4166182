package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/verbena-cloud/verbena/internal/fault"
)

func TestGuestTool(t *testing.T) {
	// Nothing lies beside the binary of a test.
	for _, path := range []string{"", noTool} {
		if b, err := guestTool(path); b != nil || err != nil {
			t.Errorf("%q: %d bytes, %v", path, len(b), err)
		}
	}
	path := filepath.Join(t.TempDir(), "tool")
	if _, err := guestTool(path); err == nil {
		t.Error("one that was asked for and is missing is an error")
	}
	if err := os.WriteFile(path, []byte("ELF"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := guestTool(path); string(b) != "ELF" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if err := os.WriteFile(path, bytes.Repeat([]byte("x"), maxTool+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := guestTool(path); !fault.Is(err, fault.Invalid) {
		t.Errorf("a program that is too large: %v", err)
	}
}
