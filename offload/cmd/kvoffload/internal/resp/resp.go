// Package resp serves the values of a [offload.Store] by the protocol of Redis, RESP2 and
// RESP3, for clients that keep blocks of KV bytes in Redis: LMCache's connectors for redis://,
// rediss://, unix://, resp:// and valkey://.
//
// Values have any length, and the blocks of a Store have one. So the blocks are pages, and a
// value is a chain of them: the first has a header with the name, and is found by it; the
// others have the name and a hash of the bytes in their keys. The store's policy lets go
// of a chain from its end, and a value is there if all its pages are. So memory, disk,
// eviction and pinning are the Store's, values of all lengths share one bound, and a value takes
// half a page more than its bytes on average. An older value of a name
// never mixes with the present one.
//
// A pair is one value: LMCache stores a block as <key>kv_bytes and <key>metadata. The bytes
// are the value, the metadata is in its header. Until both halves have come there is neither.
package resp

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/kvindex/kvindex/offload"
)

// Config configures a Server. Zero fields have the defaults named here.
type Config struct {
	MemoryBytes   int64             // of all pages in memory; required
	PageBytes     int               // of a page, at least 4096; 256 KiB less 96, so that a record of Segments is 256 KiB
	Segments      *offload.Segments // the disk; nil: memory alone
	Ingest        offload.Ingestion // what is written to it; offload.All
	Policy        offload.Policy
	EpochFile     string        // keeps what FLUSHALL has done; needed if Segments are kept
	MaxValue      int64         // bytes of a value; 512 MiB, or what IncomingBytes allows
	Clients       int           // connections at a time; 1024
	IncomingBytes int64         // pages of values that are on their way, and of halves of pairs; a quarter of the memory
	PromisedBytes int64         // pages of values that were promised; half of the memory
	Promise       time.Duration // how long a value stays after EXISTS reported it, or after its metadata was read; negative: not at all; 2 s
	HalfAge       time.Duration // how long a half of a pair waits for the other; 30 s
	Stall         time.Duration // how long a client may do nothing within a command or a reply; 30 s
	Password      []byte        // empty: no password is needed
	FlushAll      bool          // FLUSHALL is served
	Logf          func(format string, args ...any)
}

const minRate = 1 << 20 // bytes a second that a client takes of a reply, else it is closed

func (c *Config) complete() error {
	if c.PageBytes == 0 {
		c.PageBytes = 256<<10 - 96
	}
	if c.Ingest == "" {
		c.Ingest = offload.All
	}
	if c.Policy == "" {
		c.Policy = offload.DefaultPolicy
	}
	if c.IncomingBytes == 0 {
		c.IncomingBytes = c.MemoryBytes / 4
	}
	most := c.IncomingBytes - dataAt - int64(c.PageBytes)
	if c.MaxValue == 0 {
		c.MaxValue = min(512<<20, most)
	}
	if c.PromisedBytes == 0 {
		c.PromisedBytes = c.MemoryBytes / 2
	}
	for d, is := range map[*time.Duration]time.Duration{&c.Promise: 2 * time.Second, &c.HalfAge: 30 * time.Second, &c.Stall: 30 * time.Second} {
		if *d == 0 {
			*d = is
		}
	}
	if c.Clients == 0 {
		c.Clients = 1024
	}
	if c.Logf == nil {
		c.Logf = func(string, ...any) {}
	}
	switch {
	case c.PageBytes < 2*dataAt:
		return fmt.Errorf("resp: PageBytes is %d, less than %d", c.PageBytes, 2*dataAt)
	case most < 1:
		return fmt.Errorf("resp: IncomingBytes is %d, a quarter of MemoryBytes if it is not set: too little for a value of one byte, which needs %d", c.IncomingBytes, c.IncomingBytes-most+1)
	case c.MaxValue < 1 || c.MaxValue > most:
		return fmt.Errorf("resp: MaxValue is %d, and IncomingBytes %d hold at most %d", c.MaxValue, c.IncomingBytes, most)
	case c.IncomingBytes+c.PromisedBytes > c.MemoryBytes:
		return fmt.Errorf("resp: IncomingBytes %d and PromisedBytes %d are more than MemoryBytes %d", c.IncomingBytes, c.PromisedBytes, c.MemoryBytes)
	case c.PromisedBytes < 0 || c.Clients < 1 || c.HalfAge < 0 || c.Stall < 0:
		return fmt.Errorf("resp: PromisedBytes %d, Clients %d, HalfAge %v or Stall %v is not positive", c.PromisedBytes, c.Clients, c.HalfAge, c.Stall)
	}
	return nil
}

// Server serves connections. Its methods may be called at the same time.
type Server struct {
	cfg     Config
	values  *values
	started time.Time

	mu       sync.Mutex // guards the fields below
	closed   bool
	conns    map[*conn]struct{}
	nextID   int64
	refused  uint64 // connections beyond Config.Clients
	commands uint64 // of connections that have ended
	serving  sync.WaitGroup
}

// New returns a Server with an empty memory. Call Close in the end.
func New(cfg Config) (*Server, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	v, err := newValues(cfg)
	if err != nil {
		return nil, err
	}
	return &Server{cfg: cfg, values: v, started: time.Now(), conns: make(map[*conn]struct{})}, nil
}

// Serve accepts connections until its context ends, and returns nil then. It closes the listener,
// not the connections. After Close it takes no connection, and waits for the end of its context. A TLS listener is one of tls.NewListener.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for {
		nc, err := l.Accept()
		switch {
		case err == nil:
			s.start(nc)
		case ctx.Err() != nil || s.isClosed():
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default: // too many files, as a rule
			s.cfg.Logf("accept: %v", err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
}

// Run ends promises and halves when their time is over, until its context ends.
func (s *Server) Run(ctx context.Context) {
	every := time.Second
	if s.cfg.Promise > 0 {
		every = max(min(s.cfg.Promise/4, every), 10*time.Millisecond)
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			s.values.Sweep()
		case <-ctx.Done():
			return
		}
	}
}

func (s *Server) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// start serves a connection in a goroutine of its own.
func (s *Server) start(nc net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		nc.Close()
		return
	}
	if len(s.conns) >= s.cfg.Clients {
		s.refused++
		if _, secure := nc.(*tls.Conn); !secure { // its handshake can take long
			_ = nc.SetDeadline(time.Now().Add(time.Second))
			_, _ = nc.Write([]byte("-ERR max number of clients reached\r\n"))
		}
		nc.Close()
		return
	}
	s.nextID++
	c := newConn(s, nc, s.nextID)
	s.conns[c] = struct{}{}
	s.serving.Add(1)
	go func() {
		defer s.serving.Done()
		c.serve()
		nc.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, c)
		s.commands += c.commands.Load()
	}()
}

// Stats returns what the store below the values counts, in pages of so many bytes.
func (s *Server) Stats() (st offload.Stats, pageBytes int) {
	return s.values.store.Stats(), s.cfg.PageBytes
}

// Close closes all connections, and writes what waits to be written to the disk. It does not
// close Config.Segments. It can be called again.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.serving.Wait()
	return s.values.close()
}

// LoadPassword takes the password from the contents of a file: a line, without its end.
func LoadPassword(file []byte) ([]byte, error) {
	p := bytes.TrimRight(file, "\r\n")
	if len(p) == 0 || bytes.ContainsAny(p, "\r\n") {
		return nil, errors.New("not one line with a password")
	}
	return p, nil
}
