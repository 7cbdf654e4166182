package object

import "time"

// Who is behind a change, and when. The server fills it in, so that rules need neither a clock nor
// randomness: the same call with the same Who decides the same.
type Who struct {
	Operator bool      // may do what a tenant may not: pin hosts, set gateways, pick VLANs
	Name     string    // as in the audit record, e.g. user:ann
	Now      time.Time // the moment of the request
	UID      string    // identity for an object that the request creates
	Plan     bool      // a dry run: the answer should tell everything, also of the hosts that were not taken
}
