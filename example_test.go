package kvindex_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/tokenize/chat"
	"github.com/vmihailenco/msgpack/v5"
)

// stored is the payload of a vLLM message: a batch that stores a prompt of tokens in blocks of 16.
func stored(tokens []uint32) []byte {
	var hashes []uint64
	for i := range len(tokens) / 16 {
		hashes = append(hashes, 0xcafe+uint64(i)) // any hash: the Indexer computes its own
	}
	event := []any{"BlockStored", hashes, nil, tokens, 16, nil, "GPU", nil}
	payload, err := msgpack.Marshal([]any{1700000000.5, []any{event}, 0})
	if err != nil {
		log.Fatal(err)
	}
	return payload
}

func ids(n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(1000 + i)
	}
	return tokens
}

// The whole life of an Indexer: events in, scores out.
func Example() {
	ix, err := kvindex.New()
	if err != nil {
		log.Fatal(err)
	}
	defer ix.Close()

	// Two pods have published their blocks.
	if err := ix.Ingest("pod-a", "llama", stored(ids(32))); err != nil {
		log.Fatal(err)
	}
	if err := ix.Ingest("pod-b", "llama", stored(ids(80))); err != nil {
		log.Fatal(err)
	}

	var answer kvindex.Answer
	err = ix.ScoreRequest(context.Background(), &kvindex.Request{Model: "llama", Tokens: ids(100)}, &answer)
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range answer.Pods {
		fmt.Printf("%s holds %d of %d tokens\n", s.Pod, s.CachedTokens, answer.PromptTokens)
	}
	// Output:
	// pod-b holds 80 of 100 tokens
	// pod-a holds 32 of 100 tokens
}

// Text needs the model's tokenizer; tokenize.Load reads its tokenizer.json.
// Here a byte is a token.
func ExampleIndexer_Score() {
	ix, err := kvindex.New(kvindex.WithModel("bytes", kvindex.Model{Tokenizer: words{}}))
	if err != nil {
		log.Fatal(err)
	}
	defer ix.Close()
	prompt := "You are a helpful assistant. What is a KV cache?"
	tokens, _ := words{}.Encode(context.Background(), nil, prompt, true)
	if err := ix.Ingest("pod-a", "bytes", stored(tokens[:32])); err != nil {
		log.Fatal(err)
	}
	scores, err := ix.Score(context.Background(), prompt, "bytes", []string{"pod-a", "pod-b"})
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range scores {
		fmt.Println(s.Pod, s.Score, s.State)
	}
	// Output:
	// pod-a 32 live
	// pod-b 0 unknown
}

// Explain gives the reasons for a score.
func ExampleIndexer_Explain() {
	ix, err := kvindex.New()
	if err != nil {
		log.Fatal(err)
	}
	defer ix.Close()
	if err := ix.Ingest("pod-a", "llama", stored(ids(32))); err != nil {
		log.Fatal(err)
	}
	if err := ix.Ingest("pod-b", "llama", stored(ids(80))); err != nil {
		log.Fatal(err)
	}
	e, err := ix.Explain(context.Background(), &kvindex.Request{Model: "llama", Tokens: ids(100)}, "pod-a")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(e)
	// Output:
	// pod "pod-a": 32 of 100 tokens cached, rank 0, live
	//   request: model "llama"
	//   tokens:  [1000 1001 1002 1003 1004 1005 1006 1007 1008] ... [1097 1098 1099]
	//   blocks:  6 of 16 tokens; held from the first on: 2 (gpu=2); the next is 2, from token 32 on
	//   cause:   elsewhere
	//   The pod does not hold block 2 (tokens 32 to 47), and never stored it, as far as is known. Other pods hold it: "pod-b".
}

// IngestMessage returns to a transport with sequence numbers how each message was applied.
func ExampleIndexer_IngestMessage() {
	ix, err := kvindex.New(kvindex.WithHooks(kvindex.Hooks{
		Lost: func(l kvindex.Loss) {
			fmt.Printf("%s lost messages: %s %d to %d\n", l.Pod, l.Cause, l.Gap.From, l.Gap.To)
		},
	}))
	if err != nil {
		log.Fatal(err)
	}
	defer ix.Close()
	for _, seq := range []uint64{0, 1, 1, 5} {
		payload := stored(ids(16 * int(seq+1)))
		r, err := ix.IngestMessage(kvindex.Message{Pod: "pod-a", Model: "llama", Stream: "tcp://10.0.0.7:5557", Seq: seq, Payload: payload})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d: applied %v, duplicate %v\n", seq, r.Applied, r.Duplicate)
	}
	// Output:
	// 0: applied true, duplicate false
	// 1: applied true, duplicate false
	// 1: applied false, duplicate true
	// pod-a lost messages: gap 2 to 4
	// 5: applied true, duplicate false
}

