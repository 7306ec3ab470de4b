package zmtp_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/kvindex/kvindex/internal/zmtp"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// memory is a connection that reads from one buffer and writes to another.
type memory struct {
	net.Conn
	in  io.Reader
	out bytes.Buffer
}

func (m *memory) Read(b []byte) (int, error)       { return m.in.Read(b) }
func (m *memory) Write(b []byte) (int, error)      { return m.out.Write(b) }
func (m *memory) Close() error                     { return nil }
func (m *memory) SetReadDeadline(time.Time) error  { return nil }
func (m *memory) SetWriteDeadline(time.Time) error { return nil }

func FuzzReceive(f *testing.F) {
	named := append(zmtptest.Greeting(1), zmtptest.Command("READY", zmtptest.Property("Identity", "name")+zmtptest.Property("Socket-Type", "DEALER"))...)
	for _, hello := range [][]byte{zmtptest.Hello(0, "PUB"), zmtptest.Hello(1, "PUB"), zmtptest.Hello(1, "SUB"), zmtptest.Hello(1, "ROUTER"), zmtptest.Greeting(1), named} {
		for _, rest := range [][]byte{
			zmtptest.Message("topic", "12345678", "payload"),
			zmtptest.Message("\x01topic"),
			zmtptest.Command("PING", "\x00\x00context"),
			zmtptest.Command("SUBSCRIBE", "topic"),
			zmtptest.Command("ERROR", "\x02no"),
			slices.Concat(zmtptest.Frame(1, "a"), zmtptest.Command("PING", "\x00\x00"), zmtptest.Frame(0, "b")),
			zmtptest.LongHeader(0, 1<<60),
			zmtptest.LongHeader(5, 1<<20),
			zmtptest.Message(string(make([]byte, 5000))),
			bytes.Repeat(zmtptest.Command("PING", "\x00\x00"), 2000),
			bytes.Repeat(zmtptest.Message("", "", ""), 2000),
		} {
			f.Add(slices.Concat(hello, rest), byte(0))
			f.Add(slices.Concat(hello, rest), byte(1))
			f.Add(slices.Concat(hello, rest, rest), byte(4))
		}
	}
	types := []zmtp.SocketType{zmtp.SUB, zmtp.PUB, zmtp.DEALER, zmtp.ROUTER}
	f.Fuzz(func(t *testing.T, input []byte, socket byte) {
		cfg := zmtp.Config{Type: types[int(socket)%len(types)], MaxFrame: 1 << 20, MaxMessage: 2 << 20}
		if socket&4 != 0 {
			cfg.Skip, cfg.MaxFrame, cfg.MaxMessage = true, 10, 15
		}
		before := allocated()
		messages, err := receiveAll(t, &memory{in: bytes.NewReader(input)}, cfg)
		if err == nil {
			t.Fatal("no error at the end of the input")
		}
		// First buffers and the harness's own memory, then growing buffers and, for each PING of 9
		// bytes or more, a PONG.
		if got, most := allocated()-before, uint64(128<<10+64*len(input)); got > most {
			t.Fatalf("%d bytes allocated for %d of input, %d messages", got, len(input), messages)
		}
	})
}

func receiveAll(t *testing.T, nc net.Conn, cfg zmtp.Config) (n int, err error) {
	c, err := zmtp.Handshake(t.Context(), nc, "the peer", cfg)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	for ; ; n++ {
		if cfg.Type == zmtp.PUB {
			if _, _, err = c.ReceiveSubscription(); err != nil {
				return n, err
			}
			continue
		}
		m, err := c.Receive()
		if err != nil && (!cfg.Skip || !errors.Is(err, zmtp.ErrSkipped)) {
			return n, err
		}
		total := 0
		for _, f := range m {
			total += len(f)
		}
		if len(m) == 0 || len(m) > zmtp.MaxFrames || total > cfg.MaxMessage {
			t.Fatalf("a message of %d frames, %d bytes", len(m), total)
		}
	}
}

// Messages arrive as they were sent, however the bytes are cut. With Skip all frames arrive except
// those that are too large.
func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte("topic"), []byte("12345678"), []byte("payload"), byte(1))
	f.Add([]byte{}, make([]byte, 255), make([]byte, 256), byte(7))
	f.Add(make([]byte, 70000), []byte{}, []byte{}, byte(255))
	f.Fuzz(func(t *testing.T, a, b, payload []byte, cut byte) {
		out := &memory{in: bytes.NewReader(zmtptest.Hello(1, "SUB"))}
		pub, err := zmtp.Handshake(t.Context(), out, "the peer", zmtp.Config{Type: zmtp.PUB})
		must(t, err)
		defer pub.Close()
		for range 3 {
			must(t, errors.Join(pub.Buffer(a, b, payload), pub.Buffer(payload), pub.Send(b, a)))
		}
		for _, cfg := range []zmtp.Config{
			{Type: zmtp.SUB, MaxFrame: 32 << 20, MaxMessage: 32 << 20},
			{Type: zmtp.SUB, MaxFrame: 100, MaxMessage: 150, Skip: true},
		} {
			in := &memory{in: &chopper{out.out.Bytes(), int(cut) + 1}}
			sub, err := zmtp.Handshake(t.Context(), in, "the peer", cfg)
			must(t, err)
			defer sub.Close()
			for range 3 {
				for _, sent := range [][][]byte{{a, b, payload}, {payload}, {b, a}} {
					want, skipped := passed(sent, cfg)
					got, err := sub.Receive()
					if errors.Is(err, zmtp.ErrSkipped) != skipped || err != nil && !skipped || !slices.EqualFunc(got, want, bytes.Equal) {
						t.Fatalf("sent %q, received %q, %v, want %q", sent, got, err, want)
					}
				}
			}
			if _, err := sub.Receive(); !errors.Is(err, io.EOF) {
				t.Fatalf("at the end: %v", err)
			}
		}
	})
}

// passed returns the frames of a message that a Config with Skip accepts.
func passed(sent [][]byte, cfg zmtp.Config) (frames [][]byte, skipped bool) {
	total := 0
	for _, f := range sent {
		if len(f) > min(cfg.MaxFrame, cfg.MaxMessage-total) {
			f, skipped = nil, true
		}
		total += len(f)
		frames = append(frames, f)
	}
	return frames, skipped
}

// chopper returns a few bytes at a time.
type chopper struct {
	rest []byte
	size int
}

func (c *chopper) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b, c.rest[:min(c.size, len(c.rest))])
	c.rest = c.rest[n:]
	return n, nil
}
