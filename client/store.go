package client

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/verbena-cloud/verbena/api"
)

// errCutOff is for a backup whose end is missing or does not fit what came before.
var errCutOff = errors.New("the backup was cut off: its checksum is missing or wrong")

// Backup writes the server's whole state to w, and fails unless all of it has arrived. It holds everybody's
// data. The request has no deadline but ctx's.
func (c *Client) Backup(ctx context.Context, w io.Writer) error {
	res, err := c.send(ctx, request{method: http.MethodPost, path: "/v1/store/backup", header: http.Header{"Accept": {"application/jsonl, " + problem}}}, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		data, err := io.ReadAll(io.LimitReader(res.Body, maxEvent))
		if err != nil {
			return &ConnError{Server: c.Server(), Broken: true, Err: err}
		}
		return c.failure(res, data)
	}
	return copyWhole(w, res.Body)
}

// Reclaim has the server compact and defragment its store and lift the store's space alarm, and says how
// the store is then.
func (c *Client) Reclaim(ctx context.Context) (api.ServerStatus, error) {
	var out api.ServerStatus
	err := c.post(ctx, "/v1/store/reclaim", nil, &out)
	return out, err
}

// copyWhole copies lines and checks the last one, {"sha256":…}, against all before it.
func copyWhole(w io.Writer, r io.Reader) error {
	in := bufio.NewReaderSize(r, 1<<16)
	sum := sha256.New()
	var last []byte // not yet in sum
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			_, _ = sum.Write(last) // a hash takes everything
			last = line
			if _, err := w.Write(line); err != nil {
				return fmt.Errorf("write the backup: %w", err)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the backup: %w", err)
		}
	}
	var end struct {
		SHA256 string `json:"sha256"`
	}
	if err := json.Unmarshal(bytes.TrimSpace(last), &end); err != nil || end.SHA256 != hex.EncodeToString(sum.Sum(nil)) {
		return errCutOff
	}
	return nil
}
