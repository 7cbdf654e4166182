package agent

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/sriov"
)

// entry is what the journal knows of a VM on this host. It is on disk before the first side effect that
// it covers, and gone only after the last one was taken back.
type entry struct {
	Owner sriov.Owner `json:"owner"`
	Stage sriov.Stage `json:"stage"`
	// Since is when Stage began: deadlines survive a restart.
	Since time.Time `json:"since"`
	VFs   []hold    `json:"vfs,omitempty"`
	Pins  [][]cpus  `json:"pins,omitempty"` // by guest cell and vCPU
	// Defined is the hash of the definition that the hypervisor last took.
	Defined string `json:"defined,omitempty"`
	Hard    bool   `json:"hard,omitempty"` // drain by cutting the power: a rebuild
	Keep    bool   `json:"keep,omitempty"` // leave the disk: nobody asked for the VM's deletion
}

// cpus is a CPU list in the kernel's format.
type cpus = string

// hold is a VF of an entry.
type hold struct {
	Key  sriov.Key   `json:"key"`
	Want sriov.Attrs `json:"want"`
}

func (e *entry) claim(h hold) sriov.Claim {
	return sriov.Claim{Owner: e.Owner, Stage: e.Stage, Want: h.Want}
}

// quarantine is a VF that must not be given out. It outlives the agent, since a VF whose reset failed
// would look parked to the next one.
type quarantine struct {
	Key    sriov.Key `json:"key"`
	Reason string    `json:"reason"`
	Reset  bool      `json:"reset,omitempty"` // it must be reset before it may be believed again
	At     time.Time `json:"at"`
}

// journal holds the entries of all VMs and the quarantines, in memory and on disk.
type journal struct {
	files Files
	mu    sync.Mutex
	vms   map[string]*entry
	held  map[sriov.Key]string // by which UID
	bad   map[sriov.Key]quarantine
}

const journalDir = "journal"

var safeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// openJournal reads the journal. Records that can't be believed are moved to corrupt/ and returned by
// name: the agent goes on without them.
func openJournal(files Files) (*journal, []string, error) {
	j := &journal{files: files, vms: map[string]*entry{}, held: map[sriov.Key]string{}, bad: map[sriov.Key]quarantine{}}
	names, err := files.List(journalDir)
	if err != nil {
		return nil, nil, fmt.Errorf("read the journal: %w", err)
	}
	var corrupt []string
	for _, name := range names {
		data, err := files.Read(path.Join(journalDir, name))
		if err != nil {
			return nil, nil, fmt.Errorf("read journal record %s: %w", name, err)
		}
		if err := j.load(name, data); err == nil {
			continue
		}
		if err := j.discard(name, data); err != nil {
			return nil, nil, err
		}
		corrupt = append(corrupt, name)
	}
	return j, corrupt, nil
}

// load takes one record in.
func (j *journal) load(name string, data []byte) error {
	switch {
	case strings.HasPrefix(name, "vm-"):
		var e entry
		if err := unseal(data, &e); err != nil {
			return err
		}
		if name != vmFile(e.Owner.UID) {
			return fault.New(fault.Invalid, "the record is of VM %s", e.Owner.UID)
		}
		for _, h := range e.VFs {
			if by, ok := j.held[h.Key]; ok {
				return fault.New(fault.Conflict, "%s is held by VM %s", h.Key, by)
			}
		}
		j.keep(&e)
		return nil
	case strings.HasPrefix(name, "vf-"):
		var q quarantine
		if err := unseal(data, &q); err != nil {
			return err
		}
		j.bad[q.Key] = q
		return nil
	}
	return fault.New(fault.Invalid, "no record of the journal has this name")
}

// discard keeps what can't be believed for whoever looks into it.
func (j *journal) discard(name string, data []byte) error {
	if err := j.files.Write(path.Join("corrupt", name), data); err != nil {
		return fmt.Errorf("move the unreadable journal record %s away: %w", name, err)
	}
	if err := j.files.Remove(path.Join(journalDir, name)); err != nil {
		return fmt.Errorf("move the unreadable journal record %s away: %w", name, err)
	}
	return nil
}

