// Quickstart routes a multi-turn conversation workload over three engines by
// what they hold in their KV caches, and compares with round-robin.
//
// The engines are fake: they keep a real block pool by vLLM's rules and publish
// real KV events over ZeroMQ on the loopback interface, but they compute
// nothing. All else is what a gateway would do: subscribe, score each prompt,
// send it to the pod that holds most of it and has the least to do.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"time"

	"github.com/kvindex/kvindex/tokenize"
)

const model = "tiny-chat"

//go:embed tokenizer.json
var tokenizerJSON []byte

func main() {
	seed := flag.Uint64("seed", 0, "of the workload; 0: a random one")
	turns := flag.Int("turns", 6, "of each conversation")
	talks := flag.Int("conversations", 10, "that go on at once")
	flag.Parse()
	if *seed == 0 {
		*seed = rand.Uint64N(1_000_000) + 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, os.Stdout, workload{seed: *seed, talks: *talks, turns: *turns})
	switch {
	case errors.Is(err, context.Canceled):
		fmt.Println("interrupted")
	case err != nil:
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, w workload) error {
	tok, err := tokenize.Parse(bytes.NewReader(tokenizerJSON))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d conversations of %d turns over %d pods; all share one system prompt.\n", w.talks, w.turns, pods)
	fmt.Fprintf(out, "Each pod's column is how many tokens of the prompt it holds; > marks the pod that got the turn.\n\n")

	start := time.Now()
	routed, err := play(ctx, tok, w, byCache, out)
	if err != nil {
		return err
	}
	blind, err := play(ctx, tok, w, roundRobin, io.Discard)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%-12s %16s %16s   tokens computed by pod\n", "", "hit rate", "predicted right")
	routed.print(out, "kvindex")
	blind.print(out, "round-robin")
	fmt.Fprintf(out, "\n%.1f s, seed %d (-seed %d plays the same workload again)\n", time.Since(start).Seconds(), w.seed, w.seed)
	return nil
}
