package server

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/jinja"
	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// A failure is the answer to a request that failed: {"error": text}.
type failure struct {
	status int    // 0: see statusOf
	Text   string `json:"error"`
}

func (f *failure) Error() string { return f.Text }

func fail(format string, args ...any) *failure { return &failure{Text: fmt.Sprintf(format, args...)} }

// status returns a failure with the status code.
func status(code int, format string, args ...any) *failure {
	return &failure{code, fmt.Sprintf(format, args...)}
}

// bad returns the failure of a request that is wrong: it names the field and the mistake.
func bad(format string, args ...any) *failure { return status(http.StatusBadRequest, format, args...) }

// clientGone is nginx's status, for the log, of a request whose client has gone.
const clientGone = 499

// statusOf returns the status for an error. The reference endpoints answer 500 to everything
// that cannot be scored, and 400 to a request past a limit of the template's interpreter.
func statusOf(err error, reference bool) int {
	var f *failure
	if errors.As(err, &f) && f.status != 0 {
		return f.status
	}
	if reference && errors.Is(err, jinja.ErrLimit) {
		return http.StatusBadRequest
	}
	for _, s := range statuses {
		if errors.Is(err, s.is) {
			if reference && s.or500 {
				return http.StatusInternalServerError
			}
			return s.status
		}
	}
	return http.StatusInternalServerError
}

var statuses = []struct {
	is     error
	status int
	or500  bool
}{
	{context.Canceled, clientGone, false},
	{context.DeadlineExceeded, http.StatusGatewayTimeout, false},
	{kvindex.ErrClosed, http.StatusServiceUnavailable, false},
	{tokenize.ErrBusy, http.StatusServiceUnavailable, false},
	{tokenize.ErrTextTooLong, http.StatusRequestEntityTooLarge, false},
	{kvindex.ErrMalformed, http.StatusBadRequest, false},
	{kvindex.ErrRequest, http.StatusBadRequest, false},
	{kvindex.ErrFull, http.StatusInsufficientStorage, false},
	{kvindex.ErrNoTokenizer, http.StatusNotFound, true},
	{kvindex.ErrNoTemplate, http.StatusNotFound, true},
	{kvindex.ErrUnknownModel, http.StatusNotFound, true},
	{chat.ErrNotScorable, http.StatusUnprocessableEntity, true},
	{chat.ErrUnsupported, http.StatusUnprocessableEntity, true},
	{tokenize.ErrUnsupported, http.StatusUnprocessableEntity, true},
}

// write writes an answer as JSON.
func write(w http.ResponseWriter, code int, v any) {
	b, err := json.Marshal(v)
	if err != nil { // an answer has no value that JSON lacks
		code, b = http.StatusInternalServerError, []byte(`{"error":"the answer is no JSON"}`)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(b)+1))
	if code == http.StatusServiceUnavailable {
		h.Set("Retry-After", "1")
	}
	w.WriteHeader(code)
	_, _ = w.Write(append(b, '\n'))
}

// A call is a request whose body was read.
type call struct {
	*core
	*http.Request
	ctx  context.Context // ends with the deadline
	body []byte          // valid until the answer
}

// handle returns a handler that reads the body of a request, calls answer unless too many
// requests are being answered, and writes the result or the error.
func (s *Server) handle(answer func(call) (any, error), reference bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var v any
		b, err := s.read(w, r)
		defer s.release(b)
		if err == nil {
			v, err = s.work(r, b.bytes, answer)
		}
		if err == nil {
			write(w, http.StatusOK, v)
			return
		}
		code := statusOf(err, reference)
		if code == http.StatusRequestEntityTooLarge {
			w.Header().Set("Connection", "close")
		}
		write(w, code, fail("%s", strings.TrimPrefix(err.Error(), "kvindex: ")))
	}
}

