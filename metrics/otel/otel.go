// Package otel exports what a kvindex.Indexer, and the Subscribers, Fleets, Pools and tokenizers
// beside it, count and hold, by OpenTelemetry: as observable instruments of the host's
// MeterProvider, and with a span for each score.
//
//	e, err := otel.New(meterProvider, tracerProvider)
//	...
//	ix, err := kvindex.New(kvindex.WithHooks(e.Hooks(kvindex.Hooks{})))
//	...
//	e.Watch(ix)
//
// The instruments are the series of docs/prometheus.md: kvindex_scores_total there is
// kvindex.scores here. No attribute has text or tokens of a prompt, or its salt.
package otel

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/metrics/internal/figures"
	"github.com/kvindex/kvindex/tokenize"
)

const scope = "github.com/kvindex/kvindex/metrics/otel"

// An Option configures New.
type Option func(*config)

type config struct{ pods int }

// WithPods adds series by pod, some 15 for each pod and model, for at most so many of these; a
// number below 1 is 0. A pod that has series keeps them until it is forgotten.
// kvindex.pods_without_series counts the pods beyond the bound.
func WithPods(most int) Option { return func(c *config) { c.pods = max(most, 0) } }

// An Exporter exports one Indexer and what is around it. It is made by New. All methods are safe
// for concurrent use. Labels of hostile names are as in metrics/prometheus.
type Exporter struct {
	set         *figures.Set
	tracer      trace.Tracer               // nil: no spans
	durations   []metric.Float64Histogram  // nil: no metrics
	instruments []metric.Float64Observable // by Metric.ID
	keys        [][]attribute.Key          // of the labels, by Metric.ID
	callback    metric.Registration
}

// New returns an Exporter with instruments of a MeterProvider and spans of a TracerProvider.
// Either may be nil. Errors are those of the MeterProvider.
func New(meters metric.MeterProvider, tracers trace.TracerProvider, opts ...Option) (*Exporter, error) {
	var cfg config
	for _, o := range opts {
		o(&cfg)
	}
	e := &Exporter{set: figures.New(cfg.pods)}
	e.set.Scored = e.scored
	if tracers != nil {
		e.tracer = tracers.Tracer(scope)
	}
	if meters == nil {
		return e, nil
	}
	if err := e.instrument(meters.Meter(scope)); err != nil {
		return nil, fmt.Errorf("otel: %w", err)
	}
	return e, nil
}

