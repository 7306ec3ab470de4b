package resp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"testing/iotest"
	"time"
)

// FuzzCommands parses commands from any bytes: the sizes of reads do not matter, and the memory is
// bounded.
func FuzzCommands(f *testing.F) {
	for _, seed := range []string{
		"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nPING\r\n", "*5\r\n$3\r\nset\r\n$1\r\nk\r\n$2\r\nvv\r\n$2\r\nEX\r\n$1\r\n1\r\n", "GET 'x'\r\n", "*-1\r\n*1\r\n$9999999999999\r\n", "*1\r\n$-1\r\n",
		"*3\r\n$3\r\nDEL\r\n$5000\r\n" + string(make([]byte, 5000)) + "\r\n$1\r\nx\r\n",
	} {
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, data []byte, trusted bool) {
		read := func(in io.Reader) (seen []string, end error) {
			r := newReader(in, func(bool) {})
			r.trusted = trusted
			for {
				c, err := r.begin()
				if err == nil {
					err = r.rest(&c)
				}
				if err != nil {
					return seen, err
				}
				if len(c.args) == 0 || len(c.args) > maxArgs || cap(r.kept) > 4*maxArgBytes {
					t.Fatalf("%d arguments, %d bytes kept", len(c.args), cap(r.kept))
				}
				for _, a := range c.args {
					seen = append(seen, string(a))
				}
				seen = append(seen, "\n")
			}
		}
		a, endA := read(bytes.NewReader(data))
		b, endB := read(iotest.OneByteReader(bytes.NewReader(data)))
		var p protocolError
		if len(a) != len(b) || errors.As(endA, &p) != errors.As(endB, &p) {
			t.Fatalf("%q, %v; byte by byte %q, %v", a, endA, b, endB)
		}
		for i := range a {
			if a[i] != b[i] {
				t.Fatalf("%q, byte by byte %q", a[i], b[i])
			}
		}
	})
}

// FuzzServe sends any bytes to a connection, which ends and leaves nothing leased.
func FuzzServe(f *testing.F) {
	f.Add([]byte("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$10\r\n0123456789\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*2\r\n$6\r\nEXISTS\r\n$9\r\nkmetadata\r\n"))
	f.Add([]byte("SET kkv_bytes v\nSET kmetadata m PX 1\nMGET kkv_bytes kmetadata\nSCAN 0\nDBSIZE\nINFO\nDEL kmetadata\nHELLO 3\nCOMMAND\nTTL k\nSTRLEN k\nFLUSHALL\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg := small()
		cfg.MemoryBytes, cfg.MaxValue, cfg.Promise = 256<<10, 32<<10, time.Hour
		s, err := New(cfg)
		must(t, err)
		mine, theirs := net.Pipe()
		s.start(theirs)
		go io.Copy(io.Discard, mine)
		mine.Write(data) // the server may close it before it has read all
		mine.Close()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if n := s.values.store.Stats().Leased; n != 0 {
			t.Fatalf("%d pages are leased", n)
		}
		if s.values.incoming != 0 || s.values.promised != 0 {
			t.Fatalf("%d bytes in flight, %d promised", s.values.incoming, s.values.promised)
		}
	})
}

// FuzzHeader parses headers: a parsed one encodes to an equal one.
func FuzzHeader(f *testing.F) {
	page := make([]byte, dataAt)
	h := header{ref: ref{db: 3, pair: true, name: "vllm@model@1@0@ab"}, meta: "meta", size: 9, ends: 7, content: content{1, 2}}
	h.put(page)
	f.Add(page)
	f.Fuzz(func(t *testing.T, data []byte) {
		page := make([]byte, dataAt)
		copy(page, data)
		h, ok := parseHeader(page)
		if !ok {
			return
		}
		if !h.fits() {
			t.Fatalf("%+v does not fit", h)
		}
		again := make([]byte, dataAt)
		h.put(again)
		if got, ok := parseHeader(again); !ok || got != h {
			t.Fatalf("%+v, %v; %+v", got, ok, h)
		}
	})
}
