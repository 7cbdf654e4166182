package apply

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/verbena-cloud/verbena/internal/guestos"
	"github.com/verbena-cloud/verbena/internal/guestreport"
)

// Port is where reports go.
type Port interface {
	io.WriteCloser
	SetWriteDeadline(t time.Time) error
}

// OpenPort opens a virtio-serial port.
func OpenPort(path string) (Port, error) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("open the port to the host: %w; a VM of Verbena has %s, and one program at a time may hold it", err, guestreport.Channel)
	}
	return f, nil
}

// Reporter tells the host what the guest is like.
type Reporter struct {
	Machine *Machine
	Version string
	Open    func() (Port, error)
	Log     func(error) // hears of each change from going well to failing
	seq     uint64
	torn    bool // the last line may have been cut: the next begins on a line of its own
}

// writeTime bounds one report: a host that does not listen fills the port, and then writing waits.
const writeTime = 5 * time.Second

// lookTime bounds what is read for one report; a device that hangs is left out of it.
const lookTime = 20 * time.Second

// Once sends one report.
func (r *Reporter) Once(ctx context.Context) error {
	p, err := r.Open()
	if err != nil {
		return err
	}
	if err := r.send(ctx, p); err != nil {
		_ = p.Close() // what matters is why nothing was sent
		return err
	}
	return p.Close()
}

// Every sends a report at once and then at each interval, until ctx ends. A port that is missing or whose
// host does not listen is tried again at the next one.
func (r *Reporter) Every(ctx context.Context, interval time.Duration) {
	var p Port
	well := true
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		err := error(nil)
		if p == nil {
			p, err = r.Open()
		}
		if err == nil {
			err = r.send(ctx, p)
		}
		if err != nil && ctx.Err() == nil && well && r.Log != nil {
			r.Log(err)
		}
		if well = err == nil; !well && p != nil {
			_ = p.Close() // it is opened anew
			p = nil
		}
		select {
		case <-ctx.Done():
			if p != nil {
				_ = p.Close() // the program ends
			}
			return
		case <-tick.C:
		}
	}
}

func (r *Reporter) send(ctx context.Context, p Port) error {
	looking, cancel := context.WithTimeout(ctx, lookTime)
	x := guestos.Report(r.Machine.Facts(looking), r.Version)
	cancel()
	if err := ctx.Err(); err != nil {
		return err
	}
	r.seq++
	x.Seq, x.Time = r.seq, time.Now().Unix()
	line, err := guestreport.Encode(x)
	if err != nil {
		return err
	}
	if r.torn {
		line = append([]byte{'\n'}, line...)
	}
	// A plain file has no deadline and needs none.
	_ = p.SetWriteDeadline(time.Now().Add(writeTime))
	r.torn = true
	if _, err := p.Write(line); err != nil {
		return fmt.Errorf("send a report to the host: %w; does its agent run?", err)
	}
	r.torn = false
	return nil
}
