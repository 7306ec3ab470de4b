// Package figures has the metrics of kvindex for exporters: their table, the counters that need
// hooks, and the reading of each value. An exporter converts them to the form of its library.
package figures

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/stats"
	"github.com/kvindex/kvindex/tokenize"
)

const (
	maxModels  = 256 // number of models with labels of their own
	maxSources = 64
	numStates  = int(kvindex.StateApproximate) + 1
)

// Emit receives the value of a series. labels has the order of Metric.Labels.
type Emit func(m *Metric, value float64, labels []string)

// A Set has the sources of an exporter's values. New makes it. All methods are safe for concurrent
// use.
type Set struct {
	// Scored, if not nil, is called by Hooks.Scored. It must be set before Hooks.
	Scored func(context.Context, kvindex.ScoreReport)

	hooked  atomic.Bool
	byModel atomic.Pointer[map[string]*modelCounts] // with an entry ""; the map is replaced, and never changed
	byCause [8]atomic.Uint64                        // in the order of view.LossNames
	ofTiers atomic.Uint64                           // losses with Loss.Tiers
	models  firstNames

	mu        sync.Mutex // guards the fields below, and is held during Read
	ix        *kvindex.Indexer
	watched   []transport
	fleets    []*events.Fleet
	pools     []*events.Pool
	texts     []*tokenize.Pool
	sources   firstNames
	completed uint64 // replays that brought all missing messages
	pods      byPod
	fleet     []events.FleetPod
}

// transport is a Subscriber, or a Fleet for all of its Subscribers.
type transport interface{ Stats() events.SubscriberStats }

// modelCounts counts the tokens of one model. hits, misses and units are for the names of other
// systems: scores with and without a pod that had a part of the prompt, and the sum of these parts
// in units of 16 tokens.
type modelCounts struct {
	label                     string
	prompt, cached, predicted atomic.Uint64
	hits, misses, units       atomic.Uint64
}

// New returns a Set with series by pod for at most pods pods.
func New(pods int) *Set {
	s := &Set{models: firstNames{most: maxModels}, sources: firstNames{most: maxSources}, pods: byPod{most: pods}}
	s.byModel.Store(&map[string]*modelCounts{"": {}})
	return s
}

// Hooks returns hooks that count, and call those of the host.
func (s *Set) Hooks(own kvindex.Hooks) kvindex.Hooks {
	s.hooked.Store(true)
	h := own
	h.Lost = func(l kvindex.Loss) {
		s.byCause[max(slices.Index(view.LossNames, l.Cause), 0)].Add(1)
		if l.Tiers {
			s.ofTiers.Add(1)
		}
		if own.Lost != nil {
			own.Lost(l)
		}
	}
	h.Scored = func(ctx context.Context, sc kvindex.ScoreReport) {
		s.count(&sc)
		if s.Scored != nil {
			s.Scored(ctx, sc)
		}
		if own.Scored != nil {
			own.Scored(ctx, sc)
		}
	}
	return h
}

func (s *Set) count(sc *kvindex.ScoreReport) {
	if sc.Err != nil {
		return
	}
	m := s.model(sc)
	m.prompt.Add(uint64(sc.PromptTokens))
	m.cached.Add(uint64(sc.CachedTokens))
	m.predicted.Add(uint64(sc.PredictedTokens))
	switch {
	case sc.Match == 0:
	case sc.CachedTokens > 0:
		m.hits.Add(1)
		m.units.Add(uint64(sc.CachedTokens) / 16)
	default:
		m.misses.Add(1)
	}
}

// model returns the counts of the model of a score. It returns those of "" if no pod has the model,
// because clients invent names, and if too many models have counts.
func (s *Set) model(sc *kvindex.ScoreReport) *modelCounts {
	all := *s.byModel.Load()
	if sc.Outcome != "scored" {
		return all[""]
	}
	if m := all[sc.Model]; m != nil {
		return m
	}
	return s.addModel(sc.Model)
}

func (s *Set) addModel(name string) *modelCounts {
	for {
		old := s.byModel.Load()
		m := (*old)[name]
		if m != nil {
			return m
		}
		m = &modelCounts{label: s.models.of(name)}
		if m.label == "" {
			return (*old)[""]
		}
		all := make(map[string]*modelCounts, len(*old)+1)
		for n, o := range *old {
			all[n] = o
		}
		all[strings.Clone(name)] = m
		if s.byModel.CompareAndSwap(old, &all) {
			return m
		}
	}
}

