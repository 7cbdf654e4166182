package etcd

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// OpenWith opens a store whose requests go through wrap.
func OpenWith(ctx context.Context, c Config, wrap func(clientv3.KV) clientv3.KV) (*DB, error) {
	return openWith(ctx, c, wrap)
}

// Client is the store's connection, for tests that do what an operator does with etcdctl.
func (d *DB) Client() *clientv3.Client { return d.client }

// LastWords are the options of the embedded member's logger.
func LastWords(c Config) []zap.Option { return c.lastWords() }
