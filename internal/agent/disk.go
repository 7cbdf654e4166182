package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/hyper"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// Exec runs a program and returns what it printed.
type Exec func(ctx context.Context, name string, args ...string) ([]byte, error)

// run is the production Exec.
func run(ctx context.Context, name string, args ...string) ([]byte, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output() //nolint:gosec // callers pass names of their own, and paths as arguments after --
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, fmt.Errorf("%s: %w: %.300s", name, err, strings.TrimSpace(string(e.Stderr)))
	}
	return out, err
}

// overlays makes root disks as qcow2 overlays over images, which stay as they are.
type overlays struct {
	dir    string // of the VMs' files
	cache  string // of downloaded images
	exec   Exec
	client *http.Client
}

// Overlays returns the disk maker of a host: VM files go below dir, images fetched from URLs are kept in
// cache. exec runs qemu-img; nil is the real one.
func Overlays(dir, cache string, exec Exec, client *http.Client) (Disk, error) {
	if exec == nil {
		exec = run
	}
	for _, d := range []string{dir, cache} {
		if err := passable(d); err != nil {
			return nil, fmt.Errorf("make the directory of disks: %w", err)
		}
	}
	return &overlays{dir: dir, cache: cache, exec: exec, client: client}, nil
}

func (o *overlays) disk(name string) string { return filepath.Join(o.dir, name+".qcow2") }
func (o *overlays) seed(name string) string { return filepath.Join(o.dir, name+".iso") }

// Ensure makes the VM's root disk, if it is not there: the rename at the end makes it whole or absent.
func (o *overlays) Ensure(ctx context.Context, name string, img wire.Image, size int64) (hyper.Disk, error) {
	if !safeName.MatchString(name) {
		return hyper.Disk{}, fault.New(fault.Invalid, "a VM's files can't be named %.60q", name)
	}
	disk := hyper.Disk{Path: o.disk(name), Format: "qcow2"}
	if _, err := os.Stat(disk.Path); err == nil {
		return disk, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return disk, err
	}
	base, err := o.image(ctx, img)
	if err != nil {
		return disk, err
	}
	format := img.Format
	if format == "" {
		format = "qcow2"
	}
	if err := o.fits(ctx, base, format, size, img.Name); err != nil {
		return disk, err
	}
	temp := disk.Path + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return disk, err
	}
	args := []string{"create", "-q", "-f", "qcow2", "-F", format, "-b", base, temp}
	if size > 0 {
		args = append(args, strconv.FormatInt(size, 10))
	}
	if _, err := o.exec(ctx, "qemu-img", args...); err != nil {
		return disk, fmt.Errorf("make an overlay over image %s: %w", img.Name, err)
	}
	if err := os.Rename(temp, disk.Path); err != nil {
		return disk, err
	}
	return disk, syncDir(o.dir)
}

// fits refuses a disk smaller than its image: the guest's file system would be cut off.
func (o *overlays) fits(ctx context.Context, base, format string, size int64, image string) error {
	if size == 0 {
		return nil
	}
	out, err := o.exec(ctx, "qemu-img", "info", "--output=json", "-f", format, base)
	if err != nil {
		return fmt.Errorf("look at image %s: %w", image, err)
	}
	var info struct {
		Size int64 `json:"virtual-size"`
	}
	if err := json.Unmarshal(out, &info); err != nil {
		return fmt.Errorf("look at image %s: %w", image, err)
	}
	if info.Size > size {
		return fault.New(fault.Invalid, "image %s needs a disk of %d bytes, the flavor gives %d", image, info.Size, size)
	}
	return nil
}

// image returns the path of an image on this host, fetched if it is a URL.
func (o *overlays) image(ctx context.Context, img wire.Image) (string, error) {
	if !strings.Contains(img.Source, "://") {
		path := strings.TrimSpace(img.Source)
		if !filepath.IsAbs(path) {
			return "", fault.New(fault.Invalid, "image %s: %.100q is no absolute path and no URL", img.Name, img.Source)
		}
		if _, err := os.Stat(path); err != nil {
			return "", fault.Wrap(err, fault.Unready, "image %s is not on this host at %s", img.Name, path)
		}
		return path, nil
	}
	if len(img.SHA256) != hex.EncodedLen(sha256.Size) {
		return "", fault.New(fault.Invalid, "image %s comes from a URL, so it needs its sha256", img.Name)
	}
	path := filepath.Join(o.cache, img.SHA256)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return path, o.fetch(ctx, img, path)
}

// fetch downloads to a temporary file and lets it into the cache only with the right hash.
func (o *overlays) fetch(ctx context.Context, img wire.Image, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, img.Source, nil)
	if err != nil {
		return fault.Wrap(err, fault.Invalid, "image %s has an unusable URL", img.Name)
	}
	client := o.client
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return fault.Wrap(err, fault.Unready, "image %s can't be fetched", img.Name)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fault.New(fault.Unready, "image %s can't be fetched: the server answers %s", img.Name, resp.Status)
	}
	f, err := os.CreateTemp(o.cache, tempPrefix+"*")
	if err != nil {
		return err
	}
	err = store(f, resp.Body, img)
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncDir(o.cache)
}

func store(f *os.File, body io.Reader, img wire.Image) error {
	sum := sha256.New()
	_, err := io.Copy(io.MultiWriter(f, sum), body)
	if err == nil {
		err = f.Chmod(0o644) // libvirt's dynamic ownership does not reach backing files
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("store image %s: %w", img.Name, err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != img.SHA256 {
		return fault.New(fault.Unready, "image %s has sha256 %s instead of %s: it was changed or damaged on the way", img.Name, got, img.SHA256)
	}
	return nil
}

// Seed stores the seed ISO. It may hold secrets, so only its owner may read it; libvirt gives it to QEMU.
func (o *overlays) Seed(_ context.Context, name string, iso []byte) (string, error) {
	if !safeName.MatchString(name) {
		return "", fault.New(fault.Invalid, "a VM's files can't be named %.60q", name)
	}
	path := o.seed(name)
	if old, err := os.ReadFile(path); err == nil && string(old) == string(iso) {
		return path, nil
	}
	return path, dirFiles{o.dir}.Write(name+".iso", iso)
}

// Remove deletes the VM's files.
func (o *overlays) Remove(_ context.Context, name string) error {
	if !safeName.MatchString(name) {
		return nil
	}
	for _, p := range []string{o.disk(name), o.disk(name) + ".new", o.seed(name)} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return syncDir(o.dir)
}