// Hooked reports whether Hooks was called.
func (s *Set) Hooked() bool { return s.hooked.Load() }

// Watch makes Read read an Indexer, in place of an earlier one.
func (s *Set) Watch(ix *kvindex.Indexer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ix = ix
}

// WatchSubscriber, WatchFleet, WatchPool and WatchTokenizers make Read read one more of these. Their
// figures are added up. A nil argument is ignored.
func (s *Set) WatchSubscriber(sub *events.Subscriber) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub != nil {
		s.watched = append(s.watched, sub)
	}
}

func (s *Set) WatchFleet(f *events.Fleet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f != nil {
		s.watched, s.fleets = append(s.watched, f), append(s.fleets, f)
	}
}

func (s *Set) WatchPool(p *events.Pool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p != nil {
		s.pools = append(s.pools, p)
	}
}

func (s *Set) WatchTokenizers(p *tokenize.Pool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p != nil {
		s.texts = append(s.texts, p)
	}
}

// Reading has the values that Read has read, for exporters with further metrics.
type Reading struct {
	Stats       stats.Stats // set if Indexed
	Transport   events.SubscriberStats
	Pool        events.PoolStats
	Subscribers int    // number of Subscribers, those of Fleets included
	Completed   uint64 // replays that brought all missing messages

	Indexed, Transported, Pooled bool // an Indexer, a transport, a pool of tokenizers is watched

	Hits, Misses, Units uint64 // see modelCounts
}

// Read calls emit once for each series. Series whose source is not watched are left out. It calls
// each Stats method once, and lists pods only if there are series by pod.
func (s *Set) Read(emit Emit) (r Reading) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ix != nil {
		r.Indexed, r.Stats = true, s.ix.Stats()
		s.readScores(&r, emit)
		s.readIndex(&r.Stats, emit)
		readMessages(&r.Stats, emit)
		s.readPredictions(&r.Stats, emit)
		readPrompts(&r.Stats.Prompts, emit)
		if s.pods.most > 0 {
			known := 0
			for _, n := range r.Stats.States {
				known += n
			}
			s.pods.read(s.ix, known, &s.models.names, emit)
		}
	}
	if len(s.texts) > 0 {
		s.readTokenizers(emit)
	}
	if len(s.watched) > 0 {
		s.readTransport(&r, emit)
	}
	if len(s.pools) > 0 {
		s.readPools(&r, emit)
	}
	return r
}

// A value is a series of a metric with one label.
type value struct {
	label string
	n     uint64
}

func each(emit Emit, m *Metric, values ...value) {
	for _, v := range values {
		emit(m, float64(v.n), []string{v.label})
	}
}

// byWord emits a series for each key of a map.
func byWord[N int | uint64](emit Emit, m *Metric, counts map[string]N) {
	for word, n := range counts {
		emit(m, float64(n), []string{word})
	}
}

func (s *Set) readScores(r *Reading, emit Emit) {
	sc := &r.Stats.Scores
	byWord(emit, scores, sc.Outcomes)
	emit(degraded, float64(sc.Degraded), nil)
	emit(bodiesByEngine, float64(sc.Rendered), []string{"rendered"})
	emit(bodiesByEngine, float64(sc.Unrendered), []string{"failed"})
	if !s.hooked.Load() {
		emit(promptTokens, float64(sc.PromptTokens), []string{""})
		emit(cachedTokens, float64(sc.CachedTokens), []string{""})
		return
	}
	for _, m := range *s.byModel.Load() {
		label := []string{m.label}
		emit(promptTokens, float64(m.prompt.Load()), label)
		emit(cachedTokens, float64(m.cached.Load()), label)
		emit(predictedTokens, float64(m.predicted.Load()), label)
		r.Hits += m.hits.Load()
		r.Misses += m.misses.Load()
		r.Units += m.units.Load()
	}
	for i, cause := range view.LossNames {
		if cause != "" {
			emit(losses, float64(s.byCause[i].Load()), []string{cause})
		}
	}
	emit(tierLosses, float64(s.ofTiers.Load()), nil)
}

