package publisher_test

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/publisher"
	"github.com/kvindex/kvindex/internal/zmtp"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

func newPublisher(t *testing.T, cfg publisher.Config) *publisher.Publisher {
	t.Helper()
	zmtptest.NoLeaks(t)
	p, err := publisher.New(cfg)
	must(t, err)
	t.Cleanup(func() {
		for range 2 {
			if err := p.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
	})
	return p
}

func publisherDial(t *testing.T, endpoint string, kind zmtp.SocketType) *zmtp.Conn {
	t.Helper()
	c, err := zmtp.Dial(zmtptest.Context(t), endpoint, zmtp.Config{Type: kind})
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func publisherWait(t *testing.T, p *publisher.Publisher, n int) {
	t.Helper()
	must(t, p.WaitSubscribers(zmtptest.Context(t), n))
}

func publisherSubscribe(t *testing.T, p *publisher.Publisher, prefix string) *zmtp.Conn {
	t.Helper()
	c := publisherDial(t, p.Endpoint(), zmtp.SUB)
	must(t, c.Subscribe(prefix))
	return c
}

// expectBatch reads one message.
func expectBatch(t *testing.T, c *zmtp.Conn, topic string, seq uint64, payload string) {
	t.Helper()
	m, err := c.Receive()
	must(t, err)
	if len(m) != 3 || string(m[0]) != topic || len(m[1]) != 8 || binary.BigEndian.Uint64(m[1]) != seq || string(m[2]) != payload {
		t.Fatalf("got %q, want [%s %d %q]", m, topic, seq, payload)
	}
}

func TestForgetsCancelled(t *testing.T) {
	p := newPublisher(t, publisher.Config{Topic: "kv"})
	nc, err := net.Dial("tcp", strings.TrimPrefix(p.Endpoint(), "tcp://"))
	must(t, err)
	defer nc.Close()
	say := func(b []byte) {
		if _, err := nc.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	say(zmtptest.Hello(1, "SUB"))
	say(zmtptest.Command("SUBSCRIBE", "k"))
	say(zmtptest.Command("SUBSCRIBE", "k"))
	say(zmtptest.Command("CANCEL", "k"))
	publisherWait(t, p, 1)
	say(zmtptest.Command("CANCEL", "k"))
	say(zmtptest.Command("CANCEL", "never was"))
	for i := range 1001 { // useless, and not kept
		say(zmtptest.Command("SUBSCRIBE", fmt.Sprint(strings.Repeat("t", 8000), i)))
	}
	say(zmtptest.Command("SUBSCRIBE", "kv"))
	publisherWait(t, p, 1)
	say(zmtptest.Command("CANCEL", "kv"))
	say(zmtptest.Message("\x01other")) // in the form of ZMTP 3.0
	say(zmtptest.Message("\x01kv"))
	say(zmtptest.Message("\x00kv"))
	other := publisherSubscribe(t, p, "kv")
	publisherWait(t, p, 1)
	p.Publish([]byte("x"))
	expectBatch(t, other, "kv", 0, "x")
}

func replayBatches(t *testing.T, c *zmtp.Conn, start uint64) (numbers []uint64, payloads []string) {
	t.Helper()
	must(t, c.Send(nil, binary.BigEndian.AppendUint64(nil, start)))
	for {
		m, err := c.Receive()
		if err != nil || len(m) != 3 || len(m[0]) != 0 || len(m[1]) != 8 {
			t.Fatalf("got %q, %v", m, err)
		}
		seq := binary.BigEndian.Uint64(m[1])
		if seq == 1<<64-1 && len(m[2]) == 0 {
			return numbers, payloads
		}
		numbers = append(numbers, seq)
		payloads = append(payloads, string(m[2]))
	}
}

func TestReplays(t *testing.T) {
	p := newPublisher(t, publisher.Config{Replay: "tcp://127.0.0.1:0", Buffer: 100})
	sub := publisherSubscribe(t, p, "")
	publisherWait(t, p, 1)
	for i := range 250 {
		if i%10 == 3 {
			p.Skip(fmt.Append(nil, i))
		} else {
			p.Publish(fmt.Append(nil, i))
		}
	}
	for i := range uint64(250) {
		if i%10 != 3 {
			expectBatch(t, sub, "", i, fmt.Sprint(i))
		}
	}
	dealer := publisherDial(t, p.ReplayEndpoint(), zmtp.DEALER)
	for _, malformed := range [][][]byte{{[]byte("8 bytes!")}, {nil, nil, make([]byte, 8)}, {nil, []byte("7 bytes")}} {
		if err := dealer.Send(malformed...); err != nil { // not answered
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ start, first, count uint64 }{
		{0, 150, 100}, {150, 150, 100}, {151, 151, 99}, {249, 249, 1}, {250, 0, 0}, {1 << 62, 0, 0}, {1<<64 - 1, 0, 0},
	} {
		numbers, payloads := replayBatches(t, dealer, tt.start)
		if uint64(len(numbers)) != tt.count {
			t.Fatalf("from %d: %d batches, want %d", tt.start, len(numbers), tt.count)
		}
		for i, seq := range numbers {
			if want := tt.first + uint64(i); seq != want || payloads[i] != fmt.Sprint(want) {
				t.Fatalf("from %d: batch %d has number %d and %q", tt.start, i, seq, payloads[i])
			}
		}
	}
}

// Skipped messages never arrive, repeated ones arrive again, and replies are lost as configured.
func TestMisbehaves(t *testing.T) {
	p := newPublisher(t, publisher.Config{Replay: "tcp://127.0.0.1:0", Buffer: 6})
	sub := publisherSubscribe(t, p, "")
	publisherWait(t, p, 1)
	for i := range uint64(10) {
		var seq uint64
		switch i {
		case 4, 8:
			seq = p.Burn()
		case 6:
			seq = p.Skip([]byte("6"))
		default:
			seq = p.Publish(fmt.Append(nil, i))
		}
		if seq != i || p.Next() != i+1 {
			t.Fatalf("number %d and then %d, want %d", seq, p.Next(), i)
		}
	}
	for seq, want := range map[uint64]bool{0: false, 1: false, 4: false, 8: false, 10: false, 6: true} {
		if got := p.Repeat(seq); got != want {
			t.Errorf("repeat of %d: %v", seq, got)
		}
	}
	p.Repeat(3)
	for _, seq := range []uint64{0, 1, 2, 3, 5, 7, 9, 6, 3} {
		expectBatch(t, sub, "", seq, fmt.Sprint(seq))
	}
	dealer := publisherDial(t, p.ReplayEndpoint(), zmtp.DEALER)
	for _, tt := range []struct {
		lost func(i, n int) bool
		want []uint64
	}{
		{nil, []uint64{2, 3, 5, 6, 7, 9}},
		{func(i, _ int) bool { return i%2 == 1 }, []uint64{2, 5, 7}},
		{func(i, n int) bool { return i < n-1 }, []uint64{9}},
	} {
		p.LoseReplies(tt.lost)
		if got, _ := replayBatches(t, dealer, 0); !slices.Equal(got, tt.want) {
			t.Errorf("replayed %d, want %d", got, tt.want)
		}
	}
	p.LoseReplies(func(i, n int) bool { return i >= 2 }) // the end too
	must(t, dealer.Send(nil, binary.BigEndian.AppendUint64(nil, 4)))
	expectBatch(t, dealer, "", 5, "5")
	expectBatch(t, dealer, "", 6, "6")
	p.LoseReplies(nil)
	if got, _ := replayBatches(t, dealer, 9); !slices.Equal(got, []uint64{9}) {
		t.Errorf("after an answer without an end: %d", got)
	}
	p.Disconnect()
	for _, c := range []*zmtp.Conn{sub, dealer} {
		if m, err := c.Receive(); err == nil {
			t.Errorf("received %q when disconnected", m)
		}
	}
	if seq := p.Publish(nil); seq != 10 {
		t.Errorf("number %d after a disconnection, want 10", seq)
	}
}

func TestRestarts(t *testing.T) {
	p := newPublisher(t, publisher.Config{Replay: "tcp://127.0.0.1:0"})
	sub := publisherSubscribe(t, p, "")
	dealer := publisherDial(t, p.ReplayEndpoint(), zmtp.DEALER)
	publisherWait(t, p, 1)
	p.Publish([]byte("before"))
	expectBatch(t, sub, "", 0, "before")
	if n, _ := replayBatches(t, dealer, 0); len(n) != 1 {
		t.Fatalf("replayed %d", n)
	}
	endpoint, replay := p.Endpoint(), p.ReplayEndpoint()
	must(t, p.Restart())
	for _, c := range []*zmtp.Conn{sub, dealer} {
		if m, err := c.Receive(); err == nil {
			t.Errorf("received %q over a restart", m)
		}
	}
	if p.Endpoint() != endpoint || p.ReplayEndpoint() != replay {
		t.Error("the endpoints changed")
	}
	if n, _ := replayBatches(t, publisherDial(t, replay, zmtp.DEALER), 0); len(n) != 0 {
		t.Errorf("replayed %d after a restart", n)
	}
	sub = publisherSubscribe(t, p, "")
	publisherWait(t, p, 1)
	p.Publish([]byte("after"))
	expectBatch(t, sub, "", 0, "after")
}

// A subscriber that does not read loses messages beyond its queue, and others lose none.
func TestDropsForTheSlow(t *testing.T) {
	const queue, published = 10, 3000
	p := newPublisher(t, publisher.Config{Queue: queue, Buffer: 1})
	slow := publisherSubscribe(t, p, "")
	publisherWait(t, p, 1)
	payload := make([]byte, 64<<10) // 200 MB in all: more than any socket's buffer
	for range published {
		p.Publish(payload)
	}
	quick := publisherSubscribe(t, p, "")
	publisherWait(t, p, 2)
	last := p.Publish([]byte("to the quick"))
	expectBatch(t, quick, "", last, "to the quick")

	var received, next uint64
	for ; ; received++ {
		m, err := slow.Receive()
		must(t, err)
		seq := binary.BigEndian.Uint64(m[1])
		if seq < next {
			t.Fatalf("number %d after %d", seq, next-1)
		}
		next = seq + 1
		if len(m[2]) == 0 {
			break
		}
		p.Publish(nil) // an end to find, once there is room for it
	}
	if received == 0 || received > published/2 {
		t.Errorf("the slow one received %d of %d", received, published)
	}
}

// The bytes that wait for a subscriber are bounded, too.
func TestBytesForTheSlow(t *testing.T) {
	p := newPublisher(t, publisher.Config{})
	slow := publisherSubscribe(t, p, "")
	publisherWait(t, p, 1)
	seq := p.Publish(make([]byte, 8<<20)) // all of the messages below have this memory
	for range 300 {
		p.Repeat(seq)
	}
	last := p.Publish(nil)
	for received := 0; ; received++ {
		m, err := slow.Receive()
		must(t, err)
		if binary.BigEndian.Uint64(m[1]) == last {
			break
		}
		if received == 2*256/8+8 { // those that wait, and those that are being sent
			t.Fatalf("more than %d messages of 8 MiB have waited", received)
		}
	}
}

func TestErrors(t *testing.T) {
	zmtptest.NoLeaks(t)
	for _, cfg := range []publisher.Config{
		{Endpoint: "127.0.0.1:5557"},
		{Endpoint: "tcp://*:5557", Connect: true},
		{Replay: "tcp://nowhere"},
		{Buffer: -1},
		{Queue: -1},
	} {
		if p, err := publisher.New(cfg); err == nil {
			p.Close()
			t.Errorf("%+v was taken", cfg)
		}
	}
	p := newPublisher(t, publisher.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error, 2)
	go func() { waited <- p.WaitSubscribers(ctx, 1) }()
	cancel()
	if err := <-waited; !errors.Is(err, context.Canceled) {
		t.Errorf("WaitSubscribers: %v, want %v", err, context.Canceled)
	}
	go func() { waited <- p.WaitSubscribers(t.Context(), 1) }()
	p.Close()
	if err := <-waited; !errors.Is(err, publisher.ErrClosed) {
		t.Errorf("WaitSubscribers: %v, want %v", err, publisher.ErrClosed)
	}
	if err := p.Restart(); !errors.Is(err, publisher.ErrClosed) {
		t.Errorf("Restart: %v, want %v", err, publisher.ErrClosed)
	}
}

// TestTooManyConnections: a subscriber takes the place of the oldest connection that has not subscribed.
// If all have, it is refused.
func TestTooManyConnections(t *testing.T) {
	p := newPublisher(t, publisher.Config{MaxConns: 3, Replay: "tcp://127.0.0.1:0"})
	first := publisherSubscribe(t, p, "")
	publisherWait(t, p, 1)
	oldest, _ := publisherDial(t, p.Endpoint(), zmtp.SUB), publisherDial(t, p.Endpoint(), zmtp.SUB)
	for n := 2; n <= 3; n++ {
		publisherSubscribe(t, p, "")
		publisherWait(t, p, n)
		if n == 2 {
			if _, err := oldest.Receive(); err == nil {
				t.Error("the oldest idle connection is not closed")
			}
		}
	}
	if c, err := zmtp.Dial(zmtptest.Context(t), p.Endpoint(), zmtp.Config{Type: zmtp.SUB}); err == nil {
		c.Close()
		t.Error("a fourth subscriber is not refused")
	}
	p.Publish([]byte("x"))
	expectBatch(t, first, "", 0, "x")
	for range 4 { // the replay socket has connections of its own, none of which subscribes
		replayBatches(t, publisherDial(t, p.ReplayEndpoint(), zmtp.DEALER), 0)
	}
}

func TestTalksToLibzmq(t *testing.T) {
	dir := t.TempDir()
	for name, cfg := range map[string]publisher.Config{
		"tcp": {Replay: "tcp://127.0.0.1:0"},
		"ipc": {Endpoint: "ipc://" + filepath.Join(dir, "pub"), Replay: "ipc://" + filepath.Join(dir, "replay")},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.Topic = "kv@pod@model"
			zmtptest.NeedLibzmq(t)
			p := newPublisher(t, cfg)
			peer := zmtptest.StartPython(t, "testdata/subscriber.py", p.Endpoint(), "--topic", "kv@", "--replay", p.ReplayEndpoint())
			publisherWait(t, p, 1)
			libzmqReceives(t, p, peer)
			p.Skip([]byte("lost"))
			answer, err := peer.Do("replay 98")
			must(t, err)
			want := fmt.Sprintf("[[98 %x] [99 %x] [100 %x]]", publisherPayload(98), publisherPayload(99), "lost")
			if got := fmt.Sprint(answer["messages"]); got != want {
				t.Errorf("replay: %.300s, want %.300s", got, want)
			}
			if answer, err = peer.Do("replay %d", int64(1)<<62); err != nil || fmt.Sprint(answer["messages"]) != "[]" {
				t.Errorf("replay from a number beyond all: %v, %v", answer, err)
			}
			must(t, p.Restart())
			publisherWait(t, p, 1) // libzmq reconnects by itself
			libzmqReceives(t, p, peer)
		})
	}
}

// TestLibzmqReplayBeyondAll: an engine on libzmq answers like a Publisher, at once and with the end
// alone, to a request from a number that it never reaches.
func TestLibzmqReplayBeyondAll(t *testing.T) {
	zmtptest.NeedLibzmq(t)
	zmtptest.NoLeaks(t)
	replay := "ipc://" + filepath.Join(t.TempDir(), "replay")
	peer := zmtptest.StartPython(t, "../../events/testdata/publisher.py", "tcp://127.0.0.1:*", "--replay", replay)
	dealer := publisherDial(t, replay, zmtp.DEALER)
	for n := range 2 { // before the first batch, and behind it
		if numbers, _ := replayBatches(t, dealer, 1<<62); len(numbers) > 0 {
			t.Errorf("%d batches published: replayed %d", n, numbers)
		}
		if _, err := peer.Do("pub 00"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestConnectsToLibzmq(t *testing.T) {
	zmtptest.NeedLibzmq(t)
	zmtptest.NoLeaks(t)
	peer := zmtptest.StartPython(t, "testdata/subscriber.py", "tcp://127.0.0.1:*", "--bind")
	p := newPublisher(t, publisher.Config{Endpoint: peer.Ready["endpoint"].(string), Connect: true, Topic: "kv@pod@model"})
	publisherWait(t, p, 1)
	libzmqReceives(t, p, peer)
}

func publisherPayload(i int) []byte { return []byte(strings.Repeat("x", 3*i) + fmt.Sprint(i)) }

// libzmqReceives publishes 100 batches from number 0 on.
func libzmqReceives(t *testing.T, p *publisher.Publisher, peer *zmtptest.Python) {
	t.Helper()
	for i := range 100 {
		p.Publish(publisherPayload(i))
	}
	answer, err := peer.Do("recv 100")
	must(t, err)
	for i, m := range answer["messages"].([]any) {
		want := fmt.Sprint([]any{"kv@pod@model", i, hex.EncodeToString(publisherPayload(i))})
		if got := fmt.Sprint(m); got != want {
			t.Fatalf("message %d: %.100s, want %.100s", i, got, want)
		}
	}
}

func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
