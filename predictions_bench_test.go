package kvindex_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

// Benchmarks of predictions use prompts of 512 units of 16 tokens.
const (
	sentUnits  = 512
	sentTokens = sentUnits * 16
	sentPods   = 64
	sentLive   = 1000
)

// sentWorld is an Indexer with 1,000 live predictions over 64 pods, and one without.
type sentWorld struct {
	*rand.Rand
	pods   []string
	with   *kvindex.Indexer
	none   *kvindex.Indexer
	sent   [][]uint32 // the prompts that were sent, each to so many pods:
	copies int
	common []uint32 // their common beginning
}

// newSentWorld routes each prompt to siblings pods. All prompts begin with common equal units; all
// pods hold the first held of these.
func newSentWorld(b *testing.B, siblings, common, held int) *sentWorld {
	w := &sentWorld{Rand: rand.New(rand.NewPCG(1, 2)), copies: siblings}
	w.common = randomTokens(w.Rand, common*16)
	for i := range sentPods {
		w.pods = append(w.pods, fmt.Sprint("pod", i))
	}
	for range sentLive / siblings {
		w.sent = append(w.sent, w.like(w.common))
	}
	open := func() *kvindex.Indexer {
		ix := open(b, kvindex.WithPredictions(kvindex.PredictionConfig{TTL: time.Hour, TicketAge: time.Hour}))
		r := rand.New(rand.NewPCG(3, 4))
		for i, pod := range w.pods {
			own := fakeengine.Prompt{Tokens: randomTokens(r, sentTokens), Size: 16, Hash: uint64(i+1) << 32}
			ingest(b, ix, pod, own.Stored(0, sentUnits))
			if held > 0 {
				first := fakeengine.Prompt{Tokens: w.common, Size: 16, Hash: 1 << 60}
				ingest(b, ix, pod, first.Stored(0, held))
			}
		}
		return ix
	}
	w.with, w.none = open(), open()
	w.send(b, w.with)
	return w
}

// send makes the predictions.
func (w *sentWorld) send(b *testing.B, ix *kvindex.Indexer) (tickets []kvindex.Ticket) {
	c := w.client(ix)
	for i, prompt := range w.sent {
		for j := range w.copies {
			tickets = append(tickets, c.send(b, prompt, w.pods[(i*w.copies+j)%sentPods]))
		}
	}
	if p := ix.Stats().Predictions; p.Live != sentLive {
		b.Fatalf("%+v", p)
	}
	return tickets
}

// like returns a prompt that begins with tokens.
func (w *sentWorld) like(tokens []uint32) []uint32 {
	return append(tokens[:len(tokens):len(tokens)], randomTokens(w.Rand, sentTokens-len(tokens))...)
}

func (w *sentWorld) client(ix *kvindex.Indexer) *client {
	return &client{ix: ix, q: kvindex.Request{Candidates: ix.Candidates("m", w.pods)}}
}

func (c *client) tokens(b *testing.B, tokens []uint32) {
	c.q.Tokens = tokens
	c.score(b)
}

func (c *client) send(b *testing.B, tokens []uint32, pod string) kvindex.Ticket {
	c.tokens(b, tokens)
	t, err := c.ix.Routed(&c.a, pod, 0)
	must(b, err)
	return t
}

// pairOf has the times of two alternating operations. It reports both medians, and the last one's
// ratio to the first.
type pairOf []*timing

func (t pairOf) report(b *testing.B) {
	last, first := t[len(t)-1].median(), t[0].median()
	b.ReportMetric(last, "ns/op")
	b.ReportMetric(first, "base-ns")
	b.ReportMetric(last/first, "of-base")
}

// BenchmarkScorePredicted scores prompts of 512 blocks of token ids for 64 pods, alternating
// between an Indexer with 1,000 live predictions and one without.
func BenchmarkScorePredicted(b *testing.B) {
	for _, c := range []struct {
		name                   string
		siblings, common, held int
	}{
		{"apart", 1, 0, 0},
		{"8-siblings", 8, 0, 0},
		{"half-common", 1, 256, 0},
		{"half-common/quarter-held", 1, 256, 128},
	} {
		b.Run(c.name, func(b *testing.B) {
			w := newSentWorld(b, c.siblings, c.common, c.held)
			const prompts = 500
			fresh, half := make([][]uint32, prompts), make([][]uint32, prompts)
			for i := range prompts {
				fresh[i] = w.like(nil)
				half[i] = w.like(w.sent[i%len(w.sent)][:sentTokens/2])
			}
			with, none := w.client(w.with), w.client(w.none)
			for _, of := range []struct {
				name    string
				prompts [][]uint32
				least   int // predicted tokens
			}{{"fresh", fresh, 0}, {"half", half, sentTokens / 2}, {"all", w.sent, sentTokens - 16}} {
				b.Run(of.name, func(b *testing.B) {
					t := pairOf{newTiming(), newTiming()}
					at := 0
					b.ReportAllocs()
					for b.Loop() {
						tokens := of.prompts[at%len(of.prompts)]
						// The second one finds the prompt in the processor's cache.
						for i := range t {
							i = (i + at) % len(t)
							c := []*client{none, with}[i]
							t[i].do(func() { c.tokens(b, tokens) })
						}
						if with.a.Pods[0].PredictedTokens < of.least || none.a.Pods[0].PredictedTokens > 16*c.held {
							b.Fatal(with.a.Pods[0], none.a.Pods[0])
						}
						at++
					}
					t.report(b)
				})
			}
		})
	}
}

