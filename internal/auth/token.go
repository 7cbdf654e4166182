package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"strings"

	"github.com/verbena-cloud/verbena/internal/fault"
)

const (
	tokenPrefix = "verbena_pat_" //nolint:gosec // the public prefix that makes tokens recognisable, no credential
	idSize      = 6              // bytes; an id only finds the record, it is not secret
	secretSize  = 32             // bytes
	crcSize     = 4
	idText      = 2 * idSize
	// secretText is the length of secret and checksum in base64url; 36 bytes need no padding.
	secretText = (secretSize + crcSize) / 3 * 4
)

// Token is an access token: verbena_pat_ID_SECRET, the secret followed by a CRC-32 that lets secret
// scanners and people tell a real token from a mistyped one without asking the server.
type Token struct {
	ID     string // 12 hexadecimal digits
	Secret [secretSize]byte
}

// NewToken makes a token of random bytes; the caller brings them, so that the package stays pure.
func NewToken(random [idSize + secretSize]byte) Token {
	t := Token{ID: hex.EncodeToString(random[:idSize])}
	copy(t.Secret[:], random[idSize:])
	return t
}

// Text is the token as it is handed over, this once.
func (t Token) Text() string {
	b := make([]byte, 0, secretSize+crcSize)
	b = append(b, t.Secret[:]...)
	b = binary.BigEndian.AppendUint32(b, t.checksum())
	return tokenPrefix + t.ID + "_" + base64.RawURLEncoding.EncodeToString(b)
}

// String hides the secret, so that a token in a log says nothing.
func (t Token) String() string { return tokenPrefix + t.ID + "_***" }

// Hash is what the server keeps of a token. The secret has 256 random bits: a plain hash can't be
// reversed by guessing, and it is quick enough to check on every request.
func (t Token) Hash() [sha256.Size]byte { return sha256.Sum256(t.Secret[:]) }

// Is reports, in constant time, whether hash is the token's.
func (t Token) Is(hash []byte) bool {
	own := t.Hash()
	return subtle.ConstantTimeCompare(own[:], hash) == 1
}

func (t Token) checksum() uint32 {
	return crc32.Update(crc32.ChecksumIEEE([]byte(t.ID)), crc32.IEEETable, t.Secret[:])
}

// ParseToken reads a token's text. Its errors never hold the text.
func ParseToken(text string) (Token, error) {
	body, ok := strings.CutPrefix(text, tokenPrefix)
	if !ok {
		return Token{}, fault.New(fault.Unauthenticated, "this is no access token: it does not start with %s", tokenPrefix)
	}
	if len(body) != idText+1+secretText || body[idText] != '_' || !isHex(body[:idText]) {
		return Token{}, fault.New(fault.Unauthenticated, "the access token is cut off or mistyped: copy it again")
	}
	var b [secretSize + crcSize]byte
	if _, err := base64.RawURLEncoding.Strict().Decode(b[:], []byte(body[idText+1:])); err != nil {
		return Token{}, fault.New(fault.Unauthenticated, "the access token is mistyped: copy it again")
	}
	t := Token{ID: body[:idText]}
	copy(t.Secret[:], b[:])
	if binary.BigEndian.Uint32(b[secretSize:]) != t.checksum() {
		return Token{}, fault.New(fault.Unauthenticated, "the access token is mistyped: copy it again")
	}
	return t, nil
}

func isHex(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