func (e *Exporter) instrument(meter metric.Meter) error {
	var errs []error
	var all []metric.Observable
	for _, m := range figures.All {
		var i metric.Float64Observable
		var err error
		if name, unit := nameOf(m.Name); m.Counter {
			i, err = meter.Float64ObservableCounter(name, metric.WithDescription(m.Help), metric.WithUnit(unit))
		} else {
			i, err = meter.Float64ObservableGauge(name, metric.WithDescription(m.Help), metric.WithUnit(unit))
		}
		errs = append(errs, err)
		keys := make([]attribute.Key, len(m.Labels))
		for k, label := range m.Labels {
			keys[k] = attribute.Key(label)
		}
		all, e.instruments, e.keys = append(all, i), append(e.instruments, i), append(e.keys, keys)
	}
	for _, d := range figures.Durations {
		name, unit := nameOf(d.Name)
		h, err := meter.Float64Histogram(name, metric.WithDescription(d.Help), metric.WithUnit(unit), metric.WithExplicitBucketBoundaries(figures.Bounds...))
		errs = append(errs, err)
		e.durations = append(e.durations, h)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	var err error
	e.callback, err = meter.RegisterCallback(e.observe, all...)
	return err
}

// nameOf returns the name and the unit of an instrument.
func nameOf(name string) (string, string) {
	name = "kvindex." + strings.TrimSuffix(strings.TrimPrefix(name, "kvindex_"), "_total")
	switch {
	case strings.HasSuffix(name, "_seconds"):
		return name, "s"
	case strings.HasSuffix(name, "_bytes"):
		return name, "By"
	}
	return name, ""
}

func (e *Exporter) observe(_ context.Context, o metric.Observer) error {
	var labelled [figures.MaxLabels]attribute.KeyValue
	e.set.Read(func(m *figures.Metric, value float64, labels []string) {
		attrs := labelled[:len(labels)]
		for i, k := range e.keys[m.ID] {
			attrs[i] = k.String(labels[i])
		}
		o.ObserveFloat64(e.instruments[m.ID], value, metric.WithAttributeSet(attribute.NewSet(attrs...)))
	})
	return nil
}

// Close ends the metrics. Spans end with the Hooks.
func (e *Exporter) Close() error {
	if e.callback == nil {
		return nil
	}
	return e.callback.Unregister()
}

// Hooks returns hooks for kvindex.WithHooks. They count scores and losses, make spans, and call
// the hooks of the host.
func (e *Exporter) Hooks(own kvindex.Hooks) kvindex.Hooks { return e.set.Hooks(own) }

// Watch exports the figures of an Indexer. A later call replaces it.
func (e *Exporter) Watch(ix *kvindex.Indexer) { e.set.Watch(ix) }

// WatchSubscriber adds the counts of a Subscriber. Those of a Fleet are added by WatchFleet.
func (e *Exporter) WatchSubscriber(s *events.Subscriber) { e.set.WatchSubscriber(s) }

// WatchFleet adds the links and pods of a Fleet, and the counts of its Subscribers.
func (e *Exporter) WatchFleet(f *events.Fleet) { e.set.WatchFleet(f) }

// WatchPool adds the figures of a Pool of messages.
func (e *Exporter) WatchPool(p *events.Pool) { e.set.WatchPool(p) }

// WatchTokenizers adds the figures of a Pool of tokenizers, such as that of kvindex.Models.
func (e *Exporter) WatchTokenizers(p *tokenize.Pool) { e.set.WatchTokenizers(p) }

const maxName = 256 // bytes of the name of a model in a span, which clients choose

// scored records the durations of a score, and its span: kvindex.score, a child of the span in
// the context of ScoreRequest. An error is reported by its outcome alone, because the text of one
// may quote a template, which quotes the chat.
//
// gen_ai.request.model, gen_ai.usage.input_tokens and gen_ai.usage.cache_read.input_tokens are
// those of OpenTelemetry's semantic conventions for generative AI. The last is what the best pod
// has cached, before any engine has answered.
func (e *Exporter) scored(ctx context.Context, s kvindex.ScoreReport) {
	for i, d := range [...]time.Duration{s.Render, s.Tokenize, s.Match} {
		if d > 0 && e.durations != nil {
			e.durations[i].Record(ctx, d.Seconds())
		}
	}
	if e.tracer == nil {
		return
	}
	_, span := e.tracer.Start(ctx, "kvindex.score", trace.WithTimestamp(s.Began))
	defer span.End()
	if !span.IsRecording() {
		return
	}
	attrs := append(make([]attribute.KeyValue, 0, 10), // there are at most ten
		attribute.String("kvindex.outcome", s.Outcome),
		attribute.Float64("kvindex.render_seconds", s.Render.Seconds()),
		attribute.Float64("kvindex.tokenize_seconds", s.Tokenize.Seconds()),
		attribute.Float64("kvindex.match_seconds", s.Match.Seconds()),
		attribute.String("gen_ai.request.model", clean(s.Model)),
	)
	if s.Adapter != "" {
		attrs = append(attrs, attribute.String("kvindex.adapter", clean(s.Adapter)))
	}
	if s.Err != nil {
		span.SetStatus(codes.Error, s.Outcome)
	} else {
		attrs = append(attrs,
			attribute.Int("gen_ai.usage.input_tokens", s.PromptTokens),
			attribute.Int("gen_ai.usage.cache_read.input_tokens", s.CachedTokens),
			attribute.Int("kvindex.predicted_tokens", s.PredictedTokens),
			attribute.Bool("kvindex.degraded", s.Degraded != nil),
		)
	}
	span.SetAttributes(attrs...)
}

// clean converts a name to valid UTF-8 of at most maxName bytes.
func clean(name string) string {
	return strings.ToValidUTF8(name[:min(len(name), maxName)], "\uFFFD")
}
