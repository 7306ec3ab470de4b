package systemtest

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// These are endpoints where there is no engine.

// closedEndpoint is one where nothing listens.
func closedEndpoint(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "tcp://" + l.Addr().String()
}

// httpEndpoint is Go's HTTP server, which waits for the end of a line.
func httpEndpoint(t testing.TB) string {
	s := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(s.Close)
	return "tcp://" + strings.TrimPrefix(s.URL, "http://")
}

// refusingEndpoint is an HTTP server that answers at once, as uvicorn does.
func refusingEndpoint(t testing.TB) string {
	return serveTCP(t, func(c net.Conn) {
		if _, err := io.ReadFull(c, make([]byte, 1)); err == nil {
			fmt.Fprint(c, "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n\r\nInvalid HTTP request received.")
		}
	})
}

// muteEndpoint takes connections and says nothing.
func muteEndpoint(t testing.TB) string {
	return serveTCP(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
}

// serveTCP has each connection served, and then closed, until the test ends.
func serveTCP(t testing.TB, serve func(net.Conn)) (endpoint string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var (
		done  sync.WaitGroup
		mu    sync.Mutex
		conns []net.Conn
	)
	done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			done.Go(func() {
				defer c.Close()
				serve(c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		done.Wait()
	})
	return "tcp://" + l.Addr().String()
}
