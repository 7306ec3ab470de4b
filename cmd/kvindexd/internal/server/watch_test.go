package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/cmd/kvindexd/internal/server"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/cputime"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/kvindextest"
)

// A row is a pod in the picture of a viewer.
type row struct {
	ID                             uint64
	Pod, Model, State, Why, Source string
	Ranks                          int
	Blocks                         map[string]int
	Lost, Messages                 uint64
	LagMS                          int64 `json:"lag_ms"`
	Missing                        uint64
}

// A viewer is a client of /v1/watch that assembles the picture.
type viewer struct {
	rows   map[uint64]row
	id     string
	detail struct {
		Row     *row
		Ranks   []struct{ Blocks map[string]int }
		Streams []struct{ Stream, Endpoint, Link, State, Error string }
		Losses  []struct {
			Noticed time.Time
			Loss    struct{ Cause string }
		}
		Cut bool
	}
	messages, resets, rowsSent int
	body                       io.Closer
	lines                      *bufio.Reader
}

// connect begins to watch, from the last message that v has received. query may be empty.
func (v *viewer) connect(t testing.TB, ctx context.Context, url, query string) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/v1/watch?"+query, nil)
	must(t, err)
	if v.id != "" {
		r.Header.Set("Last-Event-ID", v.id)
	}
	a, err := http.DefaultClient.Do(r)
	must(t, err)
	t.Cleanup(func() { _ = a.Body.Close() })
	if a.StatusCode != http.StatusOK || a.Header.Get("Content-Type") != "text/event-stream" {
		b, _ := io.ReadAll(a.Body)
		t.Fatalf("%s %s", a.Status, b)
	}
	v.body, v.lines = a.Body, bufio.NewReaderSize(a.Body, 2*server.MaxMessage)
	if v.rows == nil {
		v.rows = make(map[uint64]row)
	}
}

// next reads the messages of one picture.
func (v *viewer) next() error {
	for size, data := 0, ""; ; {
		line, err := v.lines.ReadString('\n')
		if err != nil {
			return err
		}
		size += len(line)
		if at, ok := strings.CutPrefix(line, "data: "); ok {
			data = at
		} else if id, ok := strings.CutPrefix(line, "id: "); ok {
			v.id = strings.TrimSpace(id)
		} else if line != "\n" {
			return fmt.Errorf("the line %.100q", line)
		}
		if line != "\n" {
			continue
		}
		if size > server.MaxMessage {
			return fmt.Errorf("a message of %d bytes", size)
		}
		var m struct {
			Reset  bool
			Pods   []row
			Gone   []uint64
			Whole  map[string]any
			Detail json.RawMessage
		}
		if err := json.Unmarshal([]byte(data), &m); err != nil {
			return fmt.Errorf("%.100q: %w", data, err)
		}
		v.messages++
		size = 0
		if m.Detail != nil {
			if err := json.Unmarshal(m.Detail, &v.detail); err != nil {
				return err
			}
			continue
		}
		if m.Reset {
			v.resets++
			clear(v.rows)
		}
		for _, p := range m.Pods {
			v.rows[p.ID] = p
		}
		v.rowsSent += len(m.Pods)
		for _, id := range m.Gone {
			delete(v.rows, id)
		}
		if m.Whole != nil {
			return nil
		}
	}
}

// until reads pictures until is returns true.
func (v *viewer) until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for {
		if err := v.next(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if is() {
			return
		}
	}
}

// shows reports whether the picture is equal to the Indexer's list of pods.
func (v *viewer) shows(ix *kvindex.Indexer) bool {
	pods := ix.Pods(nil)
	of := make(map[[2]string]row)
	for _, r := range v.rows {
		of[[2]string{r.Pod, r.Model}] = r
	}
	for _, p := range pods {
		r, ok := of[[2]string{p.Pod, p.Model}]
		blocks := make(map[string]int)
		for _, k := range p.Ranks {
			for t, n := range k.Blocks {
				if n > 0 {
					blocks[kvindex.Tier(t).String()] += n
				}
			}
		}
		if !ok || r.State != p.State.String() || r.Ranks != len(p.Ranks) || !maps.Equal(blocks, r.Blocks) {
			return false
		}
	}
	return len(pods) == len(v.rows) && len(of) == len(pods)
}

var hostileNames = []string{
	`<img src=x onerror=alert(1)>`, `"><script>alert(1)</script>`, `'; drop`, "a/b?c#d", "\u202eright to left\u202c", "\u0000\u0001", "a\nb\ndata: x", strings.Repeat("<", 1024), "\u2028", "..", "%2e",
}

