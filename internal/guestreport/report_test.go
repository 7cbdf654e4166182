package guestreport

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
)

func sample() Report {
	qps := int64(3)
	return Report{V: Version, Seq: 7, Kernel: "6.12.0", Devices: []Device{{Name: "mlx5_0", PCI: "0000:00:05.0", NUMA: -1, QPCount: &qps,
		Ports: []Port{{Port: 1, State: "ACTIVE", GID: "::ffff:10.0.0.5", GIDIndex: 3, ActiveMTU: 4096, Counters: map[string]uint64{"RNR sent": 1}}}}}}
}

func TestRoundTrip(t *testing.T) {
	line, err := Encode(sample())
	if err != nil {
		t.Fatal(err)
	}
	got, err := NewDecoder(bytes.NewReader(line)).Next()
	if err != nil || !reflect.DeepEqual(got, sample()) {
		t.Fatalf("%+v, %v", got, err)
	}
}

// TestOtherVersions: unknown fields and a newer version are taken for what is understood of them.
func TestOtherVersions(t *testing.T) {
	r, err := Decode([]byte(`{"v":9,"seq":4,"mood":"good","devices":[{"name":"a","colour":[1]}]}`))
	if err != nil || r.V != 9 || r.Seq != 4 || len(r.Devices) != 1 || r.Devices[0].Name != "a" {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, bad := range []string{`{}`, `{"v":0}`, `{"v":-1}`, `[]`, `{"v":"1"}`, "\x00", `{"v":1`} {
		if _, err := Decode([]byte(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestBadLinesDoNotEndTheStream(t *testing.T) {
	stream := strings.Repeat("x", 3*MaxLine) + "\n\nnonsense\n" + `{"v":1,"seq":2}` + "\n" + `{"v":1,"seq":3}`
	d := NewDecoder(strings.NewReader(stream))
	for range 2 {
		if _, err := d.Next(); !errors.As(err, new(*BadLineError)) {
			t.Fatalf("err = %v", err)
		}
	}
	if r, err := d.Next(); err != nil || r.Seq != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	if _, err := d.Next(); !errors.Is(err, io.EOF) {
		t.Fatalf("a line without an end: %v", err)
	}
}

// TestBounds: whatever a guest has, its line keeps the limits, and says that something is missing.
func TestBounds(t *testing.T) {
	r := Report{Kernel: strings.Repeat("k", 500) + "\x1b[2J"}
	for i := range 100 {
		p := Port{Port: 1, Counters: map[string]uint64{}}
		for j := range 400 {
			p.Counters[fmt.Sprintf("counter %03d", j)] = 1 << 60
		}
		r.Devices = append(r.Devices, Device{Name: fmt.Sprint(i), Ports: []Port{p}})
	}
	line, err := Encode(r)
	if err != nil || len(line) > MaxLine+1 {
		t.Fatalf("%d bytes, %v", len(line), err)
	}
	got, err := Decode(bytes.TrimSpace(line))
	if err != nil || !got.Cut || len(got.Devices) != MaxDevices || len(got.Kernel) != MaxText {
		t.Fatalf("%v %d %d, %v", got.Cut, len(got.Devices), len(got.Kernel), err)
	}
	if len(r.Devices[0].Ports[0].Counters) != 400 {
		t.Fatal("the caller's report was changed")
	}
	r, err = Decode([]byte(`{"v":1,"kernel":"a\u001b[2J\u202e"}`))
	if err != nil || strings.ContainsAny(r.Kernel, "\x1b\u202e") {
		t.Fatalf("%q, %v", r.Kernel, err)
	}
}

func FuzzDecoder(f *testing.F) {
	line, err := Encode(sample())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line)
	f.Add([]byte("{\"v\":2,\"devices\":[{\"ports\":[{\"counters\":{\"\\u0000\":1}}]}]}\n"))
	f.Add(bytes.Repeat([]byte("["), MaxLine+5))
	f.Fuzz(func(t *testing.T, stream []byte) {
		d := NewDecoder(bytes.NewReader(stream))
		for range len(stream) + 2 {
			r, err := d.Next()
			if errors.As(err, new(*BadLineError)) {
				continue
			}
			if err != nil {
				return
			}
			if len(r.Devices) > MaxDevices || len(r.Kernel) > MaxText {
				t.Fatalf("over the bounds: %d devices", len(r.Devices))
			}
			// What was accepted can be said again and means the same.
			line, err := Encode(r)
			if err != nil {
				t.Fatal(err)
			}
			r.V = Version
			if again, err := Decode(bytes.TrimSpace(line)); err != nil || (!again.Cut && !reflect.DeepEqual(again, r)) {
				t.Fatalf("%+v became %+v, %v", r, again, err)
			}
		}
		t.Fatal("the decoder does not come to an end")
	})
}
