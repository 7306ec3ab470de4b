package figures

// MaxLabels is the largest number of labels of a Metric.
const MaxLabels = 4

// A Metric is one family of series.
type Metric struct {
	ID      int    // index in All
	Name    string // Prometheus' name, with the unit and, for a counter, _total
	Help    string
	Counter bool // false: a gauge
	Labels  []string
}

// All has the metrics in the order of the documentation.
var All []*Metric

func counter(name, help string, labels ...string) *Metric {
	return add(name+"_total", help, true, labels)
}

func gauge(name, help string, labels ...string) *Metric { return add(name, help, false, labels) }

func add(name, help string, counter bool, labels []string) *Metric {
	m := &Metric{ID: len(All), Name: "kvindex_" + name, Help: help, Counter: counter, Labels: labels}
	All = append(All, m)
	return m
}

var (
	scores          = counter("scores", "Scores that have ended, by outcome.", "outcome")
	degraded        = counter("degraded_scores", "Scores for which the index could not be queried.")
	bodiesByEngine  = counter("bodies_by_engine", "Bodies that were sent to an engine for rendering, by result.", "result")
	promptTokens    = counter("prompt_tokens", "Tokens of the prompts of scores without an error.", "model")
	cachedTokens    = counter("cached_tokens", "Of the prompt tokens: cached in the best pod.", "model")
	predictedTokens = counter("predicted_tokens", "Of the prompt tokens: cached in the best pod, with prompts that were just sent.", "model")

	models     = gauge("models", "Models that are known.")
	ranks      = gauge("ranks", "Ranks that are known.")
	podStates  = gauge("pods", "Pods in each state. A pod counts once for each of its models.", "state")
	streams    = gauge("streams", "Streams that are connected, that wait for a replay, and whose replay socket does not answer.", "state")
	losses     = counter("losses", "Losses of messages, by cause.", "cause")
	tierLosses = counter("tier_losses", "Of the losses: of streams that report lower tiers alone.")

	blocks         = gauge("blocks", "Blocks that all pods hold, by tier.", "tier")
	indexKeys      = gauge("index_keys", "Prefixes in the index.")
	indexHoldings  = gauge("index_holdings", "Blocks held, of all holders together.")
	indexBytes     = gauge("index_bytes", "Heap of the index.")
	indexFree      = gauge("index_free_bytes", "Of the heap of the index: ready for new blocks.")
	indexBudget    = gauge("index_budget_bytes", "Bound of the heap of the index.")
	evictedBlocks  = counter("evicted_blocks", "Blocks that the full index has evicted, once for each holder.")
	storedBlocks   = counter("stored_blocks", "Blocks stored by events, with copies and repeats.")
	removedBlocks  = counter("removed_blocks", "Blocks removed by events.")
	indexNotes     = counter("index_notes", "Rare cases in the index, by kind.", "kind")
	parkedEvents   = gauge("parked_events", "Events that wait for their parent block.")
	unplacedHashes = gauge("unplaced_hashes", "Hashes of blocks whose prefix is not known.")

	messages           = counter("messages", "Messages of engines, applied or not.")
	malformedMessages  = counter("malformed_messages", "Messages that could not be read, by reason.", "reason")
	duplicateMessages  = counter("duplicate_messages", "Messages that were received before.")
	gaps               = counter("gaps", "Gaps in the sequence numbers.")
	missingMessages    = counter("missing_messages", "Messages that are lost for good.")
	passedOverMessages = counter("passed_over_messages", "Of the missing messages: left out by a replay.")
	replayedMessages   = counter("replayed_messages", "Messages of replays that were applied.")
	restarts           = counter("restarts", "Restarts of engines.")
	refusedMessages    = counter("refused_messages", "Readable messages that were not applied, by reason.", "reason")
	delayedMessages    = counter("delayed_messages", "Messages that other processes saw late.")
	markedLosses       = counter("marked_losses", "Losses that the program has reported.")
	eventsByKind       = counter("events", "Events in messages, by kind.", "kind")
	unscoredBlocks     = counter("unscored_blocks", "Stored blocks that no prompt can match.")
	scopelessBlocks    = counter("scopeless_blocks", "Stored blocks whose events lack the salt, the media or the adapter.")
	otherChunks        = counter("other_chunks", "Chunks of lower tiers of another length than their profile has.")
	refusedAdapters    = counter("refused_adapters", "Adapters beyond the bound of a pod.")

	predictionsMade   = counter("predictions", "Requests that were registered as sent.")
	predictionsEnded  = counter("ended_predictions", "Predictions that have ended, by how.", "end")
	predictionsLive   = gauge("live_predictions", "Predictions that count now.")
	ticketsEnded      = counter("ended_tickets", "Tickets that have ended, by how.", "end")
	ticketsLive       = gauge("live_tickets", "Tickets that are usable.")
	observedRequests  = counter("observed_requests", "Requests whose engine has reported usage, by whether a figure was right.", "model", "state", "figure", "result")
	observedTokens    = counter("observed_tokens", "Tokens of exact figures, and differences of the others.", "model", "state", "figure", "result")
	observedOtherSize = counter("observed_other_length", "Requests whose prompt had another length in the engine.", "model", "state")

	promptLookups   = counter("prompt_cache_lookups", "Texts looked up in the prompt cache, by result.", "result")
	promptText      = counter("prompt_cache_text_bytes", "Text that the prompt cache had, and text that was encoded.", "source")
	promptEntries   = gauge("prompt_cache_entries", "Entries of the prompt cache.")
	promptBytes     = gauge("prompt_cache_bytes", "Heap of the prompt cache.")
	promptEvictions = counter("prompt_cache_evictions", "Entries that the prompt cache has evicted.")

	tokenizers         = gauge("tokenizers", "Tokenizers that are loaded.")
	tokenizerBytes     = gauge("tokenizer_bytes", "Memory of the loaded tokenizers.")
	tokenizerLoads     = counter("tokenizer_loads", "Tokenizers loaded.")
	tokenizerFailures  = counter("tokenizer_failures", "Names that led to no tokenizer.")
	tokenizerEvictions = counter("tokenizer_evictions", "Tokenizers evicted to make room.")
	texts              = gauge("texts", "Texts that are being encoded, and texts that wait.", "state")
	refusedTexts       = counter("refused_texts", "Texts that were refused because too many waited.")

	received         = counter("transport_messages", "Messages that Subscribers gave to the sink.")
	dropped          = counter("transport_dropped_messages", "Messages that Subscribers dropped, by reason.", "reason")
	sinkErrors       = counter("transport_sink_errors", "Errors of the sink.")
	connects         = counter("transport_connects", "Connections made.")
	disconnects      = counter("transport_disconnects", "Connections lost.")
	refusals         = counter("transport_refused_connections", "Connections refused because there were too many.")
	replayRequests   = counter("transport_replay_requests", "Replays requested.")
	replayFailures   = counter("transport_replay_failures", "Replays that did not bring all.")
	transportReplays = counter("transport_replayed_messages", "Messages that replays brought.")
	subscribers      = gauge("transport_subscribers", "Subscribers that are watched, with those of Fleets.")
	fleetLinks       = gauge("fleet_links", "Links of Fleets, by state.", "link")
	fleetPods        = gauge("fleet_pods", "Pods of Fleets, by source. Those that are being forgotten have none.", "source")

	queued          = gauge("pool_messages", "Messages that wait in Pools or are in the sink.")
	queuedBytes     = gauge("pool_bytes", "Payloads that wait in Pools or are in the sink.")
	poolDelivered   = counter("pool_delivered_messages", "Messages that Pools gave to the sink.")
	poolDropped     = counter("pool_dropped_messages", "Messages that Pools dropped.")
	poolErrors      = counter("pool_errors", "Errors of the sink behind a Pool, by kind.", "kind")
	poolWaits       = counter("pool_waits", "Offers that waited for room.")
	podsBeyond      = gauge("pods_without_series", "Pods beyond the bound of series by pod. A pod counts once for each of its models.")
	podState        = gauge("pod_state", "1 for the present state of the pod.", "pod", "model", "state")
	podRanks        = gauge("pod_ranks", "Ranks of the pod.", "pod", "model")
	podBlocks       = gauge("pod_blocks", "Blocks that the pod holds, by tier.", "pod", "model", "tier")
	podEvicted      = gauge("pod_evicted_blocks", "Blocks of the pod evicted from the index since its caches were emptied.", "pod", "model")
	podLag          = gauge("pod_lag_seconds", "Largest delay of a rank behind its engine.", "pod", "model")
	podAge          = gauge("pod_age_seconds", "Time since the newest batch of the rank that is longest without one.", "pod", "model")
	podUnrecognized = gauge("pod_unrecognized_parts", "Parts of events of the pod that this version does not know, such as a kind of event.", "pod", "model")
	podMessages     = counter("pod_messages", "Messages of the pod that were applied.", "pod", "model")
	podMalformed    = counter("pod_malformed_messages", "Messages of the pod that could not be read.", "pod", "model")
	podGaps         = counter("pod_gaps", "Gaps in the sequence numbers of the pod.", "pod", "model")
	podMissing      = counter("pod_missing_messages", "Messages of the pod that are lost for good.", "pod", "model")
	podRestarts     = counter("pod_restarts", "Restarts of the engines of the pod.", "pod", "model")
	podStored       = counter("pod_stored_blocks", "Blocks stored in the pod.", "pod", "model")
	podRemoved      = counter("pod_removed_blocks", "Blocks removed from the pod.", "pod", "model")
	podNotHeld      = counter("pod_not_held_removals", "Of the removed blocks: those that the pod did not hold.", "pod", "model")
	podCounters     = [...]*Metric{podMessages, podMalformed, podGaps, podMissing, podRestarts, podStored, podRemoved, podNotHeld}
)

// A Duration is a step of a score that is measured.
type Duration struct{ Name, Help string }

// Durations are the histograms of a score, in seconds: ScoreReport.Render, Tokenize and Match.
var Durations = [...]Duration{
	{"kvindex_render_duration_seconds", "Time of a score for reading a body and making the text of a chat, if it did so."},
	{"kvindex_tokenize_duration_seconds", "Time of a score for finding the model and tokenizing a text, with all waiting, if it did so."},
	{"kvindex_match_duration_seconds", "Time of a score for hashing the prompt and querying the index, if it did so."},
}

// Bounds are the upper bounds of the buckets of Durations, in seconds.
var Bounds = []float64{1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5}