// BenchmarkRouted alternates scores of new prompts of 512 blocks for 64 pods with the same, Routed
// and Abandon: "routed-ns" is the time of these two, "of-base" its ratio to a score's. They make
// all allocations, as scores make none.
func BenchmarkRouted(b *testing.B) {
	w := newSentWorld(b, 1, 0, 0)
	prompts := make([][]uint32, 500)
	for i := range prompts {
		prompts[i] = w.like(nil)
	}
	for _, c := range []struct {
		name string
		ix   *kvindex.Indexer
	}{{"none-live", w.none}, {"live=1000", w.with}} {
		b.Run(c.name, func(b *testing.B) {
			score, routed := newTiming(), newTiming()
			of := w.client(c.ix)
			at := 0
			b.ReportAllocs()
			for b.Loop() {
				score.do(func() { of.tokens(b, prompts[at%len(prompts)]) })
				routed.do(func() {
					t, err := c.ix.Routed(&of.a, w.pods[at%sentPods], 0)
					must(b, err)
					c.ix.Abandon(t)
				})
				at++
			}
			b.ReportMetric(score.median(), "base-ns")
			b.ReportMetric(routed.median(), "ns/op")
			b.ReportMetric(routed.median()/score.median(), "of-base")
		})
	}
}

// BenchmarkIngestPredicted ingests new messages, the last blocks of prompts of 512: 32 while 1,000
// predictions live over 64 pods, and 32 in the same Indexer without any, in turn. Each message of
// "one" completes a prediction, none of "none" does.
func BenchmarkIngestPredicted(b *testing.B) {
	for _, blocks := range []int{8, sentUnits} {
		for _, completes := range []string{"none", "one"} {
			b.Run(fmt.Sprintf("blocks=%d/completes=%s", blocks, completes), func(b *testing.B) {
				w := newSentWorld(b, 1, 0, 0)
				var tickets []kvindex.Ticket
				t := pairOf{newTiming(), newTiming()}
				for at := 0; b.Loop(); at++ {
					if at%1024 == 0 && at > 0 { // keeps the index small
						w, tickets = newSentWorld(b, 1, 0, 0), nil
					}
					ix, live := w.none, at/32%2
					if at%32 == 0 {
						for _, t := range tickets {
							ix.Abandon(t)
						}
						if tickets = nil; live == 1 {
							tickets = w.send(b, ix)
						}
					}
					c, pod := w.client(ix), w.pods[at%sentPods]
					p := fakeengine.Prompt{Tokens: w.like(nil), Size: 16, Hash: uint64(at+1000) << 32}
					payload := fakeengine.Payload(1, 0, p.Stored(sentUnits-blocks, sentUnits))
					if blocks < sentUnits {
						ingest(b, ix, pod, p.Stored(0, sentUnits-blocks))
					}
					sent := c.send(b, p.Tokens, pod)
					if live == 0 || completes == "none" {
						ix.Abandon(sent)
					}
					t[live].do(func() {
						must(b, ix.Ingest(pod, "m", payload))
					})
				}
				if s := w.none.Stats().Predictions; completes == "one" && b.N > 64 && s.Ended["confirmed"] == 0 {
					b.Fatalf("%+v", s)
				}
				if len(t[1].took) > 0 {
					t.report(b)
				}
			})
		}
	}
}

// BenchmarkPredictionHeap reports all live heap of 1,000 predictions of prompts of 512 units over
// 64 pods, for each block of each prompt.
func BenchmarkPredictionHeap(b *testing.B) {
	for _, c := range []struct {
		name         string
		size, common int
	}{{"apart", 16, 0}, {"half-common", 16, 256}, {"apart", 64, 0}} {
		b.Run(fmt.Sprintf("%s/block=%d", c.name, c.size), func(b *testing.B) {
			for b.Loop() {
				r := rand.New(rand.NewPCG(1, 2))
				ix := open(b, kvindex.WithPredictions(kvindex.PredictionConfig{TTL: time.Hour, TicketAge: time.Hour}))
				var pods []string
				for i := range sentPods {
					pods = append(pods, fmt.Sprint("pod", i))
					own := fakeengine.Prompt{Tokens: randomTokens(r, c.size), Size: c.size, Hash: uint64(i+1) << 32}
					ingest(b, ix, pods[i], own.Stored(0, 1))
				}
				of := &client{ix: ix, q: kvindex.Request{Candidates: ix.Candidates("m", pods)}}
				common := randomTokens(r, c.common*16)
				prompt := func() []uint32 { return append(common, randomTokens(r, sentTokens-len(common))...) }
				for range 3 { // the heap of the first score and the first Routed stays
					ix.Abandon(of.send(b, prompt(), pods[0]))
				}
				before := liveHeap()
				for i := range sentLive {
					of.send(b, prompt(), pods[i%sentPods])
				}
				bytes := float64(liveHeap() - before)
				b.ReportMetric(bytes/(sentLive*sentTokens/float64(c.size)), "B/block")
				b.ReportMetric(bytes/sentLive, "B/prompt")
				runtime.KeepAlive(ix)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
