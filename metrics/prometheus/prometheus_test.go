package prometheus_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"sort"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	client "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/cputime"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/metrics/prometheus"
	"github.com/kvindex/kvindex/tokenize"
)

var ctx = context.Background()

// needs skips a test if a program is missing, or fails it if the program is required.
func needs(t testing.TB, program string) string {
	path, err := exec.LookPath(program)
	if err != nil {
		if os.Getenv("KVINDEX_REQUIRE_PROMETHEUS") != "" {
			t.Fatal(err)
		}
		t.Skip("there is no ", program, ": nothing of this test was run")
	}
	return path
}

// open returns an Indexer with the hooks of the collector, which watches it.
func open(t testing.TB, c *prometheus.Collector, opts ...kvindex.Option) *kvindex.Indexer {
	t.Helper()
	ix, err := kvindex.New(append(opts, kvindex.WithHooks(c.Hooks(kvindex.Hooks{})))...)
	must(t, err)
	t.Cleanup(func() { ix.Close() })
	c.Watch(ix)
	return ix
}

func registry(t testing.TB, c client.Collector) *client.Registry {
	t.Helper()
	r := client.NewPedanticRegistry()
	must(t, r.Register(c))
	return r
}

// scrape returns the page of a collector and its values, by name and labels. The value of a histogram
// is its count.
func scrape(t testing.TB, c client.Collector) (page string, values map[string]float64) {
	t.Helper()
	r := registry(t, c)
	rec := httptest.NewRecorder()
	promhttp.HandlerFor(r, promhttp.HandlerOpts{}).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if rec.Code != 200 {
		t.Fatalf("%d: %s", rec.Code, rec.Body)
	}
	families, err := r.Gather()
	must(t, err)
	values = make(map[string]float64)
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			name := f.GetName() + "{" + strings.Join(labels, ",") + "}"
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				values[name] = m.Counter.GetValue()
				if !strings.HasSuffix(f.GetName(), "_total") {
					t.Errorf("%s is a counter", name)
				}
			case dto.MetricType_GAUGE:
				values[name] = m.Gauge.GetValue()
				if strings.HasSuffix(f.GetName(), "_total") {
					t.Errorf("%s is a gauge", name)
				}
			default:
				values[name] = float64(m.Histogram.GetSampleCount())
			}
		}
	}
	return rec.Body.String(), values
}

// compare compares the values in want. -1 means that the series does not exist.
func compare(t testing.TB, values, want map[string]float64) {
	t.Helper()
	names := make([]string, 0, len(want))
	for name := range want {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		got, ok := values[name]
		if !ok {
			got = -1
		}
		if got != want[name] {
			t.Errorf("%s is %v, want %v", name, got, want[name])
		}
	}
}

// stream delivers messages of one stream of a pod.
type stream struct {
	t          testing.TB
	ix         *kvindex.Indexer
	pod, model string
	seq        uint64
}

func (s *stream) bring(evs ...fakeengine.Event) { s.raw(fakeengine.Payload(1, 0, evs...)) }

func (s *stream) raw(payload []byte) {
	s.t.Helper()
	_, err := s.ix.IngestMessage(kvindex.Message{Pod: s.pod, Model: s.model, Stream: "tcp://" + s.pod, Seq: s.seq, Payload: payload})
	if err != nil && !errors.Is(err, kvindex.ErrMalformed) {
		s.t.Fatal(err)
	}
	s.seq++
}

func score(t testing.TB, ix *kvindex.Indexer, model string, tokens []uint32) *kvindex.Answer {
	t.Helper()
	var a kvindex.Answer
	must(t, ix.ScoreRequest(ctx, &kvindex.Request{Model: model, Tokens: tokens}, &a))
	return &a
}