// After random changes each viewer's picture is equal to the Indexer's list of pods, also after a
// reconnection, and no message is too long.
func TestWatchAgainstPlain(t *testing.T) {
	f := start(t, server.Config{Model: "m"})
	f.server.Every(2 * time.Millisecond)
	random := rand.New(rand.NewPCG(1, 2))
	var v viewer
	v.connect(t, f.ctx, f.admin.URL, "")
	for step := range 40 {
		for range random.IntN(30) {
			pod, model := fmt.Sprintf("pod-%d", random.IntN(200)), "m"
			if random.IntN(5) == 0 {
				pod = hostileNames[random.IntN(len(hostileNames))]
			}
			if random.IntN(5) == 0 {
				model = hostileNames[random.IntN(len(hostileNames))]
			}
			if random.IntN(4) == 0 {
				_ = f.ix.RemovePod(pod) // the pod need not exist
				continue
			}
			p := fakeengine.NewPrompt(random.Uint64(), 16, 4)
			must(t, f.ix.Ingest(pod, model, fakeengine.Payload(1, 0, p.Stored(0, 1+random.IntN(4)))))
		}
		if random.IntN(3) == 0 {
			_ = v.body.Close()
			if random.IntN(4) == 0 {
				v.id = "AAAAAAAA.7" // of another process
			}
			v.connect(t, f.ctx, f.admin.URL, "pod=pod-1")
		}
		v.until(t, fmt.Sprint("step ", step), func() bool { return v.shows(f.ix) })
	}
	if v.resets == 0 || v.rowsSent > v.messages*200 {
		t.Errorf("%d resets, %d rows in %d messages", v.resets, v.rowsSent, v.messages)
	}
}

// The picture of many pods is several messages. A viewer that missed too many removals gets a
// whole picture again.
func TestWatchManyPods(t *testing.T) {
	f := start(t, server.Config{Model: "m"})
	f.server.Every(2 * time.Millisecond)
	const long = 300 // pods with long names
	name := func(i int) string {
		if i < long {
			return strings.Repeat("<", 900) + fmt.Sprint(i)
		}
		return fmt.Sprint(i)
	}
	payload := fakeengine.Payload(1, 0, fakeengine.NewPrompt(1, 16, 1).Stored(0, 1))
	ingest := func(from, to int) {
		for i := from; i < to; i++ {
			must(t, f.ix.Ingest(name(i), "m", payload))
		}
	}
	ingest(0, long)
	var v, away viewer
	v.connect(t, f.ctx, f.admin.URL, "")
	v.until(t, "all pods", func() bool { return v.shows(f.ix) })
	if v.messages < 20 {
		t.Errorf("%d messages for %d pods with long names", v.messages, long)
	}
	away.id, away.rows = v.id, maps.Clone(v.rows)
	for from := 0; from <= server.MaxGone; from += 500 { // the pods of the first picture go, too
		ingest(from, from+500)
		v.until(t, "more pods", func() bool { return v.shows(f.ix) })
		for i := from; i < from+500; i++ {
			must(t, f.ix.RemovePod(name(i)))
		}
		v.until(t, "fewer pods", func() bool { return v.shows(f.ix) })
	}
	away.connect(t, f.ctx, f.admin.URL, "")
	away.until(t, "after all have gone", func() bool { return away.shows(f.ix) })
	if away.resets != 1 || v.resets != 1 {
		t.Errorf("%d and %d resets", away.resets, v.resets)
	}
}

