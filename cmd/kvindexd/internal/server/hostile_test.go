package server_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/cmd/kvindexd/internal/server"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/kvindextest"
)

var hostile = flag.Int("hostile", 500, "requests of TestHostile; long form: 10000")

// bodies are valid bodies; breaks damages them.
var bodies = map[string]string{
	"/score_completions":      `{"prompt": "how do boats come and go?", "model": "m", "pods": ["a"]}`,
	"/score_chat_completions": `{"model": "m", "messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": [{"type": "text", "text": "x"}]}], "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], "documents": [{"text": "d"}], "chat_template_kwargs": {"a": [1, 2.5, null]}}`,
	"/v1/score":               `{"model": "m", "tokens": [1, 2, 3], "media": [{"hash": "h", "offset": 1, "length": 1}], "pods": ["a"], "ranks": true, "top": 3}`,
	"/v1/select":              `{"model": "m", "body": {"messages": [{"role": "user", "content": "x"}]}, "output_tokens": 3, "lease_ms": 50}`,
	"/v1/done":                `{"id": "x", "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}}}`,
	"/v1/explain?pod=a":       `{"model": "m", "prompt": "x"}`,
	"/v1/events/a?model=m":    "",
	"/v1/pods/a":              `{"model": "m", "host": "127.0.0.1", "port": 1, "engine": "none", "labels": {"a": "b"}}`,
}

// breaks returns the bytes of a request that is wrong in a random way.
func breaks(random *rand.Rand, path, body string) string {
	b := []byte(body)
	switch random.IntN(14) {
	case 0: // random bytes
		for range 1 + random.IntN(4) {
			if len(b) > 0 {
				b[random.IntN(len(b))] = byte(random.IntN(256))
			}
		}
	case 1: // cut off, with the length of the rest
		b = b[:random.IntN(len(b)+1)]
	case 2: // cut off, with the length of the whole
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", path, len(b)+50, b)
	case 3: // deep nesting
		n := 1 << random.IntN(17)
		b = []byte(`{"model": "m", "messages": ` + strings.Repeat(`[`, n) + strings.Repeat(`]`, n) + `}`)
	case 4: // a huge Content-Length
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", path, int64(1)<<(20+random.IntN(43)), b)
	case 5: // a huge chunk
		piece := strings.Repeat("x", 1<<15)
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", path) + strings.Repeat(fmt.Sprintf("%x\r\n%s\r\n", len(piece), piece), 5) + "0\r\n\r\n"
	case 6: // two lengths
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\nGET /v1/pods HTTP/1.1\r\nHost: localhost\r\n\r\n", path, len(b), len(b), b)
	case 7:
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nContent-Length: %d\r\n\r\n%s", path, len(b), len(b)+1, b)
	case 8: // other forms of request smuggling
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding:%s\r\n\r\n-1\r\n%s", path, []string{" xchunked", "\tchunked", " chunked, identity", " identity"}[random.IntN(4)], b)
	case 9:
		return fmt.Sprintf("POST %s HTTP/1.1\nHost: localhost\n X: folded\nContent-Length : 3\n\n%s", path, b)
	case 10: // a wrong method
		return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", allMethods[random.IntN(len(allMethods))], path, len(b), b)
	case 11: // a header without end
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nX: %s", path, strings.Repeat("x", 1<<17))
	case 12: // a value of another type
		at := strings.IndexByte(body, ':')
		b = []byte(strings.Replace(body, body[at+1:], []string{`[]}`, `{}}`, `null}`, `1e999}`, `"\ud800"}`, `-1}`, `true}`, `18446744073709551616}`}[random.IntN(8)], 1))
	case 13: // a long prompt
		b = []byte(`{"model": "m", "tokens": [` + strings.Repeat("1,", 1<<random.IntN(14)) + `1], "prompt": ""}`)
	}
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", path, len(b), b)
}

