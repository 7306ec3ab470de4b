// Package prometheus exports what a kvindex.Indexer, and the Subscribers, Fleets, Pools and
// tokenizers beside it, count and hold: as a collector for a Prometheus registry of the host.
//
//	c := prometheus.New()
//	ix, err := kvindex.New(kvindex.WithHooks(c.Hooks(kvindex.Hooks{})))
//	...
//	c.Watch(ix)
//	c.WatchFleet(fleet)
//	registry.MustRegister(c)
//
// docs/prometheus.md lists the series. The file alerts.yaml beside this one has alerts, and
// metrics/grafana a dashboard.
package prometheus

import (
	"context"
	"slices"
	"strings"
	"time"

	client "github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/metrics/internal/figures"
	"github.com/kvindex/kvindex/tokenize"
)

// An Option configures New.
type Option func(*config)

type config struct {
	pods              int
	native, reference bool
}

// WithPods adds series by pod, some 15 for each pod and model, for at most so many of these; a
// number below 1 is 0. A pod that has series keeps them until it is forgotten. A pod beyond the
// bound has none, and gets them when others have gone: kvindex_pods_without_series counts such
// pods.
func WithPods(most int) Option { return func(c *config) { c.pods = max(most, 0) } }

// WithNativeHistograms makes the durations native histograms, beside the classic buckets.
// Prometheus needs the feature flag native-histograms for them, and the protobuf format.
func WithNativeHistograms() Option { return func(c *config) { c.native = true } }

// WithReferenceNames adds series by the names of llm-d and AIBrix, so that their dashboards
// work. docs/dashboards.md has the meaning of each here.
func WithReferenceNames() Option { return func(c *config) { c.reference = true } }

// A Collector is a prometheus.Collector for one Indexer and what is around it. A host with
// several Indexers makes a Collector for each, and registers each by
// prometheus.WrapRegistererWith with a label of its own. It is made by New. All methods are
// safe for concurrent use.
//
// Names of pods and models can be any bytes. Invalid UTF-8 becomes U+FFFD in a label, and a
// name whose label is taken gets "~2" behind it, or a higher number. At most 256 models have
// labels of their own; further ones, and models that no pod has, are "".
type Collector struct {
	set       *figures.Set
	descs     []*client.Desc // by Metric.ID
	reference *reference     // nil: there are none
	durations [len(figures.Durations)]client.Histogram
}

// New returns a Collector that watches nothing yet.
func New(opts ...Option) *Collector {
	var cfg config
	for _, o := range opts {
		o(&cfg)
	}
	c := &Collector{set: figures.New(cfg.pods)}
	for _, m := range figures.All {
		c.descs = append(c.descs, client.NewDesc(m.Name, m.Help, m.Labels, nil))
	}
	for i, d := range figures.Durations {
		o := client.HistogramOpts{Name: d.Name, Help: d.Help, Buckets: figures.Bounds}
		if cfg.native {
			o.NativeHistogramBucketFactor, o.NativeHistogramMaxBucketNumber, o.NativeHistogramMinResetDuration = 1.1, 100, time.Hour
		}
		c.durations[i] = client.NewHistogram(o)
	}
	if cfg.reference {
		c.reference = newReference()
	}
	c.set.Scored = c.scored
	return c
}

// Hooks returns hooks for kvindex.WithHooks. They count scores and losses, and call the hooks
// of the host. Without them there are no durations, predicted tokens and losses, and all models
// are "".
func (c *Collector) Hooks(own kvindex.Hooks) kvindex.Hooks { return c.set.Hooks(own) }

// Watch exports the figures of an Indexer. A later call replaces it.
func (c *Collector) Watch(ix *kvindex.Indexer) { c.set.Watch(ix) }

// WatchSubscriber adds the counts of a Subscriber. Those of a Fleet are added by WatchFleet.
func (c *Collector) WatchSubscriber(s *events.Subscriber) { c.set.WatchSubscriber(s) }

// WatchFleet adds the links and pods of a Fleet, and the counts of its Subscribers.
func (c *Collector) WatchFleet(f *events.Fleet) { c.set.WatchFleet(f) }

// WatchPool adds the figures of a Pool of messages.
func (c *Collector) WatchPool(p *events.Pool) { c.set.WatchPool(p) }

// WatchTokenizers adds the figures of a Pool of tokenizers, such as that of kvindex.Models.
func (c *Collector) WatchTokenizers(p *tokenize.Pool) { c.set.WatchTokenizers(p) }

// scored observes the durations of a score. A duration of 0 means that the step was not needed.
func (c *Collector) scored(_ context.Context, s kvindex.ScoreReport) {
	for i, d := range [...]time.Duration{s.Render, s.Tokenize, s.Match} {
		if d > 0 {
			c.durations[i].Observe(d.Seconds())
		}
	}
	if c.reference != nil {
		c.reference.scored(&s)
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *client.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
	for _, h := range c.durations {
		ch <- h.Desc()
	}
	if c.reference != nil {
		c.reference.describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- client.Metric) {
	r := c.set.Read(func(m *figures.Metric, value float64, labels []string) {
		ch <- &metric{desc: c.descs[m.ID], isCount: m.Counter, value: value, names: m.Labels, labels: labels}
	})
	if c.set.Hooked() {
		for _, h := range c.durations {
			ch <- h
		}
	}
	if c.reference != nil {
		c.reference.collect(&r, c.set.Hooked(), ch)
	}
}

// A metric is one series in a scrape. It contains the values that Write's pointers refer to, to save
// allocations: a scrape of a thousand pods has 16,000 metrics.
type metric struct {
	desc    *client.Desc
	isCount bool
	value   float64
	names   []string
	labels  []string
	count   dto.Counter
	gauge   dto.Gauge
	pairs   [figures.MaxLabels]dto.LabelPair
	list    [figures.MaxLabels]*dto.LabelPair
}

func (m *metric) Desc() *client.Desc { return m.desc }

// Write implements prometheus.Metric.
func (m *metric) Write(out *dto.Metric) error {
	for i := range m.names {
		m.pairs[i].Name, m.pairs[i].Value = &m.names[i], &m.labels[i]
		m.list[i] = &m.pairs[i]
	}
	out.Label = m.list[:len(m.names)]
	slices.SortFunc(out.Label, func(a, b *dto.LabelPair) int { return strings.Compare(*a.Name, *b.Name) })
	if m.isCount {
		m.count.Value = &m.value
		out.Counter = &m.count
	} else {
		m.gauge.Value = &m.value
		out.Gauge = &m.gauge
	}
	return nil
}
