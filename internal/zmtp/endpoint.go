package zmtp

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// keepAlive finds a dead host in 6 seconds where no heartbeat can: a peer that speaks 3.0
// sends nothing while there is no news. TCP_USER_TIMEOUT, which would also bound the wait for
// the host's acknowledgements, is not set: it ends connections to live peers that merely do
// not read, and a reader of events sends next to nothing.
var keepAlive = net.KeepAliveConfig{
	Enable:   true,
	Idle:     3 * time.Second,
	Interval: time.Second,
	Count:    3,
}

// An endpoint is a place to connect to or to listen at, as package net has it.
type endpoint struct {
	network, address string
}

// CheckDial returns an error unless Dial can parse the endpoint: tcp://host:port, an IPv6 host
// in brackets, or ipc://path.
func CheckDial(name string) error {
	_, err := dialEndpoint(name)
	return err
}

// CheckListen returns an error unless Listen can parse the endpoint: as for CheckDial, where
// host may also be *, and port 0 is any free one.
func CheckListen(name string) error {
	_, err := listenEndpoint(name)
	return err
}

func dialEndpoint(name string) (endpoint, error) {
	e, host, port, err := split(name)
	if err != nil || e.network == "unix" {
		return e, err
	}
	if ip := net.ParseIP(host); host == "" || host == "*" || port == 0 || ip != nil && ip.IsUnspecified() {
		return e, fmt.Errorf("zmtp: endpoint %q: connecting needs the peer's own host and port; *, 0.0.0.0, [::] and port 0 are for listening", name)
	}
	return e, nil
}

func listenEndpoint(name string) (endpoint, error) {
	e, host, port, err := split(name)
	if err == nil && host == "*" {
		e.address = ":" + strconv.Itoa(port)
	}
	return e, err
}

func split(name string) (e endpoint, host string, port int, err error) {
	scheme, rest, ok := strings.Cut(name, "://")
	if !ok || rest == "" {
		return e, "", 0, fmt.Errorf("zmtp: endpoint %q: want tcp://host:port or ipc://path", name)
	}
	switch scheme {
	case "ipc":
		return endpoint{"unix", rest}, "", 0, nil
	case "tcp":
		host, number, err := net.SplitHostPort(rest)
		if err != nil {
			return e, "", 0, fmt.Errorf("zmtp: endpoint %q: %w", name, err)
		}
		port, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return e, "", 0, fmt.Errorf("zmtp: endpoint %q: port %q is no number up to 65535", name, number)
		}
		return endpoint{"tcp", rest}, host, int(port), nil
	}
	return e, "", 0, fmt.Errorf("zmtp: endpoint %q: transport %q is neither tcp nor ipc", name, scheme)
}

// Name returns an address of package net as an endpoint.
func Name(a net.Addr) string {
	if a.Network() == "unix" {
		return "ipc://" + a.String()
	}
	return a.Network() + "://" + a.String()
}

// Dial connects to an endpoint, tcp://host:port or ipc://path, and completes the handshake. A
// host name is resolved each time. Dial returns when ctx ends, at any step.
func Dial(ctx context.Context, name string, cfg Config) (*Conn, error) {
	e, err := dialEndpoint(name)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: cfg.withDefaults().HandshakeTimeout, KeepAliveConfig: keepAlive}
	nc, err := d.DialContext(ctx, e.network, e.address)
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("zmtp: connecting to %s: %w", name, err)
	}
	return Handshake(ctx, nc, name, cfg)
}

// Listen listens at an endpoint: tcp://host:port, where the host * is every address and port 0
// any free one, or ipc://path. It replaces the socket file of a dead process. Pass each
// accepted connection to Handshake.
func Listen(ctx context.Context, name string) (net.Listener, error) {
	e, err := listenEndpoint(name)
	if err != nil {
		return nil, err
	}
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	ln, err := lc.Listen(ctx, e.network, e.address)
	if errors.Is(err, syscall.EADDRINUSE) && e.network == "unix" && removeStale(ctx, e.address) {
		ln, err = lc.Listen(ctx, e.network, e.address)
	}
	if err != nil {
		return nil, fmt.Errorf("zmtp: listening at %s: %w", name, err)
	}
	return ln, nil
}

// removeStale removes a socket file where nobody listens any more. ZeroMQ itself removes any
// file there, a live process's socket too.
func removeStale(ctx context.Context, path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return false
	}
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		_ = nc.Close()
		return false
	}
	return errors.Is(err, syscall.ECONNREFUSED) && os.Remove(path) == nil
}
