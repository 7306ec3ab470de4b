package otel_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/metrics/otel"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// bytesOf is a tokenizer with a token for each byte.
type bytesOf struct{}

func (bytesOf) Encode(_ context.Context, dst []uint32, text string, _ bool) ([]uint32, error) {
	for _, b := range []byte(text) {
		dst = append(dst, uint32(b))
	}
	return dst, nil
}

func open(t testing.TB, e *otel.Exporter, opts ...kvindex.Option) *kvindex.Indexer {
	t.Helper()
	ix, err := kvindex.New(append(opts, kvindex.WithHooks(e.Hooks(kvindex.Hooks{})))...)
	must(t, err)
	t.Cleanup(func() { ix.Close() })
	e.Watch(ix)
	return ix
}

// TestMetrics: after a scripted run the instruments have the expected values and kinds.
func TestMetrics(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	e, err := otel.New(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), nil, otel.WithPods(1))
	must(t, err)
	ix := open(t, e)
	fleet, err := events.NewFleet(ix.Sink(), events.FleetConfig{})
	must(t, err)
	e.WatchFleet(fleet)
	prompt := fakeengine.NewPrompt(1, 16, 4)
	for _, pod := range []string{"a\xff", "b"} {
		must(t, ix.Ingest(pod, "m", fakeengine.Payload(1, 0, prompt.Stored(0, 4))))
	}
	var a kvindex.Answer
	for range 2 {
		must(t, ix.ScoreRequest(context.Background(), &kvindex.Request{Model: "m", Tokens: prompt.Tokens}, &a))
	}
	for range 2 { // a second reading has the same values
		values := read(t, reader)
		for name, want := range map[string]float64{
			"counter kvindex.scores [outcome=scored]":                  2,
			"counter kvindex.prompt_tokens [model=m]":                  128,
			"counter kvindex.cached_tokens [model=m]":                  96,
			"counter kvindex.messages []":                              2,
			"gauge kvindex.blocks [tier=gpu]":                          8,
			"gauge kvindex.index_budget_bytes []":                      4 << 30,
			"gauge kvindex.fleet_links [link=live]":                    0,
			"gauge kvindex.pods_without_series []":                     1,
			"counter kvindex.pod_messages [model=m pod=a\uFFFD]":       1,
			"gauge kvindex.pod_state [model=m pod=a\uFFFD state=live]": 1,
			"histogram kvindex.match_duration_seconds []":              2,
		} {
			if got, ok := values[name]; !ok || got != want {
				t.Errorf("%s is %v, %v, want %v", name, got, ok, want)
			}
		}
		for name := range values {
			if strings.Contains(name, "pod=b") || strings.Contains(name, "kvindex.tokenizer") || strings.Contains(name, "histogram kvindex.render") {
				t.Errorf("%s is there", name)
			}
		}
	}
	must(t, e.Close())
	if values := read(t, reader); len(values) > 1 { // only the histogram stays
		t.Errorf("after Close there is %v", values)
	}
}

// read returns the values of all instruments, by kind, name and attributes. The value of a histogram
// is its count.
func read(t *testing.T, r sdkmetric.Reader) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	must(t, r.Collect(context.Background(), &all))
	values := make(map[string]float64)
	for _, s := range all.ScopeMetrics {
		for _, m := range s.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[float64]:
				if !d.IsMonotonic || d.Temporality != metricdata.CumulativeTemporality {
					t.Errorf("%s is no counter", m.Name)
				}
				for _, p := range d.DataPoints {
					values[fmt.Sprint("counter ", m.Name, " ", attrs(p.Attributes.ToSlice()))] = p.Value
				}
			case metricdata.Gauge[float64]:
				for _, p := range d.DataPoints {
					values[fmt.Sprint("gauge ", m.Name, " ", attrs(p.Attributes.ToSlice()))] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					values[fmt.Sprint("histogram ", m.Name, " ", attrs(p.Attributes.ToSlice()))] = float64(p.Count)
				}
			default:
				t.Errorf("%s is a %T", m.Name, d)
			}
		}
	}
	return values
}