func vmFile(uid string) string { return "vm-" + uid }

func vfFile(k sriov.Key) string {
	return fmt.Sprintf("vf-%s-%d", strings.ReplaceAll(k.PF, ":", ""), k.Index)
}

func (j *journal) keep(e *entry) {
	j.forget(e.Owner.UID)
	j.vms[e.Owner.UID] = e
	for _, h := range e.VFs {
		j.held[h.Key] = e.Owner.UID
	}
}

func (j *journal) forget(uid string) {
	for k, by := range j.held {
		if by == uid {
			delete(j.held, k)
		}
	}
	delete(j.vms, uid)
}

// put writes an entry down, then believes it. It refuses a VF that another VM holds, so no VF ever has
// two holders, whatever the server says.
func (j *journal) put(e entry) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !safeName.MatchString(vmFile(e.Owner.UID)) {
		return fault.New(fault.Invalid, "VM %s has an unusable UID", e.Owner.VM())
	}
	for _, h := range e.VFs {
		if by, ok := j.held[h.Key]; ok && by != e.Owner.UID {
			return fault.New(fault.Conflict, "%s is still held by VM %s, generation %d", h.Key, j.vms[by].Owner.VM(), j.vms[by].Owner.Generation)
		}
	}
	data, err := seal(e)
	if err != nil {
		return err
	}
	if err := j.files.Write(path.Join(journalDir, vmFile(e.Owner.UID)), data); err != nil {
		return fault.Wrap(err, fault.Unavailable, "the journal can't be written, so nothing is begun: %s; free space or repair the agent's state directory", errno(err))
	}
	e.VFs = slices.Clone(e.VFs)
	j.keep(&e)
	return nil
}

// drop forgets a VM, after the last side effect was taken back.
func (j *journal) drop(uid string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.files.Remove(path.Join(journalDir, vmFile(uid))); err != nil {
		return fault.Wrap(err, fault.Unavailable, "the journal can't be written: %s", errno(err))
	}
	j.forget(uid)
	return nil
}

// get returns a copy of a VM's entry, nil if there is none.
func (j *journal) get(uid string) *entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.vms[uid]
	if !ok {
		return nil
	}
	out := *e
	out.VFs = slices.Clone(e.VFs)
	return &out
}

// all returns copies of all entries, by UID.
func (j *journal) all() []entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := make([]entry, 0, len(j.vms))
	for _, uid := range slices.Sorted(maps.Keys(j.vms)) {
		out = append(out, *j.vms[uid])
	}
	return out
}

// claim returns what the journal says of a VF, nil if nobody holds it.
func (j *journal) claim(k sriov.Key) *sriov.Claim {
	j.mu.Lock()
	defer j.mu.Unlock()
	uid, ok := j.held[k]
	if !ok {
		return nil
	}
	e := j.vms[uid]
	for _, h := range e.VFs {
		if h.Key == k {
			c := e.claim(h)
			return &c
		}
	}
	return nil
}

// quarantined returns the record of a VF that must not be given out.
func (j *journal) quarantined(k sriov.Key) (quarantine, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	q, ok := j.bad[k]
	return q, ok
}

// condemn puts a VF into quarantine.
func (j *journal) condemn(q quarantine) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if was, ok := j.bad[q.Key]; ok {
		q.Reset = q.Reset || was.Reset
	}
	data, err := seal(q)
	if err != nil {
		return err
	}
	if err := j.files.Write(path.Join(journalDir, vfFile(q.Key)), data); err != nil {
		return fault.Wrap(err, fault.Unavailable, "the journal can't be written: %s", errno(err))
	}
	j.bad[q.Key] = q
	return nil
}

// pardon lets a VF back, after it was reset and read back as parked.
func (j *journal) pardon(k sriov.Key) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, ok := j.bad[k]; !ok {
		return nil
	}
	if err := j.files.Remove(path.Join(journalDir, vfFile(k))); err != nil {
		return fault.Wrap(err, fault.Unavailable, "the journal can't be written: %s", errno(err))
	}
	delete(j.bad, k)
	return nil
}
