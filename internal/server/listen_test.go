package server

import (
	"errors"
	"fmt"
	"net"
	"testing"

	"pgregory.net/rapid"
)

// dialled is a listener that hands out connections from given addresses.
type dialled struct {
	net.Listener
	from []string
}

type remote struct {
	net.Conn
	addr   string
	closed bool
}

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

func (r *remote) RemoteAddr() net.Addr { return address(r.addr) }
func (r *remote) Close() error         { r.closed = true; return nil }

func (d *dialled) Accept() (net.Conn, error) {
	if len(d.from) == 0 {
		return nil, errors.New("no more")
	}
	c := &remote{addr: d.from[0]}
	d.from = d.from[1:]
	return c, nil
}

// One address can't take all places, all together can't take more than there are, and a place that was
// given back is there again.
func TestConnectionsAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := bound(nil, uint64(spareFiles+rapid.IntRange(100, 200).Draw(t, "files")))
		var open []net.Conn
		from := map[string]int{}
		for range rapid.IntRange(1, 600).Draw(t, "steps") {
			if len(open) > 0 && rapid.IntRange(0, 4).Draw(t, "close") == 0 {
				c := open[0]
				open = open[1:]
				from[network(c.RemoteAddr().String())]--
				for range 2 {
					if err := c.Close(); err != nil {
						t.Fatal(err)
					}
				}
				continue
			}
			addr := fmt.Sprintf("10.0.0.%d:%d", rapid.IntRange(1, 6).Draw(t, "host"), 1024+len(open))
			b.Listener = &dialled{from: []string{addr}}
			who := network(addr)
			room := len(open) < b.most && from[who] < b.most/addressShare
			c, err := b.Accept()
			if (err == nil) != room {
				t.Fatalf("%d open, %d from %s, of %d: accepted %v", len(open), from[who], who, b.most, err == nil)
			}
			if err == nil {
				open = append(open, c)
				from[who]++
			}
		}
		if b.open != len(open) {
			t.Fatalf("%d counted, %d open", b.open, len(open))
		}
	})
}

func TestFewFilesStillServe(t *testing.T) {
	if b := bound(nil, 64); b.most < 16 {
		t.Errorf("%d connections", b.most)
	}
	if b := bound(nil, 1<<20); b.most != maxConns {
		t.Errorf("%d connections", b.most)
	}
}
