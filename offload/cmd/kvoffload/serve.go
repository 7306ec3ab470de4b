package main

import (
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kvindex/kvindex/offload"
	"github.com/kvindex/kvindex/offload/cmd/kvoffload/internal/resp"
)

// size is a flag in bytes, with or without a unit: 4096, 64KiB, 512MiB, 64GiB, 1TiB.
type size int64

func (s *size) String() string { return strconv.FormatInt(int64(*s), 10) }

func (s *size) Set(text string) error {
	digits, shift := text, 0
	for unit, by := range map[string]int{"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40} {
		if d, ok := strings.CutSuffix(text, unit); ok {
			digits, shift = d, by
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift {
		return errors.New("not a number of bytes, KiB, MiB, GiB or TiB")
	}
	*s = size(n << shift)
	return nil
}

// serveCommand serves until SIGINT or SIGTERM. Once it listens it prints where.
func serveCommand(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("kvoffload serve", flag.ContinueOnError)
	cfg := resp.Config{Logf: func(format string, a ...any) { fmt.Fprintf(os.Stderr, "kvoffload: "+format+"\n", a...) }}
	listen := flags.String("listen", "127.0.0.1:6379", "address for TCP; empty: none")
	metrics := flags.String("metrics", "", "address for /metrics over HTTP, such as 127.0.0.1:9601; empty: none")
	aibrix := flags.Bool("aibrix-metrics", false, "serve AIBrix's names on -metrics, too: kv_cache_ol_*")
	socket := flags.String("unix", "", "path of a Unix socket")
	certFile := flags.String("tls-cert", "", "certificate in PEM, for TLS on -listen")
	keyFile := flags.String("tls-key", "", "its key")
	passwordFile := flags.String("password-file", "", "file with the password; empty: none is asked for")
	memory, bytes, page, value := size(1<<30), size(0), size(0), size(0)
	flags.Var(&memory, "memory", "bytes of memory for values, as 64GiB")
	dir := flags.String("dir", "", "directory for values; empty: memory alone")
	flags.Var(&bytes, "bytes", "bound of the directory; needed with -dir")
	ingest := flags.String("ingest", string(offload.All), "what is written to the directory: all, hot or evicted")
	policy := flags.String("policy", string(offload.DefaultPolicy), "lru, fifo or s3fifo")
	flags.Var(&page, "page", "bytes of a page; 0: 256 KiB less 96")
	flags.Var(&value, "max-value", "bytes of a value; 0: 512 MiB, or less with little memory")
	flags.IntVar(&cfg.Clients, "clients", 0, "connections at a time; 0: 1024")
	flags.DurationVar(&cfg.Promise, "promise", 0, "how long a value stays after EXISTS; 0: 2s; negative: not at all")
	flags.DurationVar(&cfg.HalfAge, "half-age", 0, "how long a half of a pair waits; 0: 30s")
	flags.DurationVar(&cfg.Stall, "stall", 0, "how long a client may stop within a command; 0: 30s")
	flags.BoolVar(&cfg.FlushAll, "flushall", false, "serve FLUSHALL")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case flags.NArg() > 0:
		return errUsage
	case *listen == "" && *socket == "":
		return errors.New("neither -listen nor -unix")
	case (*dir == "") != (bytes == 0):
		return errors.New("-dir needs -bytes, and -bytes needs -dir")
	case *dir == "" && *ingest != string(offload.All):
		return errors.New("-ingest needs -dir")
	case *aibrix && *metrics == "":
		return errors.New("-aibrix-metrics needs -metrics")
	case (*certFile == "") != (*keyFile == ""):
		return errors.New("-tls-cert needs -tls-key, and -tls-key needs -tls-cert")
	case page > math.MaxInt32:
		return fmt.Errorf("-page %d: too large", page)
	}
	cfg.MemoryBytes, cfg.PageBytes, cfg.MaxValue = int64(memory), int(page), int64(value)
	cfg.Ingest, cfg.Policy = offload.Ingestion(*ingest), offload.Policy(*policy)
	if *passwordFile != "" {
		file, err := os.ReadFile(*passwordFile)
		if err != nil {
			return err
		}
		if cfg.Password, err = resp.LoadPassword(file); err != nil {
			return fmt.Errorf("%s: %w", *passwordFile, err)
		}
	}
	var tlsConfig *tls.Config
	if *certFile != "" {
		cert, err := tls.LoadX509KeyPair(*certFile, *keyFile)
		if err != nil {
			return err
		}
		tlsConfig = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	}
	if *dir != "" {
		segments, err := offload.OpenSegments(offload.SegmentConfig{Dir: *dir, Bytes: int64(bytes)})
		if err != nil {
			return err
		}
		defer segments.Close()
		cfg.Segments, cfg.EpochFile = segments, filepath.Join(*dir, "epoch")
	}

	if os.Getenv("GOMAXPROCS") == "" {
		// Clients on the host need the others. Copies are bound by memory, and an idle processor of
		// Go takes time from its neighbours to look for work.
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0)/2, 1)))
	}
	s, err := resp.New(cfg)
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, stop := untilSignal()
	defer stop()
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			l.Close()
		}
	}()
	if *listen != "" {
		l, err := net.Listen("tcp", *listen)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, "listening on", l.Addr())
		if tlsConfig != nil {
			l = tls.NewListener(l, tlsConfig)
		}
		listeners = append(listeners, l)
	}
	if *metrics != "" {
		l, err := net.Listen("tcp", *metrics)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, "metrics on", l.Addr())
		server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: metricsHandler(s, cfg.Segments, *aibrix)}
		defer server.Close()
		go func() { _ = server.Serve(l) }() // until Close
	}
	if *socket != "" {
		l, err := listenUnix(*socket)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, "listening on", *socket)
		listeners = append(listeners, l)
	}
	ended := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { ended <- s.Serve(ctx, l) }()
	}
	go s.Run(ctx)
	err = <-ended
	stop()
	return errors.Join(err, s.Close())
}

func metricsHandler(s *resp.Server, disk *offload.Segments, aibrix bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		st, page := s.Stats()
		writeMetrics(w, page, st, disk)
		if aibrix {
			writeAIBrix(w, page, st, disk != nil)
		}
	})
	return mux
}

// listenUnix removes a socket that nobody listens on any more.
func listenUnix(name string) (net.Listener, error) {
	if info, err := os.Lstat(name); err == nil && info.Mode().Type() == os.ModeSocket {
		nc, err := net.Dial("unix", name)
		if err == nil {
			nc.Close()
			return nil, fmt.Errorf("%s: another process listens on it", name)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) { // such as a socket that is busy, or of another type
			return nil, err
		}
		if err := os.Remove(name); err != nil {
			return nil, err
		}
	}
	return net.Listen("unix", name)
}
