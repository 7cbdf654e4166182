package backup

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"
	"unicode/utf8"

	"github.com/verbena-cloud/verbena/internal/fault"
)

const (
	format  = "verbena-backup"
	version = 1
	maxLine = 4 << 20 // the store takes values of 1 MiB, base64 makes 1.4 MiB of them
)

// Header is the first line of a backup.
type Header struct {
	Format   string    `json:"format"`
	Version  int       `json:"version"`
	Revision int64     `json:"revision"` // of the store that was saved
	Count    int       `json:"count"`    // entries
	Made     time.Time `json:"made"`
	By       string    `json:"by,omitempty"` // version of the program that wrote it
}

// Entry is one key of a backup.
type Entry struct {
	Key     string `json:"key"`
	Value   []byte `json:"value"`
	Created int64  `json:"created"`
	Rev     int64  `json:"rev"`
}

type trailer struct {
	SHA256 string `json:"sha256"`
	Count  int    `json:"count"`
}

// encoder writes the lines of a backup and sums them up.
type encoder struct {
	w   *bufio.Writer
	sum hash.Hash
	n   int
}

func newEncoder(w io.Writer) *encoder {
	return &encoder{w: bufio.NewWriterSize(w, 1<<16), sum: sha256.New()}
}

func (e *encoder) line(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode a line of the backup: %w", err)
	}
	b = append(b, '\n')
	e.sum.Write(b)
	if _, err := e.w.Write(b); err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	return nil
}

func (e *encoder) entry(v Entry) error {
	if !utf8.ValidString(v.Key) {
		return fault.New(fault.Unready, "the store holds %q, which is no key of Verbena's; delete it with etcdctl", v.Key)
	}
	e.n++
	return e.line(v)
}

func (e *encoder) end() error {
	if err := e.line(trailer{SHA256: hex.EncodeToString(e.sum.Sum(nil)), Count: e.n}); err != nil {
		return err
	}
	if err := e.w.Flush(); err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	return nil
}

// Read reads a backup and calls each for every entry, in order. When it returns nil the backup is whole:
// complete, of this format and with the right checksum. Until then what each got is not to be trusted.
func Read(r io.Reader, each func(Entry) error) (Header, error) {
	d := &decoder{r: bufio.NewReaderSize(r, 1<<16), sum: sha256.New()}
	h, err := d.header()
	if err != nil {
		return Header{}, err
	}
	last := ""
	for range h.Count {
		var e Entry
		if err := d.line(&e); err != nil {
			return h, err
		}
		if len(e.Key) < 2 || e.Key[0] != '/' || e.Key <= last {
			return h, d.broken("its key is no key or out of order")
		}
		last = e.Key
		if err := each(e); err != nil {
			return h, err
		}
	}
	return h, d.end(h.Count)
}

type decoder struct {
	r   *bufio.Reader
	sum hash.Hash
	n   int // lines read
}

func (d *decoder) broken(why string) error {
	return fault.New(fault.Invalid, "this is no whole backup: line %d: %s", d.n, why)
}

// next returns the next line without its end.
func (d *decoder) next() ([]byte, error) {
	var line []byte
	d.n++
	for {
		part, err := d.r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			return line, nil
		case len(line) > maxLine:
			return nil, d.broken("it is too long")
		case errors.Is(err, io.EOF):
			return nil, d.broken("the file ends here")
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("read the backup: %w", err)
		}
	}
}

func (d *decoder) line(v any) error {
	b, err := d.next()
	if err != nil {
		return err
	}
	d.sum.Write(b)
	return d.decode(b, v)
}

func (d *decoder) decode(b []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return fault.Wrap(err, fault.Invalid, "this is no whole backup: line %d can't be read", d.n)
	}
	if dec.More() {
		return d.broken("there is more than one document in it")
	}
	return nil
}

func (d *decoder) header() (Header, error) {
	b, err := d.next()
	if err != nil {
		return Header{}, err
	}
	d.sum.Write(b)
	var kind struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(b, &kind); err != nil || kind.Format != format {
		return Header{}, fault.New(fault.Invalid, "this is no Verbena backup: its first line does not say %q", format)
	}
	if kind.Version != version {
		return Header{}, fault.New(fault.Invalid, "this backup has version %d, this program reads version %d; use the program that wrote it", kind.Version, version)
	}
	var h Header
	if err := d.decode(b, &h); err != nil {
		return Header{}, err
	}
	if h.Count < 0 {
		return Header{}, d.broken("the count is negative")
	}
	return h, nil
}

func (d *decoder) end(count int) error {
	want := hex.EncodeToString(d.sum.Sum(nil))
	b, err := d.next()
	if err != nil {
		return err
	}
	var t trailer
	if err := d.decode(b, &t); err != nil {
		return err
	}
	if t.Count != count || t.SHA256 != want {
		return fault.New(fault.Invalid, "this backup is damaged: its checksum is wrong; use another one")
	}
	if _, err := d.r.ReadByte(); !errors.Is(err, io.EOF) {
		return d.broken("something follows the end")
	}
	return nil
}
