package publish_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/events/publish"
	"github.com/kvindex/kvindex/internal/zmtp"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

func opened(t *testing.T, cfg publish.Config) *publish.Publisher {
	t.Helper()
	p, err := publish.New(cfg)
	must(t, err)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// replay requests all messages from 0 and returns the first number and the payloads.
func replay(t *testing.T, p *publish.Publisher) (first uint64, payloads [][]byte) {
	t.Helper()
	ctx := zmtptest.Context(t)
	c, err := zmtp.Dial(ctx, p.ReplayEndpoint(), zmtp.Config{Type: zmtp.DEALER})
	must(t, err)
	defer c.Close()
	must(t, c.Send(nil, make([]byte, 8)))
	for {
		m, err := c.Receive()
		must(t, err)
		if len(m[2]) == 0 {
			return first, payloads
		}
		if payloads == nil {
			for _, b := range m[1] {
				first = first<<8 | uint64(b)
			}
		}
		payloads = append(payloads, append([]byte(nil), m[2]...))
	}
}

func randomEvent(r *rand.Rand) events.Event {
	pick := func(all ...string) string { return all[r.IntN(len(all))] }
	e := events.Event{Kind: events.Kind(1 + r.IntN(3)), Medium: pick("", "CPU", "STORAGE")}
	if e.Kind == events.Cleared {
		return e
	}
	for range r.IntN(5) {
		e.Hashes = append(e.Hashes, r.Uint64()>>r.IntN(64))
	}
	e.Locality, e.Ownership = pick("", "LOCAL", "REMOTE"), pick("", "SHARED")
	if e.HasGroup = r.IntN(2) == 0; e.HasGroup {
		e.Group = r.IntN(4)
	}
	if e.Kind == events.Removed {
		if r.IntN(3) == 0 {
			for range e.Hashes {
				e.Remaining = append(e.Remaining, r.Uint32N(3))
			}
		}
		return e
	}
	e.BlockSize = 1 + r.IntN(20)
	if e.HasParent = r.IntN(2) == 0; e.HasParent {
		e.Parent = r.Uint64()
	}
	if r.IntN(3) > 0 && len(e.Hashes) > 0 {
		tokens := e.BlockSize * len(e.Hashes)
		if e.Pairs = r.IntN(4) == 0; e.Pairs {
			tokens *= 2
		}
		for range tokens {
			e.Tokens = append(e.Tokens, r.Uint32()>>r.IntN(32))
		}
	}
	e.Adapter, e.GroupKind, e.Window = pick("", "lora"), pick("", "full_attention"), r.IntN(2)*r.IntN(5000)
	e.Reused = r.IntN(4) == 0
	if e.HasExtra = r.IntN(2) == 0 && len(e.Hashes) > 0; e.HasExtra {
		for block := range e.Hashes {
			for range r.IntN(3) {
				k := events.ExtraKey{Block: block, Kind: events.ExtraKind(1 + r.IntN(4))}
				if k.Kind == events.ExtraInt || k.Kind == events.ExtraMedia {
					k.Int = r.Int64()>>r.IntN(64) - r.Int64N(300)
				}
				if k.Kind != events.ExtraInt {
					k.Text = strings.Repeat("k", r.IntN(300))
				}
				e.Extra = append(e.Extra, k)
			}
		}
	}
	return e
}

// TestDecode: Decode reads the events that were published.
func TestDecode(t *testing.T) {
	zmtptest.NoLeaks(t)
	p := opened(t, publish.Config{Replay: "tcp://127.0.0.1:0", Buffer: 2000})
	r := rand.New(rand.NewPCG(1, 2))
	var sent []events.Batch
	for i := range 2000 {
		b := events.Batch{Time: r.Float64() * 1e9, HasRank: r.IntN(2) == 0}
		if b.HasRank {
			b.Rank = r.IntN(200)
		}
		for range r.IntN(5) {
			b.Events = append(b.Events, randomEvent(r))
		}
		seq, err := p.Publish(&b)
		if err != nil || seq != uint64(i) {
			t.Fatalf("message %d: number %d, %v", i, seq, err)
		}
		sent = append(sent, b)
	}
	_, payloads := replay(t, p)
	if len(payloads) != len(sent) {
		t.Fatalf("%d messages, want %d", len(payloads), len(sent))
	}
	for i, payload := range payloads {
		var got events.Batch
		if err := events.Decode(payload, &got); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		want := sent[i]
		if got.Time != want.Time || got.Rank != want.Rank || got.HasRank != want.HasRank || len(got.Events) != len(want.Events) || got.Unknown > 0 || len(got.Unrecognized) > 0 {
			t.Fatalf("message %d: %+v, want %+v", i, got, want)
		}
		for j := range want.Events {
			if a, b := plain(got.Events[j]), plain(want.Events[j]); !reflect.DeepEqual(a, b) {
				t.Fatalf("message %d, event %d: %+v, want %+v", i, j, a, b)
			}
		}
	}
}

// plain makes empty slices nil.
func plain(e events.Event) events.Event {
	if len(e.Hashes) == 0 {
		e.Hashes, e.Remaining = nil, nil
	}
	if len(e.Tokens) == 0 {
		e.Tokens, e.Pairs = nil, false
	}
	if len(e.Extra) == 0 {
		e.Extra = nil
	}
	return e
}

// TestHeld: at any time a replay from 0 has all held blocks, however small the buffer is, and the
// last half of the buffer.
func TestHeld(t *testing.T) {
	zmtptest.NoLeaks(t)
	for _, buffer := range []int{2, 3, 8, 9} {
		t.Run(strconv.Itoa(buffer), func(t *testing.T) { testHeld(t, buffer) })
	}
}

func testHeld(t *testing.T, buffer int) {
	held := make(map[uint64]bool)
	p := opened(t, publish.Config{Replay: "tcp://127.0.0.1:0", Buffer: buffer, Held: func() []events.Event {
		whole := events.Event{Kind: events.Stored, Medium: "CPU"}
		for h := range held {
			whole.Hashes = append(whole.Hashes, h)
		}
		return []events.Event{{Kind: events.Cleared, Medium: "CPU"}, whole}
	}})
	r := rand.New(rand.NewPCG(3, 4))
	late := 0
	for i := range 100 {
		var b events.Batch
		for range r.IntN(10) {
			e := events.Event{Kind: events.Stored, Medium: "CPU", Hashes: []uint64{r.Uint64N(50)}}
			if h := e.Hashes[0]; held[h] {
				e.Kind = events.Removed
				delete(held, h)
			} else {
				held[h] = true
			}
			b.Events = append(b.Events, e)
		}
		if _, err := p.Publish(&b); err != nil {
			t.Fatal(err)
		}
		got := make(map[uint64]bool)
		first, payloads := replay(t, p)
		for n, payload := range payloads {
			var b events.Batch
			must(t, events.Decode(payload, &b))
			if n == 0 && first > 0 {
				late++
			}
			for _, e := range b.Events {
				switch e.Kind {
				case events.Cleared:
					clear(got)
				case events.Stored:
					for _, h := range e.Hashes {
						got[h] = true
					}
				default:
					for _, h := range e.Hashes {
						delete(got, h)
					}
				}
			}
		}
		if first > 0 && len(payloads) != buffer {
			t.Fatalf("step %d: a replay brings %d messages of %d", i, len(payloads), buffer)
		}
		if !reflect.DeepEqual(got, held) {
			t.Fatalf("step %d: a replay brings %v, held are %v", i, got, held)
		}
	}
	if late < 50 {
		t.Errorf("%d replays began behind number 0", late)
	}
}

func TestMistakes(t *testing.T) {
	if _, err := publish.New(publish.Config{Endpoint: "127.0.0.1:1"}); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("an endpoint without a scheme: %v", err)
	}
	if _, err := publish.New(publish.Config{Buffer: 1, Held: func() []events.Event { return nil }}); err == nil {
		t.Error("a Buffer of 1 beside Held was accepted")
	}
	whole := opened(t, publish.Config{Buffer: 2, Held: func() []events.Event { return []events.Event{{Kind: events.Stored}} }})
	if _, err := whole.Publish(&events.Batch{}); err != nil {
		t.Error(err)
	}
	if seq, err := whole.Publish(&events.Batch{}); seq != 1 || err == nil || !strings.Contains(err.Error(), "not Cleared") {
		t.Errorf("Held without a Cleared: %d, %v", seq, err)
	}
	p := opened(t, publish.Config{Replay: "tcp://127.0.0.1:0"})
	for want, b := range map[string]*events.Batch{
		"the most":      {Events: []events.Event{{Kind: events.Cleared, Medium: strings.Repeat("m", 32<<20)}}},
		"nil":           nil,
		"unknown kind":  {Events: []events.Event{{}}},
		"block_size":    {Events: []events.Event{{Kind: events.Stored, Tokens: []uint32{1}}}},
		"not UTF-8":     {Events: []events.Event{{Kind: events.Stored, Adapter: "\xff"}}},
		"window -1":     {Events: []events.Event{{Kind: events.Stored, Window: -1}}},
		"more than 262": {Events: slices.Repeat([]events.Event{{Kind: events.Cleared}}, 1<<18+1)},
		"HasExtra":      {Events: []events.Event{{Kind: events.Stored, Hashes: []uint64{1}, Extra: []events.ExtraKey{{Kind: events.ExtraText, Text: "salt"}}}}},
		"HasRank":       {Rank: 1},
		"HasParent":     {Events: []events.Event{{Kind: events.Stored, Hashes: []uint64{2}, Parent: 1}}},
		"HasGroup":      {Events: []events.Event{{Kind: events.Stored, Hashes: []uint64{2}, Group: 1}}},
		"Salt":          {Events: []events.Event{{Kind: events.Stored, Salt: "s"}}},
		"extra key":     {Events: []events.Event{{Kind: events.Stored, Hashes: []uint64{1}, HasExtra: true, Extra: []events.ExtraKey{{Kind: events.ExtraOpaque, Text: "\xc1"}}}}},
		"time":          {Time: math.NaN()},
		"rank -1":       {Rank: -1},
		"is +Inf":       {Time: math.Inf(1)},
		"event 1 has a": {Events: []events.Event{{Kind: events.Cleared}, {Kind: events.Stored, Salt: "s"}}},
	} {
		if _, err := p.Publish(b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	if seq, err := p.Publish(&events.Batch{}); seq != 0 || err != nil {
		t.Errorf("after errors: number %d, %v", seq, err)
	}
	if _, payloads := replay(t, p); len(payloads) != 1 {
		t.Errorf("%d messages were published", len(payloads))
	} else {
		var b events.Batch
		if err := events.Decode(payloads[0], &b); err != nil || math.Abs(b.Time-float64(time.Now().Unix())) > 3600 {
			t.Errorf("a batch without a time: %v, %v", b.Time, err)
		}
	}
	must(t, p.Close())
	if _, err := p.Publish(&events.Batch{}); !errors.Is(err, publish.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