// No wrong request has a status of 500 or more, and none leaves memory, places or files in use.
func TestHostile(t *testing.T) {
	f := start(t, server.Config{Model: "m", MaxBody: 128 << 10, Deadline: time.Hour})
	f.serve(t, f.add(t, kvindextest.EngineConfig{Pod: "a"}), tokensOf(strings.Repeat("how do boats come and go?", 5), true))
	bodies["/v1/events/a?model=m"] = string(fakeengine.Payload(1, 0, fakeengine.NewPrompt(1, 16, 3).Stored(0, 3)))
	all := slices.Sorted(maps.Keys(bodies))
	address := strings.TrimPrefix(f.admin.URL, "http://")
	good := func() time.Duration {
		began := time.Now()
		if code := ask(t, "POST", f.public.URL+"/v1/score", bodies["/v1/score"], nil); code != http.StatusOK {
			t.Fatalf("a right request: %d", code)
		}
		return time.Since(began)
	}
	p99 := func(took []time.Duration) time.Duration {
		slices.Sort(took)
		return took[len(took)*99/100]
	}
	var alone, beside []time.Duration
	rest := func() { // between the hostile requests, so that both meet the same machine
		for range 400 {
			alone = append(alone, good())
		}
	}
	rest()
	files := openFiles()
	random := rand.New(rand.NewPCG(3, 4))
	statuses := make(map[int]int)
	var slow []net.Conn
	for n := range *hostile {
		path := all[random.IntN(len(all))]
		request := breaks(random, path, bodies[path])
		conn, err := net.Dial("tcp", address)
		must(t, err)
		if random.IntN(10) == 0 { // a client that pauses, and may never continue
			_, _ = io.WriteString(conn, request[:random.IntN(len(request))])
			slow = append(slow, conn)
		} else {
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				_, _ = io.WriteString(conn, request)
				_ = conn.(*net.TCPConn).CloseWrite()
			}()
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			if a, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
				text, _ := io.ReadAll(a.Body)
				statuses[a.StatusCode]++
				if a.StatusCode >= 500 && a.StatusCode != http.StatusNotImplemented { // which is for an encoding that HTTP does not have
					t.Errorf("request %d: %d %.200s for %.300q", n, a.StatusCode, text, request)
				}
			} else {
				statuses[0]++
			}
			conn.Close()
			<-sent
		}
		beside = append(beside, good())
		if len(slow) == 40 {
			closeAll(slow)
			slow = nil
			rest()
		}
	}
	closeAll(slow)
	t.Logf("%d requests: statuses %v; p99 of others %v, %v alone", *hostile, statuses, p99(beside), p99(alone))
	if *hostile >= 10_000 && p99(beside) > 3*p99(alone) {
		t.Errorf("p99 of others is %v, %v alone", p99(beside), p99(alone))
	}
	if statuses[http.StatusOK] == *hostile || statuses[http.StatusBadRequest] == 0 {
		t.Error("the requests were not wrong")
	}
	for {
		held, working := f.server.InUse()
		now := openFiles()
		if held == 0 && working == 0 && now <= files {
			break
		}
		if f.ctx.Err() != nil {
			t.Fatalf("%d bytes and %d places are in use, %d files are open, %d were", held, working, now, files)
		}
	}
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

// openFiles returns the number of open files, 0 on systems without /proc.
func openFiles() int {
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(d)
}

