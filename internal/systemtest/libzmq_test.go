package systemtest

import (
	"bufio"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/stats"
)

// truth is the random holding of an engine: prompts of a few blocks, each held or not.
type truth struct {
	r       *rand.Rand
	prompts []fakeengine.Prompt
	held    [][]bool
	clock   float64
}

const truthBlocks = 8

func newTruth(seed uint64, prompts, blockSize int) *truth {
	e := &truth{r: rand.New(rand.NewPCG(seed, 3)), clock: 1e9}
	for i := range prompts {
		e.prompts = append(e.prompts, fakeengine.NewPrompt(seed<<16|uint64(i), blockSize, truthBlocks))
		e.held = append(e.held, make([]bool, truthBlocks))
	}
	return e
}

// next returns the next payload, about one block. Blocks are stored in order, because an engine
// names no parent that it lacks.
func (e *truth) next() []byte {
	e.clock += 0.001
	i := e.r.IntN(len(e.prompts))
	p, held := e.prompts[i], e.held[i]
	first := 0
	for first < len(held) && held[first] {
		first++
	}
	if first < len(held) && e.r.IntN(3) > 0 {
		held[first] = true
		return fakeengine.Payload(e.clock, 0, p.Stored(first, first+1))
	}
	if b := e.r.IntN(len(held)); held[b] {
		held[b] = false
		return fakeengine.Payload(e.clock, 0, p.Removed(b))
	}
	return fakeengine.Payload(e.clock, 0)
}

// restart empties the engine.
func (e *truth) restart() {
	for i := range e.held {
		clear(e.held[i])
	}
}

// write writes n payloads to a file in the publisher's format.
func (e *truth) write(t *testing.T, n int) (path string) {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "payloads")
	must(t, err)
	w := bufio.NewWriterSize(f, 1<<20)
	for range n {
		p := e.next()
		_, _ = w.Write(binary.BigEndian.AppendUint32(nil, uint32(len(p))))
		_, _ = w.Write(p)
	}
	must(t, w.Flush())
	must(t, f.Close())
	return f.Name()
}

// wrong describes the index's errors about pod a.
func (e *truth) wrong(t *testing.T, ix *kvindex.Indexer) string {
	t.Helper()
	total := 0
	for i, p := range e.prompts {
		leading := 0
		for _, h := range e.held[i] {
			if h {
				total++
			}
		}
		for leading < truthBlocks && e.held[i][leading] {
			leading++
		}
		if got := blocks(t, ix, "a", p); got != leading {
			return fmt.Sprintf("prompt %d: %d blocks, the engine has %d", i, got, leading)
		}
	}
	for _, info := range ix.Pods(nil) {
		if info.Pod == "a" && info.Ranks[0].Blocks[kvindex.TierGPU] != total {
			return fmt.Sprintf("%d blocks, the engine has %d", info.Ranks[0].Blocks[kvindex.TierGPU], total)
		}
	}
	return ""
}

// gate is a sink that blocks messages while it is closed.
type gate struct {
	events.Sink // of ix
	ix          *kvindex.Indexer
	mu          sync.Mutex
	closed      bool
	open        sync.Cond
	waits       atomic.Bool // a message waits at the gate
	passed      chan struct{}
	current     chan struct{} // closed when the replay socket has brought all
	once        sync.Once
}

func newGate(ix *kvindex.Indexer) *gate {
	g := &gate{Sink: ix.Sink(), ix: ix, passed: make(chan struct{}, 1), current: make(chan struct{})}
	g.open.L = &g.mu
	return g
}

func (g *gate) set(closed bool) {
	g.mu.Lock()
	g.closed = closed
	g.mu.Unlock()
	g.open.Broadcast()
}

func (g *gate) IngestMessage(m kvindex.Message) (kvindex.Receipt, error) {
	g.mu.Lock()
	for g.closed {
		g.waits.Store(true)
		g.open.Wait()
	}
	g.mu.Unlock()
	r, err := g.Sink.IngestMessage(m)
	select {
	case g.passed <- struct{}{}:
	default:
	}
	return r, err
}

