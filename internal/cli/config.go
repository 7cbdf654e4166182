package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/verbena-cloud/verbena/client"
)

// config is the file with what is known of servers. It holds tokens, so nobody else may read it.
type config struct {
	path     string
	Current  string   `yaml:"current,omitempty"`
	Contexts []remote `yaml:"contexts,omitempty"`
}

// remote is one server and who one is there.
type remote struct {
	Name   string `yaml:"name"`
	Server string `yaml:"server"`
	Token  string `yaml:"token,omitempty"`
	CA     string `yaml:"ca,omitempty"` // PEM
	Tenant string `yaml:"tenant,omitempty"`
}

// configPath is where the file lies: $VERBENA_CONFIG, or below $XDG_CONFIG_HOME or ~/.config.
func (a *app) configPath() (string, error) {
	if p := a.env.Getenv("VERBENA_CONFIG"); p != "" {
		return p, nil
	}
	dir := a.env.Getenv("XDG_CONFIG_HOME")
	if dir == "" {
		home := a.env.Getenv("HOME")
		if home == "" {
			return "", errors.New(a.tr("neither HOME nor VERBENA_CONFIG is set: no place for the configuration"))
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "verbena", "config.yaml"), nil
}

// config reads the file once; a missing one is empty.
func (a *app) config() (*config, error) {
	if a.conf != nil {
		return a.conf, nil
	}
	path, err := a.configPath()
	if err != nil {
		return nil, err
	}
	c := &config{path: path}
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("read the configuration: %w", err)
	default:
		if err := yaml.UnmarshalWithOptions(text, c, yaml.Strict()); err != nil {
			return nil, fmt.Errorf("%s: %s", path, yaml.FormatError(err, false, false)) // without its source: it may hold a token
		}
		if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
			a.note("%s", a.tr("warning: %s holds tokens and others may read it; run: chmod 600 %s", path, path))
		}
	}
	a.conf = c
	return c, nil
}

// save writes the file whole or not at all.
func (c *config) save() error {
	text, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode the configuration: %w", err)
	}
	dir := filepath.Dir(c.path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of the configuration: %w", err)
	}
	f, err := os.CreateTemp(dir, ".config-*") // made 0600
	if err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	_, err = f.Write(text)
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), c.path)
	}
	if err != nil {
		return fmt.Errorf("write the configuration: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

func (c *config) find(name string) *remote {
	i := slices.IndexFunc(c.Contexts, func(r remote) bool { return r.Name == name })
	if i < 0 {
		return nil
	}
	return &c.Contexts[i]
}

// nameFor is the name of a new context: the host, or host and port if another server has that name.
func (c *config) nameFor(server string, u *url.URL) string {
	if old := c.find(u.Hostname()); old != nil && old.Server != server {
		return u.Host
	}
	return u.Hostname()
}

// put adds a context or replaces the one of its name.
func (c *config) put(r remote) {
	if old := c.find(r.Name); old != nil {
		*old = r
		return
	}
	c.Contexts = append(c.Contexts, r)
}

// remote is the server to talk to: flags go before the environment, which goes before the context.
func (a *app) remote() (remote, error) {
	conf, err := a.config()
	if err != nil && (a.flags.server == "" && a.around("VERBENA_SERVER") == "") {
		return remote{}, err
	}
	var r remote
	name := first(a.flags.context, a.env.Getenv("VERBENA_CONTEXT"))
	if conf != nil {
		if found := conf.find(first(name, conf.Current)); found != nil {
			r = *found
		} else if name != "" {
			return r, a.misuse("there is no context %s; see verbena context list", name)
		}
	}
	if server := first(a.flags.server, a.around("VERBENA_SERVER")); server != "" && server != r.Server {
		r = remote{Server: server, Tenant: r.Tenant} // a token belongs to the server that gave it
	}
	if r.Server == "" {
		return r, &coded{exitAuth, a.tr("no server is known; log in: verbena login https://HOST:7443")}
	}
	return r, a.override(&r)
}

// override applies flags and environment to a context.
func (a *app) override(r *remote) error {
	r.Token = first(a.around("VERBENA_TOKEN"), r.Token)
	if a.flags.token != "" {
		text, err := os.ReadFile(a.flags.token)
		if err != nil {
			return fmt.Errorf("read the token: %w", err)
		}
		r.Token = strings.TrimSpace(string(text))
	}
	if path := first(a.flags.ca, a.around("VERBENA_CA")); path != "" {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return a.misuse("the CA's file %s does not exist. Is it of a demo that has ended? Then: unset VERBENA_SERVER VERBENA_CA VERBENA_TOKEN", path)
		}
		if err != nil {
			return fmt.Errorf("read the CA: %w", err)
		}
		r.CA = string(text)
	}
	r.Tenant = first(a.flags.tenant, a.around("VERBENA_TENANT"), r.Tenant)
	return nil
}

// around is a variable of the environment about the server. It counts for nothing beside --context: the flag
// names a server, and its token must not come from elsewhere.
func (a *app) around(name string) string {
	if a.flags.context != "" {
		return ""
	}
	return a.env.Getenv(name)
}

// overshadowed says that the context just chosen is not the one that commands will use.
func (a *app) overshadowed(r remote) {
	if server := a.env.Getenv("VERBENA_SERVER"); server != "" && server != r.Server {
		a.note("%s", a.tr("warning: VERBENA_SERVER is %s and goes before contexts; run: unset VERBENA_SERVER VERBENA_TOKEN VERBENA_CA", server))
	} else if a.env.Getenv("VERBENA_TOKEN") != "" {
		a.note("%s", a.tr("warning: VERBENA_TOKEN is set and goes before the token of contexts; run: unset VERBENA_TOKEN"))
	}
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// connection is a client and the tenant that commands work in unless they say otherwise.
type connection struct {
	*client.Client
	tenant string
}

func (a *app) connect() (*connection, error) {
	r, err := a.remote()
	if err != nil {
		return nil, err
	}
	c, err := a.clientOf(r)
	if err != nil {
		return nil, err
	}
	return &connection{c, r.Tenant}, nil
}

func (a *app) clientOf(r remote) (*client.Client, error) {
	cfg := client.Config{Server: r.Server, Token: r.Token, CA: []byte(r.CA), Timeout: a.flags.timeout,
		UserAgent: "verbena/" + a.env.Version, Transport: a.env.Transport}
	return client.New(cfg)
}

// inTenant is the tenant for an object that needs one.
func (a *app) inTenant(c *connection) (string, error) {
	if c.tenant == "" {
		return "", a.misuse("say in which tenant: --tenant NAME, VERBENA_TENANT, or verbena context set --tenant NAME")
	}
	return c.tenant, nil
}
