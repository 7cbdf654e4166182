// Package seed packs a guest's first-boot files into a NoCloud ISO 9660 image with the label "cidata".
package seed

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/kdomanski/iso9660"

	"github.com/verbena-cloud/verbena/internal/guest"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// ISO returns the image. It may hold secrets of the tenant: store it readable by the hypervisor alone.
func ISO(s wire.Seed, instance string) ([]byte, error) { return Maker{}.ISO(s, instance) }

// Maker makes images.
type Maker struct {
	Tool []byte // the program for guests with RDMA; nil = none
}

// ISO returns the image, as the function of that name.
func (m Maker) ISO(s wire.Seed, instance string) (image []byte, err error) {
	files, err := guest.Files(s, instance, m.Tool)
	if err != nil {
		return nil, err
	}
	w, err := iso9660.NewWriter()
	if err != nil {
		return nil, fmt.Errorf("make seed of %s: %w", s.Hostname, err)
	}
	defer func() {
		if cerr := w.Cleanup(); cerr != nil {
			err = errors.Join(err, fmt.Errorf("clean up after the seed of %s: %w", s.Hostname, cerr))
		}
	}()
	for _, f := range files {
		if err := w.AddFile(bytes.NewReader(f.Data), f.Name); err != nil {
			return nil, fmt.Errorf("add %s to the seed of %s: %w", f.Name, s.Hostname, err)
		}
	}
	var out bytes.Buffer
	if err := w.WriteTo(&out, guest.Label); err != nil {
		return nil, fmt.Errorf("write seed of %s: %w", s.Hostname, err)
	}
	return out.Bytes(), nil
}
