package apply

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-cloud/verbena/internal/guestreport"
	"github.com/verbena-cloud/verbena/internal/rdma"
)

// wire is a port that takes so many bytes of each write and then fails, as when the host does not listen. It
// ends the run at its last write.
type wire struct {
	bytes.Buffer
	room []int
	end  func()
}

func (w *wire) Close() error                     { return nil }
func (w *wire) SetWriteDeadline(time.Time) error { return nil }
func (w *wire) Write(b []byte) (int, error) {
	room := w.room[0]
	if w.room = w.room[1:]; len(w.room) == 0 {
		w.end()
	}
	if len(b) > room {
		n, _ := w.Buffer.Write(b[:room])
		return n, os.ErrDeadlineExceeded
	}
	return w.Buffer.Write(b)
}

func TestReporter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w, logged, opened, start := &wire{room: []int{1 << 20, 40, 1 << 20}, end: cancel}, 0, 0, time.Now()
		r := &Reporter{Machine: newKernel().machine(), Version: "v1", Log: func(error) { logged++ }, Open: func() (Port, error) {
			if opened++; opened == 1 {
				return nil, errors.New("no port yet")
			}
			return w, nil
		}}
		r.Every(ctx, 30*time.Second) // no port, a report, one that is cut, a report
		if took := time.Since(start); took != 90*time.Second {
			t.Errorf("four tries took %v", took)
		}
		d := guestreport.NewDecoder(&w.Buffer)
		var seqs []uint64
		bad := 0
		for {
			x, err := d.Next()
			if errors.As(err, new(*guestreport.BadLineError)) {
				bad++
				continue
			}
			if err != nil {
				break
			}
			seqs = append(seqs, x.Seq)
			if x.Agent != "v1" || len(x.Devices) != 1 || x.Time == 0 {
				t.Errorf("%+v", x)
			}
		}
		if len(seqs) != 2 || seqs[0] != 1 || seqs[1] != 3 || bad != 1 || logged != 2 {
			t.Errorf("reports %v, %d cut lines, %d failures told", seqs, bad, logged)
		}
	})
}

func TestOnceToFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "port")
	r := &Reporter{Machine: newKernel().machine(), Open: func() (Port, error) { return OpenPort(path) }}
	if err := r.Once(t.Context()); err == nil {
		t.Error("a port that is not there was opened")
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if x, err := guestreport.NewDecoder(f).Next(); err != nil || x.Kernel != "6.12.0" {
		t.Errorf("%+v, %v", x, err)
	}
}

// core is an RDMA core with two devices, of which one tells no queue pairs.
type core struct {
	rdma.Devices
	err error
}

func (c core) List(context.Context) ([]rdma.Device, error) {
	return []rdma.Device{{ID: rdma.ID{Name: "mlx5_0"}}, {ID: rdma.ID{Name: "siw0"}}}, nil
}

func (c core) Resources(_ context.Context, d rdma.ID) (rdma.Resources, error) {
	if d.Name == "mlx5_0" {
		return rdma.Resources{"pd": 2, "qp": 517}, nil
	}
	return rdma.Resources{}, c.err
}

func TestQueuePairs(t *testing.T) {
	for _, err := range []error{nil, rdma.Gone(rdma.ID{Name: "siw0"})} {
		if got, err := queuePairs(core{err: err})(t.Context()); err != nil || len(got) != 1 || got["mlx5_0"] != 517 {
			t.Errorf("%v, %v", got, err)
		}
	}
	if _, err := queuePairs(core{err: errors.New("broken")})(t.Context()); err == nil {
		t.Error("an error was swallowed")
	}
}
