package sysfstest_test

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/verbena-cloud/verbena/internal/dcb"
	"github.com/verbena-cloud/verbena/internal/sysfs/sysfstest"
)

func nics(t *testing.T, driver string, edit func(*sysfstest.Card)) (*sysfstest.Kernel, string) {
	t.Helper()
	cfg := sysfstest.Host(1, 1, 4)
	cfg.Cards[0].Driver = driver
	if edit != nil {
		edit(&cfg.Cards[0])
	}
	k, err := sysfstest.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return k, cfg.Cards[0].PFs[0].Netdev
}

// TestDCBOfDrivers: what each simulated driver lets the host do.
func TestDCBOfDrivers(t *testing.T) {
	for driver, want := range map[string][4]error{ // read, PFC, DSCP entry, UDP port entry
		"mlx5_core": {nil, nil, nil, syscall.EINVAL},
		"bnxt_en":   {},
		"ice":       {nil, dcb.ErrOwned, dcb.ErrOwned, dcb.ErrOwned},
		"igb":       {syscall.EOPNOTSUPP, syscall.EOPNOTSUPP, syscall.EOPNOTSUPP, syscall.EOPNOTSUPP},
	} {
		k, link := nics(t, driver, nil)
		_, err := k.Ports().Get(t.Context(), link)
		got := [4]error{err}
		for i, c := range []dcb.Change{dcb.SetPFC{Enabled: dcb.Of(3)}, dcb.AddApp{Selector: dcb.DSCP, Protocol: 26, Priority: 3}, dcb.AddApp{Selector: dcb.Datagram, Protocol: 4791, Priority: 3}} {
			got[i+1] = k.Ports().Set(t.Context(), link, c)
		}
		for i := range want {
			if !errors.Is(got[i], want[i]) {
				t.Errorf("%s, call %d: %v, want %v", driver, i, got[i], want[i])
			}
		}
	}
}

func TestDCBOverReboot(t *testing.T) {
	k, link := nics(t, "mlx5_core", func(c *sysfstest.Card) { c.OFED = true })
	p := k.Ports()
	for _, prio := range []int{5, 3} { // the second entry of a DSCP takes the place of the first
		if err := p.Set(t.Context(), link, dcb.AddApp{Selector: dcb.DSCP, Protocol: 26, Priority: prio}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := p.Get(t.Context(), link)
	if err != nil || !slices.Equal(s.Apps, []dcb.App{{Selector: dcb.DSCP, Protocol: 26, Priority: 3}}) {
		t.Errorf("%+v, %v", s.Apps, err)
	}
	const file = "/ecn/roce_np/cnp_dscp"
	if err := k.Write(t.Context(), "class/net/"+link+file, "40"); err != nil {
		t.Error(err)
	}
	if err := k.Write(t.Context(), "class/net/"+link+file, "64"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("err = %v", err)
	}
	if err := k.Reboot(); err != nil {
		t.Fatal(err)
	}
	if s, err := p.Get(t.Context(), link); err != nil || len(s.Apps) > 0 {
		t.Errorf("after a reboot %+v, %v", s.Apps, err)
	}
	if v, err := k.Read(t.Context(), "class/net/"+link+file); err != nil || v != "48" {
		t.Errorf("after a reboot %s, %v", v, err)
	}
}

func TestDCBQuirks(t *testing.T) {
	k, link := nics(t, "mlx5_core", func(c *sysfstest.Card) {
		c.PFs[0].Quirks.ForgetsPFC = true
		c.PFs[1].DCBX = new(dcb.Mode(0))
	})
	if err := k.Ports().Set(t.Context(), link, dcb.SetPFC{Enabled: dcb.Of(3)}); !errors.Is(err, dcb.ErrNotTaken) {
		t.Errorf("err = %v", err)
	}
	if err := k.Ports().Reset(link, func(s *dcb.State) { s.PFC.Enabled = 0xff }); err != nil {
		t.Error(err)
	}
	if s, err := k.Ports().Get(t.Context(), link); err != nil || s.PFC.Enabled != 0xff {
		t.Errorf("%+v, %v", s.PFC, err)
	}
	if err := k.Ports().Reset("none", nil); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("err = %v", err)
	}
}
