package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/events/publish"
	"github.com/kvindex/kvindex/offload/internal/janitor"
)

// janitorFlags are those of janitor and check-config.
type janitorFlags struct {
	janitor.Settings
	roots   []string
	dryRun  bool
	listen  string
	streams []streamFlag

	log        *slog.Logger
	janitors   []*janitor.Janitor
	publishers []*stream
	listener   net.Listener
}

// streamFlag is a -publish: the blocks of a model for a pod that mounts the root.
type streamFlag struct {
	name             string // of a folder or a model
	endpoint, replay string
}

func parseJanitor(name string, args []string, out io.Writer) (*janitorFlags, error) {
	f := &janitorFlags{log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	flags := flag.NewFlagSet("kvoffload "+name, flag.ContinueOnError)
	flags.SetOutput(out)
	flags.Var((*size)(&f.Bytes), "bytes", "bound of all files of a root, such as 500GiB; a twentieth of it is kept free for writers")
	flags.Float64Var(&f.DiskHigh, "disk-high", 0, "share of the file system in use, from 0 to 1, at which deletion begins")
	flags.Float64Var(&f.DiskLow, "disk-low", 0, "and at which it ends; 0: 0.05 less")
	flags.DurationVar(&f.MaxAge, "max-age", 0, "delete blocks that were not used for so long")
	flags.DurationVar(&f.MinAge, "min-age", time.Minute, "delete no file that was written since")
	order := flags.String("policy", string(janitor.LRU), "which blocks go first: lru, fifo or s3fifo")
	flags.DurationVar(&f.Temporary, "temporary", 0, "delete temporary files of writers that were not written for so long; 0: they stay")
	flags.BoolVar(&f.NoInotify, "no-inotify", false, "look for changes by scans alone, as on a network file system")
	flags.DurationVar(&f.Rescan, "rescan", time.Minute, "time between scans where inotify cannot see; ten times as long where it can")
	flags.BoolVar(&f.Unbounded, "watch", false, "delete nothing: publish what others store and delete")
	flags.BoolVar(&f.dryRun, "dry-run", false, "print what would be deleted now, and end")
	flags.StringVar(&f.listen, "listen", "", "serve /metrics and /healthz at this address, such as :9600")
	flags.Func("publish", "MODEL=ENDPOINT or MODEL=ENDPOINT,REPLAY: publish the blocks of a model, or of one folder; one for each pod that mounts the root", func(s string) error {
		name, endpoints, ok := strings.Cut(s, "=tcp://")
		endpoint, replay, _ := strings.Cut("tcp://"+endpoints, ",")
		if !ok || name == "" {
			return fmt.Errorf("%q is not MODEL=tcp://HOST:PORT", s)
		}
		f.streams = append(f.streams, streamFlag{name, endpoint, replay})
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	f.Order, f.roots = janitor.Order(*order), flags.Args()
	if f.DiskLow == 0 && f.DiskHigh > 0 {
		f.DiskLow = max(f.DiskHigh-0.05, f.DiskHigh/2)
	}
	switch {
	case len(f.roots) == 0:
		return nil, errUsage
	case len(f.streams) > 0 && len(f.roots) > 1:
		return nil, errors.New("-publish is for one root")
	}
	return f, nil
}

// open opens all roots.
func (f *janitorFlags) open(log *slog.Logger) ([]*janitor.Janitor, error) {
	var janitors []*janitor.Janitor
	for _, root := range f.roots {
		cfg := f.Settings
		cfg.Root, cfg.Log = root, log
		if len(f.streams) > 0 {
			cfg.Sink = func(changes []janitor.Change) { f.publish(changes) }
		}
		j, err := janitor.Open(cfg)
		if err != nil {
			return nil, err
		}
		janitors = append(janitors, j)
	}
	return janitors, nil
}

func janitorCommand(args []string, out io.Writer) error {
	f, err := parseJanitor("janitor", args, out)
	if err != nil {
		return err
	}
	ctx, stop := untilSignal()
	defer stop()
	return f.run(ctx, out)
}

func (f *janitorFlags) run(ctx context.Context, out io.Writer) error {
	if f.dryRun {
		return f.would(ctx, out)
	}
	if err := f.begin(); err != nil {
		return err
	}
	return f.serve(ctx)
}

// would prints the files that janitors would delete now.
func (f *janitorFlags) would(ctx context.Context, out io.Writer) error {
	f.streams = nil
	janitors, err := f.open(f.log)
	if err != nil {
		return err
	}
	for _, j := range janitors {
		defer j.Close()
		if _, err := j.Look(ctx); err != nil {
			return err
		}
		j.DryRun(func(v janitor.Victim) {
			fmt.Fprintf(out, "folder=%s group=%d hash=%s bytes=%d used=%s\n", v.Folder, v.Group, v.Hash, v.Bytes, day(v.Used))
		})
	}
	return nil
}

// begin opens all that serve needs.
func (f *janitorFlags) begin() (err error) {
	if f.janitors, err = f.open(f.log); err != nil {
		return err
	}
	for _, s := range f.streams {
		p, err := newStream(s, f.janitors[0])
		if err != nil {
			return err
		}
		f.publishers = append(f.publishers, p)
		f.log.Info("publishing", "model", s.name, "endpoint", p.Endpoint(), "replay", p.ReplayEndpoint())
	}
	if f.listen != "" {
		if f.listener, err = net.Listen("tcp", f.listen); err != nil {
			return err
		}
		f.log.Info("listening", "address", f.listener.Addr())
	}
	return nil
}

// serve runs all janitors until ctx ends, or one fails.
func (f *janitorFlags) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if f.listener != nil {
		server := &http.Server{Handler: handler(f.roots, f.janitors), ReadHeaderTimeout: 10 * time.Second}
		defer server.Close()
		go func() { f.log.Info("not listening any more", "because", server.Serve(f.listener)) }()
	}
	errs := make([]error, len(f.janitors))
	var wait sync.WaitGroup
	for i, j := range f.janitors {
		wait.Add(1)
		go func() {
			defer wait.Done()
			defer cancel()
			if err := j.Run(ctx); !errors.Is(err, context.Canceled) {
				errs[i] = err
			}
			j.Close()
		}()
	}
	wait.Wait()
	for _, p := range f.publishers {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// stream publishes the blocks of a model as vLLM's events of the tier STORAGE.
type stream struct {
	*publish.Publisher
	name string
}

func newStream(s streamFlag, j *janitor.Janitor) (*stream, error) {
	st := &stream{name: s.name}
	var err error
	st.Publisher, err = publish.New(publish.Config{Endpoint: s.endpoint, Replay: s.replay, Held: func() []events.Event { return st.held(j) }})
	return st, err
}

// medium is the tier of all events: a Cleared that names none is about the gpu, too.
const medium = "STORAGE"

// held returns all blocks of a stream.
func (s *stream) held(j *janitor.Janitor) []events.Event {
	held := []events.Event{{Kind: events.Cleared, Medium: medium}}
	j.Held(func(c janitor.Change) { held = s.add(held, c) })
	return held
}

// add adds a change to events, if it is about the model of a stream.
func (s *stream) add(to []events.Event, c janitor.Change) []events.Event {
	if c.Space.Model != s.name && c.Space.Folder != s.name {
		return to
	}
	kind := events.Removed
	if c.Stored {
		kind = events.Stored
	}
	last := len(to) - 1
	if last < 0 || to[last].Kind != kind || to[last].Group != c.Group {
		to, last = append(to, events.Event{Kind: kind, Medium: medium, HasGroup: true, Group: c.Group}), last+1
	}
	// As maybe_convert_block_hash of vLLM has it: the last 64 bits.
	var hash [8]byte
	tail := c.Hash[max(len(c.Hash)-8, 0):]
	copy(hash[8-len(tail):], tail)
	to[last].Hashes = append(to[last].Hashes, binary.BigEndian.Uint64(hash[:]))
	return to
}

func (f *janitorFlags) publish(changes []janitor.Change) {
	for _, s := range f.publishers {
		b := &events.Batch{}
		for _, c := range changes {
			b.Events = s.add(b.Events, c)
		}
		if len(b.Events) == 0 {
			continue
		}
		if _, err := s.Publish(b); err != nil {
			f.log.Error("publishing", "model", s.name, "error", err)
		}
	}
}

// handler serves metrics and health.
func handler(roots []string, janitors []*janitor.Janitor) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		for _, m := range janitorMetrics {
			fmt.Fprintf(w, "# HELP kvoffload_janitor_%s %s\n# TYPE kvoffload_janitor_%[1]s %s\n", m.name, m.help, m.kind)
			for i, j := range janitors {
				fmt.Fprintf(w, "kvoffload_janitor_%s{root=%s} %g\n", m.name, label(roots[i]), m.value(j.Stats()))
			}
		}
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		for i, j := range janitors {
			if st := j.Stats(); st.Waiting || !st.Ready {
				http.Error(w, roots[i]+": the first scan has not ended", http.StatusServiceUnavailable)
				return
			}
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}

func label(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}

var janitorMetrics = []struct {
	name, kind, help string
	value            func(janitor.Stats) float64
}{
	{"bytes", "gauge", "Sizes of all files of blocks.", func(s janitor.Stats) float64 { return float64(s.Bytes) }},
	{"blocks", "gauge", "Blocks with the files of all ranks.", func(s janitor.Stats) float64 { return float64(s.Blocks) }},
	{"incomplete_blocks", "gauge", "Blocks that lack the file of a rank.", func(s janitor.Stats) float64 { return float64(s.Incomplete) }},
	{"folders_left_alone", "gauge", "Folders whose config.json is missing, wrong or of another digest.", func(s janitor.Stats) float64 { return float64(s.Left) }},
	{"deleted_blocks_total", "counter", "Blocks that the janitor deleted.", func(s janitor.Stats) float64 { return float64(s.Deleted) }},
	{"deleted_bytes_total", "counter", "Sizes of their files.", func(s janitor.Stats) float64 { return float64(s.DeletedBytes) }},
	{"deleted_temporary_total", "counter", "Temporary files that the janitor deleted.", func(s janitor.Stats) float64 { return float64(s.Temporary) }},
	{"gone_blocks_total", "counter", "Blocks that others deleted.", func(s janitor.Stats) float64 { return float64(s.Gone) }},
	{"spared_blocks_total", "counter", "Blocks that were first to go, and had been read or written since.", func(s janitor.Stats) float64 { return float64(s.Spared) }},
	{"errors_total", "counter", "Files and folders that could not be read or deleted.", func(s janitor.Stats) float64 { return float64(s.Errors) }},
	{"scans_total", "counter", "Scans.", func(s janitor.Stats) float64 { return float64(s.Scans) }},
	{"scan_seconds", "gauge", "Duration of the last scan.", func(s janitor.Stats) float64 { return s.ScanSeconds }},
	{"overflows_total", "counter", "Times that inotify lost events.", func(s janitor.Stats) float64 { return float64(s.Overflows) }},
	{"disk_used_ratio", "gauge", "Share of the file system that is in use.", func(s janitor.Stats) float64 { return s.DiskUsed }},
	{"over", "gauge", "1 if a bound is not kept because all blocks are too young to go.", func(s janitor.Stats) float64 { return one(s.Over) }},
	{"blind", "gauge", "1 if inotify does not see all changes.", func(s janitor.Stats) float64 { return one(s.Blind != "") }},
	{"reads_unnoticed", "gauge", "1 if access times do not show reads.", func(s janitor.Stats) float64 { return one(s.Unread != "") }},
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// ls prints the contents of roots.
func ls(args []string, out io.Writer) error {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return errUsage
	}
	f := &janitorFlags{roots: args, Settings: janitor.Settings{Unbounded: true}}
	return f.look(out)
}

func (f *janitorFlags) look(out io.Writer) error {
	janitors, err := f.open(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	for i, j := range janitors {
		defer j.Close()
		folders, err := j.Look(context.Background())
		for _, s := range folders {
			if s.Left != "" {
				fmt.Fprintf(out, "root=%s folder=%s left_alone=%q\n", f.roots[i], s.Folder, s.Left)
				continue
			}
			fmt.Fprintf(out, "root=%s folder=%s model=%s ranks=%d blocks_per_file=%d blocks=%d incomplete=%d bytes=%d oldest=%s newest=%s used=%s\n", f.roots[i], s.Folder,
				s.Model, s.Ranks, s.BlocksPerFile, s.Blocks, s.Incomplete, s.Bytes, day(s.Oldest), day(s.Newest), day(s.Used))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func day(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format(time.RFC3339)
}

// checkConfig prints the effect of these flags for janitor, and fails if janitor could not run.
func checkConfig(args []string, out io.Writer) error {
	f, err := parseJanitor("check-config", args, out)
	if err != nil {
		return err
	}
	f.streams = nil
	if err := f.look(out); err != nil {
		return err
	}
	janitors, err := f.open(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	for i, j := range janitors {
		defer j.Close()
		network, unread, err := j.Check()
		if err != nil {
			return err
		}
		reads := "noticed"
		if unread != nil {
			reads = unread.Error()
		}
		fmt.Fprintf(out, "root=%s network=%t reads=%q\n", f.roots[i], network, reads)
	}
	return nil
}
