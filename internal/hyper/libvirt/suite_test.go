package libvirt_test

import (
	"fmt"
	"testing"

	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/hyper/hypertest"
	"github.com/verbena-cloud/verbena/internal/hyper/libvirt"
)

// TestSuite holds the engine to what every hypervisor engine must do. The test driver keeps its domains only
// while a connection is open, so one is held.
func TestSuite(t *testing.T) {
	hypertest.Run(t, func(t *testing.T) hypertest.Fixture {
		d := startDaemon(t)
		keep := open(t, d)
		if _, _, err := keep.List(t.Context()); err != nil {
			t.Fatal(err)
		}
		return hypertest.Fixture{
			Connect: func() hyper.Driver { return open(t, d) },
			Domain: func(i, vfs int) hyper.Domain {
				dom := domain(t, vfs)
				dom.UUID = fmt.Sprintf("6f1c4a52-8a4e-4d61-9c1f-0d3a5b7e9f1%d", i)
				dom.Name = fmt.Sprintf("research.train-%d", i)
				dom.Owner.VM = fmt.Sprintf("train-%d", i)
				return dom
			},
			Foreign: "6695eb01-f6a4-8304-79aa-97f2502e193f", ForeignName: "test",
			Stop: d.kill, Start: d.start,
		}
	})
}

var _ hyper.Driver = (*libvirt.Driver)(nil)
