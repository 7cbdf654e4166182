// Package agenttest has what stands in for a host's disks where the host is simulated: in the demo and in
// tests of other packages. Simulated kernels and hypervisors are in sysfstest and hypertest.
package agenttest

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// Disk is a simulated disk maker: it only remembers which files a host would have. The zero Disk is
// empty. It is safe for concurrent use.
type Disk struct {
	mu    sync.Mutex
	files map[string]bool
}

// Ensure remembers a root disk.
func (d *Disk) Ensure(_ context.Context, name string, img wire.Image, _ int64) (hyper.Disk, error) {
	if img.Source == "" {
		return hyper.Disk{}, fault.New(fault.Invalid, "image %s has no source", img.Name)
	}
	path := "/simulated/" + name + ".qcow2"
	d.add(path)
	return hyper.Disk{Path: path, Format: "qcow2"}, nil
}

// Seed remembers a seed; its content is not kept, since it may hold secrets.
func (d *Disk) Seed(_ context.Context, name string, _ []byte) (string, error) {
	path := "/simulated/" + name + ".iso"
	d.add(path)
	return path, nil
}

func (d *Disk) add(path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files == nil {
		d.files = map[string]bool{}
	}
	d.files[path] = true
}

// Remove forgets a VM's files.
func (d *Disk) Remove(_ context.Context, name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.files, "/simulated/"+name+".qcow2")
	delete(d.files, "/simulated/"+name+".iso")
	return nil
}

// Files returns the files that there would be, sorted.
func (d *Disk) Files() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.files))
}
