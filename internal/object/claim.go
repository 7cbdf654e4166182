package object

// ClaimKey is where what one VM holds of a host is kept, apart from the sums in the host's ledger: it names
// the owner and the generation, so that a release gives back exactly that, once.
func ClaimKey(host, uid string) string { return ClaimPrefix(host) + uid }

// ClaimPrefix covers the claims of all VMs on a host.
func ClaimPrefix(host string) string { return "/claim/" + host + "/" }

// LedgerPrefix covers the ledgers of all hosts.
func LedgerPrefix() string { return "/ledger/" }
