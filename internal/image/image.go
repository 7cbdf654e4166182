// Package image has the rules of disk images: where they come from, what they must hash to, and that an
// image in use keeps its content. A new version of an image is a new image: a VM that is rebuilt gets
// what it was made from.
package image

import (
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
)

// DefaultFormat is the format of an image that does not say.
const DefaultFormat = "qcow2"

// Create adds an image.
func Create(tx store.Tx, o *api.Image, by object.Who) error {
	if err := check(o); err != nil {
		return err
	}
	if err := object.Vacant(tx, api.KindImage, &o.Meta); err != nil {
		return err
	}
	object.Born(&o.Meta, api.KindImage, by)
	return save(tx, o)
}

// Update changes an image; source, hash and format only while no VM uses it.
func Update(tx store.Tx, old, o *api.Image, _ object.Who) error {
	object.Carry(&o.Meta, &old.Meta)
	if err := check(o); err != nil {
		return err
	}
	a, b := o.Spec, old.Spec
	if a.Source != b.Source || a.SHA256 != b.SHA256 || Format(a) != Format(b) {
		vm, err := user(tx, o.Name)
		if err != nil {
			return err
		}
		if vm != "" {
			return fault.New(fault.Conflict, "image %s is used by VM %s, so its source, sha256 and format can't change; create a new image and rebuild the VMs from it", o.Name, vm)
		}
	}
	return save(tx, o)
}

func save(tx store.Tx, o *api.Image) error {
	o.Status = api.ImageStatus{}
	saved := *o
	return object.Save(tx, &saved)
}

// Delete removes an image that no VM uses.
func Delete(tx store.Tx, o *api.Image, _ object.Who) error {
	vm, err := user(tx, o.Name)
	if err != nil {
		return err
	}
	if vm != "" {
		return fault.New(fault.Conflict, "image %s is used by VM %s; delete its VMs first", o.Name, vm)
	}
	object.Remove(tx, api.KindImage, "", o.Name)
	return nil
}

// Fill derives the status; an image has none yet that is not stored.
func Fill(store.Tx, *api.Image) error { return nil }

// Format returns the format with the default filled in.
func Format(s api.ImageSpec) string {
	if s.Format == "" {
		return DefaultFormat
	}
	return s.Format
}

// user names a VM (TENANT/NAME) that uses the image, or "".
func user(tx store.Tx, name string) (string, error) {
	for v, err := range object.All[api.VM](tx, api.KindVM, "") {
		if err != nil {
			return "", err
		}
		if v.Spec.Image == name {
			return v.Tenant + "/" + v.Name, nil
		}
	}
	return "", nil
}

func check(o *api.Image) error {
	var f fault.Faults
	object.CheckMeta(&f, api.KindImage, &o.Meta)
	isURL := checkSource(&f, o.Spec.Source)
	switch {
	case o.Spec.SHA256 == "" && isURL:
		f.Add("spec.sha256", "an image from a URL needs its SHA-256, so that every host gets the same bytes")
	case o.Spec.SHA256 != "" && (len(o.Spec.SHA256) != 64 || strings.Trim(o.Spec.SHA256, "0123456789abcdef") != ""):
		f.Add("spec.sha256", "%s is no SHA-256: use 64 lower-case hexadecimal digits", object.Quote(o.Spec.SHA256))
	}
	switch o.Spec.Format {
	case "", "qcow2", "raw":
	default:
		f.Add("spec.format", "%s is no image format; use qcow2 or raw", object.Quote(o.Spec.Format))
	}
	if len(o.Spec.OS) > 64 {
		f.Add("spec.os", "%d bytes are too long; at most 64 may be", len(o.Spec.OS))
	}
	for _, k := range slices.Sorted(maps.Keys(o.Spec.GuestDrivers)) {
		if k == "" || len(k) > 64 || len(o.Spec.GuestDrivers[k]) > 64 {
			f.Add("spec.guestDrivers", "driver %s: name and version must have 1 to 64 bytes", object.Quote(k))
		}
	}
	return f.Err(object.Title(api.KindImage, &o.Meta))
}

// checkSource reports whether the source is a URL. Plain http is refused: the answer could be replaced on
// its way, and the hash would only turn that into an outage.
func checkSource(f *fault.Faults, s string) bool {
	if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) || len(s) > 2048 {
		f.Add("spec.source", "%s holds control characters or is over 2048 bytes long", object.Quote(s))
		return false
	}
	if strings.HasPrefix(s, "/") {
		if path.Clean(s) != s {
			f.Add("spec.source", "%s is no clean absolute path; write %s", object.Quote(s), object.Quote(path.Clean(s)))
		}
		return false
	}
	u, err := url.Parse(s)
	if err == nil && u.User != nil {
		f.Add("spec.source", "a URL with a user or password would show them to everybody who may see the image; leave them out")
		return true
	}
	if err != nil || u.Scheme != "https" || u.Host == "" {
		f.Add("spec.source", "%s is neither an https URL nor an absolute path that every host has", object.Quote(s))
		return false
	}
	return true
}
