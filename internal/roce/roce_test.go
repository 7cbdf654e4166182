package roce_test

import (
	"testing"

	"github.com/verbena-cloud/verbena/internal/roce"
)

func TestMAC(t *testing.T) {
	m, err := roce.ParseMAC("02:5A:10-00:00:07")
	if err != nil || m.String() != "02:5a:10:00:00:07" || !m.Unicast() || !m.Local() {
		t.Errorf("%v, %v", m, err)
	}
	for _, bad := range []string{"", "02:5a:10:00:00", "02:5a:10:00:00:zz", "02:5a:10:00:00:07:08", "02.5a.10.00.00.07", "025a10000007xxxxx"} {
		if v, err := roce.ParseMAC(bad); err == nil {
			t.Errorf("ParseMAC(%q) = %v, want an error", bad, v)
		}
	}
	for text, want := range map[string]bool{"01:00:5e:00:00:01": false, "ff:ff:ff:ff:ff:ff": false, "00:00:00:00:00:00": false, "00:1b:21:00:00:01": true} {
		m, err := roce.ParseMAC(text)
		if err != nil || m.Unicast() != want {
			t.Errorf("%s.Unicast() = %v, %v, want %v", text, m.Unicast(), err, want)
		}
	}
}

// TestC34_WideDomains: PCI domains above 0000 and with more than four digits (VMD) are read and printed alike.
func TestC34_WideDomains(t *testing.T) {
	for _, s := range []string{"0000:3b:02.1", "0001:d6:00.0", "10000:e1:00.0", "0000:10:1f.7"} {
		a, err := roce.ParsePCI(s)
		if err != nil || a.String() != s {
			t.Errorf("%s reads as %s, %v", s, a, err)
		}
	}
	for _, bad := range []string{"", "3b:02.1", "0000:3b:20.1", "0000:3b:02.8", "0000:3b:2.1", "123456789:00:00.0", "0000:3b:02.1 ", "0x0000:3b:02.1"} {
		if a, err := roce.ParsePCI(bad); err == nil {
			t.Errorf("ParsePCI(%q) = %v, want an error", bad, a)
		}
	}
}

func TestGUID(t *testing.T) {
	g, err := roce.ParseGUID("0002:c903:00ab:cdef")
	if err != nil || g != 0x0002c90300abcdef || g.String() != "0002:c903:00ab:cdef" {
		t.Errorf("%v, %v", g, err)
	}
	if z, err := roce.ParseGUID("0000:0000:0000:0000"); err != nil || z != 0 {
		t.Errorf("%v, %v", z, err)
	}
	if _, err := roce.ParseGUID("zz"); err == nil {
		t.Error("want an error")
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"02:5a:10:00:00:07", "0000:3b:02.1", "10000:e1:00.0", "0002:c903:00ab:cdef"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if m, err := roce.ParseMAC(s); err == nil {
			if back, err := roce.ParseMAC(m.String()); err != nil || back != m {
				t.Fatalf("%q: %v, %v", s, back, err)
			}
		}
		if a, err := roce.ParsePCI(s); err == nil {
			if back, err := roce.ParsePCI(a.String()); err != nil || back != a {
				t.Fatalf("%q: %v, %v", s, back, err)
			}
		}
		if g, err := roce.ParseGUID(s); err == nil {
			if back, err := roce.ParseGUID(g.String()); err != nil || back != g {
				t.Fatalf("%q: %v, %v", s, back, err)
			}
		}
	})
}
