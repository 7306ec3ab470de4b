package events

import (
	"context"
	"net"
	"testing"

	"github.com/kvindex/kvindex/internal/zmtp"
)

// TestTellerOfNames: an unreachable name server is one failure, whatever the local port.
func TestTellerOfNames(t *testing.T) {
	before := net.DefaultResolver
	defer func() { net.DefaultResolver = before }()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	server := c.LocalAddr().String()
	c.Close()
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", server)
	}}
	var failing repeatFilter
	told := 0
	for range 10 {
		_, err := zmtp.Dial(t.Context(), "tcp://engine.example:5557", zmtp.Config{Type: zmtp.SUB})
		if err == nil {
			t.Fatal("connected")
		}
		if failing.due(err) {
			told++
			t.Log(err)
		}
	}
	if told > 1 {
		t.Errorf("reported %d times of 10", told)
	}
}
