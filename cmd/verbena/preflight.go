package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-cloud/verbena/internal/cli"
	dcbnl "github.com/verbena-cloud/verbena/internal/dcb/netlink"
	devlinknl "github.com/verbena-cloud/verbena/internal/devlink/netlink"
	"github.com/verbena-cloud/verbena/internal/preflight"
	"github.com/verbena-cloud/verbena/internal/preflight/collect"
	rdmanl "github.com/verbena-cloud/verbena/internal/rdma/netlink"
	"github.com/verbena-cloud/verbena/internal/sysfs"
)

// looking bounds a preflight: a device that hangs costs its own facts only.
const looking = time.Minute

// runPreflight looks at this host, after the safe steps where they are asked for.
func runPreflight(ctx context.Context, o cli.PreflightOptions) (preflight.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, looking)
	defer cancel()
	tree, err := sysfs.Open(filepath.Join(o.Root, "sys"))
	if err != nil {
		return preflight.Report{}, err
	}
	defer tree.Close()
	host := collect.Host{Sys: tree, Root: os.DirFS(o.Root), Memlock: memlock(), Priority: o.Config.Priority, AsRoot: os.Geteuid() == 0}
	if o.Root == "/" { // another root's kernel is not the one that answers here
		host.DCB, host.Addresses, host.Run = &dcbnl.Links{}, addresses, run
		host.Devlink, host.RDMA = &devlinknl.Devices{}, &rdmanl.Devices{}
	}
	facts := host.Facts(ctx)
	if o.Fix && o.Root == "/" {
		for _, fix := range preflight.Fixes(facts) {
			_, err := run(ctx, "modprobe", fix.Module)
			o.Say(fix, err)
		}
		facts = host.Facts(ctx)
	}
	name, err := os.Hostname()
	if err != nil {
		return preflight.Report{}, fmt.Errorf("ask the host's name: %w", err)
	}
	return preflight.Report{Host: name, Kernel: facts.Kernel, Findings: preflight.Check(facts, o.Config)}, nil
}

func memlock() preflight.Limit {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) != nil {
		return preflight.Limit{}
	}
	return preflight.Limit{Known: true, Unlimited: l.Cur == unix.RLIM_INFINITY, Bytes: l.Cur}
}

// addresses are those that a GID is made of.
func addresses(link string) ([]netip.Addr, error) {
	l, err := net.InterfaceByName(link)
	if err != nil {
		return nil, err
	}
	list, err := l.Addrs()
	var out []netip.Addr
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, p.Addr().WithZone(""))
		}
	}
	return out, err
}

// run runs a program of the host and returns what it prints, complaints last; one that is not installed is fs.ErrNotExist.
func run(ctx context.Context, program string, args ...string) (string, error) {
	var out, complaints strings.Builder
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // programs and arguments are constants of this tree
	cmd.Stdout, cmd.Stderr = &out, &complaints
	switch err := cmd.Run(); {
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("%s is not installed: %w", program, fs.ErrNotExist)
	case err != nil && complaints.Len() > 0:
		return "", fmt.Errorf("%w: %.200s", err, complaints.String())
	case err != nil:
		return "", err
	}
	return out.String() + "\n" + complaints.String(), nil
}
