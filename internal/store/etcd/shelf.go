package etcd

import (
	"cmp"
	"slices"
)

// shelf knows where in etcd every version lies, so that records of which little is needed any more can be
// cleaned away. It is guarded by DB.mu.
type shelf struct {
	records map[string]*record // by key in etcd
	places  map[string]place   // by the store's key
	size    int64              // bytes of all records
	live    int64              // bytes of the versions that are needed
	victims []*record          // to be cleaned next
	limits  garbage
}

// garbage says what is left alone.
type garbage struct {
	slack   int64 // bytes that nobody needs
	records int   // however small
}

// record is a key in etcd with versions: of a commit, moved ones, or a single one that foreign hands have put.
type record struct {
	key  string
	keys []string // of its versions
	size int64
	live int64
}

// place is where the newest version of a key lies, and how many records hold one at all.
type place struct {
	in      *record
	rev     int64
	weight  int64
	copies  int32
	deleted bool // the newest version says so
}

const (
	slack       = 4 << 20
	manyRecords = 2048
	fullRecord  = 64 << 10 // bytes from which on a record is not small
	maxChosen   = 1024     // records chosen at once
	maxVictims  = 100      // deleted by one transaction; a cluster takes 128 operations unless told otherwise
)

func newShelf(g garbage) *shelf {
	return &shelf{records: map[string]*record{}, places: map[string]place{}, limits: g}
}

func weight(v version) int64 {
	n := int64(len(v.key)) + perVersion/2
	if v.entry != nil {
		n += int64(len(v.entry.Value))
	}
	return n
}

// add notes a record. One that is known does nothing.
func (s *shelf) add(key string, versions []version) {
	if s.records[key] != nil {
		return
	}
	r := &record{key: key, keys: make([]string, 0, len(versions))}
	s.records[key] = r
	for _, v := range versions {
		w := weight(v)
		r.keys = append(r.keys, v.key)
		r.size += w
		p := s.places[v.key]
		was := p.weight
		if p.deleted { // it may have been of no need
			was = weight(version{key: v.key})
		}
		p.copies++
		s.drop(p)
		if p.in == nil || v.rev >= p.rev { // the same revision is a move: the copy is needed from now on
			p.in, p.rev, p.deleted = r, v.rev, v.entry == nil
		}
		p.weight = 0
		switch {
		case p.in == r && p.needed():
			p.weight = w
		case p.in != r && p.needed():
			p.weight = was
		}
		s.hold(p)
		s.places[v.key] = p
	}
	s.size += r.size
}

// needed: a deletion is only needed while an older record would bring the key back.
func (p place) needed() bool { return p.in != nil && (!p.deleted || p.copies > 1) }

func (s *shelf) hold(p place) {
	if p.in != nil {
		p.in.live += p.weight
		s.live += p.weight
	}
}

func (s *shelf) drop(p place) {
	if p.in != nil {
		p.in.live -= p.weight
		s.live -= p.weight
	}
}

// remove forgets a record that is gone from etcd, and returns the keys whose newest version went with it,
// which only foreign hands can do; of those that still have a place an older version lies in etcd.
func (s *shelf) remove(key string) (lost []string) {
	r := s.records[key]
	if r == nil {
		return nil
	}
	delete(s.records, key)
	s.size -= r.size
	for _, k := range r.keys {
		p := s.places[k]
		needed := p.needed()
		p.copies--
		if p.in == r {
			s.drop(p)
			if needed {
				lost = append(lost, k)
			}
			p.in, p.weight = nil, 0
		}
		if p.copies == 0 {
			delete(s.places, k)
			continue
		}
		if p.in != nil && p.deleted && p.copies == 1 { // nothing is left that it would have to hide
			s.drop(p)
			p.weight = 0
		}
		s.places[k] = p
	}
	return lost
}

// choose picks records to be cleaned, if there is enough to gain: those of which the least is needed when less
// than half of all is, the smallest when there are too many.
func (s *shelf) choose() {
	if len(s.victims) > 0 {
		return
	}
	var order func(a, b *record) int
	switch {
	case s.size > 2*s.live+s.limits.slack:
		order = func(a, b *record) int {
			return cmp.Compare(float64(a.live)/float64(a.size+1), float64(b.live)/float64(b.size+1))
		}
	case int64(len(s.records)) > int64(s.limits.records)+s.size/fullRecord:
		order = func(a, b *record) int { return cmp.Compare(a.size, b.size) }
	default:
		return
	}
	all := make([]*record, 0, len(s.records))
	for _, r := range s.records {
		all = append(all, r)
	}
	slices.SortFunc(all, order)
	s.victims = slices.Clone(all[:min(len(all), maxChosen, max(1, len(all)/2))])
}

// next takes the next victims: as many as fit into room bytes of what is needed of them, and count.
func (s *shelf) next(room int64, count int) []*record {
	s.choose()
	var out []*record
	for len(s.victims) > 0 && len(out) < count {
		r := s.victims[0]
		if s.records[r.key] != r {
			s.victims = s.victims[1:]
			continue
		}
		if r.live > room {
			break
		}
		room -= r.live
		out, s.victims = append(out, r), s.victims[1:]
	}
	return out
}

// needs returns the keys whose newest version lies in r and is needed.
func (s *shelf) needs(r *record) []string {
	var out []string
	for _, k := range r.keys {
		if p := s.places[k]; p.in == r && p.needed() {
			out = append(out, k)
		}
	}
	return out
}

func (s *shelf) has(key string) bool {
	_, ok := s.places[key]
	return ok
}