// The answer to a wrong request names the mistake, and the number of viewers is bounded.
func TestWatchRefuses(t *testing.T) {
	f := start(t, server.Config{Model: "m"})
	f.server.Every(200 * time.Millisecond)
	for id, want := range map[string]string{
		"x": "last-event-id", "AAAAAAAA": "last-event-id", "AAAAAAAA.-1": "last-event-id", "aaaaaaaa.1": "last-event-id", "AAAAAAAA.1 ": "", "AAAAAAAA.1": "",
		"AAAAAAAA.123456789012345678901": "last-event-id", strings.Repeat("A", 5000): "last-event-id",
	} {
		r := httptest.NewRequest(http.MethodHead, "http://localhost/v1/watch", nil)
		r.Header.Set("Last-Event-ID", strings.TrimSpace(id))
		w := httptest.NewRecorder()
		f.server.Admin().ServeHTTP(w, r)
		if (w.Code == 400) != (want != "") || !strings.Contains(w.Body.String(), want) || w.Body.Len() > 200 {
			t.Errorf("%.50q: %d %s", id, w.Code, w.Body)
		}
	}
	var v viewer
	v.connect(t, f.ctx, f.admin.URL, "")
	must(t, v.next())
	run, _, _ := strings.Cut(v.id, ".")
	for _, id := range []string{run + ".99999999", run + ".18446744073709551616"} {
		r := httptest.NewRequest(http.MethodHead, "http://localhost/v1/watch", nil)
		r.Header.Set("Last-Event-ID", id)
		w := httptest.NewRecorder()
		f.server.Admin().ServeHTTP(w, r)
		if w.Code != 400 || !strings.Contains(w.Body.String(), "of no message that was sent") {
			t.Errorf("%s: %d %s", id, w.Code, w.Body)
		}
	}
	if code, got, _ := exchange(t, "GET", f.admin.URL+"/v1/watch?model=m", ""); code != 400 || got != `{"error":"pod: it is missing in the query"}` {
		t.Errorf("a model alone: %d %s", code, got)
	}
	if code, got, _ := exchange(t, "GET", f.admin.URL+"/v1/watch", "x"); code != 400 || !strings.HasPrefix(got, `{"error":"body: `) {
		t.Errorf("a body: %d %s", code, got)
	}
	for range server.MaxViewers - 1 {
		new(viewer).connect(t, f.ctx, f.admin.URL, "")
	}
	if code, got, h := exchange(t, "GET", f.admin.URL+"/v1/watch", ""); code != 503 || got != `{"error":"busy: 64 viewers are watching"}` || h.Get("Retry-After") == "" {
		t.Errorf("a viewer too many: %d %s", code, got)
	}
	_ = v.body.Close()
	for f.server.Viewers() == server.MaxViewers {
		if f.ctx.Err() != nil {
			t.Fatal("a viewer that has gone counts")
		}
		time.Sleep(time.Millisecond)
	}
	last := new(viewer)
	last.connect(t, f.ctx, f.admin.URL, "")
	f.server.Drain()
	for last.next() == nil {
	}
	if code, got, _ := exchange(t, "GET", f.admin.URL+"/v1/watch", ""); code != 503 || !strings.Contains(got, "the service ends") {
		t.Errorf("while it drains: %d %s", code, got)
	}
}

// A viewer outlives the timeouts of a request, and one that does not read is disconnected.
func TestWatchTimes(t *testing.T) {
	f := start(t, server.Config{Model: "m"})
	f.server.Every(100 * time.Millisecond)
	h := f.server.HTTP(f.server.Admin())
	h.ReadTimeout, h.WriteTimeout = time.Second, time.Second
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	go func() { _ = h.Serve(l) }()
	defer h.Close()
	var v viewer
	v.connect(t, f.ctx, "http://"+l.Addr().String(), "")
	for range 15 {
		must(t, v.next())
	}
	_ = v.body.Close()
	for f.server.Viewers() > 0 {
		if f.ctx.Err() != nil {
			t.Fatal("a viewer that has gone counts")
		}
		time.Sleep(time.Millisecond)
	}
	f.server.SlowWrite(100 * time.Millisecond)
	for i := range 2000 { // a few pictures of so many rows overflow the buffers of both sockets
		must(t, f.ix.Ingest(fmt.Sprint(strings.Repeat("<", 900), i), "m", fakeengine.Payload(1, 0, fakeengine.NewPrompt(1, 16, 1).Stored(0, 1))))
	}
	conn, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetReadBuffer(4096)
	fmt.Fprint(conn, "GET /v1/watch HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if first, err := bufio.NewReader(conn).ReadString('\n'); !strings.Contains(first, "200 OK") {
		t.Fatalf("it does not watch: %q, %v", first, err)
	}
	for f.server.Viewers() > 0 {
		if f.ctx.Err() != nil {
			t.Fatal("one that does not read is still there")
		}
		time.Sleep(time.Millisecond)
	}
}