func (g *gate) StreamNote(pod, model, stream string, n events.Note) error {
	if n == events.NoteCurrent {
		g.once.Do(func() { close(g.current) })
	}
	return g.Sink.StreamNote(pod, model, stream, n)
}

// libzmqSilence is the time after which a replay is requested again: longer than Python may need
// for an answer on a busy machine, because it completes unwanted answers too.
const libzmqSilence = 3 * time.Second

// libzmqEngine is an engine on libzmq with its Subscriber.
type libzmqEngine struct {
	t *testing.T
	*truth
	*gate
	python *zmtptest.Python
	ctx    context.Context
	sub    *events.Subscriber
	losses chan kvindex.Loss
}

func startLibzmqEngine(t *testing.T, e *truth, bind bool, args ...string) *libzmqEngine {
	t.Helper()
	zmtptest.NeedLibzmq(t)
	l := &libzmqEngine{t: t, truth: e, losses: make(chan kvindex.Loss, 10_000)}
	l.gate = newGate(open(t, kvindex.WithHooks(kvindex.Hooks{Lost: func(loss kvindex.Loss) { l.losses <- loss }})))
	replay := "tcp://127.0.0.1:" + zmtptest.FreePort(t)
	pub := "tcp://127.0.0.1:" + zmtptest.FreePort(t)
	cfg := events.SubscriberConfig{
		Endpoint: pub, Pod: "a", Model: "m", Replay: replay, Bind: bind,
		Backoff: 50 * time.Millisecond, ReplayTimeout: libzmqSilence,
	}
	if bind {
		cfg.Pod, cfg.Model, cfg.Replay = "", "", ""
		cfg.ReplayOf = func(string, string) string { return replay }
	} else {
		_, port, _ := net.SplitHostPort(pub[len("tcp://"):])
		pub = "tcp://*:" + port
	}
	sub, err := events.NewSubscriber(l.gate, cfg)
	must(t, err)
	ctx, cancel := context.WithCancel(zmtptest.Context(t))
	l.sub, l.ctx = sub, ctx
	ended := make(chan error, 1)
	go func() { ended <- sub.Run(ctx) }()
	t.Cleanup(func() {
		l.set(false)
		cancel()
		<-ended
	})
	l.python = zmtptest.StartPython(t, filepath.Join("..", "..", "events", "testdata", "publisher.py"),
		append([]string{pub, "--topic", "kv@a@m", "--replay", replay}, args...)...)
	return l
}

func (l *libzmqEngine) do(format string, args ...any) map[string]any {
	l.t.Helper()
	answer, err := l.python.Do(format, args...)
	if err != nil {
		l.t.Fatal(err)
	}
	return answer
}

// attach publishes until the first message arrives.
func (l *libzmqEngine) attach() {
	l.t.Helper()
	for {
		l.do("pub %x", l.next())
		select {
		case <-l.passed:
			return
		case <-time.After(20 * time.Millisecond):
		case <-l.ctx.Done():
			l.t.Fatal("no message was applied")
		}
	}
}

// settle waits until all messages are applied and the index is right. The publisher continues
// meanwhile, because only the next message reveals a lost one.
func (l *libzmqEngine) settle() {
	l.t.Helper()
	publish := func() uint64 { return uint64(l.do("pub %x", l.next())["seq"].(float64)) }
	wrong := "no message was applied"
	for due := publish(); ; {
		for _, info := range l.ix.Pods(nil) {
			if info.Pod != "a" || info.Streams[0].Next != due || info.State < kvindex.StatePartial {
				wrong = fmt.Sprintf("%d is due: %+v", due, info)
			} else if wrong = l.wrong(l.t, l.ix); wrong == "" {
				return
			}
		}
		select {
		case <-l.passed:
		case <-time.After(200 * time.Millisecond):
			due = publish()
		case <-l.ctx.Done():
			l.t.Fatal(wrong)
		}
	}
}

// reach waits until message seq has been applied.
func (l *libzmqEngine) reach(seq uint64) {
	l.t.Helper()
	for l.ix.Pods(nil)[0].Streams[0].Next <= seq {
		select {
		case <-l.passed:
		case <-l.ctx.Done():
			l.t.Fatalf("message %d was not applied", seq)
		}
	}
}

