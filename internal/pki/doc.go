// Package pki is Verbena's own certificate authority: the CA, the server's certificate, the agents'
// certificates, the one-time join token that lets an agent trust the right server, and the client side
// of all that.
//
// There are two leaf profiles and no others. The server's certificate is for server authentication and
// carries the names it is reached by; an agent's is for client authentication only, and its common name
// is the host's name whatever its request (CSR) said. The CA may sign leaves only.
package pki

import "time"

// Lives of the certificates. Leaves are renewed when two thirds of theirs are over (Due).
const (
	CALife     = 10 * 365 * 24 * time.Hour
	ServerLife = 90 * 24 * time.Hour
	AgentLife  = 30 * 24 * time.Hour
	// skew is how far a peer's clock may be behind without refusing a fresh certificate.
	skew = 5 * time.Minute
)

// Due is the time at which a certificate's holder renews it: two thirds of its life are over.
func Due(notBefore, notAfter time.Time) time.Time {
	return notBefore.Add(notAfter.Sub(notBefore) / 3 * 2)
}
