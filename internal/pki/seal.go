package pki

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"

	"github.com/verbena-cloud/verbena/internal/fault"
)

// keyFileMin is the least that a key file must hold: 256 bits.
const keyFileMin = 32

// Sealer encrypts what lies in a store that others can read, such as an external etcd: AES-256-GCM
// under a key derived (HKDF-SHA-256, RFC 5869) from a file that the operator keeps.
type Sealer struct{ aead cipher.AEAD }

// OpenSealer returns the sealer for the key file at path: at least 32 bytes of any content, readable by
// its owner only.
func OpenSealer(path string) (*Sealer, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read the key file: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fault.New(fault.Invalid, "key file %s has mode %s: others may read it; chmod 600 it",
			path, info.Mode()&fs.ModePerm)
	}
	secret, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the key file: %w", err)
	}
	if len(secret) < keyFileMin {
		return nil, fault.New(fault.Invalid, "key file %s has %d bytes, at least %d are needed; make one with: head -c 32 /dev/urandom",
			path, len(secret), keyFileMin)
	}
	return NewSealer(secret)
}

// NewSealer returns a sealer for the secret.
func NewSealer(secret []byte) (*Sealer, error) {
	key, err := hkdf.Key(sha256.New, secret, nil, "verbena seal v1", 32)
	if err != nil {
		return nil, fmt.Errorf("derive the sealing key: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("make the sealing cipher: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("make the sealing cipher: %w", err)
	}
	return &Sealer{aead: aead}, nil
}

// Seal encrypts plain; name (where it will lie) is authenticated, so that one sealed value can't be
// passed off as another.
func (s *Sealer) Seal(name string, plain []byte) []byte {
	return s.aead.Seal(nil, nil, plain, []byte(name)) //nolint:gosec // this AEAD makes a random nonce itself and takes none
}

// Open decrypts what Seal made under the same name.
func (s *Sealer) Open(name string, sealed []byte) ([]byte, error) {
	plain, err := s.aead.Open(nil, nil, sealed, []byte(name))
	if err != nil {
		return nil, fault.Wrap(err, fault.Unready, "%s can't be decrypted: it was sealed under another key file, or changed", name)
	}
	return plain, nil
}
