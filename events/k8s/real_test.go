package k8s_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// real is the config of the kube-apiserver that TestMain has started, or nil.
var real *rest.Config

// startReal starts the kube-apiserver at KVINDEX_KUBE_APISERVER and an etcd: KVINDEX_ETCD, or the
// one in PATH. stop ends both. Without the first variable it does nothing.
func startReal() (stop func(), err error) {
	server := os.Getenv("KVINDEX_KUBE_APISERVER")
	if server == "" {
		return func() {}, nil
	}
	etcd := os.Getenv("KVINDEX_ETCD")
	if etcd == "" {
		etcd = "etcd"
	}
	dir, err := os.MkdirTemp("", "kube-apiserver")
	if err != nil {
		return nil, err
	}
	var started []*exec.Cmd
	stop = func() {
		for i := len(started) - 1; i >= 0; i-- {
			started[i].Process.Kill()
			started[i].Wait()
		}
		os.RemoveAll(dir)
	}
	start := func(name string, args ...string) error {
		said, err := os.Create(filepath.Join(dir, filepath.Base(name)+".log"))
		if err != nil {
			return err
		}
		defer said.Close()
		cmd := exec.Command(name, args...)
		cmd.Stdout, cmd.Stderr, cmd.Dir = said, said, dir
		if err := cmd.Start(); err != nil {
			return err
		}
		started = append(started, cmd)
		return nil
	}
	at := make([]string, 3)
	for i := range at {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return stop, err
		}
		at[i] = l.Addr().String()
		l.Close()
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return stop, err
	}
	keyFile, tokens := filepath.Join(dir, "key.pem"), filepath.Join(dir, "tokens.csv")
	_, port, _ := net.SplitHostPort(at[2])
	for name, text := range map[string][]byte{
		keyFile: pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}),
		tokens:  []byte("test,admin,admin,system:masters\n"),
	} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			return stop, err
		}
	}
	if err := start(etcd, "--data-dir", filepath.Join(dir, "etcd"),
		"--listen-client-urls", "http://"+at[0], "--advertise-client-urls", "http://"+at[0], "--listen-peer-urls", "http://"+at[1]); err != nil {
		return stop, err
	}
	if err := start(server, "--etcd-servers", "http://"+at[0], "--cert-dir", dir, "--bind-address", "127.0.0.1", "--secure-port", port,
		"--token-auth-file", tokens, "--authorization-mode", "AlwaysAllow", "--disable-admission-plugins", "ServiceAccount",
		"--service-account-issuer", "https://kvindex.example", "--service-account-key-file", keyFile, "--service-account-signing-key-file", keyFile); err != nil {
		return stop, err
	}
	config := &rest.Config{Host: "https://" + at[2], BearerToken: "test", TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return stop, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		_, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if err == nil {
			real = config
			return stop, nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			said, _ := os.ReadFile(filepath.Join(dir, filepath.Base(server)+".log"))
			return stop, fmt.Errorf("kube-apiserver is not ready: %w\n%s", err, said[max(0, len(said)-4000):])
		}
	}
}

// proxyTo is a reverse proxy to the server of config.
func proxyTo(config *rest.Config) (http.Handler, error) {
	to, err := url.Parse(config.Host)
	if err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	return &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport:     transport,
		FlushInterval: -1,
	}, nil
}
