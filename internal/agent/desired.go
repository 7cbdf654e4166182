package agent

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/verbena-cloud/verbena/internal/wire"
)

// stored is the last desired state on disk: what the agent goes on with while the server is away.
type stored struct {
	Boot    string        `json:"boot"`
	Desired *wire.Desired `json:"desired"`
}

const desiredFile = "desired" // may hold user data; all files are 0600

func (a *Agent) loadDesired() error {
	data, err := a.d.Files.Read(desiredFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the last desired state: %w", err)
	}
	var s stored
	if err := unseal(data, &s); err != nil {
		a.events.add(a.hostRef(), warning, "DesiredLost", "the stored desired state can't be believed; the agent waits for the server")
		return nil //nolint:nilerr // told as an event: the server says it again
	}
	a.desired = s.Desired
	a.sameRun = a.boot != "" && s.Boot == a.boot
	return nil
}

// take makes d the desired state. It counts from now on even if it can't be stored: a full disk must not
// keep a tenant's deletion from being carried out.
func (a *Agent) take(d *wire.Desired) error {
	a.mu.Lock()
	if a.fresh && a.desired != nil && d.Revision < a.desired.Revision {
		a.mu.Unlock()
		return nil // from a replica that is behind
	}
	if expectation(a.desired) != expectation(d) {
		nudge(a.checks.due)
	}
	a.desired, a.fresh = d, true
	a.mu.Unlock()
	a.wakeHost()
	a.wakeVMs()
	a.changed()
	data, err := seal(stored{Boot: a.boot, Desired: d})
	if err != nil {
		return err
	}
	if old, err := a.d.Files.Read(desiredFile); err == nil && string(old) == string(data) {
		return nil
	}
	if err := a.d.Files.Write(desiredFile, data); err != nil {
		a.events.add(a.hostRef(), warning, "StateNotStored", "the desired state can't be stored: "+errno(err)+"; an agent that starts again while the server is away would not know it")
		return fmt.Errorf("store the desired state: %w", err)
	}
	return nil
}