func (l *libzmqEngine) noLoss() {
	l.t.Helper()
	select {
	case loss := <-l.losses:
		l.t.Fatalf("lost: %+v", loss)
	default:
	}
	if s := l.ix.Pods(nil)[0]; s.State != kvindex.StateLive || s.Streams[0].Missing != 0 {
		l.t.Fatalf("%+v", s)
	}
}

var libzmqN = flag.Int("libzmq.n", 100_000, "messages of TestLibzmqMillion; long form: 1000000, from which on TestLibzmqSlowSubscriber goes on until a replay was cut short")

// TestLibzmqMillion: up to a million messages of a libzmq publisher, in order, from an engine that
// listens and from one that connects. Then the engine restarts repeatedly, at times unnoticed, and
// skips numbers.
func TestLibzmqMillion(t *testing.T) {
	n := *libzmqN
	binds := []bool{false, true}
	if testing.Short() {
		binds = binds[:1]
	}
	for _, bind := range binds {
		t.Run(fmt.Sprintf("bind=%v", bind), func(t *testing.T) {
			l := startLibzmqEngine(t, newTruth(1, 500, 4), bind)
			l.attach()
			for range n / 50_000 { // two of them fit in libzmq's queue
				sent := l.do("pubfile %s", l.write(t, 50_000))["seq"].(float64)
				l.reach(uint64(sent) - 50_000)
			}
			l.settle()
			l.noLoss()
			s := l.ix.Stats()
			if s.Messages-s.Duplicates < uint64(n) || s.Restarts != 0 {
				t.Errorf("%+v", s.Traffic)
			}
			t.Logf("%d messages, %+v", n, s.Traffic)

			for i := range 6 {
				l.do("pubfile %s", l.write(t, 500+100*(i%3)))
				if i%2 == 0 {
					l.settle()
				}
				l.do("restart")
				l.restart()
			}
			l.do("pubfile %s", l.write(t, 2000))
			l.settle()
			l.do("burn 3") // no replay brings these
			for range 50 {
				l.do("pub %x", l.next())
			}
			l.do("pub %x", fakeengine.Payload(l.clock+1, 0, fakeengine.Cleared{}))
			l.restart()
			l.settle()
			if s = l.ix.Stats(); s.Restarts < 3 || s.PassedOver != 3 || s.Missing != 3 || s.Gaps == 0 {
				t.Errorf("%+v", s.Traffic)
			}
		})
	}
}

// TestLibzmqSlowSubscriber: messages that libzmq drops for a subscriber that does not read are
// replayed, by a ROUTER whose short queue drops as well, while the engine publishes; in both forms
// of answers.
func TestLibzmqSlowSubscriber(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for answers that do not come")
	}
	for _, c := range []struct {
		bind bool
		args []string
	}{{false, nil}, {true, []string{"--replay-topic"}}} {
		t.Run(fmt.Sprintf("bind=%v", c.bind), func(t *testing.T) {
			// Blocks of 528 tokens: some 2 kB a message.
			l := startLibzmqEngine(t, newTruth(2, 60, 528), c.bind, append(c.args, "--hwm", "50", "--buffer", "60000", "--replay-hwm", "300")...)
			l.attach()
			select { // until then no message waits for the missing ones
			case <-l.current:
			case <-l.ctx.Done():
				t.Fatal("the replay socket does not answer")
			}
			l.settle()
			// more is how many requests a round had besides the first one of each replay.
			more := func() int { return int(l.do("stat")["requests"].(float64)) - int(l.sub.Stats().Replays) }
			most := 0
			var s stats.Stats
			// The long form repeats until there are drops: a ROUTER that gets less of the machine
			// than its peer drops nothing.
			for round := 0; round < 1 || *libzmqN >= 1_000_000 && (round < 2 || s.Replayed < 10_000 || most < 2); round++ {
				if round == 20 {
					t.Fatalf("%d more requests in a round, %+v: nothing was lost and replayed, or the ROUTER dropped nothing", most, s.Traffic)
				}
				before, first := l.ix.Stats().Gaps, more()
				l.set(true)
				l.waits.Store(false)
				for !l.waits.Load() {
					l.do("pub %x", l.next())
				}
				// More than the socket and its queue hold, but within the buffer.
				l.do("pubfile %s", l.write(t, 12_000))
				l.set(false)
				l.do("pubfile %s", l.write(t, 3_000)) // during the replay
				l.settle()
				l.noLoss()
				if s = l.ix.Stats(); s.Gaps == before {
					t.Fatalf("libzmq dropped nothing: %+v", s.Traffic)
				}
				most = max(most, more()-first)
			}
			t.Logf("%+v, up to %d more requests in a round", s.Traffic, most)
		})
	}
}

