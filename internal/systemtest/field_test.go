package systemtest

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/kvindex/kvindex/internal/zmtp"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

// TestFieldFrames plays the rows of field/frames.jsonl: messages of publishers that differ from the
// engines' releases. Each pod of a row has a Subscriber.
func TestFieldFrames(t *testing.T) {
	f, err := os.Open(testdata.Glob(t, "messages of other publishers", "field", "frames.jsonl")[0])
	must(t, err)
	defer f.Close()
	// Blocks that differ from the row's, because of a named limit.
	limits := map[string]string{"one-numbering-for-several-pods": "n1"}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var row struct {
			Name     string
			Messages [][]string
			Queries  []struct {
				Pod    string
				Tokens []uint32
				Cached int
			}
		}
		must(t, json.Unmarshal(lines.Bytes(), &row))
		t.Run(row.Name, func(t *testing.T) {
			script := zmtptest.Hello(1, "PUB")
			counts := make(map[string]int) // messages by pod; "": of all
			for _, m := range row.Messages {
				var frames []string
				for _, text := range m {
					b, err := hex.DecodeString(text)
					must(t, err)
					frames = append(frames, string(b))
				}
				script = append(script, zmtptest.Message(frames...)...)
				counts[podOf(frames[0])]++
			}
			ix := open(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			var all sync.WaitGroup
			defer all.Wait()
			defer cancel()
			endpoint := publishing(t, script)
			for pod := range counts {
				cfg := events.SubscriberConfig{Endpoint: endpoint, Pod: "n", Model: "m"}
				if pod != "" {
					cfg.Pod, cfg.Topic = pod, "kv@node:"+pod+"@m"
				}
				sub, err := events.NewSubscriber(ix.Sink(), cfg)
				must(t, err)
				all.Go(func() { _ = sub.Run(ctx) })
			}
			var pods []kvindex.PodInfo
			for done := false; !done && ctx.Err() == nil; {
				pods = ix.Pods(pods[:0])
				done = len(pods) == len(counts) && !slices.ContainsFunc(pods, func(p kvindex.PodInfo) bool {
					n := counts[p.Pod] + counts[""]
					return len(p.Streams) != 1 || p.Streams[0].Messages != uint64(n)
				})
			}
			for i, q := range row.Queries {
				pod := q.Pod
				if pod == "" {
					pod = "n"
				}
				s := score(t, ix, kvindex.Request{Model: "m", Tokens: append(q.Tokens, 1), Pods: []string{pod}})[0]
				if limits[row.Name] == pod {
					info := pods[slices.IndexFunc(pods, func(p kvindex.PodInfo) bool { return p.Pod == pod })]
					if s.CachedTokens > q.Cached || s.State != kvindex.StatePartial || info.Streams[0].Missing == 0 {
						t.Errorf("query %d: %+v, %+v", i, s, info)
					}
				} else if s.CachedTokens != q.Cached || s.State != kvindex.StateLive && q.Pod == "" {
					t.Errorf("query %d: %+v, want %d tokens", i, s, q.Cached)
				}
			}
		})
	}
}

// podOf returns the pod in a topic of the rows.
func podOf(topic string) string {
	topic, _ = strings.CutPrefix(topic, "kv@node:")
	pod, _, _ := strings.Cut(topic, "@")
	return pod
}

// publishing is a publisher that sends one script to all peers and keeps the connections.
func publishing(t *testing.T, script []byte) (endpoint string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = nc.Write(script)
			context.AfterFunc(t.Context(), func() { nc.Close() })
		}
	}()
	return zmtp.Name(ln.Addr())
}