func (s *Server) work(r *http.Request, body []byte, answer func(call) (any, error)) (any, error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		return nil, status(http.StatusServiceUnavailable, "busy: %d requests are being worked on", cap(s.slots))
	}
	c := s.core.Load()
	if c == nil {
		return nil, s.noIndex()
	}
	ctx, cancel := s.deadline(r)
	defer cancel()
	return answer(call{core: c, Request: r, ctx: ctx, body: body})
}

// A buffer has the body of a request.
type buffer struct {
	bytes    []byte
	reserved int64 // its share of Server.bodies
}

const (
	firstBuffer = 64 << 10
	maxReused   = 1 << 20 // larger buffers are not used again
)

// read reads the body of a request. The caller releases the buffer, after an error too.
func (s *Server) read(w http.ResponseWriter, r *http.Request) (*buffer, error) {
	b, _ := s.buffers.Get().(*buffer)
	if b == nil {
		b = new(buffer)
	}
	b.bytes = b.bytes[:0]
	if r.ContentLength == 0 {
		return b, nil
	}
	if r.ContentLength > s.cfg.MaxBody {
		return b, s.tooLarge()
	}
	if err := s.hold(b, max(cap(b.bytes), int(min(firstBuffer, s.cfg.MaxBody+1)))); err != nil {
		return b, err
	}
	for body := http.MaxBytesReader(w, r.Body, s.cfg.MaxBody); ; {
		if len(b.bytes) == cap(b.bytes) {
			if err := s.hold(b, int(min(2*int64(cap(b.bytes)), s.cfg.MaxBody+1))); err != nil {
				return b, err
			}
		}
		n, err := body.Read(b.bytes[len(b.bytes):cap(b.bytes)])
		b.bytes = b.bytes[:len(b.bytes)+n]
		var large *http.MaxBytesError
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return b, nil
		case errors.As(err, &large):
			return b, s.tooLarge()
		case errors.Is(err, os.ErrDeadlineExceeded):
			return b, status(http.StatusRequestTimeout, "body: it took too long to come")
		default:
			return b, bad("body: it was cut off after %d bytes", len(b.bytes))
		}
	}
}

func (s *Server) tooLarge() error {
	return status(http.StatusRequestEntityTooLarge, "body: longer than %d bytes", s.cfg.MaxBody)
}

// hold grows b to size bytes, unless all bodies together exceed MaxBodies. The byte behind a
// body of MaxBody, which shows its end, does not count.
func (s *Server) hold(b *buffer, size int) error {
	more := min(int64(size), s.cfg.MaxBody) - b.reserved
	if s.bodies.Add(more) > s.cfg.MaxBodies {
		s.bodies.Add(-more)
		return status(http.StatusServiceUnavailable, "busy: the bodies of other requests have all of the memory for them")
	}
	b.reserved += more
	if size > cap(b.bytes) {
		b.bytes = append(make([]byte, 0, size), b.bytes...)
	}
	return nil
}

func (s *Server) release(b *buffer) {
	s.bodies.Add(-b.reserved)
	if b.reserved = 0; cap(b.bytes) <= maxReused {
		s.buffers.Put(b)
	}
}

// decode reads a JSON body into v. strict refuses fields that v does not have.
func decode(body []byte, v any, strict bool) error {
	switch {
	case len(bytes.TrimSpace(body)) == 0:
		return bad("body: it is empty, want a JSON object")
	case !utf8.Valid(body):
		return bad("body: not UTF-8")
	case loneSurrogate(body):
		return bad("body: a \\u escape is half of a character")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if strict {
		d.DisallowUnknownFields()
	}
	err := d.Decode(v)
	if err == nil {
		if _, err = d.Token(); errors.Is(err, io.EOF) {
			return nil
		}
		return bad("body: more than one JSON value, the second ends before byte %d", d.InputOffset())
	}
	var kind *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &kind) && kind.Field == "":
		return bad("body: a JSON %s, want an object", kind.Value)
	case errors.As(err, &kind):
		return bad("%s: a JSON %s, want %v", kind.Field, kind.Value, kind.Type)
	case errors.As(err, &syntax):
		return bad("body: not JSON at byte %d: %v", syntax.Offset, syntax)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return bad("body: not JSON: it ends too early")
	}
	return bad("body: %s", strings.TrimPrefix(err.Error(), "json: ")) // for instance of an unknown field
}

