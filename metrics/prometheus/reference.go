package prometheus

import (
	client "github.com/prometheus/client_golang/prometheus"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/metrics/internal/figures"
)

// The names of other systems: kvcache_index_* of llm-d-kv-cache; kvcache_index_*, kvcache_kvevents_*
// and llm_d_epp_kv_cache_* of llm-d-router (pkg/kvcache/metrics/collector.go and replay.go of August
// 2026); and kvcache_zmq_* of AIBrix, both with the prefix aibrix_ of its code
// (pkg/cache/kvcache/metrics.go) and without it, as in its documents. Each series has the
// reference's type. It lacks the reference's labels for pods; sums over these labels are the same.

// A referenceValue is a series under the name of another system.
type referenceValue struct {
	names  []string
	help   string
	gauge  bool
	needs  func(*figures.Reading) bool
	value  func(*figures.Reading) uint64
	hooked bool // needs hooks
}

func indexed(r *figures.Reading) bool     { return r.Indexed }
func transported(r *figures.Reading) bool { return r.Transported }
func pooled(r *figures.Reading) bool      { return r.Pooled }

var references = []referenceValue{
	{[]string{"kvcache_index_admissions_total", "llm_d_epp_kv_cache_index_admissions_total"}, "Blocks that events have stored.", false,
		indexed, func(r *figures.Reading) uint64 { return r.Stats.Counts.Stored }, false},
	{[]string{"kvcache_index_evictions_total", "llm_d_epp_kv_cache_index_evictions_total"}, "Blocks that events have removed, and blocks that the full index has evicted.", false,
		indexed, func(r *figures.Reading) uint64 { return r.Stats.Counts.Removed + r.Stats.Index.Evicted }, false},
	{[]string{"kvcache_index_lookup_requests_total", "llm_d_epp_kv_cache_index_lookup_requests_total"}, "Scores that have queried the index.", false,
		indexed, func(r *figures.Reading) uint64 { return r.Hits + r.Misses }, true},
	{[]string{"kvcache_index_hits_total"}, "Scores for which a pod had a part of the prompt.", false,
		indexed, func(r *figures.Reading) uint64 { return r.Hits }, true},
	{[]string{"kvcache_index_misses_total"}, "Scores for which no pod had a part of the prompt.", false,
		indexed, func(r *figures.Reading) uint64 { return r.Misses }, true},
	{[]string{"kvcache_index_lookup_hits_total", "llm_d_epp_kv_cache_index_lookup_hits_total", "kvcache_index_max_pod_hit_count_total", "llm_d_epp_kv_cache_index_max_pod_hit_count_total"},
		"Cached tokens of the best pod of each score, in blocks of 16.", false,
		indexed, func(r *figures.Reading) uint64 { return r.Units }, true},

	{[]string{"kvcache_kvevents_active_subscribers", "llm_d_epp_kv_cache_events_active_subscribers"}, "Subscribers, with those that have no connection.", true,
		transported, func(r *figures.Reading) uint64 { return uint64(r.Subscribers) }, false},
	{[]string{"kvcache_kvevents_messages_received_total", "llm_d_epp_kv_cache_events_messages_received_total"}, "Messages that were received.", false,
		transported, func(r *figures.Reading) uint64 { return r.Transport.Messages }, false},
	{[]string{"kvcache_kvevents_subscriber_reconnections_total", "llm_d_epp_kv_cache_events_subscriber_reconnections_total"}, "Connections that were lost.", false,
		transported, func(r *figures.Reading) uint64 { return r.Transport.Disconnects }, false},
	{[]string{"kvcache_kvevents_zmq_errors_total", "llm_d_epp_kv_cache_events_zmq_errors_total"}, "Messages dropped for their frames, connections refused, and replays that failed.", false,
		transported, func(r *figures.Reading) uint64 {
			return r.Transport.Dropped["malformed"] + r.Transport.Refused + r.Transport.ReplayErrors
		}, false},
	{[]string{"kvcache_kvevents_pool_queue_depth", "llm_d_epp_kv_cache_events_pool_queue_depth"}, "Messages in the Pools.", true,
		pooled, func(r *figures.Reading) uint64 { return uint64(r.Pool.Messages) }, false},
	{[]string{"llm_d_epp_kv_cache_events_pool_capacity"}, "Pods that the Pools serve at the same time.", true,
		pooled, func(r *figures.Reading) uint64 { return uint64(r.Pool.Concurrency) }, false},

	{zmq("connections_total"), "Connections that were made.", false,
		transported, func(r *figures.Reading) uint64 { return r.Transport.Connects }, false},
	{zmq("disconnections_total"), "Connections that were lost.", false,
		transported, func(r *figures.Reading) uint64 { return r.Transport.Disconnects }, false},
	{zmq("events_received_total"), "Events in readable messages.", false,
		indexed, func(r *figures.Reading) uint64 {
			e := r.Stats.Events
			return e["stored"] + e["removed"] + e["cleared"] + e["unknown"]
		}, false},
	{zmq("events_processed_total"), "Events of known kinds.", false,
		indexed, func(r *figures.Reading) uint64 {
			e := r.Stats.Events
			return e["stored"] + e["removed"] + e["cleared"]
		}, false},
	{zmq("missed_events_total"), "Messages that are lost for good.", false,
		indexed, func(r *figures.Reading) uint64 { return r.Stats.Missing }, false},
	{zmq("connection_status"), "Streams that are connected.", true,
		indexed, func(r *figures.Reading) uint64 { return uint64(r.Stats.Connected) }, false},
	{zmq("replay_requests_total"), "Replays requested, without those under way.", false,
		transported, func(r *figures.Reading) uint64 { return r.Transport.Replays }, false},
	{append(zmq("replay_success_total"), "llm_d_epp_kv_cache_events_replay_completed_total"), "Replays that brought all.", false,
		transported, func(r *figures.Reading) uint64 { return r.Completed }, false},
	{append(zmq("replay_failures_total"), "llm_d_epp_kv_cache_events_replay_failures_total"), "Replays that did not bring all.", false,
		transported, func(r *figures.Reading) uint64 { return r.Transport.ReplayErrors }, false},
	{[]string{"llm_d_epp_kv_cache_events_replay_processed_total"}, "Messages that replays brought.", false,
		transported, func(r *figures.Reading) uint64 { return r.Transport.Replayed }, false},
	{[]string{"llm_d_epp_kv_cache_events_replay_active"}, "Streams that wait for a replay.", true,
		indexed, func(r *figures.Reading) uint64 { return uint64(r.Stats.Waiting) }, false},
	{zmq("errors_total"), "Messages that could not be read or were dropped for their frames, and errors of the sink.", false,
		func(r *figures.Reading) bool { return r.Indexed && r.Transported },
		func(r *figures.Reading) uint64 {
			return r.Stats.Malformed + r.Transport.Dropped["malformed"] + r.Transport.SinkErrors
		}, false},
}