// TestSpans: a span for each score, under that of the host, with nothing of the prompt.
func TestSpans(t *testing.T) {
	template, err := chat.New("{% for m in messages %}{% if 'refuse' in m.content %}{{ raise_exception('no: ' + m.content) }}{% endif %}{{ m.content }}{% endfor %}", nil, chat.Options{})
	must(t, err)
	spans := tracetest.NewInMemoryExporter()
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	e, err := otel.New(nil, tracers)
	must(t, err)
	ix := open(t, e, kvindex.WithModel("m", kvindex.Model{Tokenizer: bytesOf{}, Chat: template}))
	must(t, ix.Ingest("a", "m", fakeengine.Payload(1, 0, fakeengine.NewPrompt(1, 16, 4).Stored(0, 4))))
	requests := []kvindex.Request{
		{Model: "m", Tokens: fakeengine.NewPrompt(1, 16, 4).Tokens},
		{Model: "m", Prompt: "a SECRET prompt", Salt: "SECRET salt"},
		{Body: []byte(`{"model": "m", "messages": [{"role": "user", "content": "SECRET words"}]}`)},
		{Body: []byte(`{"model": "m", "messages": [{"role": "user", "content": "refuse SECRET words"}]}`)},
		{Body: []byte(`{"model": "m", "messages": [{"role": "user", "content": 7.SECRET}]}`)},
		{Model: "invented" + strings.Repeat("\xff", 1000), Prompt: "SECRET"},
	}
	outcomes := []string{"scored", "scored", "scored", "refused", "bad_request", "unknown_model"}
	for i := range requests {
		spans.Reset()
		ctx, parent := tracers.Tracer("host").Start(context.Background(), "host")
		var a kvindex.Answer
		before := time.Now()
		err := ix.ScoreRequest(ctx, &requests[i], &a)
		parent.End()
		ended := spans.GetSpans()
		if len(ended) != 2 {
			t.Fatalf("%d spans", len(ended))
		}
		s := ended[0]
		if s.Name != "kvindex.score" || s.Parent.SpanID() != parent.SpanContext().SpanID() || s.SpanContext.TraceID() != parent.SpanContext().TraceID() {
			t.Errorf("span %q of parent %v in %v", s.Name, s.Parent.SpanID(), s.SpanContext.TraceID())
		}
		steps := 0.0
		for _, kv := range s.Attributes {
			if strings.HasSuffix(string(kv.Key), "_seconds") {
				steps += kv.Value.AsFloat64()
			}
		}
		if s.StartTime.Before(before) || s.EndTime.Sub(s.StartTime).Seconds() < steps {
			t.Errorf("from %v to %v, with steps of %v s; called at %v", s.StartTime, s.EndTime, steps, before)
		}
		if (s.Status.Code == codes.Error) != (err != nil) {
			t.Errorf("status %v of error %v", s.Status, err)
		}
		all := fmt.Sprint(attrs(s.Attributes))
		if !strings.Contains(all, "kvindex.outcome="+outcomes[i]) || !strings.Contains(all, "gen_ai.request.model=") {
			t.Errorf("request %d: %s", i, all)
		}
		if i == 0 && (!strings.Contains(all, "gen_ai.usage.input_tokens=64") || !strings.Contains(all, "gen_ai.usage.cache_read.input_tokens=48")) {
			t.Errorf("tokens: %s", all)
		}
		if told := fmt.Sprintf("%+v %+v %+v", s.Attributes, s.Events, s.Status); strings.Contains(told, "SECRET") || len(told) > 4000 {
			t.Errorf("request %d shows its prompt: %.4000s", i, told)
		}
	}
}

// BenchmarkScore compares a score with metrics and spans, sampled or not, with a score without them.
func BenchmarkScore(b *testing.B) {
	for _, spans := range []string{"none", "dropped", "sampled"} {
		b.Run("spans="+spans, func(b *testing.B) {
			var opts []kvindex.Option
			if spans != "none" {
				sampler := sdktrace.NeverSample()
				if spans == "sampled" {
					sampler = sdktrace.AlwaysSample()
				}
				e, err := otel.New(sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())), sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler)))
				must(b, err)
				opts = append(opts, kvindex.WithHooks(e.Hooks(kvindex.Hooks{})))
			}
			ix, err := kvindex.New(opts...)
			must(b, err)
			defer ix.Close()
			prompt := fakeengine.NewPrompt(1, 16, 64)
			must(b, ix.Ingest("a", "m", fakeengine.Payload(1, 0, prompt.Stored(0, 64))))
			var a kvindex.Answer
			b.ReportAllocs()
			for b.Loop() {
				must(b, ix.ScoreRequest(context.Background(), &kvindex.Request{Model: "m", Tokens: prompt.Tokens}, &a))
			}
		})
	}
}

// attrs returns attributes as texts.
func attrs(list []attribute.KeyValue) (texts []string) {
	for _, kv := range list {
		texts = append(texts, string(kv.Key)+"="+kv.Value.Emit())
	}
	return texts
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
