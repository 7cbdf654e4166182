package netlink_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/rtnl"
	"github.com/verbena-cloud/verbena/internal/rtnl/netlink"
)

// TestLiveVFs makes a simulated PF with many VFs in the running kernel, sets them and reads them.
func TestLiveVFs(t *testing.T) {
	const bus, debug = "/sys/bus/netdevsim", "/sys/kernel/debug/netdevsim"
	if _, err := os.Stat(bus + "/new_device"); err != nil {
		t.Skipf("the kernel has no simulated devices (netdevsim): %v", err)
	}
	id := fmt.Sprint(os.Getpid())
	inNamespace(t, func(t *testing.T) {
		if err := os.WriteFile(bus+"/new_device", []byte(id+" 1"), 0); err != nil {
			t.Errorf("make a simulated device: %v", err)
			return
		}
		defer os.WriteFile(bus+"/del_device", []byte(id), 0)
		count := 300
		if err := os.WriteFile(debug+"/netdevsim"+id+"/max_vfs", fmt.Append(nil, count), 0); err != nil {
			count = 4 // its number without debugfs
		}
		if err := os.WriteFile(bus+"/devices/netdevsim"+id+"/sriov_numvfs", fmt.Append(nil, count), 0); err != nil {
			t.Errorf("make %d VFs: %v", count, err)
			return
		}
		simulated(t, count)
	})
}

// simulated reads and sets the only link that is neither lo nor one of the pair.
func simulated(t *testing.T, count int) {
	t.Helper()
	out, err := exec.Command("ip", "-o", "link", "show").Output()
	if err != nil {
		t.Errorf("list links: %v", err)
		return
	}
	pf := ""
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 1 && f[1] != "lo:" && !strings.Contains(f[1], "@") {
			pf = strings.TrimSuffix(f[1], ":")
		}
	}
	var l netlink.Links
	last := count - 1
	for _, a := range []rtnl.Attr{rtnl.MAC{2, 0, 0, 0, 0, 9}, rtnl.VLAN{ID: 101, QoS: 3}, rtnl.Rate{Min: 1, Max: 500}, rtnl.Trust(true), rtnl.SpoofCheck(true), rtnl.State(rtnl.LinkDisable)} {
		if err := l.SetVF(endless(), pf, last, a); err != nil {
			t.Error(err)
		}
	}
	vfs, err := l.VFs(endless(), pf)
	if err != nil || len(vfs) != count {
		t.Errorf("%d of %d VFs: %v", len(vfs), count, err)
		return
	}
	v := vfs[last]
	if v.Index != last || v.MAC != (roce.MAC{2, 0, 0, 0, 0, 9}) || v.VLAN != 101 || v.QoS != 3 || v.MaxRate != 500 || v.Trust == nil || !*v.Trust || *v.LinkState != rtnl.LinkDisable {
		t.Errorf("the last VF reads back as %+v", v)
	}
	stats, err := l.VFStats(endless(), pf)
	if err != nil || len(stats) != count || stats[last].Index != last {
		t.Errorf("statistics of %d of %d VFs: %v", len(stats), count, err)
		return
	}
	if s := stats[last]; s.RxPackets != 0 || s.TxDropped == nil || *s.TxDropped != 0 { // that driver counts nothing
		t.Errorf("statistics of the last VF: %+v", s)
	}
}
