package server

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/verbena-cloud/verbena/internal/store"
)

// answer is a finished reply. Objects leave as the bytes that the store holds, with the revision put in:
// nothing is decoded and encoded again only to be shown.
type answer struct {
	Body func(huma.Context)
}

// replyJSON answers with JSON bytes; rev, if not 0, becomes the ETag.
func replyJSON(status int, rev int64, data []byte, header http.Header) *answer {
	return &answer{func(hc huma.Context) {
		_, w := humago.Unwrap(hc)
		h := w.Header()
		for k, v := range header {
			h[k] = v
		}
		h["Content-Type"] = []string{"application/json"}
		h["Content-Length"] = []string{strconv.Itoa(len(data))}
		if rev != 0 {
			h["Etag"] = []string{`"` + strconv.FormatInt(rev, 10) + `"`}
		}
		w.WriteHeader(status)
		_, _ = w.Write(data) // the client may be gone
	}}
}

// replyValue answers with a value.
func replyValue(status int, v any) (*answer, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	return replyJSON(status, 0, append(b, '\n'), nil), nil
}

// replyEmpty answers without a body.
func replyEmpty(status int) *answer {
	return &answer{func(hc huma.Context) { hc.SetStatus(status) }}
}

// shown is the object of an entry as JSON with its revision. The bytes of the store never hold one.
func shown(e *store.Entry, rev int64) []byte {
	out := make([]byte, 0, len(e.Value)+32)
	out = append(out, `{"revision":`...)
	out = strconv.AppendInt(out, rev, 10)
	if len(e.Value) > 2 {
		out = append(out, ',')
	}
	return append(append(out, e.Value[1:]...), '\n')
}

// encode writes JSON as people like to read it in a terminal: with a newline, without HTML escapes.
func encode(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