// The bytes of one body and of all bodies are bounded. The test calls the handler without a
// connection: a client that is refused while it sends may lose the answer with the connection.
func TestBounds(t *testing.T) {
	f := start(t, server.Config{Model: "m", MaxBody: 1 << 20, MaxBodies: 5 << 19})
	large := func(n int) string { return js(map[string]string{"prompt": strings.Repeat("x", n-13)}) }
	if len(large(100)) != 100 {
		t.Fatal(len(large(100)))
	}
	answer := func(s *server.Server, body io.Reader, length int64) (w memory) {
		r, err := http.NewRequest(http.MethodPost, "/score_completions", body)
		if err != nil {
			t.Error(err)
			return w
		}
		r.ContentLength = length
		s.Public().ServeHTTP(&w, r)
		return w
	}
	for n, want := range map[int]int{1 << 20: 200, 1<<20 + 1: 413, 5 << 20: 413} {
		for _, length := range []int64{int64(n), -1} {
			w := answer(f.server, strings.NewReader(large(n)), length)
			if w.code != want || (w.header.Get("Connection") == "close") != (want == 413) {
				t.Errorf("%d bytes, announced as %d: %d %v, want %d", n, length, w.code, w.header, want)
			}
		}
	}
	// Two bodies that do not end have 2 MiB of the 2.5.
	var ends []*io.PipeWriter
	answers := make(chan int, 3)
	for i := range 3 {
		in, out := io.Pipe()
		ends = append(ends, out)
		go func() {
			defer in.Close()
			w := answer(f.server, in, -1)
			answers <- w.code
		}()
		if _, err := io.WriteString(out, large(1 << 20)[:1<<20-1]); (err == nil) != (i < 2) {
			t.Errorf("body %d: %v", i, err)
		}
	}
	if code := <-answers; code != http.StatusServiceUnavailable {
		t.Errorf("a third large body: %d", code)
	}
	for _, out := range ends {
		out.CloseWithError(io.ErrClosedPipe)
	}
	for range 2 {
		if code := <-answers; code != http.StatusBadRequest {
			t.Errorf("a body that was cut off: %d", code)
		}
	}
}

// A body of MaxBody bytes is taken, also if it is all that MaxBodies has room for.
func TestLargestBody(t *testing.T) {
	for _, n := range []int{1 << 10, 64 << 10, 100_000} {
		f := start(t, server.Config{Model: "m", MaxBody: int64(n), MaxBodies: int64(n)})
		for more, want := range []int{http.StatusOK, http.StatusRequestEntityTooLarge} {
			body := `{"tokens": [1]}` + strings.Repeat(" ", n+more-15)
			if code, got, _ := exchange(t, "POST", f.public.URL+"/v1/score", body); code != want {
				t.Errorf("%d bytes of %d: %d %s", len(body), n, code, got)
			}
		}
	}
}

// A request above the bound of running requests is refused at once.
func TestBusy(t *testing.T) {
	started, answer := make(chan struct{}), make(chan struct{})
	f := start(t, server.Config{Model: "slow", MaxRequests: 1}, kvindex.WithModels(func(context.Context, string) (kvindex.Model, error) {
		close(started)
		<-answer
		return kvindex.Model{Tokenizer: letters{}}, nil
	}))
	ended := make(chan int)
	go func() {
		a, err := http.Post(f.public.URL+"/score_completions", "", strings.NewReader(`{"prompt": "x"}`))
		if err != nil {
			ended <- 0
			return
		}
		a.Body.Close()
		ended <- a.StatusCode
	}()
	<-started
	code, got, h := exchange(t, "POST", f.public.URL+"/score_completions", `{"prompt": "x", "model": "m"}`)
	if code != http.StatusServiceUnavailable || h.Get("Retry-After") == "" || got != `{"error":"busy: 1 requests are being worked on"}` {
		t.Errorf("a second request: %d %s", code, got)
	}
	close(answer)
	if code := <-ended; code != http.StatusOK {
		t.Errorf("the first one: %d", code)
	}
}

// A body that does not come in time is refused.
func TestSlowBody(t *testing.T) {
	f := start(t, server.Config{Model: "m"})
	s := f.server.HTTP(f.server.Public())
	if s.ReadHeaderTimeout != 20*time.Second || s.ReadTimeout != 60*time.Second || s.WriteTimeout != 60*time.Second {
		t.Errorf("%v, %v, %v", s.ReadHeaderTimeout, s.ReadTimeout, s.WriteTimeout)
	}
	s.ReadTimeout = 50 * time.Millisecond
	at := httptest.NewUnstartedServer(nil)
	at.Config = s
	at.Start()
	defer at.Close()
	in, out := io.Pipe()
	defer out.Close()
	go func() { _, _ = io.WriteString(out, `{"prompt": `) }()
	a, err := http.Post(at.URL+"/score_completions", "", in)
	must(t, err)
	if a.Body.Close(); a.StatusCode != http.StatusRequestTimeout {
		t.Error(a.StatusCode)
	}
}
