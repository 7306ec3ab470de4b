package config

import (
	"slices"
	"strings"
)

// Reasons why several names have no effect.
const (
	engineHashes = "engines hash, kvindex has the tokens of their events"
	byMemory     = "the index is bounded in bytes: memory"
	byEvents     = "blocks go when engines say so, or at the bound of memory"
	inProcess    = "texts are tokenized in this process"
	byEvent      = "events are read by their form"
	predicted    = "/v1/select predicts"
	promptCache  = "prompts have a cache of their own: prompt-cache"
)

// The names of settings, by layer. The names of llm-d are those of its online service
// (examples/kv_events/online/main.go) and of docs/configuration.md, both in
// llm-d-kv-cache-manager and in llm-d-kv-cache at 0cabba5, and those of llm-d-router in autumn
// 2026. The names of AIBrix are those of pkg/constants at e3e10f9.
var (
	flagNames = own(func(name string) string { return name },
		alias{name: "v", to: "log-level", convert: level},
	)
	variables = own(variable,
		alias{name: "HTTP_PORT", to: "listen", convert: port},
		alias{name: "MODEL_NAME", to: "model"},
		alias{name: "HF_TOKEN", to: "hub-token"},
		alias{name: "BLOCK_SIZE", to: "block-size"},
		alias{name: "ZMQ_ENDPOINT", to: "zmq-endpoint"},
		alias{name: "ZMQ_TOPIC", to: "zmq-topic"},
		alias{name: "POOL_CONCURRENCY", to: "concurrency"},
		alias{name: "REDIS_ADDR", to: "redis"},
		alias{name: "LOCAL_TOKENIZER_DIR", to: "models-dir"},
		alias{name: "LOCAL_TOKENIZER_FILENAME", why: "a folder of a model has tokenizer.json", check: anything},
		alias{name: "PYTHONPATH", why: "there is no Python here", check: anything},
		alias{name: "PYTHONHASHSEED", why: engineHashes, check: anything},
		alias{name: "AIBRIX_PREFIX_CACHE_KV_EVENT_SYNC_ENABLED", to: "kubernetes", convert: discover("aibrix")},
		alias{name: "AIBRIX_PREFIX_CACHE_BLOCK_SIZE", to: "block-size"},
		alias{name: "AIBRIX_PREFIX_CACHE_USE_REMOTE_TOKENIZER", why: inProcess, check: yes},
		alias{name: "AIBRIX_PREFIX_CACHE_TOKENIZER_TYPE", why: inProcess, check: anything},
		alias{name: "AIBRIX_PREFIX_CACHE_REMOTE_TOKENIZER_ENDPOINT", why: inProcess, check: anything},
		alias{name: "AIBRIX_VLLM_TOKENIZER_ENDPOINT_TEMPLATE", why: inProcess, check: anything},
		alias{name: "AIBRIX_SYNC_MAX_CONTEXTS", why: byMemory, check: count},
		alias{name: "AIBRIX_SYNC_MAX_PREFIXES_PER_CONTEXT", why: byMemory, check: count},
		alias{name: "AIBRIX_SYNC_EVICTION_INTERVAL_SECONDS", why: byEvents, check: count},
		alias{name: "AIBRIX_SYNC_EVICTION_DURATION_MINUTES", why: byEvents, check: count},
	)
	keys = own(key,
		alias{name: "prefixStoreConfig.cacheSize", why: promptCache, check: count},
		alias{name: "prefixStoreConfig.blockSize", why: promptCache, check: count},
		alias{name: "tokenProcessorConfig.blockSize", to: "block-size"},
		alias{name: "tokenProcessorConfig.blockSizeTokens", to: "block-size"},
		alias{name: "tokenProcessorConfig.hashSeed", why: engineHashes, check: anything},
		alias{name: "tokenProcessorConfig.hashAlgorithm", why: engineHashes, check: anything},
		alias{name: "kvBlockIndexConfig.inMemoryConfig.size", why: byMemory, check: count},
		alias{name: "kvBlockIndexConfig.inMemoryConfig.podCacheSize", why: "every pod that holds a block counts", check: count},
		alias{name: "kvBlockIndexConfig.costAwareMemoryConfig.size", to: "memory"},
		alias{name: "kvBlockIndexConfig.redisConfig.address", to: "redis"},
		alias{name: "kvBlockIndexConfig.redisConfig.backendType", why: "the URL says it", check: oneOf("redis", "valkey")},
		alias{name: "kvBlockIndexConfig.redisConfig.enableRDMA", why: "TCP is used", check: yes},
		alias{name: "kvBlockIndexConfig.valkeyConfig.address", to: "redis"},
		alias{name: "kvBlockIndexConfig.valkeyConfig.backendType", why: "the URL says it", check: oneOf("redis", "valkey")},
		alias{name: "kvBlockIndexConfig.valkeyConfig.enableRDMA", why: "TCP is used", check: yes},
		alias{name: "kvBlockIndexConfig.enableMetrics", to: "metrics"},
		alias{name: "kvBlockIndexConfig.metricsLoggingInterval", why: "figures are at /metrics, not in the log", check: interval},
		alias{name: "kvBlockScorerConfig.scoringStrategy", why: "the engine's own rule counts, by what its events say", check: anything},
		alias{name: "kvBlockScorerConfig.backendConfigs", why: "a block counts in any tier; /v1/score tells the tiers", check: weights, nested: true},
		alias{name: "kvCacheBackendConfigs", why: "a block counts in any tier; /v1/score tells the tiers", check: weights, nested: true},
		alias{name: "tokenizersPoolConfig.modelName", to: "model"},
		alias{name: "tokenizersPoolConfig.workersCount", to: "tokenizer-workers"},
		alias{name: "tokenizersPoolConfig.minPrefixOverlapRatio", why: "the cache of prompts is exact", check: share},
		alias{name: "tokenizersPoolConfig.huggingFaceToken", to: "hub-token"},
		alias{name: "tokenizersPoolConfig.tokenizersCacheDir", to: "hub-dir"},
		alias{name: "tokenizersPoolConfig.hf.enabled", to: "download"},
		alias{name: "tokenizersPoolConfig.hf.huggingFaceToken", to: "hub-token"},
		alias{name: "tokenizersPoolConfig.hf.tokenizersCacheDir", to: "hub-dir"},
		alias{name: "tokenizersPoolConfig.local.autoDiscoveryDir", to: "models-dir"},
		alias{name: "tokenizersPoolConfig.local.autoDiscoveryTokenizerFileName", why: "a folder of a model has tokenizer.json", check: anything},
		alias{name: "tokenizersPoolConfig.local.modelTokenizerMap", to: "models", nested: true},
		alias{name: "tokenizersPoolConfig.uds.socketFile", why: inProcess, check: anything},
		alias{name: "tokenizersPoolConfig.uds.useTCP", why: inProcess, check: yes},
		alias{name: "tokenizersPoolConfig.uds.modelTokenizerMap", to: "models", nested: true},
		alias{name: "topicFilter", to: "zmq-topic"},
		alias{name: "kvEventsConfig.zmqEndpoint", to: "zmq-endpoint"},
		alias{name: "kvEventsConfig.topicFilter", to: "zmq-topic"},
		alias{name: "kvEventsConfig.concurrency", to: "concurrency"},
		alias{name: "kvEventsConfig.engineType", why: byEvent, check: oneOf("vllm", "sglang")},
		alias{name: "kvEventsConfig.tracing", why: "there are no traces", check: yes},
		alias{name: "kvEventsConfig.discoverPods", to: "kubernetes", convert: discover("llm-d")},
		alias{name: "kvEventsConfig.podDiscoveryConfig.podLabelSelector", to: "selector"},
		alias{name: "kvEventsConfig.podDiscoveryConfig.podNamespace", to: "namespace"},
		alias{name: "kvEventsConfig.podDiscoveryConfig.socketPort", to: "engine-port"},
		alias{name: "kvEventsConfig.podDiscoveryConfig.replaySocketPort", to: "replay-port"},
		alias{name: "kvEventsConfig.podDiscoveryConfig.engineType", why: byEvent, check: oneOf("vllm", "sglang")},
		alias{name: "speculativeIndexing", why: predicted, check: yes},
		alias{name: "speculativeTTL", why: predicted, check: interval},
	)
)

// own returns the names of all settings, converted by form, and others. A file cannot name a
// file: the setting config is not among them.
func own(form func(string) string, others ...alias) []alias {
	var list []alias
	for i := range settings {
		if settings[i].name == "config" && form("a-b") == "aB" {
			continue
		}
		list = append(list, alias{name: form(settings[i].name), to: settings[i].name})
	}
	return append(list, others...)
}

func find(list []alias, name string) *alias {
	if i := slices.IndexFunc(list, func(a alias) bool { return a.name == name }); i >= 0 {
		return &list[i]
	}
	return nil
}

// isGroup reports whether a file may have an object at path.
func isGroup(path string) bool {
	return slices.ContainsFunc(keys, func(a alias) bool { return strings.HasPrefix(a.name, path+".") })
}