// TestScript: after a scripted run each figure has the expected value.
func TestScript(t *testing.T) {
	c := prometheus.New(prometheus.WithPods(10), prometheus.WithReferenceNames())
	ix := open(t, c)
	long, short := fakeengine.NewPrompt(1, 16, 8), fakeengine.NewPrompt(2, 16, 3)
	a, b := &stream{t: t, ix: ix, pod: "a", model: "m"}, &stream{t: t, ix: ix, pod: "b", model: "n"}
	a.bring(long.Stored(0, 8))
	b.bring(short.Stored(0, 3))
	a.bring(long.Stored(0, 8)) // announced again
	b.bring(&fakeengine.Removed{Hashes: short.Stored(2, 3).Hashes})
	b.seq--
	b.raw(fakeengine.Payload(1, 0, &fakeengine.Removed{Hashes: short.Stored(2, 3).Hashes})) // a duplicate
	b.bring(&fakeengine.Removed{Hashes: long.Stored(6, 8).Hashes})                          // never stored

	score(t, ix, "m", long.Tokens)                                        // 112 of 128: the engine computes the last block again
	answer := score(t, ix, "n", append(slices.Clone(short.Tokens), 1, 2)) // 32 of 50
	score(t, ix, "n", []uint32{1, 2, 3})                                  // 0 of 3
	score(t, ix, "invented", []uint32{1, 2})
	_, _ = ix.Score(ctx, "a text", "m", nil) // no tokenizer
	ticket, err := ix.Routed(answer, "b", 0)
	must(t, err)
	ix.Observe(ticket, kvindex.Usage{PromptTokens: 50, CachedTokens: 16})

	a.seq += 3 // a gap
	a.bring(&fakeengine.Cleared{})
	b.raw([]byte("no message"))

	page, values := scrape(t, c)
	compare(t, values, map[string]float64{
		"kvindex_scores_total{outcome=scored}":        3,
		"kvindex_scores_total{outcome=unknown_model}": 1,
		"kvindex_scores_total{outcome=no_tokenizer}":  1,
		"kvindex_scores_total{outcome=busy}":          0,
		"kvindex_prompt_tokens_total{model=m}":        128,
		"kvindex_prompt_tokens_total{model=n}":        53,
		"kvindex_prompt_tokens_total{model=}":         2,
		"kvindex_prompt_tokens_total{model=invented}": -1,
		"kvindex_cached_tokens_total{model=m}":        112,
		"kvindex_cached_tokens_total{model=n}":        32,
		"kvindex_predicted_tokens_total{model=m}":     112,
		"kvindex_match_duration_seconds{}":            3,
		"kvindex_render_duration_seconds{}":           0,

		"kvindex_messages_total{}":                           8,
		"kvindex_duplicate_messages_total{}":                 1,
		"kvindex_gaps_total{}":                               1,
		"kvindex_missing_messages_total{}":                   3,
		"kvindex_malformed_messages_total{reason=encoding}":  0,
		"kvindex_malformed_messages_total{reason=truncated}": 0,
		"kvindex_malformed_messages_total{reason=type}":      1,
		"kvindex_losses_total{cause=gap}":                    1,
		"kvindex_losses_total{cause=malformed}":              1,
		"kvindex_losses_total{cause=restart}":                0,
		"kvindex_events_total{kind=stored}":                  3,
		"kvindex_events_total{kind=removed}":                 2,
		"kvindex_events_total{kind=cleared}":                 1,
		"kvindex_stored_blocks_total{}":                      19,
		"kvindex_removed_blocks_total{}":                     3,
		"kvindex_evicted_blocks_total{}":                     0,

		"kvindex_models{}":                              2,
		"kvindex_ranks{}":                               2,
		"kvindex_pods{state=live}":                      1, // a: since the clear its blocks are known
		"kvindex_pods{state=partial}":                   1,
		"kvindex_pods{state=uncertain}":                 0,
		"kvindex_blocks{tier=gpu}":                      0,
		"kvindex_index_budget_bytes{}":                  4 << 30,
		"kvindex_predictions_total{}":                   1,
		"kvindex_live_predictions{}":                    0,
		"kvindex_live_tickets{}":                        0,
		"kvindex_ended_predictions_total{end=observed}": 1,
		"kvindex_ended_tickets_total{end=observed}":     1,
		"kvindex_observed_requests_total{figure=cached,model=n,result=over,state=live}":     1,
		"kvindex_observed_tokens_total{figure=predicted,model=n,result=over,state=live}":    16,
		"kvindex_observed_requests_total{figure=predicted,model=n,result=exact,state=live}": 0,
		"kvindex_observed_requests_total{figure=predicted,model=m,result=exact,state=live}": -1,

		"kvindex_pods_without_series{}":                       0,
		"kvindex_pod_state{model=m,pod=a,state=live}":         1,
		"kvindex_pod_state{model=m,pod=a,state=partial}":      -1,
		"kvindex_pod_messages_total{model=m,pod=a}":           3,
		"kvindex_pod_messages_total{model=n,pod=b}":           3,
		"kvindex_pod_malformed_messages_total{model=n,pod=b}": 1,
		"kvindex_pod_missing_messages_total{model=m,pod=a}":   3,
		"kvindex_pod_stored_blocks_total{model=m,pod=a}":      16,
		"kvindex_pod_removed_blocks_total{model=n,pod=b}":     3,
		"kvindex_pod_not_held_removals_total{model=n,pod=b}":  2,
		"kvindex_pod_unrecognized_parts{model=n,pod=b}":       0,
		"kvindex_pod_unrecognized_parts{model=m,pod=a}":       0,
		"kvindex_tier_losses_total{}":                         0,
		"kvindex_pod_ranks{model=m,pod=a}":                    1,

		"kvcache_index_admissions_total{}":             19,
		"kvcache_index_evictions_total{}":              3,
		"kvcache_index_lookup_requests_total{}":        3,
		"kvcache_index_hits_total{}":                   2,
		"kvcache_index_misses_total{}":                 1,
		"kvcache_index_max_pod_hit_count_total{}":      9,
		"kvcache_index_lookup_latency_seconds{}":       3,
		"kvcache_index_lookup_duration_seconds{}":      3,
		"llm_d_epp_kv_cache_index_lookup_hits_total{}": 9,
		"kvcache_zmq_events_processed_total{}":         6,
		"kvcache_zmq_missed_events_total{}":            3,
		"aibrix_kvcache_zmq_missed_events_total{}":     3,
		"kvcache_kvevents_active_subscribers{}":        -1, // nothing is watched
		"kvindex_transport_messages_total{}":           -1,
		"kvindex_tokenizers{}":                         -1,
	})
	if n := strings.Count(page, "\nkvcache_index_evictions_total "); n != 1 {
		t.Errorf("kvcache_index_evictions_total is there %d times", n)
	}
	checkPage(t, page)
}

