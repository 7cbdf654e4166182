package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/verbena-cloud/verbena/internal/fault"
)

// Names of the CA's files in the data directory.
const (
	caCertFile = "ca.crt"
	caKeyFile  = "ca.key"
)

// CA is the certificate authority. It is safe for concurrent use.
type CA struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

// Material is the CA in the form in which it is kept: PEM, the key in PKCS #8.
type Material struct {
	Cert []byte `json:"cert"`
	Key  []byte `json:"key"`
}

// NewMaterial makes a new CA, valid from now for CALife.
func NewMaterial(now time.Time) (Material, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Material{}, fmt.Errorf("make the CA's key: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return Material{}, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "Verbena CA " + serial.Text(16)[:8]},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(CALife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true, // leaves only
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return Material{}, fmt.Errorf("sign the CA's certificate: %w", err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return Material{}, err
	}
	return Material{Cert: encodeCert(der), Key: keyPEM}, nil
}

// New returns the CA that the material holds, after checking that key and certificate belong together.
func New(m Material) (*CA, error) {
	cert, err := decodeCert(m.Cert)
	if err != nil {
		return nil, fmt.Errorf("read the CA's certificate: %w", err)
	}
	key, err := decodeKey(m.Key)
	if err != nil {
		return nil, fmt.Errorf("read the CA's key: %w", err)
	}
	public, ok := key.Public().(interface{ Equal(x crypto.PublicKey) bool })
	if !ok || !public.Equal(cert.PublicKey) {
		return nil, errors.New("the CA's key does not belong to its certificate")
	}
	if !cert.IsCA {
		return nil, errors.New("the CA's certificate is not one of a CA")
	}
	return &CA{cert: cert, key: key, pem: encodeCert(cert.Raw)}, nil
}

// Open returns the CA kept in dir, which is made when dir holds none. Half a CA (a key without a
// certificate or the other way round) is an error: making a new one would lock out every agent.
func Open(dir string, now time.Time) (*CA, error) {
	certPath, keyPath := filepath.Join(dir, caCertFile), filepath.Join(dir, caKeyFile)
	cert, certErr := os.ReadFile(certPath)
	key, keyErr := os.ReadFile(keyPath)
	switch {
	case certErr == nil && keyErr == nil:
		return New(Material{Cert: cert, Key: key})
	case errors.Is(certErr, fs.ErrNotExist) && errors.Is(keyErr, fs.ErrNotExist):
		return create(certPath, keyPath, now)
	case errors.Is(certErr, fs.ErrNotExist), errors.Is(keyErr, fs.ErrNotExist):
		return nil, fault.Wrap(errors.Join(certErr, keyErr), fault.Unready,
			"%s holds one of %s and %s but not both: restore the missing file from a backup", dir, caCertFile, caKeyFile)
	default:
		return nil, fmt.Errorf("read the CA in %s: %w", dir, errors.Join(certErr, keyErr))
	}
}

func create(certPath, keyPath string, now time.Time) (*CA, error) {
	m, err := NewMaterial(now)
	if err != nil {
		return nil, err
	}
	ca, err := New(m)
	if err != nil {
		return nil, err
	}
	if err := WriteFile(keyPath, m.Key); err != nil {
		return nil, err
	}
	if err := WriteFile(certPath, m.Cert); err != nil {
		// Without its certificate the key is worthless; leaving it would refuse the next start.
		return nil, errors.Join(err, os.Remove(keyPath))
	}
	return ca, nil
}

// PEM returns the CA's certificate.
func (ca *CA) PEM() []byte { return ca.pem }

// Hash is the SHA-256 of the CA's certificate, by which a join token pins it.
func (ca *CA) Hash() [sha256.Size]byte { return sha256.Sum256(ca.cert.Raw) }

// Pool returns a pool with the CA as its only root.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// Expires is when the CA itself ends.
func (ca *CA) Expires() time.Time { return ca.cert.NotAfter }

// Signed is a certificate that the CA made.
type Signed struct {
	PEM     []byte
	Serial  string // hexadecimal
	Expires time.Time
}

// SignAgent makes the certificate of host's agent for the public key of the request, a PEM CSR whose
// signature proves that the sender has the private key. Nothing else of the request is used: the name
// is host, the purpose is client authentication.
func (ca *CA) SignAgent(request []byte, host string, now time.Time) (Signed, error) {
	public, err := requestKey(request)
	if err != nil {
		return Signed{}, err
	}
	return ca.sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: host},
		NotAfter:    now.Add(AgentLife),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, public, now)
}

// signServer makes a certificate for the server under the names and addresses.
func (ca *CA) signServer(names []string, public crypto.PublicKey, now time.Time) (Signed, error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "verbena server"},
		NotAfter:    now.Add(ServerLife),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	return ca.sign(template, public, now)
}

func (ca *CA) sign(template *x509.Certificate, public crypto.PublicKey, now time.Time) (Signed, error) {
	serial, err := newSerial()
	if err != nil {
		return Signed{}, err
	}
	template.SerialNumber = serial
	template.NotBefore = now.Add(-skew)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.BasicConstraintsValid = true
	if template.NotAfter.After(ca.cert.NotAfter) {
		template.NotAfter = ca.cert.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, public, ca.key)
	if err != nil {
		return Signed{}, fmt.Errorf("sign the certificate of %s: %w", template.Subject.CommonName, err)
	}
	return Signed{PEM: encodeCert(der), Serial: serial.Text(16), Expires: template.NotAfter}, nil
}

// requestMax bounds a CSR; one with a P-256 key has some 500 bytes.
const requestMax = 16 << 10

// requestKey returns the public key of a PEM CSR after checking the proof of possession.
func requestKey(request []byte) (crypto.PublicKey, error) {
	if len(request) > requestMax {
		return nil, fault.New(fault.TooLarge, "csr has %d bytes, at most %d are allowed", len(request), requestMax)
	}
	block, rest := pem.Decode(request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(trim(rest)) != 0 {
		return nil, fault.New(fault.Invalid, "csr is not one PEM block of type CERTIFICATE REQUEST")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "csr can't be parsed")
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "csr is not signed by its own key")
	}
	if !allowed(csr.PublicKey) {
		return nil, fault.New(fault.Invalid, "csr has a %s key; use ECDSA P-256, P-384 or Ed25519", csr.PublicKeyAlgorithm)
	}
	return csr.PublicKey, nil
}

func newSerial() (*big.Int, error) {
	// 127 random bits: positive, and never more than the 20 octets of RFC 5280 §4.1.2.2.
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	return n.SetBit(n, 126, 1), nil
}