// Indexes that share their seed have equal keys for equal prompts.
func ExampleWithIndex() {
	memory, err := index.NewMemory(index.MemoryConfig{Bytes: 1 << 30})
	if err != nil {
		log.Fatal(err)
	}
	defer memory.Close()
	ix, err := kvindex.New(kvindex.WithIndex(memory))
	if err != nil {
		log.Fatal(err)
	}
	defer ix.Close()
	err = ix.Ingest("pod-a", "llama", stored(ids(48)))
	fmt.Println(err, ix.Stats().Blocks[kvindex.TierGPU])
	// Output: <nil> 3
}

// Score the body of a chat request. LoadModel reads the model's tokenizer and chat template, which
// make the engine's text of it.
func ExampleWithModel() {
	const source = `{% for m in messages %}<{{ m.role }}>{{ m.content }}
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}`
	template, err := chat.New(source, nil, chat.Options{})
	if err != nil {
		log.Fatal(err)
	}
	ix, err := kvindex.New(
		kvindex.WithModel("llama", kvindex.Model{Tokenizer: words{}, Chat: template}),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer ix.Close()

	// The first turn of the conversation is in the cache of pod-a.
	first, err := words{}.Encode(context.Background(), nil, "<system>Be brief.\n<user>Name a river of Europe.\n<assistant>Danube\n", false)
	if err != nil {
		log.Fatal(err)
	}
	if err := ix.Ingest("pod-a", "llama", stored(first[:64])); err != nil {
		log.Fatal(err)
	}

	body := []byte(`{"model": "llama", "temperature": 0.2, "messages": [
		{"role": "system", "content": "Be brief."},
		{"role": "user", "content": [{"type": "text", "text": "Name a river of Europe."}]},
		{"role": "assistant", "content": "Danube"},
		{"role": "user", "content": "And of Asia?"}]}`)
	var answer kvindex.Answer
	if err := ix.ScoreRequest(context.Background(), &kvindex.Request{Body: body}, &answer); err != nil {
		log.Fatal(err)
	}
	for _, s := range answer.Pods {
		fmt.Printf("%s holds %d of %d tokens\n", s.Pod, s.CachedTokens, answer.PromptTokens)
	}
	// Output: pod-a holds 64 of 96 tokens
}

// Losses are logged as warnings: each makes scores worse until the cache is emptied. OnError
// reports a lasting fault at growing intervals, so it needs no limit. Of the scores only faults of
// the gateway are logged, each outcome once a minute, without the prompt and without the error's
// text, which may quote it.
func ExampleWithHooks() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{} // for the example
		}
		return a
	}}))
	var mu sync.Mutex
	last := make(map[string]time.Time) // by outcome
	ix, err := kvindex.New(kvindex.WithHooks(kvindex.Hooks{
		Lost: func(l kvindex.Loss) { logger.Warn("view lost", "loss", l) },
		State: func(pod, model string, from, to kvindex.State) {
			logger.Info("state", "pod", pod, "model", model, "from", from, "to", to)
		},
		Scored: func(ctx context.Context, s kvindex.ScoreReport) {
			switch s.Outcome {
			case "scored", "cancelled", "refused", "bad_request", "not_scorable", "unknown_adapter": // of the client
				logger.DebugContext(ctx, "score", "model", s.Model, "outcome", s.Outcome, "cached", s.CachedTokens, "tokens", s.PromptTokens)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if time.Since(last[s.Outcome]) > time.Minute {
				last[s.Outcome] = time.Now()
				logger.WarnContext(ctx, "scores fail", "model", s.Model, "outcome", s.Outcome)
			}
		},
	}))
	if err != nil {
		log.Fatal(err)
	}
	defer ix.Close()
	_, err = events.NewSubscriber(ix.Sink(), events.SubscriberConfig{
		Endpoint: "tcp://10.0.0.7:5557", Pod: "pod-a", Model: "llama",
		OnError: func(err error) { logger.Warn("transport", "err", err) },
	})
	if err != nil {
		log.Fatal(err)
	}

	for _, seq := range []uint64{0, 3} {
		if _, err := ix.IngestMessage(kvindex.Message{Pod: "pod-a", Model: "llama", Stream: "tcp://10.0.0.7:5557", Seq: seq, Payload: stored(ids(32))}); err != nil {
			log.Fatal(err)
		}
	}
	for range 2 {
		_, _ = ix.Score(context.Background(), "a text", "llama", nil)
	}
	// Output:
	// level=INFO msg=state pod=pod-a model=llama from=unknown to=live
	// level=WARN msg="view lost" loss.cause=gap loss.pod=pod-a loss.model=llama loss.rank=0 loss.kept=false loss.stream=tcp://10.0.0.7:5557 loss.seq=3 loss.from=1 loss.to=2 loss.replayed=false
	// level=INFO msg=state pod=pod-a model=llama from=live to=partial
	// level=WARN msg="scores fail" model=llama outcome=no_tokenizer
}
