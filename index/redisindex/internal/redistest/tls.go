package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// TLSServer is a server that also listens at a port with TLS.
type TLSServer struct {
	*Server
	TLSAddr string
	Config  *tls.Config // of a client that trusts the server's certificate
}

// TLS starts a server with TLS, whose certificate comes from an authority that is
// made for this test. The arguments are those of Standalone. The test is skipped if
// the server was built without TLS.
func TLS(tb testing.TB, args ...string) *TLSServer {
	tb.Helper()
	folder := tb.TempDir()
	authority := issue(tb, folder, "authority", nil)
	issue(tb, folder, "server", authority)
	port := reservePort(tb)
	s := Standalone(tb, append([]string{
		"--tls-port", strconv.Itoa(port),
		"--tls-ca-cert-file", filepath.Join(folder, "authority.crt"),
		"--tls-cert-file", filepath.Join(folder, "server.crt"),
		"--tls-key-file", filepath.Join(folder, "server.key"),
		"--tls-auth-clients", "no",
	}, args...)...)
	roots := x509.NewCertPool()
	roots.AddCert(authority.certificate)
	return &TLSServer{
		Server:  s,
		TLSAddr: loopback(port),
		Config:  &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	}
}

// UserArgs returns arguments that give a server a user who may use only keys that
// begin with prefix, and only some commands. The default user may still do all.
func UserArgs(name, password, prefix string, commands ...string) []string {
	args := []string{"--user", name, "on", ">" + password, "~" + prefix + "*"}
	for _, command := range commands {
		args = append(args, "+"+command)
	}
	return args
}

type issuer struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// issue writes name.crt and name.key: an authority, or what the authority by issues
// for the loopback address.
func issue(tb testing.TB, folder, name string, by *issuer) *issuer {
	tb.Helper()
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatalf("redistest: certificate of the %s: %v", name, err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: "kvindex test " + name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
	if by == nil {
		by = &issuer{template, key}
		template.IsCA, template.BasicConstraintsValid = true, true
		template.KeyUsage = x509.KeyUsageCertSign
	} else {
		template.KeyUsage = x509.KeyUsageDigitalSignature
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.certificate, key.Public(), by.key)
	must(err)
	certificate, err := x509.ParseCertificate(der)
	must(err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(err)
	for file, block := range map[string]*pem.Block{
		name + ".crt": {Type: "CERTIFICATE", Bytes: der},
		name + ".key": {Type: "PRIVATE KEY", Bytes: private},
	} {
		must(os.WriteFile(filepath.Join(folder, file), pem.EncodeToMemory(block), 0o600))
	}
	return &issuer{certificate, key}
}
