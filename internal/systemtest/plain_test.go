package systemtest

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/index/indextest"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

// TestPlainIndex: an Indexer on another index scores like one on its own, with engines whose
// messages are partly lost. One seed makes the order of equal pods the same.
func TestPlainIndex(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	seed := [16]byte{1}
	own := open(t, kvindex.WithKeySeed(seed))
	other := open(t, kvindex.WithIndex(indextest.NewPlain(seed, indextest.Config{})))
	var engines []*fakeengine.Engine
	lost := 0
	for pod := range 3 {
		seq := uint64(0)
		engine, err := fakeengine.New(fakeengine.Config{
			Model: "m", BlockSize: 16 << (pod % 2), Blocks: 60, HashSeed: fmt.Sprint(pod), Seed: uint64(pod),
			Publish: func(payload []byte) {
				m := kvindex.Message{Pod: fmt.Sprint(pod), Model: "m", Stream: "s", Seq: seq, Payload: payload}
				if seq++; r.IntN(100) == 0 {
					lost++
					return
				}
				a, errA := own.IngestMessage(m)
				b, errB := other.IngestMessage(m)
				if errA != nil || errB != nil || !reflect.DeepEqual(a, b) {
					t.Fatalf("message %d of %d: %+v, %v, and with the other index %+v, %v", m.Seq, pod, a, errA, b, errB)
				}
			},
		})
		must(t, err)
		engines = append(engines, engine)
	}
	var prompts [][]uint32
	matched := 0
	for n := range 400 {
		tokens := randomTokens(r, 20+r.IntN(200))
		if n > 20 && r.IntN(4) > 0 { // a conversation continues, or a request is repeated
			before := prompts[r.IntN(len(prompts))]
			tokens = append(before[:len(before):len(before)], tokens[:r.IntN(20)]...)
		}
		prompts = append(prompts, tokens)
		engine := engines[r.IntN(len(engines))]
		if _, err := engine.Submit(fakeengine.Request{Tokens: tokens}); err != nil {
			t.Fatal(err)
		}
		engine.Drain()
		if r.IntN(50) == 0 {
			engine.Reset()
		}
		request := kvindex.Request{Model: "m", Tokens: prompts[r.IntN(len(prompts))]}
		a, b := score(t, own, request), score(t, other, request)
		if !reflect.DeepEqual(a, b) {
			t.Fatalf("request %d: %+v, and with the other index %+v", n, a, b)
		}
		for _, pod := range a {
			matched += pod.MatchedBlocks
		}
	}
	t.Logf("%d blocks matched, %d messages lost", matched, lost)
	if matched < 500 || lost < 3 {
		t.Error("the test tests too little")
	}
}
