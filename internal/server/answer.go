package server

import (
	"encoding/json"
	"io"
)

// encode writes JSON as people like to read it in a terminal: with a newline, without HTML escapes.
func encode(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
