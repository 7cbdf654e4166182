package main

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"time"

	"github.com/verbena-cloud/verbena/internal/agent"
	"github.com/verbena-cloud/verbena/internal/cli"
	dcblink "github.com/verbena-cloud/verbena/internal/dcb/netlink"
	"github.com/verbena-cloud/verbena/internal/guest/seed"
	"github.com/verbena-cloud/verbena/internal/hyper/libvirt"
	"github.com/verbena-cloud/verbena/internal/rtnl/netlink"
	"github.com/verbena-cloud/verbena/internal/sysfs"
)

// fetching bounds the download of an image.
const fetching = time.Hour

// runAgent works on this host until ctx ends.
func runAgent(ctx context.Context, o cli.AgentOptions) (err error) {
	log, err := logger(o.Log)
	if err != nil {
		return err
	}
	tree, err := sysfs.Open("/sys")
	if err != nil {
		return err
	}
	disk, err := agent.Overlays(filepath.Join(o.State, "vms"), filepath.Join(o.State, "images"), nil, &http.Client{Timeout: fetching})
	if err != nil {
		return err
	}
	tool, err := guestTool(o.GuestTool)
	if err != nil {
		return err
	}
	if tool == nil {
		log.Info("VMs get no program of Verbena: none lies beside this one, or none was asked for")
	}
	driver := libvirt.New(libvirt.Config{Socket: o.Libvirt, Log: log})
	links := &netlink.Links{}
	a, err := agent.New(agent.Config{Host: o.Host, Server: o.Server, JoinToken: o.JoinToken, State: o.State, Version: version, Emulate: o.Emulate},
		agent.Deps{Tree: tree, Links: links, Hyper: driver, Disk: disk, Seed: seed.Maker{Tool: tool}.ISO, PermanentMAC: links.PermanentMAC,
			Autostart: driver, DCB: &dcblink.Links{}, Stats: links, Log: log})
	if err != nil {
		return errors.Join(err, driver.Close())
	}
	defer func() { err = errors.Join(err, a.Close(), driver.Close()) }()
	return a.Run(ctx)
}
