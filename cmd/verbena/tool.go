package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/guest"
)

// noTool says that VMs get no program.
const noTool = "none"

// maxTool bounds the program: it is in the seed of every VM.
const maxTool = 16 << 20

// guestTool reads the program that seeds bring into VMs: from path, or where that is empty, from beside this
// program, if it is there.
func guestTool(path string) ([]byte, error) {
	if path == noTool {
		return nil, nil
	}
	wanted := path != ""
	if !wanted {
		self, err := os.Executable()
		if err != nil {
			return nil, nil //nolint:nilerr // then nothing lies beside it either
		}
		path = filepath.Join(filepath.Dir(self), guest.Tool)
	}
	b, err := os.ReadFile(path)
	switch {
	case !wanted && errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the program for guests: %w; --guest-tool names another, and with %s VMs get none", err, noTool)
	case len(b) > maxTool:
		return nil, fault.New(fault.Invalid, "%s has %d bytes, the program for guests has at most %d: it must be %s, not another", path, len(b), maxTool, guest.Tool)
	}
	return b, nil
}