func (s *Set) readIndex(st *stats.Stats, emit Emit) {
	emit(models, float64(st.Models), nil)
	emit(ranks, float64(st.Ranks), nil)
	byWord(emit, podStates, st.States)
	each(emit, streams, value{"connected", uint64(st.Connected)}, value{"waiting", uint64(st.Waiting)}, value{"no_replay", uint64(st.NoReplay)})
	for t, n := range st.Blocks {
		emit(blocks, float64(n), []string{index.Tier(t).String()})
	}
	if u := st.Index; u != (index.MemoryUsage{}) {
		emit(indexKeys, float64(u.Prefixes), nil)
		emit(indexHoldings, float64(u.Memberships), nil)
		emit(indexBytes, float64(u.Total), nil)
		emit(indexFree, float64(u.Free), nil)
		emit(indexBudget, float64(u.Budget), nil)
		emit(evictedBlocks, float64(u.Evicted), nil)
	}
	c := &st.Counts
	emit(storedBlocks, float64(c.Stored), nil)
	emit(removedBlocks, float64(c.Removed), nil)
	each(emit, indexNotes, value{"cleared", c.Cleared}, value{"reports", c.Reports}, value{"restored", c.Restored}, value{"parked", c.Parked}, value{"joined", c.Joined},
		value{"dropped", c.Dropped}, value{"forgotten", c.Forgotten}, value{"ambiguous", c.Ambiguous}, value{"unknown_remove", c.UnknownRemove}, value{"aged", c.Aged})
	emit(parkedEvents, float64(st.Parked), nil)
	emit(unplacedHashes, float64(st.Unplaced), nil)
}

func readMessages(st *stats.Stats, emit Emit) {
	emit(messages, float64(st.Messages), nil)
	byWord(emit, malformedMessages, st.MalformedBy)
	emit(duplicateMessages, float64(st.Duplicates), nil)
	emit(gaps, float64(st.Gaps), nil)
	emit(missingMessages, float64(st.Missing), nil)
	emit(passedOverMessages, float64(st.PassedOver), nil)
	emit(replayedMessages, float64(st.Replayed), nil)
	emit(restarts, float64(st.Restarts), nil)
	each(emit, refusedMessages, value{"contested", st.Contested}, value{"no_room", st.NoRoom})
	emit(delayedMessages, float64(st.Delayed), nil)
	emit(markedLosses, float64(st.Marked), nil)
	byWord(emit, eventsByKind, st.Events)
	emit(eventsByKind, float64(st.Foreign), []string{"foreign"})
	emit(unscoredBlocks, float64(st.Unscored), nil)
	emit(scopelessBlocks, float64(st.Scopeless), nil)
	emit(otherChunks, float64(st.OtherChunks), nil)
	emit(refusedAdapters, float64(st.Adapters), nil)
}

func (s *Set) readPredictions(st *stats.Stats, emit Emit) {
	p, t := &st.Predictions, &st.Tickets
	emit(predictionsMade, float64(p.Routed), nil)
	emit(predictionsLive, float64(p.Live), nil)
	byWord(emit, predictionsEnded, p.Ended)
	emit(ticketsLive, float64(t.Live), nil)
	byWord(emit, ticketsEnded, t.Ended)
	emit(ticketsEnded, float64(t.Unknown), []string{"unknown"})
	// Models without labels of their own are added up.
	results, lengths := make(map[[4]string]stats.Accuracy), make(map[[2]string]uint64)
	for i := range st.Observed {
		o := &st.Observed[i]
		model := s.models.of(o.Model)
		lengths[[2]string{model, o.State}] += o.OtherLength
		for figure, of := range map[string]map[string]stats.Accuracy{"cached": o.Cached, "predicted": o.Predicted} {
			for result, n := range of {
				at := [4]string{model, o.State, figure, result}
				sum := results[at]
				results[at] = stats.Accuracy{Requests: sum.Requests + n.Requests, Tokens: sum.Tokens + n.Tokens}
			}
		}
	}
	for at, n := range results {
		emit(observedRequests, float64(n.Requests), at[:])
		emit(observedTokens, float64(n.Tokens), at[:])
	}
	for at, n := range lengths {
		emit(observedOtherSize, float64(n), at[:])
	}
}

func readPrompts(p *stats.Prompts, emit Emit) {
	byWord(emit, promptLookups, p.Lookups)
	each(emit, promptText, value{"known", p.BytesKnown}, value{"encoded", p.BytesEncoded})
	emit(promptEntries, float64(p.Entries), nil)
	emit(promptBytes, float64(p.Bytes), nil)
	emit(promptEvictions, float64(p.Evicted), nil)
}

