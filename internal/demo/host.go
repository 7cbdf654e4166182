package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/client"
	"github.com/verbena-cloud/verbena/internal/agent"
	"github.com/verbena-cloud/verbena/internal/guest/seed"
	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/hyper/domxml"
	"github.com/verbena-cloud/verbena/internal/hyper/hypertest"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// Host is a simulated hypervisor: kernel and hypervisor stay while its agent comes and goes.
type Host struct {
	Name   string
	Kernel *sysfstest.Kernel
	Hyper  *hypertest.Hypervisor

	cloud  *Cloud
	dir    string
	secret string // join token, used once

	mu    sync.Mutex
	agent *running
}

func newHost(name, dir string, hardware sysfstest.Config) (*Host, error) {
	k, err := sysfstest.New(hardware)
	if err != nil {
		return nil, err
	}
	h := &Host{Name: name, Kernel: k, dir: dir}
	h.Hyper = hypertest.New(hypertest.Config{Kernel: k, Render: domxml.Render, KVM: true})
	return h, nil
}

// join gets the one-time token that the agent will join by.
func (h *Host) join(ctx context.Context, c *client.Client) error {
	grant, err := c.CreateJoinToken(ctx, api.JoinTokenRequest{Host: h.Name})
	if err != nil {
		return err
	}
	h.secret = grant.Secret
	return nil
}

// StartAgent starts a new agent process, so to say, on the host.
func (h *Host) StartAgent(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.agent != nil {
		return fmt.Errorf("the agent of %s runs already", h.Name)
	}
	h.Kernel.Revive()
	k := h.Kernel
	a, err := agent.New(agent.Config{
		Host: h.Name, Server: h.cloud.Address(), JoinToken: h.secret, State: filepath.Join(h.dir, "agent"),
		Version: h.cloud.cfg.Version, Simulated: true, Beat: h.cloud.cfg.Beat,
	}, agent.Deps{
		Tree: k, Links: k, Autostart: h.Hyper.Driver(), DCB: k.Ports(), Stats: k, LLDPAgents: func(context.Context) ([]string, error) { return nil, nil }, Hyper: h.Hyper.Driver(), Disk: simulatedDisk{filepath.Join(h.dir, "vms")}, Seed: seed.ISO,
		Holders: k.Holders, Modprobe: k.Modprobe, Proc: k.Proc, PermanentMAC: k.PermanentMAC,
		SessionDevices: func() []string { return nil }, Log: h.cloud.cfg.Log.With("program", "agent", "host", h.Name),
	})
	if err != nil {
		return fmt.Errorf("start the agent of %s: %w", h.Name, err)
	}
	h.agent = start(ctx, func(ctx context.Context) error {
		defer a.Close()
		return a.Run(ctx)
	})
	return nil
}

// StopAgent ends the agent; VMs go on. Stopping a stopped one is no error.
func (h *Host) StopAgent() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.agent == nil {
		return nil
	}
	err := h.agent.stop()
	h.agent = nil
	return err
}

// Domain returns the host's domain of a VM, nil if it has none.
func (h *Host) Domain(ctx context.Context, tenant, name string) (*hyper.Seen, error) {
	_, list, err := h.Hyper.Driver().List(ctx)
	if err != nil {
		return nil, err
	}
	for i, d := range list {
		if d.Owner.Tenant == tenant && d.Owner.VM == name {
			return &list[i], nil
		}
	}
	return nil, nil //nolint:nilnil // no domain is an answer
}

// simulatedDisk makes the seeds for real, and root disks as empty files: nothing ever boots from them.
type simulatedDisk struct{ dir string }

func (d simulatedDisk) path(name, kind string) string { return filepath.Join(d.dir, name+kind) }

// Ensure makes an empty file in place of an overlay.
func (d simulatedDisk) Ensure(_ context.Context, name string, _ wire.Image, _ int64) (hyper.Disk, error) {
	disk := hyper.Disk{Path: d.path(name, ".qcow2"), Format: "qcow2"}
	return disk, d.write(disk.Path, nil)
}

// Seed writes the NoCloud ISO.
func (d simulatedDisk) Seed(_ context.Context, name string, iso []byte) (string, error) {
	return d.path(name, ".iso"), d.write(d.path(name, ".iso"), iso)
}

func (d simulatedDisk) write(path string, content []byte) error {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of simulated disks: %w", err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return fmt.Errorf("write a simulated disk: %w", err)
	}
	return nil
}

// Remove removes both.
func (d simulatedDisk) Remove(_ context.Context, name string) error {
	for _, kind := range []string{".qcow2", ".iso"} {
		if err := os.Remove(d.path(name, kind)); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("remove a simulated disk: %w", err)
		}
	}
	return nil
}
