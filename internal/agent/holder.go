package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// vfioHolders returns a scan of all processes' open files for vfio groups. A process that ends meanwhile
// is no error; one that can't be looked into is, since it might hold what is about to be called free. Where
// dev (/dev/vfio) has no group at all there is nothing to hold, and nobody is looked at.
func vfioHolders(proc, dev string) func(context.Context) (map[string][]int, error) {
	return func(ctx context.Context) (map[string][]int, error) {
		if some, err := anyGroup(dev); err != nil || !some {
			return nil, err
		}
		procs, err := os.ReadDir(proc)
		if err != nil {
			return nil, fmt.Errorf("list processes: %w", err)
		}
		out := map[string][]int{}
		for _, p := range procs {
			pid, err := strconv.Atoi(p.Name())
			if err != nil {
				continue
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			groups, err := openGroups(filepath.Join(proc, p.Name(), "fd"))
			if err != nil {
				return nil, fmt.Errorf("look for open vfio groups of process %d: %w", pid, err)
			}
			for _, g := range groups {
				if !slices.Contains(out[g], pid) {
					out[g] = append(out[g], pid)
				}
			}
		}
		return out, nil
	}
}

// anyGroup reports whether a function is bound to vfio: then its group (/dev/vfio/N) or device
// (/dev/vfio/devices/vfioN) has a node, until the last holder lets go.
func anyGroup(dev string) (bool, error) {
	for _, dir := range []string{dev, filepath.Join(dev, "devices")} {
		list, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, fmt.Errorf("list vfio groups: %w", err)
		}
		for _, e := range list {
			if n := e.Name(); n != "vfio" && n != "devices" {
				return true, nil
			}
		}
	}
	return false, nil
}

// openGroups returns the vfio groups among a process's open files.
func openGroups(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, over(err)
	}
	names, err := f.Readdirnames(-1)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, over(err)
	}
	var out []string
	for _, n := range names {
		target, err := os.Readlink(filepath.Join(dir, n))
		if err != nil {
			if over(err) == nil {
				continue
			}
			return nil, err
		}
		if g, ok := strings.CutPrefix(target, "/dev/vfio/"); ok && g != "vfio" {
			out = append(out, strings.TrimPrefix(g, "devices/"))
		}
	}
	return out, nil
}

// over turns the ways in which a process that has ended shows itself into no error.
func over(err error) error {
	if errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), "no such process") {
		return nil
	}
	return err
}

// modprobe loads a kernel module.
func modprobe(ctx context.Context, module string) error {
	if out, err := exec.CommandContext(ctx, "modprobe", module).CombinedOutput(); err != nil { //nolint:gosec // the module's name is a constant of ours
		return fmt.Errorf("%w: %.200s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
