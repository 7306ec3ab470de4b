// Quickstart routes a multi-turn conversation workload over three engines by
// what they hold in their KV caches, and compares with round-robin. Then it asks
// for several answers to each prompt at once, and routes without any events.
//
// The engines are fake: they keep a real block pool by vLLM's rules and publish
// real KV events over ZeroMQ on the loopback interface, but they compute
// nothing. All else is what a gateway would do: subscribe, score each prompt,
// send it to the pod that would reuse most of it and has the least to do, say so
// (Routed), and say what the engine reports (Observe).
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
	siblings := flag.Int("siblings", 8, "answers to each prompt of the last run, asked for at once")
	all := flag.Bool("v", false, "show all requests, not the first ones only")
	flag.Parse()
	if *seed == 0 {
		*seed = rand.Uint64N(1_000_000) + 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, os.Stdout, workload{*seed, *talks, *turns, *siblings}, *all)
	switch {
	case errors.Is(err, context.Canceled):
		fmt.Println("interrupted")
	case err != nil:
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// run plays the workload by both policies and without events, then some of it with siblings,
// and prints what came of it: of the requests the first ones, or all.
func run(ctx context.Context, out io.Writer, w workload, all bool) error {
	tok, err := tokenize.Parse(bytes.NewReader(tokenizerJSON))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d conversations of %d turns over %d pods; all share one system prompt.\n", w.talks, w.turns, pods)
	fmt.Fprintf(out, "Each pod's column is how many tokens of the prompt it would reuse; > marks the pod that got the request.\n\n")

	start := time.Now()
	one := w
	one.siblings = 1
	routed, err := play(ctx, tok, one, mode{byCache, true, &table{out: out, all: all}})
	if err != nil {
		return err
	}
	blind, err := play(ctx, tok, one, mode{roundRobin, true, nil})
	if err != nil {
		return err
	}
	deaf, err := play(ctx, tok, one, mode{byCache, false, nil})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%-12s %9s %23s   by pod\n", "", "hit rate", "prompt tokens computed")
	routed.print(out, "kvindex")
	deaf.print(out, "events off")
	blind.print(out, "round-robin")

	fmt.Fprintf(out, "\n%d answers to each prompt of one conversation, asked for at once:\n", w.siblings)
	w.talks, w.turns = 1, min(w.turns, 3)
	asked, err := play(ctx, tok, w, mode{byCache, true, &table{out: out, all: all}})
	if err != nil {
		return err
	}
	conclude(out, routed, blind)
	fmt.Fprintf(out, "Where each prompt came %d times at once, of %d predictions %v. By events alone %v.\n", w.siblings, asked.predicted.sum(), asked.predicted, asked.proven)
	fmt.Fprintf(out, "Where pods publish no events, it is %.0f%% less. Of %d predictions %v: what pods have answered is not known.\n", deaf.less(blind), deaf.predicted.sum(), deaf.predicted)
	fmt.Fprintf(out, "%.1f s, seed %d (-seed %d plays the same workload again)\n", time.Since(start).Seconds(), w.seed, w.seed)
	return nil
}

// conclude prints what a play by cache means beside one by round-robin.
func conclude(out io.Writer, routed, blind *result) {
	fmt.Fprintf(out, "\nThe pods computed %d of %d prompt tokens, and %d with round-robin: %.0f%% less with kvindex.\n",
		routed.missed(), routed.prompt, blind.missed(), routed.less(blind))
	fmt.Fprintf(out, "Of %d predictions %v. By events alone %v.\n", routed.predicted.sum(), routed.predicted, routed.proven)
}