// The detail of a pod has its streams and its last losses with their causes.
func TestWatchDetail(t *testing.T) {
	f := start(t, server.Config{Model: "m"})
	f.server.Every(5 * time.Millisecond)
	e := f.add(t, kvindextest.EngineConfig{Pod: "a"})
	f.serve(t, e, tokensOf("how do boats come and go, and where are they?", true))
	must(t, f.fleet.Put("test", events.Pod{ID: "away", Model: "m", Host: "127.0.0.1", Port: 1}))
	f.server.Lost(kvindex.Loss{Pod: "a", Model: "m", Cause: "gap", Gap: kvindex.Gap{}})
	f.server.Lost(kvindex.Loss{Pod: "b", Model: "m", Cause: "restart"})
	for range 30 {
		f.server.Lost(kvindex.Loss{Pod: "a", Model: "m", Stream: strings.Repeat("<", 1000), Cause: "malformed", Err: fmt.Errorf("%s", strings.Repeat("\x01", 1000))})
	}
	f.server.Lost(kvindex.Loss{Pod: "a", Model: "m", Cause: "marked"})
	var v viewer
	v.connect(t, f.ctx, f.admin.URL, "pod=a")
	v.until(t, "pod a", func() bool {
		return v.detail.Row != nil && len(v.detail.Ranks) == 1 && len(v.detail.Streams) > 0 && v.detail.Streams[0].Link == "live"
	})
	d := v.detail
	if d.Row.Pod != "a" || d.Row.Source != "test" || d.Ranks[0].Blocks["gpu"] != 2 || len(d.Losses) < 3 || d.Losses[0].Loss.Cause != "marked" || d.Losses[1].Loss.Cause != "malformed" || d.Losses[0].Noticed.IsZero() || !d.Cut {
		t.Errorf("%+v", d)
	}
	v = viewer{}
	v.connect(t, f.ctx, f.admin.URL, "pod=away&model=m")
	v.until(t, "the pod that is away", func() bool {
		return v.detail.Row != nil && v.detail.Row.State != "live" && strings.HasPrefix(v.detail.Row.Why, "backoff: ")
	})
	v = viewer{}
	v.connect(t, f.ctx, f.admin.URL, "pod=nobody")
	if err := v.next(); err != nil || v.detail.Row != nil || len(v.detail.Streams) > 0 {
		t.Errorf("%v %+v", err, v.detail)
	}
}

// The first picture of 1,000 pods comes at once, and is small. At one picture a second, a viewer
// of 100 changed rows costs less than 2 % of a processor, the changes included.
func TestWatchCost(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector takes most of the time")
	}
	f := start(t, server.Config{Model: "m"})
	change := manyPods(t, f.ix, 1000)
	// watch reads the number of pictures, and returns the processor time for each of them.
	watch := func(pictures int) (*pictureWriter, time.Duration) {
		ctx, cancel := context.WithCancel(f.ctx)
		defer cancel()
		n := 0
		w := &pictureWriter{header: make(http.Header), written: func() {
			change(100)
			if n++; n == pictures {
				cancel()
			}
		}}
		took := cputime.Of(func() {
			f.server.Admin().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/v1/watch", nil).WithContext(ctx))
		})
		return w, took / time.Duration(pictures)
	}
	f.server.Every(1000 * time.Hour) // a picture that needed two ticks would not come
	first, took := watch(1)
	t.Logf("the first picture: %d bytes in %d messages, %v of a processor", first.bytes, first.messages, took)
	if first.bytes > 256<<10 || first.messages > 5 || took > time.Second {
		t.Error("the first picture is large or slow")
	}
	f.server.Every(time.Nanosecond)
	_, best := watch(20)
	for range 2 { // the least of several: other tests' leftovers count too
		_, took := watch(20)
		best = min(best, took)
	}
	t.Logf("%v of a processor for a picture", best)
	if best > 20*time.Millisecond {
		t.Errorf("a picture takes %v", best)
	}
}

// manyPods adds n pods, and returns a function that changes some of them.
func manyPods(t testing.TB, ix *kvindex.Indexer, n int) (change func(n int)) {
	at := 0
	change = func(some int) {
		for range some {
			p := fakeengine.NewPrompt(uint64(at), 16, 2)
			must(t, ix.Ingest(fmt.Sprintf("vllm-llama-3-70b-%d", at%n), "m", fakeengine.Payload(1, 0, p.Stored(0, 2))))
			at++
		}
	}
	change(n)
	return change
}

// A pictureWriter counts messages, and calls written after each message with an id, which ends a
// picture.
type pictureWriter struct {
	header          http.Header
	written         func()
	bytes, messages int
}

func (w *pictureWriter) Header() http.Header { return w.header }
func (w *pictureWriter) WriteHeader(int)     {}
func (w *pictureWriter) Flush()              {}
func (w *pictureWriter) Write(p []byte) (int, error) {
	w.bytes += len(p)
	w.messages++
	if strings.HasPrefix(string(p[:min(len(p), 4)]), "id: ") {
		w.written()
	}
	return len(p), nil
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
