package agent

import (
	"testing"
	"testing/synctest"

	"github.com/verbena-cloud/verbena/api"
)

const (
	mac1 = "02:5a:10:00:00:01"
	mac2 = "02:5a:10:00:00:02"
	mac3 = "02:5a:10:00:00:03"
)

func TestLifeOfAVM(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, host(4))
		w.boot()
		if err := w.tell(); err != nil {
			t.Fatal(err)
		}
		w.mustSettle("commission")
		inv := w.a.inventory()
		if len(inv.PFs) != 2 {
			t.Fatalf("PFs: %+v", inv)
		}
		for _, p := range inv.PFs {
			if !p.Ready || len(p.VFs) != 4 {
				t.Fatalf("PF %s: ready %v (%s), VFs %+v", p.Key, p.Ready, p.Reason, p.VFs)
			}
			for _, v := range p.VFs {
				if v.State != api.VFParked {
					t.Errorf("VF %d of %s is %s: %s", v.Index, p.Key, v.State, v.Reason)
				}
			}
		}
		vm := w.add("a", vf(pf0, 0, mac1, 101), vf(pf1, 2, mac2, 102))
		if err := w.tell(); err != nil {
			t.Fatal(err)
		}
		w.mustSettle("create")
		st := w.status(vm.UID)
		if st.Phase != api.PhaseReady || len(st.VFs) != 2 || st.VFs[0].State != api.VFAttached {
			t.Fatalf("status %+v", st)
		}
		vm.Absent = true
		if err := w.tell(); err != nil {
			t.Fatal(err)
		}
		w.mustSettle("delete")
		if st := w.status(vm.UID); !st.Absent {
			t.Fatalf("status %+v", st)
		}
	})
}
