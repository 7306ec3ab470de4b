// Snapshotfile keeps what an Indexer knows in a file, so that a gateway that restarts
// scores from its first second.
package main

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
)

const (
	path  = "/var/lib/gateway/kvindex.snapshot"
	every = time.Minute
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ix, err := load(ctx, path) // with the options that New would get
	if err != nil {
		log.Fatal(err)
	}
	defer ix.Close()
	sub, err := events.NewSubscriber(ix.Sink(), events.SubscriberConfig{ // after load, with the same endpoints as before
		Pod: "pod-a", Model: "llama-3", Endpoint: "tcp://10.0.0.7:5557", Replay: "tcp://10.0.0.7:5657",
		OnError: func(err error) { log.Print(err) },
	})
	if err != nil {
		log.Fatal(err)
	}
	go func() { log.Print(sub.Run(ctx)) }()
	keep(ctx, ix, path, time.Tick(every))
}

// keep saves at each tick, and once more when ctx has ended.
func keep(ctx context.Context, ix *kvindex.Indexer, path string, tick <-chan time.Time) {
	for running := true; running; {
		select {
		case <-tick:
		case <-ctx.Done():
			running = false
		}
		if err := save(context.WithoutCancel(ctx), ix, path); err != nil {
			log.Printf("what is known was not saved: %v", err)
		}
	}
}

// load returns an Indexer that goes on from the file. If there is none, or it cannot be
// used, the Indexer knows nothing yet.
func load(ctx context.Context, path string, opts ...kvindex.Option) (*kvindex.Indexer, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return kvindex.New(opts...)
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	ix, err := kvindex.Restore(ctx, bufio.NewReaderSize(f, 1<<20), opts...)
	if err != nil {
		log.Printf("beginning with nothing: %v", err)
		return kvindex.New(opts...)
	}
	return ix, nil
}

// save writes the file anew. Whenever the process or the machine dies, there is a whole
// snapshot under the name: the new one or the one before.
func save(ctx context.Context, ix *kvindex.Indexer, path string) error {
	unfinished := path + ".unfinished"
	// Nobody else may read it: the seed of the keys is in it.
	f, err := os.OpenFile(unfinished, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	err = ix.Snapshot(ctx, w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync() // before it has the name
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(unfinished))
	}
	if err := os.Rename(unfinished, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close()) // the name is on the disk too
}
