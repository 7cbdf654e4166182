package etcd_test

import (
	"testing"

	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/etcd"
	"github.com/verbena-cloud/verbena/internal/store/storetest"
)

func TestConformanceEmbedded(t *testing.T) {
	storetest.Run(t, storetest.Engine{Open: func(t *testing.T, o storetest.Options) store.DB {
		db, err := etcd.Open(t.Context(), etcd.Config{Dir: t.TempDir(), History: o.History, Queue: o.Queue})
		check(t, err)
		return db
	}})
}

func external(c *cluster) storetest.Engine {
	open := func(t *testing.T, conf etcd.Config) store.DB {
		t.Helper()
		db, err := etcd.Open(t.Context(), conf)
		check(t, err)
		return db
	}
	return storetest.Engine{
		Open: func(t *testing.T, o storetest.Options) store.DB {
			conf := c.config()
			conf.History, conf.Queue = o.History, o.Queue
			return open(t, conf)
		},
		Pair: func(t *testing.T) (store.DB, store.DB) {
			conf := c.config()
			return open(t, conf), open(t, conf)
		},
	}
}

func TestConformanceExternalTLS(t *testing.T) {
	storetest.Run(t, external(startApart(t, t.TempDir(), freePort(t))))
}

func TestConformanceDebianEtcd(t *testing.T) {
	storetest.Run(t, external(startDebian(t)))
}
