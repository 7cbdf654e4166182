package etcd

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/verbena-cloud/verbena/internal/store"
)

// version is what a record says of a key: its entry, or that it was deleted. rev decides between versions.
type version struct {
	key   string
	entry *store.Entry // with its revisions; nil: deleted
	rev   int64
}

const (
	recordFormat = "verbena 1 " // version of the format; a newer one is refused
	ofCommit     = "commit"     // the changes of a commit
	ofMove       = "moved"      // versions that older records held: no change
	perVersion   = 64           // bytes that a version takes in a record besides key and value, at most
)

// encodeCommit returns the record of a commit that expects to get revision rev. The record says 0 for it, since
// another user of the cluster can make it a different one: the key's modification revision is the truth.
func encodeCommit(c store.Commit, rev int64) []byte {
	size := len(recordFormat) + perVersion
	for _, ch := range c.Changes {
		size += len(ch.Key) + perVersion
		if ch.Entry != nil {
			size += len(ch.Entry.Value)
		}
	}
	out := append(append(append(make([]byte, 0, size), recordFormat...), ofCommit...), '\n')
	for _, ch := range c.Changes {
		v := version{key: ch.Key, entry: ch.Entry}
		created := int64(0)
		if ch.Entry != nil && ch.Entry.Created != rev {
			created = ch.Entry.Created
		}
		out = v.append(out, created)
	}
	return out
}

// encodeMove returns a record of versions that keep their revisions.
func encodeMove(versions []version) []byte {
	out := append(append([]byte(recordFormat), ofMove...), '\n')
	for _, v := range versions {
		created := int64(0)
		if v.entry != nil {
			created = v.entry.Created
		}
		out = v.append(out, created)
	}
	return out
}

// append writes "put KEYLEN CREATED REV VALUELEN\nKEY\nVALUE\n" or "del KEYLEN REV\nKEY\n".
func (v version) append(out []byte, created int64) []byte {
	number := func(n int64) { out = strconv.AppendInt(append(out, ' '), n, 10) }
	if v.entry == nil {
		out = append(out, "del"...)
		number(int64(len(v.key)))
		number(v.rev)
		return append(append(append(out, '\n'), v.key...), '\n')
	}
	out = append(out, "put"...)
	number(int64(len(v.key)))
	number(created)
	number(v.rev)
	number(int64(len(v.entry.Value)))
	out = append(append(append(out, '\n'), v.key...), '\n')
	return append(append(out, v.entry.Value...), '\n')
}

// decodeRecord reads a record that was stored at revision mod. moved: it changes nothing.
func decodeRecord(b []byte, mod int64) (versions []version, moved bool, err error) {
	head, rest, ok := bytes.Cut(b, []byte{'\n'})
	kind, known := bytes.CutPrefix(head, []byte(recordFormat))
	switch {
	case !ok || !known:
		return nil, false, fmt.Errorf("it begins with %q, not with %q: a newer version or another program wrote it", clip(head), recordFormat)
	case string(kind) == ofMove:
		moved = true
	case string(kind) != ofCommit:
		return nil, false, fmt.Errorf("it is of the unknown kind %q", clip(kind))
	}
	for len(rest) > 0 {
		var v version
		if v, rest, err = cutVersion(rest, mod); err != nil {
			return nil, false, fmt.Errorf("at byte %d: %w", len(b)-len(rest), err)
		}
		versions = append(versions, v)
	}
	return versions, moved, nil
}

func clip(b []byte) []byte { return b[:min(len(b), 40)] }

// cutVersion takes one version off a record.
func cutVersion(b []byte, mod int64) (version, []byte, error) {
	head, rest, _ := bytes.Cut(b, []byte{'\n'})
	verb, numbers, _ := bytes.Cut(head, []byte{' '})
	var n [4]int64
	count := 0
	for field := range bytes.SplitSeq(numbers, []byte{' '}) {
		if count == len(n) {
			return version{}, b, fmt.Errorf("%q has too many numbers", clip(head))
		}
		x, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil || x < 0 {
			return version{}, b, fmt.Errorf("%q is no version", clip(head))
		}
		n[count] = x
		count++
	}
	or := func(rev int64) int64 {
		if rev == 0 {
			return mod
		}
		return rev
	}
	key, rest, ok := cutText(rest, n[0])
	switch {
	case ok && string(verb) == "del" && count == 2:
		return version{key: string(key), rev: or(n[1])}, rest, nil
	case !ok || string(verb) != "put" || count != len(n):
		return version{}, b, fmt.Errorf("%q is no version", clip(head))
	}
	value, rest, ok := cutText(rest, n[3])
	if !ok {
		return version{}, b, fmt.Errorf("the value of %q is cut short", clip(key))
	}
	v := version{key: string(key), rev: or(n[2])}
	v.entry = store.NewEntry(v.key, bytes.Clone(value), nil).At(or(n[1]), v.rev)
	return v, rest, nil
}

// cutText takes n bytes and a newline off b.
func cutText(b []byte, n int64) (text, rest []byte, ok bool) {
	if n >= int64(len(b)) || b[n] != '\n' {
		return nil, b, false
	}
	return b[:n], b[n+1:], true
}
