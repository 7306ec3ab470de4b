// Command kvoffload keeps the files of vLLM's file tier within bounds, serves a store of package
// offload as Redis, runs traces through one, and checks directories of its segments.
//
//	kvoffload -h
//
// lists its commands. docs/janitor.md describes janitor, ls and check-config, docs/lmcache.md
// serve, and docs/offload-settings.md settings.
//
// replay has a memory for a share of the trace's blocks, and segments in DIR for all that
// the memory lacks. It prints a line for each policy and share. blocks is how many fit in the
// memory, prefix_hit the part of all blocks that were found there, and optimum what Belady's
// rule would have found, which uses the rest of the trace. It ends with 1 if any byte was
// wrong.
//
// verify ends with 1 if anything in a directory is corrupt, and settings if a variable cannot be
// followed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/kvindex/kvindex/offload"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		fmt.Fprintln(os.Stderr, "kvoffload:", err)
		os.Exit(1)
	}
}

const usage = `kvoffload janitor [flags] ROOT...        deletes blocks of vLLM's file tier until its bounds are kept
kvoffload ls ROOT...                     prints what is there
kvoffload check-config [flags] ROOT...   prints what janitor would have to work with
kvoffload serve [flags]                  serves a store as Redis, for LMCache
kvoffload settings                       prints what AIBrix's variables of the environment mean here
kvoffload replay -trace FILE [flags]     runs a trace through a store
kvoffload verify DIR                     reads all segments of a store, and counts those that are corrupt

Such as kvoffload janitor -bytes 500GiB ROOT, or kvoffload serve -memory 64GiB -dir DIR -bytes 1TiB.
The flags of a command are in kvoffload COMMAND -h.
`

var errUsage = errors.New("usage:\n" + strings.TrimSpace(usage))

func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	switch args[0] {
	case "-h", "-help", "--help":
		_, err := io.WriteString(out, usage)
		return err
	case "janitor":
		return janitorCommand(args[1:], out)
	case "ls":
		return ls(args[1:], out)
	case "check-config":
		return checkConfig(args[1:], out)
	case "replay":
		return replayCommand(args[1:], out)
	case "verify":
		if len(args) != 2 {
			return errUsage
		}
		return verify(args[1], out)
	case "serve":
		return serveCommand(args[1:], out)
	case "settings":
		if len(args) != 1 {
			return errUsage
		}
		return printSettings(os.Environ(), out)
	}
	return fmt.Errorf("unknown command %q; %w", args[0], errUsage)
}

// untilSignal returns a context that ends with SIGINT or SIGTERM. The next one ends the process.
func untilSignal() (ctx context.Context, stop func()) {
	ctx, stop = signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

func verify(dir string, out io.Writer) error {
	v, err := offload.VerifySegments(dir)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "right=%d absent=%d corrupt=%d\n", v.Right, v.Absent, v.Corrupt)
	if v.Corrupt > 0 {
		return fmt.Errorf("%d of %s are corrupt", v.Corrupt, dir)
	}
	return nil
}

func replayCommand(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("kvoffload replay", flag.ContinueOnError)
	name := flags.String("trace", "", "a trace: lines of JSON with hash_ids or runs, gzipped or not")
	policies := flags.String("policy", string(offload.DefaultPolicy), "policies, with commas between them: lru, fifo, s3fifo")
	shares := flags.String("share", "0.01,0.05,0.2", "memory, as shares of the trace's blocks")
	dir := flags.String("dir", "", "directory of the segments; empty: memory alone")
	dirBytes := flags.Int64("dir-bytes", 1<<30, "bound of the directory")
	blockBytes := flags.Int("block-bytes", 64, "bytes of a block")
	requests := flags.Int("requests", 0, "the first requests alone; 0: all")
	small := flags.Float64("small", 0, "offload.Config.SmallShare")
	promote := flags.Int("promote", 0, "offload.Config.PromoteAt")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *name == "" || flags.NArg() > 0 {
		return errUsage
	}
	if *blockBytes < 8 || *blockBytes%8 != 0 {
		return fmt.Errorf("-block-bytes %d: not a multiple of 8", *blockBytes)
	}
	tr, err := load(*name, *requests)
	if err != nil {
		return err
	}
	var segments *offload.Segments
	if *dir != "" {
		segments, err = offload.OpenSegments(offload.SegmentConfig{Dir: *dir, Bytes: *dirBytes, Buffered: *blockBytes < 64<<10})
		if err != nil {
			return err
		}
		defer segments.Close()
	}
	var wrong int64
	for share := range strings.SplitSeq(*shares, ",") {
		part, err := strconv.ParseFloat(share, 64)
		if err != nil || !(part > 0 && part <= 1) {
			return fmt.Errorf("-share %q: not a number above 0 and at most 1", share)
		}
		blocks := max(int(part*float64(tr.blocks)), 1)
		optimum := tr.optimum(blocks)
		for policy := range strings.SplitSeq(*policies, ",") {
			r, err := tr.replay(offload.Config{
				Space:       offload.Space{Model: "trace", BlockTokens: 1, BlockBytes: *blockBytes, Ranks: 1},
				MemoryBytes: int64(blocks) * int64(*blockBytes), Policy: offload.Policy(policy),
				SmallShare: *small, PromoteAt: *promote,
			}, segments)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "policy=%s share=%s blocks=%d requests=%d prefix_hit=%.4f optimum=%.4f wrong_bytes=%d\n",
				policy, share, blocks, len(tr.requests), float64(r.hits)/float64(tr.touched), float64(optimum)/float64(tr.touched), r.wrong)
			wrong += r.wrong
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%d bytes are wrong", wrong)
	}
	return nil
}