// TestLibzmqOffloadDaemon: the streams of an engine and of an offload daemon come from two sockets
// of libzmq. Losses and clears of each affect its own blocks.
func TestLibzmqOffloadDaemon(t *testing.T) {
	ix := open(t, withProfile(kvindex.Profile{Chunk: 1, Draft: kvindex.DraftNone}))
	p := fakeengine.NewPrompt(1, 16, 8)
	ctx, cancel := context.WithCancel(zmtptest.Context(t))
	defer cancel()
	type stream struct {
		python *zmtptest.Python
		gate   *gate
	}
	follow := func(tiers bool) stream {
		python := zmtptest.StartPython(t, filepath.Join("..", "zmtp", "testdata", "peer.py"), "XPUB", "bind", "tcp://127.0.0.1:*")
		g := newGate(ix)
		sub, err := events.NewSubscriber(g, events.SubscriberConfig{Endpoint: python.Ready["endpoint"].(string), Pod: "a", Model: "m", Tiers: tiers})
		must(t, err)
		ended := make(chan error, 1)
		go func() { ended <- sub.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			<-ended
		})
		if _, err := python.Do("recv"); err != nil { // the subscription
			t.Fatal(err)
		}
		return stream{python, g}
	}
	below := func(medium string, s *fakeengine.Stored) *fakeengine.Stored {
		s.Tokens, s.BlockSize, s.Parent, s.Medium = nil, 0, nil, medium
		return s
	}
	engine, daemon := follow(false), follow(true)
	for i, step := range []struct {
		from stream
		seq  uint64
		evs  []fakeengine.Event
		want string
	}{
		{engine, 0, []fakeengine.Event{p.Stored(0, 6), p.Removed(5, 4, 3, 2)}, "32+0+0 live"},
		{daemon, 0, []fakeengine.Event{below("CPU", p.Stored(0, 6))}, "32+64+0 live"},
		{daemon, 1, []fakeengine.Event{below("STORAGE", p.Stored(0, 6))}, "32+64+0 live"},
		{engine, 1, []fakeengine.Event{fakeengine.Cleared{}}, "0+96+0 live"},
		{engine, 2, []fakeengine.Event{p.Stored(0, 3)}, "48+48+0 live"},
		{engine, 4, []fakeengine.Event{p.Stored(0, 1)}, "16+80+0 partial"}, // 3 was lost
		{daemon, 3, []fakeengine.Event{below("CPU", p.Stored(0, 3))}, "16+32+0 partial"},
		{daemon, 4, []fakeengine.Event{fakeengine.Cleared{}}, "16+0+0 partial"},
	} {
		payload := fakeengine.Payload(1e9+float64(i), 0, step.evs...)
		if _, err := step.from.python.Do("send %x,%016x,%x", "kv", step.seq, payload); err != nil {
			t.Fatal(err)
		}
		select {
		case <-step.from.gate.passed:
		case <-ctx.Done():
			t.Fatalf("step %d: the message did not come", i)
		}
		var a kvindex.Answer
		must(t, ix.ScoreRequest(ctx, &kvindex.Request{Model: "m", Tokens: p.Tokens, Pods: []string{"a"}}, &a))
		s := a.Pods[0]
		if got := fmt.Sprintf("%d+%d+%d %v", s.CachedTokens, s.LoadedTokens, s.FetchedTokens, s.State); got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
}
