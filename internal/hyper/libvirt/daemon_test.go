package libvirt_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// daemon is a libvirtd of our own with the test driver: the real protocol and life cycle, no KVM.
type daemon struct {
	t      *testing.T
	dir    string
	socket string
	cmd    *exec.Cmd
}

// startDaemon starts libvirtd on a private socket, or skips where it is not installed.
func startDaemon(t *testing.T) *daemon {
	t.Helper()
	if _, err := libvirtd(); err != nil {
		t.Skip("libvirtd is not installed (apt-get install libvirt-daemon): the real daemon was not tested")
	}
	dir, err := os.MkdirTemp("", "lv") //nolint:usetesting // t.TempDir is too long for a unix socket path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	d := &daemon{t: t, dir: dir, socket: filepath.Join(dir, "libvirt-sock")}
	conf := fmt.Sprintf("unix_sock_dir = %q\nauth_unix_rw = \"none\"\nauth_unix_ro = \"none\"\nunix_sock_rw_perms = \"0700\"\nlog_outputs = \"3:file:%s\"\n", dir, filepath.Join(dir, "log"))
	if err := os.WriteFile(filepath.Join(dir, "libvirtd.conf"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "drivers"), 0o700); err != nil {
		t.Fatal(err)
	}
	d.start()
	t.Cleanup(d.kill)
	return d
}

func libvirtd() (string, error) {
	if p, err := exec.LookPath("libvirtd"); err == nil {
		return p, nil
	}
	return exec.LookPath("/usr/sbin/libvirtd")
}

// start runs the daemon and returns when it answers.
func (d *daemon) start() {
	d.t.Helper()
	path, err := libvirtd()
	if err != nil {
		d.t.Fatal(err)
	}
	d.cmd = exec.Command(path, "-f", filepath.Join(d.dir, "libvirtd.conf"), "-p", filepath.Join(d.dir, "pid"))
	// No driver modules: the test driver is built in, and nothing of the machine is touched.
	d.cmd.Env = append(os.Environ(), "LIBVIRT_DRIVER_DIR="+filepath.Join(d.dir, "drivers"),
		"XDG_RUNTIME_DIR="+d.dir, "XDG_CONFIG_HOME="+d.dir, "XDG_CACHE_HOME="+d.dir, "HOME="+d.dir)
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(d.t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		c, err := net.Dial("unix", d.socket)
		if err == nil {
			c.Close()
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			log, _ := os.ReadFile(filepath.Join(d.dir, "log"))
			d.t.Fatalf("libvirtd does not answer: %v\n%s", err, log)
		}
	}
}

// kill ends the daemon the hard way and waits until it is gone.
func (d *daemon) kill() {
	if d.cmd == nil {
		return
	}
	d.cmd.Process.Kill()
	d.cmd.Wait()
	d.cmd = nil
}
