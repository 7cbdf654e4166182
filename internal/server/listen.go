package server

import (
	"net"
	"sync"
	"syscall"
)

// Bounds of connections. Each costs some 50 KiB and a file descriptor, and the embedded store needs
// descriptors in the same process: without a bound, anybody who reaches the port could take them all. One
// address may take a quarter, since the agents of a site may come through one.
const (
	maxConns     = 20_000
	spareFiles   = 128 // for the store, its log, and what else is opened
	addressShare = 4
)

// bounded accepts no more connections than it may; those beyond are closed at once, so that their clients
// hear it instead of waiting.
type bounded struct {
	net.Listener
	most int

	mu   sync.Mutex
	open int
	from map[string]int // address → connections
}

// bound wraps a listener so that files, the number of descriptors that the process may open, suffice.
func bound(l net.Listener, files uint64) *bounded {
	most := maxConns
	if files < maxConns+spareFiles {
		most = max(int(files)-spareFiles, spareFiles/2)
	}
	return &bounded{Listener: l, most: most, from: map[string]int{}}
}

// openFiles is how many descriptors this process may open.
func openFiles() uint64 {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return maxConns + spareFiles
	}
	return l.Cur
}

// Accept waits for the next connection that there is room for.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		who := network(c.RemoteAddr().String())
		if b.enter(who) {
			return &boundConn{Conn: c, leave: sync.OnceFunc(func() { b.leave(who) })}, nil
		}
		_ = c.Close() // nothing was said on it yet
	}
}

func (b *bounded) enter(who string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open >= b.most || b.from[who] >= max(1, b.most/addressShare) {
		return false
	}
	b.open++
	b.from[who]++
	return true
}

func (b *bounded) leave(who string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open--
	if b.from[who]--; b.from[who] == 0 {
		delete(b.from, who)
	}
}

// boundConn gives its place back when it is closed.
type boundConn struct {
	net.Conn
	leave func()
}

// Close closes the connection; twice counts once.
func (c *boundConn) Close() error {
	c.leave()
	return c.Conn.Close()
}