// queryOf returns the query of a request. It refuses parameters other than names: a misspelt one
// would have no effect.
func queryOf(r *http.Request, names ...string) (url.Values, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, bad("query: %v", err)
	}
	for name := range query {
		if !slices.Contains(names, name) {
			return nil, bad("%.40s: the query can have %s", name, strings.Join(names, ", "))
		}
	}
	return query, nil
}

// loneSurrogate reports whether JSON has a \u escape for half of a surrogate pair, which no
// UTF-8 text can hold.
func loneSurrogate(b []byte) bool {
	for {
		i := bytes.IndexByte(b, '\\')
		if i < 0 || i+1 >= len(b) {
			return false
		}
		r, n := escape(b[i:])
		if b = b[i+n:]; r < 0xd800 || r > 0xdfff {
			continue
		}
		low, n := escape(b)
		if r > 0xdbff || low < 0xdc00 || low > 0xdfff {
			return true
		}
		b = b[n:]
	}
}

// escape returns the code of the \u escape at the beginning of b, and the escape's length in
// bytes. For another escape the code is -1.
func escape(b []byte) (code, n int) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1, min(2, len(b))
	}
	r, err := strconv.ParseUint(string(b[2:6]), 16, 32)
	if err != nil {
		return -1, 2
	}
	return int(r), 6
}

// guard refuses requests to the admin address that lack its credential, except those for the
// files of the page and the login. An address without a credential is a loopback address.
// Requests from another site's page in a browser are refused, except for a link to the page.
func (s *Server) guard(next http.Handler) http.Handler {
	own := http.NewCrossOriginProtection()
	want := []byte("Bearer " + s.cfg.Token)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		file := reads && pageTypes[r.URL.Path].file != ""
		login := r.Method == http.MethodPost && r.URL.Path == "/login"
		link := reads && r.URL.Path == "/" && r.Header.Get("Sec-Fetch-Mode") == "navigate"
		bears := subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), want) == 1
		of, cookied := s.sessionOf(r)
		if cookied {
			w.Header().Set(loginHeader, "cookie")
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			defer context.AfterFunc(of.ctx, cancel)() // a request to /v1/watch must end with its session
			r = r.WithContext(ctx)
		}
		allowed := s.cfg.Token == "" || file || login || bears || cookied
		switch {
		case own.Check(r) != nil, foreign(r) && !link:
			write(w, http.StatusForbidden, fail("origin: a page of another site"))
		case !allowed:
			w.Header().Set("WWW-Authenticate", "Bearer")
			write(w, http.StatusUnauthorized, fail("authorization: the token of this address is needed"))
		case s.cfg.Token == "" && !s.cfg.ClientCerts && !local(r.Host):
			write(w, http.StatusForbidden, fail("host: %.100q is no loopback address", r.Host))
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// local reports whether a Host header names this machine.
func local(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// logRequests logs the method, path and status of each request, but not its query or body.
func (s *Server) logRequests(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.cfg.Log.Enabled(r.Context(), slog.LevelDebug) {
			next.ServeHTTP(w, r)
			return
		}
		began, answer := time.Now(), &recorder{w, http.StatusOK}
		defer func() {
			s.cfg.Log.Debug("request", "method", r.Method, "path", r.URL.Path, "status", answer.status, "took", time.Since(began), "bytes", r.ContentLength, "from", r.RemoteAddr)
		}()
		next.ServeHTTP(answer, r)
	})
}

// A recorder keeps the status of an answer.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(code int) {
	r.status = code
	r.ResponseWriter.WriteHeader(code)
}

func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