// zmq returns the two names of a series of AIBrix.
func zmq(name string) []string {
	return []string{"kvcache_zmq_" + name, "aibrix_kvcache_zmq_" + name}
}

// lookups are histograms of ScoreReport.Match.
var lookups = []string{"kvcache_index_lookup_duration_seconds", "kvcache_index_lookup_latency_seconds", "llm_d_epp_kv_cache_index_lookup_latency_seconds"}

type reference struct {
	descs   [][]*client.Desc // of references
	lookups []client.Histogram
}

func newReference() *reference {
	r := &reference{}
	for _, v := range references {
		var descs []*client.Desc
		for _, name := range v.names {
			descs = append(descs, client.NewDesc(name, v.help, nil, nil))
		}
		r.descs = append(r.descs, descs)
	}
	for _, name := range lookups {
		r.lookups = append(r.lookups, client.NewHistogram(client.HistogramOpts{Name: name, Help: "Time of a score for hashing the prompt and querying the index.", Buckets: figures.Bounds}))
	}
	return r
}

func (r *reference) scored(s *kvindex.ScoreReport) {
	if s.Match > 0 && s.Err == nil {
		for _, h := range r.lookups {
			h.Observe(s.Match.Seconds())
		}
	}
}

func (r *reference) describe(ch chan<- *client.Desc) {
	for _, descs := range r.descs {
		for _, d := range descs {
			ch <- d
		}
	}
	for _, h := range r.lookups {
		ch <- h.Desc()
	}
}

func (r *reference) collect(read *figures.Reading, hooked bool, ch chan<- client.Metric) {
	for i := range references {
		v := &references[i]
		if !v.needs(read) || v.hooked && !hooked {
			continue
		}
		for _, d := range r.descs[i] {
			ch <- &metric{desc: d, isCount: !v.gauge, value: float64(v.value(read))}
		}
	}
	if hooked {
		for _, h := range r.lookups {
			ch <- h
		}
	}
}