// checkPage lets promtool check the page: its syntax, and the rules for names.
func checkPage(t *testing.T, page string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Log("there is no promtool: the page was not checked")
		return
	}
	// The rules do not apply to names of other systems.
	var ours []string
	for _, line := range strings.Split(page, "\n") {
		if !strings.Contains(line, "kvcache_") && !strings.Contains(line, "kv_cache_") {
			ours = append(ours, line)
		}
	}
	for _, text := range []string{page, strings.Join(ours, "\n")} {
		cmd := exec.Command(path, "check", "metrics")
		cmd.Stdin = strings.NewReader(text)
		out, err := cmd.CombinedOutput()
		strict := text != page
		if exit := new(exec.ExitError); errors.As(err, &exit) && exit.ExitCode() == 3 && !strict {
			err = nil // the linter
		}
		if err != nil || strict && len(out) > 0 {
			t.Errorf("promtool check metrics: %v\n%s", err, out)
		}
	}
}

// TestWithoutHooks: without hooks, the series that need them are absent, and not 0.
func TestWithoutHooks(t *testing.T) {
	c := prometheus.New(prometheus.WithReferenceNames())
	_, values := scrape(t, c)
	if len(values) > 0 {
		t.Errorf("%v of nothing", values)
	}
	ix, err := kvindex.New()
	must(t, err)
	defer ix.Close()
	c.Watch(ix)
	(&stream{t: t, ix: ix, pod: "a", model: "m"}).bring(fakeengine.NewPrompt(1, 16, 2).Stored(0, 2))
	score(t, ix, "m", fakeengine.NewPrompt(1, 16, 3).Tokens)
	_, values = scrape(t, c)
	compare(t, values, map[string]float64{
		"kvindex_prompt_tokens_total{model=}":         48,
		"kvindex_cached_tokens_total{model=}":         32,
		"kvindex_predicted_tokens_total{model=}":      -1,
		"kvindex_match_duration_seconds{}":            -1,
		"kvindex_losses_total{cause=gap}":             -1,
		"kvcache_index_lookup_requests_total{}":       -1,
		"kvcache_index_lookup_latency_seconds{}":      -1,
		"kvcache_index_admissions_total{}":            2,
		"kvindex_pods_without_series{}":               -1, // no series by pod
		"kvindex_pod_state{model=m,pod=a,state=live}": -1,
	})
}

