package picker_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/picker"
	"github.com/kvindex/kvindex/route"
)

func ExamplePickPair() {
	ix, err := kvindex.New()
	if err != nil {
		log.Fatal(err)
	}
	defer ix.Close()
	prefill, err := picker.New(ix, picker.Config{})
	if err != nil {
		log.Fatal(err)
	}
	decode, err := picker.New(ix, picker.Config{Policy: route.Decode(0, route.LeastTokens)})
	if err != nil {
		log.Fatal(err)
	}
	err = errors.Join(prefill.Set([]picker.Pod{{Name: "p-1"}, {Name: "p-2"}}), decode.Set([]picker.Pod{{Name: "d-1"}}))
	if err != nil {
		log.Fatal(err)
	}
	prompt := fakeengine.NewPrompt(1, 16, 64)
	turn := func(tokens int) {
		p, d, err := picker.PickPair(context.Background(), prefill, decode, &kvindex.Request{Model: "m", Tokens: prompt.Tokens[:tokens]}, 100)
		if err != nil {
			log.Fatal(err)
		}
		if p != nil {
			fmt.Println(p.Pod.Name, "computes", tokens-p.CachedTokens, "tokens")
			p.Done(kvindex.Usage{PromptTokens: tokens, CachedTokens: p.CachedTokens})
		}
		fmt.Println(d.Pod.Name, "generates, and has", d.CachedTokens, "tokens")
		d.Done(kvindex.Usage{PromptTokens: tokens, CachedTokens: d.CachedTokens})
	}
	// p-2 has computed 512 tokens of an earlier request.
	if err := ix.Ingest("p-2", "m", fakeengine.Payload(1, 0, prompt.Stored(0, 32))); err != nil {
		log.Fatal(err)
	}
	turn(960)
	// d-1 has received them, and generated an answer. Then the next turn comes.
	if err := ix.Ingest("d-1", "m", fakeengine.Payload(1, 0, prompt.Stored(0, 60))); err != nil {
		log.Fatal(err)
	}
	turn(1024)
	// Output:
	// p-2 computes 448 tokens
	// d-1 generates, and has 0 tokens
	// d-1 generates, and has 960 tokens
}

// TestPickPair: there is a hop if the decode pod lacks more tokens than it may compute itself. A
// pick that fails leaves no load.
func TestPickPair(t *testing.T) {
	ix, decode := start(t, picker.Config{Policy: route.Decode(0, route.LeastTokens)}, []picker.Pod{{Name: "d"}, {Name: "e"}})
	prefill, err := picker.New(ix, picker.Config{})
	must(t, err)
	prompt := fakeengine.NewPrompt(1, 16, 8)
	for pod, blocks := range map[string]int{"d": 4, "e": 4, "p": 6} {
		must(t, ix.Ingest(pod, "m", fakeengine.Payload(1, 0, prompt.Stored(0, blocks))))
	}
	request := &kvindex.Request{Model: "m", Tokens: prompt.Tokens}
	pair := func(local int) (p, d *picker.Pick, err error) {
		return picker.PickPair(t.Context(), prefill, decode, request, local)
	}
	idle := func(when string) {
		t.Helper()
		for _, pod := range []string{"d", "e", "p"} {
			if l := load(decode, pod, 0); l != (route.Load{}) {
				t.Errorf("%s: %s decodes %+v", when, pod, l)
			}
			if l := load(prefill, pod, 0); l != (route.Load{}) {
				t.Errorf("%s: %s prefills %+v", when, pod, l)
			}
		}
		if live := ix.Stats().Tickets.Live; live != 0 {
			t.Errorf("%s: %d tickets", when, live)
		}
	}

	// No prefill pod is up.
	if p, d, err := pair(-1); p != nil || d != nil || !errors.Is(err, picker.ErrNoPod) {
		t.Errorf("without a prefill pod: %v, %v, %v", p, d, err)
	}
	idle("without a prefill pod")
	p, d, err := pair(0)
	if err != nil || p != nil {
		t.Fatal(p, err)
	}
	if got, want := load(decode, d.Pod.Name, 0), (route.Load{Requests: 1, Prefill: 64}); got != want {
		t.Errorf("a decode pod that computes has %+v, want %+v", got, want)
	}
	d.Failed()

	must(t, prefill.Set([]picker.Pod{{Name: "p"}, {Name: "q"}}))
	for local, hop := range map[int]bool{-1: true, 0: true, 63: true, 64: false, 1000: false} {
		p, d, err := pair(local)
		if err != nil || (p != nil) != hop {
			t.Fatalf("local %d: %v, %v", local, p, err)
		}
		at, want := d.Pod.Name, route.Load{Requests: 1, Prefill: 64}
		if hop {
			if want = (route.Load{Requests: 1, Decode: 128}); p.Pod.Name != "p" || load(prefill, "p", 0) != (route.Load{Requests: 1, Prefill: 32}) {
				t.Errorf("local %d: %+v, %+v", local, p, load(prefill, "p", 0))
			}
			p.Done(kvindex.Usage{PromptTokens: 128, CachedTokens: 96})
		}
		if got := load(decode, at, 0); got != want {
			t.Errorf("local %d: the decode pod has %+v, want %+v", local, got, want)
		}
		// The prompt that was just sent is predicted there, and does not count as cached.
		if p, other, err := pair(63); err != nil || p == nil || other.Pod.Name == at {
			t.Errorf("local %d: a second request: %v, %v at %v, which has one", local, err, other, at)
		} else {
			p.Failed()
			other.Failed()
		}
		next, err := d.Next(t.Context())
		if err != nil || next.Pod.Name == at || load(decode, next.Pod.Name, 0) != want {
			t.Fatalf("local %d: Next: %v at %v, which has %+v, want %+v", local, err, next.Pod.Name, load(decode, next.Pod.Name, 0), want)
		}
		next.Failed()
		idle(fmt.Sprint("local ", local))
	}

	// A prompt that cannot be scored is computed by a prefill pod. A request that no engine accepts is
	// an error.
	unknown := &kvindex.Request{Body: []byte(`{"model":"m","prompt":"x"}`), Path: "/v1/completions"}
	p, d, err = picker.PickPair(t.Context(), prefill, decode, unknown, 0)
	if err != nil || p == nil || p.Err == nil || d.Err == nil {
		t.Fatal(p, d, err)
	}
	p.Failed()
	d.Failed()
	if _, _, err := picker.PickPair(t.Context(), prefill, decode, &kvindex.Request{Body: []byte("{")}, 0); !errors.Is(err, kvindex.ErrRequest) {
		t.Error(err)
	}
	idle("at the end")
}
