// Quickstart shows how many prompt tokens a fleet of engines computes if its routers choose pods
// by round-robin, by load alone, by an estimate of the caches, and by KV events.
//
// The engines are fake: they compute nothing, and time is virtual. They have block pools by
// vLLM's rules, and publish KV events over ZeroMQ on the loopback interface. The routers run the
// code of a gateway, which is in play.go: the methods addRouter, route and serve.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"
)

//go:generate go run . -seed 1 -svg ../../docs/hitrate.svg

func main() {
	seed := flag.Uint64("seed", 1, "`seed` of the trace; a seed prints the same figures each time")
	svg := flag.String("svg", "", "write the hit rates over time to this `file`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, os.Stdout, *seed, *svg)
	switch {
	case errors.Is(err, context.Canceled):
		fmt.Println("interrupted")
	case err != nil:
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// run plays the trace of a seed and prints the results. It writes the plot if svg is not "".
func run(ctx context.Context, out io.Writer, seed uint64, svg string) error {
	trace := newTrace(seed)
	f := defaultFleet(trace)
	rows, err := compare(ctx, trace, f, roundRobin, loadAlone, approximate, byEvents)
	if err != nil {
		return err
	}
	printParameters(out, seed, trace, f)
	printRows(out, rows)

	fmt.Fprintf(out, "\n%-55s %11s %8s\n", "Hit rates of the same trace with one router:", approximate.name, byEvents.name)
	for _, large := range []bool{false, true} {
		name, other := "the same caches, and the restart", fleet{1, f.blocks, f.restart}
		if large {
			other = fleet{1, 8 * f.blocks, 0}
			name = fmt.Sprintf("%d blocks, so that nothing is evicted; no restart", other.blocks)
		}
		pair, err := compare(ctx, trace, other, approximate, byEvents)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "    %-51s %10.1f%% %7.1f%%\n", name, pair[0].hitRate(), pair[1].hitRate())
	}
	fmt.Fprintln(out, "If nothing is evicted, events gain nothing: the pods hold what the one router has sent.")
	if svg == "" {
		return nil
	}
	return os.WriteFile(svg, plot(rows, seed, f.restart), 0o666)
}

// defaultFleet has caches that overflow, and a restart in the middle of the trace.
func defaultFleet(trace []request) fleet {
	return fleet{routers: 2, blocks: 1024, restart: (trace[len(trace)-1].at / 2).Round(time.Second)}
}

// row has the result of a policy.
type row struct {
	policy
	totals
	outcomes []outcome
}

// compare plays one trace with each policy.
func compare(ctx context.Context, trace []request, f fleet, policies ...policy) (rows []row, err error) {
	for _, p := range policies {
		outcomes, err := play(ctx, trace, p, f)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row{p, sum(outcomes), outcomes})
	}
	return rows, nil
}

type totals struct {
	prompt, computed int // numbers of tokens
	exact, low, high int // numbers of requests, by the prediction of their cached tokens
}

func sum(outcomes []outcome) (t totals) {
	for _, o := range outcomes {
		t.prompt += o.prompt
		t.computed += o.prompt - o.cached
		switch {
		case o.predicted == o.cached:
			t.exact++
		case o.predicted < o.cached:
			t.low++
		default:
			t.high++
		}
	}
	return t
}

// hitRate returns the percentage of the prompt tokens that were cached.
func (t totals) hitRate() float64 { return 100 * (1 - float64(t.computed)/float64(t.prompt)) }

func printParameters(out io.Writer, seed uint64, trace []request, f fleet) {
	tokens := 0
	for _, r := range trace {
		tokens += len(r.prompt)
	}
	fmt.Fprintf(out, "Trace    seed %d: %d requests in %.0f s, with %d prompt tokens\n",
		seed, len(trace), trace[len(trace)-1].at.Seconds(), tokens)
	fmt.Fprintf(out, "         %d conversations, one starts every %.0f s; %v turns, one every %.0f s\n",
		conversations, startEvery.Seconds(), turns, turnEvery.Seconds())
	fmt.Fprintf(out, "         one turn in %d is %d requests at once: siblings, for %d answers\n", siblingTurns, siblings, siblings)
	fmt.Fprintf(out, "         %d system prompts of %v tokens, questions of %v, answers of %v\n", systemPrompts, system, question, answer)
	fmt.Fprintf(out, "Pods     %d: %d blocks of %d tokens, %d prompt tokens per second, %.0f ms per token of an answer\n",
		pods, f.blocks, blockSize, prefill, decode.Seconds()*1000)
	fmt.Fprintf(out, "         pod-0 gets no requests from %.0f s on, for %.0f s; then it restarts with an empty cache\n",
		f.restart.Seconds(), outage.Seconds())
	fmt.Fprintf(out, "Routers  %d that do not know of each other; chance decides which of them gets a request\n", f.routers)
	fmt.Fprintf(out, "Events   over ZeroMQ; a router has applied all that are published before it routes a request\n\n")
}

func printRows(out io.Writer, rows []row) {
	fmt.Fprintf(out, "%-11s %24s %9s %20s %8s %9s\n", "", "prompt tokens computed", "hit rate", "predictions: exact", "too low", "too high")
	for _, r := range rows {
		share := float64(r.computed) / float64(rows[0].computed)
		fmt.Fprintf(out, "%-11s %17d (%3.0f%%) %8.1f%%", r.name, r.computed, 100*share, r.hitRate())
		if r.events || r.approximate {
			fmt.Fprintf(out, " %20d %8d %9d", r.exact, r.low, r.high)
		}
		fmt.Fprintf(out, "\n    %s\n", r.why)
	}
}
