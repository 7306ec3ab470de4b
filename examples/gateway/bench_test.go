package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/openloop"
	"github.com/kvindex/kvindex/kvindextest"
)

// fronts starts the gateway and, in front of the same engines, a ReverseProxy that chooses by
// round-robin.
func fronts(b *testing.B, cfg kvindextest.EngineConfig) (r *rig, urls map[string]string) {
	r = newRig(b, wide, cfg, "a", "b", "c")
	var next atomic.Int64
	pods := r.gateway.picker.Pods()
	transport := &http.Transport{MaxIdleConnsPerHost: 256}
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		ErrorLog:  log.New(io.Discard, "", 0),
		Transport: transport,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(&url.URL{Scheme: "http", Host: pods[int(next.Add(1))%len(pods)].Host})
		},
	})
	r.client.Transport.(*http.Transport).MaxIdleConnsPerHost = 256
	b.Cleanup(func() { proxy.Close(); transport.CloseIdleConnections() })
	return r, map[string]string{"gateway": r.front.URL, "reverseproxy": proxy.URL}
}

// prompts returns the bodies of chats of 1 kB; every tenth chat is a new one.
func prompts(n int) (bodies []string) {
	for i := range n {
		bodies = append(bodies, bodyOf(map[string]any{"model": model, "max_tokens": 1, "messages": []message{
			{"system", strings.Repeat(fmt.Sprint("system ", i%10, ", "), 60)}, {"user", strings.Repeat(fmt.Sprint(i, " "), 60)},
		}}))
	}
	return bodies
}

// BenchmarkAnswers measures requests of 1 kB without streaming, from eight clients; the score
// alone; and N rounds of 400 requests to each front, at half of the rate that the ReverseProxy can
// sustain.
func BenchmarkAnswers(b *testing.B) {
	r, urls := fronts(b, kvindextest.EngineConfig{Blocks: 4000})
	bodies := prompts(100)
	var n atomic.Int64
	requester := func(url string) func() {
		return func() {
			resp, err := r.client.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(bodies[n.Add(1)%int64(len(bodies))]))
			if err != nil {
				panic(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				panic(resp.Status)
			}
		}
	}
	gateway, proxy := requester(urls["gateway"]), requester(urls["reverseproxy"])
	for name, ask := range map[string]func(){"gateway": gateway, "reverseproxy": proxy} {
		b.Run(name, func(b *testing.B) {
			each := openloop.Full(max(b.N, 8), ask)
			b.ReportMetric(float64(time.Second/each), "requests/s")
		})
	}
	b.Run("half", func(b *testing.B) {
		p99, ours, ratio := openloop.Half(b.N, 400, proxy, gateway)
		b.ReportMetric(float64(p99.Microseconds()), "reverseproxy-p99-us")
		b.ReportMetric(float64(ours.Microseconds()), "p99-us")
		b.ReportMetric(ratio, "ratio")
	})
	b.Run("score", func(b *testing.B) {
		var answer kvindex.Answer
		for i := range b.N {
			ok(b, r.gateway.index.ScoreRequest(r.ctx, &kvindex.Request{Body: []byte(bodies[i%len(bodies)])}, &answer))
		}
	})
}

// BenchmarkStreams measures 200 concurrent streams of a token every 20 ms. Each token has the
// time at which the engine wrote it; late-us is the 99th percentile of the delay to the client.
func BenchmarkStreams(b *testing.B) {
	const streams, tokens = 200, 50
	engine := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for range tokens {
			select {
			case <-tick.C:
			case <-req.Context().Done():
				return
			}
			fmt.Fprintf(w, "data: {\"at\": %d}\n\n", time.Now().UnixNano())
			_ = http.NewResponseController(w).Flush()
		}
	})
	r, urls := fronts(b, kvindextest.EngineConfig{})
	for _, e := range r.engines {
		e.api.Config.Handler = engine
	}
	for _, name := range []string{"gateway", "reverseproxy"} {
		b.Run(name, func(b *testing.B) {
			var mu sync.Mutex // guards late
			var late []time.Duration
			for range b.N {
				var all sync.WaitGroup
				for range streams {
					all.Go(func() {
						resp, err := r.client.Post(urls[name]+"/v1/chat/completions", "", strings.NewReader(hello))
						if err != nil {
							b.Error(err)
							return
						}
						defer resp.Body.Close()
						part := make([]byte, 4096)
						for {
							n, err := resp.Body.Read(part)
							now := time.Now().UnixNano()
							for line := range bytes.Lines(part[:n]) {
								var at int64
								if _, err := fmt.Sscanf(string(line), `data: {"at": %d}`, &at); err == nil {
									mu.Lock()
									late = append(late, time.Duration(now-at))
									mu.Unlock()
								}
							}
							if err != nil {
								return
							}
						}
					})
				}
				all.Wait()
			}
			if len(late) < b.N*streams*tokens*9/10 {
				b.Errorf("%d tokens came", len(late))
			}
			slices.Sort(late)
			b.ReportMetric(float64(late[len(late)*99/100].Microseconds()), "late-us")
			b.ReportMetric(float64(late[len(late)/2].Microseconds()), "median-us")
		})
	}
}

// BenchmarkMemory measures the bytes of heap and stacks of a stream: directly to the engine,
// through the gateway, and through a ReverseProxy. Client and engine are in this process, too.
func BenchmarkMemory(b *testing.B) {
	const streams = 500
	r, urls := fronts(b, kvindextest.EngineConfig{})
	r.client.Transport.(*http.Transport).MaxIdleConnsPerHost = streams
	for _, e := range r.engines {
		e.api.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			for range 2 { // with the second token a proxy has a buffer for each stream
				fmt.Fprint(w, "data: {}\n\n")
				_ = http.NewResponseController(w).Flush()
			}
			<-req.Context().Done()
		})
		urls["engine"] = e.api.URL
	}
	for _, name := range []string{"engine", "gateway", "reverseproxy"} {
		b.Run(name, func(b *testing.B) {
			var all int64
			for range b.N {
				goroutines, before := runtime.NumGoroutine(), inUse()
				var bodies []io.Closer
				for range streams {
					resp, err := r.client.Post(urls[name]+"/v1/chat/completions", "", strings.NewReader(hello))
					if err != nil {
						b.Fatal(err)
					}
					if _, err := io.ReadFull(resp.Body, make([]byte, 2*len("data: {}\n\n"))); err != nil {
						b.Fatal(err)
					}
					bodies = append(bodies, resp.Body)
				}
				all += inUse() - before
				for _, body := range bodies {
					_ = body.Close()
				}
				r.until("the end of the streams", func() bool { return runtime.NumGoroutine() <= goroutines })
			}
			b.ReportMetric(float64(all)/float64(b.N*streams), "B/stream")
		})
	}
}

func inUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // a sync.Pool is empty after the second GC
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
