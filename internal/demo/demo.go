package demo

import (
	"context"
	_ "embed" // for the catalogue
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/verbena-cloud/verbena/client"
	"github.com/verbena-cloud/verbena/examples"
	"github.com/verbena-cloud/verbena/internal/cli"
)

// catalogue has the Chinese of the story: English to Chinese.
//
//go:embed zh.json
var catalogue []byte

const (
	maxHosts = 64
	// patience is how long the whole story may take; a laptop needs a few seconds.
	patience = 3 * time.Minute
)

// Run tells the story and, unless it shall end there, stays up until ctx ends. It fails if any step of the
// story did not come true.
func Run(ctx context.Context, o cli.DemoOptions, version string) (err error) {
	if o.Hosts < 1 || o.Hosts > maxHosts {
		return fmt.Errorf("--hosts %d: from 1 to %d hosts can be simulated", o.Hosts, maxHosts)
	}
	dir, cleanup, err := directory(o.Data)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cleanup()) }()
	s, err := newStory(ctx, o, dir, version)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.cloud.Close()) }()
	if err := s.tell(ctx); err != nil {
		return err
	}
	if o.JSON {
		if err := writeReport(o.Stdout, s.report); err != nil {
			return err
		}
	}
	if o.Once {
		return nil
	}
	s.whatNext()
	select {
	case <-ctx.Done():
		return nil
	case <-s.cloud.serverDone():
		return s.cloud.Failed()
	}
}

// directory is where the demo keeps its state, and what to do with it at the end.
func directory(data string) (dir string, cleanup func() error, err error) {
	if data != "" {
		dir, err := filepath.Abs(data)
		return dir, func() error { return nil }, err
	}
	dir, err = os.MkdirTemp("", "verbena-demo-")
	if err != nil {
		return "", nil, fmt.Errorf("make a directory for the demo: %w", err)
	}
	return dir, func() error { return os.RemoveAll(dir) }, nil
}

// newStory starts the server and lays out the manifests.
func newStory(ctx context.Context, o cli.DemoOptions, dir, version string) (*story, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.Log.Level)); err != nil {
		return nil, fmt.Errorf("--log-level: %w", err)
	}
	s := &story{o: o, words: cli.NewWords(o.Words.Lang, catalogue), out: o.Stdout, dir: dir, version: version, began: time.Now()}
	if o.JSON {
		s.out = io.Discard
	}
	s.intro()
	var err error
	s.cloud, err = NewCloud(ctx, CloudConfig{Dir: filepath.Join(dir, "run"), Listen: o.Listen, Version: version,
		Log: slog.New(slog.NewTextHandler(o.Log.W, &slog.HandlerOptions{Level: level}))})
	if err != nil {
		return nil, err
	}
	if s.c, err = s.cloud.Client(); err == nil {
		err = s.layOut()
	}
	if err != nil {
		return nil, errors.Join(err, s.cloud.Close())
	}
	return s, nil
}

// layOut writes the manifests where the reader can look at them and change them.
func (s *story) layOut() error {
	for _, dir := range []string{accepted, notAccepted} {
		if err := os.MkdirAll(filepath.Join(s.dir, dir), 0o700); err != nil {
			return fmt.Errorf("make the directory of the manifests: %w", err)
		}
	}
	s.manifests = filepath.Join(s.dir, accepted)
	paths, err := fs.Glob(examples.Demo, "*/*.yaml")
	if err != nil {
		return fmt.Errorf("read the manifests: %w", err)
	}
	for _, path := range paths {
		text, err := fs.ReadFile(examples.Demo, path)
		if err != nil {
			return fmt.Errorf("read a manifest: %w", err)
		}
		dir, name := filepath.Split(path)
		to := accepted
		if filepath.Clean(dir) == notAccepted {
			to = notAccepted
		}
		if err := os.WriteFile(filepath.Join(s.dir, to, name), text, 0o600); err != nil {
			return fmt.Errorf("write a manifest: %w", err)
		}
	}
	return nil
}

// Directories of the manifests: a reader may apply all of the first one at once and nothing is refused.
const (
	accepted    = "manifests"
	notAccepted = "refused"
)

func writeReport(w io.Writer, r report) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(r); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// serverDone is closed when the server has ended by itself.
func (c *Cloud) serverDone() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == nil {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	return c.server.done
}

// refused is the error of a create that must be refused, or why it is not the one that was expected.
func refused(err error, code string) (*client.Error, error) {
	e, ok := errors.AsType[*client.Error](err)
	switch {
	case err == nil:
		return nil, fmt.Errorf("the VM was taken, it should have been refused for %s", code)
	case !ok || e.Code != code:
		return nil, fmt.Errorf("the VM was refused, but not for %s: %w", code, err)
	case e.Explanation == nil && len(e.Quota) == 0:
		return nil, fmt.Errorf("the refusal for %s explains nothing", code)
	}
	return e, nil
}