func (s *Set) readTokenizers(emit Emit) {
	var sum tokenize.PoolStats
	for _, p := range s.texts {
		t := p.Stats()
		sum.Tokenizers += t.Tokenizers
		sum.Bytes += t.Bytes
		sum.Loads += t.Loads
		sum.Failures += t.Failures
		sum.Evictions += t.Evictions
		sum.Refused += t.Refused
		sum.Encoding += t.Encoding
		sum.Waiting += t.Waiting
	}
	emit(tokenizers, float64(sum.Tokenizers), nil)
	emit(tokenizerBytes, float64(sum.Bytes), nil)
	emit(tokenizerLoads, float64(sum.Loads), nil)
	emit(tokenizerFailures, float64(sum.Failures), nil)
	emit(tokenizerEvictions, float64(sum.Evictions), nil)
	each(emit, texts, value{"encoding", uint64(sum.Encoding)}, value{"waiting", uint64(sum.Waiting)})
	emit(refusedTexts, float64(sum.Refused), nil)
}

var links = []string{"none", "waiting", "connecting", "backoff", "replaying", "live", "ending"}

// drops are the keys of SubscriberStats.Dropped.
var drops = []string{"bad_topic", "malformed", "superseded"}

func (s *Set) readTransport(r *Reading, emit Emit) {
	r.Transported, r.Subscribers = true, len(s.watched)-len(s.fleets)
	sum := &r.Transport
	sum.Dropped = make(map[string]uint64, len(drops))
	for _, w := range s.watched {
		t := w.Stats()
		sum.Messages += t.Messages
		for _, reason := range drops {
			sum.Dropped[reason] += t.Dropped[reason]
		}
		sum.SinkErrors += t.SinkErrors
		sum.Connects += t.Connects
		sum.Disconnects += t.Disconnects
		sum.Refused += t.Refused
		sum.Replays += t.Replays
		sum.Replayed += t.Replayed
		sum.ReplayErrors += t.ReplayErrors
	}
	if n := sum.Replays - sum.ReplayErrors; n <= sum.Replays { // it may wrap around: a replay's error is counted before the replay
		s.completed = max(s.completed, n)
	}
	r.Completed = s.completed
	emit(received, float64(sum.Messages), nil)
	for _, reason := range drops {
		emit(dropped, float64(sum.Dropped[reason]), []string{reason})
	}
	emit(sinkErrors, float64(sum.SinkErrors), nil)
	emit(connects, float64(sum.Connects), nil)
	emit(disconnects, float64(sum.Disconnects), nil)
	emit(refusals, float64(sum.Refused), nil)
	emit(replayRequests, float64(sum.Replays), nil)
	emit(replayFailures, float64(sum.ReplayErrors), nil)
	emit(transportReplays, float64(sum.Replayed), nil)
	if len(s.fleets) > 0 {
		byLink, bySource := make(map[string]int), map[string]int{"": 0}
		for _, f := range s.fleets {
			s.fleet = f.Pods(s.fleet[:0])
			for i := range s.fleet {
				bySource[s.sources.of(s.fleet[i].Source)]++
				for j := range s.fleet[i].Streams {
					byLink[s.fleet[i].Streams[j].Link]++
					r.Subscribers++
				}
			}
		}
		for _, link := range links {
			emit(fleetLinks, float64(byLink[link]), []string{link})
		}
		for source, n := range bySource {
			emit(fleetPods, float64(n), []string{source})
		}
	}
	emit(subscribers, float64(r.Subscribers), nil)
}

func (s *Set) readPools(r *Reading, emit Emit) {
	r.Pooled = true
	sum := &r.Pool
	for _, p := range s.pools {
		t := p.Stats()
		sum.Concurrency += t.Concurrency
		sum.Messages += t.Messages
		sum.Bytes += t.Bytes
		sum.Delivered += t.Delivered
		sum.Dropped += t.Dropped
		sum.Malformed += t.Malformed
		sum.Errors += t.Errors
		sum.Waited += t.Waited
	}
	emit(queued, float64(sum.Messages), nil)
	emit(queuedBytes, float64(sum.Bytes), nil)
	emit(poolDelivered, float64(sum.Delivered), nil)
	emit(poolDropped, float64(sum.Dropped), nil)
	each(emit, poolErrors, value{"malformed", sum.Malformed}, value{"other", sum.Errors})
	emit(poolWaits, float64(sum.Waited), nil)
}
