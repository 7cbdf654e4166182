//go:build tools

package main

import (
	_ "github.com/alexedwards/argon2id"
	_ "github.com/danielgtaylor/huma/v2"
	_ "github.com/danielgtaylor/huma/v2/adapters/humago"
	_ "github.com/digitalocean/go-libvirt"
	_ "github.com/digitalocean/go-libvirt/socket/dialers"
	_ "github.com/goccy/go-yaml"
	_ "github.com/google/btree"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/google/licensecheck"
	_ "github.com/itchyny/gojq"
	_ "github.com/kdomanski/iso9660"
	_ "github.com/mattn/go-runewidth"
	_ "github.com/oasdiff/oasdiff/checker"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/spf13/cobra"
	_ "github.com/vishvananda/netlink"
	_ "go.etcd.io/etcd/client/v3"
	_ "go.etcd.io/etcd/etcdutl/v3/snapshot"
	_ "go.etcd.io/etcd/server/v3/embed"
	_ "go.uber.org/goleak"
	_ "golang.org/x/crypto/argon2"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/term"
	_ "golang.org/x/text/language"
	_ "golang.org/x/time/rate"
	_ "libvirt.org/go/libvirtxml"
	_ "pgregory.net/rapid"
	_ "github.com/prometheus/client_golang/prometheus"
)