// TestOwnHooks: the hooks of the host are called.
func TestOwnHooks(t *testing.T) {
	c := prometheus.New()
	var told []string
	ix, err := kvindex.New(kvindex.WithHooks(c.Hooks(kvindex.Hooks{
		Lost:   func(l kvindex.Loss) { told = append(told, l.Cause) },
		State:  func(pod, model string, from, to kvindex.State) { told = append(told, to.String()) },
		Scored: func(_ context.Context, s kvindex.ScoreReport) { told = append(told, s.Outcome) },
	})))
	must(t, err)
	defer ix.Close()
	s := &stream{t: t, ix: ix, pod: "a", model: "m"}
	s.bring()
	s.raw([]byte("no message"))
	score(t, ix, "m", []uint32{1})
	if want := []string{"live", "malformed", "partial", "scored"}; !slices.Equal(told, want) {
		t.Errorf("hooks called: %q, want %q", told, want)
	}
}

// TestHostileNames: any bytes can be the name of a pod or a model, and different names have different
// labels.
func TestHostileNames(t *testing.T) {
	c := prometheus.New(prometheus.WithPods(100))
	ix := open(t, c)
	names := []string{"a\xff", "a\xfe", "a\uFFFD", "a\uFFFD~2", "\n", `"`, `\`, `\n`, "}{", "a\nkvindex_models 7", strings.Repeat("x", 1000), "\x00", "a b", "é"}
	for _, pod := range names {
		for _, model := range names[:4] {
			(&stream{t: t, ix: ix, pod: pod, model: model}).bring()
		}
	}
	for _, model := range names {
		score(t, ix, model, []uint32{1})
	}
	page, values := scrape(t, c)
	checkPage(t, page)
	n, tokens := 0, 0.0
	for name, v := range values {
		if strings.HasPrefix(name, "kvindex_pod_messages_total{") {
			n++
		}
		if strings.HasPrefix(name, "kvindex_prompt_tokens_total{") {
			tokens += v
		}
	}
	if want := 4 * len(names); n != want || values["kvindex_models{}"] != 4 {
		t.Errorf("%d pods and models have series, want %d", n, want)
	}
	if want := float64(len(names)); tokens != want {
		t.Errorf("%v tokens, want %v", tokens, want)
	}
	compare(t, values, map[string]float64{
		"kvindex_prompt_tokens_total{model=a\uFFFD}":     1,
		"kvindex_prompt_tokens_total{model=a\uFFFD~2}":   1,
		"kvindex_prompt_tokens_total{model=a\uFFFD~3}":   1,
		"kvindex_prompt_tokens_total{model=a\uFFFD~2~2}": 1,
	})
}

// TestManyModels: models beyond the bound are added up, and no token is lost.
func TestManyModels(t *testing.T) {
	c := prometheus.New(prometheus.WithPods(1))
	ix := open(t, c)
	const models = 300
	for i := range models {
		name := fmt.Sprintf("m%d", i)
		(&stream{t: t, ix: ix, pod: "a" + name, model: name}).bring()
		score(t, ix, name, []uint32{1, 2})
	}
	_, values := scrape(t, c)
	n, tokens := 0, 0.0
	for name, v := range values {
		if strings.HasPrefix(name, "kvindex_prompt_tokens_total{") {
			n, tokens = n+1, tokens+v
		}
	}
	if n != 257 || tokens != 2*models {
		t.Errorf("%d models have %v tokens", n, tokens)
	}
}

// TestPodsBeyondTheBound: a pod with series keeps them until it is removed, and no further pod has any.
func TestPodsBeyondTheBound(t *testing.T) {
	c := prometheus.New(prometheus.WithPods(2))
	ix := open(t, c)
	has := func(want ...string) {
		t.Helper()
		_, values := scrape(t, c)
		var got []string
		for name := range values {
			if pod, ok := strings.CutPrefix(name, "kvindex_pod_ranks{model=m,pod="); ok {
				got = append(got, strings.TrimSuffix(pod, "}"))
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%q have series, want %q", got, want)
		}
		known := ix.Pods(nil)
		if got, want := values["kvindex_pods_without_series{}"], float64(len(known)-len(want)); got != want {
			t.Errorf("%v pods without series, want %v", got, want)
		}
	}
	for _, pod := range []string{"c", "d"} {
		(&stream{t: t, ix: ix, pod: pod, model: "m"}).bring()
	}
	has("c", "d")
	for _, pod := range []string{"a", "b", "e"} {
		(&stream{t: t, ix: ix, pod: pod, model: "m"}).bring()
	}
	has("c", "d")
	must(t, ix.RemovePod("c"))
	has("a", "d")
	(&stream{t: t, ix: ix, pod: "c", model: "m"}).bring()
	has("a", "d")
}

// TestNoCounterFalls: the counts of a stream stay when the stream ends.
func TestNoCounterFalls(t *testing.T) {
	c := prometheus.New(prometheus.WithPods(2))
	ix := open(t, c)
	bring := func(stream string, seq uint64, rank int) {
		t.Helper()
		payload := fakeengine.Payload(1, rank, fakeengine.NewPrompt(uint64(rank), 16, 4).Stored(0, 4))
		if _, err := ix.IngestMessage(kvindex.Message{Pod: "a", Model: "m", Stream: stream, Seq: seq, Payload: payload}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(messages, stored float64) {
		t.Helper()
		_, values := scrape(t, c)
		compare(t, values, map[string]float64{
			"kvindex_pod_messages_total{model=m,pod=a}":      messages,
			"kvindex_pod_stored_blocks_total{model=m,pod=a}": stored,
		})
	}
	for seq := range uint64(5) {
		bring("one", seq, 0)
		bring("two", seq, 1)
	}
	want(10, 40)
	remove := func() {
		t.Helper()
		must(t, ix.Sink().RemoveStream("a", "m", "one"))
	}
	remove()
	want(10, 40)
	for seq := range uint64(8) { // at the next reading the counter is higher than before
		bring("one", seq, 0)
	}
	want(18, 72)
	remove()
	bring("one", 0, 0) // no reading came while the stream was away
	want(19, 76)
}

// TestTransports: Subscribers, Fleets, Pools and tokenizers are added up.
func TestTransports(t *testing.T) {
	c := prometheus.New(prometheus.WithReferenceNames())
	ix := open(t, c)
	for range 2 {
		s, err := events.NewSubscriber(ix.Sink(), events.SubscriberConfig{Endpoint: "tcp://127.0.0.1:1", Pod: "a", Model: "m"})
		must(t, err)
		c.WatchSubscriber(s)
		f, err := events.NewFleet(ix.Sink(), events.FleetConfig{})
		must(t, err)
		must(t, f.Set("x\xff", []events.Pod{{ID: "f", Model: "m", Host: "127.0.0.1", Port: 1, Ranks: 3}}))
		c.WatchFleet(f)
		p, err := events.NewPool(ix.Sink(), events.PoolConfig{Concurrency: 4})
		must(t, err)
		must(t, p.Offer(ctx, events.Message{Pod: "p", Model: "m", Stream: "s", Payload: fakeengine.Payload(1, 0)}))
		must(t, p.Close(ctx))
		c.WatchPool(p)
		texts, err := tokenize.NewPool(tokenize.PoolConfig{Find: func(context.Context, string) (string, error) { return "", os.ErrNotExist }})
		must(t, err)
		defer texts.Close()
		_ = texts.Preload(ctx, "none")
		c.WatchTokenizers(texts)
	}
	page, values := scrape(t, c)
	checkPage(t, page)
	compare(t, values, map[string]float64{
		"kvindex_transport_subscribers{}":            2, // the Fleets do not run
		"kvindex_transport_messages_total{}":         0,
		"kvindex_fleet_links{link=none}":             0,
		"kvindex_fleet_links{link=live}":             0,
		"kvindex_fleet_pods{source=x\uFFFD}":         2,
		"kvindex_fleet_pods{source=}":                0,
		"kvindex_pool_delivered_messages_total{}":    2,
		"kvindex_pool_messages{}":                    0,
		"kvindex_tokenizer_failures_total{}":         2,
		"kvindex_tokenizers{}":                       0,
		"kvindex_texts{state=waiting}":               0,
		"kvcache_kvevents_active_subscribers{}":      2,
		"kvcache_zmq_replay_success_total{}":         0,
		"aibrix_kvcache_zmq_replay_failures_total{}": 0,
		"llm_d_epp_kv_cache_events_pool_capacity{}":  8,
	})
}

// TestNativeHistograms: the durations have both forms.
func TestNativeHistograms(t *testing.T) {
	c := prometheus.New(prometheus.WithNativeHistograms())
	ix := open(t, c)
	score(t, ix, "m", []uint32{1, 2, 3})
	families, err := registry(t, c).Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() == "kvindex_match_duration_seconds" {
			h := f.Metric[0].Histogram
			t.Logf("%d classic buckets, schema %d", len(h.Bucket), h.GetSchema())
			if len(h.Bucket) == 0 || h.Schema == nil {
				t.Error("a form is missing")
			}
		}
	}
}

// FuzzNames: no name makes the page invalid.
func FuzzNames(f *testing.F) {
	f.Add("a\xff", "a\xfe")
	f.Fuzz(func(t *testing.T, a, b string) {
		c := prometheus.New(prometheus.WithPods(4))
		ix := open(t, c)
		pods := map[string]bool{}
		for _, name := range []string{a, b} {
			if err := ix.Ingest(name, name, fakeengine.Payload(1, 0)); err == nil {
				pods[name] = true
			}
		}
		page, values := scrape(t, c)
		n := 0
		for name := range values {
			if strings.HasPrefix(name, "kvindex_pod_ranks{") {
				n++
			}
		}
		if n != len(pods) {
			t.Errorf("%d of %d pods have series\n%s", n, len(pods), page)
		}
	})
}

// BenchmarkScore compares a score with all metrics on with one without.
func BenchmarkScore(b *testing.B) {
	for _, on := range []bool{false, true} {
		b.Run(fmt.Sprintf("metrics=%v", on), func(b *testing.B) {
			c := prometheus.New(prometheus.WithPods(1000), prometheus.WithReferenceNames(), prometheus.WithNativeHistograms())
			var opts []kvindex.Option
			if on {
				opts = append(opts, kvindex.WithHooks(c.Hooks(kvindex.Hooks{})))
			}
			ix, err := kvindex.New(opts...)
			must(b, err)
			defer ix.Close()
			prompt := fakeengine.NewPrompt(1, 16, 64)
			for i := range 8 {
				(&stream{t: b, ix: ix, pod: fmt.Sprint(i), model: "m"}).bring(prompt.Stored(0, 64))
			}
			var a kvindex.Answer
			r := kvindex.Request{Model: "m", Tokens: prompt.Tokens, Top: 4}
			b.ReportAllocs()
			for b.Loop() {
				must(b, ix.ScoreRequest(ctx, &r, &a))
			}
		})
	}
}

// slowIndex is an index whose descriptions block, once it is set, until it is released.
type slowIndex struct {
	index.Index
	set           atomic.Bool
	entered, free chan struct{}
}

func (h *slowIndex) wait() {
	if !h.set.Load() {
		return
	}
	select {
	case h.entered <- struct{}{}:
	default:
	}
	<-h.free
}

func (h *slowIndex) Describe(dst []index.SourceInfo) []index.SourceInfo {
	h.wait()
	return dst
}

func (h *slowIndex) DescribeSource(index.Source) (info index.SourceInfo, ok bool) {
	h.wait()
	return info, false
}

func (h *slowIndex) MemoryUsage() index.MemoryUsage {
	h.wait()
	return index.MemoryUsage{}
}

// TestScoreBesideAScrape: a scrape that blocks does not delay a score, a prediction or a message.
func TestScoreBesideAScrape(t *testing.T) {
	mem, err := index.NewMemory(index.MemoryConfig{})
	must(t, err)
	h := &slowIndex{Index: mem, entered: make(chan struct{}, 1), free: make(chan struct{})}
	c := prometheus.New(prometheus.WithPods(10))
	ix := open(t, c, kvindex.WithIndex(h))
	p := fakeengine.NewPrompt(1, 16, 4)
	s := &stream{t: t, ix: ix, pod: "a", model: "m"}
	s.bring(p.Stored(0, 2))
	done := make(chan struct{})
	h.set.Store(true)
	go func() {
		defer close(done)
		if _, err := registry(t, c).Gather(); err != nil {
			t.Error(err)
		}
	}()
	<-h.entered
	s.bring(p.Stored(2, 4))
	for _, model := range []string{"m", "invented"} {
		a := score(t, ix, model, p.Tokens)
		if model == "invented" {
			continue
		}
		ticket, err := ix.Routed(a, "a", 0)
		must(t, err)
		ix.Observe(ticket, kvindex.Usage{PromptTokens: 64, CachedTokens: 48})
	}
	select {
	case <-done:
		t.Error("the scrape did not hang")
	default:
	}
	close(h.free)
	<-done
}

// BenchmarkScoreBesideScrapes measures scores during scrapes of 1,000 pods with series, ten a second.
func BenchmarkScoreBesideScrapes(b *testing.B) {
	ix, c := manyPods(b, 1000)
	r := registry(b, c)
	prompt := fakeengine.NewPrompt(1, 16, 64)
	request := kvindex.Request{Model: "m", Tokens: prompt.Tokens, Top: 4}
	for _, on := range []bool{false, true} {
		b.Run(fmt.Sprintf("scrapes=%v", on), func(b *testing.B) {
			stop, done := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				tick := time.NewTicker(100 * time.Millisecond)
				defer tick.Stop()
				for on {
					if _, err := r.Gather(); err != nil {
						b.Error(err)
					}
					select {
					case <-stop:
						return
					case <-tick.C:
					}
				}
			}()
			var a kvindex.Answer
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				must(b, ix.ScoreRequest(ctx, &request, &a))
				took = append(took, time.Since(began))
			}
			close(stop)
			<-done
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "p50-us")
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1000, "p99-us")
		})
	}
}

// BenchmarkScrape scrapes many pods, without and with series by pod.
func BenchmarkScrape(b *testing.B) {
	for _, pods := range []int{1000, 65536} {
		ix, c := manyPods(b, pods)
		for _, most := range []int{0, 1000} {
			b.Run(fmt.Sprintf("pods=%d/series=%d", pods, most), func(b *testing.B) {
				c = prometheus.New(prometheus.WithPods(most))
				c.Watch(ix)
				r := client.NewRegistry()
				r.MustRegister(c)
				h := promhttp.HandlerFor(r, promhttp.HandlerOpts{DisableCompression: true})
				h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics", nil)) // the series are made
				b.ReportAllocs()
				took := cputime.Of(func() {
					for b.Loop() {
						w := httptest.NewRecorder()
						w.Body = nil
						h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
					}
				})
				b.ReportMetric(float64(took.Microseconds())/float64(b.N)/1000, "cpu-ms/op")
			})
		}
	}
}

func manyPods(t testing.TB, pods int) (*kvindex.Indexer, *prometheus.Collector) {
	c := prometheus.New(prometheus.WithPods(1000))
	ix := open(t, c)
	payload := fakeengine.Payload(1, 0, fakeengine.NewPrompt(1, 16, 2).Stored(0, 2))
	for i := range pods {
		must(t, ix.Ingest(fmt.Sprintf("pod-%05d", i), "m", payload))
	}
	return ix, c
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
