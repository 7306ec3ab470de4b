package discovery_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvindex/kvindex/events/discovery"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// dnsmasq is Debian's server on a port of 127.0.0.1.
type dnsmasq struct {
	t       *testing.T
	address string
	hosts   string
	stop    func()
}

// start runs the server with these addresses and SRV records and returns when it answers.
func (d *dnsmasq) start(hosts string, srv ...string) {
	d.t.Helper()
	if err := os.WriteFile(d.hosts, []byte(hosts), 0o644); err != nil {
		d.t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(d.address)
	args := append([]string{"--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--user=", "--group=", "--pid-file=",
		"--listen-address=127.0.0.1", "--bind-interfaces", "--local=/test/", "--port=" + port, "--addn-hosts=" + d.hosts, "--log-facility=-"}, srv...)
	cmd := exec.Command("dnsmasq", args...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	d.stop = func() {
		cmd.Process.Kill()
		<-ended
	}
	ctx := zmtptest.Context(d.t)
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for {
		if c, err := net.Dial("tcp", d.address); err == nil {
			c.Close()
			return
		}
		select {
		case err := <-ended:
			ended <- err
			d.t.Fatalf("dnsmasq ended: %v, %s", err, said.String())
		case <-again.C:
		case <-ctx.Done():
			d.t.Fatalf("dnsmasq does not listen: %s", said.String())
		}
	}
}

// TestDNSMasq: the answers of another server are read like ours.
func TestDNSMasq(t *testing.T) {
	if _, err := exec.LookPath("dnsmasq"); err != nil {
		t.Log("there is no dnsmasq")
		return
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := l.Addr().String()
	l.Close()
	dir := t.TempDir()
	server := &dnsmasq{t: t, address: address, hosts: filepath.Join(dir, "hosts")}
	var cfg discovery.DNSConfig
	cfg.Resolver = &net.Resolver{Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	const first = "--srv-host=_kv._tcp.pods.test,a.pods.test,5557"
	many := ""
	for i := range 200 {
		many += fmt.Sprintf("10.0.1.%d pods.test\n", i)
	}
	server.start("10.0.0.1 pods.test\n10.0.0.2 pods.test\nfd00::1 pods.test\n", first, "--srv-host=_kv._tcp.pods.test,b.pods.test,5558")
	defer func() { server.stop() }()
	addresses := newDNSTest(t, nil, cfg)
	cfg.Name, cfg.SRV = "_kv._tcp.pods.test", true
	srv := newDNSTest(t, nil, cfg)
	// round makes a lookup of each Run and compares the pods set so far.
	haveAddresses, haveSRV := 0, ""
	round := func(what string, n int, services string) {
		t.Helper()
		for _, d := range []*dnsTest{addresses, srv} {
			d.round(5 * time.Second)
			sets, _ := d.said()
			for _, ids := range sets {
				if d == addresses {
					haveAddresses = len(ids)
				} else {
					haveSRV = fmt.Sprint(ids)
				}
			}
		}
		if haveAddresses != n || haveSRV != services {
			t.Errorf("%s: %d addresses and %s, want %d and %s", what, haveAddresses, haveSRV, n, services)
		}
	}
	const both, one = "[a.pods.test:5557 b.pods.test:5558]", "[a.pods.test:5557]"
	round("first", 3, both)
	round("again", 3, both)
	server.stop()
	round("the server is away", 3, both)
	server.start("10.0.0.1 pods.test\nfd00::1 pods.test\n", first)
	round("one answer lacks one", 3, both)
	round("two answers do", 2, one)
	server.stop()
	server.start(many+"fd00::1 pods.test\n", first)
	round("an answer that is too long for UDP", 202, one)
	round("a second one", 201, one)
	server.stop()
	server.start("") // no such name
	for range 6 {
		round("no such name", 201, one)
	}
	server.stop()
	round("the server is away again", 201, one)
	server.start("")
	for range 6 {
		round("no such name, again", 201, one)
	}
	round("no such name for 30 seconds", 0, "[]")
}
