package pki

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"strings"

	"github.com/verbena-cloud/verbena/internal/fault"
)

const (
	joinPrefix  = "verbena_join_"
	joinVersion = 1
	secretSize  = 32
	joinIDSize  = 8
	hostMax     = 63
	joinFixed   = 1 + joinIDSize + secretSize + sha256.Size // bytes before the host's name
	joinCRC     = 4
)

// JoinToken is what an agent needs to join: its host's name, a one-time secret, and the hash of the CA
// that proves the server. It is a secret as a whole; the server keeps only the secret's hash.
type JoinToken struct {
	ID     [joinIDSize]byte // finds the server's record; not secret
	Host   string
	Secret [secretSize]byte
	CA     [sha256.Size]byte
}

// NewJoinToken makes a token for the host.
func NewJoinToken(host string, ca [sha256.Size]byte) JoinToken {
	t := JoinToken{Host: host, CA: ca}
	// crypto/rand.Read never returns an error (Go 1.24): it ends the process instead.
	_, _ = rand.Read(t.ID[:])
	_, _ = rand.Read(t.Secret[:])
	return t
}

// Text is the token as it is handed over: verbena_join_ and base64url of version, id, secret, CA hash,
// host and a CRC-32 that catches typing errors.
func (t JoinToken) Text() string {
	b := make([]byte, 0, joinFixed+len(t.Host)+joinCRC)
	b = append(b, joinVersion)
	b = append(b, t.ID[:]...)
	b = append(b, t.Secret[:]...)
	b = append(b, t.CA[:]...)
	b = append(b, t.Host...)
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	return joinPrefix + base64.RawURLEncoding.EncodeToString(b)
}

// String hides the secret, so that a token in a log says nothing.
func (t JoinToken) String() string { return joinPrefix + "***" }

// SecretHash is what the server keeps of the secret.
func (t JoinToken) SecretHash() [sha256.Size]byte { return sha256.Sum256(t.Secret[:]) }

// ParseJoinToken reads a token's text. Its errors never hold the text.
func ParseJoinToken(text string) (JoinToken, error) {
	var t JoinToken
	body, ok := strings.CutPrefix(strings.TrimSpace(text), joinPrefix)
	if !ok {
		return t, fault.New(fault.Invalid, "this is no join token: it does not start with %s", joinPrefix)
	}
	if len(body) > base64.RawURLEncoding.EncodedLen(joinFixed+hostMax+joinCRC) {
		return t, fault.New(fault.Invalid, "the join token is too long")
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil || len(b) <= joinFixed+joinCRC {
		return t, fault.New(fault.Invalid, "the join token is cut off or mistyped: copy it again")
	}
	b, sum := b[:len(b)-joinCRC], binary.BigEndian.Uint32(b[len(b)-joinCRC:])
	if crc32.ChecksumIEEE(b) != sum {
		return t, fault.New(fault.Invalid, "the join token is mistyped: copy it again")
	}
	if b[0] != joinVersion {
		return t, fault.New(fault.Invalid, "the join token is of version %d, this program knows version %d", b[0], joinVersion)
	}
	b = b[1:]
	b = b[copy(t.ID[:], b):]
	b = b[copy(t.Secret[:], b):]
	b = b[copy(t.CA[:], b):]
	t.Host = string(b)
	if !plainName(t.Host) {
		return JoinToken{}, fault.New(fault.Invalid, "the join token holds no valid host name")
	}
	return t, nil
}

// plainName reports whether s could be the name of a host: printable ASCII without separators. The
// server checks the exact form; here it only must not harm whoever prints it.
func plainName(s string) bool {
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' {
			return false
		}
	}
	return s != "" && len(s) <= hostMax
}
