package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"github.com/verbena-cloud/verbena/internal/fault"
)

// member is an etcd server inside this process. It listens nowhere: the client calls it directly, so no
// port, certificate or password stands between the API's rules and the data.
type member struct {
	etcd *embed.Etcd
	lock *os.File
	once sync.Once
}

// startMember starts or restarts the member in the data directory and returns when it can serve.
func startMember(ctx context.Context, c Config) (*member, *clientv3.Client, error) {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, nil, fault.Wrap(err, fault.Unavailable, "the data directory %s can't be made", c.Dir)
	}
	lock, err := lockDir(c.Dir)
	if err != nil {
		return nil, nil, err
	}
	m := &member{lock: lock}
	if err := checkFiles(c.Dir); err != nil {
		return nil, nil, errors.Join(err, m.close())
	}
	if m.etcd, err = start(memberConfig(ctx, c)); err != nil {
		return nil, nil, errors.Join(fault.Wrap(err, fault.Unavailable, "the embedded etcd does not start in %s", c.Dir), m.close())
	}
	select {
	case <-m.etcd.Server.ReadyNotify():
		return m, v3client.New(m.etcd.Server), nil
	case err = <-m.etcd.Err():
	case <-m.etcd.Server.StopNotify():
		err = errors.New("it stopped")
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, nil, errors.Join(fault.Wrap(err, fault.Unavailable, "the embedded etcd in %s did not become ready", c.Dir), m.close())
}

// start is StartEtcd, which panics over some damaged files.
func start(c *embed.Config) (e *embed.Etcd, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("etcd panicked: %v", p)
		}
	}()
	return embed.StartEtcd(c)
}

func memberConfig(ctx context.Context, c Config) *embed.Config {
	nowhere := url.URL{Scheme: "http", Host: "localhost:0"} // a name in the member list; nobody dials it
	ec := embed.NewConfig()
	ec.Name = "verbena"
	ec.Dir = c.Dir
	ec.ListenPeerUrls, ec.ListenClientUrls = nil, nil
	ec.AdvertisePeerUrls, ec.AdvertiseClientUrls = []url.URL{nowhere}, []url.URL{nowhere}
	ec.InitialCluster = ec.Name + "=" + nowhere.String()
	ec.EnableGRPCGateway = false
	ec.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zapLogger(ctx, c.Log, &atomic.Value{}).WithOptions(c.lastWords()...))
	ec.QuotaBackendBytes = c.Quota
	ec.AutoCompactionMode = embed.CompactorModePeriodic
	ec.AutoCompactionRetention = "1h"
	return ec
}

// lockDir takes the directory for this process, because a second member in it would wait in silence for
// the files that the first has locked.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "the data directory %s can't be locked", dir)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder := "another process"
		if pid, rerr := os.ReadFile(path); rerr == nil && len(pid) > 0 {
			holder = "process " + strings.TrimSpace(string(pid))
		}
		return nil, errors.Join(fault.Wrap(err, fault.Conflict, "the data directory %s is in use by %s; stop that server or choose another directory", dir, holder), f.Close())
	}
	if err := f.Truncate(0); err != nil {
		return nil, errors.Join(fmt.Errorf("truncate %s: %w", path, err), f.Close())
	}
	if _, err := fmt.Fprintln(f, os.Getpid()); err != nil {
		return nil, errors.Join(fmt.Errorf("write %s: %w", path, err), f.Close())
	}
	return f, nil
}

// close stops the member; etcd itself panics when it is stopped twice.
func (m *member) close() error {
	var err error
	m.once.Do(func() {
		if m.etcd != nil {
			m.etcd.Close()
		}
		err = m.lock.Close()
	})
	return err
}
